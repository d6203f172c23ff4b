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

mod crowd;
mod error;
mod finish;
mod held;
mod invariants;
mod locking;
mod prepare;
mod queue;
mod recall;
mod recalls;
mod request;
mod work;

use std::collections::BTreeMap;

use crate::delegation::{DelegationKind, Delegations, Writer};
use crate::effect::{Effect, FenceId, RecallAnswer, RecallKind, RevokeReason, WaitToken};
use crate::few::Few;
use crate::ids::{ClientId, StateId, StateKind, Time};
use crate::layout::{Layouts, ReturnMode};
use crate::lock::{LockKind, LockRequest, Locks};
use crate::open::{Begun, Opens};
use crate::owner::LockOwner;
use crate::range_set::Range;
use crate::stateid::{Special, check_seqid, special};
use crate::times::{Stamp, Times};

use queue::Waiter;
pub(crate) use recall::PendingRecall;
use work::Work;

pub use error::Error;
pub use held::{Hold, Place, What};
pub use request::{
    Ctx, FileId, FileSeed, Grace, Intent, LayoutFilter, Outcome, Policy, Prepared, Reply, Ticket, TicketId,
};

/// The state of one file. Made when the first state on it appears, dropped when [`File::is_idle`].
#[derive(Debug, Hash)]
pub struct File {
    // Constant.
    id: FileId,
    // Holders.
    opens: Opens,
    locks: Locks,
    layouts: Layouts,
    delegations: Delegations,
    /// Operations whose transaction is in flight.
    tickets: Few<TicketId, Held>,
    /// Clients that are gone but whose layouts are not yet fenced: their state still excludes others.
    leaving: BTreeMap<ClientId, RevokeReason>,
    // Who waits, oldest first.
    queue: Vec<Waiter>,
    /// The last link is gone.
    orphan: bool,
    /// `Policy::lock_reservation` of the last lock that was queued.
    lock_reservation: u64,
    // Counters; never reused.
    next_ticket: u64,
    next_token: u64,
    next_fence: u64,
}

/// What a ticket holds.
#[derive(Debug, Hash)]
struct Held {
    work: Work,
    /// The stateid of the reply.
    stateid: Option<StateId>,
    /// Unlink: the transaction was told that the file is open.
    orphan: bool,
    /// Settle: the unclean ends that it covers.
    unclean: u64,
    /// Its client's state was taken meanwhile, and why: no state is made, or what is made is taken, too.
    void: Option<RevokeReason>,
}

impl File {
    /// The state of file `id`, with what its inode says.
    #[must_use]
    pub fn new(id: FileId, seed: FileSeed) -> Self {
        let mut layouts = Layouts::default();
        layouts.row.durable = seed.rw_layout;
        // A row found on the store is of an earlier incarnation (or of a file that was left uncleanly):
        // its holders are unknown and what they wrote is not in the inode.
        layouts.row.unclean = u64::from(seed.rw_layout);
        layouts.row.found = layouts.row.unclean;
        Self {
            id,
            opens: Opens::default(),
            locks: Locks::default(),
            layouts,
            delegations: Delegations::default(),
            tickets: Few::default(),
            leaving: BTreeMap::new(),
            queue: Vec::new(),
            orphan: seed.orphan,
            lock_reservation: 0,
            next_ticket: 1,
            next_token: 1,
            next_fence: 1,
        }
    }

    /// The state of file `id`, which was just made together with its rw_layout row: nobody has had a layout.
    #[must_use]
    pub fn made(id: FileId) -> Self {
        let mut file = Self::new(id, FileSeed::default());
        file.layouts.row.durable = true;
        file.layouts.row.awaited = true;
        file
    }

    /// Its fileid.
    #[must_use]
    pub const fn id(&self) -> FileId {
        self.id
    }

    /// First half of an operation; `queued` is the token when the request was woken.
    pub fn prepare(
        &mut self,
        ctx: &Ctx<'_>,
        intent: &Intent,
        queued: Option<WaitToken>,
    ) -> (Prepared, Vec<Effect>) {
        let mut out = Vec::new();
        let prepared = self.prepare_(ctx, intent, queued, &mut out);
        if !matches!(prepared, Prepared::Wait(_)) {
            self.queue.retain(|waiter| Some(waiter.token) != queued);
        }
        if matches!((&prepared, intent), (Prepared::Deny(_), Intent::ClearRw)) {
            self.layouts.row.told_idle = false;
        }
        // Others go on when this one left the queue, or when a recall that it started lets them.
        if matches!(prepared, Prepared::Deny(_)) || !out.is_empty() {
            self.advance(ctx.now, &mut out);
        }
        (prepared, out)
    }

    /// Second half; cannot fail. Effects are applied after the transaction, in order.
    pub fn finish(&mut self, ctx: &Ctx<'_>, ticket: Ticket, outcome: Outcome) -> (Reply, Vec<Effect>) {
        let mut out = Vec::new();
        let reply = self.finish_(ctx, &ticket, outcome, &mut out);
        (reply, out)
    }

    /// Gives up a queued request (its caller timed out or went away). Unknown tokens are ignored.
    pub fn cancel_wait(&mut self, now: Time, token: WaitToken) -> Vec<Effect> {
        let mut out = Vec::new();
        self.leave_queue(|waiter| waiter.token == token);
        self.advance(now, &mut out);
        out
    }

    /// LOCK: no transaction. The lock stateid, with its new seqid, and the effects, which there may be of a denied one, too.
    ///
    /// # Errors
    /// Denied (with the lock in the way; a blocking request is then queued, see
    /// [`Effect::NotifyLock`]), Openmode, Grace, NoGrace, ReclaimConflict, Resource, stateid errors.
    pub fn lock(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        request: &LockRequest,
    ) -> (Result<StateId, Error>, Vec<Effect>) {
        let mut out = Vec::new();
        let stateid = self.lock_(ctx, client, request, &mut out);
        (stateid, out)
    }

    /// LOCKT.
    ///
    /// # Errors
    /// Denied, with the lock in the way; Grace.
    pub fn test_lock(
        &self,
        ctx: &Ctx<'_>,
        owner: &LockOwner,
        kind: LockKind,
        range: Range,
    ) -> Result<(), Error> {
        self.test_lock_(ctx, owner, kind, range)
    }

    /// LOCKU: the lock stateid, with its new seqid.
    ///
    /// # Errors
    /// Stateid errors, Resource (a split beyond the cap).
    pub fn unlock(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        stateid: &StateId,
        range: Range,
    ) -> Result<(StateId, Vec<Effect>), Error> {
        let mut out = Vec::new();
        let stateid = self.unlock_(ctx, client, stateid, range, &mut out)?;
        Ok((stateid, out))
    }

    /// FREE_STATEID of live state (revoked ones are freed in the index alone).
    ///
    /// # Errors
    /// LocksHeld when the stateid is an open, a delegation, a layout or a lock stateid with locks.
    pub fn free_stateid(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        stateid: &StateId,
    ) -> Result<Vec<Effect>, Error> {
        self.check_state(client, stateid)?;
        // RFC 8881 §18.38.3: only a lock stateid without locks can be freed; all else has its own way to end.
        if !self.locks.get(&stateid.other).is_some_and(|lock| lock.ranges.is_empty()) {
            return Err(Error::LocksHeld);
        }
        let mut out = Vec::new();
        self.drop_lock(&stateid.other, &mut out);
        // Who waited with it waits no more, and was perhaps the next.
        self.notify_locks(ctx.now, &mut out);
        Ok(out)
    }

    /// TEST_STATEID, and the check of any operation that merely needs a good stateid.
    ///
    /// # Errors
    /// Stateid errors.
    pub fn test_stateid(&self, client: ClientId, stateid: &StateId) -> Result<(), Error> {
        self.check_state(client, stateid)?;
        // Unlike LAYOUTGET and LAYOUTCOMMIT, TEST_STATEID tells old from current (RFC 8881 §18.48.3).
        match self.layouts.get(client).filter(|held| held.stateid.other == stateid.other) {
            Some(held) => check_seqid(stateid.seqid, held.stateid.seqid),
            None => Ok(()),
        }
    }

    /// May a READ (`write` false), WRITE or SETATTR(size) proceed under this stateid? Special stateids
    /// included.
    ///
    /// # Errors
    /// Openmode, Locked (special stateids against share reservations), Grace (special stateids in grace),
    /// stateid errors.
    pub fn check_io(
        &self,
        ctx: &Ctx<'_>,
        client: ClientId,
        stateid: &StateId,
        write: bool,
    ) -> Result<(), Error> {
        let special = special(stateid)?;
        match special {
            Some(Special::Current | Special::Invalid) => Err(Error::BadStateid),
            // RFC 8881 §8.4.2.1: a share reservation not yet reclaimed may forbid it.
            Some(_) if ctx.grace != Grace::Over => Err(Error::Grace),
            // RFC 8881 §8.2.3: READ bypass is anonymous for anything but READ.
            Some(Special::ReadBypass) if !write => Ok(()),
            Some(_) => match self.opens.denying(write) {
                Some(open) => Err(Error::Locked { holder: open.owner.client }),
                None => Ok(()),
            },
            None => self.check_ordinary_io(client, stateid, write),
        }
    }

    /// LAYOUTRETURN of the file (offset 0, whole range). `Some` stateid: lrs_present, state is left. Not `seen`: nobody could be
    /// asked what was written under it; if that might be something, the file is to be settled.
    ///
    /// # Errors
    /// OldStateid (a later LAYOUTGET is not covered; the client refreshes and asks again), BadStateid.
    pub fn layout_return(
        &mut self,
        now: Time,
        client: ClientId,
        stateid: &StateId,
        mode: ReturnMode,
        seen: bool,
    ) -> Result<(Option<StateId>, Vec<Effect>), Error> {
        self.take_back(now, (client, stateid), mode, seen)
    }

    /// The holder of a read-write layout says that a write under it got no answer. A data server may have it in a queue
    /// yet: until that is over, nothing that the client does instead goes on.
    pub fn layout_failed(&mut self, client: ClientId) -> Vec<Effect> {
        let mut out = Vec::new();
        self.cut_off(client, &mut out);
        out
    }

    /// Starts recalls on the server's own initiative (failover, memory pressure, `sluice layout recall`).
    pub fn recall_layouts(&mut self, ctx: &Ctx<'_>, filter: LayoutFilter, changed: bool) -> Vec<Effect> {
        let mut out = Vec::new();
        self.recall_layouts_(ctx, filter, changed, &mut out);
        self.advance(ctx.now, &mut out);
        out
    }

    /// The answer to a [`Recall`](crate::effect::Recall): `kind` and `stateid` as in the callback. Late
    /// or unknown answers are ignored.
    pub fn recall_answer(
        &mut self,
        ctx: &Ctx<'_>,
        kind: RecallKind,
        client: ClientId,
        stateid: &StateId,
        answer: RecallAnswer,
    ) -> Vec<Effect> {
        let mut out = Vec::new();
        self.answer(ctx, (kind, client, stateid), answer, &mut out);
        self.advance(ctx.now, &mut out);
        out
    }

    /// DELEGRETURN.
    ///
    /// # Errors
    /// Stateid errors.
    pub fn delegation_return(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        stateid: &StateId,
    ) -> Result<Vec<Effect>, Error> {
        let kind = StateKind::Delegation;
        let stateid = self.delegations.check(client, stateid)?.stateid;
        self.delegations.held.remove(&client);
        let mut out = vec![Effect::Release { stateid, kind, client }];
        self.last_close(ctx, &mut out);
        self.advance(ctx.now, &mut out);
        Ok(out)
    }

    /// Recalls the delegation of a client that cannot be asked about it.
    pub fn recall_delegation(&mut self, ctx: &Ctx<'_>, client: ClientId) -> Vec<Effect> {
        let mut out = Vec::new();
        out.extend(self.delegations.recall(client, ctx.now, ctx.policy.recall_timeout));
        self.advance(ctx.now, &mut out);
        out
    }

    /// The delegation of an [`Effect::Overdue`] is taken.
    pub fn revoke_overdue(&mut self, ctx: &Ctx<'_>, client: ClientId, stateid: &StateId) -> Vec<Effect> {
        let mut out = Vec::new();
        self.revoke_overdue_(ctx, client, stateid, &mut out);
        self.advance(ctx.now, &mut out);
        out
    }

    /// The delegation of `client`, for READ/WRITE checks and CB_GETATTR.
    #[must_use]
    pub fn delegation_of(&self, client: ClientId) -> Option<DelegationKind> {
        self.delegations.get(client).map(|delegation| delegation.kind)
    }

    /// Somebody else than `client` holds a delegation: what it changes of the file calls that back.
    #[must_use]
    pub fn is_delegated_beside(&self, client: ClientId) -> bool {
        self.delegations.held.keys().any(|holder| *holder != client)
    }

    /// Who holds a delegation.
    pub fn delegated_to(&self) -> Vec<ClientId> {
        self.delegations.held.keys().copied().collect()
    }

    /// The client whose write delegation makes size and change uncertain: the caller of GETATTR sends it
    /// CB_GETATTR first (RFC 8881 §10.4.3). Never `requester` itself.
    #[must_use]
    pub fn write_delegation_against(&self, requester: ClientId) -> Option<Writer> {
        let mut writers = self.delegations.held.iter().filter(|(_, d)| d.kind == DelegationKind::Write);
        let (client, held) = writers.find(|(client, _)| **client != requester)?;
        let times = held.kept.is_some();
        Some(Writer { client: *client, stateid: held.stateid, change: held.change, times })
    }

    /// The holder of a write delegation says what the file's times are, with a CB_GETATTR or a SETATTR: which of
    /// them count. BadStateid: it does not answer for them (RFC 9754 §5).
    pub fn keep_times(
        &mut self,
        client: ClientId,
        stateid: &StateId,
        said: Times,
        now: Stamp,
    ) -> Result<Times, Error> {
        self.delegations.keep(client, stateid, said, now)
    }

    /// Somebody was shown this time of modification: a holder that answers for it is not believed an earlier one.
    pub fn time_shown(&mut self, modify: Stamp) {
        self.delegations.shown(modify);
    }

    /// The client is gone (lease, admin, new incarnation): takes all its state on this file. Where it
    /// holds a read-write layout everything stays in force until the fence is confirmed. The files are
    /// those of `StateIndex::files_of`, and those where the client has its first request in flight: when
    /// `finish` yields state for a client that is gone by then, the caller expires it there and then.
    pub fn client_expired(&mut self, ctx: &Ctx<'_>, client: ClientId, reason: RevokeReason) -> Vec<Effect> {
        let mut out = Vec::new();
        self.expire_client(ctx, client, reason, &mut out);
        self.notify_locks(ctx.now, &mut out);
        self.advance(ctx.now, &mut out);
        out
    }

    /// An administrator takes all that the client holds of the file, and nothing else of it: it goes on, and may come
    /// back for what is free. While it can still write, what it held stays in force, and the client is told to wait.
    pub fn break_state(&mut self, ctx: &Ctx<'_>, client: ClientId) -> Vec<Effect> {
        self.client_expired(ctx, client, RevokeReason::Admin)
    }

    /// A fence is in force at every data server.
    pub fn fence_done(&mut self, ctx: &Ctx<'_>, fence: FenceId) -> Vec<Effect> {
        let mut out = Vec::new();
        self.fenced(ctx, fence, &mut out);
        self.advance(ctx.now, &mut out);
        out
    }

    /// True when the inode is to be collected: an orphan without an open, which nobody may reclaim any more.
    pub fn collect(&mut self, ctx: &Ctx<'_>) -> (bool, Vec<Effect>) {
        let mut out = Vec::new();
        let ends = self.end_if_dead(ctx, &mut out);
        self.advance(ctx.now, &mut out);
        (ends, out)
    }

    /// Timers: recalls to repeat, recalls that ran out, waits that ran out, lock reservations.
    pub fn tick(&mut self, ctx: &Ctx<'_>) -> Vec<Effect> {
        let mut out = Vec::new();
        self.tick_recalls(ctx, &mut out);
        self.expire_waits(ctx.now, &mut out);
        self.locks.waiting.expire(ctx.now, &mut out);
        self.delegations.calm_down(ctx.now);
        self.notify_locks(ctx.now, &mut out);
        self.advance(ctx.now, &mut out);
        out
    }

    /// When [`File::tick`] has something to do; `None`: never.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let waits = self.queue.iter().map(|waiter| waiter.expires).min();
        let calm = self.delegations.hold_off;
        [self.recall_deadline(), waits, self.locks.waiting.next_deadline(), calm].into_iter().flatten().min()
    }

    /// True when some open is held or being made. The holder of a delegation may have opened the file without a
    /// word (RFC 8881 §10.4).
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.opens.is_empty()
            || !self.delegations.held.is_empty()
            || self.tickets.values().any(|held| matches!(held.work.intent, Intent::Open(_)))
    }

    /// True when the file is an orphan without an open: [`File::collect`] it once grace is over.
    #[must_use]
    pub fn is_collectable(&self) -> bool {
        self.is_dead()
    }

    /// True when any client holds a layout or is getting one.
    #[must_use]
    pub fn has_layouts(&self) -> bool {
        !self.layouts.is_empty()
            || !self.layouts.fencing.is_empty()
            || self.tickets.values().any(|held| matches!(held.work.intent, Intent::LayoutGet { .. }))
    }

    /// Every layout held.
    #[must_use]
    pub fn held_layouts(&self) -> Vec<(ClientId, StateId)> {
        self.layouts.iter().map(|(client, held)| (client, held.stateid)).collect()
    }

    /// The layout stateid of a client, and whether a recall of it is pending.
    #[must_use]
    pub fn layout_of(&self, client: ClientId) -> Option<(StateId, bool)> {
        self.layouts.get(client).map(|held| (held.stateid, held.recall.is_some()))
    }

    /// Since when the client may have written what it has not told of: it has had the file open, or delegated, or held a layout
    /// of it, without a break. What was reclaimed has been held since before anything that is remembered here.
    #[must_use]
    pub fn may_have_written_since(&self, client: ClientId) -> Option<Time> {
        let since = |begun: Begun| if begun.reclaimed { Time::ZERO } else { begun.since };
        let opens = self.opens.of_client(client).map(|open| since(open.begun));
        let delegation = self.delegations.held.get(&client).map(|held| since(held.begun()));
        opens.chain(delegation).chain(self.layout_since(client)).min()
    }

    /// The client has told of all that it wrote, whenever that was: what was before a restart is over for it.
    pub fn has_told(&mut self, client: ClientId) {
        self.opens.has_told(client);
        if let Some(held) = self.delegations.held.get_mut(&client) {
            held.told = true;
        }
    }

    /// When the client was handed out the first segment of the layout that it holds.
    #[must_use]
    pub fn layout_since(&self, client: ClientId) -> Option<Time> {
        self.layouts.get(client).map(|held| held.since)
    }

    /// True when another client than `client` holds a read-write layout, or a settle is needed: the size
    /// in the inode may be behind the data servers.
    #[must_use]
    pub fn size_may_lag(&self, client: ClientId) -> bool {
        self.needs_settle() || self.layouts.iter().any(|(holder, held)| holder != client && held.is_rw())
    }

    /// The clients that hold a read-write layout.
    #[must_use]
    pub fn writers(&self) -> Vec<ClientId> {
        self.layouts.iter().filter(|(_, held)| held.is_rw()).map(|(client, _)| client).collect()
    }

    /// Whether this client holds one.
    #[must_use]
    pub fn is_written_by(&self, client: ClientId) -> bool {
        self.layouts.get(client).is_some_and(|held| held.is_rw())
    }

    /// Whether anybody does.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.layouts.iter().any(|(_, held)| held.is_rw())
    }

    /// True when size and data may not be shown before a ticket for [`Intent::Settle`] has committed.
    #[must_use]
    pub fn needs_settle(&self) -> bool {
        self.layouts.row.needs_settle()
    }

    /// True when dropping this value loses nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_still()
            && self.layouts.is_empty()
            && self.delegations.held.is_empty()
            // While it is remembered that the file was fought over.
            && self.delegations.hold_off.is_none()
    }

    /// True when what the store says of the file holds, and held a moment ago: nobody has it open, nobody has written
    /// to it or may be about to. Clients may remember it, by delegations and by layouts for reading.
    #[must_use]
    pub fn is_still(&self) -> bool {
        // A row found unclean is on the store, and found there again; one that is merely idle would be
        // taken for unclean, so that the clearing comes first.
        self.opens.is_empty()
            && self.locks.is_empty()
            && !self.layouts.iter().any(|(_, held)| held.is_rw())
            && self.layouts.fencing.is_empty()
            && self.tickets.is_empty()
            && self.leaving.is_empty()
            && self.queue.is_empty()
            && self.locks.waiting.is_empty()
            && !self.rw_idle()
            && !self.layouts.row.awaited
            && !self.layouts.row.must_be_remembered()
    }

    /// Nothing leads to the file any more but a reclaim.
    fn is_dead(&self) -> bool {
        self.orphan && !self.is_open()
    }

    /// A good open, lock, delegation or layout stateid of this client, by the usual seqid rules.
    fn check_state(&self, client: ClientId, stateid: &StateId) -> Result<(), Error> {
        if let Some(reason) = self.leaving.get(&client) {
            return Err(Error::taken(*reason));
        }
        match stateid.kind() {
            Some(StateKind::Open) => self.opens.check(client, stateid).map(drop),
            Some(StateKind::Lock) => self.locks.check(client, stateid).map(drop),
            Some(StateKind::Delegation) => self.delegations.check(client, stateid).map(drop),
            Some(StateKind::Layout) => self.layouts.check(client, stateid).map(drop),
            _ => Err(Error::BadStateid),
        }
    }

    fn check_ordinary_io(&self, client: ClientId, stateid: &StateId, write: bool) -> Result<(), Error> {
        self.check_state(client, stateid)?;
        match stateid.kind() {
            Some(StateKind::Open | StateKind::Lock) => self.check_access(client, stateid, write),
            Some(StateKind::Delegation) => match self.delegation_of(client) {
                Some(DelegationKind::Read) if write => Err(Error::Openmode),
                _ => Ok(()),
            },
            // RFC 8881 §12.5.3: a layout stateid is not for I/O through the metadata server.
            _ => Err(Error::BadStateid),
        }
    }
}
