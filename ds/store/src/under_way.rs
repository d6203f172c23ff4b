//! Where writes are under way: queued, or at work on a thread of a lane. Whoever is about to write on his own thread asks
//! first: what he writes over may be an older copy of the same write, which its sender gave up and sent again.
//!
//! A counter for each place, and places share counters: the answer may be that something is under way where nothing is.
//! Nobody waits for a lock for it, and it takes the same memory however much is queued.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::FileKey;

/// What small writes are counted by, in bytes.
const PAGE: u64 = 4096;

/// What longer ones are counted by, in bytes.
const BLOCK: u64 = 256 << 10;

/// Bytes of the longest small write.
const SMALL: u64 = 16 * PAGE;

const COUNTERS: usize = 4096;

/// A part of a data file that is about to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) key: FileKey,
    from: u64,
    /// Bytes, at least one.
    length: u64,
}

impl Span {
    pub(crate) fn new(key: FileKey, from: u64, length: u64) -> Self {
        Self { key, from, length: length.max(1) }
    }

    fn last(self) -> u64 {
        self.from.saturating_add(self.length - 1)
    }

    pub(crate) fn meets(self, other: Self) -> bool {
        self.key == other.key && self.from <= other.last() && other.from <= self.last()
    }

    /// The places of this span, as long writes are counted or as small ones are.
    fn places(self, unit: u64) -> impl Iterator<Item = usize> {
        let file = self.key.mixed() ^ unit;
        (self.from / unit..=self.last() / unit).map(move |place| {
            let mixed = (file ^ place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 32) as usize % COUNTERS
        })
    }

    fn unit(self) -> u64 {
        if self.length <= SMALL { PAGE } else { BLOCK }
    }
}

pub(crate) struct UnderWay(Box<[AtomicU32]>);

impl Default for UnderWay {
    fn default() -> Self {
        Self((0..COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.0.iter().filter(|counter| counter.load(Ordering::Relaxed) > 0).count();
        write!(f, "UnderWay({places} of {COUNTERS} places)")
    }
}

/// A write from when it is queued until its bytes are where readers find them, or it failed.
#[derive(Debug)]
pub(crate) struct Passage {
    way: Arc<UnderWay>,
    span: Span,
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.way.end(self.span);
    }
}

impl UnderWay {
    pub(crate) fn begin(self: &Arc<Self>, span: Span) -> Passage {
        self.at(span, span.unit()).for_each(|counter| _ = counter.fetch_add(1, Ordering::Relaxed));
        Passage { way: Arc::clone(self), span }
    }

    fn at(&self, span: Span, unit: u64) -> impl Iterator<Item = &AtomicU32> {
        span.places(unit).filter_map(|place| self.0.get(place))
    }

    fn end(&self, span: Span) {
        // Who sees it gone sees what was written: that comes after it, by way of the kernel.
        self.at(span, span.unit()).for_each(|counter| _ = counter.fetch_sub(1, Ordering::Release));
    }

    /// False: nothing is under way anywhere in `span`, which had better be short.
    pub(crate) fn may_be_in(&self, span: Span) -> bool {
        [PAGE, BLOCK]
            .into_iter()
            .any(|unit| self.at(span, unit).any(|counter| counter.load(Ordering::Acquire) > 0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(file: u64, from: u64, length: u64) -> Span {
        Span { key: FileKey { file, slot: 0 }, from, length }
    }

    #[test]
    fn what_is_not_there_is_seldom_seen() {
        let all = Arc::new(UnderWay::default());
        let begun: Vec<Passage> = (0..64).map(|i| all.begin(span(i % 4, i * 3 * PAGE, PAGE))).collect();
        let seen = (1000..2000).filter(|i| all.may_be_in(span(i % 4, i * PAGE, PAGE))).count();
        assert!(seen < 100, "{seen} of 1,000");
        drop(begun);
        assert_eq!(format!("{all:?}"), "UnderWay(0 of 4096 places)");
    }

    #[test]
    fn neighbours_and_other_files_do_not_meet() {
        let one = span(1, 100, 50);
        assert!(one.meets(span(1, 149, 1)) && one.meets(span(1, 0, 101)) && one.meets(span(1, 0, u64::MAX)));
        assert!(!one.meets(span(1, 150, 1)) && !one.meets(span(1, 0, 100)) && !one.meets(span(2, 100, 50)));
    }

    fn spans() -> impl Strategy<Value = Span> {
        let length = prop_oneof![1..2 * PAGE, 1..2 * SMALL, 1..3u64 << 20];
        (0..3u64, 0..8u64 << 20, length).prop_map(|(file, from, length)| span(file, from, length))
    }

    proptest! {
        /// Whatever else was begun and has ended.
        #[test]
        fn what_is_there_is_seen(
            all in prop::collection::vec((spans(), any::<bool>()), 1..40),
            asked in prop::collection::vec(spans(), 1..40),
        ) {
            let way = Arc::new(UnderWay::default());
            let begun: Vec<Passage> = all.iter().map(|(span, _)| way.begin(*span)).collect();
            let _left: Vec<Passage> =
                begun.into_iter().zip(&all).filter(|(_, (_, over))| !over).map(|(begun, _)| begun).collect();
            for asked in asked {
                if all.iter().any(|(span, over)| !over && span.meets(asked)) {
                    prop_assert!(way.may_be_in(asked));
                }
            }
        }
    }
}
