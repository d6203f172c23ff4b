//! Counters of the metadata server. Cheap enough for every operation: relaxed atomics.

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_xdr::nfs4::{nfs_opnum4, nfsstat4};

use crate::compound::{OpError, OpResult};

/// What `sluice status` and the metrics endpoint show.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Bytes of READ and WRITE that went through this server instead of straight to a data server.
    pub(crate) proxied_read: AtomicU64,
    pub(crate) proxied_written: AtomicU64,
    /// Bytes of files kept in the metadata itself.
    pub(crate) inline_read: AtomicU64,
    pub(crate) inline_written: AtomicU64,
    pub(crate) layouts_granted: AtomicU64,
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
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            proxied_read: AtomicU64::new(0),
            proxied_written: AtomicU64::new(0),
            inline_read: AtomicU64::new(0),
            inline_written: AtomicU64::new(0),
            layouts_granted: AtomicU64::new(0),
            recalls_sent: AtomicU64::new(0),
            layout_errors: AtomicU64::new(0),
            healed_files: AtomicU64::new(0),
            healed_bytes: AtomicU64::new(0),
            layout_stats: AtomicU64::new(0),
            reports: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Says at debug level how an operation ended.
    pub(crate) fn operation<T>(op: nfs_opnum4, outcome: &OpResult<T>) {
        let status = match outcome {
            Ok(_) => nfsstat4::NFS4_OK,
            Err(OpError::Status(status) | OpError::Arm(status, _)) => *status,
        };
        tracing::debug!(?op, ?status);
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
