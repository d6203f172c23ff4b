//! Byte-range locks: RFC 8881 §9.1-9.6, §18.10-18.12.

mod claims;
mod held;
mod waiting;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::effect::Effect;
use crate::few::Few;
use crate::file::Error;
use crate::ids::{ClientId, StateId, Time};
use crate::open::each_once;
use crate::owner::LockOwner;
use crate::range_set::{Range, RangeMap};
use crate::stateid::{Other, check_seqid, next_seqid};

use claims::Claims;
use held::Held;
use waiting::WaitingLock;
pub(crate) use waiting::WaitingLocks;

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKind {
    /// READ_LT, READW_LT.
    Read,
    /// WRITE_LT, WRITEW_LT.
    Write,
}

/// The lock in the way: LOCK4denied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockConflict {
    /// Its range.
    pub range: Range,
    /// Its kind.
    pub kind: LockKind,
    /// Its owner.
    pub owner: LockOwner,
}

/// `locker4`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Locker {
    /// open_to_lock_owner4: the first lock of `owner` on this file, under an open stateid.
    New {
        /// The open under which the lock is taken.
        open: StateId,
        /// The lock-owner; its client is the session's.
        owner: LockOwner,
    },
    /// exist_lock_owner4.
    Existing {
        /// The lock stateid.
        lock: StateId,
    },
}

/// LOCK4args.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockRequest {
    /// Who, under which stateid.
    pub locker: Locker,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// READW_LT or WRITEW_LT: when denied, queue for CB_NOTIFY_LOCK.
    pub blocking: bool,
    /// A reclaim after a restart.
    pub reclaim: bool,
    /// What.
    pub range: Range,
}

/// The locks of one lock-owner on one file.
#[derive(Debug, Hash)]
pub(crate) struct LockState {
    pub(crate) owner: LockOwner,
    /// The open it was made under (RFC 8881 §9.1: a lock stateid depends on it).
    pub(crate) open: Other,
    pub(crate) stateid: StateId,
    /// Since when it has had some range or other locked.
    pub(crate) since: Time,
    pub(crate) ranges: RangeMap<LockKind>,
}

/// All byte-range locks of one file, and who waits for one.
#[derive(Debug, Default, Hash)]
pub(crate) struct Locks {
    by_other: Few<Other, LockState>,
    by_owner: Few<LockOwner, Other>,
    pub(crate) waiting: WaitingLocks,
}

const fn excludes(held: LockKind, wanted: LockKind) -> bool {
    matches!(held, LockKind::Write) || matches!(wanted, LockKind::Write)
}

impl Locks {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_other.is_empty()
    }

    pub(crate) fn owners(&self) -> usize {
        self.by_other.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LockState> {
        self.by_other.values()
    }

    /// From the one with this stateid on, ascending.
    pub(crate) fn starting_at(&self, other: Other) -> impl Iterator<Item = &LockState> {
        self.by_other.starting_at(other).map(|(_, state)| state)
    }

    pub(crate) fn get(&self, other: &Other) -> Option<&LockState> {
        self.by_other.get(other)
    }

    pub(crate) fn of_owner(&self, owner: &LockOwner) -> Option<&LockState> {
        self.by_owner.get(owner).and_then(|other| self.by_other.get(other))
    }

    /// Lock-owners of a client.
    pub(crate) fn of_client(&self, client: ClientId) -> impl Iterator<Item = &LockOwner> {
        let first = LockOwner { client, opaque: Arc::default() };
        let owners = self.by_owner.starting_at(first).map(|(owner, _)| owner);
        owners.take_while(move |owner| owner.client == client)
    }

    /// Who has lock-owners.
    pub(crate) fn clients(&self) -> BTreeSet<ClientId> {
        each_once(|client| {
            let first = LockOwner { client, opaque: Arc::default() };
            self.by_owner.starting_at(first).next().map(|(owner, _)| owner.client)
        })
    }

    /// The lock state named by a client's stateid.
    pub(crate) fn check(&self, client: ClientId, stateid: &StateId) -> Result<&LockState, Error> {
        let state = self.get(&stateid.other).ok_or(Error::BadStateid)?;
        if state.owner.client != client {
            return Err(Error::BadStateid);
        }
        check_seqid(stateid.seqid, state.stateid.seqid)?;
        Ok(state)
    }

    /// The lock of another owner in the way of `kind` on `range`, the one that starts first.
    pub(crate) fn conflict(&self, owner: &LockOwner, kind: LockKind, range: Range) -> Option<LockConflict> {
        self.by_other
            .values()
            .filter(|state| state.owner != *owner)
            .filter_map(|state| {
                #[cfg(test)]
                tests::looked();
                let mut hits = state.ranges.overlapping(range);
                hits.find(|(_, held)| excludes(*held, kind)).map(|hit| (hit, state))
            })
            .min_by_key(|((hit, _), _)| hit.start())
            .map(|((range, kind), state)| LockConflict { range, kind, owner: state.owner.clone() })
    }

    /// Adds a lock-owner without locks.
    pub(crate) fn add_owner(&mut self, owner: LockOwner, open: Other, stateid: StateId, now: Time) {
        self.by_owner.insert(owner.clone(), stateid.other);
        let state = LockState { owner, open, stateid, since: now, ranges: RangeMap::new() };
        self.by_other.insert(stateid.other, state);
    }

    /// Applies a granted lock (`Some`) or an unlock (`None`); the stateid with its new seqid.
    pub(crate) fn set(
        &mut self,
        other: &Other,
        range: Range,
        kind: Option<LockKind>,
        now: Time,
    ) -> Option<StateId> {
        let state = self.by_other.get_mut(other)?;
        if state.ranges.is_empty() {
            state.since = now;
        }
        match kind {
            Some(kind) => state.ranges.insert(range, kind),
            None => state.ranges.remove(range),
        }
        state.stateid.seqid = next_seqid(state.stateid.seqid);
        Some(state.stateid)
    }

    pub(crate) fn remove(&mut self, other: &Other) -> Option<LockState> {
        let state = self.by_other.remove(other)?;
        self.by_owner.remove(&state.owner);
        Some(state)
    }

    /// The lock stateids that depend on an open.
    pub(crate) fn under(&self, open: &Other) -> Vec<Other> {
        self.by_other.iter().filter(|(_, state)| state.open == *open).map(|(other, _)| *other).collect()
    }

    /// True when a lock-owner under this open still holds a lock.
    pub(crate) fn held_under(&self, open: &Other) -> bool {
        self.by_other.values().any(|state| state.open == *open && !state.ranges.is_empty())
    }

    /// An owner that already holds locks on the file is let past those who wait: it could be waiting for
    /// one that waits for it.
    pub(crate) fn holds(&self, owner: &LockOwner) -> bool {
        self.of_owner(owner).is_some_and(|lock| !lock.ranges.is_empty())
    }

    /// Notifies the waiters that could now have their lock, first come first served. Nothing that was in anybody's way has
    /// gone but in the range that is `freed`.
    pub(crate) fn notify(&mut self, now: Time, reserve_until: Time, freed: Range) -> Vec<Effect> {
        if !self.waiting.entries.iter().any(|entry| entry.range.overlaps(freed)) {
            return Vec::new();
        }
        let mut effects = Vec::new();
        let mut queue = std::mem::take(&mut self.waiting.entries);
        let stands = |entry: &WaitingLock| entry.reserved_until.is_some_and(|until| until > now);
        let places = (0..queue.len()).filter(|at| queue.get(*at).is_some_and(stands));
        let mut reserved = Claims::of(&queue, places);
        let mut ahead = Claims::default();
        // Only if somebody could have his lock: there may be many more locks than waiters.
        let mut held = None;
        for at in 0..queue.len() {
            let behind = ahead.exclude(&queue, at);
            ahead.add(&queue, at);
            let Some(entry) = queue.get(at) else { break };
            if entry.reserved_until.is_some()
                || !entry.range.overlaps(freed)
                || (behind && !self.holds(&entry.owner))
                || reserved.exclude(&queue, at)
                || held.get_or_insert_with(|| Held::of(self.by_other.values())).excludes(
                    &entry.owner,
                    entry.kind,
                    entry.range,
                )
            {
                continue;
            }
            effects.push(Effect::NotifyLock { owner: entry.owner.clone() });
            reserved.add(&queue, at);
            if let Some(entry) = queue.get_mut(at) {
                entry.reserved_until = Some(reserve_until);
                entry.expires = reserve_until;
            }
        }
        self.waiting.entries = queue;
        effects
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    thread_local! {
        /// Locks that were looked at.
        static LOOKED: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn looked() {
        LOOKED.set(LOOKED.get() + 1);
    }

    fn owner(n: usize) -> LockOwner {
        LockOwner::new(ClientId(1), &n.to_be_bytes())
    }

    fn range(offset: u64, length: u64) -> Range {
        Range::from_offset_length(offset, length).unwrap_or(Range::ALL)
    }

    fn lock(locks: &mut Locks, n: usize, range: Range, kind: LockKind) -> Other {
        let stateid = StateId { seqid: 1, other: std::array::from_fn(|at| (n >> (8 * at.min(7))) as u8) };
        if locks.get(&stateid.other).is_none() {
            locks.add_owner(owner(n), [0; 12], stateid, Time::ZERO);
        }
        locks.set(&stateid.other, range, Some(kind), Time::ZERO);
        stateid.other
    }

    fn waits(locks: &mut Locks, n: usize, kind: LockKind, range: Range) {
        locks.waiting.enqueue(
            (&owner(n), [0; 12], None),
            (kind, range),
            (Time::ZERO, Time(100)),
            &mut Vec::new(),
        );
    }

    fn told(effects: &[Effect]) -> Vec<LockOwner> {
        let owner = |effect: &Effect| match effect {
            Effect::NotifyLock { owner } => Some(owner.clone()),
            _ => None,
        };
        effects.iter().filter_map(owner).collect()
    }

    /// Many hold a lock, as many wait for another each, and one of either kind is let go.
    #[test]
    fn an_unlock_looks_at_each_lock_once_at_most() {
        const MANY: usize = 500;
        let mut locks = Locks::default();
        let held: Vec<_> =
            (0..MANY).map(|n| lock(&mut locks, n, range(10 * n as u64, 10), LockKind::Write)).collect();
        let all = lock(&mut locks, MANY, range(10 * MANY as u64, 10), LockKind::Write);
        for n in 0..MANY {
            // Readers, who are not in each other's way, of a byte that only they want and of one that all do.
            waits(&mut locks, 1000 + n, LockKind::Read, range(10 * n as u64, (10 * (MANY - n) + 5) as u64));
        }
        LOOKED.set(0);
        locks.set(&all, range(10 * MANY as u64, 10), None, Time::ZERO);
        let freed = range(10 * MANY as u64, 10);
        assert_eq!(told(&locks.notify(Time(1), Time(2), freed)), [], "all wait for another one, too");
        assert!(LOOKED.get() <= 3 * MANY, "looked at {} locks", LOOKED.get());
        // What concerns one is asked of one.
        LOOKED.set(0);
        let freed = range(0, 10);
        locks.set(&held[0], freed, None, Time::ZERO);
        assert_eq!(told(&locks.notify(Time(1), Time(2), freed)), []);
        assert!(LOOKED.get() <= MANY + 2, "looked at {} locks", LOOKED.get());
        LOOKED.set(0);
        let freed = range(10 * MANY as u64 + 20, 10);
        assert_eq!(told(&locks.notify(Time(1), Time(2), freed)), []);
        assert_eq!(LOOKED.get(), 0, "nobody waits for that");
    }

    proptest! {
        #[test]
        fn the_sum_of_what_is_held_says_what_a_look_at_each_would(
            all in proptest::collection::vec((0usize..5, any::<bool>(), 0u64..40, 0u64..14), 0..40),
            asked in proptest::collection::vec((0usize..6, any::<bool>(), 0u64..50, 0u64..20), 1..20),
        ) {
            let kind = |write| if write { LockKind::Write } else { LockKind::Read };
            let mut locks = Locks::default();
            for (n, write, offset, length) in all {
                // What conflicts is not held together.
                let (range, kind) = (range(offset, length.max(1)), kind(write));
                if locks.conflict(&owner(n), kind, range).is_none() {
                    lock(&mut locks, n, range, kind);
                }
            }
            let held = Held::of(locks.by_other.values());
            for (n, write, offset, length) in asked {
                let looked = locks.conflict(&owner(n), kind(write), range(offset, length)).is_some();
                prop_assert_eq!(held.excludes(&owner(n), kind(write), range(offset, length)), looked);
            }
        }
    }
}
