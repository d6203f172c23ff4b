//! The allocator of the programs: mimalloc, asked as it answers fastest.
//!
//! Buffers of 1 MiB come and go with every READ and WRITE: the C library's allocator gives each back to the kernel and
//! faults it in again, which costs more than the copy.
//!
//! The crate `mimalloc` asks for every block with an alignment. Unless a block of exactly that size is free at that moment,
//! and unless the size is a power of two, mimalloc then allocates a larger one and aligns within it, on a path of its own;
//! blocks of many sizes never come from the pages of their size. Nearly everything that Rust allocates needs no more than
//! the alignment of a pointer, which every block of mimalloc has.
#![allow(unsafe_code, reason = "an allocator is unsafe by its signature")]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

use libmimalloc_sys as mi;

/// What every block is aligned to, whatever its size: mimalloc's sizes are multiples of a word, in pages that are aligned
/// to more.
const WORD: usize = size_of::<*const c_void>();

/// mimalloc.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

// SAFETY: mimalloc's blocks have at least the size asked for and belong to whoever got them until they are freed; null
// says that there is no memory. Blocks from all of its functions may be given to `mi_free` and to both of those that
// resize. An alignment of up to a word is that of every block, a larger one is asked for. Nothing here unwinds.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size is allowed; a layout's alignment is a power of two.
        unsafe {
            match layout.align() {
                ..=WORD => mi::mi_malloc(layout.size()),
                align => mi::mi_malloc_aligned(layout.size(), align),
            }
            .cast()
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size is allowed; a layout's alignment is a power of two.
        unsafe {
            match layout.align() {
                ..=WORD => mi::mi_zalloc(layout.size()),
                align => mi::mi_zalloc_aligned(layout.size(), align),
            }
            .cast()
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: by the caller's promise the block is one of ours, and used no more.
        unsafe { mi::mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: by the caller's promise the block is one of ours, with this alignment, which is a power of two. It stays
        // the caller's where null comes back.
        unsafe {
            match layout.align() {
                ..=WORD => mi::mi_realloc(block.cast(), size),
                align => mi::mi_realloc_aligned(block.cast(), size, align),
            }
            .cast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a block, makes it larger and smaller, and looks at its address and at what it holds each time.
    fn exercise(size: usize, align: usize) {
        let layout = Layout::from_size_align(size, align).unwrap();
        let sound = |block: *mut u8| {
            assert!(!block.is_null() && block.addr().is_multiple_of(align), "{size} at {align}")
        };
        // SAFETY: the layout's size is not 0; the block is ours until it is freed, and only bytes that were written are read.
        unsafe {
            let mut block = Allocator.alloc_zeroed(layout);
            sound(block);
            assert!((0..size).all(|at| *block.add(at) == 0), "{size} at {align} not zeroed");
            block.write_bytes(0x5a, size);
            let mut before = size;
            for after in [size * 2 + 1, size.div_ceil(2)] {
                block = Allocator.realloc(block, Layout::from_size_align(before, align).unwrap(), after);
                sound(block);
                assert!((0..size.min(after)).all(|at| *block.add(at) == 0x5a), "{size} at {align} not kept");
                before = after;
            }
            Allocator.dealloc(block, Layout::from_size_align(before, align).unwrap());
        }
    }

    #[test]
    fn blocks_are_aligned_zeroed_and_kept_when_resized() {
        let sizes = (1..200).chain((200..70_000).step_by(997)).chain([1 << 20, (1 << 20) + 24]);
        for size in sizes {
            for align in [1, 2, 4, 8, 16, 64, 4096] {
                exercise(size, align);
            }
        }
    }

    #[test]
    fn what_cannot_be_had_is_null() {
        let layout = Layout::from_size_align(isize::MAX as usize - 64, 8).unwrap();
        // SAFETY: nothing is done with what comes back but to see that it is nothing.
        assert!(unsafe { Allocator.alloc(layout) }.is_null());
    }

    #[test]
    fn blocks_of_one_size_do_not_overlap() {
        let layout = Layout::from_size_align(48, 8).unwrap();
        // SAFETY: the layout's size is not 0; every block is freed once, and written to only within its size.
        unsafe {
            let blocks: Vec<_> = (0..=255u8).map(|fill| (fill, Allocator.alloc(layout))).collect();
            for (fill, block) in &blocks {
                block.write_bytes(*fill, layout.size());
            }
            for (fill, block) in blocks {
                assert!((0..layout.size()).all(|at| *block.add(at) == fill));
                Allocator.dealloc(block, layout);
            }
        }
    }
}
