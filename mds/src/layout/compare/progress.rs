//! How far a comparison is, and what it found. In memory: it ends with the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_namespace::{DataFileId, InodeKey, StoreId};
use sluice_state::Time;

use super::judge::Differences;
use crate::layout::missed::Reasons;
use crate::layout::pace::Pace;

/// Files that differ, remembered; others are counted.
pub(crate) const MOST_FINDINGS: usize = 1024;

/// A file whose copies differ.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) key: InodeKey,
    pub(crate) id: DataFileId,
    pub(crate) size: u64,
    pub(crate) differences: Differences,
    /// Data servers that do not have a data file any more which they had.
    pub(crate) lost: Vec<StoreId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Done,
    Stopped,
}

/// The comparison that was asked for last.
#[derive(Debug)]
pub(crate) struct Progress {
    stopped: AtomicBool,
    numbers: Mutex<Numbers>,
}

/// Its numbers.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) state: State,
    /// Empty: all files.
    pub(crate) path: Bytes,
    /// Seconds since 1970.
    pub(crate) since: i64,
    pub(crate) ended: i64,
    pub(crate) limit: u64,
    pub(crate) seen: u64,
    pub(crate) compared: u64,
    pub(crate) bytes: u64,
    pub(crate) differ: u64,
    pub(crate) later: u64,
    pub(crate) findings: Vec<Arc<Finding>>,
    pub(crate) missed: Reasons,
    /// Why it ended before its end.
    pub(crate) words: String,
    pub(crate) pace: Pace,
}

impl Progress {
    pub(super) fn new(path: Bytes, limit: u64, since: i64) -> Self {
        let numbers = Numbers {
            state: State::Running,
            path,
            since,
            ended: 0,
            limit,
            seen: 0,
            compared: 0,
            bytes: 0,
            differ: 0,
            later: 0,
            findings: Vec::new(),
            missed: Reasons::default(),
            words: String::new(),
            pace: Pace::default(),
        };
        Self { stopped: AtomicBool::new(false), numbers: Mutex::new(numbers) }
    }

    /// The numbers as of `now`; of findings those behind the first `after`, and at most `most`. All are counted.
    pub(crate) fn numbers(&self, now: Time, after: usize, most: usize) -> (Numbers, usize) {
        let mut numbers = self.numbers.lock();
        numbers.pace.look(now);
        let findings = numbers.findings.iter().skip(after).take(most).map(Arc::clone).collect();
        let kept = numbers.findings.len();
        let all = std::mem::take(&mut numbers.findings);
        let told = Numbers { findings, ..numbers.clone() };
        numbers.findings = all;
        (told, kept)
    }

    /// What was found of a file, if it is remembered.
    pub(crate) fn finding(&self, file: u64) -> Option<Arc<Finding>> {
        let numbers = self.numbers.lock();
        numbers.findings.iter().rev().find(|finding| finding.key.fileid.0 == file).map(Arc::clone)
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

    pub(super) fn seen(&self, files: usize) {
        self.numbers.lock().seen += u64::try_from(files).unwrap_or(0);
    }

    /// Data servers have read so much: how long to wait before they read more.
    pub(super) fn read(&self, now: Time, bytes: u64) -> Duration {
        let mut numbers = self.numbers.lock();
        let limit = numbers.limit;
        numbers.pace.copied(now, limit, bytes)
    }

    /// Its copies are equal, as far as it is there.
    pub(super) fn equal(&self, bytes: u64) {
        let mut numbers = self.numbers.lock();
        numbers.compared += 1;
        numbers.bytes = numbers.bytes.saturating_add(bytes);
    }

    pub(super) fn differs(&self, finding: Finding, bytes: u64) {
        self.equal(bytes);
        let mut numbers = self.numbers.lock();
        numbers.differ += 1;
        if numbers.findings.len() < MOST_FINDINGS {
            numbers.findings.push(Arc::new(finding));
        }
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
