//! What of a file has its place on the device, by one question to the kernel (`FS_IOC_FIEMAP`). SEEK_HOLE does not tell: what was
//! set aside and not written to yet is a hole to it. No library has the call.
#![allow(unsafe_code, reason = "a system call without a wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `FS_IOC_FIEMAP` of `linux/fs.h`: `_IOWR('f', 11, struct fiemap)`, of which `Head` is all that counts.
const FIEMAP: u64 = 0xc020_660b;

/// `FIEMAP_EXTENT_LAST` and `FIEMAP_EXTENT_SHARED` of `linux/fiemap.h`.
const LAST: u32 = 1;
const SHARED: u32 = 0x2000;

/// Extents asked for at once.
const SOME: usize = 32;

/// `struct fiemap` of `linux/fiemap.h`, without what follows it.
#[repr(C)]
#[derive(Default)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

/// `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
#[derive(Default)]
struct Question {
    head: Head,
    extents: [Extent; SOME],
}

/// Whether every byte of a range can be written to without more room on the device: it has its place, and no other file has
/// the same.
///
/// # Errors
/// The file system does not tell.
pub(super) fn has_place(file: &File, offset: u64, length: u64) -> io::Result<bool> {
    let end = offset.saturating_add(length);
    let mut at = offset;
    while at < end {
        let head = Head { start: at, length: end - at, count: SOME as u32, ..Head::default() };
        let mut question = Question { head, ..Question::default() };
        // SAFETY: the structure is as the kernel declares it, with as many extents behind its head as the head says; it
        // lives until the call returns, and nothing else refers to it. The kernel reads the head and writes both. The
        // descriptor is open as long as `file` is borrowed.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, std::ptr::from_mut(&mut question)) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let found = question.extents.get(..question.head.mapped as usize).unwrap_or_default();
        for extent in found {
            if extent.logical > at || extent.flags & SHARED != 0 {
                return Ok(false);
            }
            at = at.max(extent.logical.saturating_add(extent.length));
        }
        if at < end && found.last().is_none_or(|extent| extent.flags & LAST != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}
