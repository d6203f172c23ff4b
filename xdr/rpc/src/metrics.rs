//! Counters and latency per procedure, cheap enough for every call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Procedures counted one by one; the last slot takes all higher numbers.
const PROCEDURES: usize = 32;

/// Latency buckets: bucket `k` counts calls that took less than `2^k` microseconds and not less than half
/// of that; the last one everything longer.
pub const BUCKETS: usize = 28;

/// Counters of all programs of one kind of connection.
#[derive(Debug)]
pub struct Metrics {
    programs: Vec<(u32, Box<[Procedure]>)>,
}

#[derive(Debug, Default)]
struct Procedure {
    calls: AtomicU64,
    failed: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    nanos: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// The counters of one procedure at one moment, since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureSnapshot {
    pub program: u32,
    pub procedure: u32,
    /// Calls answered.
    pub calls: u64,
    /// Those of them answered by an RPC-level error.
    pub failed: u64,
    /// Bytes of arguments.
    pub bytes_in: u64,
    /// Bytes of results.
    pub bytes_out: u64,
    /// Sum of all latencies.
    pub total: Duration,
    /// Calls per latency bucket, see [`BUCKETS`].
    pub buckets: [u64; BUCKETS],
}

impl ProcedureSnapshot {
    /// An upper bound for the latency that the fraction `q` (0 to 1) of the calls did not exceed; within a
    /// factor of two.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = (self.calls as f64 * q.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (k, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) {
                return Duration::from_micros(1 << k);
            }
        }
        Duration::ZERO
    }
}

impl Metrics {
    pub(crate) fn new(programs: impl Iterator<Item = u32>) -> Self {
        let mut metrics = Self { programs: Vec::new() };
        for number in programs {
            if metrics.programs.iter().all(|(n, _)| *n != number) {
                metrics.programs.push((number, (0..PROCEDURES).map(|_| Procedure::default()).collect()));
            }
        }
        metrics
    }

    pub(crate) fn record(
        &self,
        program: u32,
        procedure: u32,
        good: bool,
        bytes_in: usize,
        bytes_out: usize,
        took: Duration,
    ) {
        let Some((_, procedures)) = self.programs.iter().find(|(n, _)| *n == program) else { return };
        let Some(slot) = procedures.get((procedure as usize).min(PROCEDURES - 1)) else { return };
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - (nanos / 1000).leading_zeros()) as usize;
        slot.calls.fetch_add(1, Ordering::Relaxed);
        if !good {
            slot.failed.fetch_add(1, Ordering::Relaxed);
        }
        slot.bytes_in.fetch_add(bytes_in as u64, Ordering::Relaxed);
        slot.bytes_out.fetch_add(bytes_out as u64, Ordering::Relaxed);
        slot.nanos.fetch_add(nanos, Ordering::Relaxed);
        if let Some(count) = slot.buckets.get(bucket.min(BUCKETS - 1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The procedures that were called at least once, in the order of their programs and numbers. All
    /// procedures above 30 are shown as 31.
    pub fn snapshot(&self) -> Vec<ProcedureSnapshot> {
        let mut all = Vec::new();
        for (program, procedures) in &self.programs {
            for (number, p) in (0..).zip(procedures.iter()) {
                let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
                if load(&p.calls) == 0 {
                    continue;
                }
                all.push(ProcedureSnapshot {
                    program: *program,
                    procedure: number,
                    calls: load(&p.calls),
                    failed: load(&p.failed),
                    bytes_in: load(&p.bytes_in),
                    bytes_out: load(&p.bytes_out),
                    total: Duration::from_nanos(load(&p.nanos)),
                    buckets: std::array::from_fn(|k| p.buckets.get(k).map_or(0, load)),
                });
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_land_where_they_belong() {
        let m = Metrics::new([7, 8, 7].into_iter());
        m.record(7, 1, true, 10, 100, Duration::from_nanos(999));
        m.record(7, 1, false, 10, 0, Duration::from_micros(1000));
        m.record(7, 4_000_000_000, true, 0, 0, Duration::MAX);
        m.record(9, 1, true, 1, 1, Duration::ZERO);
        let all = m.snapshot();
        assert_eq!(all.len(), 2);
        let one = &all[0];
        assert_eq!((one.program, one.procedure, one.calls, one.failed), (7, 1, 2, 1));
        assert_eq!((one.bytes_in, one.bytes_out, one.total), (20, 100, Duration::from_nanos(1_000_999)));
        assert_eq!((one.buckets[0], one.buckets[10]), (1, 1), "{:?}", one.buckets);
        assert_eq!(one.quantile(0.5), Duration::from_micros(1));
        assert_eq!(one.quantile(0.99), Duration::from_micros(1024));
        assert_eq!((all[1].procedure, all[1].buckets[BUCKETS - 1]), (31, 1));
    }
}
