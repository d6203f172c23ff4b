//! Byte-range locks: RFC 8881 §9.1-9.6, §18.10-18.12.

use crate::ids::StateId;
use crate::owner::LockOwner;
use crate::range_set::Range;

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKind {
    /// READ_LT, READW_LT.
    Read,
    /// WRITE_LT, WRITEW_LT.
    Write,
}

/// The lock in the way: LOCK4denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockConflict {
    /// Its range.
    pub range: Range,
    /// Its kind.
    pub kind: LockKind,
    /// Its owner.
    pub owner: LockOwner,
}

/// `locker4`.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
