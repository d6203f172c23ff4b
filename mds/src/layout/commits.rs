//! LAYOUTCOMMITs of one file are gathered: while one transaction runs, those that come meanwhile wait and
//! become the next. Any number of writers of one file cost two transactions, not one each. docs/DESIGN §6.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_env::Wall;
use sluice_namespace::{CommitSize, Credential, DirectoryUpdate, FsError, Inode, InodeKey, Request};
use sluice_state::file::FileId;
use sluice_xdr::nfs4::nfsstat4;
use tokio::sync::oneshot;

use crate::error::fs_status;
use crate::files::file_id;
use crate::server::Mds;

/// What a LAYOUTCOMMIT says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said {
    /// One past the last byte written; `None`: within the size known.
    pub(crate) end: Option<u64>,
    /// The client's time of the last write.
    pub(crate) mtime: Option<Wall>,
    /// All of it was written before a client chose the times that the file has.
    pub(crate) old: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) inode: Inode,
    pub(crate) grew: bool,
}

type Answer = Result<Committed, nfsstat4>;

/// What one client said, and where it waits for the answer.
type Waiting = (Said, oneshot::Sender<Answer>);

/// Files with a transaction under way, each with those who wait for the next.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    /// Guarded by its own lock.
    waiting: Mutex<BTreeMap<FileId, Vec<Waiting>>>,
}

/// Commits what a client said. The transaction outlives a caller that goes away.
///
/// # Errors
/// STALE, FBIG, and what the store says.
pub(crate) async fn commit(mds: &Arc<Mds>, key: InodeKey, said: Said) -> Answer {
    let (sender, receiver) = oneshot::channel();
    let first = {
        let mut waiting = mds.commits.waiting.lock();
        let first = !waiting.contains_key(&file_id(&key));
        waiting.entry(file_id(&key)).or_default().push((said, sender));
        first
    };
    if first {
        mds.spawn(work(Arc::clone(mds), key));
    }
    receiver.await.unwrap_or(Err(nfsstat4::NFS4ERR_DELAY))
}

async fn work(mds: Arc<Mds>, key: InodeKey) {
    while let Some(batch) = next(&mds, file_id(&key)) {
        let want =
            batch.iter().fold(CommitSize { observed: true, ..CommitSize::default() }, |sum, (said, _)| {
                CommitSize {
                    end: sum.end.max(said.end),
                    mtime: if said.old { sum.mtime } else { sum.mtime.max(said.mtime) },
                    observed: sum.observed && said.old,
                    ..sum
                }
            });
        let answer = transaction(&mds, key, &want).await.map_err(|error| fs_status(&error));
        for (_, sender) in batch {
            // Who has gone away misses nothing.
            drop(sender.send(answer.clone()));
        }
    }
}

/// Those who wait now; `None`, and the file is no longer worked on, when nobody does.
fn next(mds: &Mds, file: FileId) -> Option<Vec<Waiting>> {
    let mut waiting = mds.commits.waiting.lock();
    let batch = std::mem::take(waiting.get_mut(&file)?);
    if batch.is_empty() {
        waiting.remove(&file);
        return None;
    }
    Some(batch)
}

async fn transaction(mds: &Arc<Mds>, key: InodeKey, want: &CommitSize) -> Result<Committed, FsError> {
    // Whoever holds a read-write layout has opened the file for writing: nothing is left to permit.
    let request =
        Request { who: &Credential::ROOT, now: mds.env.clock.wall(), directory: DirectoryUpdate::Exact };
    let (namespace, request) = (&mds.namespace, &request);
    let done = mds
        .write(|mut txn| Box::pin(async move { namespace.commit_size(&mut txn, &key, want, request).await }))
        .await;
    let done = mds.found_size(done)?;
    Ok(Committed { inode: done.inode, grew: done.grew })
}
