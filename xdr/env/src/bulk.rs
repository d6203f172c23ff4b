//! Pages of 2 MiB for data on its way, and for nothing else.
//!
//! The allocator asks for large pages for all there is. A metadata server's rows are found a little sooner in them. For a data
//! server they cost more than they bring: a large page counts whole while one small object is in it, and small objects lie wherever
//! there was room when a crowd of calls came, so that one with nothing to do had 9 MiB of objects in 55. But a device is told of one
//! large page where it would be of 512: FILE_SYNC writes of 1 MiB lose a quarter of their rate without.
#![allow(unsafe_code, reason = "memory of the system is mapped, and handed to the allocator")]

use std::ptr;
use std::sync::OnceLock;

use libmimalloc_sys::{mi_collect, mi_heap_new_in_arena, mi_heap_t, mi_manage_os_memory_ex};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Addresses of the region: what a server has in flight is a fraction of it. Memory is taken where it is touched, and given back.
const REGION: usize = 1 << 30;

/// Of a large page, as the addresses of the region are aligned.
const PAGE: usize = 2 << 20;

/// Set once somebody asks for it.
static HEAP: OnceLock<Heap> = OnceLock::new();

struct Heap(*mut mi_heap_t);

// SAFETY: mimalloc's heaps of version 3 are for all threads.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

/// The heap whose pieces lie in large pages: null where all do, or none.
pub(crate) fn heap() -> *mut mi_heap_t {
    HEAP.get().map_or(ptr::null_mut(), |heap| heap.0)
}

/// From now on large pages hold large pieces (`memory.rs`), and all else that is allocated lies in pages of 4 KiB, whatever the
/// system does by default. A process calls it as it begins: what is in large pages by then stays there.
pub fn large_pages_for_data_only() {
    HEAP.get_or_init(|| {
        small_pages();
        Heap(region().map_or(ptr::null_mut(), heap_in))
    });
}

/// Gives memory back to the system that nobody has needed for a second. The allocator does that by itself when so many thousand
/// small pieces were asked for, which takes minutes where most of what is needed are buffers that are kept, and for ever where
/// nothing is done.
pub fn give_back_memory() {
    // SAFETY: it may be called at any time, by any thread.
    unsafe { mi_collect(false) };
}

/// All anonymous memory there is, which is the allocator's: it has addresses for a gigabyte.
fn small_pages() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, end) in maps.lines().filter_map(anonymous).filter(|(start, end)| end - start >= PAGE) {
        // SAFETY: how memory is backed changes nothing of what is in it, and a range that is gone is refused.
        let _ = unsafe { madvise(ptr::without_provenance_mut(start), end - start, Advice::LinuxNoHugepage) };
    }
}

/// The range of a line of `/proc/self/maps` that names no file.
fn anonymous(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_named = fields.nth(4).is_some();
    let [start, end] = [start, end].map(|end| usize::from_str_radix(end, 16).ok());
    if is_named { None } else { Some((start?, end?)) }
}

/// Addresses that are this process's for good.
fn region() -> Option<*mut u8> {
    let (all, flags) = (REGION + PAGE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: addresses that nobody has; the system says which.
    let start =
        unsafe { mmap_anonymous(ptr::null_mut(), all, ProtFlags::READ | ProtFlags::WRITE, flags) }.ok()?;
    let start = start.cast::<u8>();
    let before = start.addr().next_multiple_of(PAGE) - start.addr();
    // SAFETY: all three lie in what was mapped, and nobody else knows of it. A system without large pages refuses the advice,
    // and gives what it has.
    unsafe {
        let region = start.add(before);
        let _ = munmap(start.cast(), before);
        let _ = munmap(region.add(REGION).cast(), PAGE - before);
        let _ = madvise(region.cast(), REGION, Advice::LinuxHugepage);
        Some(region)
    }
}

fn heap_in(region: *mut u8) -> *mut mi_heap_t {
    let mut arena = ptr::null_mut();
    // SAFETY: the region is mapped, aligned, zero and nobody else's.
    unsafe {
        match mi_manage_os_memory_ex(region.cast(), REGION, true, false, true, -1, true, &mut arena) {
            true => mi_heap_new_in_arena(arena),
            false => ptr::null_mut(),
        }
    }
}
