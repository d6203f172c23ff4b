//! The LSM below: snapshots, and batches that are durable when they are visible. Its keys are in one tree, or in two:
//! those of a range that was named when the store was made are in a tree of their own, so that large values there are
//! not carried along whenever the small ones are merged, nor take their place in memory. Both trees have one journal
//! and one sequence of snapshots: a batch is in both or in neither. Seen from above there is one sequence of keys.

use std::path::Path;

use bytes::Bytes;
use fjall::config::BlockSizePolicy;
use fjall::{KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable};
use sluice_env::Env;

use crate::embedded::EmbeddedOptions;
use crate::embedded::ahead::Ahead;
use crate::embedded::directory::{Directory, FORMAT_LARGE, FORMAT_ONE, Mark, io_error};
use crate::embedded::effect::Effect;
use crate::embedded::journal;
use crate::{KeyRange, KeyValue, KvError};

pub(crate) use fjall::Snapshot;

/// Written with every batch: the version it committed. Callers' keys never begin with 0xff.
const VERSION_KEY: &[u8] = b"\xff/version";
/// Written with every batch: the store's mark, if it has one.
pub(crate) const MARK_KEY: &[u8] = b"\xff/mark";
/// Written when the store is made, if there is such a range: its bounds, each with its length before it.
const LARGE_KEY: &[u8] = b"\xff/large";
/// A value of more bytes stays where it is: copying it would cost more than the piece of memory.
const PACKED: usize = 1024;
const KEYSPACE: &str = "data";
const LARGE: &str = "large";
/// Bytes of rows that are read from the disk at once, where rows are small: what is read with the one that somebody asked
/// for need not be read for the next, who waits as long for one page as for four.
const BLOCK: u32 = 16 << 10;

pub(crate) struct Engine {
    db: fjall::Database,
    data: fjall::Keyspace,
    large: Option<Large>,
    mark: Option<Mark>,
    durability: PersistMode,
    ahead: Ahead,
    // Dropped last: the directory stays locked while the engine runs.
    _directory: Directory,
}

/// The second tree.
struct Large {
    tree: fjall::Keyspace,
    range: KeyRange,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("durability", &self.durability).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens or creates the store in `dir`; also returns the last committed version.
    pub(crate) fn open(env: &Env, dir: &Path, options: &EmbeddedOptions) -> Result<(Self, u64), KvError> {
        let directory = Directory::open(dir)?;
        let fresh: Mark = env.random.array();
        let format = if options.large.is_some() { FORMAT_LARGE } else { FORMAT_ONE };
        let path = directory.engine(format, fresh, |draft| {
            let (db, data) = start(draft, options)?;
            let mut batch = db.batch().durability(Some(PersistMode::SyncAll));
            batch.insert(&data, VERSION_KEY, 0u64.to_be_bytes());
            batch.insert(&data, MARK_KEY, fresh);
            if let Some(range) = &options.large {
                drop(tree(&db, draft, LARGE)?);
                batch.insert(&data, LARGE_KEY, bounds(range));
            }
            batch.commit().map_err(|e| engine_error(dir, &e))
        })?;
        let mark = directory.mark()?;
        journal::mend(&path, mark.as_ref())?;
        let (db, data) = start(&path, options)?;
        let row = |key| data.get(key).map_err(|e| engine_error(dir, &e));
        let version = row(VERSION_KEY)?
            .and_then(|v| Some(u64::from_be_bytes(v[..].try_into().ok()?)))
            .ok_or_else(|| KvError::Corrupt { what: format!("{} has no commit version", path.display()) })?;
        // As the store was made: where a row is does not depend on what is asked for now.
        let large = match row(LARGE_KEY)? {
            None => None,
            Some(stored) => Some(Large {
                tree: tree(&db, &path, LARGE)?,
                range: range_of(&stored).ok_or_else(|| KvError::Corrupt {
                    what: format!("{}: bounds of a tree", path.display()),
                })?,
            }),
        };
        // `fdatasync` covers the length and the blocks of the journal. What it leaves out are times.
        let durability = if options.unsafe_no_sync { PersistMode::Buffer } else { PersistMode::SyncData };
        let ahead = Ahead::open(&path);
        Ok((Self { db, data, large, mark, durability, ahead, _directory: directory }, version))
    }

    /// The tree that has `key`.
    fn tree_of(&self, key: &[u8]) -> &fjall::Keyspace {
        match &self.large {
            Some(large) if large.has(key) => &large.tree,
            _ => &self.data,
        }
    }

    /// The row of `key` is, or would be, in a tree of large ones.
    pub(crate) fn is_large(&self, key: &[u8]) -> bool {
        self.large.as_ref().is_some_and(|large| large.has(key))
    }

    /// The parts of `[begin, end)`, none of them empty, in the order of their keys, each with the tree that has it.
    fn parts<'a>(&'a self, begin: &'a [u8], end: &'a [u8]) -> Vec<(&'a fjall::Keyspace, &'a [u8], &'a [u8])> {
        let mut parts = match &self.large {
            None => vec![(&self.data, begin, end)],
            Some(Large { tree, range }) => {
                let (from, to): (&[u8], &[u8]) = (&range.begin, &range.end);
                vec![
                    (&self.data, begin, end.min(from)),
                    (tree, begin.max(from), end.min(to)),
                    (&self.data, begin.max(to), end),
                ]
            }
        };
        parts.retain(|(_, begin, end)| begin < end);
        parts
    }

    /// The store as of the last batch.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.db.snapshot()
    }

    pub(crate) fn get(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        if key.is_empty() {
            return Ok(None);
        }
        match snapshot.get(self.tree_of(key), key) {
            Ok(value) => Ok(value.map(Bytes::from)),
            Err(e) => Err(self.error(&e)),
        }
    }

    pub(crate) fn range(
        &self,
        snapshot: &Snapshot,
        begin: &[u8],
        end: &[u8],
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        let mut out = Vec::with_capacity(limit.min(1024));
        let mut parts = self.parts(begin, end);
        if reverse {
            parts.reverse();
        }
        for (tree, begin, end) in parts {
            let pairs = snapshot.range(tree, begin..end);
            let left = limit - out.len();
            if reverse {
                self.collect(pairs.rev().take(left), &mut out)?;
            } else {
                self.collect(pairs.take(left), &mut out)?;
            }
        }
        Ok(out)
    }

    fn collect(
        &self,
        pairs: impl Iterator<Item = fjall::Guard>,
        out: &mut Vec<KeyValue>,
    ) -> Result<(), KvError> {
        for guard in pairs {
            let (key, value) = guard.into_inner().map_err(|e| self.error(&e))?;
            out.push((Bytes::from(key), Bytes::from(value)));
        }
        Ok(())
    }

    /// The keys present in `[begin, end)`.
    pub(crate) fn keys(&self, snapshot: &Snapshot, begin: &[u8], end: &[u8]) -> Result<Vec<Bytes>, KvError> {
        let mut keys = Vec::new();
        for (tree, begin, end) in self.parts(begin, end) {
            for guard in snapshot.range(tree, begin..end) {
                keys.push(Bytes::from(guard.key().map_err(|e| self.error(&e))?));
            }
        }
        Ok(keys)
    }

    /// Writes `effect` and the version in one batch, syncs it, then lets snapshots see it.
    pub(crate) fn write(&self, effect: &Effect, version: u64) -> Result<(), KvError> {
        let mut batch = OwnedWriteBatch::with_capacity(self.db.clone(), effect.len() + 2)
            .durability(Some(self.durability));
        let mut bytes = 0;
        for (key, value) in packed(effect) {
            bytes += journal::item_bytes(&key, value.as_deref());
            let tree = self.tree_of(&key);
            match value {
                Some(value) => batch.insert(tree, key, value),
                None => batch.remove(tree, key),
            }
        }
        batch.insert(&self.data, VERSION_KEY, version.to_be_bytes());
        if let Some(mark) = self.mark {
            batch.insert(&self.data, MARK_KEY, mark);
        }
        self.ahead.make_room(bytes + journal::BATCH_BYTES);
        batch.commit().map_err(|e| self.error(&e))
    }

    pub(crate) fn sync(&self) -> Result<(), KvError> {
        self.db.persist(self.durability).map_err(|e| self.error(&e))
    }

    /// Whether its threads have failed. It has no other way to ask; what it hands to the system meanwhile is of batches that
    /// nobody was told of.
    pub(crate) fn check(&self) -> Result<(), KvError> {
        self.db.persist(PersistMode::Buffer).map_err(|e| self.error(&e))
    }

    /// Has what was written lately put into a table, in the background.
    #[cfg(test)]
    pub(crate) fn rotate(&self) {
        self.data.rotate_memtable().unwrap();
    }

    fn error(&self, error: &fjall::Error) -> KvError {
        engine_error(Path::new(KEYSPACE), error)
    }
}

/// The rows of `effect` in memory of their own: one piece for all that is short. The engine keeps them until it has written
/// a table, and compares keys with them all the time. As they were handed in, each would keep up to four pieces, which lie
/// wherever a handler had made them.
fn packed(effect: &Effect) -> impl Iterator<Item = (Bytes, Option<Bytes>)> {
    let mut piece =
        Vec::with_capacity(effect.iter().map(|(key, value)| key.len() + short(value).len()).sum());
    for (key, value) in effect.iter() {
        piece.extend_from_slice(key);
        piece.extend_from_slice(short(value));
    }
    let mut rest = Bytes::from(piece);
    effect.iter().map(move |(key, value)| {
        let key = rest.split_to(key.len());
        let packed = rest.split_to(short(value).len());
        (key, value.as_ref().map(|value| if value.len() <= PACKED { packed } else { value.clone() }))
    })
}

/// What of a value is packed: all or nothing.
fn short(value: &Option<Bytes>) -> &[u8] {
    value.as_deref().filter(|value| value.len() <= PACKED).unwrap_or_default()
}

/// Threads that flush and merge, on however few processors. The first of them leaves merging to the others, by putting it back
/// into the queue and taking it out again at once: with two, as on two processors, one spins while the other merges. One alone
/// can wait for room in a queue that nobody else empties.
const WORKERS: usize = 4;

/// Bytes of full journals from which on a tree that keeps the oldest of them has what it has in memory written to a table: one that
/// has a row now and then would keep half a gigabyte of them, and a device that fills up has no more.
const JOURNALS: u64 = 128 << 20;

fn start(path: &Path, options: &EmbeddedOptions) -> Result<(fjall::Database, fjall::Keyspace), KvError> {
    let db = fjall::Database::builder(path)
        .cache_size(options.cache_bytes)
        .worker_threads(WORKERS)
        .manual_journal_persist(true)
        .max_journaling_size(JOURNALS)
        // The engine checks a journal's sums over values it compresses anew: another release of the
        // compressor would make old journals look damaged.
        .journal_compression(fjall::CompressionType::None)
        .open()
        .map_err(|e| engine_error(path, &e))?;
    let data = tree(&db, path, KEYSPACE)?;
    Ok((db, data))
}

/// A tree of the engine, made if it is not there. A tree keeps what it was made with.
fn tree(db: &fjall::Database, path: &Path, name: &str) -> Result<fjall::Keyspace, KvError> {
    let options = || {
        let options = KeyspaceCreateOptions::default().manual_journal_persist(true);
        match name {
            // Nobody asks for large rows that are not there: no filters where most of them are.
            LARGE => options.expect_point_read_hits(true),
            _ => options.data_block_size_policy(BlockSizePolicy::all(BLOCK)),
        }
    };
    db.keyspace(name, options).map_err(|e| engine_error(path, &e))
}

impl Large {
    fn has(&self, key: &[u8]) -> bool {
        *self.range.begin <= *key && *key < *self.range.end
    }
}

fn bounds(range: &KeyRange) -> Vec<u8> {
    let mut out = Vec::new();
    for bound in [&range.begin, &range.end] {
        // A key is shorter than 64 KiB.
        out.extend_from_slice(&u16::try_from(bound.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend_from_slice(bound);
    }
    out
}

fn range_of(stored: &[u8]) -> Option<KeyRange> {
    let bound = |rest: &[u8]| {
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (bound, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        Some((Bytes::copy_from_slice(bound), rest.to_vec()))
    };
    let (begin, rest) = bound(stored)?;
    let (end, rest) = bound(&rest)?;
    (rest.is_empty() && begin < end).then_some(KeyRange { begin, end })
}

fn engine_error(place: &Path, error: &fjall::Error) -> KvError {
    match error {
        fjall::Error::Io(e) => io_error("using", place, e),
        fjall::Error::Locked => KvError::InUse { dir: place.to_owned() },
        fjall::Error::Poisoned => KvError::Io {
            what: "a sync, or the store's work in the background, failed (the log says why)".into(),
        },
        fjall::Error::Storage(fjall::LsmError::Io(e)) => io_error("using", place, e),
        other => KvError::Corrupt { what: format!("{}: {other}", place.display()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_rows_are_what_was_handed_in_and_short_ones_are_one_piece() {
        let value = |length: usize| (length < 2000).then(|| Bytes::from(vec![length as u8; length]));
        let lengths = [3, 0, PACKED, 2000, PACKED + 1, 1, 1500, 2000, 7];
        let row = |(at, length): (usize, &usize)| (Bytes::from(format!("key {at}")), value(*length));
        let effect: Effect = lengths.iter().enumerate().map(row).collect();
        let rows: Vec<_> = packed(&effect).collect();
        assert!(rows.iter().map(|(key, value)| (key, value)).eq(effect.iter()));
        // Each begins where the last one ended, but for values that stayed where they were.
        let mut next = rows[0].0.as_ptr();
        for ((key, value), (_, given)) in rows.iter().zip(effect.iter()) {
            assert_eq!(key.as_ptr(), next);
            next = next.wrapping_add(key.len());
            let (Some(value), Some(given)) = (value, given) else { continue };
            if value.len() > PACKED {
                assert_eq!(value.as_ptr(), given.as_ptr());
            } else if !value.is_empty() {
                assert_eq!(value.as_ptr(), next);
                next = next.wrapping_add(value.len());
            }
        }
    }

    /// On a machine with fewer processors, too.
    #[test]
    fn there_are_threads_enough_that_none_spins_while_another_merges() {
        let dir = tempfile::tempdir().unwrap();
        let _open = start(dir.path(), &EmbeddedOptions::default()).unwrap();
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        // One that another test has just ended is not there any more.
        let workers = names.filter(|name| name.as_ref().is_ok_and(|name| name.trim() == "fjall:worker"));
        assert!(workers.count() >= WORKERS);
    }
}
