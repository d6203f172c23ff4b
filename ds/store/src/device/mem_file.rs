//! One file of the device in memory: pages, and which of them a power failure would lose.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::mem::State;
use super::{Cached, DeviceFile, FileStat};

const PAGE: u64 = 4096;
const PAGE_BYTES: usize = PAGE as usize;
type Page = Arc<[u8; PAGE_BYTES]>;

#[derive(Clone, Debug, Default)]
struct Content {
    size: u64,
    pages: BTreeMap<u64, Page>,
    recorded: bool,
}

#[derive(Debug, Default)]
pub(super) struct Inode {
    now: Content,
    durable: Content,
    /// Pages of `now` that differ from `durable`.
    dirty: BTreeSet<u64>,
    /// It has no name any more, and uses no space.
    pub(super) unlinked: bool,
    pub(super) unreadable: bool,
    /// It ends where it does.
    pub(super) fixed: bool,
    /// As many as it is open, and one.
    pub(super) opened: Arc<()>,
}

impl Inode {
    pub(super) fn allocated(&self) -> u64 {
        self.now.pages.len() as u64 * PAGE
    }

    /// What a power failure leaves of it now, in a file that nobody has open.
    pub(super) fn copy(&self) -> Self {
        let durable = self.durable.clone();
        Self {
            now: durable.clone(),
            durable,
            unreadable: self.unreadable,
            fixed: self.fixed,
            ..Self::default()
        }
    }

    /// Pages of a range that take no space yet.
    fn absent(&self, pages: Range<u64>) -> u64 {
        let there = self.now.pages.range(pages.clone()).count();
        (pages.end - pages.start).saturating_sub(u64::try_from(there).unwrap_or(u64::MAX))
    }

    pub(super) fn stat(&self) -> FileStat {
        FileStat { size: self.now.size, allocated: self.allocated() }
    }

    pub(super) fn crash(&mut self, keep: &mut impl FnMut() -> bool) {
        for page in std::mem::take(&mut self.dirty) {
            if keep() {
                match self.now.pages.get(&page) {
                    Some(bytes) => self.durable.pages.insert(page, Arc::clone(bytes)),
                    None => self.durable.pages.remove(&page),
                };
                self.durable.size = self.durable.size.max(self.now.size.min((page + 1) * PAGE));
            }
        }
        self.now = self.durable.clone();
    }

    pub(super) fn rot(&mut self, offset: u64) {
        for content in [&mut self.now, &mut self.durable] {
            if let Some(page) = content.pages.get_mut(&(offset / PAGE)) {
                Arc::make_mut(page)[(offset % PAGE) as usize] ^= 1;
            }
        }
    }

    /// As Linux does when a write-back fails: pages are not written again by themselves, and stay as they are to programs only
    /// where they are kept in memory. What was cut off or made a hole is so in the file system's own journal.
    fn forget(&mut self, keeps: bool) {
        let (failed, gone) = self.dirty.iter().partition(|page| self.now.pages.contains_key(page));
        let failed: BTreeSet<u64> = failed;
        self.dirty = gone;
        for page in failed.into_iter().filter(|_| !keeps) {
            match self.durable.pages.get(&page) {
                Some(bytes) => self.now.pages.insert(page, Arc::clone(bytes)),
                None => self.now.pages.remove(&page),
            };
            let within = (self.now.size % PAGE) as usize;
            if page == self.now.size / PAGE && self.now.pages.contains_key(&page) {
                // Whoever makes it longer finds zeros.
                self.page_mut(page)[within..].fill(0);
            }
        }
    }

    fn sync(&mut self) {
        for page in std::mem::take(&mut self.dirty) {
            match self.now.pages.get(&page) {
                Some(bytes) => self.durable.pages.insert(page, Arc::clone(bytes)),
                None => self.durable.pages.remove(&page),
            };
        }
        self.durable.size = self.now.size;
        self.durable.recorded = self.now.recorded;
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        self.read_of(buffer, offset, |page| self.now.pages.get(&page))
    }

    /// Whether some of a range is only in memory.
    pub(super) fn is_dirty(&self, offset: u64, length: usize) -> bool {
        let last = offset.saturating_add(length as u64).saturating_sub(1) / PAGE;
        self.dirty.range(offset / PAGE..=last).next().is_some()
    }

    /// Past the memory, to which what is not written yet is written first.
    pub(super) fn read_medium(&self, buffer: &mut [u8], offset: u64) -> usize {
        self.read_of(buffer, offset, |page| {
            let content = if self.dirty.contains(&page) { &self.now } else { &self.durable };
            content.pages.get(&page)
        })
    }

    fn read_of<'a>(
        &'a self,
        buffer: &mut [u8],
        offset: u64,
        page_of: impl Fn(u64) -> Option<&'a Page>,
    ) -> usize {
        let there = self.now.size.saturating_sub(offset);
        let count = usize::try_from(there).unwrap_or(usize::MAX).min(buffer.len());
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE, (at % PAGE) as usize);
            let n = (PAGE_BYTES - within).min(count - done);
            match page_of(page) {
                Some(bytes) => buffer[done..done + n].copy_from_slice(&bytes[within..within + n]),
                None => buffer[done..done + n].fill(0),
            }
            done += n;
        }
        count
    }

    fn page_mut(&mut self, page: u64) -> &mut [u8; PAGE_BYTES] {
        self.dirty.insert(page);
        Arc::make_mut(self.now.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES])))
    }

    fn write(&mut self, data: &[u8], offset: u64) {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let n = (PAGE_BYTES - within).min(data.len() - done);
            self.page_mut(at / PAGE)[within..within + n].copy_from_slice(&data[done..done + n]);
            done += n;
        }
        self.now.size = self.now.size.max(offset + data.len() as u64);
    }

    /// Writes what it begins with, on the medium.
    pub(super) fn overwrite(&mut self, data: &[u8]) {
        self.write(data, 0);
        for page in 0..(data.len() as u64).div_ceil(PAGE) {
            self.dirty.remove(&page);
            if let Some(bytes) = self.now.pages.get(&page) {
                self.durable.pages.insert(page, Arc::clone(bytes));
            }
        }
        self.durable.size = self.durable.size.max(data.len() as u64);
    }

    /// Zeroes `[offset, end)`, dropping whole pages.
    fn punch(&mut self, offset: u64, end: u64) {
        let touched: Vec<u64> =
            self.now.pages.range(offset / PAGE..end.div_ceil(PAGE)).map(|(page, _)| *page).collect();
        for page in touched {
            let (from, to) = (offset.max(page * PAGE), end.min((page + 1) * PAGE));
            if to - from == PAGE {
                self.now.pages.remove(&page);
                self.dirty.insert(page);
            } else {
                let base = page * PAGE;
                self.page_mut(page)[(from - base) as usize..(to - base) as usize].fill(0);
            }
        }
    }

    fn set_len(&mut self, size: u64) {
        if size < self.now.size {
            self.punch(size, self.now.size.next_multiple_of(PAGE));
        }
        self.now.size = size;
    }

    fn seek(&self, offset: u64, data: bool) -> Option<u64> {
        if offset >= self.now.size {
            return None;
        }
        let mut at = offset;
        while at < self.now.size {
            if self.now.pages.contains_key(&(at / PAGE)) == data {
                return Some(at);
            }
            at = if data {
                // Leap over the hole: it may be large.
                self.now.pages.range(at / PAGE..).next()?.0 * PAGE
            } else {
                (at / PAGE + 1) * PAGE
            };
        }
        if data { None } else { Some(self.now.size) }
    }
}

#[derive(Debug)]
pub(super) struct MemFile {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) inode: u64,
    pub(super) life: u64,
    pub(super) _opened: Arc<()>,
}

impl MemFile {
    fn with<T>(&self, act: impl FnOnce(&mut State, u64) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock();
        if state.life != self.life {
            return Err(io::Error::other("the device went away"));
        }
        state.check()?;
        act(&mut state, self.inode)
    }

    fn inode<T>(&self, act: impl FnOnce(&mut Inode) -> T) -> io::Result<T> {
        self.with(|state, number| {
            state.inodes.get_mut(&number).map(act).ok_or_else(|| io::Error::other("no such inode"))
        })
    }

    fn sync(&self) -> io::Result<()> {
        match self.with(|state, _| state.sync_allowed()) {
            Ok(true) => self.inode(Inode::sync),
            Ok(false) => Ok(()),
            Err(error) => {
                let keeps = self.with(|state, _| Ok(state.keeps_failed))?;
                self.inode(|inode| inode.forget(keeps))?;
                Err(error)
            }
        }
    }
}

impl DeviceFile for MemFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inode(|inode| match inode.unreadable {
            false => Ok(inode.read(buffer, offset)),
            true => Err(rustix::io::Errno::IO.into()),
        })?
    }

    /// Nothing is ever waited for.
    fn begins_reads(&self) -> bool {
        true
    }

    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> io::Result<Cached> {
        let most = self.with(|state, _| Ok(state.cached))?.min(buffer.len());
        match buffer.get_mut(..most) {
            Some(part) if most > 0 => self.read_at(part, offset).map(Cached::Read),
            _ => Ok(Cached::Unknown),
        }
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        self.with(|state, number| {
            state.check_writable()?;
            if end > state.longest {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let none = || io::Error::other("no such inode");
            // What is written in place of something takes no more.
            let more = state.inodes.get(&number).ok_or_else(none)?.absent(offset / PAGE..end.div_ceil(PAGE));
            if more > 0 && state.used() + more * PAGE > state.capacity {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let inode = state.inodes.get_mut(&number).ok_or_else(none)?;
            inode.write(data, offset);
            Ok(())
        })
    }

    fn clone_of(&self, source: &dyn DeviceFile) -> io::Result<()> {
        if !self.with(|state, _| Ok(state.reflinks))? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let end = source.stat()?.size;
        let mut at = 0;
        while let Some(data) = source.seek_data(at)? {
            at = source.seek_hole(data)?.unwrap_or(end);
            let mut buffer = vec![0; usize::try_from(at - data).unwrap_or(0)];
            source.read_at(&mut buffer, data)?;
            self.write_at(&buffer, data)?;
        }
        self.set_len(end.max(self.stat()?.size))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        if size > self.with(|state, _| state.check_writable().map(|()| state.longest))? {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.inode(|inode| {
            if inode.fixed {
                return Err(rustix::io::Errno::IO.into());
            }
            inode.set_len(size);
            Ok(())
        })?
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.inode(|inode| inode.stat())
    }

    fn allocate(&self, offset: u64, length: u64, extend: bool) -> io::Result<()> {
        self.inode(|inode| {
            if extend {
                inode.now.size = inode.now.size.max(offset.saturating_add(length));
            }
        })
    }

    fn deallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        // As in vfs_fallocate.
        if offset.saturating_add(length) > self.with(|state, _| Ok(state.longest))? {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.inode(|inode| {
            let end = offset.saturating_add(length).min(inode.now.size.next_multiple_of(PAGE));
            if offset < end {
                inode.punch(offset, end);
            }
        })
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.inode(|inode| inode.seek(offset, true))
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.inode(|inode| inode.seek(offset, false))
    }

    fn is_recorded(&self) -> io::Result<bool> {
        self.inode(|inode| inode.now.recorded)
    }

    fn set_recorded(&self) -> io::Result<()> {
        self.inode(|inode| inode.now.recorded = true)
    }
}
