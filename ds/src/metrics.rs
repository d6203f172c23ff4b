//! What a data server shows of itself, put together from counters that it keeps anyway.

use sluice_store::{Capacity, Scrub};

use crate::server::{DataServer, Status};

/// A data server at one moment; counters count from its start.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub status: Status,
    pub flushes: u64,
    pub flush_failures: u64,
    /// Bytes written past the page cache.
    pub direct_bytes: u64,
    /// Bytes that went from sockets to the page cache without a stay in our memory.
    pub piped_bytes: u64,
    /// Checksums at rest.
    pub scrub: Scrub,
    /// `None`: the device does not tell.
    pub capacity: Option<Capacity>,
}

impl DataServer {
    /// Everything there is to show. Asks the device for its capacity.
    pub async fn metrics(&self) -> Metrics {
        let store = self.store();
        Metrics {
            status: self.status(),
            flushes: store.flushes(),
            flush_failures: store.flush_failures(),
            direct_bytes: store.direct_bytes(),
            piped_bytes: store.piped_bytes(),
            scrub: store.scrubbed(),
            capacity: store.capacity().await.ok(),
        }
    }
}
