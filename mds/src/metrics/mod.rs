//! Counters of the metadata server. Cheap enough for every operation: relaxed atomics.

mod operations;
mod statistics;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_xdr::nfs4::nfsstat4;

use crate::compound::table::Row;
use crate::compound::{OpError, OpResult};
use operations::Operations;
pub use operations::{BUCKETS, OperationSnapshot};
pub(crate) use statistics::lease_words;
pub use statistics::{BalanceStatistics, DataServerStatistics, QuotaStatistics, Statistics};

/// What `sluice status` and the metrics endpoint show.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Bytes of READ and WRITE that went through this server instead of straight to a data server.
    pub(crate) proxied_read: AtomicU64,
    pub(crate) proxied_written: AtomicU64,
    /// Bytes of files kept in the metadata itself.
    pub(crate) inline_read: AtomicU64,
    pub(crate) inline_written: AtomicU64,
    pub(crate) layouts_granted: AtomicU64,
    /// Files that began at data servers because those before them became large: they did, too, or did not.
    pub(crate) foreseen: AtomicU64,
    pub(crate) misjudged: AtomicU64,
    /// LAYOUTRETURNs of a file that gave something back.
    pub(crate) layouts_returned: AtomicU64,
    /// Taken away: not returned in time, or with the lease.
    pub(crate) layouts_revoked: AtomicU64,
    pub(crate) recalls_sent: AtomicU64,
    /// Errors at data servers that clients reported.
    pub(crate) layout_errors: AtomicU64,
    /// Files whose mirrors were made equal, and the bytes written for it.
    pub(crate) healed_files: AtomicU64,
    pub(crate) healed_bytes: AtomicU64,
    /// LAYOUTSTATS, and those in LAYOUTRETURN.
    pub(crate) layout_stats: AtomicU64,
    /// Calls of data servers, heartbeats aside.
    pub(crate) reports: AtomicU64,
    pub(crate) operations: Operations,
}

impl Metrics {
    /// Bytes of inline files.
    pub(crate) fn add_inline(&self, read: u64, written: u64) {
        add(&self.inline_read, read);
        add(&self.inline_written, written);
    }

    /// Counts how an operation ended, and says it at debug level.
    pub(crate) fn operation<T>(&self, row: &Row, outcome: &OpResult<T>, took: Duration) {
        let status = match outcome {
            Ok(_) => nfsstat4::NFS4_OK,
            Err(OpError::Status(status) | OpError::Arm(status, _)) => *status,
        };
        self.operations.record(row, status, took);
        tracing::debug!(op = ?row.op, ?status);
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
