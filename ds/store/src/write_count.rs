//! Numbers of writes: whether a data file was written to since some moment, exactly, whatever the resolution of
//! the device's clock.

use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of one incarnation: more writes than a device could take in its life.
const PER_BOOT: u32 = 40;

/// Numbers writes in ascending order, across restarts too.
#[derive(Debug)]
pub(crate) struct WriteCount {
    newest: AtomicU64,
    /// At least the number of the newest write of any data file that is not open.
    forgotten: AtomicU64,
}

impl WriteCount {
    pub(crate) fn new(boot: u64) -> Self {
        let first = boot << PER_BOOT;
        Self { newest: AtomicU64::new(first), forgotten: AtomicU64::new(first) }
    }

    /// The number of a write that is complete and not yet acknowledged.
    pub(crate) fn next(&self) -> u64 {
        self.newest.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// A data file with this number is closed.
    pub(crate) fn forget(&self, last_write: u64) {
        self.forgotten.fetch_max(last_write, Ordering::AcqRel);
    }

    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Acquire)
    }
}
