//! Why the state of a file refuses a request. Variants carry the names of `nfsstat4`, one to one.

use crate::effect::RevokeReason;
use crate::ids::ClientId;
use crate::lock::LockConflict;

/// The refusals of a file's state machines; each is the `nfsstat4` of the same name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// NFS4ERR_SHARE_DENIED. `holder` is one client whose open conflicts: when its lease has run out
    /// (courtesy), the caller expires it with [`File::client_expired`](crate::file::File::client_expired)
    /// and asks again.
    #[error("share reservation denied")]
    ShareDenied {
        /// A client that holds a conflicting open.
        holder: ClientId,
    },
    /// NFS4ERR_LOCKED: I/O under a special stateid against a share reservation. `holder` as above.
    #[error("a share reservation forbids this I/O")]
    Locked {
        /// A client that holds a conflicting open.
        holder: ClientId,
    },
    /// NFS4ERR_DENIED, with the lock in the way. Its owner's client may be a courtesy client too.
    #[error("lock denied")]
    Denied(Box<LockConflict>),
    /// NFS4ERR_LOCKS_HELD.
    #[error("locks held")]
    LocksHeld,
    /// NFS4ERR_BAD_STATEID.
    #[error("bad stateid")]
    BadStateid,
    /// NFS4ERR_OLD_STATEID.
    #[error("old stateid")]
    OldStateid,
    /// NFS4ERR_STALE_STATEID: issued by an earlier incarnation of the server.
    #[error("stale stateid")]
    StaleStateid,
    /// NFS4ERR_EXPIRED: lost with the client's lease.
    #[error("state expired")]
    Expired,
    /// NFS4ERR_ADMIN_REVOKED.
    #[error("state revoked by an administrator")]
    AdminRevoked,
    /// NFS4ERR_DELEG_REVOKED: a delegation or layout that was not returned in time.
    #[error("delegation or layout revoked")]
    DelegRevoked,
    /// NFS4ERR_OPENMODE.
    #[error("open mode does not allow this")]
    Openmode,
    /// NFS4ERR_RECALLCONFLICT: the layout is being recalled; the client backs off and asks again.
    #[error("layout recall in progress")]
    RecallConflict,
    /// NFS4ERR_LAYOUTTRYLATER.
    #[error("no layout for now")]
    LayoutTryLater,
    /// NFS4ERR_LAYOUTUNAVAILABLE.
    #[error("no layout for this file")]
    LayoutUnavailable,
    /// NFS4ERR_LAYOUTUNAVAILABLE: another mount of the same client has it.
    #[error("another mount of this host has the layout")]
    OtherMount,
    /// NFS4ERR_BADLAYOUT: LAYOUTCOMMIT under a layout that is gone.
    #[error("layout gone")]
    BadLayout,
    /// NFS4ERR_BADIOMODE.
    #[error("layout of the wrong iomode")]
    BadIomode,
    /// NFS4ERR_GRACE.
    #[error("grace period")]
    Grace,
    /// NFS4ERR_NO_GRACE.
    #[error("reclaim outside of grace")]
    NoGrace,
    /// NFS4ERR_RECLAIM_BAD.
    #[error("reclaim refused")]
    ReclaimBad,
    /// NFS4ERR_RECLAIM_CONFLICT.
    #[error("reclaim conflicts")]
    ReclaimConflict,
    /// NFS4ERR_DELAY: a bounded queue is full or a wait ran out.
    #[error("try again later")]
    Delay,
    /// NFS4ERR_RESOURCE does not exist in 4.1 for this purpose; the caller answers NFS4ERR_DELAY or
    /// NFS4ERR_SERVERFAULT. A client exceeded a cap of [`Policy`](crate::file::Policy).
    #[error("too much state")]
    Resource,
    /// NFS4ERR_STALE: the file is unlinked and closed.
    #[error("file is gone")]
    Stale,
    /// NFS4ERR_INVAL.
    #[error("invalid argument")]
    Inval,
    /// NFS4ERR_BAD_RANGE: the lock range is empty or wraps.
    #[error("bad byte range")]
    BadRange,
}

impl Error {
    /// A stateid was taken for this reason.
    pub(crate) const fn taken(reason: RevokeReason) -> Self {
        match reason {
            RevokeReason::LeaseExpired => Self::Expired,
            RevokeReason::Admin => Self::AdminRevoked,
            RevokeReason::NotReturned => Self::DelegRevoked,
        }
    }
}
