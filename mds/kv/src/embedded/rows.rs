//! Rows in memory as the newest version has them: those that were read or written lately. Finding one in the LSM takes some twenty
//! comparisons of keys that lie apart in memory; here it takes one.
//!
//! A row is right for every view from the version on at which it was last read or written, since each group that
//! commits brings its writes here before its version can be seen. A reader of an older view asks the LSM. What a reader
//! found is kept only if nothing was written near it since its view: it may be the old value of a row just written.
//!
//! There are millions of rows, most of them short, so what each takes besides its bytes counts: a row is one piece of memory, and
//! readers are given copies.

use bytes::Bytes;
use hashbrown::HashTable;
use parking_lot::Mutex;

use crate::embedded::effect::Effect;
use crate::key::hash;

/// Shards at least, so that readers do not wait for each other. A power of two.
const SHARDS: usize = 256;
/// Bytes of a shard, about: where there is room for more, there are more shards. So the longest that anybody holds one, which
/// is when its table grows, does not depend on how much is kept.
const SHARD_BYTES: usize = 256 << 10;
/// Longer values are not kept: reading one costs more than finding it.
const LONGEST: usize = 1024;
/// What a row takes besides its key and value, about: what is before them, its place, of which a third
/// are empty, and what the allocator rounds up.
const OVERHEAD: usize = 64;

/// A row in one piece of memory: the version it was read at or written, whether there is such a row, the length of the key,
/// the key, the value.
#[derive(Debug)]
struct Row(Box<[u8]>);

const THERE: usize = 8;
const LENGTH: usize = 9;
const KEY: usize = 11;

impl Row {
    /// None: a key that is longer than any is.
    fn new(key: &[u8], value: Option<&[u8]>, since: u64) -> Option<Self> {
        let length = u16::try_from(key.len()).ok()?;
        let mut row = Vec::with_capacity(KEY + key.len() + value.map_or(0, <[u8]>::len));
        let mut head = [0; KEY];
        head[..THERE].copy_from_slice(&since.to_le_bytes());
        head[THERE] = value.is_some().into();
        head[LENGTH..].copy_from_slice(&length.to_le_bytes());
        row.extend_from_slice(&head);
        row.extend_from_slice(key);
        row.extend_from_slice(value.unwrap_or_default());
        Some(Self(row.into_boxed_slice()))
    }

    /// Key and value, the value empty if there is no such row.
    fn parts(&self) -> (&[u8], &[u8]) {
        let Some(length) = self.0.get(LENGTH..KEY).and_then(|length| length.try_into().ok()) else {
            return Default::default();
        };
        self.0[KEY..].split_at(u16::from_le_bytes(length).into())
    }

    fn key(&self) -> &[u8] {
        self.parts().0
    }

    fn since(&self) -> u64 {
        self.0.first_chunk().map_or(0, |since| u64::from_le_bytes(*since))
    }

    fn is_there(&self) -> bool {
        self.0.get(THERE).is_some_and(|there| *there != 0)
    }

    /// What it takes.
    fn bytes(&self) -> usize {
        self.0.len() + OVERHEAD
    }
}

/// What the index of a shard has of a row: enough to pass it without fetching it from memory.
#[derive(Debug)]
struct Place {
    row: Row,
    tag: u32,
    /// So often the hand of the clock lets it stay.
    stays: u8,
}

/// A row that was brought here: it is often asked for next.
const NEW: u8 = 1;
/// One that was found. More than a new one, or where all are new, what is found all the time would go with them.
const FOUND: u8 = 2;

/// Where a key is: which shard by one half of its hash, which place in it by the other.
#[derive(Clone, Copy, Debug)]
struct Hash(u64);

impl Hash {
    fn shard(self) -> usize {
        (self.0 >> 32) as usize
    }

    fn tag(self) -> u32 {
        self.0 as u32
    }
}

/// The index goes by the highest bits and the lowest.
fn spread(tag: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(tag)
}

/// A clock: its hand comes by when a row needs room, lets what was found or brought here of late stay, and takes what was not.
#[derive(Debug, Default)]
struct Shard {
    places: HashTable<Place>,
    hand: usize,
    bytes: usize,
    /// The newest version that wrote a row which would be here.
    written: u64,
}

#[derive(Debug)]
pub(crate) struct Rows {
    shards: Box<[Mutex<Shard>]>,
    /// Bytes of one shard.
    room: usize,
}

impl Rows {
    /// For a store at `version`, with room for so many bytes. None: nothing is kept.
    pub(crate) fn new(version: u64, bytes: usize) -> Self {
        let shards = (bytes / SHARD_BYTES).next_power_of_two().max(SHARDS);
        let shard = || Mutex::new(Shard { written: version, ..Shard::default() });
        Self { shards: (0..shards).map(|_| shard()).collect(), room: bytes / shards }
    }

    fn shard(&self, hash: Hash) -> &Mutex<Shard> {
        &self.shards[hash.shard() % self.shards.len()]
    }

    /// The row as a view of `version` has it, if that is known here: `Some(None)` if there is none.
    pub(crate) fn get(&self, key: &[u8], version: u64) -> Option<Option<Bytes>> {
        self.with(hash(key), key, version, |value| value.map(Bytes::copy_from_slice)).ok()
    }

    /// What `then` makes of the value of such a row, which is not copied; `then` if the row is not known. The shard is held
    /// meanwhile. `hash` is the key's.
    pub(crate) fn with<T, F>(&self, hash: u64, key: &[u8], version: u64, then: F) -> Result<T, F>
    where
        F: FnOnce(Option<&[u8]>) -> T,
    {
        let hash = Hash(hash);
        let mut shard = self.shard(hash).lock();
        let Some(place) = shard.find(hash, key) else { return Err(then) };
        place.stays = FOUND;
        if place.row.since() > version {
            return Err(then);
        }
        Ok(then(place.row.is_there().then(|| place.row.parts().1)))
    }

    /// A reader of a view of `version` found this.
    pub(crate) fn offer(&self, key: &[u8], value: Option<&Bytes>, version: u64) {
        if self.room == 0 || value.is_some_and(|value| value.len() > LONGEST) {
            return;
        }
        let hash = Hash(hash(key));
        let Some(row) = Row::new(key, value.map(|value| &**value), version) else { return };
        let mut shard = self.shard(hash).lock();
        // Another reader may have been first: it is at least as new.
        if shard.written > version || shard.find(hash, key).is_some() {
            return;
        }
        shard.keep(hash, row, self.room);
    }

    /// A group has written this; its version cannot be seen yet.
    pub(crate) fn apply(&self, effect: &Effect, version: u64) {
        for (hash, key, value) in effect.hashed() {
            let hash = Hash(hash);
            let short = value.as_ref().is_none_or(|value| value.len() <= LONGEST);
            let row = if short { Row::new(key, value.as_deref(), version) } else { None };
            let mut shard = self.shard(hash).lock();
            shard.written = version;
            match (shard.find(hash, key), row) {
                (Some(place), Some(row)) => {
                    let more = row.bytes();
                    let less = std::mem::replace(&mut place.row, row).bytes();
                    shard.bytes = shard.bytes + more - less;
                }
                (Some(_), None) => shard.remove(hash, key),
                // What was just written is often read next: a file that was made is opened, looked at and closed.
                (None, Some(row)) if row.is_there() && self.room > 0 => shard.keep(hash, row, self.room),
                (None, _) => {}
            }
        }
    }
}

impl Shard {
    fn find(&mut self, hash: Hash, key: &[u8]) -> Option<&mut Place> {
        let tag = hash.tag();
        self.places.find_mut(spread(tag), |place| place.tag == tag && place.row.key() == key)
    }

    fn remove(&mut self, hash: Hash, key: &[u8]) {
        let tag = hash.tag();
        let found = self.places.find_entry(spread(tag), |place| place.tag == tag && place.row.key() == key);
        if let Ok(entry) = found {
            self.bytes -= entry.remove().0.row.bytes();
        }
    }

    /// A row that is not here.
    fn keep(&mut self, hash: Hash, row: Row, room: usize) {
        self.bytes += row.bytes();
        while self.bytes > room && !self.places.is_empty() {
            self.turn();
        }
        let place = Place { row, tag: hash.tag(), stays: NEW };
        self.places.insert_unique(spread(place.tag), place, |place| spread(place.tag));
    }

    /// Moves the hand on by a place, which may free it. There is a row.
    fn turn(&mut self) {
        let at = self.hand % self.places.num_buckets();
        self.hand = at + 1;
        let Ok(mut entry) = self.places.get_bucket_entry(at) else { return };
        match &mut entry.get_mut().stays {
            0 => self.bytes -= entry.remove().0.row.bytes(),
            stays => *stays -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    /// How many rows, and what they take.
    fn held(rows: &Rows) -> (usize, usize) {
        let of = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            (shard.places.len(), shard.places.iter().map(|place| place.row.bytes()).sum::<usize>())
        };
        rows.shards.iter().map(of).fold((0, 0), |(n, sum), (more, bytes)| (n + more, sum + bytes))
    }

    fn effect(key: &'static str, value: Option<&'static str>) -> Effect {
        Effect::from_iter([(bytes(key), value.map(bytes))])
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
        rows.apply(&Effect::from_iter([(bytes("a"), Some(long.clone()))]), 6);
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
        let (held, bytes) = held(&rows);
        assert!(bytes <= SHARDS << 12, "{bytes} bytes");
        assert!(held * (100 + KEY + OVERHEAD) <= bytes, "{held} rows");
    }

    #[test]
    fn what_fits_stays_however_it_is_used() {
        let rows = Rows::new(0, SHARDS * SHARD_BYTES);
        let value = Bytes::from(vec![7; 100]);
        // Four fifths of the room: shards get unequal shares, the smaller the more so.
        let fit = (SHARDS * SHARD_BYTES) as u32 / (4 + 100 + KEY as u32 + OVERHEAD as u32) / 5 * 4;
        (0..fit).for_each(|number| rows.offer(&number.to_be_bytes(), Some(&value), 1));
        for round in 0..3 {
            let missed = (0..fit).filter(|number| rows.get(&number.to_be_bytes(), 1).is_none()).count();
            assert_eq!(missed, 0, "round {round}");
        }
    }

    #[test]
    fn a_shard_is_as_large_wherever_there_is_room_for_more() {
        let small = Rows::new(0, SHARDS * SHARD_BYTES);
        let large = Rows::new(0, 2 << 30);
        assert_eq!((small.shards.len(), small.room), (SHARDS, SHARD_BYTES));
        assert_eq!((large.shards.len(), large.room), (SHARDS * 32, SHARD_BYTES));
        // And all of them are used.
        (0..100_000u32).for_each(|number| large.offer(&number.to_be_bytes(), None, 1));
        let empty = large.shards.iter().filter(|shard| shard.lock().places.is_empty()).count();
        assert!(empty < 10, "{empty} shards are empty");
    }

    #[test]
    fn what_is_taken_out_is_not_counted() {
        let rows = Rows::new(0, SHARDS << 12);
        for version in 1..20u64 {
            for number in 0..10_000u32 {
                let key = Bytes::copy_from_slice(&(number % 3_000).to_be_bytes());
                let length = (number as usize * 7 + version as usize * 13) % (LONGEST * 2);
                let value = (!length.is_multiple_of(5)).then(|| Bytes::from(vec![1; length]));
                rows.apply(&Effect::from_iter([(key, value)]), version);
            }
        }
        let (held, bytes) = held(&rows);
        assert!(held > 1_000, "{held} rows");
        let counted: usize = rows.shards.iter().map(|shard| shard.lock().bytes).sum();
        assert_eq!(bytes, counted);
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let rows = Rows::new(0, 0);
        rows.offer(b"a", Some(&bytes("one")), 1);
        assert_eq!(rows.get(b"a", 1), None);
    }
}
