//! How far work on many files is. In memory: it ends with the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_namespace::InodeKey;
use sluice_state::Time;

use crate::layout::missed::Reasons;
use crate::layout::pace::Pace;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Done,
    Stopped,
}

#[derive(Debug)]
pub(crate) struct Progress<T> {
    stopped: AtomicBool,
    numbers: Mutex<Numbers<T>>,
}

/// Its numbers.
#[derive(Clone, Debug)]
pub(crate) struct Numbers<T> {
    pub(crate) state: State,
    /// Empty: all files.
    pub(crate) path: Bytes,
    /// Seconds since 1970.
    pub(crate) since: i64,
    pub(crate) ended: i64,
    /// Bytes per second; 0: none.
    pub(crate) limit: u64,
    /// Files looked at.
    pub(crate) seen: u64,
    /// Files that are to be looked at again.
    pub(crate) later: u64,
    pub(crate) missed: Reasons,
    /// Why it ended before its end.
    pub(crate) words: String,
    pub(crate) pace: Pace,
    /// Those of its kind.
    pub(crate) own: T,
}

impl<T> Progress<T> {
    pub(crate) fn new(path: Bytes, limit: u64, since: i64, own: T) -> Self {
        let numbers = Numbers {
            state: State::Running,
            path,
            since,
            ended: 0,
            limit,
            seen: 0,
            later: 0,
            missed: Reasons::default(),
            words: String::new(),
            pace: Pace::default(),
            own,
        };
        Self { stopped: AtomicBool::new(false), numbers: Mutex::new(numbers) }
    }

    /// As of `now`.
    pub(crate) fn numbers(&self, now: Time) -> Numbers<T>
    where
        T: Clone,
    {
        let mut numbers = self.numbers.lock();
        numbers.pace.look(now);
        numbers.clone()
    }

    /// Looks at the numbers of its kind, or changes them.
    pub(crate) fn own<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.numbers.lock().own)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.numbers.lock().state == State::Running
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn seen(&self, files: usize) {
        self.numbers.lock().seen += u64::try_from(files).unwrap_or(0);
    }

    /// So much was moved or read: how long to wait before more is.
    pub(crate) fn moved(&self, now: Time, bytes: u64) -> Duration {
        let mut numbers = self.numbers.lock();
        let limit = numbers.limit;
        numbers.pace.copied(now, limit, bytes)
    }

    pub(super) fn later(&self, files: usize) {
        self.numbers.lock().later = u64::try_from(files).unwrap_or(u64::MAX);
    }

    pub(super) fn missed(&self, key: InodeKey, why: &str) {
        self.numbers.lock().missed.add(key, why);
    }

    pub(super) fn end(&self, state: State, words: String, at: i64) {
        let mut numbers = self.numbers.lock();
        (numbers.state, numbers.words, numbers.ended, numbers.later) = (state, words, at, 0);
    }
}
