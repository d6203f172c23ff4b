//! Transfers past the page cache (O_DIRECT). A large write that somebody waits to have durable goes to the device in any
//! case: by way of the page cache it costs more than twice the processor time, and pushes out of it what others read.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};

/// What no device asks more of, of memory, offset and length.
const ALIGNMENT: usize = 4096;

/// Files of one device that have a descriptor for this; of another one's, the oldest is closed.
const OPEN: usize = 128;

/// Buffers that are kept. Most writes are of 1 MiB.
const BUFFERS: usize = 2;

/// Of one device.
#[derive(Debug)]
pub(super) struct Direct {
    works: AtomicBool,
    /// Oldest first.
    open: Mutex<VecDeque<Weak<Second>>>,
    buffers: Mutex<Vec<Vec<u8>>>,
}

/// The second descriptor of an open file.
#[derive(Debug, Default)]
pub(super) struct Second(Mutex<Option<Arc<Opened>>>);

#[derive(Debug)]
struct Opened {
    file: File,
    /// Whose multiple the address of the bytes has to be.
    memory: usize,
    /// Whose multiple offset and length have to be.
    unit: usize,
}

impl Default for Direct {
    fn default() -> Self {
        Self { works: AtomicBool::new(true), open: Mutex::default(), buffers: Mutex::default() }
    }
}

impl Direct {
    /// Writes as much of the beginning of `data` as can go this way, and returns how much that was.
    pub(super) fn write(
        &self,
        file: &File,
        second: &Arc<Second>,
        data: &[u8],
        offset: u64,
    ) -> io::Result<usize> {
        let Some(opened) = self.opened(file, second) else { return Ok(0) };
        let whole = &data[..data.len() - data.len() % opened.unit];
        if whole.is_empty() || !offset.is_multiple_of(opened.unit as u64) {
            return Ok(0);
        }
        let written = if whole.as_ptr().addr().is_multiple_of(opened.memory) {
            opened.write(whole, offset)
        } else {
            let mut buffer = self.buffers.lock().pop().unwrap_or_default();
            let written = opened.write(aligned(&mut buffer, whole), offset);
            let mut kept = self.buffers.lock();
            if kept.len() < BUFFERS {
                kept.push(buffer);
            }
            written
        };
        match written {
            // Not this file system after all.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.works.store(false, Ordering::Relaxed);
                Ok(0)
            }
            written => written,
        }
    }

    /// `None` where it cannot be had.
    fn opened(&self, file: &File, second: &Arc<Second>) -> Option<Arc<Opened>> {
        if !self.works.load(Ordering::Relaxed) {
            return None;
        }
        let mut place = second.0.lock();
        if let Some(opened) = &*place {
            return Some(Arc::clone(opened));
        }
        // By descriptor: the file may have another name by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = match Opened::new(Path::new(&path)) {
            Ok(Some(opened)) => Arc::new(opened),
            Ok(None) => {
                self.works.store(false, Ordering::Relaxed);
                return None;
            }
            // There may be no descriptor left. The other way needs none.
            Err(_) => return None,
        };
        *place = Some(Arc::clone(&opened));
        drop(place);
        let mut open = self.open.lock();
        open.push_back(Arc::downgrade(second));
        let oldest = if open.len() > OPEN { open.pop_front() } else { None };
        drop(open);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            oldest.0.lock().take();
        }
        Some(opened)
    }
}

impl Opened {
    /// `None` where the file system does not do this, or there is no /proc.
    fn new(path: &Path) -> io::Result<Option<Self>> {
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file = match OpenOptions::new().write(true).custom_flags(direct).open(path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound) => {
                return Ok(None);
            }
            file => file?,
        };
        let known = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
            .ok()
            // Older kernels do not say.
            .filter(|found| found.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
        let (memory, unit) = match known {
            Some(found) => (found.stx_dio_mem_align as usize, found.stx_dio_offset_align as usize),
            None => (ALIGNMENT, ALIGNMENT),
        };
        Ok((memory > 0 && unit > 0).then_some(Self { file, memory, unit }))
    }

    fn write(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < data.len() {
            match self.file.write_at(&data[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    if !n.is_multiple_of(self.unit) {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// The same bytes where any device takes them from.
fn aligned<'a>(buffer: &'a mut Vec<u8>, data: &[u8]) -> &'a [u8] {
    if buffer.len() < data.len() + ALIGNMENT {
        buffer.resize(data.len() + ALIGNMENT, 0);
    }
    let from = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let place = &mut buffer[from..from + data.len()];
    place.copy_from_slice(data);
    place
}

/// Reads from the medium until `buffer` is full or the file ends; `None` where the file system does not do this.
pub(super) fn read(path: &Path, buffer: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let read = OpenOptions::new().read(true).custom_flags(direct).open(path);
    match read.and_then(|file| read_aligned(&file, buffer, offset)) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        read => read.map(Some),
    }
}

/// Writes what the file begins with to the medium, in place.
pub(super) fn overwrite(path: &Path, data: &[u8]) -> io::Result<()> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let mut memory = Vec::new();
    let opened = OpenOptions::new().write(true).custom_flags(direct).open(path);
    match opened.and_then(|file| file.write_at(aligned(&mut memory, data), 0)) {
        Ok(n) if n == data.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(io::ErrorKind::Unsupported.into()),
        Err(error) => Err(error),
    }
}

fn read_aligned(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let skip = usize::try_from(offset % ALIGNMENT as u64).unwrap_or(0);
    let length = (skip + buffer.len()).next_multiple_of(ALIGNMENT);
    let mut memory = vec![0u8; length + ALIGNMENT];
    let aligned = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let place = memory.get_mut(aligned..aligned + length).unwrap_or_default();
    let mut done = 0;
    while done < place.len() {
        match file.read_at(&mut place[done..], offset - skip as u64 + done as u64) {
            Ok(n) => {
                done += n;
                // Only the end of the file is not whole.
                if n == 0 || !n.is_multiple_of(ALIGNMENT) {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let there = done.saturating_sub(skip).min(buffer.len());
    buffer[..there].copy_from_slice(&place[skip..skip + there]);
    Ok(there)
}
