//! How a write gets to the device: [ADR 0025](../../../docs/adr/0025-large-stable-writes-go-past-the-page-cache.md).

use std::sync::atomic::Ordering;

use crate::{Stability, Store};

/// The way of a write to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By way of the page cache.
    Cached,
    /// Past it.
    Direct,
}

/// Bytes of a write that is worth a way of its own, if somebody waits for it to be durable.
const DIRECT: usize = 256 << 10;

impl Way {
    /// Of a write of so many bytes.
    pub(crate) fn of(length: usize, stability: Stability) -> Self {
        if length >= DIRECT && stability != Stability::Unstable { Self::Direct } else { Self::Cached }
    }
}

impl Store {
    /// Bytes sent past the page cache since the store was opened.
    pub fn direct_bytes(&self) -> u64 {
        self.direct_bytes.load(Ordering::Relaxed)
    }
}
