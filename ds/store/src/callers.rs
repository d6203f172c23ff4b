//! Threads that serve connections and do small things at the device themselves. One of them never does: should the device
//! hang in the middle of what is otherwise done in memory (the file system's journal stands still, dirty pages cannot
//! leave), it is what is left to tell of that, and to close the connections of those who can go elsewhere.

use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug)]
pub(crate) struct Callers {
    most: usize,
    inside: AtomicUsize,
}

impl Callers {
    /// At most so many are at the device at once.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, inside: AtomicUsize::new(0) }
    }

    /// The calling thread goes to the device, until what is returned is dropped. `None`: it must not, others are there.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let inside = Inside(self);
        (self.inside.fetch_add(1, Ordering::Relaxed) < self.most).then_some(inside)
    }
}

#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Callers);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}
