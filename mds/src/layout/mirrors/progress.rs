//! How far a change of mirrors is. In memory: it ends with the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_namespace::InodeKey;
use sluice_state::Time;

use super::change::Outcome;
pub(crate) use crate::layout::compare::progress::State;
use crate::layout::missed::Reasons;
use crate::layout::pace::Pace;

#[derive(Debug)]
pub(crate) struct Progress {
    stopped: AtomicBool,
    mirrors: u8,
    numbers: Mutex<Numbers>,
}

/// Its numbers.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) state: State,
    pub(crate) path: Bytes,
    pub(crate) mirrors: u8,
    /// Seconds since 1970.
    pub(crate) since: i64,
    pub(crate) ended: i64,
    pub(crate) limit: u64,
    /// Files looked at.
    pub(crate) seen: u64,
    /// Files that got mirrors, that gave up some, and that will have as many when they leave the metadata.
    pub(crate) more: u64,
    pub(crate) fewer: u64,
    pub(crate) noted: u64,
    /// Of those that got some: bytes copied for them, at most.
    pub(crate) bytes: u64,
    /// And those that were not waited for any longer.
    pub(crate) filling: u64,
    pub(crate) later: u64,
    pub(crate) missed: Reasons,
    /// Why it ended before its end.
    pub(crate) words: String,
    pub(crate) pace: Pace,
}

impl Progress {
    pub(super) fn new(path: Bytes, mirrors: u8, limit: u64, since: i64) -> Self {
        let numbers = Numbers {
            state: State::Running,
            path,
            mirrors,
            since,
            ended: 0,
            limit,
            seen: 0,
            more: 0,
            fewer: 0,
            noted: 0,
            bytes: 0,
            filling: 0,
            later: 0,
            missed: Reasons::default(),
            words: String::new(),
            pace: Pace::default(),
        };
        Self { stopped: AtomicBool::new(false), mirrors, numbers: Mutex::new(numbers) }
    }

    /// As of `now`.
    pub(crate) fn numbers(&self, now: Time) -> Numbers {
        let mut numbers = self.numbers.lock();
        numbers.pace.look(now);
        numbers.clone()
    }

    pub(super) fn mirrors(&self) -> u8 {
        self.mirrors
    }

    pub(crate) fn is_running(&self) -> bool {
        self.numbers.lock().state == State::Running
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn seen(&self, files: u64) {
        self.numbers.lock().seen += files;
    }

    pub(super) fn done(&self, outcome: &Outcome) {
        let mut numbers = self.numbers.lock();
        match outcome {
            Outcome::Added(bytes) => {
                numbers.more += 1;
                numbers.bytes = numbers.bytes.saturating_add(*bytes);
            }
            Outcome::Dropped => numbers.fewer += 1,
            Outcome::Noted => numbers.noted += 1,
            Outcome::Nothing | Outcome::Later(_) | Outcome::Never(_) => {}
        }
    }

    /// So much was copied: how long to wait before more is.
    pub(super) fn copied(&self, now: Time, bytes: u64) -> Duration {
        let mut numbers = self.numbers.lock();
        let limit = numbers.limit;
        numbers.pace.copied(now, limit, bytes)
    }

    /// What a file got is filled without anybody waiting for it.
    pub(super) fn left_filling(&self) {
        self.numbers.lock().filling += 1;
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
