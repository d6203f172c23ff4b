//! A directory of a real file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLockReadGuard;
use rustix::fs::{Advice, FallocateFlags, FlockOperation, SeekFrom, StatVfsMountFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::pipe::{SpliceFlags, splice};

use super::ahead::Ahead;
use super::begin::Begins;
use super::direct::{self, Direct, Second};
use super::resident::is_resident;
use super::{Cached, Device, DeviceFile, FileStat, Space, copy_by_hand, extents, is_data, read_pipe};

/// Owner only until the file's existence is journalled, readable by the group afterwards.
const MODE_NEW: u32 = 0o600;
const MODE_RECORDED: u32 = 0o640;

/// Bytes of one write to the kernel. The page cache keeps a file in folios as large as the writes that made them,
/// and ext4 walks over all blocks of a folio for every small write into it: in folios of 1 MiB that costs twice
/// as much. Large writes themselves lose nothing by it.
const PIECE: usize = 128 << 10;

/// Bytes between samples of the page cache, where the kernel does not tell. Files that are read and written in large
/// pieces are cached in large pieces.
const SAMPLE: usize = 64 << 10;

/// `f_type` of a file system that sets space aside behind the ends of files.
const XFS: rustix::fs::FsWord = 0x5846_5342;

/// Bytes of one copy by the kernel: a thread is not in it for long.
const COPY: usize = 16 << 20;

/// A directory on XFS, ext4 or their like.
#[derive(Debug)]
pub struct FileDevice {
    root: PathBuf,
    /// See [`Space::device`].
    device: [u8; 16],
    /// Whether the file system answers reads that may not wait.
    nowait: Arc<AtomicBool>,
    /// Whether it sends from the page cache.
    sends: Arc<AtomicBool>,
    /// Whether it takes from pipes.
    splices: Arc<AtomicBool>,
    /// Whether the kernel tells what is in memory.
    tells: Arc<AtomicBool>,
    begins: Arc<Begins>,
    direct: Arc<Direct>,
    /// See [`Ahead`].
    sets_aside: bool,
    /// Flushes flush; false only in the test that must lose data.
    honest: bool,
    syncs: Arc<AtomicU64>,
}

impl FileDevice {
    /// The directory is created, with its parents, when it is not there.
    pub fn new(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root)?;
        let device = device_of(&root)?;
        let nowait = Arc::new(AtomicBool::new(true));
        let sends = Arc::new(AtomicBool::new(true));
        let splices = Arc::new(AtomicBool::new(true));
        let tells = Arc::new(AtomicBool::new(true));
        let sets_aside = rustix::fs::statfs(&root)?.f_type == XFS;
        let (direct, syncs, honest) = (Arc::default(), Arc::default(), true);
        let begins = Arc::new(Begins::new(!sets_aside, Arc::clone(&tells)));
        Ok(Self { root, device, nowait, sends, splices, tells, begins, direct, sets_aside, honest, syncs })
    }

    /// For one test only: flushes say yes and do nothing, so that a power failure loses what was
    /// acknowledged, and the test that looks for such losses can be seen to find them.
    #[must_use]
    pub fn unsafe_no_sync(mut self) -> Self {
        self.honest = false;
        self
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(Path::new(path)) }
    }

    fn wrap(&self, file: File) -> Arc<dyn DeviceFile> {
        let (nowait, sends) = (Arc::clone(&self.nowait), Arc::clone(&self.sends));
        let (splices, tells) = (Arc::clone(&self.splices), Arc::clone(&self.tells));
        let (begins, direct) = (Arc::clone(&self.begins), Arc::clone(&self.direct));
        let (honest, syncs) = (self.honest, Arc::clone(&self.syncs));
        let ahead = self.sets_aside.then(Ahead::default);
        let second = OnceLock::new();
        Arc::new(PlainFile {
            file,
            nowait,
            sends,
            splices,
            tells,
            begins,
            direct,
            second,
            ahead,
            honest,
            syncs,
        })
    }
}

/// Locked for as long as this exists.
#[derive(Debug)]
struct LockedRoot(File);

/// Closing it is not enough: a process that this one is just starting has a copy of every open file until it has its
/// own program, and the lock lasts as long as any copy.
impl Drop for LockedRoot {
    fn drop(&mut self) {
        // Then it is unlocked when the last copy is closed.
        rustix::fs::flock(&self.0, FlockOperation::Unlock).ok();
    }
}

impl Device for FileDevice {
    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn lock(&self) -> io::Result<Box<dyn std::fmt::Debug + Send + Sync>> {
        // The directory itself is locked, so that a refused directory is left as it was found.
        let root = File::open(&self.root)?;
        rustix::fs::flock(&root, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(LockedRoot(root)))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DeviceFile>> {
        Ok(self.wrap(OpenOptions::new().read(true).write(true).open(self.path(path))?))
    }

    fn read_uncached(&self, path: &str, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match direct::read(&self.path(path), buffer, offset)? {
            Some(read) => Ok(read),
            None => self.open(path)?.read_at(buffer, offset),
        }
    }

    fn overwrite(&self, path: &str, data: &[u8]) -> io::Result<()> {
        direct::overwrite(&self.path(path), data)
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn DeviceFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(MODE_NEW);
        Ok(self.wrap(options.open(self.path(path))?))
    }

    fn stat(&self, path: &str) -> io::Result<FileStat> {
        Ok(stat_of(&fs::metadata(self.path(path))?))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.path(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        match fs::create_dir(self.path(path)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(path))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let dir = File::open(self.path(path))?;
        if self.honest { dir.sync_all() } else { Ok(()) }
    }

    fn space(&self) -> io::Result<Space> {
        let s = rustix::fs::statvfs(&self.root)?;
        Ok(Space {
            total: s.f_blocks.saturating_mul(s.f_frsize),
            free: s.f_bavail.saturating_mul(s.f_frsize),
            inodes: s.f_files,
            inodes_free: s.f_ffree,
            device: self.device,
            read_only: s.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    }

    fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    fn is_honest(&self) -> bool {
        self.honest
    }
}

/// Names the device under `path` so that nobody else's has the same name: the start of this boot's identity, then the
/// device number. f_fsid would not do: XFS makes it of the device number alone, which other hosts use too.
fn device_of(path: &Path) -> io::Result<[u8; 16]> {
    let number = fs::metadata(path)?.dev();
    let mut device = [0; 16];
    let Ok(boot) = fs::read_to_string("/proc/sys/kernel/random/boot_id") else { return Ok(device) };
    let digits: Vec<u8> = boot.bytes().filter(u8::is_ascii_hexdigit).collect();
    for (byte, pair) in device.iter_mut().zip(digits.chunks_exact(2).take(8)) {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16).unwrap_or_default();
    }
    device[8..].copy_from_slice(&number.to_be_bytes());
    Ok(device)
}

fn stat_of(meta: &fs::Metadata) -> FileStat {
    FileStat { size: meta.len(), allocated: meta.blocks().saturating_mul(512) }
}

#[derive(Debug)]
struct PlainFile {
    file: File,
    nowait: Arc<AtomicBool>,
    sends: Arc<AtomicBool>,
    splices: Arc<AtomicBool>,
    tells: Arc<AtomicBool>,
    begins: Arc<Begins>,
    direct: Arc<Direct>,
    second: OnceLock<Arc<Second>>,
    ahead: Option<Ahead>,
    honest: bool,
    syncs: Arc<AtomicU64>,
}

impl PlainFile {
    /// To be held during a change of this range.
    fn change(&self, offset: u64, length: u64) -> Option<RwLockReadGuard<'_, ()>> {
        Some(self.ahead.as_ref()?.change(&self.file, offset, offset.saturating_add(length)))
    }

    fn seek(&self, to: SeekFrom) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.file, to) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn zero(&self, offset: u64, end: u64) -> io::Result<()> {
        let zeros = [0u8; 65_536];
        let mut at = offset;
        while at < end {
            let n = usize::try_from(end - at).unwrap_or(zeros.len()).min(zeros.len());
            self.file.write_all_at(&zeros[..n], at)?;
            at += n as u64;
        }
        Ok(())
    }
}

impl DeviceFile for PlainFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> io::Result<Cached> {
        if !self.nowait.load(Ordering::Relaxed) {
            return Ok(Cached::Unknown);
        }
        match rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT)
        {
            Ok(n) => Ok(Cached::Read(n)),
            Err(Errno::AGAIN) => {
                self.begins.missed(&self.file, offset, buffer.len());
                Ok(Cached::Unknown)
            }
            Err(Errno::INTR) => Ok(Cached::Unknown),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.nowait.store(false, Ordering::Relaxed);
                Ok(Cached::Unknown)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn begins_reads(&self) -> bool {
        self.nowait.load(Ordering::Relaxed) && self.begins.will()
    }

    fn is_cached(&self, offset: u64, length: u64) -> bool {
        let end = offset.saturating_add(length);
        let mut byte = [0];
        let mut is_here = |at| matches!(self.read_cached(&mut byte, at), Ok(Cached::Read(1)));
        if !self.sends.load(Ordering::Relaxed) {
            return false;
        }
        if self.tells.load(Ordering::Relaxed) {
            match is_resident(&self.file, offset, length) {
                Ok(resident) => return resident && is_here(offset) && end.checked_sub(1).is_none_or(is_here),
                Err(_) => self.tells.store(false, Ordering::Relaxed),
            }
        }
        (offset..end).step_by(SAMPLE).chain(end.checked_sub(1)).all(is_here)
    }

    fn send(&self, offset: u64, length: usize, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut at = offset;
        match rustix::fs::sendfile(socket, &self.file, Some(&mut at), length) {
            // Not this file system. Failing would end the connection, and the next one the same way.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.sends.store(false, Ordering::Relaxed);
                Ok(0)
            }
            sent => Ok(sent?),
        }
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for piece in data.chunks(PIECE) {
            // By the piece: whoever is about to leave a gap waits for no more than one, and others wait for him.
            let _changing = self.change(at, piece.len() as u64);
            self.file.write_all_at(piece, at)?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    fn write_from(&self, pipe: BorrowedFd<'_>, length: usize, offset: u64) -> io::Result<()> {
        let (mut at, mut left) = (offset, length);
        while left > 0 {
            // Up to where a piece of a file in pieces ends: its folios are as large as these writes.
            let piece = (PIECE - (at % PIECE as u64) as usize).min(left);
            if !self.splices.load(Ordering::Relaxed) {
                self.write_at(&read_pipe(pipe, piece)?, at)?;
                at = at.saturating_add(piece as u64);
                left -= piece;
                continue;
            }
            let _changing = self.change(at, piece as u64);
            match splice(pipe, None, &self.file, Some(&mut at), piece, SpliceFlags::NONBLOCK) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => left -= n,
                Err(Errno::INTR) => {}
                // Not this file system.
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.splices.store(false, Ordering::Relaxed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_direct(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let changing = self.change(offset, data.len() as u64);
        let done = self.direct.write(&self.file, self.second.get_or_init(Arc::default), data, offset)?;
        drop(changing);
        self.write_at(data.get(done..).unwrap_or_default(), offset.saturating_add(done as u64))?;
        Ok(done)
    }

    fn copy_from(&self, source: &dyn DeviceFile, from: u64, to: u64, length: u64) -> io::Result<u64> {
        let Some(descriptor) = source.descriptor() else {
            return copy_by_hand(self, source, from, to, length);
        };
        let (mut source_at, mut target_at) = (from, to);
        let count = usize::try_from(length).unwrap_or(usize::MAX).min(COPY);
        let changing = self.change(to, count as u64);
        match rustix::fs::copy_file_range(
            descriptor,
            Some(&mut source_at),
            &self.file,
            Some(&mut target_at),
            count,
        ) {
            Ok(copied) => Ok(copied as u64),
            // Not by this file system, or not between these two.
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                drop(changing);
                copy_by_hand(self, source, from, to, length)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn clone_of(&self, source: &dyn DeviceFile) -> io::Result<()> {
        let descriptor = source.descriptor().ok_or(io::ErrorKind::Unsupported)?;
        match rustix::fs::ioctl_ficlone(&self.file, descriptor) {
            // Not by this file system; or not between these two, as when one of them is not to be shared.
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            done => Ok(done?),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        if !self.honest {
            return Ok(());
        }
        self.file.sync_data().inspect_err(|_| {
            // What has been written since stays. Pages that somebody is just sending do, too: who must know asks the medium.
            let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
        })
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)?;
        self.ahead.iter().for_each(Ahead::cut);
        Ok(())
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(stat_of(&self.file.metadata()?))
    }

    fn allocate(&self, offset: u64, length: u64, extend: bool) -> io::Result<()> {
        let _changing = self.change(offset, length);
        let flags = if extend { FallocateFlags::empty() } else { FallocateFlags::KEEP_SIZE };
        match rustix::fs::fallocate(&self.file, flags, offset, length) {
            Ok(()) => Ok(()),
            // A file system without preallocation still owes the size.
            Err(Errno::OPNOTSUPP) => {
                let end = offset.saturating_add(length);
                if extend && self.file.metadata()?.len() < end { self.file.set_len(end) } else { Ok(()) }
            }
            Err(error) => Err(error.into()),
        }
    }

    fn deallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
        match rustix::fs::fallocate(&self.file, flags, offset, length) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP) => {
                let end = offset.saturating_add(length).min(self.file.metadata()?.len());
                self.zero(offset, end)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.seek(SeekFrom::Data(offset))
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.seek(SeekFrom::Hole(offset))
    }

    fn has_place(&self, offset: u64, length: u64) -> io::Result<bool> {
        // Where it is not told what is set aside counts as a hole.
        extents::has_place(&self.file, offset, length).or_else(|_| is_data(self, offset, length))
    }

    fn is_recorded(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.permissions().mode() & 0o040 != 0)
    }

    fn set_recorded(&self) -> io::Result<()> {
        self.file.set_permissions(fs::Permissions::from_mode(MODE_RECORDED))
    }
}
