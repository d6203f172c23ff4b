//! One walk over all files: what names the data server gets another place.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{FsError, Inode, InodeKey};
use tokio::task::JoinSet;

use super::mover;
use super::progress::{MOST_HELD, Progress};
use crate::layout::census;
use crate::server::Mds;

/// Files moved at once.
const WIDTH: usize = 8;
/// Layouts of files without data there that are changed in one transaction.
const BATCH: usize = 64;
/// Between two pages, for others.
const PAUSE: Duration = Duration::from_millis(1);

/// What is to be looked at.
#[derive(Debug)]
pub(super) enum Todo {
    All,
    These(Vec<InodeKey>),
    Nothing,
}

/// Looks at what is to be looked at, once; what is left for the next time.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn run(mds: &Arc<Mds>, progress: &Arc<Progress>, todo: Todo) -> Result<Todo, FsError> {
    let mut crew = Crew {
        mds: Arc::clone(mds),
        progress: Arc::clone(progress),
        tasks: JoinSet::new(),
        left: Some(Vec::new()),
    };
    let mut walked = Ok(());
    match todo {
        Todo::Nothing => {}
        Todo::These(keys) => {
            for key in keys {
                crew.take(key).await;
            }
        }
        Todo::All => walked = walk(mds, progress, &mut crew).await,
    }
    // What is under way is not given up for what the store says: a transaction that was begun goes on without its caller, and
    // who waits for the file would go on with its layout of before.
    let left = crew.end().await;
    walked.map(|()| left)
}

async fn walk(mds: &Arc<Mds>, progress: &Progress, crew: &mut Crew) -> Result<(), FsError> {
    let store = progress.store();
    let mut after = None;
    let is_stopped = || progress.is_stopped();
    while let Some((last, files)) = census::at_last(mds, is_stopped, || census::page(mds, after)).await? {
        after = Some(last);
        if progress.is_stopped() {
            return Ok(());
        }
        let named: Vec<Inode> = files.into_iter().filter(|inode| mover::concerns(inode, store)).collect();
        for batch in named.chunks(BATCH) {
            let keys: Vec<InodeKey> = batch.iter().map(|inode| inode.key).collect();
            // What nobody has seen of them is placed anew; the others are moved.
            let unseen = || mover::replace_unseen(mds, &keys, store);
            for key in census::at_last(mds, is_stopped, unseen).await? {
                crew.take(key).await;
            }
        }
        mds.env.clock.sleep(PAUSE).await;
    }
    Ok(())
}

/// Those that are being moved.
struct Crew {
    mds: Arc<Mds>,
    progress: Arc<Progress>,
    tasks: JoinSet<Option<InodeKey>>,
    /// What could not be; `None`: more than is remembered.
    left: Option<Vec<InodeKey>>,
}

impl Crew {
    async fn take(&mut self, key: InodeKey) {
        while self.tasks.len() >= WIDTH {
            self.reap().await;
        }
        if self.progress.is_stopped() {
            return;
        }
        let (mds, progress) = (Arc::clone(&self.mds), Arc::clone(&self.progress));
        self.tasks.spawn(async move {
            match mover::go(&mds, key, &progress).await {
                Ok(amount) => {
                    progress.moved(mds.now(), &key, amount);
                    None
                }
                Err(why) => {
                    tracing::debug!(file = key.fileid.0, %why, "a file cannot be moved yet");
                    progress.held(key, why);
                    Some(key)
                }
            }
        });
    }

    async fn reap(&mut self) {
        match self.tasks.join_next().await {
            Some(Ok(Some(key))) => {
                self.left = self.left.take().filter(|left| left.len() < MOST_HELD).map(|mut left| {
                    left.push(key);
                    left
                });
            }
            // What became of that one is not known.
            Some(Err(_)) => self.left = None,
            _ => {}
        }
    }

    async fn end(mut self) -> Todo {
        while !self.tasks.is_empty() {
            self.reap().await;
        }
        match self.left {
            _ if self.progress.is_stopped() => Todo::All,
            None => Todo::All,
            Some(left) if left.is_empty() => Todo::Nothing,
            Some(left) => Todo::These(left),
        }
    }
}
