//! One server at a time: what a locked directory is to the embedded store.
//!
//! ```text
//! NAME/\xff/tenure    identity 16, beat 8: who has the store, changed every BEAT while it lives
//! ```
//!
//! A server's identity is in a file that is locked while it runs; after a crash it finds itself in the row and goes
//! on at once. Somebody else's row is watched for as long as a living server would certainly have changed it: no
//! clocks are compared. A server that finds another in its row answers nothing more, and one that has not changed its
//! row for [`LEASE`] answers nothing until it has: whoever was stopped and goes on cannot know that it was not replaced
//! meanwhile. A commit that it had begun before is refused for its age; that no later one is applied either is the
//! epoch's business ([`crate::RunLimits::guarded_by`]).

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use foundationdb::options::TransactionOption;
use sluice_env::{Env, Monotonic};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::{Foundation, failure};
use crate::KvError;
use crate::lock::LockedFile;

const TENURE_KEY: &[u8] = b"\xff/tenure";

/// Between two changes of the row.
const BEAT: Duration = Duration::from_secs(2);
/// How long after it began to change its row a server may answer.
const LEASE: Duration = Duration::from_secs(6);
/// How long a row was seen unchanged before it is taken. The lease of whoever wrote it ended before: it began before the
/// row was seen, and clocks do not differ by a third.
const SILENCE: Duration = Duration::from_secs(9);
/// Between two looks at another server's row.
const LOOK: Duration = Duration::from_secs(1);

const IDENTITY: usize = 16;

/// Who this server is.
#[derive(Debug)]
pub(crate) struct Tenure {
    identity: [u8; IDENTITY],
    _lock: LockedFile,
}

impl Tenure {
    /// Reads the identity in `file`, or draws one, and locks it.
    pub(crate) fn of(file: &Path, env: &Env) -> Result<Self, KvError> {
        let failed = |e: std::io::Error| KvError::Io { what: format!("using {}: {e}", file.display()) };
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(file)
            .map_err(failed)?;
        let lock = LockedFile::new(open, file, failed)?;
        let (mut open, mut stored) = (lock.file(), Vec::new());
        open.read_to_end(&mut stored).map_err(failed)?;
        let identity = match <[u8; IDENTITY]>::try_from(&stored[..]) {
            Ok(identity) => identity,
            Err(_) if stored.is_empty() => {
                let identity = env.random.array();
                open.write_all(&identity).and_then(|()| open.sync_all()).map_err(failed)?;
                identity
            }
            // Cut off by a crash when it was first written, or something else.
            Err(_) => {
                let what = format!("{} does not hold {IDENTITY} bytes: remove it", file.display());
                return Err(KvError::Corrupt { what });
            }
        };
        Ok(Self { identity, _lock: lock })
    }

    fn row(&self, beat: u64) -> Vec<u8> {
        [&self.identity[..], &beat.to_be_bytes()].concat()
    }

    fn is_ours(&self, row: &[u8]) -> bool {
        row.starts_with(&self.identity)
    }
}

/// Until when this server may answer.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    until: AtomicU64,
    changed: Notify,
}

impl Lease {
    pub(crate) fn holds(&self, now: Monotonic) -> bool {
        now.0 < self.until.load(Ordering::Acquire)
    }

    /// Counts from before the row was changed.
    fn renew(&self, began: Monotonic) {
        let until = began.0.saturating_add(u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX));
        self.until.fetch_max(until, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    pub(crate) fn ended(&self) {
        self.until.store(0, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Completes at the next change from now on.
    pub(crate) fn renewed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

/// Takes the store, or finds that a living server has it; with `standby`, waits until none has.
pub(crate) async fn take(store: &Foundation, tenure: &Tenure, standby: bool) -> Result<(), KvError> {
    let free = |row: Option<&[u8]>| row.is_none_or(|row| tenure.is_ours(row));
    let clock = &store.env.clock;
    // Another server's row, and since when it has been the same.
    let mut seen: Option<(Vec<u8>, Monotonic)> = None;
    loop {
        let now = clock.now();
        let silent = seen.clone().filter(|(_, since)| now.since(*since) >= SILENCE).map(|(row, _)| row);
        let may_take = |row: Option<&[u8]>| free(row) || row == silent.as_deref();
        match (step(store, |row| may_take(row).then(|| tenure.row(0))).await, &mut seen) {
            (Ok(row), _) if may_take(row.as_deref()) => {
                store.lease.renew(now);
                return Ok(());
            }
            (Ok(row), None) => {
                tracing::info!("another server had this store; waiting to see whether it lives");
                seen = Some((row.unwrap_or_default(), now));
            }
            (Ok(row), Some((known, _))) if row.as_deref() == Some(known) => {}
            (Ok(row), Some(seen)) if standby => *seen = (row.unwrap_or_default(), now),
            (Ok(_), Some(_)) => return Err(KvError::InUse { dir: store.space.place() }),
            // What became of it is in the row.
            (Err(KvError::Conflict | KvError::TooOld | KvError::CommitUnknown), _) => {}
            // A cluster that is away keeps the other server from changing its row: that is no silence.
            (Err(error), Some((_, since))) if standby => {
                tracing::warn!(%error, "the store is away; waiting");
                *since = now;
            }
            (Err(error), _) => return Err(error),
        }
        clock.sleep(LOOK).await;
    }
}

/// Changes the row for as long as the store is in use.
pub(crate) async fn keep(store: Weak<Foundation>, env: Env) {
    for beat in 1.. {
        env.clock.sleep(BEAT).await;
        let Some(store) = store.upgrade() else { return };
        if renew(&store, beat).await.is_err() {
            return;
        }
    }
}

/// An error ends it: the store is closed or somebody else's.
async fn renew(store: &Arc<Foundation>, beat: u64) -> Result<(), KvError> {
    store.goes_on()?;
    let began = store.env.clock.now();
    let Some(tenure) = &store.tenure else { return Err(KvError::Closed) };
    let ours = |row: Option<&[u8]>| row.is_some_and(|row| tenure.is_ours(row));
    match step(store, |row| ours(row).then(|| tenure.row(beat))).await {
        Ok(row) if ours(row.as_deref()) => {
            store.lease.renew(began);
            Ok(())
        }
        Ok(_) => {
            store.lose();
            Err(KvError::Superseded)
        }
        // The next beat may get through.
        Err(error) => {
            tracing::warn!(%error, "the store's tenure was not renewed");
            Ok(())
        }
    }
}

/// Lets the next server begin at once.
pub(crate) async fn release(store: &Foundation) -> Result<(), KvError> {
    let Some(tenure) = &store.tenure else { return Ok(()) };
    step(store, |row| row.is_some_and(|row| tenure.is_ours(row)).then(Vec::new)).await.map(drop)
}

/// Reads the row under conflict and writes what `decide` says, if anything; an empty value clears it. Returns what
/// was read.
async fn step(
    store: &Foundation,
    decide: impl Fn(Option<&[u8]>) -> Option<Vec<u8>>,
) -> Result<Option<Vec<u8>>, KvError> {
    let transaction = store.begin()?;
    let key = store.space.key(TENURE_KEY);
    let row = store.wait(transaction.get(&key, false)).await.map_err(failure::of_read)?;
    let row = row.map(|row| row.to_vec());
    let Some(next) = decide(row.as_deref()) else { return Ok(row) };
    transaction.set_option(TransactionOption::Timeout(0)).map_err(failure::of_call)?;
    if next.is_empty() {
        transaction.clear(&key);
    } else {
        transaction.set(&key, &next);
    }
    match store.wait(transaction.commit()).await {
        Ok(_) => Ok(row),
        Err(error) => Err(failure::of_commit(*error, key.len())),
    }
}
