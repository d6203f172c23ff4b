//! The rows of the metadata store as of one moment, page by page, while the file system is in use: for backups and
//! checks.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_kv::{KvError, Snapshot};
use sluice_namespace::transfer;
use sluice_state::Time;
use sluice_xdr::control::*;

use super::Admin;

/// Readers at a time: each keeps what was replaced since it began.
const MOST: usize = 4;
/// A reader that has not asked for so long is gone.
const IDLE_NANOS: u64 = 60_000_000_000;
/// A page ends with the row that reaches this.
const PAGE_BYTES: usize = 512 << 10;

/// The moments that are being read.
#[derive(Debug, Default)]
pub(crate) struct Moments {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    last: u64,
    by_id: BTreeMap<u64, (Arc<Snapshot>, Time)>,
}

impl Moments {
    /// Lets go of what nobody reads any more. A page that is being read may take longer.
    pub(crate) fn forget_idle(&self, now: Time) {
        self.held.lock().by_id.retain(|_, (snapshot, used)| {
            if Arc::strong_count(snapshot) > 1 {
                *used = now;
            }
            now.since(*used) < IDLE_NANOS
        });
    }

    /// Lets go of all of them; false: there was none.
    pub(crate) fn end_all(&self) -> bool {
        !std::mem::take(&mut self.held.lock().by_id).is_empty()
    }

    fn find(&self, id: u64, now: Time) -> Option<Arc<Snapshot>> {
        let mut held = self.held.lock();
        let (snapshot, used) = held.by_id.get_mut(&id)?;
        *used = now;
        Some(Arc::clone(snapshot))
    }

    /// `None` while there are too many.
    fn add(&self, snapshot: Snapshot, now: Time) -> Option<(u64, Arc<Snapshot>)> {
        let mut held = self.held.lock();
        if held.by_id.len() >= MOST {
            return None;
        }
        held.last += 1;
        let (id, snapshot) = (held.last, Arc::new(snapshot));
        held.by_id.insert(id, (Arc::clone(&snapshot), now));
        Some((id, snapshot))
    }

    fn end(&self, id: u64) {
        self.held.lock().by_id.remove(&id);
    }
}

impl Admin {
    pub(super) async fn rows(&self, args: ADMIN_ROWS_args) -> ADMIN_ROWS_res {
        match self.page(args).await {
            Ok(page) => ADMIN_ROWS_res::CTL_OK(page),
            Err(reason) => ADMIN_ROWS_res::Default(ctl_status::CTL_ERR_AGAIN, reason.into()),
        }
    }

    async fn page(&self, args: ADMIN_ROWS_args) -> Result<ADMIN_ROWS_resok, String> {
        let (mds, now) = (&self.mds, self.mds.now());
        let (id, snapshot) = match args.snapshot {
            0 => {
                let snapshot = mds.db.snapshot().await.map_err(|error| words(&error))?;
                mds.reading.add(snapshot, now).ok_or_else(|| {
                    format!("{MOST} backups or checks are under way: wait for one, or a minute after one was broken off")
                })?
            }
            id => {
                let found = mds.reading.find(id, now);
                (id, found.ok_or("the server was restarted, its device was filling up, or nothing was asked for a minute: begin anew")?)
            }
        };
        let range = match args.after.as_ref() {
            [] => transfer::everything(),
            _ => transfer::after(&args.after, &transfer::everything()),
        };
        let rows = snapshot.page(&range, PAGE_BYTES).await.map_err(|error| words(&error))?;
        if rows.is_empty() {
            mds.reading.end(id);
        }
        let rows = rows.into_iter().map(|(key, value)| ctl_row { key, value }).collect();
        Ok(ADMIN_ROWS_resok { snapshot: id, version: snapshot.version(), rows })
    }
}

fn words(error: &KvError) -> String {
    match error {
        KvError::TooOld => {
            "this store does not keep the past for as long as a copy takes: stop the metadata server, or use the store's own backup".to_owned()
        }
        other => format!("the metadata store does not answer: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use sluice_env::Env;
    use sluice_kv::{Database, Faults};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_moment_is_not_forgotten_while_a_page_of_it_is_read() {
        let db = Database::memory(Env::simulated(1), Faults::NONE);
        let moments = Moments::default();
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        let (id, page) = moments.add(db.snapshot().await.unwrap(), at(0)).unwrap();
        for seconds in [50, 100, 300] {
            moments.forget_idle(at(seconds));
        }
        drop(page);
        // Then it is asked for the next one, or not.
        moments.forget_idle(at(350));
        assert!(moments.find(id, at(350)).is_some());
        moments.forget_idle(at(411));
        assert!(moments.find(id, at(411)).is_none());
    }
}
