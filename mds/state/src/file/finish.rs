//! The second half of an operation: what the transaction did becomes state. Cannot fail.

use crate::delegation::{Delegation, DelegationKind, Grant, Use};
use crate::effect::{Call, Effect, IoMode, RevokeReason};
use crate::ids::{ClientId, StateId, StateKind};
use crate::layout;
use crate::open::{Begun, Claim, Deny, OpenRequest, Want};
use crate::stateid::Other;
use crate::times::Kept;

use super::{Ctx, Error, File, Grace, Held, Intent, Outcome, Reply, Ticket};

impl File {
    pub(super) fn finish_(
        &mut self,
        ctx: &Ctx<'_>,
        ticket: &Ticket,
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) -> Reply {
        let Some(held) = self.tickets.remove(&ticket.id) else { return Reply::Aborted };
        let reply = match outcome {
            Outcome::Aborted => {
                if matches!(held.work.intent, Intent::ClearRw) {
                    self.layouts.row.told_idle = false;
                }
                Reply::Aborted
            }
            Outcome::Unknown => {
                if held.work.clears_rw {
                    self.row_cleared();
                }
                if held.work.is_rw_layout_get() && !self.is_dead() {
                    self.layouts.row.possible = true;
                }
                Reply::Aborted
            }
            Outcome::Committed => self.commit(ctx, &held, out),
        };
        if matches!(held.work.intent, Intent::Open(_)) && !matches!(reply, Reply::Opened { .. }) {
            // While it was in flight it kept an orphan alive whose last open may have gone.
            self.last_close(ctx, out);
        }
        if let Some(client) = held.work.client() {
            self.left(ctx, client, out);
        }
        self.advance(ctx.now, out);
        reply
    }

    fn commit(&mut self, ctx: &Ctx<'_>, held: &Held, out: &mut Vec<Effect>) -> Reply {
        let stateid = held.stateid.unwrap_or_default();
        if let (Intent::Downgrade { .. } | Intent::Close { .. }, Some(reason)) =
            (&held.work.intent, held.void)
        {
            return Reply::Refused(Error::taken(reason));
        }
        match &held.work.intent {
            Intent::Open(open) => match held.void {
                None => self.commit_open(ctx, open, stateid, out),
                Some(reason) => self.commit_void_open(ctx, open, (stateid, reason), out),
            },
            Intent::Downgrade { access, deny, .. } => {
                self.opens.downgrade(stateid, *access, *deny);
                Reply::Downgraded { stateid }
            }
            Intent::Close { stateid: closed, .. } => {
                self.close(ctx, &closed.other, out);
                // A layout that outlives the last close is not recalled for it, though RFC 8881 §18.43.3 lets us:
                // Linux closes while another process's LAYOUTCOMMIT is under way and opens again at once, and a
                // recall then cancels writes, answers LAYOUTGET with RECALLCONFLICT and may end in a revocation.
                // Whoever needs the layout gone recalls it then.
                self.notify_locks(ctx.now, out);
                Reply::Closed { stateid }
            }
            Intent::Unlink { last_link, .. } => {
                if *last_link {
                    self.orphaned(ctx, held.orphan, out);
                }
                Reply::Done
            }
            Intent::LayoutGet { client, stateid, iomode, call } => {
                self.commit_layout_get(ctx, (*client, stateid, *call), *iomode, held.void, out)
            }
            Intent::Settle => {
                // An unclean end since `prepare` is not covered by the sizes this transaction saw.
                self.layouts.row.settled = self.layouts.row.settled.max(held.unclean);
                if held.work.clears_rw && !self.layouts.row.needs_settle() {
                    self.row_cleared();
                }
                Reply::Done
            }
            Intent::ClearRw => {
                self.row_cleared();
                Reply::Done
            }
            _ => Reply::Done,
        }
    }

    fn row_cleared(&mut self) {
        self.layouts.row.durable = false;
        self.layouts.row.possible = false;
        self.layouts.row.awaited = false;
        self.layouts.row.told_idle = false;
    }

    fn commit_open(
        &mut self,
        ctx: &Ctx<'_>,
        open: &OpenRequest,
        stateid: StateId,
        out: &mut Vec<Effect>,
    ) -> Reply {
        let client = open.owner.client;
        self.recall_own(ctx, open, out);
        let kind = self.delegation_to_grant(ctx, open);
        // What others must not do, and what is open already, only an open can say.
        let bare = open.claim == Claim::New && open.deny == Deny::NONE;
        let stands_for = open.either && bare && self.opens.of_owner(&open.owner).is_none();
        let stateid = (kind.is_none() || !stands_for).then_some(stateid);
        if let Some(stateid) = stateid
            && self.opens.install((&open.owner, stateid), (open.access, open.deny), self.begun(ctx, open))
        {
            out.push(Effect::Register { stateid, kind: StateKind::Open, client });
        }
        let opened = stateid;
        let delegation = kind.map(|kind| {
            let stateid = ctx.ids.next(StateKind::Delegation);
            let reclaimed = matches!(open.claim, Claim::Previous { .. });
            let change = (!reclaimed).then_some(open.history.change);
            let writes = kind == DelegationKind::Write;
            let kept = open.times.filter(|_| writes && ctx.policy.delegated_times).and_then(Kept::new);
            let times = kept.is_some();
            let since = ctx.now;
            let with = opened.map(|opened| opened.other);
            let held = Delegation { kind, stateid, with, since, recall: None, change, kept, told: false };
            self.delegations.held.insert(client, held);
            out.push(Effect::Register { stateid, kind: StateKind::Delegation, client });
            Grant { kind, stateid, times }
        });
        Reply::Opened { stateid, delegation }
    }

    /// Since when the file has been used that an OPEN speaks of. What was opened under a delegation may have been as soon as it
    /// was given.
    fn begun(&self, ctx: &Ctx<'_>, open: &OpenRequest) -> Begun {
        let delegation = match open.claim {
            Claim::Delegation { .. } => self.delegations.get(open.owner.client),
            Claim::New | Claim::Previous { .. } => None,
        };
        let reclaimed = matches!(open.claim, Claim::Previous { .. });
        delegation.map_or(Begun { since: ctx.now, reclaimed }, Delegation::begun)
    }

    /// An OPEN that was in flight when its client's state was taken.
    fn commit_void_open(
        &mut self,
        ctx: &Ctx<'_>,
        open: &OpenRequest,
        (stateid, reason): (StateId, RevokeReason),
        out: &mut Vec<Effect>,
    ) -> Reply {
        let client = open.owner.client;
        // It would have made an open wider that is gone: asked again, it makes another.
        let wider = stateid.seqid != 1;
        match reason {
            RevokeReason::Admin if wider => Reply::Refused(Error::Delay),
            RevokeReason::Admin => {
                let reply = self.commit_open(ctx, open, stateid, out);
                // Until the client is cut off it is given nothing. It may have made the file, so that asking again will not do.
                if self.leaving.contains_key(&client)
                    && let Some(held) = self.opens.get(&stateid.other)
                {
                    let (stateid, kind) = (held.stateid, StateKind::Open);
                    out.push(Effect::Revoked { stateid, kind, client, reason });
                }
                reply
            }
            _ => Reply::Refused(Error::Expired),
        }
    }

    /// The grant policy: only where nothing suggests an early recall. RFC 8881 §10.4 leaves it free.
    fn delegation_to_grant(&self, ctx: &Ctx<'_>, open: &OpenRequest) -> Option<DelegationKind> {
        let client = open.owner.client;
        let policy = ctx.policy;
        let reclaim = matches!(open.claim, Claim::Previous { .. });
        let kind = match open.claim {
            Claim::Previous { delegation: Want::Read } => DelegationKind::Read,
            Claim::Previous { delegation: Want::Write } => DelegationKind::Write,
            Claim::Previous { .. } | Claim::Delegation { .. } => return None,
            Claim::New => Self::kind_for(ctx, open)?,
        };
        let calm = reclaim
            || (ctx.grace == Grace::Over && self.delegations.hold_off.is_none_or(|until| until <= ctx.now));
        let usage = ctx.usage;
        let most = match open.want {
            Want::Unsaid if !reclaim => policy.max_unasked_per_client,
            _ => policy.max_delegations_per_client,
        };
        // A client that left a recall unanswered is not given more to leave unanswered.
        let room = !usage.has_revoked
            && usage.delegations < most
            && usage.delegations_of_all < policy.max_delegations;
        let free =
            !self.orphan && self.delegations.get(client).is_none() && !self.leaving.contains_key(&client);
        // What was held before a restart stays as it was: nobody else can have been given a layout since.
        let written = !reclaim && (self.size_may_lag(client) || self.fencing_where(|_, rw| rw));
        (calm && room && free && !written && self.nobody_breaks(client, kind)).then_some(kind)
    }

    /// A client that opens for writing what it has a read delegation of: another mount of the same host reads under it, and would
    /// go on with what it has in memory. Linux returns its own before such an OPEN (`nfs4_return_incompatible_delegation`), by mount. Nobody
    /// waits: the claims that go before a return may need what is being opened.
    fn recall_own(&mut self, ctx: &Ctx<'_>, open: &OpenRequest, out: &mut Vec<Effect>) {
        let client = open.owner.client;
        let reads = self.delegations.get(client).is_some_and(|held| held.kind == DelegationKind::Read);
        if reads && open.access.writes() && open.claim == Claim::New {
            out.extend(self.delegations.recall(client, ctx.now, ctx.policy.recall_timeout));
        }
    }

    fn kind_for(ctx: &Ctx<'_>, open: &OpenRequest) -> Option<DelegationKind> {
        let policy = ctx.policy;
        // One that did not ask for any saves nothing with a delegation that is recalled, or returned with the
        // file's removal, before it opens the file again.
        if open.want == Want::None || (open.want == Want::Unsaid && open.history.restless) {
            return None;
        }
        if open.access.writes() {
            // Its holder reads, too, without asking: who opened for writing alone may not be permitted to.
            let whole = open.access.reads() && open.want != Want::Read;
            (policy.write_delegations && whole).then_some(DelegationKind::Write)
        } else {
            policy.read_delegations.then_some(DelegationKind::Read)
        }
    }

    /// No open, operation in flight, or queued request of another client breaks such a delegation; nor
    /// does the client's own writing break a read delegation.
    fn nobody_breaks(&self, client: ClientId, kind: DelegationKind) -> bool {
        let write = kind == DelegationKind::Write;
        let breaks = |use_: Use| write || use_ == Use::Change;
        let opens = self.opens.iter().all(|open| match open.owner.client == client {
            true => write || !open.access.writes(),
            false => !write && !open.access.writes(),
        });
        let holders = self.delegations.held.values().all(|d| !write && d.kind == DelegationKind::Read);
        let flying = self
            .tickets
            .values()
            .map(|held| &held.work)
            .chain(self.queue.iter().map(|waiter| &waiter.work))
            // A read-write layout that is being made outlasts the open that it was asked for under, if that is closed meanwhile.
            .all(|work| {
                let others = work.is_rw_layout_get() || work.uses().is_some_and(breaks);
                work.client() == Some(client) || !others
            });
        opens && holders && flying
    }

    /// Ends an open and the locks under it.
    pub(super) fn close(&mut self, ctx: &Ctx<'_>, other: &Other, out: &mut Vec<Effect>) {
        for lock in self.locks.under(other) {
            self.drop_lock(&lock, out);
        }
        self.locks.waiting.forget_under(other, out);
        let Some(open) = self.opens.remove(other) else { return };
        let client = open.owner.client;
        out.push(Effect::Release { stateid: open.stateid, kind: StateKind::Open, client });
        self.last_close(ctx, out);
    }

    pub(super) fn drop_lock(&mut self, other: &Other, out: &mut Vec<Effect>) {
        if let Some(lock) = self.locks.remove(other) {
            self.locks.waiting.forget_with(other, out);
            let client = lock.owner.client;
            out.push(Effect::Release { stateid: lock.stateid, kind: StateKind::Lock, client });
        }
    }

    /// After an open went: an orphan without opens can be collected.
    pub(super) fn last_close(&mut self, ctx: &Ctx<'_>, out: &mut Vec<Effect>) {
        if self.is_dead() {
            out.push(Effect::CloseOrphan);
            self.end_if_dead(ctx, out);
        }
    }

    /// The last link is gone. `was_open` is what the transaction was told.
    fn orphaned(&mut self, ctx: &Ctx<'_>, was_open: bool, out: &mut Vec<Effect>) {
        self.orphan = true;
        if self.is_dead() {
            if was_open {
                // Closed while the transaction ran: it left an orphan that nobody has open.
                out.push(Effect::CloseOrphan);
            }
            self.end_if_dead(ctx, out);
        }
    }

    /// True when nothing leads to the file any more, not even a reclaim: what is left of its state is gone.
    pub(super) fn end_if_dead(&mut self, ctx: &Ctx<'_>, out: &mut Vec<Effect>) -> bool {
        // RFC 8881 §18.16.3, OPEN4_RESULT_PRESERVE_UNLINKED: whoever had it open may say so yet, and what was written
        // before the restart is still to be settled for them.
        let ends = self.is_dead() && ctx.grace == Grace::Over;
        if ends {
            self.drop_dead(out);
        }
        ends
    }

    /// Nothing can reach the file any more: what is left of its state goes. No fence: the data files get
    /// a tombstone, which no capability survives; the rw_layout row went with the inode.
    fn drop_dead(&mut self, out: &mut Vec<Effect>) {
        let clients: Vec<ClientId> = self.layouts.iter().map(|(client, _)| client).collect();
        for client in clients {
            if let Some(held) = self.layouts.remove(client) {
                out.push(Effect::Release { stateid: held.stateid, kind: StateKind::Layout, client });
            }
        }
        for (client, held) in std::mem::take(&mut self.delegations.held) {
            out.push(Effect::Release { stateid: held.stateid, kind: StateKind::Delegation, client });
        }
        self.layouts.row = layout::RwRow::default();
    }

    fn commit_layout_get(
        &mut self,
        ctx: &Ctx<'_>,
        (client, asked, call): (ClientId, &StateId, Option<Call>),
        iomode: IoMode,
        void: Option<RevokeReason>,
        out: &mut Vec<Effect>,
    ) -> Reply {
        let recalled = self.layouts.get(client).is_some_and(|l| l.recall.is_some());
        let dead = self.is_dead();
        if iomode == IoMode::ReadWrite && !dead {
            self.layouts.row.durable = true;
            self.layouts.row.awaited = false;
        }
        if let Some(reason) = void {
            return Reply::Refused(Error::taken(reason));
        }
        if dead {
            return Reply::Refused(Error::LayoutUnavailable);
        }
        // A recall that started meanwhile names the seqid of what the client holds; a grant after it
        // would be one the client must not use (RFC 8881 §12.5.5.2).
        if recalled {
            return Reply::Refused(Error::RecallConflict);
        }
        if self.layouts.fencing_client(client) {
            return Reply::Refused(Error::Delay);
        }
        // Both asked at once.
        if self.is_anothers(client, asked, iomode) {
            return Reply::Refused(Error::OtherMount);
        }
        let (under, fresh) = (self.under(asked), ctx.ids.next(StateKind::Layout));
        let by = (iomode, under, self.is_other_mount(client, under));
        let (stateid, new) = self.layouts.grant(client, fresh, by, ctx.now);
        self.layouts.called(client, call);
        if new {
            out.push(Effect::Register { stateid, kind: StateKind::Layout, client });
        }
        Reply::LayoutGranted { stateid, return_on_close: ctx.policy.return_on_close }
    }
}
