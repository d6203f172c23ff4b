//! Where memory comes from. Buffers of 1 MiB come and go with every READ and WRITE: the C library's allocator gives each back to
//! the kernel and faults it in again, which costs more than the copy.
#![allow(unsafe_code, reason = "an allocator is unsafe by its signature")]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr;

use libmimalloc_sys::{
    mi_free, mi_heap_malloc_aligned, mi_heap_realloc_aligned, mi_heap_t, mi_heap_zalloc_aligned, mi_malloc,
    mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};

use crate::bulk;

/// Pieces of so many bytes and more hold data on its way: a server has buffers of 1 MiB and of 2 MiB (`bulk.rs`).
const LARGE: usize = 1 << 20;

/// mimalloc's `MI_MAX_ALIGN_SIZE`. Each of its blocks that has so many bytes is aligned to as many; the only smaller ones have
/// eight, and are aligned to eight.
const ALIGNED: usize = 16;

/// mimalloc. Its own crate asks for an alignment with every piece, for which mimalloc has a way of its own that is several
/// times as long, and larger blocks wherever the piece has more than 1 KiB. Nearly every piece is aligned without asking.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

/// A block of this size is aligned as it must be, whoever asks.
const fn is_aligned_anyway(size: usize, align: usize) -> bool {
    align <= ALIGNED && align <= size
}

// SAFETY: mimalloc is an allocator. A piece of at least its own alignment, which is a power of two and at most 16, is in a block
// of eight bytes, aligned to eight, if it has at most eight, and else in one of 16 and more, aligned to 16: aligned as it must
// be. All other pieces are asked for with their alignment. What any of these functions gave is freed or moved by any other.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        if size >= LARGE {
            return large(layout, mi_heap_malloc_aligned, mi_malloc_aligned);
        }
        // SAFETY: these take any size, and any power of two for an alignment.
        unsafe {
            if is_aligned_anyway(size, align) { mi_malloc(size) } else { mi_malloc_aligned(size, align) }
                .cast()
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        if size >= LARGE {
            return large(layout, mi_heap_zalloc_aligned, mi_zalloc_aligned);
        }
        // SAFETY: as above.
        unsafe {
            if is_aligned_anyway(size, align) { mi_zalloc(size) } else { mi_zalloc_aligned(size, align) }
                .cast()
        }
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, _: Layout) {
        // SAFETY: it is of this allocator, as the caller promises.
        unsafe { mi_free(ptr.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let align = layout.align();
        if size >= LARGE {
            // SAFETY: as below.
            return unsafe { move_to_large(ptr, layout, size) };
        }
        // SAFETY: it is of this allocator, as the caller promises. A piece that stays where it is stays as it is aligned.
        unsafe {
            match is_aligned_anyway(size, align) {
                true => mi_realloc(ptr.cast(), size),
                false => mi_realloc_aligned(ptr.cast(), size, align),
            }
            .cast()
        }
    }
}

type InHeap = unsafe extern "C" fn(*mut mi_heap_t, usize, usize) -> *mut c_void;
type Anywhere = unsafe extern "C" fn(usize, usize) -> *mut c_void;

/// A piece in the heap for such, if there is one with room.
#[cold]
fn large(layout: Layout, in_heap: InHeap, anywhere: Anywhere) -> *mut u8 {
    let (heap, size, align) = (bulk::heap(), layout.size(), layout.align());
    // SAFETY: these take any size, and any power of two for an alignment; the heap lives as long as the process.
    unsafe {
        let piece = if heap.is_null() { ptr::null_mut() } else { in_heap(heap, size, align) };
        if piece.is_null() { anywhere(size, align) } else { piece }.cast()
    }
}

/// # Safety
/// The piece is of this allocator, with this layout.
#[cold]
unsafe fn move_to_large(ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    let (heap, align) = (bulk::heap(), layout.align());
    // SAFETY: as the caller promises. Where there is no room the piece is still there.
    unsafe {
        let moved = match heap.is_null() {
            true => ptr::null_mut(),
            false => mi_heap_realloc_aligned(heap, ptr.cast(), size, align),
        };
        if moved.is_null() { mi_realloc_aligned(ptr.cast(), size, align) } else { moved }.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a program begins: it has allocated something when it says so, and nothing comes in between. Here others would, as this
    /// allocator is nobody else's.
    fn begin() {
        static BEGUN: std::sync::Once = std::sync::Once::new();
        BEGUN.call_once(|| {
            let layout = Layout::new::<u64>();
            // SAFETY: it is given back as it came.
            unsafe {
                let ptr = Allocator.alloc(layout);
                crate::large_pages_for_data_only();
                Allocator.dealloc(ptr, layout);
            }
        });
    }

    /// A piece that is as it must be: aligned, and holding what was written to it.
    fn check(ptr: *mut u8, layout: Layout, filled: u8) {
        assert!(!ptr.is_null() && ptr.addr().is_multiple_of(layout.align()), "{layout:?}: {ptr:?}");
        // SAFETY: so many bytes of it were written.
        let bytes = unsafe { std::slice::from_raw_parts(ptr, layout.size()) };
        assert!(bytes.iter().all(|byte| *byte == filled), "{layout:?}");
    }

    fn layouts() -> impl Iterator<Item = Layout> {
        let sizes =
            (1..200).chain([255, 256, 257, 1000, 1023, 1024, 1025, 4095, 4096, 5000, 70_000, 1 << 20]);
        sizes.flat_map(|size| (0..13).map(move |log| Layout::from_size_align(size, 1 << log).unwrap()))
    }

    #[test]
    fn every_piece_is_aligned_and_nobody_elses() {
        begin();
        let held: Vec<_> = layouts()
            .enumerate()
            .map(|(n, layout)| {
                let filled = (n % 251) as u8;
                // SAFETY: no layout is of no bytes, and each piece has those that are written.
                let ptr = unsafe {
                    let ptr = Allocator.alloc(layout);
                    ptr.write_bytes(filled, layout.size());
                    ptr
                };
                (ptr, layout, filled)
            })
            .collect();
        for (ptr, layout, filled) in held {
            check(ptr, layout, filled);
            let larger = Layout::from_size_align(layout.size() * 2 + 1, layout.align()).unwrap();
            // SAFETY: it is of this allocator with this layout, and is no more once it is given back.
            unsafe {
                let moved = Allocator.realloc(ptr, layout, larger.size());
                check(moved, layout, filled);
                let back = Allocator.realloc(moved, larger, 1);
                check(back, Layout::from_size_align(1, layout.align()).unwrap(), filled);
                Allocator.dealloc(back, Layout::from_size_align(1, layout.align()).unwrap());
            }
        }
    }

    #[test]
    fn what_is_to_be_zero_is() {
        begin();
        for layout in layouts() {
            // SAFETY: as above.
            unsafe {
                let used = Allocator.alloc(layout);
                used.write_bytes(0xff, layout.size());
                Allocator.dealloc(used, layout);
                let ptr = Allocator.alloc_zeroed(layout);
                check(ptr, layout, 0);
                Allocator.dealloc(ptr, layout);
            }
        }
    }

    /// What the system says of a mapping.
    #[derive(Default)]
    struct Mapping {
        places: std::ops::Range<usize>,
        /// KiB that are there.
        resident: u64,
        flags: Vec<String>,
    }

    impl Mapping {
        fn has(&self, flag: &str) -> bool {
            self.flags.iter().any(|other| other == flag)
        }
    }

    fn mappings() -> Vec<Mapping> {
        let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut mappings, mut here) = (Vec::new(), Mapping::default());
        for line in all.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next().unwrap() {
                "Rss:" => here.resident = words.next().unwrap().parse().unwrap(),
                "VmFlags:" => {
                    here.flags = words.map(str::to_owned).collect();
                    mappings.push(std::mem::take(&mut here));
                }
                first => {
                    if let Some((from, to)) = first.split_once('-') {
                        let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16).unwrap());
                        here.places = from..to;
                    }
                }
            }
        }
        mappings
    }

    #[test]
    fn large_pages_hold_what_is_large_and_nothing_else() {
        begin();
        if !std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
            return;
        }
        let is_large = |layout: Layout, ptr: *mut u8| {
            assert!(!ptr.is_null(), "{layout:?}");
            let here = mappings().into_iter().find(|mapping| mapping.places.contains(&ptr.addr())).unwrap();
            let (large, small) = (here.has("hg"), here.has("nh"));
            assert_ne!(large, small, "{layout:?}: {:?}", here.flags);
            large
        };
        for size in [100, 70_000, LARGE - 1, LARGE, 2 * LARGE] {
            let layout = Layout::from_size_align(size, 1).unwrap();
            // SAFETY: no layout is of no bytes, and what was given is given back as it came.
            unsafe {
                let (ptr, zeroed) = (Allocator.alloc(layout), Allocator.alloc_zeroed(layout));
                assert_eq!(is_large(layout, ptr), size >= LARGE, "{layout:?}");
                assert_eq!(is_large(layout, zeroed), size >= LARGE, "zeroed {layout:?}");
                Allocator.dealloc(zeroed, layout);
                let moved = Allocator.realloc(ptr, layout, 8 * LARGE);
                assert!(is_large(layout, moved), "moved {layout:?}");
                Allocator.dealloc(moved, Layout::from_size_align(8 * LARGE, 1).unwrap());
            }
        }
    }

    /// KiB that are there of what is in large pages.
    fn in_large_pages() -> u64 {
        mappings().iter().filter(|mapping| mapping.has("hg")).map(|mapping| mapping.resident).sum()
    }

    #[tokio::test]
    async fn what_nobody_needs_is_given_back_though_nothing_is_done() {
        begin();
        if !std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
            return;
        }
        let layout = Layout::from_size_align(2 * LARGE, 1).unwrap();
        // SAFETY: as above.
        let held: [*mut u8; 16] = std::array::from_fn(|_| unsafe {
            let ptr = Allocator.alloc(layout);
            ptr.write_bytes(1, layout.size());
            ptr
        });
        let before = in_large_pages();
        assert!(before >= 32 << 10, "{before}");
        let clock = crate::Env::system().clock;
        // SAFETY: as above.
        held.into_iter().for_each(|ptr| unsafe { Allocator.dealloc(ptr, layout) });
        for _ in 0..100 {
            clock.sleep(std::time::Duration::from_millis(200)).await;
            crate::give_back_memory();
            // Other tests have some.
            if in_large_pages() + (16 << 10) < before {
                return;
            }
        }
        panic!("{before} KiB, and {} now", in_large_pages());
    }
}
