//! The store: reads, writes, commits, removals, fences.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_env::Env;
use tokio::sync::{Notify, oneshot};

use crate::access_ops::Settled;
use crate::callers::Callers;
use crate::data_file::DataFile;
use crate::device::{Cached, Device, DeviceFile, FileStat};
use crate::emptied::Emptied;
use crate::fence::{Refusal, Row};
use crate::flush::Flushes;
use crate::folders::Folders;
use crate::format::{SUPERBLOCK, Superblock};
use crate::gate::Gate;
use crate::journal::Journal;
use crate::lane::{Lane, Turn};
use crate::log::replace;
use crate::open_files::{OpenFiles, Opening, Shard, Victim};
use crate::pace::Pace;
use crate::places::{LEAVES, leaf_of, leaf_path, path_of};
use crate::pool::Pool;
use crate::room::Room;
use crate::sums::{ScrubState, SummedFile, Sums};
use crate::tide::Tide;
use crate::under_way::UnderWay;
use crate::verifier::Verifiers;
use crate::vitals::Health;
use crate::{Epoch, FileKey, StoreError, Uuid, Verifier};

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub data: Bytes,
    /// The data file's physical end was met: `data` is shorter than asked for.
    pub end: bool,
}

/// A look at the numbers of writes, which ascend across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Of the data file's newest write, or greater: exact while the file stays open.
    pub last: u64,
    /// Of the store's newest write: whatever begins from now on has a greater one.
    pub newest: u64,
}

/// How full a store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    pub total: u64,
    /// Bytes clients may still fill: free ones less the reserve.
    pub free: u64,
    pub used: u64,
    /// 0 where the device does not count them.
    pub inodes: u64,
    pub inodes_free: u64,
    /// See [`Space::device`](crate::device::Space).
    pub device: [u8; 16],
    /// See [`Space::read_only`](crate::device::Space).
    pub read_only: bool,
    /// Files that may come into being before the device is asked again.
    pub more_files: u64,
}

/// One data file of an inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: FileKey,
    pub stat: FileStat,
}

/// A store of data files. Share it in an `Arc`; every method may be called concurrently.
#[derive(Debug)]
pub struct Store {
    // Constant.
    pub(crate) env: Env,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) boot: u64,
    pub(crate) room: Room,
    pub(crate) inline_read: usize,
    pub(crate) inline_write: usize,
    pub(crate) pool: Pool,
    pub(crate) read_lane: Arc<Lane>,
    /// Of small reads that are on their way from the device.
    pub(crate) wait_lane: Arc<Lane>,
    pub(crate) write_lane: Arc<Lane>,
    /// What is in that lane.
    pub(crate) under_way: Arc<UnderWay>,
    pub(crate) _lock: Box<dyn std::fmt::Debug + Send + Sync>,
    // Each guards itself.
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) verifiers: Arc<Verifiers>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) settled: Settled,
    pub(crate) emptied: Emptied,
    pub(crate) files: Arc<OpenFiles>,
    pub(crate) flushes: Arc<Flushes>,
    pub(crate) folders: Arc<Folders>,
    /// For writes of clients.
    pub(crate) gate: Gate,
    /// For steps of orders: a fence does not wait for them.
    pub(crate) orders: Gate,
    /// The capability epoch in which this process began to serve.
    pub(crate) since: OnceLock<Epoch>,
    pub(crate) health: Arc<Health>,
    pub(crate) tide: Tide,
    /// `None`: no checksums are kept.
    pub(crate) sums: Option<Arc<Sums>>,
    pub(crate) scrub: ScrubState,
    pub(crate) callers: Callers,
    pub(crate) pace: Pace,
    /// Whether what is said to be in memory is: sends of it do not make a thread sleep.
    pub(crate) send_pace: Pace,
    pub(crate) direct_bytes: AtomicU64,
    pub(crate) piped_bytes: AtomicU64,
    /// There was a small call since the last large write to memory.
    pub(crate) small_calls: AtomicBool,
}

/// Identity.
impl Store {
    pub fn uuid(&self) -> Uuid {
        self.superblock.lock().uuid
    }

    /// Nil until [`Self::adopt`].
    pub fn cluster(&self) -> Uuid {
        self.superblock.lock().cluster
    }

    /// Incarnations of this store so far, this one included.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// Where the store is, for messages.
    pub fn place(&self) -> String {
        self.device.name()
    }

    /// Flushes of the device since it was opened.
    pub fn flushes(&self) -> u64 {
        self.device.syncs()
    }

    /// Flushes that failed since the store was opened.
    pub fn flush_failures(&self) -> u64 {
        self.flushes.failures()
    }

    /// Joins a cluster, durably; joining the same one again is no error.
    pub async fn adopt(self: &Arc<Self>, cluster: Uuid) -> Result<(), StoreError> {
        let now = *self.superblock.lock();
        if now.cluster == cluster {
            return Ok(());
        }
        if !now.cluster.is_nil() {
            return Err(StoreError::ForeignCluster(self.place(), now.uuid, now.cluster, cluster));
        }
        self.blocking(move |store| {
            let joined = Superblock { cluster, ..now };
            replace(&*store.device, SUPERBLOCK, joined.encode().as_bytes())?;
            *store.superblock.lock() = joined;
            Ok(())
        })
        .await
    }

    /// Space on the device. Blocking for a moment at most.
    pub async fn capacity(self: &Arc<Self>) -> Result<Capacity, StoreError> {
        self.blocking(Self::capacity_now).await
    }

    pub(crate) fn capacity_now(&self) -> Result<Capacity, StoreError> {
        let space = self.device.space()?;
        Ok(Capacity {
            total: space.total,
            free: self.room.left(&space),
            used: space.total.saturating_sub(space.free),
            inodes: space.inodes,
            inodes_free: space.inodes_free,
            device: space.device,
            read_only: space.read_only,
            more_files: self.room.files_more(&space),
        })
    }
}

/// Data.
impl Store {
    /// Reads up to `count` bytes. Fewer are returned only at the data file's end.
    ///
    /// # Errors
    /// `Missing` when the data file was never written here.
    pub async fn read_at(
        self: &Arc<Self>,
        key: FileKey,
        offset: u64,
        count: usize,
    ) -> Result<Read, StoreError> {
        if count <= self.inline_read
            && let Some(file) = self.files.get(key)
            && let Some(read) = self.health.note(self.read_cached(&*file.file, offset, count))?
        {
            return Ok(read);
        }
        self.on(&self.read_lane, Turn::Any, move |store| {
            let file = store.open_file(key)?;
            let mut buffer = store.pool.take(count);
            let n = store.read_noting(&file, buffer.as_mut(), offset)?;
            Ok(Read { data: buffer.freeze(n), end: n < count })
        })
        .await
    }

    /// For a client. What the device does not read is not looked for in memory for a while, where a part of it may seem to be.
    pub(crate) fn read_noting(
        &self,
        file: &DataFile,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize, StoreError> {
        let read = file.file.read_at(buffer, offset);
        Ok(read.inspect_err(|_| file.set_unread(self.env.clock.now()))?)
    }

    /// The same from the medium, whatever is in memory: what a flush failed to write may be there still, as if it had been
    /// written. For many bytes: each call opens the file.
    ///
    /// # Errors
    /// As there.
    pub async fn read_medium(
        self: &Arc<Self>,
        key: FileKey,
        offset: u64,
        count: usize,
    ) -> Result<Read, StoreError> {
        self.on(&self.read_lane, Turn::Any, move |store| {
            store.open_file(key)?.file.visible(offset, count as u64)?;
            let mut buffer = store.pool.take(count);
            let path = path_of(key);
            let n = match store.afford(|| Ok(store.device.read_uncached(&path, buffer.as_mut(), offset)?)) {
                // What is not written yet is written first, which a file system that takes nothing any more refuses. It is there to be
                // copied from, with all that can be read.
                Err(StoreError::Io(_) | StoreError::ReadOnly)
                    if store.device.space().is_ok_and(|is| is.read_only) =>
                {
                    store.open_file(key)?.file.read_at(buffer.as_mut(), offset)?
                }
                n => n?,
            };
            Ok(Read { data: buffer.freeze(n), end: n < count })
        })
        .await
    }

    /// Fills `buffer` from memory. False, and `buffer` holds anything, when that cannot be done at once and in
    /// full: [`Self::read_at`] knows why.
    pub fn read_now(&self, key: FileKey, offset: u64, buffer: &mut [u8]) -> bool {
        let Some(file) = self.files.get(key) else { return false };
        self.small_call();
        matches!(file.file.read_cached(buffer, offset), Ok(Cached::Read(n)) if n == buffer.len())
    }

    /// `None` when it would have to wait for the device.
    pub(crate) fn read_cached(
        &self,
        file: &dyn DeviceFile,
        offset: u64,
        count: usize,
    ) -> Result<Option<Read>, StoreError> {
        let mut buffer = self.pool.take(count);
        let mut done = 0;
        while done < count {
            match file.read_cached(&mut buffer.as_mut()[done..], offset.saturating_add(done as u64))? {
                Cached::Read(0) => break,
                Cached::Read(n) => done += n,
                Cached::Unknown => return Ok(None),
            }
        }
        Ok(Some(Read { data: buffer.freeze(done), end: done < count }))
    }

    /// Makes everything written to the data file so far durable and returns its write verifier.
    /// Concurrent commits of one file share flushes.
    ///
    /// # Errors
    /// `Missing` when the data file is not there.
    pub async fn commit(self: &Arc<Self>, key: FileKey) -> Result<Verifier, StoreError> {
        let file = match self.files.get(key) {
            Some(file) => file,
            None => self.blocking(move |store| store.open_file(key)).await?,
        };
        self.flush(&file).await?;
        // Taken after the flush: a failure that this flush did not see changed it.
        Ok(self.verifiers.of(key))
    }

    /// The same for one who wrote while the verifier was `since`, and does not look at verifiers: durable is all that
    /// it wrote.
    ///
    /// # Errors
    /// As [`Self::commit`]; `Io` when a flush failed meanwhile, perhaps somebody else's: the device tells that once.
    pub async fn commit_since(self: &Arc<Self>, key: FileKey, since: Verifier) -> Result<(), StoreError> {
        self.commit(key).await?;
        self.nothing_lost(key, since)
    }

    /// After a flush: whether all is durable that was written while the verifier was `since`.
    ///
    /// # Errors
    /// `Io` when a flush failed meanwhile.
    pub(crate) fn nothing_lost(&self, key: FileKey, since: Verifier) -> Result<(), StoreError> {
        if self.verifiers.of(key) == since {
            Ok(())
        } else {
            Err(StoreError::Io("a flush failed before this one: what was written may be lost".to_owned()))
        }
    }

    /// The verifier a write to this data file would return now.
    pub fn verifier(&self, key: FileKey) -> Verifier {
        self.verifiers.of(key)
    }

    /// Size and allocation; `None` when the data file is not there.
    pub async fn stat(self: &Arc<Self>, key: FileKey) -> Result<Option<FileStat>, StoreError> {
        if let Some(file) = self.files.get(key) {
            // In memory while it is open: handing it to another thread would cost several times what it takes.
            return Ok(Some(file.file.stat()?));
        }
        self.blocking(move |store| match store.device.stat(&path_of(key)) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        })
        .await
    }

    /// Whether a data file was written to since an earlier look.
    pub fn writes(&self, key: FileKey) -> Writes {
        let last = self.files.last_write(key);
        Writes { last, newest: self.files.writes.newest() }
    }

    /// Data files in a fixed order, those behind `after`, at most `limit`. Files that come or go
    /// meanwhile may or may not be there; all others are, once.
    pub async fn inventory(
        self: &Arc<Self>,
        after: Option<FileKey>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.blocking(move |store| {
            let mut found = Vec::new();
            let place = after.map(|key| (leaf_of(key), key));
            for leaf in place.map_or(0, |(leaf, _)| leaf)..LEAVES {
                let path = leaf_path(leaf);
                let names = match store.device.list(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    other => other?,
                };
                let keys = names.iter().filter_map(|name| FileKey::parse(name));
                for key in keys.filter(|key| place.is_none_or(|place| place < (leaf, *key))) {
                    if found.len() >= limit {
                        return Ok(found);
                    }
                    if let Ok(stat) = store.device.stat(&path_of(key)) {
                        found.push(Entry { key, stat });
                    }
                }
            }
            Ok(found)
        })
        .await
    }
}

/// First materialisations.
impl Store {
    /// Data files journalled as existing, with the generation that brought them, which
    /// [`Self::reported`] has not ticked off.
    pub fn unreported(&self, limit: usize) -> Vec<(FileKey, u16)> {
        self.journal.peek(|table| table.unreported(limit))
    }

    /// The metadata server knows these. Forgotten in a crash, they are reported again.
    pub fn reported(&self, keys: &[FileKey]) {
        let rows: Vec<Row> = keys.iter().map(|&key| Row::Reported { key }).collect();
        self.journal.append_lazily(&rows);
    }

    /// The greatest id of a data file that ever came into being here, 0 if that is not known. What nobody was told to be
    /// durable counts until this process ends.
    pub fn newest_file(&self) -> u64 {
        self.journal.made()
    }

    /// Notified when there is something new in [`Self::unreported`].
    pub fn materialised(&self) -> Arc<Notify> {
        Arc::clone(&self.journal.materialised)
    }
}

/// Inside.
impl Store {
    /// Runs `work` where it may block. It runs to its end even if the caller goes away.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, wait) = oneshot::channel();
        let store = Arc::clone(self);
        drop(self.env.spawn.blocking(Box::new(move || {
            let result = store.health.note(work(&store));
            // First: whoever has the answer and drops the store may open it again.
            drop(store);
            // A caller that went away needs no answer.
            let _ = done.send(result);
        })));
        wait.await.unwrap_or(Err(StoreError::Closing))
    }

    /// The same among the few threads of `lane`; alone with a file, if it says so.
    pub(crate) async fn on<T: Send + 'static>(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        turn: Turn,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, wait) = oneshot::channel();
        let store = Arc::clone(self);
        lane.run(&self.env, turn, move || {
            let result = store.health.note(work(&store));
            drop(store);
            // A caller that went away needs no answer.
            let _ = done.send(result);
        });
        wait.await.unwrap_or(Err(StoreError::Closing))
    }

    /// Opens something, if need be in the place of data files that nobody uses just now: a process has only so many
    /// descriptors, and connections take some.
    pub(crate) fn afford<T>(&self, mut open: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        match open() {
            Err(StoreError::NoDescriptors) => {
                let mut idle = self.files.take_some();
                if idle.is_empty() {
                    self.files.some_dirty().iter().for_each(|file| self.flushes.flush_if_nobody_does(file));
                    idle = self.files.take_some();
                }
                // They are closed here.
                drop(idle);
                open()
            }
            other => other,
        }
    }

    /// An existing data file. Blocking.
    pub(crate) fn open_file(&self, key: FileKey) -> Result<Arc<DataFile>, StoreError> {
        if let Some(file) = self.files.get(key) {
            return Ok(file);
        }
        self.afford(|| self.open_anew(key))
    }

    fn open_anew(&self, key: FileKey) -> Result<Arc<DataFile>, StoreError> {
        self.make_room(key);
        let opening = match self.files.begin_opening(key) {
            Ok(opening) => opening,
            Err(file) => return Ok(file),
        };
        self.may_open(&self.files.shard(key), key, None)?;
        let device_file = self.device.open(&path_of(key))?;
        let file = self.data_file(key, 0, device_file, false)?;
        self.opened(opening, file, None)
    }

    /// Whether a data file may be opened, or created by a handle of a generation. A removal says so to the shard, then writes
    /// its tombstone, then waits until nobody opens or creates the file, and unlinks it: whoever comes too late sees that
    /// here, and a file that was made before is there to be unlinked.
    fn may_open(&self, shard: &Shard, key: FileKey, maker: Option<u16>) -> Result<(), StoreError> {
        let dead = |maker| self.journal.peek(|table| table.tombstone(key)).is_some_and(|dead| maker <= dead);
        if shard.is_removing(key) || maker.is_some_and(dead) {
            return Err(StoreError::Refused(Refusal::Removed));
        }
        Ok(())
    }

    /// The device has opened or, with the generation of its maker, created a data file. If that may not be any more the file
    /// is closed before a removal, which waits for it, goes on.
    fn opened(
        &self,
        _opening: Opening<'_>,
        file: DataFile,
        maker: Option<u16>,
    ) -> Result<Arc<DataFile>, StoreError> {
        let file = Arc::new(file);
        let mut shard = self.files.shard(file.key);
        self.may_open(&shard, file.key, maker)?;
        file.goes_on_from(shard.reopened(file.key, &self.files.writes));
        shard.insert(&file);
        if let Some(maker) = maker {
            shard.made.add(file.key, maker);
            self.journal.makes(file.key.file);
        }
        Ok(file)
    }

    /// A data file that exists afterwards. Blocking.
    pub(crate) fn open_or_create(&self, key: FileKey, generation: u16) -> Result<Arc<DataFile>, StoreError> {
        let file = match self.files.get(key) {
            Some(file) => file,
            None => self.find_or_create(key, generation)?,
        };
        file.used_by(generation);
        Ok(file)
    }

    fn find_or_create(&self, key: FileKey, generation: u16) -> Result<Arc<DataFile>, StoreError> {
        self.make_room(key);
        // Most often it is not there: the other way round it would be looked for first.
        if let Err(error) = self.room.admit_file(&*self.device) {
            return match self.open_file(key) {
                Err(StoreError::Missing) => Err(error),
                other => other,
            };
        }
        match self.afford(|| self.create_anew(key, generation))? {
            Some(file) => Ok(file),
            None => self.open_file(key),
        }
    }

    /// `None`: it is there.
    fn create_anew(&self, key: FileKey, generation: u16) -> Result<Option<Arc<DataFile>>, StoreError> {
        let opening = match self.files.begin_opening(key) {
            Ok(opening) => opening,
            Err(file) => return Ok(Some(file)),
        };
        self.may_open(&self.files.shard(key), key, Some(generation))?;
        self.folders.make(&*self.device, leaf_of(key))?;
        if self.sums.is_some() {
            // Of a data file that was lost: they say nothing of this one, if it is not there.
            self.remove_left_side(key)?;
        }
        let device_file = match self.device.create(&path_of(key)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            other => other?,
        };
        self.sums.iter().for_each(|sums| sums.comes_anew(key));
        let file = self.data_file(key, generation, device_file, true)?;
        self.opened(opening, file, Some(generation)).map(Some)
    }

    fn data_file(
        &self,
        key: FileKey,
        generation: u16,
        file: Arc<dyn DeviceFile>,
        fresh: bool,
    ) -> Result<DataFile, StoreError> {
        let Some(sums) = &self.sums else { return DataFile::new(key, generation, file, fresh) };
        let summed = SummedFile::new(key, file, sums, fresh);
        let file: Arc<dyn DeviceFile> = Arc::clone(&summed) as Arc<dyn DeviceFile>;
        let mut data_file = DataFile::new(key, generation, file, fresh)?;
        data_file.summed = Some(summed);
        Ok(data_file)
    }

    fn make_room(&self, key: FileKey) {
        // Bounded: each round flushes a file, and where all are in use the cache grows a little.
        for _ in 0..4 {
            match self.files.victim(key) {
                Victim::Gone(file) => return drop(file),
                Victim::None | Victim::Busy => return,
                Victim::Dirty(file) => self.flushes.flush_if_nobody_does(&file),
            }
        }
    }
}
