//! Work on many files that an administrator begins, looks at, and stops: mirrors are compared, or become more or fewer.
//!
//! | module | what |
//! | --- | --- |
//! | `files` | which files: one, those below a directory, or all |
//! | `tree` | those below a directory |
//! | `crew` | some at a time, and those that could not be done once more |
//! | `progress` | how far it is |
//!
//! One of a kind at a time, in memory alone: it ends with the server. What was done with a file is durable.

mod crew;
mod files;
pub(crate) mod progress;
mod tree;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_namespace::{FsError, Inode};

use crate::layout::drain::change::Refusal;
use crate::server::Mds;
pub(crate) use crew::{Outcome, Tried, Work, run};
pub(crate) use files::Files;
use progress::Progress;

/// How long a stop waits for what is under way.
const STOP: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

/// What was asked for last, of one kind.
#[derive(Debug)]
pub(crate) struct Last<T>(Mutex<Option<Arc<Progress<T>>>>);

impl<T> Default for Last<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Last<T> {
    pub(crate) fn get(&self) -> Option<Arc<Progress<T>>> {
        self.0.lock().clone()
    }

    /// From now on this one.
    ///
    /// # Errors
    /// One runs: `busy`.
    pub(crate) fn begin(&self, progress: Progress<T>, busy: &str) -> Result<Arc<Progress<T>>, Refusal> {
        let mut last = self.0.lock();
        if last.as_ref().is_some_and(|last| last.is_running()) {
            return Err(Refusal::No(busy.to_owned()));
        }
        Ok(Arc::clone(last.insert(Arc::new(progress))))
    }

    /// Ends the one that runs, soon.
    ///
    /// # Errors
    /// None does: `none`.
    pub(crate) async fn stop(&self, mds: &Mds, none: &str) -> Result<(), Refusal> {
        let last = self.get().filter(|last| last.is_running());
        let last = last.ok_or_else(|| Refusal::No(none.to_owned()))?;
        last.stop();
        let until = mds.now().plus_nanos(u64::try_from(STOP.as_nanos()).unwrap_or(0));
        while last.is_running() && mds.now() < until {
            mds.env.clock.sleep(LOOK).await;
        }
        Ok(())
    }
}

/// What is at a path that an administrator names.
///
/// # Errors
/// Why there is nothing.
pub(crate) async fn walk(mds: &Mds, path: &[u8]) -> Result<Inode, Refusal> {
    mds.walk(path).await.map_err(|error| match error {
        FsError::Kv(_) => error.into(),
        other => Refusal::No(other.to_string()),
    })
}
