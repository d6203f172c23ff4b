//! Recent writes, against which a commit validates what its transaction read.
//!
//! The history is complete for versions above its floor. A transaction whose read version lies below
//! the floor cannot be validated and is too old.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::reads::ReadSet;
use crate::writes::{WriteSet, half_open, up_to};
use crate::{KeyRange, KvError};

/// What one key costs in the index besides its bytes, roughly.
const OVERHEAD: usize = 64;

#[derive(Debug)]
struct Generation {
    version: u64,
    keys: Vec<Bytes>,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) struct History {
    /// Key to the version that last wrote it.
    keys: BTreeMap<Bytes, u64>,
    /// A step function: each key begins an interval last written as a whole at that version.
    steps: BTreeMap<Bytes, u64>,
    /// Size of `steps` after the last sweep.
    swept: usize,
    generations: VecDeque<Generation>,
    floor: u64,
    bytes: usize,
    cap: usize,
}

impl History {
    /// A history that begins at `floor` and holds at most about `cap` bytes.
    pub(crate) fn new(floor: u64, cap: usize) -> Self {
        Self {
            keys: BTreeMap::new(),
            steps: BTreeMap::new(),
            swept: 0,
            generations: VecDeque::new(),
            floor,
            bytes: 0,
            cap,
        }
    }

    /// Whether nothing in `reads`, read at version `at`, was written since.
    pub(crate) fn validate(&self, reads: &ReadSet, at: u64) -> Result<(), KvError> {
        if reads.is_empty() {
            return Ok(());
        }
        if at < self.floor {
            return Err(KvError::TooOld);
        }
        let clean = reads.keys.iter().all(|k| !self.key_written(k, at))
            && reads.ranges.iter().all(|r| !self.range_written(r, at));
        if clean { Ok(()) } else { Err(KvError::Conflict) }
    }

    fn key_written(&self, key: &[u8], since: u64) -> bool {
        self.keys.get(key).is_some_and(|&v| v > since) || self.step_at(key) > since
    }

    fn range_written(&self, range: &KeyRange, since: u64) -> bool {
        let bounds = half_open(&range.begin, &range.end);
        self.keys.range::<[u8], _>(bounds).any(|(_, &v)| v > since)
            || self.step_at(&range.begin) > since
            || self.steps.range::<[u8], _>(bounds).any(|(_, &v)| v > since)
    }

    fn step_at(&self, key: &[u8]) -> u64 {
        self.steps.range::<[u8], _>(up_to(key)).next_back().map_or(0, |(_, &v)| v)
    }

    /// Remembers the writes of one transaction committed at `version`.
    pub(crate) fn record(&mut self, version: u64, writes: &WriteSet, extra: &[KeyRange]) {
        for (begin, end) in &writes.cleared {
            self.write_range(begin, end, version);
        }
        for range in extra {
            self.write_range(&range.begin, &range.end, version);
        }
        if self.generations.back().is_none_or(|last| last.version != version) {
            self.generations.push_back(Generation { version, keys: Vec::new(), bytes: 0 });
        }
        if let Some(last) = self.generations.back_mut() {
            for key in writes.entries.keys() {
                let bytes = key.len() + OVERHEAD;
                self.keys.insert(key.clone(), version);
                last.keys.push(key.clone());
                last.bytes += bytes;
                self.bytes += bytes;
            }
        }
        self.enforce_cap();
    }

    fn write_range(&mut self, begin: &Bytes, end: &Bytes, version: u64) {
        if begin >= end {
            return;
        }
        let after = self.step_at(end);
        let inside: Vec<Bytes> =
            self.steps.range::<[u8], _>(half_open(begin, end)).map(|(k, _)| k.clone()).collect();
        for k in inside {
            self.forget_step(&k);
        }
        self.bytes += begin.len() + end.len() + 2 * OVERHEAD;
        self.steps.insert(begin.clone(), version);
        if self.steps.insert(end.clone(), after).is_some() {
            self.bytes = self.bytes.saturating_sub(end.len() + OVERHEAD);
        }
        if self.steps.len() > 2 * self.swept + 64 {
            self.sweep();
        }
    }

    fn forget_step(&mut self, key: &[u8]) {
        if self.steps.remove(key).is_some() {
            self.bytes = self.bytes.saturating_sub(key.len() + OVERHEAD);
        }
    }

    /// Forgets what no transaction that reads at `oldest` or later needs.
    pub(crate) fn trim(&mut self, oldest: u64) {
        while self.generations.front().is_some_and(|g| g.version <= oldest) {
            self.drop_generation();
        }
        self.floor = self.floor.max(oldest);
    }

    fn drop_generation(&mut self) {
        let Some(g) = self.generations.pop_front() else { return };
        for key in &g.keys {
            if self.keys.get(key) == Some(&g.version) {
                self.keys.remove(key);
            }
        }
        self.bytes = self.bytes.saturating_sub(g.bytes);
        self.floor = self.floor.max(g.version);
    }

    /// Forgets the older half as often as needed: a sweep of the steps is paid once per halving.
    fn enforce_cap(&mut self) {
        while self.bytes > self.cap && self.generations.len() > 1 {
            for _ in 0..self.generations.len() / 2 {
                self.drop_generation();
            }
            self.sweep();
        }
    }

    /// Merges the steps at or below the floor: nobody can ask about them.
    fn sweep(&mut self) {
        let floor = self.floor;
        let mut last = 0;
        let stale: Vec<Bytes> = self
            .steps
            .iter()
            .filter_map(|(k, &v)| {
                let v = if v <= floor { 0 } else { v };
                let redundant = v == last;
                last = v;
                redundant.then(|| k.clone())
            })
            .collect();
        for k in stale {
            self.forget_step(&k);
        }
        self.swept = self.steps.len();
    }
}
