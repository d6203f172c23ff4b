//! The first half of an operation: deny, wait, or a ticket.

use crate::delegation::{Delegation, DelegationKind};
use crate::effect::{Effect, IoMode, RevokeReason, WaitToken};
use crate::ids::{ClientId, StateId, StateKind, Time};
use crate::layout::Layout;
use crate::open::{Claim, OpenRequest};
use crate::stateid::{Other, next_seqid};

use super::work::Work;
use super::{Ctx, Error, File, Grace, Held, Intent, Prepared, Ticket, TicketId};

impl File {
    pub(super) fn prepare_(
        &mut self,
        ctx: &Ctx<'_>,
        intent: &Intent,
        queued: Option<WaitToken>,
        out: &mut Vec<Effect>,
    ) -> Prepared {
        let place = match queued.map(|token| self.queue.iter().position(|w| w.token == token)) {
            None => None,
            Some(Some(at)) if self.queue.get(at).is_some_and(|w| !w.expired) => Some(at),
            // It waited too long, or its client is gone.
            Some(_) => return Prepared::Deny(Error::Delay),
        };
        let work = match self.admit(ctx, intent) {
            Ok(work) => work,
            Err(error) => return Prepared::Deny(error),
        };
        let before = place.unwrap_or(self.queue.len());
        let mut waits = self.behind_ticket(&work);
        if self.behind_waiter(&work, before) {
            // RFC 8881 §18.43.3: while a recall is under way on behalf of somebody else, the client backs
            // off; it must not sit on a session slot.
            if matches!(intent, Intent::LayoutGet { .. }) {
                return Prepared::Deny(Error::RecallConflict);
            }
            waits = true;
        }
        if !waits {
            let blockers = self.blockers(&work);
            waits = !blockers.is_empty();
            self.recall_blockers(&blockers, ctx.now, ctx.policy.recall_timeout, out);
        }
        if !waits {
            return Prepared::Ticket(self.issue(ctx, work));
        }
        match place.and_then(|at| self.queue.get_mut(at)) {
            Some(waiter) => {
                waiter.woken = false;
                Prepared::Wait(waiter.token)
            }
            None => match self.enqueue(ctx, work) {
                Ok(token) => Prepared::Wait(token),
                Err(error) => Prepared::Deny(error),
            },
        }
    }

    /// Everything that is refused whatever the others do.
    fn admit(&self, ctx: &Ctx<'_>, intent: &Intent) -> Result<Work, Error> {
        if let Some(reason) = intent.client().and_then(|client| self.leaving.get(&client)) {
            return Err(Self::while_leaving(*reason, intent));
        }
        let mut work = Work { intent: intent.clone(), owner: None, clears_rw: false, lets_commits_in: false };
        match intent {
            Intent::Open(open) => {
                self.admit_open(ctx, open)?;
                work.owner = Some(open.owner.clone());
            }
            Intent::Close { client, stateid } => {
                let open = self.opens.check(*client, stateid)?;
                // RFC 8881 §18.2.3: the server may release the locks or refuse.
                if !ctx.policy.close_releases_locks && self.locks.held_under(&stateid.other) {
                    return Err(Error::LocksHeld);
                }
                work.owner = Some(open.owner.clone());
            }
            Intent::Downgrade { client, stateid, access, deny } => {
                let open = self.opens.check(*client, stateid)?;
                if !self.opens.can_downgrade(&stateid.other, *access, *deny) {
                    return Err(Error::Inval);
                }
                work.owner = Some(open.owner.clone());
            }
            Intent::LayoutGet { client, stateid, iomode, .. } => {
                self.admit_layout_get(ctx, *client, stateid, *iomode)?;
            }
            Intent::LayoutCommit { client, stateid } => {
                // A layout that is gone: BAD_STATEID would send the client into state recovery.
                let Ok(layout) = self.layouts.check(*client, stateid) else { return Err(Error::BadLayout) };
                if !layout.is_rw() {
                    return Err(Error::BadIomode);
                }
            }
            // A size set now could cut off what an open not yet reclaimed relies on (RFC 8881 §8.4.2.1).
            Intent::SetSize { .. } if ctx.grace != Grace::Over => return Err(Error::Grace),
            // The last link goes once.
            Intent::Unlink { last_link: true, .. } if self.orphan => return Err(Error::Stale),
            Intent::ClearRw if !self.rw_idle() => return Err(Error::Delay),
            _ => {}
        }
        Ok(work)
    }

    /// What a client hears whose state was taken, until it is cut off. One that an administrator took it from goes on: what
    /// names no state of before is for later.
    fn while_leaving(reason: RevokeReason, intent: &Intent) -> Error {
        match intent {
            _ if reason != RevokeReason::Admin => Error::Expired,
            Intent::Close { .. } | Intent::Downgrade { .. } | Intent::LayoutGet { .. } => {
                Error::taken(reason)
            }
            Intent::LayoutCommit { .. } => Error::BadLayout,
            _ => Error::Delay,
        }
    }

    fn admit_open(&self, ctx: &Ctx<'_>, open: &OpenRequest) -> Result<(), Error> {
        let reclaim = self.admit_claim(ctx, open)?;
        if let Some(holder) = self.opens.conflict(open) {
            let client = holder.owner.client;
            // A holder that is being fenced goes soon: the queue takes care of it.
            if !self.leaving.contains_key(&client) {
                // RFC 8881 §9.7 and, for a reclaim, §8.4.2.1: somebody else got there first.
                return Err(if reclaim {
                    Error::ReclaimConflict
                } else {
                    Error::ShareDenied { holder: client }
                });
            }
        }
        // What was open before a restart, or under a delegation, was within the bounds of then.
        let is_new = open.claim == Claim::New;
        let usage = if is_new { ctx.usage } else { ctx.usage.had_before() };
        let file_is_full = || match is_new {
            true => self.opens_are_full(ctx.policy, open.owner.client),
            false => self.opens.len() >= ctx.policy.max_opens_per_file,
        };
        if self.opens.of_owner(&open.owner).is_none() && (ctx.policy.opens_are_full(&usage) || file_is_full())
        {
            return Err(Error::Resource);
        }
        Ok(())
    }

    /// Grace and claim; true for a reclaim.
    fn admit_claim(&self, ctx: &Ctx<'_>, open: &OpenRequest) -> Result<bool, Error> {
        match (&open.claim, ctx.grace) {
            // RFC 8881 §8.4.2.1: no new state while old state may still be reclaimed.
            (Claim::New, Grace::Active { .. }) => Err(Error::Grace),
            (Claim::New, Grace::Over) if self.is_dead() => Err(Error::Stale),
            (Claim::New, Grace::Over) => Ok(false),
            (Claim::Previous { .. }, Grace::Active { may_reclaim: true }) => Ok(true),
            // RFC 8881 §18.51.3: after RECLAIM_COMPLETE, or without grace, there is nothing to reclaim.
            (Claim::Previous { .. }, _) => Err(Error::NoGrace),
            (Claim::Delegation { stateid }, _) => {
                let held = self.delegations.check(open.owner.client, stateid)?;
                // RFC 8881 §10.4: without asking, its holder opens for what it is good for.
                if held.kind == DelegationKind::Read && open.access.writes() {
                    return Err(Error::Openmode);
                }
                Ok(false)
            }
        }
    }

    fn admit_layout_get(
        &self,
        ctx: &Ctx<'_>,
        client: ClientId,
        stateid: &StateId,
        iomode: IoMode,
    ) -> Result<(), Error> {
        if ctx.grace != Grace::Over {
            return Err(Error::Grace);
        }
        if stateid.kind() == Some(StateKind::Layout) {
            self.layouts.check(client, stateid)?;
        } else {
            self.check_state(client, stateid)?;
        }
        // Also under a layout stateid: RFC 8881 §18.43.3 ties a read-write layout to an open for writing.
        if iomode == IoMode::ReadWrite && !self.may_write(client) {
            return Err(Error::Openmode);
        }
        // §9.1.2, as for a READ.
        if iomode == IoMode::Read && matches!(stateid.kind(), Some(StateKind::Open | StateKind::Lock)) {
            self.check_access(client, stateid, false)?;
        }
        if self.is_anothers(client, stateid, iomode) {
            return Err(Error::OtherMount);
        }
        let held = self.layouts.get(client);
        // After a recall, RFC 8881 §12.5.5.2 has the client wait for the return.
        if held.is_some_and(|l| l.recall.is_some()) {
            return Err(Error::RecallConflict);
        }
        // Handles minted before the fence is in force would be cut off by it. Nothing is recalled: §15.1.
        if self.layouts.fencing_client(client) {
            return Err(Error::Delay);
        }
        if held.is_none()
            && (ctx.usage.layouts >= ctx.policy.max_layouts_per_client
                || ctx.usage.layouts_of_all >= ctx.policy.max_layouts)
        {
            return Err(Error::LayoutUnavailable);
        }
        Ok(())
    }

    /// Whether a LAYOUTGET is refused because another mount of its client has the layout.
    pub(super) fn is_anothers(&self, client: ClientId, stateid: &StateId, iomode: IoMode) -> bool {
        let other = || self.is_other_mount(client, self.under(stateid));
        self.layouts.get(client).is_some_and(|held| held.is_anothers(other(), iomode))
    }

    /// The open or the delegation that a LAYOUTGET is under; `None`: it goes on under the layout.
    pub(super) fn under(&self, stateid: &StateId) -> Option<Other> {
        match stateid.kind() {
            Some(StateKind::Layout) => None,
            Some(StateKind::Lock) => self.locks.get(&stateid.other).map(|lock| lock.open),
            _ => Some(stateid.other),
        }
    }

    /// Whether a mount asks under this that is not the one which has the client's layout. Who has one asks under that (RFC 8881
    /// §18.43.3), unless it forgot; Linux has it by mount, and its mounts have no open-owner in common. What the mount that has it asked
    /// under is there yet, or its write delegation, which lets it keep the layout without.
    pub(super) fn is_other_mount(&self, client: ClientId, under: Option<Other>) -> bool {
        let held = self.layouts.get(client).and_then(Layout::under);
        held.zip(under).is_some_and(|(held, asks)| {
            let delegation = self.delegations.get(client);
            let writes = |d: &Delegation| d.kind == DelegationKind::Write && d.stateid.other != asks;
            let named = |d: &Delegation| d.stateid.other == held;
            // Linux asks under a delegation, if it has one, what it was given with the OPEN that brought it, and forgot.
            let together = |d: &Delegation| {
                [(asks, held), (held, asks)]
                    .into_iter()
                    .any(|(a, b)| d.stateid.other == a && d.with == Some(b))
            };
            held != asks
                && !delegation.is_some_and(together)
                && (self.opens.get(&held).is_some() || delegation.is_some_and(|d| named(d) || writes(d)))
        })
    }

    fn issue(&mut self, ctx: &Ctx<'_>, mut work: Work) -> Ticket {
        let id = TicketId(self.next_ticket);
        self.next_ticket += 1;
        let mut ticket =
            Ticket { id, stateid: None, orphan: false, must_persist_rw: false, clears_rw: false };
        match &work.intent {
            Intent::Open(open) => {
                ticket.stateid = Some(match self.opens.of_owner(&open.owner) {
                    Some(held) => held.stateid.with_seqid(next_seqid(held.stateid.seqid)),
                    None => ctx.ids.next(StateKind::Open),
                });
            }
            Intent::Downgrade { stateid, .. } => {
                ticket.stateid = self
                    .opens
                    .get(&stateid.other)
                    .map(|held| held.stateid.with_seqid(next_seqid(held.stateid.seqid)));
            }
            // RFC 8881 §18.2.4: the reply should carry the invalid special stateid.
            Intent::Close { .. } => ticket.stateid = Some(StateId { seqid: u32::MAX, other: [0; 12] }),
            // RFC 8881 §18.16.3, OPEN4_RESULT_PRESERVE_UNLINKED: in grace it may be open without having been reclaimed.
            Intent::Unlink { last_link, .. } => {
                ticket.orphan = *last_link && (self.is_open() || ctx.grace != Grace::Over);
            }
            Intent::LayoutGet { iomode: IoMode::ReadWrite, .. } => {
                ticket.must_persist_rw = !self.layouts.row.durable;
                self.layouts.row.told_idle = false;
            }
            Intent::Settle | Intent::ClearRw => {
                ticket.clears_rw = !self.rw_live();
                work.clears_rw = ticket.clears_rw;
            }
            _ => {}
        }
        let held = Held {
            work,
            stateid: ticket.stateid,
            orphan: ticket.orphan,
            unclean: self.layouts.row.unclean,
            void: None,
        };
        self.tickets.insert(id, held);
        ticket
    }

    /// The new size of this ticket is durable, and the rest of it waits for layouts to come back: who is asked for his says first how
    /// far he wrote, and Linux does not return it before that is answered. The caller takes care that it brings back nothing that
    /// is still to be cut off.
    pub fn let_commits_in(&mut self, now: Time, ticket: &Ticket) -> Vec<Effect> {
        let mut out = Vec::new();
        if let Some(held) = self.tickets.get_mut(&ticket.id) {
            held.work.lets_commits_in = true;
        }
        self.advance(now, &mut out);
        out
    }

    /// The client could open, or has opened, the file for writing.
    #[must_use]
    pub fn may_write(&self, client: ClientId) -> bool {
        self.opens.of_client(client).any(|open| open.access.writes())
            || self.delegations.get(client).is_some_and(|d| d.kind == DelegationKind::Write)
    }
}
