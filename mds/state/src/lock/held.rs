//! The locks that are held on a file, in the order in which they begin: whether one of them is in the way of somebody is found
//! without looking at each.

use super::{LockKind, LockState};
use crate::owner::LockOwner;
use crate::range_set::Range;

/// Of those that begin at or before a byte, the one that ends last, and of the others' the one that does.
#[derive(Clone, Copy, Debug)]
struct Farthest<'a> {
    start: u64,
    first: (u64, &'a LockOwner),
    other: Option<(u64, &'a LockOwner)>,
}

/// Locks of one kind.
#[derive(Debug, Default)]
struct OfKind<'a>(Vec<Farthest<'a>>);

#[derive(Debug)]
pub(super) struct Held<'a> {
    read: OfKind<'a>,
    write: OfKind<'a>,
}

impl<'a> OfKind<'a> {
    fn of(mut all: Vec<(Range, &'a LockOwner)>) -> Self {
        all.sort_unstable_by_key(|(range, _)| range.start());
        let mut sums: Vec<Farthest<'a>> = Vec::with_capacity(all.len());
        for (range, owner) in all {
            let one = (range.last(), owner);
            let farthest = |first, other| Farthest { start: range.start(), first, other };
            sums.push(match sums.last() {
                None => farthest(one, None),
                Some(before) if before.first.1 == owner => {
                    farthest((before.first.0.max(one.0), owner), before.other)
                }
                Some(before) if one.0 > before.first.0 => farthest(one, Some(before.first)),
                Some(before) => {
                    farthest(before.first, before.other.filter(|other| other.0 >= one.0).or(Some(one)))
                }
            });
        }
        Self(sums)
    }

    /// Whether another owner than this one has a byte of the range.
    fn has_other(&self, owner: &LockOwner, range: Range) -> bool {
        let begun = self.0.partition_point(|sum| sum.start <= range.last());
        let Some(sum) = begun.checked_sub(1).and_then(|at| self.0.get(at)) else { return false };
        let other = if sum.first.1 == owner { sum.other } else { Some(sum.first) };
        other.is_some_and(|(last, _)| last >= range.start())
    }
}

impl<'a> Held<'a> {
    pub(super) fn of(states: impl Iterator<Item = &'a LockState>) -> Self {
        let (mut read, mut write) = (Vec::new(), Vec::new());
        for state in states {
            for (range, kind) in state.ranges.iter() {
                #[cfg(test)]
                super::tests::looked();
                match kind {
                    LockKind::Read => read.push((range, &state.owner)),
                    LockKind::Write => write.push((range, &state.owner)),
                }
            }
        }
        Self { read: OfKind::of(read), write: OfKind::of(write) }
    }

    /// Whether a lock of another owner is in the way.
    pub(super) fn excludes(&self, owner: &LockOwner, kind: LockKind, range: Range) -> bool {
        #[cfg(test)]
        super::tests::looked();
        self.write.has_other(owner, range) || (kind == LockKind::Write && self.read.has_other(owner, range))
    }
}
