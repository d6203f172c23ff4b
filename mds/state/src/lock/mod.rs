//! Byte-range locks: RFC 8881 §9.1-9.6, §18.10-18.12.

mod claims;
mod waiting;

use crate::effect::Effect;
use crate::few::Few;
use crate::file::Error;
use crate::ids::{ClientId, StateId, Time};
use crate::owner::LockOwner;
use crate::range_set::{Range, RangeMap};
use crate::stateid::{Other, check_seqid, next_seqid};

use claims::Claims;
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

    pub(crate) fn get(&self, other: &Other) -> Option<&LockState> {
        self.by_other.get(other)
    }

    pub(crate) fn of_owner(&self, owner: &LockOwner) -> Option<&LockState> {
        self.by_owner.get(owner).and_then(|other| self.by_other.get(other))
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
                let mut hits = state.ranges.overlapping(range);
                hits.find(|(_, held)| excludes(*held, kind)).map(|hit| (hit, state))
            })
            .min_by_key(|((hit, _), _)| hit.start())
            .map(|((range, kind), state)| LockConflict { range, kind, owner: state.owner.clone() })
    }

    /// Adds a lock-owner without locks.
    pub(crate) fn add_owner(&mut self, owner: LockOwner, open: Other, stateid: StateId) {
        self.by_owner.insert(owner.clone(), stateid.other);
        self.by_other.insert(stateid.other, LockState { owner, open, stateid, ranges: RangeMap::new() });
    }

    /// Applies a granted lock (`Some`) or an unlock (`None`); the stateid with its new seqid.
    pub(crate) fn set(&mut self, other: &Other, range: Range, kind: Option<LockKind>) -> Option<StateId> {
        let state = self.by_other.get_mut(other)?;
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

    /// Notifies the waiters that could now have their lock, first come first served.
    pub(crate) fn notify(&mut self, now: Time, reserve_until: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut queue = std::mem::take(&mut self.waiting).entries;
        let stands = |entry: &WaitingLock| entry.reserved_until.is_some_and(|until| until > now);
        let places = (0..queue.len()).filter(|at| queue.get(*at).is_some_and(stands));
        let mut reserved = Claims::of(&queue, places);
        let mut ahead = Claims::default();
        for at in 0..queue.len() {
            let behind = ahead.exclude(&queue, at);
            ahead.add(&queue, at);
            let Some(entry) = queue.get(at) else { break };
            if entry.reserved_until.is_some()
                || (behind && !self.holds(&entry.owner))
                || self.conflict(&entry.owner, entry.kind, entry.range).is_some()
                || reserved.exclude(&queue, at)
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
