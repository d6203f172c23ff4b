//! Rows in memory as the newest version has them: those that were read or written lately. Finding one in the LSM takes some twenty
//! comparisons of keys that lie apart in memory; here it takes one.
//!
//! A row is right for every view from the version on at which it was last read or written, since each group that
//! commits brings its writes here before its version can be seen. A reader of an older view asks the LSM. What a reader
//! found is kept only if nothing was written near it since its view: it may be the old value of a row just written.

use std::hash::BuildHasher;

use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::embedded::engine::Effect;

/// Shards, so that readers do not wait for each other. A power of two.
const SHARDS: usize = 256;
/// Longer values are not kept: reading one costs more than finding it.
const LONGEST: usize = 1024;
/// What a row takes besides its key and value, about.
const OVERHEAD: usize = 160;

type Map = std::collections::HashMap<Bytes, Row, RandomState>;

#[derive(Clone, Debug)]
struct Row {
    /// `None`: there is no such row.
    value: Option<Bytes>,
    /// The version it was read at, or written.
    since: u64,
}

/// Two generations: a row that is used moves to the younger. When that is half of what there is room for, it becomes
/// the older, and what was the older goes.
#[derive(Debug)]
struct Shard {
    young: Map,
    old: Map,
    young_bytes: usize,
    /// The newest version that wrote a row which would be here.
    written: u64,
}

#[derive(Debug)]
pub(crate) struct Rows {
    hash: RandomState,
    shards: Box<[Mutex<Shard>]>,
    /// Bytes of one generation of one shard.
    room: usize,
}

impl Rows {
    /// For a store at `version`, with room for so many bytes. None: nothing is kept.
    pub(crate) fn new(version: u64, bytes: usize) -> Self {
        let hash = RandomState::default();
        let map = || Map::with_hasher(hash.clone());
        let shard = || Mutex::new(Shard { young: map(), old: map(), young_bytes: 0, written: version });
        let shards = (0..SHARDS).map(|_| shard()).collect();
        Self { hash, shards, room: bytes / SHARDS / 2 }
    }

    fn shard(&self, key: &[u8]) -> &Mutex<Shard> {
        // The high bits: the maps use the low ones.
        let at = (self.hash.hash_one(key) >> 48) as usize % SHARDS;
        &self.shards[at]
    }

    /// The row as a view of `version` has it, if that is known here: `Some(None)` if there is none.
    pub(crate) fn get(&self, key: &[u8], version: u64) -> Option<Option<Bytes>> {
        let mut shard = self.shard(key).lock();
        if let Some(row) = shard.young.get(key) {
            return (row.since <= version).then(|| row.value.clone());
        }
        let (key, row) = shard.old.remove_entry(key)?;
        let found = (row.since <= version).then(|| row.value.clone());
        shard.keep(key, row, self.room);
        found
    }

    /// A reader of a view of `version` found this.
    pub(crate) fn offer(&self, key: &[u8], value: Option<&Bytes>, version: u64) {
        if self.room == 0 || value.is_some_and(|value| value.len() > LONGEST) {
            return;
        }
        let mut shard = self.shard(key).lock();
        // Another reader may have been first: a row is in one generation only.
        if shard.written > version || shard.young.contains_key(key) || shard.old.contains_key(key) {
            return;
        }
        // Copied: what the engine gives may be a part of a whole block.
        let value = value.map(|value| Bytes::copy_from_slice(value));
        shard.keep(Bytes::copy_from_slice(key), Row { value, since: version }, self.room);
    }

    /// A group has written this; its version cannot be seen yet.
    pub(crate) fn apply(&self, effect: &Effect, version: u64) {
        for (key, value) in effect {
            let mut shard = self.shard(key).lock();
            shard.written = version;
            if value.as_ref().is_some_and(|value| value.len() > LONGEST) {
                // What it took stays counted until the generation ends: little, and seldom.
                shard.young.remove(key);
                shard.old.remove(key);
                continue;
            }
            // Copied, as it may be a part of the request that it came with.
            let value = value.as_ref().map(|value| Bytes::copy_from_slice(value));
            let row = Row { value, since: version };
            let Shard { young, old, .. } = &mut *shard;
            match young.get_mut(key).or_else(|| old.get_mut(key)) {
                Some(known) => *known = row,
                // What was just written is often read next: a file that was made is opened, looked at and closed.
                None if row.value.is_some() && self.room > 0 => {
                    shard.keep(Bytes::copy_from_slice(key), row, self.room);
                }
                None => {}
            }
        }
    }
}

impl Shard {
    #[cfg(test)]
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn keep(&mut self, key: Bytes, row: Row, room: usize) {
        self.young_bytes += key.len() + row.value.as_ref().map_or(0, Bytes::len) + OVERHEAD;
        self.young.insert(key, row);
        if self.young_bytes >= room {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.young_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn effect(key: &'static str, value: Option<&'static str>) -> Effect {
        Effect::from([(bytes(key), value.map(bytes))])
    }

    #[test]
    fn a_row_is_known_from_the_version_on_that_it_was_read_at() {
        let rows = Rows::new(5, 1 << 20);
        rows.offer(b"a", Some(&bytes("one")), 7);
        rows.offer(b"none", None, 7);
        assert_eq!(rows.get(b"a", 6), None, "who sees an older version asks the store");
        assert_eq!(rows.get(b"a", 7), Some(Some(bytes("one"))));
        assert_eq!(rows.get(b"none", 8), Some(None));
        assert_eq!(rows.get(b"other", 8), None);
    }

    #[test]
    fn what_is_written_is_what_later_views_see() {
        let rows = Rows::new(5, 1 << 20);
        rows.offer(b"a", Some(&bytes("one")), 5);
        rows.apply(&effect("a", Some("two")), 6);
        assert_eq!(rows.get(b"a", 5), None, "a view of before has the value of before");
        assert_eq!(rows.get(b"a", 6), Some(Some(bytes("two"))));
        rows.apply(&effect("a", None), 7);
        assert_eq!(rows.get(b"a", 7), Some(None));
    }

    #[test]
    fn a_reader_that_was_overtaken_leaves_nothing_behind() {
        let rows = Rows::new(5, 1 << 20);
        // It has read version 5, and comes only after 6 was written.
        rows.apply(&effect("a", None), 6);
        rows.offer(b"a", Some(&bytes("one")), 5);
        assert_eq!(rows.get(b"a", 6), None);
        rows.offer(b"a", None, 6);
        assert_eq!(rows.get(b"a", 6), Some(None));
        rows.apply(&effect("b", Some("two")), 7);
        rows.offer(b"b", Some(&bytes("one")), 6);
        assert_eq!(rows.get(b"b", 7), Some(Some(bytes("two"))));
    }

    #[test]
    fn what_becomes_long_is_forgotten() {
        let rows = Rows::new(5, 1 << 20);
        rows.offer(b"a", Some(&bytes("one")), 5);
        let long = Bytes::from(vec![0; LONGEST + 1]);
        rows.apply(&Effect::from([(bytes("a"), Some(long.clone()))]), 6);
        assert_eq!(rows.get(b"a", 6), None);
        rows.offer(b"a", Some(&long), 6);
        assert_eq!(rows.get(b"a", 6), None);
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let rows = Rows::new(0, SHARDS << 12);
        rows.offer(b"used", Some(&bytes("often")), 1);
        let value = Bytes::from(vec![7; 100]);
        for number in 0..100_000u32 {
            rows.offer(&number.to_be_bytes(), Some(&value), 1);
            assert_eq!(rows.get(b"used", 1), Some(Some(bytes("often"))), "after {number}");
        }
        let held: usize = rows.shards.iter().map(|shard| shard.lock().len()).sum();
        assert!(held * (100 + OVERHEAD) <= (SHARDS << 12) + SHARDS * 2 * (LONGEST + OVERHEAD), "{held} rows");
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let rows = Rows::new(0, 0);
        rows.offer(b"a", Some(&bytes("one")), 1);
        assert_eq!(rows.get(b"a", 1), None);
    }
}
