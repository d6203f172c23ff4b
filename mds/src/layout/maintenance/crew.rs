//! Some files at a time; those that could not be done at first are tried again.

use std::sync::Arc;
use std::time::Duration;

use sluice_env::BoxFuture;
use sluice_namespace::{FsError, InodeKey};
use tokio::task::JoinSet;

use super::files::Files;
use super::progress::{Numbers, Progress, State};
use crate::server::Mds;

/// Files at once: as many as are healed at once.
const WIDTH: usize = 4;
/// Between two pages, for others.
const PAUSE: Duration = Duration::from_millis(1);
/// Files that are to be looked at again; of what is more nothing comes.
const MOST_LATER: usize = 4096;
const SECOND: Duration = Duration::from_secs(1);
/// Attempts to read the metadata store, and the time between them.
const TRIES: u32 = 12;
const RETRY: Duration = Duration::from_secs(5);

/// What became of a file.
#[derive(Debug)]
pub(crate) enum Outcome<D> {
    Done(D),
    /// It cannot be done now, in words.
    Later(String),
    /// Nor later.
    Never(String),
    /// It was left as it was, since all was stopped.
    Stopped,
}

/// Or what the metadata store says.
pub(crate) type Tried<D> = Result<Outcome<D>, FsError>;

/// What is done with files.
pub(crate) trait Work: Send + Sync + 'static {
    /// Numbers of its kind.
    type Own: Clone + Send + 'static;
    /// What was done with a file.
    type Done: Send + 'static;

    /// Seconds before each time that files are tried again.
    const AGAIN: &'static [u32];
    /// A stop waits for files under way: they are not left half done.
    const WAITS: bool;

    /// Does it with a file. `again`: it was tried before, in vain.
    fn on_file(
        &self,
        mds: Arc<Mds>,
        key: InodeKey,
        progress: Arc<Progress<Self::Own>>,
        again: bool,
    ) -> BoxFuture<'static, Tried<Self::Done>>;

    /// Counts what was done.
    fn count(key: InodeKey, done: Self::Done, progress: &Progress<Self::Own>);
}

/// Does it with all of them, and says how it ended. Nothing is left under way.
pub(crate) async fn run<W: Work>(
    mds: &Arc<Mds>,
    progress: &Arc<Progress<W::Own>>,
    work: W,
    files: Files,
) -> Numbers<W::Own> {
    let mut crew = Crew {
        mds: Arc::clone(mds),
        progress: Arc::clone(progress),
        work,
        tasks: JoinSet::new(),
        later: Vec::new(),
        again: false,
    };
    let done = crew.all(files).await;
    crew.tasks.abort_all();
    let (state, words) = match done {
        Ok(()) if progress.is_stopped() => (State::Stopped, String::new()),
        Ok(()) => (State::Done, String::new()),
        Err(error) => (State::Stopped, format!("the metadata store says: {error}")),
    };
    progress.end(state, words, mds.env.clock.wall().seconds);
    progress.numbers(mds.now())
}

/// The files at hand.
struct Crew<W: Work> {
    mds: Arc<Mds>,
    progress: Arc<Progress<W::Own>>,
    work: W,
    tasks: JoinSet<(InodeKey, Tried<W::Done>)>,
    /// To be looked at again, and why.
    later: Vec<(InodeKey, String)>,
    again: bool,
}

impl<W: Work> Crew<W> {
    async fn all(&mut self, files: Files) -> Result<(), FsError> {
        let walked = self.walk(files).await;
        self.reap_all().await;
        walked?;
        self.again = true;
        for pause in W::AGAIN {
            if self.later.is_empty() || !self.rest(*pause).await {
                break;
            }
            let files = std::mem::take(&mut self.later);
            self.progress.later(0);
            for (key, _) in files {
                self.take(key).await;
            }
            self.reap_all().await;
        }
        for (key, why) in std::mem::take(&mut self.later) {
            self.progress.missed(key, &why);
        }
        Ok(())
    }

    async fn walk(&mut self, mut files: Files) -> Result<(), FsError> {
        let mut tries = 0;
        while !self.progress.is_stopped() {
            let page = match files.next(&self.mds).await {
                Ok(Some(page)) => page,
                Ok(None) => return Ok(()),
                Err(error) if tries >= TRIES => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "cannot look for files; trying again");
                    tries += 1;
                    self.mds.env.clock.sleep(RETRY).await;
                    continue;
                }
            };
            tries = 0;
            self.progress.seen(page.seen);
            for key in page.files {
                self.take(key).await;
            }
            self.mds.env.clock.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Waits; false: it was stopped.
    async fn rest(&self, seconds: u32) -> bool {
        self.progress.later(self.later.len());
        for _ in 0..seconds {
            if self.progress.is_stopped() {
                return false;
            }
            self.mds.env.clock.sleep(SECOND).await;
        }
        !self.progress.is_stopped()
    }

    /// Begins with a file when there is a hand free; with none any more after a stop.
    async fn take(&mut self, key: InodeKey) {
        while self.tasks.len() >= WIDTH && !self.gives_up() {
            self.reap().await;
        }
        if self.progress.is_stopped() {
            return;
        }
        let (mds, progress) = (Arc::clone(&self.mds), Arc::clone(&self.progress));
        let done = self.work.on_file(mds, key, progress, self.again);
        self.tasks.spawn(async move { (key, done.await) });
    }

    /// Nobody waits for what is under way.
    fn gives_up(&self) -> bool {
        !W::WAITS && self.progress.is_stopped()
    }

    async fn reap_all(&mut self) {
        while !self.tasks.is_empty() && !self.gives_up() {
            self.reap().await;
        }
    }

    /// What became of one, if any is done within a second: a stop is to be seen.
    async fn reap(&mut self) {
        let Ok(joined) = self.mds.env.clock.timeout(SECOND, self.tasks.join_next()).await else { return };
        let Some(Ok((key, outcome))) = joined else { return };
        let why = match outcome {
            Ok(Outcome::Done(done)) => return W::count(key, done, &self.progress),
            Ok(Outcome::Never(why)) => return self.progress.missed(key, &why),
            Ok(Outcome::Stopped) => return,
            Ok(Outcome::Later(why)) => why,
            Err(error) => format!("the metadata store says: {error}"),
        };
        if self.later.len() < MOST_LATER {
            self.later.push((key, why));
            self.progress.later(self.later.len());
        } else {
            self.progress.missed(key, &why);
        }
    }
}
