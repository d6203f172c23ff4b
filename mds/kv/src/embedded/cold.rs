//! Whether reads wait for the disk.
//!
//! Most of the time what is asked for is in memory, where a read takes a few microseconds, and handing it to another thread would cost
//! several times that. Where it is not, the thread that asks stands still for as long as the disk takes: on a thread that serves
//! connections, everybody behind it waits too, and a server with two processors has two reads at a disk that could do a hundred. Nobody can
//! say beforehand which of the two a read will be, so the last ones say it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A read that takes longer has waited for a disk that is worth another thread, and this much longer for each row. A read takes a few
/// microseconds from memory, 60 to 100 from a fast NVMe, and 500 and more from a disk at the other end of a network.
const WORTH: Duration = Duration::from_micros(150);
const ROW: Duration = Duration::from_micros(2);
/// All reads waited.
const ALL: u32 = 1 << 16;
/// About so many of the last reads count.
const LAST: u32 = 16;
/// With a larger share of them waiting, another thread, which takes some twenty microseconds, costs less than standing still.
const SHARE: u32 = ALL / 8;

/// The share of the last reads that waited for the disk.
#[derive(Debug, Default)]
pub(crate) struct Cold(AtomicU32);

impl Cold {
    /// A read of so many rows took so long. Of two that end together one may not count.
    pub(crate) fn note(&self, took: Duration, rows: usize) {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let waited = took > WORTH + ROW.saturating_mul(rows);
        let before = self.0.load(Ordering::Relaxed);
        let after = before - before / LAST + if waited { ALL / LAST } else { 0 };
        if after != before {
            self.0.store(after, Ordering::Relaxed);
        }
    }

    /// The next read had better be on a thread that may wait.
    pub(crate) fn waits(&self) -> bool {
        self.0.load(Ordering::Relaxed) > SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(5);
    const SLOW: Duration = Duration::from_micros(500);

    #[test]
    fn a_few_slow_reads_in_a_row_say_that_the_disk_answers_and_a_few_fast_ones_that_it_does_not() {
        let cold = Cold::default();
        assert!(!cold.waits());
        cold.note(SLOW, 1);
        assert!(!cold.waits(), "one may have been interrupted");
        (0..2).for_each(|_| cold.note(SLOW, 1));
        assert!(cold.waits());
        (0..1000).for_each(|_| cold.note(SLOW, 1));
        let needed = (0..).take_while(|_| {
            cold.note(FAST, 1);
            cold.waits()
        });
        assert!((10..60).contains(&needed.count()));
    }

    #[test]
    fn what_waits_now_and_then_is_not_worth_another_thread() {
        let cold = Cold::default();
        for round in 0..1000 {
            (0..20).for_each(|_| cold.note(FAST, 1));
            cold.note(SLOW, 1);
            assert!(!cold.waits(), "round {round}");
        }
    }

    #[test]
    fn a_long_listing_is_not_slow() {
        let cold = Cold::default();
        (0..100).for_each(|_| cold.note(Duration::from_micros(1000), 1000));
        assert!(!cold.waits());
        (0..100).for_each(|_| cold.note(Duration::from_micros(1000), 10));
        assert!(cold.waits());
    }
}
