//! Files that exist get more mirrors, or fewer, while clients use them. docs/adr/0038-more-mirrors-or-fewer.md.
//!
//! | module | what |
//! | --- | --- |
//! | `choose` | which data servers get one, and which are given up (pure) |
//! | `change` | one file |
//! | `tree` | the files below a directory |
//! | `progress` | how far it is |
//!
//! One at a time, in memory alone: it ends with the server. What was done with a file is durable.

mod change;
mod choose;
pub(crate) mod progress;
mod tree;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_namespace::{FsError, InodeKey, Layout};
use tokio::task::JoinSet;

use crate::layout::drain::change::Refusal;
use crate::layout::settle;
use crate::server::Mds;
use change::Outcome;
use progress::{Progress, State};
use tree::Tree;

/// Files at once: as many as are healed at once.
const WIDTH: usize = 4;
/// Between two pages, for others.
const PAUSE: Duration = Duration::from_millis(1);
/// Between two looks at a file that is being filled.
const LOOK: Duration = Duration::from_millis(200);
const SECOND: Duration = Duration::from_secs(1);
/// A file that is not filled by then is left to that: others go on.
const PATIENCE: u64 = 600_000_000_000;
/// Files that are to be looked at again; what is more is left as it is.
const MOST_LATER: usize = 4096;
/// Seconds before each time they are: by the last one a grace period is over.
const AGAIN: [u32; 4] = [2, 15, 60, 120];
/// Attempts to read the metadata store, and the time between them.
const TRIES: u32 = 12;
const RETRY: Duration = Duration::from_secs(5);

/// What was asked for last.
#[derive(Debug, Default)]
pub(crate) struct Changes(Mutex<Option<Arc<Progress>>>);

impl Changes {
    pub(crate) fn last(&self) -> Option<Arc<Progress>> {
        self.0.lock().clone()
    }
}

/// Begins to give `mirrors` copies to the file at a path, or to all files below the directory there. `limit`: bytes per second that
/// are copied; 0 for none.
///
/// # Errors
/// Why not.
pub(crate) async fn begin(mds: &Arc<Mds>, path: Bytes, mirrors: u8, limit: u64) -> Result<(), Refusal> {
    let no = |why: &str| Err(Refusal::No(why.to_owned()));
    let inode = mds.walk(&path).await.map_err(|error| match error {
        FsError::Kv(_) => error.into(),
        other => Refusal::No(other.to_string()),
    })?;
    if inode.file().is_none() && !inode.is_directory() {
        return no("it is neither a file nor a directory");
    }
    // Whether they take what is new is asked for each file: one that gives up a copy may do so because they are full.
    let there = mds.data_servers.all().into_iter().filter(|store| !store.is_removed()).count();
    if usize::from(mirrors) > there {
        return Err(Refusal::No(format!(
            "{mirrors} copies need {mirrors} data servers, and there are {there}: add some first, or take fewer copies"
        )));
    }
    let progress = Arc::new(Progress::new(path, mirrors, limit, mds.env.clock.wall().seconds));
    {
        let mut last = mds.mirror_changes.0.lock();
        if last.as_ref().is_some_and(|last| last.is_running()) {
            return no(
                "mirrors are being added or given up already: --look shows how far that is, and --stop ends it",
            );
        }
        *last = Some(Arc::clone(&progress));
    }
    let inner = Arc::clone(mds);
    let (key, whole) = (inode.key, inode.is_directory());
    mds.spawn(async move { run(&inner, &progress, key, whole).await });
    Ok(())
}

/// Ends the one that runs, soon. What was added to files by then is filled all the same.
///
/// # Errors
/// None does.
pub(crate) async fn stop(mds: &Mds) -> Result<(), Refusal> {
    let none = || Refusal::No("no mirrors are being added or given up".to_owned());
    let last = mds.mirror_changes.last().filter(|last| last.is_running()).ok_or_else(none)?;
    last.stop();
    for _ in 0..100 {
        if !last.is_running() {
            break;
        }
        mds.env.clock.sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn run(mds: &Arc<Mds>, progress: &Arc<Progress>, key: InodeKey, whole: bool) {
    let mut crew = Crew {
        mds: Arc::clone(mds),
        progress: Arc::clone(progress),
        tasks: JoinSet::new(),
        later: Vec::new(),
    };
    let done = crew.all(key, whole).await;
    // What is under way with a file is not left half done.
    crew.reap_all().await;
    let (state, words) = match done {
        Ok(true) => (State::Done, String::new()),
        Ok(false) => (State::Stopped, String::new()),
        Err(error) => (State::Stopped, format!("the metadata store says: {error}")),
    };
    progress.end(state, words, mds.env.clock.wall().seconds);
    let numbers = progress.numbers(mds.now());
    let (more, fewer, filling, missed) =
        (numbers.more, numbers.fewer, numbers.filling, numbers.missed.files());
    let (mirrors, path) = (numbers.mirrors, String::from_utf8_lossy(&numbers.path).into_owned());
    match state {
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

/// The files at hand.
struct Crew {
    mds: Arc<Mds>,
    progress: Arc<Progress>,
    tasks: JoinSet<(InodeKey, Result<Outcome, FsError>)>,
    /// To be looked at again, and why.
    later: Vec<(InodeKey, String)>,
}

impl Crew {
    /// False: it was stopped.
    async fn all(&mut self, key: InodeKey, whole: bool) -> Result<bool, FsError> {
        if whole {
            self.walk(Tree::of(key)).await?;
        } else {
            self.progress.seen(1);
            self.take(key).await;
        }
        self.reap_all().await;
        for pause in AGAIN {
            let files = std::mem::take(&mut self.later);
            if files.is_empty() || !self.rest(pause, files.len()).await {
                self.later = files;
                break;
            }
            for (key, _) in files {
                self.take(key).await;
            }
            self.reap_all().await;
        }
        for (key, why) in std::mem::take(&mut self.later) {
            self.progress.missed(key, &why);
        }
        Ok(!self.progress.is_stopped())
    }

    async fn walk(&mut self, mut tree: Tree) -> Result<(), FsError> {
        let mut tries = 0;
        while !self.progress.is_stopped() {
            let files = match tree.next(&self.mds).await {
                Ok(Some(files)) => files,
                Ok(None) => return Ok(()),
                Err(error) if tries >= TRIES => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "cannot look for files to mirror; trying again");
                    tries += 1;
                    self.mds.env.clock.sleep(RETRY).await;
                    continue;
                }
            };
            tries = 0;
            for key in files {
                if self.progress.is_stopped() {
                    break;
                }
                self.progress.seen(1);
                self.take(key).await;
            }
            self.mds.env.clock.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Waits; false: it was stopped.
    async fn rest(&self, seconds: u32, files: usize) -> bool {
        self.progress.later(files);
        for _ in 0..seconds {
            if self.progress.is_stopped() {
                return false;
            }
            self.mds.env.clock.sleep(SECOND).await;
        }
        self.progress.later(0);
        true
    }

    /// Begins with a file when there is a hand free.
    async fn take(&mut self, key: InodeKey) {
        while self.tasks.len() >= WIDTH {
            self.reap().await;
        }
        let (mds, progress) = (Arc::clone(&self.mds), Arc::clone(&self.progress));
        self.tasks.spawn(async move { (key, one(&mds, key, &progress).await) });
    }

    async fn reap_all(&mut self) {
        while !self.tasks.is_empty() {
            self.reap().await;
        }
    }

    async fn reap(&mut self) {
        let Some(Ok((key, outcome))) = self.tasks.join_next().await else { return };
        let why = match outcome {
            Ok(Outcome::Later(why)) => why,
            Ok(Outcome::Never(why)) => return self.progress.missed(key, &why),
            Ok(outcome) => return self.progress.done(&outcome),
            Err(error) => format!("the metadata store says: {error}"),
        };
        if self.later.len() < MOST_LATER {
            self.later.push((key, why));
        } else {
            self.progress.missed(key, &why);
        }
    }
}

/// One file, until what it got is filled.
async fn one(mds: &Arc<Mds>, key: InodeKey, progress: &Progress) -> Result<Outcome, FsError> {
    let outcome = change::set(mds, key, progress.mirrors()).await?;
    if let Outcome::Added(bytes) = outcome {
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
            progress.left_filling();
        }
        pause(mds, progress, bytes).await;
    }
    Ok(outcome)
}

/// For as long as the limit says, after so many bytes.
async fn pause(mds: &Arc<Mds>, progress: &Progress, bytes: u64) {
    let until =
        mds.now().plus_nanos(u64::try_from(progress.copied(mds.now(), bytes).as_nanos()).unwrap_or(0));
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
