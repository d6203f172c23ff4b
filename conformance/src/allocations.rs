//! An allocator that counts, for `bench-mds`: how often a server asks for memory is a cost that no other process on the
//! machine disturbs. It is the shipped one underneath.
#![allow(unsafe_code, reason = "an allocator is unsafe by its signature")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sluice_env::Allocator;

/// Threads share a few counters, each in a cache line of its own.
const COUNTERS: usize = 32;

#[repr(align(128))]
struct Counter(AtomicU64);

static COUNTED: [Counter; COUNTERS] = [const { Counter(AtomicU64::new(0)) }; COUNTERS];
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn count() {
    // A thread whose locals are gone is about to end.
    let mine = MINE.try_with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        mine.get()
    });
    if let Some(counter) = COUNTED.get(mine.unwrap_or(0) % COUNTERS) {
        counter.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often memory was asked for so far, by the whole process. Making room larger counts.
#[must_use]
#[inline(never)] // `bench-mds --instructions` goes by its name.
pub fn allocations() -> u64 {
    COUNTED.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum()
}

/// Counts, and lets another allocate.
#[derive(Debug)]
pub struct Counting;

// SAFETY: every call goes to another allocator with the arguments it came with. The counters are statics, and a thread
// local that is constant-initialised and has no destructor, so that counting never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { Allocator.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { Allocator.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises about `ptr` and `layout` are passed on.
        unsafe { Allocator.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises about `ptr`, `layout` and `new_size` are passed on.
        unsafe { Allocator.realloc(ptr, layout, new_size) }
    }
}
