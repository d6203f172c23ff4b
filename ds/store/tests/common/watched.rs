//! A device whose writes of data somebody watches.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use sluice_store::device::{Cached, Device, DeviceFile, FileStat, Space};

pub(crate) trait Watch: Debug + Send + Sync {
    /// A write begins when this returns; past the page cache, or by way of it.
    fn writing(&self, direct: bool);
    /// A data file is opened, or created, when this returns.
    fn opening(&self) {}
    /// A file of the store's own is created when this returns.
    fn creating(&self, _path: &str) {}
    /// The device is asked for something of another file, past all memory, when this returns.
    fn asking(&self) {}
    /// What a file begins with is written over, on the medium, when this returns.
    fn overwriting(&self) {}
    /// So many bytes below the data files are read, or it fails as it says.
    fn reading(&self, _length: usize) -> io::Result<()> {
        Ok(())
    }
    /// Whether all that is asked for is said to be in memory; nothing can be sent from there all the same.
    fn seems_cached(&self) -> bool {
        false
    }
    /// A data file is removed when this returns.
    fn removing(&self, _path: &str) {}
    /// A folder is listed when this returns, or is not, as it says.
    fn listing(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }
    /// A flush of a data file begins when this returns.
    fn flushes(&self) {}
    /// The same of another file: the journal.
    fn journals(&self) {}
    /// How much room there is.
    fn room(&self, there: Space) -> Space {
        there
    }
    /// A flush of a data file has ended.
    fn flushed(&self) {}
    /// A flush of a folder begins when this returns, or fails as it says.
    fn flushing(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct WatchedDevice(pub(crate) Box<dyn Device>, pub(crate) Arc<dyn Watch>);

#[derive(Debug)]
struct WatchedFile(Arc<dyn DeviceFile>, Arc<dyn Watch>, bool);

impl WatchedDevice {
    fn opening(&self, path: &str) {
        if path.starts_with("data/") {
            self.1.opening();
        }
    }

    fn reading(&self, path: &str, length: usize) -> io::Result<()> {
        if path.starts_with("data/") { self.1.reading(length) } else { Ok(()) }
    }

    fn wrap(&self, path: &str, file: Arc<dyn DeviceFile>) -> Arc<dyn DeviceFile> {
        Arc::new(WatchedFile(file, Arc::clone(&self.1), path.starts_with("data/")))
    }
}

impl Device for WatchedDevice {
    fn name(&self) -> String {
        self.0.name()
    }
    fn lock(&self) -> io::Result<Box<dyn Debug + Send + Sync>> {
        self.0.lock()
    }
    fn open(&self, path: &str) -> io::Result<Arc<dyn DeviceFile>> {
        self.opening(path);
        Ok(self.wrap(path, self.0.open(path)?))
    }
    fn read_uncached(&self, path: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.reading(path, buffer.len())?;
        if !path.starts_with("data/") {
            self.1.asking();
        }
        self.0.read_uncached(path, buffer, offset)
    }
    fn overwrite(&self, path: &str, data: &[u8]) -> io::Result<()> {
        self.1.overwriting();
        self.0.overwrite(path, data)
    }
    fn create(&self, path: &str) -> io::Result<Arc<dyn DeviceFile>> {
        self.opening(path);
        if !path.starts_with("data/") {
            self.1.creating(path);
        }
        Ok(self.wrap(path, self.0.create(path)?))
    }
    fn stat(&self, path: &str) -> io::Result<FileStat> {
        self.0.stat(path)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        if path.starts_with("data/") {
            self.1.removing(path);
        }
        self.0.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.0.create_dir(path)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.1.listing(path)?;
        self.0.list(path)
    }
    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.1.flushing(path)?;
        self.0.sync_dir(path)
    }
    fn space(&self) -> io::Result<Space> {
        Ok(self.1.room(self.0.space()?))
    }
    fn syncs(&self) -> u64 {
        self.0.syncs()
    }
}

impl DeviceFile for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.2 {
            self.1.reading(buffer.len())?;
        }
        self.0.read_at(buffer, offset)
    }
    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> io::Result<Cached> {
        self.0.read_cached(buffer, offset)
    }
    fn is_cached(&self, _offset: u64, _length: u64) -> bool {
        self.1.seems_cached()
    }
    fn send(&self, _offset: u64, _length: usize, _socket: BorrowedFd<'_>) -> io::Result<usize> {
        Ok(0)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if self.2 {
            self.1.writing(false);
        }
        self.0.write_at(data, offset)
    }
    fn write_direct(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.1.writing(true);
        self.0.write_direct(data, offset)
    }
    fn clone_of(&self, source: &dyn DeviceFile) -> io::Result<()> {
        self.0.clone_of(source)
    }
    fn sync_data(&self) -> io::Result<()> {
        if !self.2 {
            self.1.journals();
            return self.0.sync_data();
        }
        self.1.flushes();
        let done = self.0.sync_data();
        self.1.flushed();
        done
    }
    fn set_len(&self, size: u64) -> io::Result<()> {
        self.0.set_len(size)
    }
    fn stat(&self) -> io::Result<FileStat> {
        self.0.stat()
    }
    fn allocate(&self, offset: u64, length: u64, extend: bool) -> io::Result<()> {
        self.0.allocate(offset, length, extend)
    }
    fn deallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.deallocate(offset, length)
    }
    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.0.seek_data(offset)
    }
    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.0.seek_hole(offset)
    }
    fn is_recorded(&self) -> io::Result<bool> {
        self.0.is_recorded()
    }
    fn set_recorded(&self) -> io::Result<()> {
        self.0.set_recorded()
    }
}
