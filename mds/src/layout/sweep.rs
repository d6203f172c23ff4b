//! A walk over all rows of a table, again and again, page by page: whoever does it has other things to do in between.

use std::time::Duration;

use sluice_env::Monotonic;

/// Between two walks.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// The same, as a multiple of what the last one took: most of the time is others'.
const REST: u32 = 4;

/// Its place is told by a `P`, the last row that was looked at.
#[derive(Debug)]
pub(super) struct Sweep<P> {
    walk: Option<Walk<P>>,
    /// When there is something to do.
    next: Monotonic,
    /// The end of the last walk, and what its pages took.
    ended: Monotonic,
    took: Duration,
    /// Somebody wants one that has not begun: the last number before the first of them.
    asked: Option<u64>,
}

#[derive(Debug)]
struct Walk<P> {
    after: Option<P>,
    took: Duration,
    /// Somebody wanted it: the last number before the first of them.
    asked: Option<u64>,
}

impl<P> Sweep<P> {
    pub(super) fn new(now: Monotonic) -> Self {
        Self { walk: None, next: now, ended: now, took: Duration::ZERO, asked: None }
    }

    /// One is to begin soon: at once, if the last one did not take long. Whoever asks has a number above `before`, and those
    /// who asked earlier have none above it.
    pub(super) fn ask(&mut self, before: u64) {
        self.asked = self.asked.or(Some(before));
        self.hasten();
    }

    fn hasten(&mut self) {
        if self.walk.is_none() {
            self.next = self.next.min(self.ended + self.took);
        }
    }

    /// Up to which number, of those up to `last`, nobody waits: the walks they asked for are over, or have failed.
    pub(super) fn answered(&self, last: u64) -> u64 {
        self.walk.as_ref().and_then(|walk| walk.asked).or(self.asked).unwrap_or(last)
    }

    /// When there is something to do.
    pub(super) fn next(&self) -> Monotonic {
        self.next
    }
}

impl<P: Copy> Sweep<P> {
    /// Behind which row the next page is, if it is time for it.
    pub(super) fn turn(&mut self, now: Monotonic) -> Option<Option<P>> {
        if now < self.next {
            return None;
        }
        let asked = &mut self.asked;
        let begun = || Walk { after: None, took: Duration::ZERO, asked: asked.take() };
        Some(self.walk.get_or_insert_with(begun).after)
    }

    /// A page took from `began` to `now`: the last row of it; within, `None`: that was all. `None`: it failed, and is tried again.
    pub(super) fn turned(&mut self, began: Monotonic, now: Monotonic, page: Option<Option<P>>) {
        let Some(walk) = &mut self.walk else { return };
        walk.took += now.since(began);
        match page {
            Some(Some(last)) => walk.after = Some(last),
            Some(None) => {
                (self.ended, self.took) = (now, walk.took);
                self.walk = None;
                self.next = now + PAUSE.max(self.took * REST);
                if self.asked.is_some() {
                    self.hasten();
                }
            }
            None => {
                walk.asked = None;
                self.next = now + PAUSE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic(millis * 1_000_000)
    }

    #[test]
    fn who_asks_waits_for_the_rest_of_a_long_walk_and_not_of_a_short_one() {
        let mut sweep = Sweep::<u8>::new(at(0));
        assert_eq!(sweep.turn(at(0)), Some(None));
        sweep.turned(at(0), at(10_000), Some(Some(7)));
        assert_eq!(sweep.turn(at(10_000)), Some(Some(7)));
        sweep.turned(at(10_000), at(20_000), Some(None));
        assert_eq!((sweep.turn(at(20_000)), sweep.next()), (None, at(100_000)));
        sweep.ask(0);
        assert_eq!(sweep.answered(1), 0);
        assert_eq!((sweep.turn(at(39_999)), sweep.turn(at(40_000))), (None, Some(None)));
        // Somebody asks for another one while it is under way.
        sweep.ask(1);
        sweep.turned(at(40_000), at(40_001), Some(None));
        assert_eq!((sweep.answered(2), sweep.next()), (1, at(40_002)));
        assert_eq!(sweep.turn(at(40_002)), Some(None));
        sweep.turned(at(40_002), at(40_003), Some(None));
        assert_eq!((sweep.answered(2), sweep.next()), (2, at(45_003)));
    }

    #[test]
    fn what_failed_goes_on_where_it_was() {
        let mut sweep = Sweep::<u8>::new(at(0));
        sweep.ask(0);
        sweep.turn(at(0));
        sweep.turned(at(0), at(1), Some(Some(7)));
        sweep.turned(at(1), at(2), None);
        assert_eq!((sweep.turn(at(3)), sweep.answered(1)), (None, 1));
        assert_eq!(sweep.turn(at(5_002)), Some(Some(7)));
    }

    #[test]
    fn the_end_of_a_walk_answers_all_who_asked_before_it_began() {
        let mut sweep = Sweep::<u8>::new(at(0));
        let (mut now, mut last) = (at(0), 0);
        let ask = |sweep: &mut Sweep<u8>, last: &mut u64| {
            sweep.ask(*last);
            *last += 1;
        };
        ask(&mut sweep, &mut last);
        let mut answered = 0;
        for _ in 0..5 {
            now = now.max(sweep.next());
            let begun = last;
            assert_eq!(sweep.turn(now), Some(None));
            for page in [Some(7), Some(8), None] {
                // Several in each turn, in all of them.
                ask(&mut sweep, &mut last);
                ask(&mut sweep, &mut last);
                assert_eq!(sweep.answered(last), answered);
                let began = now;
                now = now + Duration::from_millis(1);
                sweep.turned(began, now, Some(page));
                if page.is_some() {
                    assert_eq!((sweep.answered(last), sweep.turn(now)), (answered, Some(page)));
                }
            }
            answered = begun;
            assert_eq!(sweep.answered(last), answered);
        }
    }
}
