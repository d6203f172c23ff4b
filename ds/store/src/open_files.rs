//! A bounded cache of open data files, in shards, with a second chance for those in use.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foldhash::fast::FixedState;
use parking_lot::{Mutex, MutexGuard};

use crate::FileKey;
use crate::data_file::DataFile;
use crate::write_count::WriteCount;

const SHARDS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Shard {
    files: HashMap<FileKey, Arc<DataFile>, FixedState>,
    /// Keys in the order the hand visits them; removed files leave stale ones behind.
    ring: Vec<FileKey>,
    hand: usize,
    /// Being removed: not to be opened or created until that is durable.
    pub(crate) removing: HashSet<FileKey, FixedState>,
}

/// What to do about one file too many.
#[derive(Debug)]
pub(crate) enum Victim {
    /// A clean idle file left the cache, or there was room.
    Gone,
    /// Flush this one, then ask again.
    Dirty(Arc<DataFile>),
    /// Every file is in use.
    Busy,
}

#[derive(Debug)]
pub(crate) struct OpenFiles {
    shards: Vec<Mutex<Shard>>,
    per_shard: usize,
    pub(crate) writes: WriteCount,
}

impl OpenFiles {
    pub(crate) fn new(capacity: usize, boot: u64) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, per_shard: capacity.div_ceil(SHARDS).max(1), writes: WriteCount::new(boot) }
    }

    /// The shard of a key; held while a file is opened, created or removed.
    pub(crate) fn shard(&self, key: FileKey) -> MutexGuard<'_, Shard> {
        self.shards[usize::from(key.leaf()) % SHARDS].lock()
    }

    pub(crate) fn get(&self, key: FileKey) -> Option<Arc<DataFile>> {
        self.shard(key).get(key)
    }

    /// Makes room in the shard of `key`.
    pub(crate) fn victim(&self, key: FileKey) -> Victim {
        self.shard(key).victim(self.per_shard, &self.writes)
    }

    /// The number of a data file's newest write. Looking is no use of the file.
    pub(crate) fn last_write(&self, key: FileKey) -> u64 {
        let shard = self.shard(key);
        shard.files.get(&key).map_or_else(|| self.writes.forgotten(), |file| file.last_write())
    }
}

impl Shard {
    pub(crate) fn get(&self, key: FileKey) -> Option<Arc<DataFile>> {
        let found = self.files.get(&key)?;
        found.referenced.store(true, Ordering::Relaxed);
        Some(Arc::clone(found))
    }

    pub(crate) fn insert(&mut self, file: &Arc<DataFile>) {
        if self.files.insert(file.key, Arc::clone(file)).is_none() {
            self.ring.push(file.key);
        }
    }

    pub(crate) fn evict(&mut self, key: FileKey) {
        if let Some(file) = self.files.remove(&key) {
            file.summed.iter().for_each(|summed| summed.set_gone());
            self.ring.retain(|k| *k != key);
        }
    }

    fn victim(&mut self, most: usize, writes: &WriteCount) -> Victim {
        if self.files.len() < most {
            return Victim::Gone;
        }
        let mut dirty = None;
        // Two rounds: the first may only take second chances away.
        for _ in 0..self.ring.len() * 2 {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let Some(file) = self.ring.get(self.hand).and_then(|key| self.files.get(key)) else { break };
            let idle = Arc::strong_count(file) == 1;
            if idle && !file.referenced.swap(false, Ordering::Relaxed) {
                if file.is_clean() {
                    let key = file.key;
                    writes.forget(file.last_write());
                    self.files.remove(&key);
                    self.ring.swap_remove(self.hand);
                    return Victim::Gone;
                }
                // Closing an unflushed file could lose the report of a failed write-back.
                dirty.get_or_insert_with(|| Arc::clone(file));
            }
            self.hand += 1;
        }
        dirty.map_or(Victim::Busy, Victim::Dirty)
    }
}
