//! Time as the state machines count it: it stands still while this process does, and while it may not have its store.
//!
//! Who was stopped (a host paused or moved, out of memory, in a debugger) finds the renewals of that time unread in its
//! sockets, behind timers that are all due. By a clock that went on it would take every client's state before it reads the
//! first of them. While another server may have the store nobody is answered, and nothing that anybody sends is a renewal,
//! a return or a heartbeat. Nobody is wronged by counting less: a lease is a promise of how long at least (RFC 8881 §8.3),
//! and a data server that nobody heard stops by its own clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::Monotonic;
use sluice_state::Time;

use crate::server::Mds;

/// Somebody asks at least every second (`reaper`): who was not asked for so long was stopped. Nanoseconds.
const STOPPED: u64 = 3_000_000_000;
/// What of such a time counts.
const COUNTED: u64 = 1_000_000_000;
/// Between two looks whether the store is ours again.
const AWAY: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// When it was asked last, by the real clock.
    last: AtomicU64,
    /// What the real clock is ahead.
    lost: AtomicU64,
    /// The store may have been another's when it was asked last.
    away: AtomicBool,
    finding: Mutex<()>,
}

impl Pulse {
    /// Goes with the real clock from now on.
    pub(crate) fn beginning(real: Monotonic) -> Self {
        Self { last: AtomicU64::new(real.0), ..Self::default() }
    }

    /// The time, when the real clock says this, and the store is ours or may not be.
    pub(crate) fn time(&self, real: Monotonic, ours: bool) -> Time {
        let last = self.last.load(Ordering::Acquire);
        if real.0.saturating_sub(last) >= STOPPED || !ours || self.away.load(Ordering::Acquire) {
            self.find(real.0, ours);
        } else {
            self.last.fetch_max(real.0, Ordering::AcqRel);
        }
        Time(real.0.saturating_sub(self.lost.load(Ordering::Acquire)))
    }

    /// When the real clock will say so, if nothing stops until then.
    pub(crate) fn real(&self, at: Time) -> Monotonic {
        Monotonic(at.0.saturating_add(self.lost.load(Ordering::Acquire)))
    }

    /// Of the time since it was asked last some does not count.
    fn find(&self, real: u64, ours: bool) {
        let _finding = self.finding.lock();
        let passed = real.saturating_sub(self.last.load(Ordering::Acquire));
        let was_away = self.away.load(Ordering::Acquire);
        let counts = match was_away {
            true => 0,
            // Else another thread has just found it.
            false if passed >= STOPPED => COUNTED,
            false => passed,
        };
        self.lost.fetch_add(passed - counts, Ordering::AcqRel);
        // After that: who sees this sees what was lost.
        self.last.fetch_max(real, Ordering::AcqRel);
        self.away.store(!ours, Ordering::Release);
        if !was_away && passed >= STOPPED {
            tracing::warn!(
                seconds = passed / 1_000_000_000,
                "this server did not run for a while: leases and other waits go on from where they were"
            );
        }
        match (was_away, ours) {
            (false, false) => {
                tracing::warn!("another server may have the store: leases and other waits stand still")
            }
            (true, true) => tracing::info!("the store is ours: leases and other waits go on"),
            _ => {}
        }
    }
}

impl Mds {
    /// Now, as the state machines count: it stands still while this process does, or may not have its store.
    pub(crate) fn now(&self) -> Time {
        self.pulse.time(self.env.clock.now(), self.db.is_ours())
    }

    /// Completes when time goes on: until then what is due is not, and what is nearly due would be looked for without end.
    pub(crate) async fn time_goes_on(&self) {
        while !self.db.is_ours() {
            self.now();
            self.env.clock.sleep(AWAY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(pulse: &Pulse, seconds: u64, ours: bool) -> u64 {
        pulse.time(Monotonic(seconds * SECOND), ours).0 / SECOND
    }

    #[test]
    fn time_stands_still_while_nobody_asks() {
        let pulse = Pulse::beginning(Monotonic(100 * SECOND));
        let at = |seconds| at(&pulse, seconds, true);
        assert_eq!([at(100), at(101), at(103)], [100, 101, 103]);
        assert_eq!(at(203), 104, "a hundred seconds count as one");
        assert_eq!(at(205), 106);
        assert_eq!(at(305), 107);
        assert_eq!(pulse.real(Time(110 * SECOND)), Monotonic(308 * SECOND));
    }

    #[test]
    fn a_thread_that_was_overtaken_changes_nothing() {
        let pulse = Pulse::beginning(Monotonic(100 * SECOND));
        let at = |seconds| at(&pulse, seconds, true);
        assert_eq!([at(100), at(200)], [100, 101]);
        assert!(at(199) <= 101, "it had read the clock before");
        assert_eq!(at(201), 102);
    }

    #[test]
    fn time_stands_still_while_the_store_may_be_anothers() {
        let pulse = Pulse::beginning(Monotonic(100 * SECOND));
        assert_eq!([at(&pulse, 101, true), at(&pulse, 102, false)], [101, 102]);
        assert_eq!([at(&pulse, 103, false), at(&pulse, 150, false)], [102, 102]);
        assert_eq!(pulse.real(Time(110 * SECOND)), Monotonic(158 * SECOND));
        // Until it is known that it is ours again.
        assert_eq!([at(&pulse, 151, true), at(&pulse, 152, true)], [102, 103]);
    }

    /// Whoever was heard of meanwhile is not silent for longer than it really was.
    #[test]
    fn what_began_while_it_stood_still_never_takes_longer_than_by_the_real_clock() {
        let pulse = Pulse::beginning(Monotonic(100 * SECOND));
        at(&pulse, 101, true);
        let heard = at(&pulse, 103, false);
        assert_eq!(at(&pulse, 103, true) - heard, 0);
        assert_eq!(at(&pulse, 105, true) - heard, 2);
    }

    #[test]
    fn who_was_stopped_and_has_lost_its_store_meanwhile_counts_as_stopped() {
        let pulse = Pulse::beginning(Monotonic(100 * SECOND));
        assert_eq!([at(&pulse, 200, false), at(&pulse, 202, false), at(&pulse, 204, true)], [101; 3]);
        assert_eq!(at(&pulse, 205, true), 102);
    }
}
