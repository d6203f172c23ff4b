//! Recent writes, against which a commit validates what its transaction read.
//!
//! The history is complete for versions above its floor. A transaction whose read version lies below
//! the floor cannot be validated and is too old.
//!
//! Nearly all that transactions read are single keys, and nearly all of them are as old as the last few groups. So for
//! keys there is a table of hashes: two keys with one hash are a conflict that is none, once in 2^64, and the transaction
//! is run again. For a range the keys written since are looked through.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use hashbrown::HashTable;

use crate::key::hash;
use crate::reads::{Keys, ReadSet};
use crate::writes::{WriteSet, half_open, up_to};
use crate::{KeyRange, KvError};

/// What one key costs besides its bytes, roughly: where it ends, and its place in the table of hashes.
const OVERHEAD: usize = 48;
/// A table with more room than so many times what is in it is given back: emptying it takes time by its room.
const ROOMY: usize = 8;
/// A table of so many places is never too large.
const SMALL: usize = 1024;

/// The keys of a generation of more bytes are not worth keeping the memory for.
const SPARE: usize = 256 << 10;

#[derive(Debug)]
struct Generation {
    version: u64,
    keys: Keys,
    bytes: usize,
}

/// Hashes of keys, each with the version that last wrote such a key.
#[derive(Debug, Default)]
struct Hashes(HashTable<(u64, u64)>);

impl Hashes {
    fn last(&self, hash: u64) -> u64 {
        self.0.find(hash, |(known, _)| *known == hash).map_or(0, |(_, version)| *version)
    }

    fn note(&mut self, hash: u64, version: u64) {
        let entry = self.0.entry(hash, |(known, _)| *known == hash, |(known, _)| *known);
        entry.and_modify(|place| place.1 = version).or_insert((hash, version));
    }

    fn empty(&mut self) {
        if self.0.capacity() > SMALL.max(ROOMY * self.0.len()) {
            self.0 = HashTable::new();
        }
        self.0.clear();
    }
}

#[derive(Debug)]
pub(crate) struct History {
    /// What was written since the last turn.
    young: Hashes,
    /// What was written before, at `turned` at the latest. Of versions that nobody asks about some is missing.
    old: Hashes,
    turned: u64,
    /// A step function: each key begins an interval last written as a whole at that version.
    steps: BTreeMap<Bytes, u64>,
    /// Size of `steps` after the last sweep.
    swept: usize,
    generations: VecDeque<Generation>,
    /// The memory of one that was dropped.
    spare: Keys,
    floor: u64,
    bytes: usize,
    cap: usize,
}

impl History {
    /// A history that begins at `floor` and holds at most about `cap` bytes.
    pub(crate) fn new(floor: u64, cap: usize) -> Self {
        Self {
            young: Hashes::default(),
            old: Hashes::default(),
            turned: floor,
            steps: BTreeMap::new(),
            swept: 0,
            generations: VecDeque::new(),
            spare: Keys::default(),
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
        let hash = hash(key);
        self.young.last(hash) > since
            || (self.turned > since && self.old.last(hash) > since)
            || self.step_at(key) > since
    }

    fn range_written(&self, range: &KeyRange, since: u64) -> bool {
        let within = |key: &[u8]| *range.begin <= *key && *key < *range.end;
        let bounds = half_open(&range.begin, &range.end);
        let newer = self.generations.iter().rev().take_while(|generation| generation.version > since);
        newer.flat_map(|generation| generation.keys.iter()).any(within)
            || self.step_at(&range.begin) > since
            || self.steps.range::<[u8], _>(bounds).any(|(_, &v)| v > since)
    }

    fn step_at(&self, key: &[u8]) -> u64 {
        self.steps.range::<[u8], _>(up_to(key)).next_back().map_or(0, |(_, &v)| v)
    }

    /// Remembers the writes of one transaction committed at `version`; `hashes` are those of [`WriteSet::hashes`].
    pub(crate) fn record(&mut self, version: u64, writes: &WriteSet, hashes: &[u64], extra: &[KeyRange]) {
        for (begin, end) in &writes.cleared {
            self.write_range(begin, end, version);
        }
        for range in extra {
            self.write_range(&range.begin, &range.end, version);
        }
        if self.generations.back().is_none_or(|last| last.version != version) {
            let keys = std::mem::take(&mut self.spare);
            self.generations.push_back(Generation { version, keys, bytes: 0 });
        }
        if let Some(last) = self.generations.back_mut() {
            for (key, hash) in writes.entries.keys().zip(hashes) {
                let bytes = key.len() + OVERHEAD;
                self.young.note(*hash, version);
                last.keys.push(key);
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
        self.turn();
    }

    fn drop_generation(&mut self) {
        let Some(mut dropped) = self.generations.pop_front() else { return };
        self.bytes = self.bytes.saturating_sub(dropped.bytes);
        self.floor = self.floor.max(dropped.version);
        if dropped.bytes <= SPARE {
            dropped.keys.clear();
            self.spare = dropped.keys;
        }
    }

    /// Empties the older table, if nobody asks about what it has.
    fn turn(&mut self) {
        let Some(newest) = self.generations.back().map(|newest| newest.version) else {
            self.young.empty();
            self.old.empty();
            return;
        };
        if self.turned <= self.floor && newest > self.turned {
            self.old.empty();
            std::mem::swap(&mut self.young, &mut self.old);
            self.turned = newest;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// All that was ever written, and a generator of choices.
    struct Model {
        keys: Vec<(Vec<u8>, u64)>,
        ranges: Vec<(KeyRange, u64)>,
        seed: u64,
    }

    impl Model {
        fn pick(&mut self, below: u64) -> u64 {
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.seed >> 33) % below
        }

        fn key(&mut self) -> Bytes {
            Bytes::copy_from_slice(&(self.pick(300) as u16).to_be_bytes())
        }

        fn range(&mut self) -> KeyRange {
            let (one, other) = (self.key(), self.key());
            KeyRange::new(one.clone().min(other.clone()), one.max(other))
        }

        fn written(&self, reads: &ReadSet, since: u64) -> bool {
            let within = |range: &KeyRange, key: &[u8]| *range.begin <= *key && *key < *range.end;
            let meet = |a: &KeyRange, b: &KeyRange| {
                a.begin < a.end && b.begin < b.end && a.begin < b.end && b.begin < a.end
            };
            let newer_keys = || self.keys.iter().filter(|(_, version)| *version > since);
            let newer_ranges = || self.ranges.iter().filter(|(_, version)| *version > since);
            reads.keys.iter().any(|key| {
                newer_keys().any(|(known, _)| known == key)
                    || newer_ranges().any(|(range, _)| within(range, key))
            }) || reads.ranges.iter().any(|read| {
                newer_keys().any(|(known, _)| within(read, known))
                    || newer_ranges().any(|(range, _)| meet(range, read))
            })
        }
    }

    fn record(history: &mut History, version: u64, writes: &WriteSet, extra: &[KeyRange]) {
        let hashes: Vec<u64> = writes.hashes().collect();
        history.record(version, writes, &hashes, extra);
    }

    fn write(history: &mut History, model: &mut Model, version: u64) {
        let mut writes = WriteSet::default();
        for _ in 0..model.pick(4) {
            writes.put(model.key(), None);
        }
        if model.pick(20) == 0 {
            let range = model.range();
            writes.clear_range(range.begin, range.end);
        }
        let extra: Vec<_> = (0..model.pick(30) / 29).map(|_| model.range()).collect();
        record(history, version, &writes, &extra);
        model.keys.extend(writes.entries.keys().map(|key| (key.to_vec(), version)));
        let cleared = writes.cleared.into_iter().map(|(begin, end)| KeyRange::new(begin, end));
        model.ranges.extend(cleared.chain(extra).map(|range| (range, version)));
    }

    /// Conflicts are the model's wherever the history reaches, and it reaches as far as it was not told to forget.
    fn agrees(seed: u64, cap: usize) -> usize {
        let mut model = Model { keys: Vec::new(), ranges: Vec::new(), seed };
        let mut history = History::new(10, cap);
        let (mut oldest, mut conflicts) = (10u64, 0);
        for version in 11..600u64 {
            for _ in 0..=model.pick(3) {
                write(&mut history, &mut model, version);
            }
            for _ in 0..4 {
                let mut reads = ReadSet::default();
                (0..model.pick(3)).for_each(|_| reads.keys.push(&model.key()));
                if model.pick(4) == 0 {
                    // An empty range is never read.
                    reads.ranges.extend(Some(model.range()).filter(|range| range.begin < range.end));
                }
                let at = oldest.saturating_sub(2) + model.pick(version - oldest + 3);
                let found = history.validate(&reads, at);
                if reads.is_empty() {
                    assert_eq!(found, Ok(()));
                } else if at < history.floor {
                    assert_eq!(found, Err(KvError::TooOld));
                } else if model.written(&reads, at) {
                    conflicts += 1;
                    assert_eq!(found, Err(KvError::Conflict), "{seed}: {reads:?} at {at} in {version}");
                } else {
                    assert_eq!(found, Ok(()), "{seed}: {reads:?} at {at} in {version}");
                }
            }
            match model.pick(6) {
                0 => oldest = version,
                1 => oldest += (version - oldest) / 2,
                _ => {}
            }
            history.trim(oldest);
            assert!(cap < usize::MAX || history.floor == oldest);
            assert!(history.bytes <= cap || history.generations.len() == 1);
        }
        conflicts
    }

    #[test]
    fn conflicts_are_those_of_a_list_of_all_writes() {
        let conflicts: usize = (0..20).map(|seed| agrees(seed, usize::MAX)).sum();
        assert!(conflicts > 1_000, "{conflicts}");
        assert!((20..30).all(|seed| agrees(seed, 2_000) > 0));
    }

    /// Writes 200 keys, none of which was written before.
    fn write_200(history: &mut History, version: u64) {
        let mut writes = WriteSet::default();
        for n in 0..200u64 {
            writes.put(Bytes::copy_from_slice(&(version * 200 + n).to_be_bytes()), None);
        }
        record(history, version, &writes, &[]);
    }

    fn hashes(history: &History) -> (usize, usize) {
        let (young, old) = (&history.young.0, &history.old.0);
        (young.len() + old.len(), young.capacity() + old.capacity())
    }

    #[test]
    fn memory_follows_what_is_asked_about() {
        let mut history = History::new(0, usize::MAX);
        let mut write = |version: u64, oldest: u64| {
            write_200(&mut history, version);
            history.trim(oldest);
            hashes(&history)
        };
        let (held, _) = (1..=500).map(|version| write(version, 0)).last().unwrap();
        assert_eq!(held, 100_000, "somebody reads the first version");
        let (held, room) = (501..=510).map(|version| write(version, version - 1)).last().unwrap();
        assert!(held <= 600 && room <= 4 * SMALL, "{held} in {room}");
        let (held, _) = write(511, 511);
        assert_eq!(held, 0, "everybody reads the newest");
    }

    #[test]
    fn memory_is_bounded_although_somebody_reads_the_first_version() {
        // Room for fifty groups.
        let mut history = History::new(0, 50 * 200 * (8 + OVERHEAD));
        for version in 1..=1_000 {
            write_200(&mut history, version);
            history.trim(0);
            let (held, _) = hashes(&history);
            assert!(held <= 2 * 50 * 200, "{held} at {version}");
        }
    }
}
