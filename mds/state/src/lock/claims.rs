//! What some of those who wait for locks want, summed up by bytes: whether one of them is in the way of another is found
//! without looking at each.

use crate::range_set::{Range, RangeMap};

use super::LockKind;
use super::waiting::WaitingLock;

/// Of those who want the same bytes in the same way: a place in the queue stands for its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Who {
    #[default]
    Nobody,
    One(usize),
    Several,
}

/// Who wants some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Claim {
    read: Who,
    write: Who,
}

#[derive(Debug, Default)]
pub(super) struct Claims {
    map: RangeMap<Claim>,
}

impl Who {
    fn with(self, at: usize, queue: &[WaitingLock]) -> Self {
        match self {
            Self::Nobody => Self::One(at),
            Self::One(other) if same_owner(queue, other, at) => self,
            Self::One(_) | Self::Several => Self::Several,
        }
    }

    fn is_other(self, at: usize, queue: &[WaitingLock]) -> bool {
        match self {
            Self::Nobody => false,
            Self::One(other) => !same_owner(queue, other, at),
            Self::Several => true,
        }
    }
}

impl Claim {
    fn with(self, kind: LockKind, at: usize, queue: &[WaitingLock]) -> Self {
        match kind {
            LockKind::Read => Self { read: self.read.with(at, queue), ..self },
            LockKind::Write => Self { write: self.write.with(at, queue), ..self },
        }
    }
}

fn same_owner(queue: &[WaitingLock], a: usize, b: usize) -> bool {
    queue.get(a).map(|entry| &entry.owner) == queue.get(b).map(|entry| &entry.owner)
}

impl Claims {
    /// Those of these places.
    pub(super) fn of(queue: &[WaitingLock], places: impl Iterator<Item = usize>) -> Self {
        let mut claims = Self::default();
        places.for_each(|at| claims.add(queue, at));
        claims
    }

    /// What the one at this place wants counts from now on.
    pub(super) fn add(&mut self, queue: &[WaitingLock], at: usize) {
        let Some(entry) = queue.get(at) else { return };
        let before: Vec<_> = self.map.overlapping(entry.range).collect();
        self.map.insert(entry.range, Claim::default().with(entry.kind, at, queue));
        for (piece, claim) in before {
            let both =
                Range::new(piece.start().max(entry.range.start()), piece.last().min(entry.range.last()));
            if let Some(both) = both {
                self.map.insert(both, claim.with(entry.kind, at, queue));
            }
        }
    }

    /// Whether somebody else wants what the one at this place cannot have then.
    pub(super) fn exclude(&self, queue: &[WaitingLock], at: usize) -> bool {
        queue.get(at).is_some_and(|entry| {
            self.map.overlapping(entry.range).any(|(_, claim)| {
                let reads = entry.kind == LockKind::Write && claim.read.is_other(at, queue);
                reads || claim.write.is_other(at, queue)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{ClientId, Time};
    use crate::lock::excludes;
    use crate::owner::LockOwner;

    fn waiting(owner: u8, write: bool, first: u64, length: u64) -> WaitingLock {
        WaitingLock {
            owner: LockOwner::new(ClientId(1), &[owner]),
            open: [0; 12],
            lock: None,
            kind: if write { LockKind::Write } else { LockKind::Read },
            range: Range::from_offset_length(first, length).unwrap_or(Range::ALL),
            number: 0,
            since: Time::ZERO,
            expires: Time::ZERO,
            reserved_until: None,
        }
    }

    proptest! {
        #[test]
        fn the_sum_says_what_a_look_at_each_would(
            all in proptest::collection::vec((0u8..4, any::<bool>(), 0u64..30, 0u64..12), 1..40)
        ) {
            let queue: Vec<_> =
                all.into_iter().map(|(owner, write, first, length)| waiting(owner, write, first, length)).collect();
            for ahead in 0..queue.len() {
                let claims = Claims::of(&queue, 0..ahead);
                for (at, entry) in queue.iter().enumerate() {
                    let looked = queue[..ahead].iter().any(|other| {
                        other.owner != entry.owner
                            && other.range.overlaps(entry.range)
                            && excludes(other.kind, entry.kind)
                    });
                    prop_assert_eq!(claims.exclude(&queue, at), looked);
                }
            }
        }
    }

    /// However they lie, there are few pieces for each.
    #[test]
    fn the_sum_is_no_longer_than_the_queue() {
        let queue: Vec<_> = (0..4096)
            .map(|n| match n % 2 {
                0 => waiting(u8::try_from(n % 251).unwrap_or(0), n % 3 == 0, n * 10, 5),
                _ => waiting(u8::try_from(n % 241).unwrap_or(0), n % 5 == 0, 0, 0),
            })
            .collect();
        let claims = Claims::of(&queue, 0..queue.len());
        assert!(claims.map.len() <= 2 * queue.len() + 1);
    }
}
