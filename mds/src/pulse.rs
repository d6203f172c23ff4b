//! Time as the state machines count it: it stands still while this process does.
//!
//! Who was stopped (a host paused or moved, out of memory, in a debugger) finds the renewals of that time unread in its
//! sockets, behind timers that are all due. By a clock that went on it would take every client's state before it reads the
//! first of them. Nobody is wronged by counting less: a lease is a promise of how long at least (RFC 8881 §8.3).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sluice_env::Monotonic;
use sluice_state::Time;

/// Somebody asks at least every second (`reaper`): who was not asked for so long was stopped. Nanoseconds.
const STOPPED: u64 = 3_000_000_000;
/// What of such a time counts.
const COUNTED: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// When it was asked last, by the real clock; 0: never.
    last: AtomicU64,
    /// What the real clock is ahead.
    lost: AtomicU64,
    finding: Mutex<()>,
}

impl Pulse {
    /// The time, when the real clock says this.
    pub(crate) fn time(&self, real: Monotonic) -> Time {
        let last = self.last.load(Ordering::Acquire);
        if last > 0 && real.0.saturating_sub(last) >= STOPPED {
            self.find(real.0);
        } else {
            self.last.fetch_max(real.0, Ordering::AcqRel);
        }
        Time(real.0.saturating_sub(self.lost.load(Ordering::Acquire)))
    }

    /// When the real clock will say so, if nothing stops until then.
    pub(crate) fn real(&self, at: Time) -> Monotonic {
        Monotonic(at.0.saturating_add(self.lost.load(Ordering::Acquire)))
    }

    fn find(&self, real: u64) {
        let _finding = self.finding.lock();
        let stopped = real.saturating_sub(self.last.load(Ordering::Acquire));
        // Else another thread has just found it.
        if stopped >= STOPPED {
            self.lost.fetch_add(stopped - COUNTED, Ordering::AcqRel);
            // After that: who sees this sees what was lost.
            self.last.fetch_max(real, Ordering::AcqRel);
            tracing::warn!(
                seconds = stopped / 1_000_000_000,
                "this server did not run for a while: leases and other waits go on from where they were"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn time_stands_still_while_nobody_asks() {
        let pulse = Pulse::default();
        let at = |seconds: u64| pulse.time(Monotonic(seconds * SECOND)).0 / SECOND;
        // However late the first question comes: nobody was there before.
        assert_eq!([at(100), at(101), at(103)], [100, 101, 103]);
        assert_eq!(at(203), 104, "a hundred seconds count as one");
        assert_eq!(at(205), 106);
        assert_eq!(at(305), 107);
        assert_eq!(pulse.real(Time(110 * SECOND)), Monotonic(308 * SECOND));
    }

    #[test]
    fn a_thread_that_was_overtaken_changes_nothing() {
        let pulse = Pulse::default();
        let at = |seconds: u64| pulse.time(Monotonic(seconds * SECOND)).0 / SECOND;
        assert_eq!([at(100), at(200)], [100, 101]);
        assert!(at(199) <= 101, "it had read the clock before");
        assert_eq!(at(201), 102);
    }
}
