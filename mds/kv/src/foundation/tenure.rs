//! One server at a time: what a locked directory is to the embedded store.
//!
//! ```text
//! NAME/\xff/tenure    identity 16, beat 8: who has the store, changed every BEAT while it lives
//! ```
//!
//! A server's identity is in a file that is locked while it runs; after a crash it finds itself in the row and goes
//! on at once. Somebody else's row is watched for as long as a living server would certainly have changed it: no
//! clocks are compared. A server that finds another in its row answers nothing more. All this keeps two servers from
//! being started by mistake; that a late one commits nothing is the epoch's business
//! ([`crate::RunLimits::guarded_by`]).

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use foundationdb::options::TransactionOption;
use sluice_env::Env;

use super::{Foundation, failure};
use crate::KvError;
use crate::lock::LockedFile;

const TENURE_KEY: &[u8] = b"\xff/tenure";

/// Between two changes of the row.
const BEAT: Duration = Duration::from_secs(2);
/// Longer than a living server, with one transaction lost on the way, leaves the row alone.
const SILENCE: Duration = Duration::from_secs(9);

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

/// Takes the store, or finds that a living server has it.
pub(crate) async fn take(store: &Foundation, tenure: &Tenure) -> Result<(), KvError> {
    let may_take = |row: Option<&[u8]>| row.is_none_or(|row| tenure.is_ours(row));
    let first = step(store, |row| may_take(row).then(|| tenure.row(0))).await?;
    if may_take(first.as_deref()) {
        return Ok(());
    }
    tracing::info!("another server had this store; waiting to see whether it lives");
    store.env.clock.sleep(SILENCE).await;
    let unchanged = |row: Option<&[u8]>| may_take(row) || row == first.as_deref();
    let second = step(store, |row| unchanged(row).then(|| tenure.row(0))).await?;
    if unchanged(second.as_deref()) { Ok(()) } else { Err(KvError::InUse { dir: store.space.place() }) }
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
    store.check()?;
    let Some(tenure) = &store.tenure else { return Err(KvError::Closed) };
    let ours = |row: Option<&[u8]>| row.is_some_and(|row| tenure.is_ours(row));
    match step(store, |row| ours(row).then(|| tenure.row(beat))).await {
        Ok(row) if ours(row.as_deref()) => Ok(()),
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
