//! What is asked of a file's state, and what it answers.

use crate::delegation::Grant;
use crate::effect::{Call, IoMode, WaitToken};
use crate::ids::{ClientId, StateId, Time};
use crate::open::{Access, Deny, OpenRequest};
use crate::stateid::{StateIds, Usage};

use super::Error;

/// The fileid: the key of a file, unique in the file system and never reused. Several files are prepared
/// in ascending order of it, so that two operations cannot wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// What the inode says about state that outlives a restart; read by the caller before it makes a `File`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileSeed {
    /// The durable rw_layout row exists: some earlier read-write layout has not ended cleanly.
    pub rw_layout: bool,
    /// The file is unlinked (its inode lives in the garbage queue as an orphan).
    pub orphan: bool,
}

/// Caps, times and switches. All times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Most open stateids per client.
    pub max_opens_per_client: u32,
    /// Most open stateids of all clients.
    pub max_opens: u32,
    /// Most lock stateids per client.
    pub max_locks_per_client: u32,
    /// Most lock stateids of all clients.
    pub max_locks: u32,
    /// Most layout stateids per client.
    pub max_layouts_per_client: u32,
    /// Most layout stateids of all clients.
    pub max_layouts: u32,
    /// Most delegations per client.
    pub max_delegations_per_client: u32,
    /// The same for clients that do not ask for them. Linux has room for 5,000, and returns what is beyond that
    /// with each close.
    pub max_unasked_per_client: u32,
    /// Most delegations of all clients.
    pub max_delegations: u32,
    /// Most lock ranges that one lock-owner may hold on one file.
    pub max_ranges_per_lock: usize,
    /// Most lock ranges of one client, over all files.
    pub max_ranges_per_client: u32,
    /// Most lock ranges of all clients.
    pub max_ranges: u32,
    /// Ranges beyond those, for unlocks alone that leave two of one: each client that holds anything may have its share of them,
    /// whatever the others have. Who cannot unlock waits for others that wait for him.
    pub spare_ranges: u32,
    /// Most lock-owners with state on one file. No client has more of them than are left to others.
    pub max_lock_owners_per_file: usize,
    /// Most opens on one file, over all clients. No client has more of them than are left to others.
    pub max_opens_per_file: usize,
    /// Most queued requests per file.
    pub max_waiters_per_file: usize,
    /// Most queued requests of one client on one file.
    pub max_waiters_per_client: usize,
    /// Most waiting locks of one client, on all files.
    pub max_waiting_locks_of_client: u32,
    /// Most waiting locks of all clients, on all files. Each keeps the name of its owner, a KiB at most.
    pub max_waiting_locks: u32,
    /// Most waiting locks per file. One that is not queued is not notified, and comes again when its client thinks fit:
    /// Linux in up to 30 s.
    pub max_waiting_locks_per_file: usize,
    /// Most waiting locks of one client on one file.
    pub max_waiting_locks_per_client: usize,
    /// How long a queued request may wait before it is woken to be answered NFS4ERR_DELAY.
    pub wait: u64,
    /// From a recall to the revocation of what was not returned.
    pub recall_timeout: u64,
    /// Between two attempts of a recall that was answered DELAY or could not be sent.
    pub recall_retry: u64,
    /// The same of a layout to write with that the client has promised to return. No less than `reply_travels`.
    pub recall_again: u64,
    /// How long the reply to a client's first LAYOUTGET may be on its way, and a recall overtake it: until then it says
    /// that it has no such layout (RFC 8881 §12.5.5.2), and will have it.
    pub reply_travels: u64,
    /// How long a freed lock is kept from others who wait for it, for the waiter that was notified.
    pub lock_reservation: u64,
    /// How long a waiting lock keeps its place without the client asking again.
    pub lock_wait: u64,
    /// Grant read delegations.
    pub read_delegations: bool,
    /// Grant write delegations (needs CB_GETATTR in the caller). Reclaims are granted in any case.
    pub write_delegations: bool,
    /// Holders of write delegations that want to answer for the times of their file do (RFC 9754 §5).
    pub delegated_times: bool,
    /// CLOSE releases remaining locks instead of answering NFS4ERR_LOCKS_HELD (§18.2.4 allows both).
    pub close_releases_locks: bool,
    /// logr_return_on_close.
    pub return_on_close: bool,
}

/// Of the `most` that there may be, `of_all` are there, and `of_host` of those the clients' of one host, which may have no more. A
/// host has no more than it leaves to others, whatever clients it is: else one machine could take what there is for all.
const fn is_shared_out(of_host: u32, of_all: u32, most: u32) -> bool {
    of_host >= most.saturating_sub(of_all)
}

impl Policy {
    /// A client that holds so much, with all others, may have no more files open.
    #[must_use]
    pub fn opens_are_full(&self, usage: &Usage) -> bool {
        usage.opens >= self.max_opens_per_client || self.opens_are_shared_out(usage)
    }

    /// It may not because of what others have open, at its host or anywhere.
    #[must_use]
    pub fn opens_are_shared_out(&self, usage: &Usage) -> bool {
        is_shared_out(usage.opens_of_host, usage.opens_of_all, self.max_opens)
    }

    /// A client that holds so much, with all others, may have no lock more because of what others have, at its host or anywhere.
    #[must_use]
    pub fn locks_are_shared_out(&self, usage: &Usage) -> bool {
        is_shared_out(usage.locks_of_host, usage.locks_of_all, self.max_locks)
            || self.ranges_are_shared_out(usage)
    }

    fn ranges_are_shared_out(&self, usage: &Usage) -> bool {
        // It splits at most one range in two around itself.
        usage.ranges_of_all.saturating_add(2) > self.max_ranges
            || is_shared_out(usage.ranges_of_host, usage.ranges_of_all, self.max_ranges)
    }

    /// A client that holds so much, with all others, may have no lock more: it splits at most one range in two around itself.
    pub(super) fn ranges_are_full(&self, usage: &Usage) -> bool {
        usage.ranges.saturating_add(2) > self.max_ranges_per_client || self.ranges_are_shared_out(usage)
    }

    /// It may have none under one more owner.
    pub(super) fn locks_are_full(&self, usage: &Usage) -> bool {
        usage.locks >= self.max_locks_per_client
            || is_shared_out(usage.locks_of_host, usage.locks_of_all, self.max_locks)
    }

    /// No lock more of a client that holds so much, with all others, is queued when it is denied.
    pub(super) fn waiting_locks_are_full(&self, usage: &Usage) -> bool {
        usage.waiting >= self.max_waiting_locks_of_client
            || is_shared_out(usage.waiting_of_host, usage.waiting_of_all, self.max_waiting_locks)
    }

    /// It may not even have the range more that an unlock leaves.
    pub(super) fn splits_are_full(&self, usage: &Usage) -> bool {
        usage.ranges >= self.max_ranges_per_client
            || (usage.ranges_of_all >= self.max_ranges
                && usage.ranges >= self.spare_ranges / usage.clients.max(1))
    }
}

impl Default for Policy {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            max_opens_per_client: 1 << 20,
            max_opens: 1 << 22,
            max_locks_per_client: 1 << 18,
            max_locks: 1 << 20,
            max_layouts_per_client: 1 << 20,
            max_layouts: 1 << 22,
            max_delegations_per_client: 1 << 16,
            max_unasked_per_client: 4096,
            max_delegations: 1 << 18,
            max_ranges_per_lock: 1 << 16,
            max_ranges_per_client: 3 << 18,
            max_ranges: 3 << 20,
            spare_ranges: 1 << 20,
            max_lock_owners_per_file: 1 << 14,
            max_opens_per_file: 1 << 16,
            max_waiters_per_file: 1024,
            max_waiters_per_client: 64,
            max_waiting_locks_of_client: 1 << 14,
            max_waiting_locks: 1 << 16,
            max_waiting_locks_per_file: 4096,
            max_waiting_locks_per_client: 1024,
            wait: 5 * SECOND,
            recall_timeout: 30 * SECOND,
            recall_retry: SECOND / 4,
            recall_again: SECOND,
            reply_travels: SECOND,
            lock_reservation: 5 * SECOND,
            lock_wait: 60 * SECOND,
            read_delegations: false,
            write_delegations: false,
            delegated_times: false,
            close_releases_locks: false,
            return_on_close: true,
        }
    }
}

/// Where the server stands in its grace period, for the client that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grace {
    /// Grace is over: reclaims are refused.
    Over,
    /// In grace: new opens, locks and layouts are refused.
    Active {
        /// The client has a stable record and has not yet sent RECLAIM_COMPLETE.
        may_reclaim: bool,
    },
}

/// What every step needs to know besides the file.
#[derive(Clone, Copy, Debug)]
pub struct Ctx<'a> {
    /// Monotonic time of the step.
    pub now: Time,
    /// Allocator of stateids.
    pub ids: &'a StateIds,
    /// Caps and switches.
    pub policy: &'a Policy,
    /// What the asking client holds over all files (`StateIndex::usage`).
    pub usage: Usage,
    /// Grace, for the asking client.
    pub grace: Grace,
}

/// An operation that needs a transaction besides the state of the file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Intent {
    /// OPEN of an existing or just created file. Waits for: an unlink in flight, another OPEN, CLOSE or
    /// OPEN_DOWNGRADE of the same owner, recalls of delegations of others.
    Open(OpenRequest),
    /// CLOSE.
    Close {
        /// The session's client.
        client: ClientId,
        /// The open stateid.
        stateid: StateId,
    },
    /// OPEN_DOWNGRADE to a union of earlier OPENs.
    Downgrade {
        /// The session's client.
        client: ClientId,
        /// The open stateid.
        stateid: StateId,
        /// The access that remains.
        access: Access,
        /// The deny that remains.
        deny: Deny,
    },
    /// REMOVE of this file, or a RENAME over it. `last_link` is what the transaction then verifies (else
    /// it aborts and starts over). [`Ticket::orphan`] says whether the inode must become an orphan.
    Unlink {
        /// The session's client.
        client: ClientId,
        /// The link count goes to 0.
        last_link: bool,
    },
    /// SETATTR without size, LINK, RENAME of this file: recalls delegations of other clients, waits for
    /// LAYOUTCOMMITs in flight.
    SetAttributes {
        /// The session's client.
        client: ClientId,
    },
    /// SETATTR(size), OPEN with truncation, DEALLOCATE, ALLOCATE: recalls the read-write layouts of
    /// *other* clients (every layout, also the client's own, with `replace`) and waits for them, for
    /// LAYOUTGETs, LAYOUTCOMMITs, proxied I/O and fences in flight.
    SetSize {
        /// The session's client.
        client: ClientId,
        /// No layout may survive.
        replace: bool,
        /// That is because the data files are swapped for fresh ones (truncate to 0, CLONE): layouts are recalled with
        /// clora_changed. When [`File::has_layouts`](super::File::has_layouts) says yes, truncating in place is cheaper.
        fresh: bool,
    },
    /// LAYOUTGET. Waits behind truncates in flight; NFS4ERR_RECALLCONFLICT while a recall or a fence
    /// that conflicts is pending. [`Ticket::must_persist_rw`] says whether the transaction must write
    /// the rw_layout row before the reply.
    LayoutGet {
        /// The session's client.
        client: ClientId,
        /// An open, lock, delegation or layout stateid (the current stateid already resolved).
        stateid: StateId,
        /// What is asked. Answering READ with a read-write layout is a new intent with `ReadWrite`.
        iomode: IoMode,
        /// The request that asks.
        call: Option<Call>,
    },
    /// LAYOUTCOMMIT. Any older seqid of a live layout stateid is good; a layout that is gone is
    /// NFS4ERR_BADLAYOUT, never BAD_STATEID; never NFS4ERR_GRACE. The caller answers a stateid that the
    /// index does not know, or knows as revoked or stale, in the same way (and settles the file first).
    LayoutCommit {
        /// The session's client.
        client: ClientId,
        /// The layout stateid.
        stateid: StateId,
    },
    /// READ, WRITE or COMMIT served by the metadata server itself. Shared with layouts of any client,
    /// because unlocked concurrent I/O has no order to keep; waits for truncates, and, when it writes,
    /// for the fence of a revoked layout of the *same* client (its own late writes must not overtake it).
    ProxyIo {
        /// The session's client.
        client: ClientId,
        /// WRITE (or COMMIT).
        write: bool,
        /// No layout writes may run meanwhile: recalls every read-write layout (a mirrored file that is
        /// being healed takes its writes through the metadata server). A read excludes other writes through the
        /// metadata server, too: a clone is of one moment.
        exclusive: bool,
    },
    /// Change the components of the file (restripe, failover): recalls every layout with clora_changed.
    Relayout,
    /// Ask the data servers for the size after an unclean end of a read-write layout. Waits for fences.
    /// [`Ticket::clears_rw`] says whether the transaction may also clear the rw_layout row.
    Settle,
    /// Clear the rw_layout row after [`Effect::RwIdle`](crate::effect::Effect::RwIdle). Denied with
    /// [`Error::Delay`] when it is not idle.
    ClearRw,
}

impl Intent {
    /// The client that asks; `None` for the server's own work.
    #[must_use]
    pub const fn client(&self) -> Option<ClientId> {
        match self {
            Self::Open(open) => Some(open.owner.client),
            Self::Close { client, .. }
            | Self::Downgrade { client, .. }
            | Self::Unlink { client, .. }
            | Self::SetAttributes { client }
            | Self::SetSize { client, .. }
            | Self::LayoutGet { client, .. }
            | Self::LayoutCommit { client, .. }
            | Self::ProxyIo { client, .. } => Some(*client),
            Self::Relayout | Self::Settle | Self::ClearRw => None,
        }
    }
}

/// Number of a ticket within its file; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u64);

/// The right to run the transaction of one intent. Must go back through
/// [`File::finish`](super::File::finish): until then it blocks what conflicts with it.
#[derive(Debug)]
#[must_use = "a ticket that is not finished blocks the file"]
pub struct Ticket {
    pub(super) id: TicketId,
    pub(super) stateid: Option<StateId>,
    pub(super) orphan: bool,
    pub(super) must_persist_rw: bool,
    pub(super) clears_rw: bool,
}

impl Ticket {
    /// Its number.
    #[must_use]
    pub const fn id(&self) -> TicketId {
        self.id
    }

    /// The stateid that the reply of OPEN, OPEN_DOWNGRADE or CLOSE will carry, known before the
    /// transaction so that a persistent reply record can hold it. `None` for other intents (a layout's
    /// seqid is decided by `finish`).
    #[must_use]
    pub const fn stateid(&self) -> Option<StateId> {
        self.stateid
    }

    /// Unlink: the file is open, or may be reclaimed as open; the transaction moves the inode to the orphans, not to the garbage.
    #[must_use]
    pub const fn orphan(&self) -> bool {
        self.orphan
    }

    /// LayoutGet: the transaction must write the rw_layout row.
    #[must_use]
    pub const fn must_persist_rw(&self) -> bool {
        self.must_persist_rw
    }

    /// Settle, ClearRw: no read-write layout is live; the transaction clears the rw_layout row.
    #[must_use]
    pub const fn clears_rw(&self) -> bool {
        self.clears_rw
    }
}

/// How the transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is durable.
    Committed,
    /// It did not happen; the state is as before `prepare`.
    Aborted,
    /// Nobody knows. The state is as before `prepare`, but that a row which it may have cleared counts as not there: to
    /// write it again does no harm. One that it may have written, for a layout that was refused then, is to be cleared.
    Unknown,
}

/// What `prepare` says; the effects beside it (recalls, wake-ups) are applied at once in every case.
#[derive(Debug)]
pub enum Prepared {
    /// Answer this error.
    Deny(Error),
    /// When [`Effect::Wake`](crate::effect::Effect::Wake) names the token, prepare again with it: it
    /// keeps the place in the queue. A request that is given up says so with
    /// [`File::cancel_wait`](super::File::cancel_wait).
    Wait(WaitToken),
    /// Run the transaction.
    Ticket(Ticket),
}

/// What `finish` answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// OPEN.
    Opened {
        /// The open stateid; `None`: the delegation stands for the open.
        stateid: Option<StateId>,
        /// A delegation, if one was granted.
        delegation: Option<Grant>,
    },
    /// CLOSE, with the stateid to send (its value no longer means anything).
    Closed {
        /// The closed stateid.
        stateid: StateId,
    },
    /// OPEN_DOWNGRADE.
    Downgraded {
        /// The open stateid.
        stateid: StateId,
    },
    /// LAYOUTGET.
    LayoutGranted {
        /// The layout stateid.
        stateid: StateId,
        /// logr_return_on_close.
        return_on_close: bool,
    },
    /// The transaction committed, but a recall, revocation or expiry came meanwhile: answer this error.
    /// The transaction's effects on the store stand and are harmless.
    Refused(Error),
    /// Any other intent, committed.
    Done,
    /// The transaction aborted.
    Aborted,
}

/// Which layouts to recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayoutFilter {
    /// Those of one client.
    Client(ClientId),
    /// Every read-write one.
    ReadWrite,
    /// Every one.
    All,
}
