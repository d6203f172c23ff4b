//! What each operation was answered, and how long it took: three relaxed additions for each.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_xdr::nfs4::nfsstat4;

use super::add;
use crate::compound::table::{self, Row};

/// One more than the largest operation number that is counted.
const OPERATIONS: usize = 80;
/// NFSv4 has statuses up to 128, as errno has them, and some from 10001 on.
const LOW: u32 = 128;
const HIGH: u32 = 10_000;
const STATUSES: usize = 256;
/// Latency buckets: bucket `k` counts what took less than `2^k` microseconds and not less than half of that; the
/// last one everything longer. As those of calls (sluice_rpc).
pub const BUCKETS: usize = sluice_rpc::metrics::BUCKETS;

/// All operations. SEQUENCE is not among them: it is part of each COMPOUND, and those are counted as calls.
pub(crate) struct Operations(Box<[Operation]>);

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Operations")
    }
}

struct Operation {
    statuses: [AtomicU64; STATUSES],
    nanos: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Operation {
    fn default() -> Self {
        Self {
            statuses: std::array::from_fn(|_| AtomicU64::new(0)),
            nanos: AtomicU64::new(0),
            buckets: Default::default(),
        }
    }
}

/// One operation since the start.
#[derive(Clone, Debug)]
pub struct OperationSnapshot {
    /// The RFC's name without OP_.
    pub name: &'static str,
    /// How it was answered how often, as the RFC spells the status.
    pub statuses: Vec<(String, u64)>,
    pub total: Duration,
    /// See [`BUCKETS`].
    pub buckets: [u64; BUCKETS],
}

impl Default for Operations {
    fn default() -> Self {
        Self((0..OPERATIONS).map(|_| Operation::default()).collect())
    }
}

impl Operations {
    pub(crate) fn record(&self, row: &Row, status: nfsstat4, took: Duration) {
        let Some(operation) = self.0.get(row.op.0 as usize) else { return };
        if let Some(count) = operation.statuses.get(slot(status)) {
            add(count, 1);
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - (nanos / 1000).leading_zeros()) as usize;
        add(&operation.nanos, nanos);
        if let Some(count) = operation.buckets.get(bucket.min(BUCKETS - 1)) {
            add(count, 1);
        }
    }

    /// Those that were called at least once.
    pub(crate) fn snapshot(&self) -> Vec<OperationSnapshot> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = self.0.iter().zip(0..).filter_map(|(operation, number)| {
            let statuses: Vec<_> = (0..)
                .zip(&operation.statuses)
                .map(|(slot, count)| (slot, load(count)))
                .filter(|(_, count)| *count > 0)
                .map(|(slot, count)| (format!("{:?}", status(slot)), count))
                .collect();
            let row = table::find(number, 2).filter(|_| !statuses.is_empty())?;
            Some(OperationSnapshot {
                name: row.name,
                statuses,
                total: Duration::from_nanos(load(&operation.nanos)),
                buckets: std::array::from_fn(|k| operation.buckets.get(k).map_or(0, load)),
            })
        });
        all.collect()
    }
}

fn slot(status: nfsstat4) -> usize {
    let slot = if status.0 < LOW { status.0 } else { LOW + status.0.saturating_sub(HIGH) };
    // What no RFC has is counted together.
    (slot as usize).min(STATUSES - 1)
}

fn status(slot: u32) -> nfsstat4 {
    nfsstat4(if slot < LOW { slot } else { HIGH + slot - LOW })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_place_of_its_own() {
        for number in (0..LOW).chain(HIGH + 1..HIGH + 127) {
            assert_eq!(status(u32::try_from(slot(nfsstat4(number))).unwrap()), nfsstat4(number));
        }
        assert_eq!(slot(nfsstat4(u32::MAX)), STATUSES - 1);
    }

    #[test]
    fn operations_are_told_apart_by_name_and_status() {
        let all = Operations::default();
        let getattr = table::find(9, 1).unwrap();
        all.record(getattr, nfsstat4::NFS4_OK, Duration::from_micros(3));
        all.record(getattr, nfsstat4::NFS4_OK, Duration::from_micros(1000));
        all.record(getattr, nfsstat4::NFS4ERR_STALE, Duration::ZERO);
        let all = all.snapshot();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].name, "GETATTR");
        let statuses: Vec<_> = all[0].statuses.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(statuses, [("NFS4_OK", 2), ("NFS4ERR_STALE", 1)]);
        assert_eq!(all[0].total, Duration::from_micros(1003));
        assert_eq!((all[0].buckets[0], all[0].buckets[2], all[0].buckets[10]), (1, 1, 1));
    }
}
