//! TIDE: whether the store of a data server is what it was, or an older copy of itself, since its machine or its volume went back
//! to a snapshot. What was written after that is not there, and would be missed by nobody: what there is looks as good as ever.
//!
//! A data server raises a mark while there is anything new, durably, and tells it; the newest one told is a row here. Whoever
//! comes with an older one is refused, until an administrator says what is to become of it (`layout/heal/older.rs`).

use std::sync::Arc;

use sluice_env::date;
use sluice_namespace::stable_storage::{Tide, put_tide, tide};
use sluice_namespace::{FsError, StoreId};
use sluice_rpc::Connection;
use sluice_xdr::control::TIDE_args;

use super::StoreHandle;
use super::registry::{Registry, StoreView};
use crate::server::Mds;

/// An older copy of its store that a data server was refused with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OlderStore {
    /// Of this copy.
    pub(crate) mark: u64,
    pub(crate) newest: u64,
    /// When that was told, in seconds since 1970.
    pub(crate) told: i64,
    /// How often its store was let in before, and may have been written to since.
    pub(crate) let_in: u64,
}

impl StoreView {
    fn refuse(&mut self, mark: u64, row: &Tide) {
        self.older = Some(OlderStore { let_in: self.let_in, ..OlderStore::new(mark, row) });
    }

    /// It may serve, whichever copy it is.
    fn let_in(&mut self) {
        self.let_in += u64::from(self.older.take().is_some());
    }
}

impl StoreHandle {
    /// The older copy of its store that it was refused with.
    pub(crate) fn older(&self) -> Option<OlderStore> {
        self.update(|view| view.older)
    }
}

impl OlderStore {
    fn new(mark: u64, row: &Tide) -> Self {
        Self { mark, newest: row.mark, told: row.told, let_in: 0 }
    }

    /// What `sluice status` says.
    pub(crate) fn words(&self) -> String {
        let Self { mark, newest, told, .. } = self;
        format!(
            "refused, as its store went back to an older copy of itself (mark {mark} where {newest} was confirmed at {}): see sluice doctor",
            stamp(*told)
        )
    }

    fn why(&self, id: StoreId) -> String {
        let Self { mark, newest, told, .. } = self;
        format!(
            "data server {0} went back to an older copy of its store (mark {mark} where {newest} was confirmed at {1}): what was written since is not there. If what it had is somewhere, stop it, and start it on that. Else treat it as lost: `sluice ds drain {0}`, `sluice ds remove {0} --lost`, and `sluice ds add` in an empty directory. Or have it go on with this copy, `sluice ds accept-older {0}`: what has another mirror is made anew from that, all else is as it was then",
            id.0,
            stamp(*told)
        )
    }
}

impl Registry {
    /// Why this store is refused as an older copy of itself.
    pub(super) fn went_back(&self, store: &[u8; 16]) -> Option<String> {
        let known = self.known().into_iter().find(|known| known.uuid == *store)?;
        known.older().map(|older| older.why(known.id))
    }
}

/// The newest mark that is known of a store, if it may go on; why not, otherwise.
///
/// # Errors
/// What the metadata store says: then it is not known whether it may.
pub(super) async fn judge(
    mds: &Arc<Mds>,
    told: &TIDE_args,
    connection: &Connection,
) -> Result<Result<u64, String>, FsError> {
    let handle = mds.data_servers.known().into_iter().find(|known| known.uuid == told.store.0);
    // One that is new, or of another cluster, is judged when it registers.
    let ours = told.cluster.0 == mds.namespace.superblock().uuid;
    let Some(handle) = handle.filter(|handle| ours && !handle.is_removed()) else { return Ok(Ok(told.mark)) };
    let id = handle.id;
    let row = mds.read(|txn| Box::pin(async move { tide(&txn, id).await })).await?;
    match row {
        None if told.mark == 0 => {}
        Some(row) if told.mark < row.mark && row.accepted != Some(told.mark) => {
            return Ok(Err(refuse(&handle, told.mark, &row, connection)));
        }
        Some(row) if told.mark <= row.mark && (row.accepted.is_none() || told.mark < row.mark) => {}
        _ => raise(mds, id, told.mark).await?,
    }
    handle.update(|view| {
        view.let_in();
        // It is told so with the answer to its registration.
        view.from_epoch = row.map_or(0, |row| row.from_epoch);
    });
    Ok(Ok(row.map_or(told.mark, |row| row.mark.max(told.mark))))
}

async fn raise(mds: &Arc<Mds>, store: StoreId, mark: u64) -> Result<(), FsError> {
    let told = mds.env.clock.wall().seconds;
    let raised = mds.write_again(|mut txn| {
        Box::pin(async move {
            let row = tide(&txn, store).await?;
            // What comes late is of before.
            if row.is_none_or(|row| row.mark <= mark) {
                let from_epoch = row.map_or(0, |row| row.from_epoch);
                put_tide(&mut txn, &Tide { store, mark, told, accepted: None, from_epoch });
            }
            Ok(())
        })
    });
    raised.await.map(drop)
}

fn refuse(handle: &StoreHandle, mark: u64, row: &Tide, connection: &Connection) -> String {
    // Beside one that is here this is another copy, and says nothing about that one.
    if handle.connection().is_none_or(|other| other.id() == connection.id()) {
        handle.update(|view| view.refuse(mark, row));
    }
    OlderStore::new(mark, row).why(handle.id)
}

/// To the minute, in UTC.
fn stamp(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_was_let_in_is_another_one_the_next_time() {
        let row = Tide { store: StoreId(1), mark: 5, told: 0, accepted: None, from_epoch: 0 };
        let refused = |view: &mut StoreView| {
            view.refuse(3, &row);
            view.older.map(|older| (older.mark, older.newest, older.let_in))
        };
        let mut view = StoreView::default();
        // One that was never refused does not count.
        view.let_in();
        assert_eq!(refused(&mut view), Some((3, 5, 0)));
        // It says so with each beat.
        view.let_in();
        view.let_in();
        assert!(view.older.is_none());
        assert_eq!(refused(&mut view), Some((3, 5, 1)));
    }

    #[test]
    fn a_moment_is_told_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_796_040_000, "2026-11-30 12:00 UTC"),
        ] {
            assert_eq!(stamp(seconds), text);
        }
    }
}
