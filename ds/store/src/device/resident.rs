//! What of a file is in memory, by one question to the kernel (`cachestat`, Linux 6.5 and later) in place of a read for
//! each sample. No library has the call.
#![allow(unsafe_code, reason = "a system call without a wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The number of the call, the same on all architectures but Alpha. A filter that does not know it says EPERM, as the
/// systemd units have it: then samples are read.
const CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat` of `linux/mman.h`, in pages.
#[repr(C)]
#[derive(Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether memory has a place for all of these bytes. They may still be on their way from the device.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn is_resident(file: &File, offset: u64, length: u64) -> io::Result<bool> {
    let page = rustix::param::page_size() as u64;
    let Some(last) = length.checked_sub(1) else { return Ok(true) };
    let Some(last) = offset.checked_add(last) else { return Ok(false) };
    let range = Range { offset, length };
    let mut pages = Pages::default();
    let (asked, answer) = (std::ptr::from_ref(&range), std::ptr::from_mut(&mut pages));
    // SAFETY: both structures are as the kernel declares them, live until the call returns, and nothing else refers to
    // them; the kernel reads the first and writes the second. The descriptor is open as long as `file` is borrowed.
    let result = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), asked, answer, 0) };
    if result == 0 { Ok(pages.cached > last / page - offset / page) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_is_there_is_told_from_what_is_not() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.write_all_at(&[1; 100_000], 0).unwrap();
        file.write_all_at(&[1; 100_000], 1 << 20).unwrap();
        // Older kernels do not tell.
        if is_resident(&file, 0, 1).is_err() {
            return;
        }
        for (offset, length, expected) in [
            (0, 1, true),
            (4095, 2, true),
            (0, 98_304, true),
            (50_000, 200_000, false),
            (500_000, 1, false),
            (1 << 20, 100_000, true),
            ((1 << 20) - 1, 2, false),
        ] {
            assert_eq!(is_resident(&file, offset, length).unwrap(), expected, "{length} at {offset}");
        }
        assert!(is_resident(&file, 500_000, 0).unwrap());
        assert!(!is_resident(&file, u64::MAX, 2).unwrap());
    }
}
