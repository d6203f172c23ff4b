//! How fast data files are moved, and how fast they may be.

use std::time::Duration;

use sluice_state::Time;

use super::census::Amount;

const SECOND: u64 = 1_000_000_000;
/// What a rate is of.
const WINDOW: u64 = 5 * SECOND;
/// Who has moved nothing for so long stands still. Longer than two need that meet at the same files to get out of each
/// other's way.
const STILL: u64 = 30 * SECOND;

/// Of one that moves several files at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Since it began.
    pub(crate) moved: Amount,
    /// Per second, lately.
    pub(crate) rate: Amount,
    /// Where the window of the rate began, and what had been moved then.
    since: Option<(Time, Amount)>,
    /// Copied, of files that are not moved yet.
    copied: u64,
    /// When more may be copied, where there is a limit.
    next: Time,
    /// When something was copied or moved last, or it was first looked at.
    stirred: Option<Time>,
}

impl Pace {
    /// A file is where it was to go.
    pub(crate) fn moved(&mut self, now: Time, amount: Amount) {
        self.moved = self.moved.plus(amount);
        self.copied = self.copied.saturating_sub(amount.bytes);
        self.stirred = Some(now);
        self.look(now);
    }

    /// So much was copied; how long to wait before more is. `limit`: bytes per second, 0 for none.
    pub(crate) fn copied(&mut self, now: Time, limit: u64, bytes: u64) -> Duration {
        self.copied = self.copied.saturating_add(bytes);
        self.stirred = Some(now);
        self.look(now);
        let Some(nanos) = (u128::from(bytes) * u128::from(SECOND)).checked_div(limit.into()) else {
            return Duration::ZERO;
        };
        // Several files share the limit: each waits for its own turn behind the others'.
        let turn = self.next.max(now);
        self.next = turn.plus_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Duration::from_nanos(self.next.since(now))
    }

    /// As of the last look.
    pub(crate) fn stands_still(&self, now: Time) -> bool {
        self.stirred.is_some_and(|stirred| now.since(stirred) >= STILL)
    }

    /// The rate as of `now`.
    pub(crate) fn look(&mut self, now: Time) {
        self.stirred.get_or_insert(now);
        let so_far = Amount { bytes: self.moved.bytes.saturating_add(self.copied), ..self.moved };
        let (since, before) = *self.since.get_or_insert((now, so_far));
        let nanos = now.since(since);
        if nanos < WINDOW {
            return;
        }
        let per_second = |n: u64| {
            u64::try_from(u128::from(n) * u128::from(SECOND) / u128::from(nanos)).unwrap_or(u64::MAX)
        };
        let done = so_far.minus(before);
        self.rate = Amount { data_files: per_second(done.data_files), bytes: per_second(done.bytes) };
        self.since = Some((now, so_far));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_shared_by_all_files_that_are_moved() {
        let (mut pace, at) = (Pace::default(), Time::from_secs);
        assert_eq!(pace.copied(at(50), 100, 100), Duration::from_secs(1));
        assert_eq!(pace.copied(at(50), 100, 50), Duration::from_millis(1500), "behind the first");
        assert_eq!(pace.copied(at(60), 100, 50), Duration::from_millis(500), "nothing is saved up");
        assert_eq!(Pace::default().copied(at(50), 0, u64::MAX), Duration::ZERO);
    }

    #[test]
    fn who_has_only_begun_does_not_stand_still() {
        let (mut pace, at) = (Pace::default(), Time::from_secs);
        assert!(!pace.stands_still(at(50)));
        pace.look(at(50));
        pace.look(at(79));
        assert!(!pace.stands_still(at(79)));
        assert!(pace.stands_still(at(80)));
        pace.copied(at(81), 0, 1);
        assert!(!pace.stands_still(at(110)));
        assert!(pace.stands_still(at(111)));
    }
}
