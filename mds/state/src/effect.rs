//! What the caller must do after a step of a file's state machine: RFC 8881 §20 (callbacks), RFC 8435 §2.2
//! (fencing). Effects concern the file that yielded them and are applied in order.

use crate::ids::{ClientId, SessionId, StateId, StateKind};
use crate::owner::LockOwner;

/// Identifies one queued request of one file. The file hands it out in
/// [`Prepared::Wait`](crate::file::Prepared::Wait) and names it again in [`Effect::Wake`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitToken(pub u64);

/// Identifies one fence of one file, confirmed with [`File::fence_done`](crate::file::File::fence_done).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FenceId(pub u64);

/// `layoutiomode4` of a layout that can be held (ANY occurs only in returns and recalls).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoMode {
    /// LAYOUTIOMODE4_READ.
    Read,
    /// LAYOUTIOMODE4_RW.
    ReadWrite,
}

/// What is called back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecallKind {
    /// CB_LAYOUTRECALL of the whole file, iomode ANY. `changed` is clora_changed: true when the layout
    /// will differ (failover, restripe), false when the client should drain its writes first.
    Layout {
        /// clora_changed.
        changed: bool,
    },
    /// CB_RECALL of a read or write delegation.
    Delegation,
}

/// A request of a client, by its place in its session (RFC 8881 §2.10.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// The session.
    pub session: SessionId,
    /// sa_slotid.
    pub slot: u32,
    /// sa_sequenceid.
    pub sequence: u32,
}

/// The last requests that moved a stateid, the latest first.
pub type Calls = [Option<Call>; 2];

/// One callback to send. Answered with [`File::recall_answer`](crate::file::File::recall_answer).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recall {
    /// To whom.
    pub client: ClientId,
    /// What.
    pub kind: RecallKind,
    /// The stateid to send: for a layout, already incremented (RFC 8881 §12.5.3).
    pub stateid: StateId,
}

/// How a client answered a recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecallAnswer {
    /// NFS4_OK: a return follows.
    Ok,
    /// NFS4ERR_DELAY: ask again later.
    Delay,
    /// NFS4ERR_NOMATCHING_LAYOUT: the client holds no such layout.
    NoMatching,
    /// NFS4ERR_BAD_STATEID or BADHANDLE: the client does not know the state.
    BadStateid,
    /// NFS4ERR_OLD_STATEID: the client has seen a later seqid.
    OldStateid,
    /// No back channel, a timeout, or any other answer: asked again until the deadline. Where the lease
    /// has run out already (courtesy), the caller expires the client instead of waiting for it.
    Unreachable,
}

/// Why state was taken away; decides the error for a later use of its stateid (RFC 8881 §8.2.2, §8.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RevokeReason {
    /// The lease ran out: NFS4ERR_EXPIRED.
    LeaseExpired,
    /// An administrator: NFS4ERR_ADMIN_REVOKED.
    Admin,
    /// Recalled and not returned in time: NFS4ERR_DELEG_REVOKED (layouts: the same for LAYOUTGET).
    NotReturned,
}

/// What the caller does after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a callback.
    Callback(Recall),
    /// Fence `client`'s capabilities for this file (or all of them, which implies it) at every data
    /// server, durably; then call [`File::fence_done`](crate::file::File::fence_done). Until then the
    /// holder still counts: nothing that conflicts with it is granted.
    Fence {
        /// Handed back when the fence is in force.
        fence: FenceId,
        /// The holder.
        client: ClientId,
        /// It gives up by itself what it may have on the way, and it alone waits for the fence: what went on at a data
        /// server that is lost to all may be counted as over, since that one is told before anybody is sent there.
        own: bool,
    },
    /// A delegation was not returned in time. That something was taken from its holder is to be durable, then
    /// [`File::revoke_overdue`](crate::file::File::revoke_overdue) takes it. Said again if nothing comes of it.
    Overdue {
        /// The holder.
        client: ClientId,
        /// The delegation.
        stateid: StateId,
    },
    /// Run the queued request again: [`File::prepare`](crate::file::File::prepare) with the same token.
    Wake(WaitToken),
    /// A stateid came to life: `StateIndex::insert`.
    Register {
        /// The stateid (`other` is the key).
        stateid: StateId,
        /// Its kind.
        kind: StateKind,
        /// Its client.
        client: ClientId,
    },
    /// A stateid ended in order: `StateIndex::remove`.
    Release {
        /// The stateid (`other` is the key).
        stateid: StateId,
        /// Its kind.
        kind: StateKind,
        /// Its client.
        client: ClientId,
    },
    /// A stateid was taken away: `StateIndex::revoke`; the client's SEQUENCE shows it (sr_status_flags).
    Revoked {
        /// The stateid (`other` is the key).
        stateid: StateId,
        /// Its kind.
        kind: StateKind,
        /// Its client.
        client: ClientId,
        /// Why.
        reason: RevokeReason,
    },
    /// A lock stateid has so many ranges now.
    Ranges {
        /// The stateid (`other` is the key).
        stateid: StateId,
        /// Its ranges.
        count: u32,
    },
    /// One more denied lock of the client waits.
    Waits {
        /// Who asked for it.
        client: ClientId,
    },
    /// One less: it was granted, given up or forgotten.
    WaitsNoMore {
        /// Who asked for it.
        client: ClientId,
    },
    /// The last read-write layout was returned cleanly: the durable rw_layout row may be cleared, when
    /// convenient, under a ticket for `Intent::ClearRw`.
    RwIdle,
    /// A read-write layout ended uncleanly: before size or data of the file is shown, settle it under a
    /// ticket for `Intent::Settle`.
    NeedsSettle,
    /// The last open of an unlinked file is gone: its data may be collected (once grace is over).
    CloseOrphan,
    /// Send CB_NOTIFY_LOCK to `owner.client`: a lock it waits for is reserved for it for a while.
    NotifyLock {
        /// The waiting lock-owner.
        owner: LockOwner,
    },
}
