//! A device in memory that keeps two worlds: what programs see, and what a power failure leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::mem_file::{Inode, MemFile};
use super::{Device, DeviceFile, FileStat, Space};

/// Default size of the device.
const CAPACITY: u64 = 1 << 40;

/// The device. Clones share it: keep one to open the store again after [`MemDevice::crash`].
#[derive(Clone, Debug)]
pub struct MemDevice {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    /// Path to inode; directories have none.
    names: BTreeMap<String, Option<u64>>,
    durable_names: BTreeMap<String, Option<u64>>,
    /// Counts crashes: handles opened before one are dead.
    pub(super) life: u64,
    locked: Arc<()>,
    pub(super) capacity: u64,
    /// So many flushes to come go well, and so many after them fail.
    sparing_syncs: u32,
    pub(super) failing_syncs: u32,
    /// Flushes say yes and do nothing: the build that must lose data.
    pub(super) lying: bool,
    pub(super) syncs: u64,
    /// Bytes that a read which may not wait finds at hand at most; 0: it learns nothing.
    pub(super) cached: usize,
    /// Files can become clones of others.
    pub(super) reflinks: bool,
    /// So many files can be open at once.
    descriptors: usize,
    /// Nor is there one for a folder that is to be flushed.
    no_folders: bool,
    /// No file can be longer.
    pub(super) longest: u64,
    read_only: bool,
    dead: bool,
    /// Pages that were not written stay in memory.
    pub(super) keeps_failed: bool,
    /// Inodes, and free ones; 0 where they are not counted.
    counted: (u64, u64),
}

impl State {
    pub(super) fn used(&self) -> u64 {
        self.inodes.values().filter(|inode| !inode.unlinked).map(Inode::allocated).sum()
    }

    fn opened(&self) -> usize {
        self.inodes.values().map(|inode| Arc::strong_count(&inode.opened) - 1).sum()
    }

    fn check_descriptors(&self) -> io::Result<()> {
        if self.opened() < self.descriptors { Ok(()) } else { Err(rustix::io::Errno::MFILE.into()) }
    }

    /// Whether there is a medium.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.dead { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
    }

    /// Whether it can be written.
    pub(super) fn check_writable(&self) -> io::Result<()> {
        self.check()?;
        if self.read_only { Err(rustix::io::Errno::ROFS.into()) } else { Ok(()) }
    }

    /// One flush: counted, and refused when told to.
    pub(super) fn sync_allowed(&mut self) -> io::Result<bool> {
        self.syncs += 1;
        self.check()?;
        if self.sparing_syncs > 0 {
            self.sparing_syncs -= 1;
        } else if self.failing_syncs > 0 {
            self.failing_syncs -= 1;
            return Err(io::Error::other("injected flush failure"));
        }
        Ok(!self.lying)
    }
}

impl Default for MemDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl MemDevice {
    pub fn new() -> Self {
        let state = State {
            inodes: BTreeMap::new(),
            next_inode: 1,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            life: 0,
            locked: Arc::new(()),
            capacity: CAPACITY,
            sparing_syncs: 0,
            failing_syncs: 0,
            lying: false,
            syncs: 0,
            cached: usize::MAX,
            reflinks: true,
            descriptors: usize::MAX,
            no_folders: false,
            longest: u64::MAX,
            read_only: false,
            dead: false,
            keeps_failed: false,
            counted: (0, 0),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// From now on a read that may not wait finds so many bytes at hand at most; none at all for 0.
    pub fn set_cached(&self, bytes: usize) {
        self.state().cached = bytes;
    }

    /// Whether files can become clones of others.
    pub fn set_reflinks(&self, can: bool) {
        self.state().reflinks = can;
    }

    /// Power fails: everything not flushed is gone, open handles are dead, the lock is free.
    pub fn crash(&self) {
        self.crash_keeping(|| false);
    }

    /// Power fails, and `keep` decides for each unflushed page and directory entry whether the
    /// device had written it anyway.
    pub fn crash_keeping(&self, mut keep: impl FnMut() -> bool) {
        let mut state = self.state();
        state.life += 1;
        state.locked = Arc::new(());
        let mut after = state.durable_names.clone();
        let paths: BTreeSet<String> = state.names.keys().chain(after.keys()).cloned().collect();
        for path in paths {
            let (now, durable) = (state.names.get(&path).copied(), after.get(&path).copied());
            if now != durable && keep() {
                match now {
                    Some(entry) => after.insert(path, entry),
                    None => after.remove(&path),
                };
            }
        }
        let reachable: BTreeSet<u64> = after.values().filter_map(|inode| *inode).collect();
        state.inodes.retain(|number, _| reachable.contains(number));
        for inode in state.inodes.values_mut() {
            // Its removal may be what is lost.
            inode.unlinked = false;
            inode.crash(&mut keep);
        }
        state.durable_names = after.clone();
        state.names = after;
    }

    /// Another device with what a power failure would leave of this one now: a snapshot of it.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let copy = Self::new();
        {
            let (from, mut to) = (self.state(), copy.state());
            to.names.clone_from(&from.durable_names);
            to.durable_names.clone_from(&from.durable_names);
            let kept = from.durable_names.values().flatten();
            to.inodes = kept.filter_map(|number| Some((*number, from.inodes.get(number)?.copy()))).collect();
            (to.next_inode, to.capacity, to.counted) = (from.next_inode, from.capacity, from.counted);
        }
        copy
    }

    /// The process that had it open ends, and the system goes on: handles are dead, the lock is free, and what is in memory stays
    /// there, flushed or not.
    pub fn end_process(&self) {
        let mut state = self.state();
        state.life += 1;
        state.locked = Arc::new(());
    }

    /// Whether pages that a flush has failed to write stay in memory, as those do that are on their way to a socket, or those of
    /// a process that ends before it can let go of them.
    pub fn keep_failed(&self, keep: bool) {
        self.state().keeps_failed = keep;
    }

    /// The next `count` flushes fail.
    pub fn fail_syncs(&self, count: u32) {
        self.fail_syncs_after(0, count);
    }

    /// `good` flushes go well, and the next `count` fail.
    pub fn fail_syncs_after(&self, good: u32, count: u32) {
        let mut state = self.state();
        (state.sparing_syncs, state.failing_syncs) = (good, count);
    }

    /// Whether flushes say yes and do nothing.
    pub fn lie(&self, lying: bool) {
        self.state().lying = lying;
    }

    /// The medium changes a byte of a file by itself, whatever it was told.
    pub fn rot(&self, path: &str, offset: u64) {
        let mut state = self.state();
        let inode = state.names.get(path).copied().flatten();
        if let Some(inode) = inode.and_then(|inode| state.inodes.get_mut(&inode)) {
            inode.rot(offset);
        }
    }

    /// How often a file is open.
    pub fn opened(&self, path: &str) -> usize {
        let state = self.state();
        let inode = state.names.get(path).copied().flatten().and_then(|inode| state.inodes.get(&inode));
        inode.map_or(0, |inode| Arc::strong_count(&inode.opened) - 1)
    }

    /// How many files are open.
    pub fn all_opened(&self) -> usize {
        self.state().opened()
    }

    /// So many files can be open at once; opening another fails as with `EMFILE`.
    pub fn set_descriptors(&self, most: usize) {
        self.state().descriptors = most;
    }

    /// Whether no folder can be opened to be flushed, as where others have taken all descriptors.
    pub fn set_no_folders(&self, none: bool) {
        self.state().no_folders = none;
    }

    /// Whether nothing can be written.
    pub fn set_read_only(&self, read_only: bool) {
        self.state().read_only = read_only;
    }

    /// Whether the medium is gone: everything fails that may need it, and of the file system there is only what it knows
    /// by heart.
    pub fn set_dead(&self, dead: bool) {
        self.state().dead = dead;
    }

    /// So many inodes, and so many of them free, as far as the device tells.
    pub fn set_inodes(&self, all: u64, free: u64) {
        self.state().counted = (all, free);
    }

    /// Whether reads of a file fail.
    pub fn set_unreadable(&self, path: &str, unreadable: bool) {
        self.change(path, |inode| inode.unreadable = unreadable);
    }

    /// Whether a file cannot be cut, or made longer but by writing.
    pub fn set_fixed(&self, path: &str, fixed: bool) {
        self.change(path, |inode| inode.fixed = fixed);
    }

    fn change(&self, path: &str, change: impl FnOnce(&mut Inode)) {
        let mut state = self.state();
        let inode = state.names.get(path).copied().flatten();
        if let Some(inode) = inode.and_then(|inode| state.inodes.get_mut(&inode)) {
            change(inode);
        }
    }

    /// No file can be longer; one that would be fails as with `EFBIG`.
    pub fn set_longest(&self, bytes: u64) {
        self.state().longest = bytes;
    }

    /// Bytes the device holds; writes beyond fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// The entries of a directory.
fn within<'a>(
    names: &'a BTreeMap<String, Option<u64>>,
    dir: &'a str,
) -> impl Iterator<Item = (&'a String, &'a Option<u64>)> {
    let below = names.range(dir.to_owned()..).take_while(move |(name, _)| name.starts_with(dir));
    below.filter(move |(name, _)| parent(name) == dir && !name.is_empty())
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl State {
    fn inode_of(&self, path: &str) -> io::Result<u64> {
        self.names.get(path).copied().flatten().ok_or_else(not_found)
    }

    fn check_parent(&self, path: &str) -> io::Result<()> {
        let dir = parent(path);
        if dir.is_empty() || self.names.get(dir) == Some(&None) { Ok(()) } else { Err(not_found()) }
    }
}

impl Device for MemDevice {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn lock(&self) -> io::Result<Box<dyn std::fmt::Debug + Send + Sync>> {
        let state = self.state();
        if Arc::strong_count(&state.locked) > 1 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(Arc::clone(&state.locked)))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DeviceFile>> {
        let state = self.state();
        state.check()?;
        let inode = state.inode_of(path)?;
        state.check_descriptors()?;
        let opened = state.inodes.get(&inode).map(|inode| Arc::clone(&inode.opened)).ok_or_else(not_found)?;
        Ok(Arc::new(MemFile { state: Arc::clone(&self.state), inode, life: state.life, _opened: opened }))
    }

    fn read_uncached(&self, path: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.state();
        state.check()?;
        match state.inodes.get(&state.inode_of(path)?) {
            Some(inode) if inode.unreadable => Err(rustix::io::Errno::IO.into()),
            // What is not written yet is written first.
            Some(inode) if state.read_only && inode.is_dirty(offset, buffer.len()) => {
                Err(rustix::io::Errno::ROFS.into())
            }
            Some(inode) => Ok(inode.read_medium(buffer, offset)),
            None => Err(not_found()),
        }
    }

    fn overwrite(&self, path: &str, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.check_writable()?;
        let inode = state.inode_of(path)?;
        state.inodes.get_mut(&inode).ok_or_else(not_found)?.overwrite(data);
        Ok(())
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn DeviceFile>> {
        let mut state = self.state();
        state.check_writable()?;
        state.check_parent(path)?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.check_descriptors()?;
        let (inode, life) = (state.next_inode, state.life);
        state.next_inode += 1;
        state.names.insert(path.to_owned(), Some(inode));
        let made = Inode::default();
        let opened = Arc::clone(&made.opened);
        state.inodes.insert(inode, made);
        Ok(Arc::new(MemFile { state: Arc::clone(&self.state), inode, life, _opened: opened }))
    }

    fn stat(&self, path: &str) -> io::Result<FileStat> {
        let state = self.state();
        let inode = state.inode_of(path)?;
        state.inodes.get(&inode).map(Inode::stat).ok_or_else(not_found)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check_writable()?;
        let inode = state.inode_of(path)?;
        state.names.remove(path);
        state.inodes.get_mut(&inode).into_iter().for_each(|inode| inode.unlinked = true);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check_writable()?;
        let inode = state.inode_of(from)?;
        state.check_parent(to)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), Some(inode));
        Ok(())
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check_writable()?;
        state.check_parent(path)?;
        state.names.entry(path.to_owned()).or_insert(None);
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        if !path.is_empty() && state.names.get(path) != Some(&None) {
            return Err(not_found());
        }
        let inside = within(&state.names, path);
        Ok(inside.filter_map(|(name, _)| name.rsplit('/').next().map(str::to_owned)).collect())
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.no_folders {
            return Err(rustix::io::Errno::MFILE.into());
        }
        if !state.sync_allowed()? {
            return Ok(());
        }
        let state = &mut *state;
        let gone: Vec<String> = within(&state.durable_names, path).map(|(name, _)| name.clone()).collect();
        for name in gone {
            state.durable_names.remove(&name);
        }
        let inside = within(&state.names, path).map(|(name, inode)| (name.clone(), *inode));
        state.durable_names.extend(inside);
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        let state = self.state();
        let free = state.capacity.saturating_sub(state.used());
        let (inodes, inodes_free) = state.counted;
        let read_only = state.read_only;
        Ok(Space { total: state.capacity, free, inodes, inodes_free, read_only, ..Space::default() })
    }

    fn syncs(&self) -> u64 {
        self.state().syncs
    }
}
