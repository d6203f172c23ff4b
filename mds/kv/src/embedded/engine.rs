//! The LSM below: one keyspace, snapshots, and batches that are durable when they are visible.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use fjall::{KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable};

use crate::embedded::EmbeddedOptions;
use crate::embedded::directory::{Directory, io_error};
use crate::embedded::journal;
use crate::{KeyValue, KvError};

pub(crate) use fjall::Snapshot;

/// Written with every batch: the version it committed. Callers' keys never begin with 0xff.
const VERSION_KEY: &[u8] = b"\xff/version";
const KEYSPACE: &str = "data";

/// What a group of transactions writes: the last word on each key.
pub(crate) type Effect = BTreeMap<Bytes, Option<Bytes>>;

pub(crate) struct Engine {
    db: fjall::Database,
    data: fjall::Keyspace,
    durability: PersistMode,
    // Dropped last: the directory stays locked while the engine runs.
    _directory: Directory,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("durability", &self.durability).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens or creates the store in `dir`; also returns the last committed version.
    pub(crate) fn open(dir: &Path, options: &EmbeddedOptions) -> Result<(Self, u64), KvError> {
        let directory = Directory::open(dir)?;
        let path = directory.engine(|draft| {
            let (db, data) = start(draft, options)?;
            let mut batch = db.batch().durability(Some(PersistMode::SyncAll));
            batch.insert(&data, VERSION_KEY, 0u64.to_be_bytes());
            batch.commit().map_err(|e| engine_error(dir, &e))
        })?;
        journal::mend(&path)?;
        let (db, data) = start(&path, options)?;
        let stored = data.get(VERSION_KEY).map_err(|e| engine_error(dir, &e))?;
        let version = stored
            .and_then(|v| Some(u64::from_be_bytes(v[..].try_into().ok()?)))
            .ok_or_else(|| KvError::Corrupt { what: format!("{} has no commit version", path.display()) })?;
        let durability = if options.unsafe_no_sync { PersistMode::Buffer } else { PersistMode::SyncAll };
        Ok((Self { db, data, durability, _directory: directory }, version))
    }

    /// The store as of the last batch.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.db.snapshot()
    }

    pub(crate) fn get(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        if key.is_empty() {
            return Ok(None);
        }
        match snapshot.get(&self.data, key) {
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
        if begin >= end {
            return Ok(Vec::new());
        }
        let pairs = snapshot.range(&self.data, begin..end);
        if reverse { self.collect(pairs.rev(), limit) } else { self.collect(pairs, limit) }
    }

    fn collect(
        &self,
        pairs: impl Iterator<Item = fjall::Guard>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, KvError> {
        let mut out = Vec::with_capacity(limit.min(1024));
        for guard in pairs.take(limit) {
            let (key, value) = guard.into_inner().map_err(|e| self.error(&e))?;
            out.push((Bytes::from(key), Bytes::from(value)));
        }
        Ok(out)
    }

    /// The keys present in `[begin, end)`.
    pub(crate) fn keys(&self, snapshot: &Snapshot, begin: &[u8], end: &[u8]) -> Result<Vec<Bytes>, KvError> {
        if begin >= end {
            return Ok(Vec::new());
        }
        snapshot
            .range(&self.data, begin..end)
            .map(|guard| Ok(Bytes::from(guard.key().map_err(|e| self.error(&e))?)))
            .collect()
    }

    /// Writes `effect` and the version in one batch, syncs it, then lets snapshots see it.
    pub(crate) fn write(&self, effect: Effect, version: u64) -> Result<(), KvError> {
        let mut batch = OwnedWriteBatch::with_capacity(self.db.clone(), effect.len() + 1)
            .durability(Some(self.durability));
        for (key, value) in effect {
            match value {
                Some(value) => batch.insert(&self.data, key, value),
                None => batch.remove(&self.data, key),
            }
        }
        batch.insert(&self.data, VERSION_KEY, version.to_be_bytes());
        batch.commit().map_err(|e| self.error(&e))
    }

    pub(crate) fn sync(&self) -> Result<(), KvError> {
        self.db.persist(self.durability).map_err(|e| self.error(&e))
    }

    fn error(&self, error: &fjall::Error) -> KvError {
        engine_error(Path::new(KEYSPACE), error)
    }
}

fn start(path: &Path, options: &EmbeddedOptions) -> Result<(fjall::Database, fjall::Keyspace), KvError> {
    let db = fjall::Database::builder(path)
        .cache_size(options.cache_bytes)
        .manual_journal_persist(true)
        // The engine checks a journal's sums over values it compresses anew: another release of the
        // compressor would make old journals look damaged.
        .journal_compression(fjall::CompressionType::None)
        .open()
        .map_err(|e| engine_error(path, &e))?;
    let data = db
        .keyspace(KEYSPACE, || KeyspaceCreateOptions::default().manual_journal_persist(true))
        .map_err(|e| engine_error(path, &e))?;
    Ok((db, data))
}

fn engine_error(place: &Path, error: &fjall::Error) -> KvError {
    match error {
        fjall::Error::Io(e) => io_error("using", place, e),
        fjall::Error::Locked => KvError::InUse { dir: place.to_owned() },
        fjall::Error::Poisoned => KvError::Io { what: "a sync failed earlier".into() },
        fjall::Error::Storage(fjall::LsmError::Io(e)) => io_error("using", place, e),
        other => KvError::Corrupt { what: format!("{}: {other}", place.display()) },
    }
}
