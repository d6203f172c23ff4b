//! What a store needs of its device: named files in directories, positioned I/O, and an honest
//! flush. Two implementations: [`FileDevice`] over a directory, and [`MemDevice`], whose crash
//! loses everything that was not flushed.

mod ahead;
mod begin;
mod direct;
mod extents;
mod file;
mod mem;
mod mem_file;
mod resident;

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use file::FileDevice;
pub use mem::MemDevice;

/// How full a device is, in bytes and in inodes; `inodes` 0 means the device does not count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub free: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    /// Which device this is of: stores that share one tell the same. All zero means unknown.
    pub device: [u8; 16],
    /// Nothing can be written; a file system that has met an error may become so by itself.
    pub read_only: bool,
}

/// Size and allocation of one file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStat {
    pub size: u64,
    pub allocated: u64,
}

/// What a read that may not wait for the device achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// So many bytes were at hand; 0 is the end of the file.
    Read(usize),
    /// It would have to wait, or the device cannot tell.
    Unknown,
}

/// A device, or a directory of one. Paths are relative, parts joined by `/`. Every call may block
/// except [`DeviceFile::read_cached`].
pub trait Device: Debug + Send + Sync {
    /// For messages: where this device is.
    fn name(&self) -> String;
    /// Takes the device for this process until the value is dropped; `WouldBlock` when taken.
    fn lock(&self) -> io::Result<Box<dyn Debug + Send + Sync>>;
    /// Opens an existing file for reading and writing; `NotFound` when it is not there.
    fn open(&self, path: &str) -> io::Result<Arc<dyn DeviceFile>>;
    /// Reads as [`DeviceFile::read_at`] does, but from the medium, whatever is in memory; where that cannot be done, like that.
    fn read_uncached(&self, path: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.open(path)?.read_at(buffer, offset)
    }
    /// Overwrites what a file begins with, on the medium: it waits for nothing but that, not for what is still to be flushed either;
    /// `Unsupported` where that cannot be done.
    fn overwrite(&self, path: &str, data: &[u8]) -> io::Result<()> {
        let _ = (path, data);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Creates an empty file; `AlreadyExists` when it is there.
    fn create(&self, path: &str) -> io::Result<Arc<dyn DeviceFile>>;
    /// Size and allocation by name.
    fn stat(&self, path: &str) -> io::Result<FileStat>;
    fn remove(&self, path: &str) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Creates a directory; one that exists is no error.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// Names in a directory, sorted; `""` is the root.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Makes the entries of a directory durable.
    fn sync_dir(&self, path: &str) -> io::Result<()>;
    fn space(&self) -> io::Result<Space>;
    /// Flushes asked for so far, of files and directories.
    fn syncs(&self) -> u64;
    /// Whether what it says to be durable is; false only in the test that must lose data.
    fn is_honest(&self) -> bool {
        true
    }
}

/// An open file of a [`Device`].
pub trait DeviceFile: Debug + Send + Sync {
    /// Reads until `buffer` is full or the file ends; returns the bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Like `read_at`, but never waits for the device: it may stop short of what is there.
    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> io::Result<Cached>;
    /// Whether a few bytes that [`Self::read_cached`] did not find are on their way afterwards.
    fn begins_reads(&self) -> bool {
        false
    }
    /// Whether a read of all of these bytes, the last one certainly, would not have to wait. A look at samples: it may
    /// be wrong about bytes between them.
    fn is_cached(&self, offset: u64, length: u64) -> bool {
        let _ = (offset, length);
        false
    }
    /// Moves up to `length` bytes to a socket that does not block, without copying them; returns how many, 0 at the end
    /// of the file, and where that cannot be done.
    fn send(&self, offset: u64, length: usize, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let _ = (offset, length, socket);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Whether a write of the range has nothing to wait for but the write itself.
    fn is_ready(&self, offset: u64, length: u64) -> bool {
        let _ = (offset, length);
        true
    }
    /// An error where nobody may see bytes of the range; asked before they are copied by way of [`Self::descriptor`].
    fn visible(&self, offset: u64, length: u64) -> io::Result<()> {
        let _ = (offset, length);
        Ok(())
    }
    /// Writes all of `data`.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// The same past the memory of the system, as far as that can be done: for many bytes that are to be durable soon.
    /// Returns how many bytes went that way.
    fn write_direct(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.write_at(data, offset).map(|()| 0)
    }
    /// Writes the next `length` bytes of a pipe, all of which are in it; without copying them twice, where that can be done.
    fn write_from(&self, pipe: BorrowedFd<'_>, length: usize, offset: u64) -> io::Result<()> {
        self.write_at(&read_pipe(pipe, length)?, offset)
    }
    /// Writes what `source` holds at `from`, up to `length` bytes, at `to`; returns the bytes copied, 0 only at the
    /// end of `source`. By the file system itself where it can.
    fn copy_from(&self, source: &dyn DeviceFile, from: u64, to: u64, length: u64) -> io::Result<u64> {
        copy_by_hand(self, source, from, to, length)
    }
    /// Becomes a clone of `source`: the bytes up to the end of that, shared until either is written to. All at once,
    /// and without moving them; `Unsupported` where the device cannot.
    fn clone_of(&self, source: &dyn DeviceFile) -> io::Result<()> {
        let _ = source;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The file to the system, where it has one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Makes what was written durable, with what is needed to find it. Where that fails, what was not written is let go of before
    /// it returns: Linux would show it from memory as if it had been, and flush it never again.
    fn sync_data(&self) -> io::Result<()>;
    fn set_len(&self, size: u64) -> io::Result<()>;
    fn stat(&self) -> io::Result<FileStat>;
    /// Reserves space; the file grows to `offset + length` if `extend`.
    fn allocate(&self, offset: u64, length: u64, extend: bool) -> io::Result<()>;
    /// The range reads as zeros afterwards; the size stays.
    fn deallocate(&self, offset: u64, length: u64) -> io::Result<()>;
    /// The first byte of data at or after `offset`, `None` when only a hole follows.
    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>>;
    /// The first hole at or after `offset`, the end of the file being one; `None` beyond the end.
    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>>;
    /// Whether every byte of the range has its place on the device already, so that writing there needs no more room.
    fn has_place(&self, offset: u64, length: u64) -> io::Result<bool> {
        is_data(self, offset, length)
    }
    /// A mark that survives with the file: its existence has been journalled.
    fn is_recorded(&self) -> io::Result<bool>;
    fn set_recorded(&self) -> io::Result<()>;
}

/// The next `length` bytes of a pipe that does not block.
fn read_pipe(pipe: BorrowedFd<'_>, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    while done < length {
        match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut bytes[done..]))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(bytes)
}

/// Whether a range is data all over.
fn is_data<T: DeviceFile + ?Sized>(file: &T, offset: u64, length: u64) -> io::Result<bool> {
    let end = offset.saturating_add(length);
    Ok(file.stat()?.size >= end && file.seek_hole(offset)?.is_some_and(|hole| hole >= end))
}

/// Bytes that a copy by hand holds in memory.
const BY_HAND: u64 = 1 << 20;

/// One piece by reading and writing.
fn copy_by_hand<T: DeviceFile + ?Sized>(
    target: &T,
    source: &dyn DeviceFile,
    from: u64,
    to: u64,
    length: u64,
) -> io::Result<u64> {
    let mut buffer = vec![0; usize::try_from(length.min(BY_HAND)).unwrap_or(0)];
    let count = source.read_at(&mut buffer, from)?;
    target.write_at(buffer.get(..count).unwrap_or_default(), to)?;
    Ok(count as u64)
}
