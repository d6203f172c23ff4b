//! The copies of mirrored files are compared, and made equal to the one that an administrator says is right.
//! docs/adr/0034-mirrors-are-compared.md.
//!
//! | module | what |
//! | --- | --- |
//! | `judge` | what differences tell, and which bytes of a data file count (pure) |
//! | `file` | one file |
//! | `mend` | which copies are made equal to which |
//! | `progress` | how far it is, and what was found |
//!
//! One comparison at a time, in memory alone: it ends with the server.

mod file;
pub(crate) mod judge;
pub(crate) mod mend;
pub(crate) mod progress;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_namespace::{FsError, Inode, InodeKey};
use tokio::task::JoinSet;

use crate::layout::census;
use crate::layout::drain::change::Refusal;
use crate::server::Mds;
use file::Outcome;
use progress::{Progress, State};

/// Files at once.
const WIDTH: usize = 4;
/// Between two pages, for others.
const PAUSE: Duration = Duration::from_millis(1);
/// Files that are to be looked at again; what is more is not compared.
const MOST_LATER: usize = 4096;
/// Before each time they are: a client that has closed a file has given back what it holds of it by then.
const AGAIN: [u32; 3] = [5, 15, 40];
const SECOND: Duration = Duration::from_secs(1);
/// Attempts to read the metadata store, and the time between them.
const TRIES: u32 = 12;
const RETRY: Duration = Duration::from_secs(5);

/// The comparison that was asked for last.
#[derive(Debug, Default)]
pub(crate) struct Comparisons(Mutex<Option<Arc<Progress>>>);

impl Comparisons {
    pub(crate) fn last(&self) -> Option<Arc<Progress>> {
        self.0.lock().clone()
    }
}

/// Begins one: of a file, or of all, where `path` is empty. `limit`: bytes per second that data servers read; 0 for none.
///
/// # Errors
/// Why not.
pub(crate) async fn begin(mds: &Arc<Mds>, path: Bytes, limit: u64) -> Result<(), Refusal> {
    let no = |why: &str| Err(Refusal::No(why.to_owned()));
    let target = if path.is_empty() { None } else { Some(walk(mds, &path).await?) };
    if let Some(inode) = &target {
        if inode.file().is_none() {
            return no("it is not a file: name one, or compare all files");
        }
        if inode.inline().is_some() {
            return no("its data is kept in the metadata: there are no copies at data servers");
        }
        if !inode.layout().is_some_and(|layout| layout.components.iter().any(|c| c.mirrors > 1)) {
            return no("it has no mirrors: there is one copy of its data");
        }
    }
    let progress = Arc::new(Progress::new(path, limit, mds.env.clock.wall().seconds));
    {
        let mut last = mds.comparisons.0.lock();
        if last.as_ref().is_some_and(|last| last.is_running()) {
            return no(
                "mirrors are being compared already: --look shows how far that is, and --stop ends it",
            );
        }
        *last = Some(Arc::clone(&progress));
    }
    let inner = Arc::clone(mds);
    let target = target.map(|inode| inode.key);
    mds.spawn(async move { run(&inner, &progress, target).await });
    Ok(())
}

/// What is at a path.
async fn walk(mds: &Mds, path: &[u8]) -> Result<Inode, Refusal> {
    mds.walk(path).await.map_err(|error| match error {
        FsError::Kv(_) => error.into(),
        other => Refusal::No(other.to_string()),
    })
}

/// Ends the one that runs, soon.
///
/// # Errors
/// None does.
pub(crate) async fn stop(mds: &Mds) -> Result<(), Refusal> {
    let none = || Refusal::No("no comparison of mirrors is under way".to_owned());
    let last = mds.comparisons.last().filter(|last| last.is_running()).ok_or_else(none)?;
    last.stop();
    // What is under way at data servers ends by itself.
    for _ in 0..50 {
        if !last.is_running() {
            break;
        }
        mds.env.clock.sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn run(mds: &Arc<Mds>, progress: &Arc<Progress>, target: Option<InodeKey>) {
    let mut crew = Crew {
        mds: Arc::clone(mds),
        progress: Arc::clone(progress),
        tasks: JoinSet::new(),
        later: Vec::new(),
        again: false,
    };
    let done = crew.all(target).await;
    // On a stop nobody waits for what data servers have still to say.
    crew.tasks.abort_all();
    let (state, words) = match done {
        Ok(true) => (State::Done, String::new()),
        Ok(false) => (State::Stopped, String::new()),
        Err(error) => (State::Stopped, format!("the metadata store says: {error}")),
    };
    progress.end(state, words, mds.env.clock.wall().seconds);
    let (numbers, _) = progress.numbers(mds.now(), 0, 0);
    let not_compared: u64 = numbers.missed.files();
    let (compared, differ, mib) = (numbers.compared, numbers.differ, numbers.bytes >> 20);
    match state {
        State::Done if differ == 0 => {
            tracing::info!(compared, not_compared, mib, "mirrors were compared: none differ");
        }
        State::Done => {
            tracing::warn!(compared, not_compared, differ, mib, "mirrors were compared: some differ")
        }
        _ => {
            tracing::info!(compared, differ, mib, words = %numbers.words, "the comparison of mirrors ended early")
        }
    }
}

/// The files that are being compared.
struct Crew {
    mds: Arc<Mds>,
    progress: Arc<Progress>,
    tasks: JoinSet<(InodeKey, Result<Outcome, FsError>)>,
    /// To be looked at again, and why.
    later: Vec<(InodeKey, String)>,
    again: bool,
}

impl Crew {
    /// False: it was stopped.
    async fn all(&mut self, target: Option<InodeKey>) -> Result<bool, FsError> {
        let walked = match target {
            Some(key) => {
                self.progress.seen(1);
                self.take(key).await
            }
            None => self.walk().await?,
        };
        if !walked || !self.reap_all().await {
            return Ok(false);
        }
        self.again = true;
        for pause in AGAIN {
            let files = std::mem::take(&mut self.later);
            if files.is_empty() {
                break;
            }
            self.progress.later(files.len());
            if !self.rest(pause).await {
                return Ok(false);
            }
            for (key, _) in files {
                if !self.take(key).await {
                    return Ok(false);
                }
            }
            if !self.reap_all().await {
                return Ok(false);
            }
        }
        for (key, why) in std::mem::take(&mut self.later) {
            self.progress.missed(key, &why);
        }
        Ok(true)
    }

    async fn walk(&mut self) -> Result<bool, FsError> {
        let mut after = None;
        let mut tries = 0;
        loop {
            let (last, files) = match census::page(&self.mds, after).await {
                Ok(Some(page)) => page,
                Ok(None) => return Ok(true),
                Err(error) if tries >= TRIES => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "cannot look for files to compare; trying again");
                    tries += 1;
                    self.mds.env.clock.sleep(RETRY).await;
                    continue;
                }
            };
            (after, tries) = (Some(last), 0);
            self.progress.seen(files.len());
            for inode in files.iter().filter(|inode| file::has_copies(inode)) {
                if !self.take(inode.key).await {
                    return Ok(false);
                }
            }
            if self.progress.is_stopped() {
                return Ok(false);
            }
            self.mds.env.clock.sleep(PAUSE).await;
        }
    }

    /// Waits; false: it was stopped.
    async fn rest(&self, seconds: u32) -> bool {
        for _ in 0..seconds {
            if self.progress.is_stopped() {
                return false;
            }
            self.mds.env.clock.sleep(SECOND).await;
        }
        true
    }

    /// Begins with a file when there is a hand free; false: it was stopped.
    async fn take(&mut self, key: InodeKey) -> bool {
        while self.tasks.len() >= WIDTH {
            if !self.reap().await {
                return false;
            }
        }
        let (mds, progress, again) = (Arc::clone(&self.mds), Arc::clone(&self.progress), self.again);
        self.tasks.spawn(async move { (key, file::compare(&mds, key, &progress, again).await) });
        true
    }

    async fn reap_all(&mut self) -> bool {
        while !self.tasks.is_empty() {
            if !self.reap().await {
                return false;
            }
        }
        true
    }

    /// What became of one; false: it was stopped.
    async fn reap(&mut self) -> bool {
        // A stop does not wait for a data server.
        let done = loop {
            if self.progress.is_stopped() {
                return false;
            }
            if let Ok(done) = self.mds.env.clock.timeout(SECOND, self.tasks.join_next()).await {
                break done;
            }
        };
        let Some(Ok((key, outcome))) = done else { return true };
        match outcome {
            Ok(Outcome::Nothing) => {}
            Ok(Outcome::Equal(bytes)) => self.progress.equal(bytes),
            Ok(Outcome::Differs(finding, bytes)) => {
                tracing::warn!(
                    file = key.fileid.0,
                    ranges = finding.differences.ranges,
                    bytes = finding.differences.bytes,
                    lost = finding.lost.len(),
                    "the mirrors of a file differ"
                );
                self.progress.differs(*finding, bytes);
            }
            Ok(Outcome::Later(why)) => self.put_off(key, why),
            Ok(Outcome::Never(why)) => self.progress.missed(key, &why),
            Ok(Outcome::Stopped) => return false,
            Err(error) => self.put_off(key, format!("the metadata store says: {error}")),
        }
        true
    }

    fn put_off(&mut self, key: InodeKey, why: String) {
        if self.later.len() < MOST_LATER {
            self.later.push((key, why));
            self.progress.later(self.later.len());
        } else {
            self.progress.missed(key, &why);
        }
    }
}
