//! Files that exist get more mirrors, or fewer, while clients use them. docs/adr/0038-more-mirrors-or-fewer.md.
//!
//! | module | what |
//! | --- | --- |
//! | `choose` | which data servers get one, and which are given up (pure) |
//! | `change` | one file |

mod change;
mod choose;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_namespace::{FsError, InodeKey, Layout};

use crate::layout::drain::change::Refusal;
use crate::layout::maintenance::progress::State;
use crate::layout::maintenance::{self, Files, Last, Outcome, Tried, Work};
use crate::layout::settle;
use crate::server::Mds;
use change::Done;

/// Between two looks at a file that is being filled.
const LOOK: Duration = Duration::from_millis(200);
const SECOND: Duration = Duration::from_secs(1);
/// A file that is not filled by then is left to that: others go on.
const PATIENCE: u64 = 600_000_000_000;

/// What was asked for last.
pub(crate) type Changes = Last<Changed>;
pub(crate) type Progress = maintenance::progress::Progress<Changed>;
pub(crate) type Numbers = maintenance::progress::Numbers<Changed>;

/// Files that were changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changed {
    /// To so many.
    pub(crate) mirrors: u8,
    /// Files that got mirrors, that gave up some, and that will have as many when they leave the metadata.
    pub(crate) more: u64,
    pub(crate) fewer: u64,
    pub(crate) noted: u64,
    /// Of those that got some: bytes copied for them, at most.
    pub(crate) bytes: u64,
    /// And those that were not waited for any longer.
    pub(crate) filling: u64,
}

/// Begins to give `mirrors` copies to the file at a path, or to all files below the directory there. `limit`: bytes per second that
/// are copied; 0 for none.
///
/// # Errors
/// Why not.
pub(crate) async fn begin(mds: &Arc<Mds>, path: Bytes, mirrors: u8, limit: u64) -> Result<(), Refusal> {
    let inode = maintenance::walk(mds, &path).await?;
    if inode.file().is_none() && !inode.is_directory() {
        return Err(Refusal::No("it is neither a file nor a directory".to_owned()));
    }
    // Whether they take what is new is asked for each file: one that gives up a copy may do so because they are full.
    let there = mds.data_servers.all().into_iter().filter(|store| !store.is_removed()).count();
    if usize::from(mirrors) > there {
        return Err(Refusal::No(format!(
            "{mirrors} copies need {mirrors} data servers, and there are {there}: add some first, or take fewer copies"
        )));
    }
    let busy =
        "mirrors are being added or given up already: --look shows how far that is, and --stop ends it";
    let own = Changed { mirrors, ..Changed::default() };
    let progress = Progress::new(path, limit, mds.env.clock.wall().seconds, own);
    let progress = mds.mirror_changes.begin(progress, busy)?;
    let (inner, files) = (Arc::clone(mds), Files::at(&inode));
    mds.spawn(async move { tell(&maintenance::run(&inner, &progress, Change(mirrors), files).await) });
    Ok(())
}

/// Ends the one that runs, soon. What was added to files by then is filled all the same.
///
/// # Errors
/// None does.
pub(crate) async fn stop(mds: &Mds) -> Result<(), Refusal> {
    mds.mirror_changes.stop(mds, "no mirrors are being added or given up").await
}

fn tell(numbers: &Numbers) {
    let Changed { mirrors, more, fewer, filling, .. } = numbers.own;
    let (path, missed) = (String::from_utf8_lossy(&numbers.path), numbers.missed.files());
    match numbers.state {
        State::Done if missed == 0 => {
            tracing::info!(%path, mirrors, more, fewer, filling, "files have as many mirrors as they should");
        }
        State::Done => {
            tracing::warn!(%path, mirrors, more, fewer, missed, "some files have not as many mirrors as they should");
        }
        _ => {
            tracing::info!(%path, mirrors, more, fewer, words = %numbers.words, "the change of mirrors ended early");
        }
    }
}

/// To so many.
struct Change(u8);

impl Work for Change {
    type Own = Changed;
    type Done = Done;

    /// By the last time a grace period is over.
    const AGAIN: &'static [u32] = &[2, 15, 60, 120];
    const WAITS: bool = true;

    fn on_file(
        &self,
        mds: Arc<Mds>,
        key: InodeKey,
        progress: Arc<Progress>,
        _: bool,
    ) -> BoxFuture<'static, Tried<Done>> {
        let mirrors = self.0;
        Box::pin(async move { one(&mds, key, mirrors, &progress).await })
    }

    fn count(_: InodeKey, done: Done, progress: &Progress) {
        progress.own(|changed| match done {
            Done::Added(bytes) => {
                changed.more += 1;
                changed.bytes = changed.bytes.saturating_add(bytes);
            }
            Done::Dropped => changed.fewer += 1,
            Done::Noted => changed.noted += 1,
            Done::Nothing => {}
        });
    }
}

/// One file, until what it got is filled.
async fn one(mds: &Arc<Mds>, key: InodeKey, mirrors: u8, progress: &Progress) -> Tried<Done> {
    let outcome = change::set(mds, key, mirrors).await?;
    if let Outcome::Done(Done::Added(bytes)) = outcome {
        let since = mds.now();
        let whole = loop {
            if is_whole(mds, key).await? {
                break true;
            }
            if progress.is_stopped() || mds.now().since(since) > PATIENCE {
                break false;
            }
            mds.env.clock.sleep(LOOK).await;
        };
        if !whole {
            progress.own(|changed| changed.filling += 1);
        }
        pause(mds, progress, bytes).await;
    }
    Ok(outcome)
}

/// For as long as the limit says, after so many bytes.
async fn pause(mds: &Arc<Mds>, progress: &Progress, bytes: u64) {
    let until = mds.now().plus_nanos(u64::try_from(progress.moved(mds.now(), bytes).as_nanos()).unwrap_or(0));
    while mds.now() < until && !progress.is_stopped() {
        let left = Duration::from_nanos(until.since(mds.now()));
        mds.env.clock.sleep(left.min(SECOND)).await;
    }
}

/// Nothing of it waits to be filled.
async fn is_whole(mds: &Arc<Mds>, key: InodeKey) -> Result<bool, FsError> {
    match settle::inode(mds, key).await {
        Ok(inode) => Ok(!inode.layout().is_some_and(Layout::is_degraded)),
        Err(FsError::Stale) => Ok(true),
        Err(error) => Err(error),
    }
}
