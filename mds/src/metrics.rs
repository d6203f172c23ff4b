//! Counters of the metadata server. Cheap enough for every operation: relaxed atomics.

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_xdr::nfs4::{nfs_opnum4, nfsstat4};

use crate::compound::{OpError, OpResult};

const OPERATIONS: usize = 80;

/// What `sluice status` and the metrics endpoint show.
#[derive(Debug)]
pub(crate) struct Metrics {
    calls: [AtomicU64; OPERATIONS],
    errors: [AtomicU64; OPERATIONS],
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
    /// LAYOUTSTATS, and those in LAYOUTRETURN.
    pub(crate) layout_stats: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            calls: std::array::from_fn(|_| AtomicU64::new(0)),
            errors: std::array::from_fn(|_| AtomicU64::new(0)),
            proxied_read: AtomicU64::new(0),
            proxied_written: AtomicU64::new(0),
            inline_read: AtomicU64::new(0),
            inline_written: AtomicU64::new(0),
            layouts_granted: AtomicU64::new(0),
            recalls_sent: AtomicU64::new(0),
            layout_errors: AtomicU64::new(0),
            layout_stats: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Counts one operation and says at debug level how it ended.
    pub(crate) fn operation<T>(&self, op: nfs_opnum4, outcome: &OpResult<T>) {
        let Some(at) = usize::try_from(op.0).ok().filter(|at| *at < OPERATIONS) else { return };
        self.calls[at].fetch_add(1, Ordering::Relaxed);
        let status = match outcome {
            Ok(_) => nfsstat4::NFS4_OK,
            Err(OpError::Status(status) | OpError::Arm(status, _)) => *status,
        };
        if status != nfsstat4::NFS4_OK {
            self.errors[at].fetch_add(1, Ordering::Relaxed);
        }
        tracing::debug!(?op, ?status);
    }

    /// Calls and errors of each operation that was called.
    pub(crate) fn operations(&self) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        (0u32..).zip(&self.calls).zip(&self.errors).filter_map(|((op, calls), errors)| {
            let calls = calls.load(Ordering::Relaxed);
            (calls > 0).then(|| (op, calls, errors.load(Ordering::Relaxed)))
        })
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
