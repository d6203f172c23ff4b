//! A bounded cache of open data files, in shards, with a second chance for those in use.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::absent::Made;
use crate::data_file::DataFile;
use crate::places::leaf_of;
use crate::write_count::{Closed, WriteCount};
use crate::{FileKey, Store};

const SHARDS: usize = 16;
/// Between two looks for data files that were written and are not used any more: such a one is closed by the second.
const IDLE: Duration = Duration::from_secs(2);
/// Data files of one shard that a look passes.
const LOOKED_AT: usize = 1024;
/// Data files of each shard that are closed at once where descriptors are short. So many in all are flushed for that, if none is clean.
const SOME: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Shard {
    files: HashMap<FileKey, Arc<DataFile>, FixedState>,
    /// Keys in the order the hand visits them; removed files leave stale ones behind.
    ring: Vec<FileKey>,
    hand: usize,
    /// Where the next look for idle ones begins.
    idle_from: usize,
    /// Numbers of the newest writes of some that are not open.
    closed: Closed,
    pub(crate) made: Made,
    /// Being removed, by so many: not to be opened or created until that is durable.
    removing: HashMap<FileKey, usize, FixedState>,
    /// Being opened or created.
    opening: HashSet<FileKey, FixedState>,
}

/// A shard, and a signal when one that was being opened is not any more.
#[derive(Debug, Default)]
struct Place {
    shard: Mutex<Shard>,
    opened: Condvar,
}

/// The right to open or create a data file, which one has at a time. The device is asked without the shard's lock: whoever
/// needs another file, or only looks whether one is open, does not wait for it.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    place: &'a Place,
    key: FileKey,
}

/// What to do about one file too many.
#[derive(Debug)]
pub(crate) enum Victim {
    /// A clean idle file left the cache, which may have to wait for the device when it is dropped.
    Gone(Arc<DataFile>),
    /// There was room.
    None,
    /// Flush this one, then ask again.
    Dirty(Arc<DataFile>),
    /// Every file is in use.
    Busy,
}

#[derive(Debug)]
pub(crate) struct OpenFiles {
    shards: Vec<Place>,
    per_shard: usize,
    pub(crate) writes: WriteCount,
}

impl OpenFiles {
    pub(crate) fn new(capacity: usize, boot: u64) -> Self {
        let shards = (0..SHARDS).map(|_| Place::default()).collect();
        Self { shards, per_shard: capacity.div_ceil(SHARDS).max(1), writes: WriteCount::new(boot) }
    }

    fn place(&self, key: FileKey) -> &Place {
        &self.shards[(key.mixed() % SHARDS as u64) as usize]
    }

    /// The shard of a key. Never held while the device is asked for anything.
    pub(crate) fn shard(&self, key: FileKey) -> MutexGuard<'_, Shard> {
        self.place(key).shard.lock()
    }

    /// The same, when nobody opens or creates the data file any more. Blocking.
    pub(crate) fn shard_at_rest(&self, key: FileKey) -> MutexGuard<'_, Shard> {
        let place = self.place(key);
        let mut shard = place.shard.lock();
        place.opened.wait_while(&mut shard, |shard| shard.opening.contains(&key));
        shard
    }

    /// To open or create a data file, when nobody else does. Blocking.
    ///
    /// # Errors
    /// The data file, if it is open.
    pub(crate) fn begin_opening(&self, key: FileKey) -> Result<Opening<'_>, Arc<DataFile>> {
        let mut shard = self.shard_at_rest(key);
        if let Some(file) = shard.get(key) {
            return Err(file);
        }
        shard.opening.insert(key);
        Ok(Opening { place: self.place(key), key })
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
        let open = shard.files.get(&key).map(|file| file.last_write());
        open.or_else(|| shard.closed.get(key)).unwrap_or_else(|| self.writes.forgotten())
    }

    /// Takes out a data file that nobody has used since `referenced` was taken back. Whoever drops it may have to wait for the device.
    pub(crate) fn take_unused(&self, key: FileKey) -> Option<Arc<DataFile>> {
        self.shard(key).take_unused(key, &self.writes)
    }

    /// Takes some out that nobody uses just now, where descriptors are short.
    pub(crate) fn take_some(&self) -> Vec<Arc<DataFile>> {
        self.shards.iter().flat_map(|place| place.shard.lock().take_some(&self.writes)).collect()
    }

    /// Some that nobody uses just now and that are open only because what was written to them is not flushed.
    pub(crate) fn some_dirty(&self) -> Vec<Arc<DataFile>> {
        let dirty = |place: &Place| {
            let shard = place.shard.lock();
            let idle = shard.files.values().filter(|file| Arc::strong_count(file) == 1 && !file.is_clean());
            idle.take(SOME).map(Arc::clone).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(dirty).take(SOME).collect()
    }

    /// Those that lie in a folder.
    pub(crate) fn of_folder(&self, folder: u16) -> Vec<Arc<DataFile>> {
        let of_shard = |place: &Place| {
            let shard = place.shard.lock();
            let there = shard.files.values().filter(|file| leaf_of(file.key) == folder);
            there.map(Arc::clone).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Takes out data files that were written, and not used since the look before this one. Whoever drops them may
    /// have to wait for the device.
    fn take_idle(&self) -> Vec<Arc<DataFile>> {
        self.shards.iter().flat_map(|place| place.shard.lock().take_idle(&self.writes)).collect()
    }
}

impl Store {
    /// Closes data files that were written and are left alone, and gives back buffers that are not needed, for as long as somebody
    /// awaits it. A file system that sets blocks aside for a file that grows (XFS: gigabytes for one of gigabytes) keeps them while
    /// it is open.
    pub async fn close_idle(self: Arc<Self>) {
        loop {
            self.env.clock.sleep(IDLE).await;
            self.pool.give_back();
            let idle = self.files.take_idle();
            if idle.is_empty() {
                continue;
            }
            let closed = self.blocking(move |_| {
                drop(idle);
                Ok(())
            });
            // It fails when nothing is run any more: then they are closed, too.
            let _ = closed.await;
        }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.place.shard.lock().opening.remove(&self.key);
        self.place.opened.notify_all();
    }
}

impl Shard {
    pub(crate) fn get(&self, key: FileKey) -> Option<Arc<DataFile>> {
        let found = self.files.get(&key)?;
        found.referenced.store(true, Ordering::Relaxed);
        Some(Arc::clone(found))
    }

    /// A removal for handles up to a generation begins: from now on the data file can be neither opened nor created. What is open of it
    /// is taken out, to be dropped as by [`Self::evict`]. `None`: what is there was made, or written to, by a later generation.
    pub(crate) fn begin_removal(&mut self, key: FileKey, generation: u16) -> Option<Option<Arc<DataFile>>> {
        let used = self.files.get(&key).map(|file| file.generation());
        if used.max(self.made.by(key)) > Some(generation) {
            return None;
        }
        *self.removing.entry(key).or_default() += 1;
        Some(self.evict(key))
    }

    /// It is durable, or has failed.
    pub(crate) fn end_removal(&mut self, key: FileKey) {
        if let Some(removals) = self.removing.get_mut(&key) {
            *removals -= 1;
            if *removals == 0 {
                self.removing.remove(&key);
            }
        }
    }

    pub(crate) fn is_removing(&self, key: FileKey) -> bool {
        self.removing.contains_key(&key)
    }

    pub(crate) fn insert(&mut self, file: &Arc<DataFile>) {
        if self.files.insert(file.key, Arc::clone(file)).is_none() {
            self.ring.push(file.key);
        }
    }

    /// At least the number of the newest write of a data file that was just opened.
    pub(crate) fn reopened(&mut self, key: FileKey, writes: &WriteCount) -> u64 {
        self.closed.take(key).unwrap_or_else(|| writes.forgotten())
    }

    /// Takes the file at a place of the ring out, if that loses nothing.
    ///
    /// A device tells of a failed write-back to those who had the file open, and once (Linux, errseq_t): to a
    /// descriptor opened later it may say yes. So a file is closed only while a flush that succeeded covers all that
    /// was written: then there is nothing left to be told. One whose flush failed stays dirty until another covers it,
    /// and stays open; one in use has more than the one owner it has here, and who holds the shard keeps it from
    /// getting new ones.
    fn close(&mut self, at: usize, writes: &WriteCount) -> Option<Arc<DataFile>> {
        let key = *self.ring.get(at)?;
        self.files.get(&key).filter(|file| Arc::strong_count(file) == 1 && file.is_clean())?;
        let file = self.files.remove(&key)?;
        self.ring.swap_remove(at);
        self.closed.put(key, file.last_write(), writes);
        Some(file)
    }

    fn take_idle(&mut self, writes: &WriteCount) -> Vec<Arc<DataFile>> {
        let mut idle = Vec::new();
        // Not around the end: what takes the place of one that is closed was not passed by this look.
        for _ in 0..LOOKED_AT {
            let Some(file) = self.ring.get(self.idle_from).and_then(|key| self.files.get(key)) else {
                self.idle_from = 0;
                break;
            };
            let used = !file.was_changed() || file.referenced.swap(false, Ordering::Relaxed);
            let closed = if used { None } else { self.close(self.idle_from, writes) };
            if closed.is_none() {
                self.idle_from += 1;
            }
            idle.extend(closed);
        }
        idle
    }

    fn take_unused(&mut self, key: FileKey, writes: &WriteCount) -> Option<Arc<DataFile>> {
        self.files.get(&key).filter(|file| !file.referenced.load(Ordering::Relaxed))?;
        let at = self.ring.iter().position(|k| *k == key)?;
        self.close(at, writes)
    }

    fn take_some(&mut self, writes: &WriteCount) -> Vec<Arc<DataFile>> {
        let mut some = Vec::new();
        let mut at = 0;
        while at < self.ring.len() && some.len() < SOME {
            match self.close(at, writes) {
                Some(file) => some.push(file),
                None => at += 1,
            }
        }
        some
    }

    /// Takes a file out for good. Whoever drops it may have to wait for the device.
    fn evict(&mut self, key: FileKey) -> Option<Arc<DataFile>> {
        let file = self.files.remove(&key)?;
        file.summed.iter().for_each(|summed| summed.set_gone());
        self.ring.retain(|k| *k != key);
        Some(file)
    }

    fn victim(&mut self, most: usize, writes: &WriteCount) -> Victim {
        if self.files.len() < most {
            return Victim::None;
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
                if let Some(file) = self.close(self.hand, writes) {
                    return Victim::Gone(file);
                }
                let kept = self.ring.get(self.hand).and_then(|key| self.files.get(key));
                dirty = dirty.or_else(|| kept.map(Arc::clone));
            }
            self.hand += 1;
        }
        dirty.map_or(Victim::Busy, Victim::Dirty)
    }
}
