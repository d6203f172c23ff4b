//! The conflict view of one file: opens, locks, layouts, delegations, tickets and the queue behind them.
//! RFC 8881 §9, §10, §12.5; docs/DESIGN.md §5.
//!
//! An operation that needs both this state and a transaction goes
//!
//! ```text
//! prepare ──Deny──▶ answer the error
//!    │  └──Wait──▶ apply the effects, wait for Wake(token), prepare again with the token
//!    ▼
//! Ticket ──▶ transaction ──▶ finish(ticket, Committed | Aborted) ──▶ reply, effects
//! ```
//!
//! A ticket counts as a holder: what conflicts with it queues behind it. Nothing here blocks, and no lock
//! around a `File` need be held between `prepare` and `finish`.

mod error;
mod request;

pub use error::Error;
pub use request::{
    Ctx, FileId, FileSeed, Grace, Intent, LayoutFilter, Outcome, Policy, Prepared, Reply, Ticket, TicketId,
};

use crate::delegation::DelegationKind;
use crate::effect::{Effect, FenceId, RecallAnswer, RecallKind, RevokeReason, WaitToken};
use crate::ids::{ClientId, StateId, Time};
use crate::layout::ReturnMode;
use crate::lock::{LockKind, LockRequest};
use crate::owner::LockOwner;
use crate::range_set::Range;

/// The state of one file. Made when the first state on it appears, dropped when [`File::is_idle`].
#[derive(Debug)]
pub struct File {
    id: FileId,
}

impl File {
    /// The state of file `id`, with what its inode says.
    #[must_use]
    pub fn new(id: FileId, _seed: FileSeed) -> Self {
        Self { id }
    }

    /// Its fileid.
    #[must_use]
    pub const fn id(&self) -> FileId {
        self.id
    }

    /// First half of an operation; `queued` is the token when the request was woken.
    pub fn prepare(
        &mut self,
        _ctx: &Ctx<'_>,
        _intent: &Intent,
        _queued: Option<WaitToken>,
    ) -> (Prepared, Vec<Effect>) {
        (Prepared::Deny(Error::Delay), Vec::new())
    }

    /// Second half; cannot fail. Effects are applied after the transaction, in order.
    pub fn finish(&mut self, _ctx: &Ctx<'_>, _ticket: Ticket, _outcome: Outcome) -> (Reply, Vec<Effect>) {
        (Reply::Aborted, Vec::new())
    }

    /// Gives up a queued request (its caller timed out or went away). Unknown tokens are ignored.
    pub fn cancel_wait(&mut self, _now: Time, _token: WaitToken) -> Vec<Effect> {
        Vec::new()
    }

    /// LOCK: no transaction. The lock stateid, with its new seqid.
    ///
    /// # Errors
    /// Denied (with the lock in the way; a blocking request is then queued, see
    /// [`Effect::NotifyLock`]), Openmode, Grace, NoGrace, ReclaimConflict, Resource, stateid errors.
    pub fn lock(
        &mut self,
        _ctx: &Ctx<'_>,
        _client: ClientId,
        _request: &LockRequest,
    ) -> Result<(StateId, Vec<Effect>), Error> {
        Err(Error::Delay)
    }

    /// LOCKT.
    ///
    /// # Errors
    /// Denied, with the lock in the way; Grace.
    pub fn test_lock(
        &self,
        _ctx: &Ctx<'_>,
        _owner: &LockOwner,
        _kind: LockKind,
        _range: Range,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// LOCKU: the lock stateid, with its new seqid.
    ///
    /// # Errors
    /// Stateid errors, Resource (a split beyond the cap).
    pub fn unlock(
        &mut self,
        _ctx: &Ctx<'_>,
        _client: ClientId,
        _stateid: &StateId,
        _range: Range,
    ) -> Result<(StateId, Vec<Effect>), Error> {
        Err(Error::Delay)
    }

    /// FREE_STATEID of live state (revoked ones are freed in the index alone).
    ///
    /// # Errors
    /// LocksHeld when the stateid is an open, a delegation, a layout or a lock stateid with locks.
    pub fn free_stateid(&mut self, _client: ClientId, _stateid: &StateId) -> Result<Vec<Effect>, Error> {
        Err(Error::Delay)
    }

    /// TEST_STATEID, and the check of any operation that merely needs a good stateid.
    ///
    /// # Errors
    /// Stateid errors.
    pub fn test_stateid(&self, _client: ClientId, _stateid: &StateId) -> Result<(), Error> {
        Ok(())
    }

    /// May a READ (`write` false), WRITE or SETATTR(size) proceed under this stateid? Special stateids
    /// included.
    ///
    /// # Errors
    /// Openmode, Locked (special stateids against share reservations), Grace (special stateids in grace),
    /// stateid errors.
    pub fn check_io(
        &self,
        _ctx: &Ctx<'_>,
        _client: ClientId,
        _stateid: &StateId,
        _write: bool,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// LAYOUTRETURN of the file (offset 0, whole range). `Some` stateid: lrs_present, state is left.
    ///
    /// # Errors
    /// OldStateid (a later LAYOUTGET is not covered; the client refreshes and asks again), BadStateid.
    pub fn layout_return(
        &mut self,
        _now: Time,
        _client: ClientId,
        _stateid: &StateId,
        _mode: ReturnMode,
    ) -> Result<(Option<StateId>, Vec<Effect>), Error> {
        Err(Error::Delay)
    }

    /// Starts recalls on the server's own initiative (failover, memory pressure, `sluice layout recall`).
    pub fn recall_layouts(&mut self, _ctx: &Ctx<'_>, _filter: LayoutFilter, _changed: bool) -> Vec<Effect> {
        Vec::new()
    }

    /// The answer to a [`Recall`](crate::effect::Recall): `kind` and `stateid` as in the callback. Late
    /// or unknown answers are ignored.
    pub fn recall_answer(
        &mut self,
        _ctx: &Ctx<'_>,
        _kind: RecallKind,
        _client: ClientId,
        _stateid: &StateId,
        _answer: RecallAnswer,
    ) -> Vec<Effect> {
        Vec::new()
    }

    /// DELEGRETURN.
    ///
    /// # Errors
    /// Stateid errors.
    pub fn delegation_return(
        &mut self,
        _now: Time,
        _client: ClientId,
        _stateid: &StateId,
    ) -> Result<Vec<Effect>, Error> {
        Err(Error::Delay)
    }

    /// The delegation of `client`, for READ/WRITE checks and CB_GETATTR.
    #[must_use]
    pub fn delegation_of(&self, _client: ClientId) -> Option<DelegationKind> {
        None
    }

    /// The client whose write delegation makes size and change uncertain: the caller of GETATTR sends it
    /// CB_GETATTR first (RFC 8881 §10.4.3). Never `requester` itself.
    #[must_use]
    pub fn write_delegation_against(&self, _requester: ClientId) -> Option<(ClientId, StateId)> {
        None
    }

    /// The client is gone (lease, admin, new incarnation): takes all its state on this file. Where it
    /// holds a read-write layout everything stays in force until the fence is confirmed.
    pub fn client_expired(&mut self, _now: Time, _client: ClientId, _reason: RevokeReason) -> Vec<Effect> {
        Vec::new()
    }

    /// A fence is in force at every data server.
    pub fn fence_done(&mut self, _now: Time, _fence: FenceId) -> Vec<Effect> {
        Vec::new()
    }

    /// Timers: recalls to repeat, recalls that ran out, waits that ran out, lock reservations.
    pub fn tick(&mut self, _ctx: &Ctx<'_>) -> Vec<Effect> {
        Vec::new()
    }

    /// When [`File::tick`] has something to do; `None`: never.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// True when some open is held or being made.
    #[must_use]
    pub fn is_open(&self) -> bool {
        false
    }

    /// True when the file is an orphan without an open: collect it (once grace is over).
    #[must_use]
    pub fn is_collectable(&self) -> bool {
        false
    }

    /// True when any client holds a layout or is getting one.
    #[must_use]
    pub fn has_layouts(&self) -> bool {
        false
    }

    /// True when another client than `client` holds a read-write layout, or a settle is needed: the size
    /// in the inode may be behind the data servers.
    #[must_use]
    pub fn size_may_lag(&self, _client: ClientId) -> bool {
        false
    }

    /// True when size and data may not be shown before a ticket for [`Intent::Settle`] has committed.
    #[must_use]
    pub fn needs_settle(&self) -> bool {
        false
    }

    /// True when dropping this value loses nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        false
    }
}
