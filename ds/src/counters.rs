//! What this server has done since it started.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters at one moment, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub reads: u64,
    pub writes: u64,
    pub commits: u64,
    /// A handle, its rights or a fence said no.
    pub refused: u64,
    /// The device said no.
    pub errors: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    commits: AtomicU64,
    refused: AtomicU64,
    errors: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn read(&self, bytes: usize) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes as u64);
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes as u64);
    }

    pub(crate) fn committed(&self) {
        add(&self.commits, 1);
    }

    pub(crate) fn refused(&self) {
        add(&self.refused, 1);
    }

    pub(crate) fn error(&self) {
        add(&self.errors, 1);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            reads: get(&self.reads),
            writes: get(&self.writes),
            commits: get(&self.commits),
            refused: get(&self.refused),
            errors: get(&self.errors),
        }
    }
}
