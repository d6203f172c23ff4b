//! Ends of state that the client did not ask for: recall answers, deadlines, expiry, fences.

use crate::delegation::DelegationKind;
use crate::effect::{Calls, Effect, FenceId, RecallAnswer, RecallKind, RevokeReason};
use crate::ids::{ClientId, StateId, StateKind, Time};
use crate::layout::{self, Fencing, Layout, Layouts, ReturnMode};

use super::queue::{delegation_callback_again, layout_callback_again};
use super::{Ctx, Error, File, LayoutFilter};

impl File {
    pub(super) fn recall_layouts_(
        &mut self,
        ctx: &Ctx<'_>,
        filter: LayoutFilter,
        changed: bool,
        out: &mut Vec<Effect>,
    ) {
        for (client, held) in self.layouts.iter_mut() {
            let wanted = match filter {
                LayoutFilter::Client(only) => client == only,
                LayoutFilter::ReadWrite => held.is_rw(),
                LayoutFilter::All => true,
            };
            if wanted {
                out.extend(layout::recall(client, held, changed, ctx.now, ctx.policy.recall_timeout));
            }
        }
    }

    pub(super) fn layout_answer(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        stateid: &StateId,
        answer: RecallAnswer,
        out: &mut Vec<Effect>,
    ) {
        let Some(held) = self.layouts.get_mut(client).filter(|l| l.stateid.other == stateid.other) else {
            return;
        };
        let writes = held.is_rw();
        let Some(pending) = &mut held.recall else { return };
        let again = ctx.now.plus_nanos(ctx.policy.recall_again);
        if pending.promised {
            // It knows this recall. OLD_STATEID says just that: Linux has taken its seqid for the latest. DELAY: the return is on its
            // way. So it may be where it is said that there is no such layout, unless that is said again later.
            let (unknown, before) = match answer {
                RecallAnswer::NoMatching | RecallAnswer::BadStateid => (true, pending.unknown),
                // It has said nothing.
                RecallAnswer::Unreachable => (pending.unknown, false),
                _ => (false, false),
            };
            pending.unknown = unknown;
            pending.retry_at = (writes || unknown).then_some(again);
            if unknown && before {
                self.layout_forgotten(client, out);
            }
            return;
        }
        let answer = match answer {
            RecallAnswer::NoMatching | RecallAnswer::BadStateid
                if ctx.now < held.since.plus_nanos(ctx.policy.reply_travels) =>
            {
                RecallAnswer::Delay
            }
            answer => answer,
        };
        match answer {
            RecallAnswer::Ok => {
                pending.promised = true;
                pending.retry_at = writes.then_some(again);
            }
            RecallAnswer::Delay | RecallAnswer::Unreachable => {
                pending.retry_at = Some(ctx.now.plus_nanos(ctx.policy.recall_retry));
            }
            RecallAnswer::OldStateid => {
                // The client has seen our latest seqid otherwise than by this recall: name a later one.
                held.stateid.seqid = crate::stateid::next_seqid(held.stateid.seqid);
                pending.retry_at = Some(ctx.now.plus_nanos(ctx.policy.recall_retry));
            }
            RecallAnswer::NoMatching | RecallAnswer::BadStateid => self.layout_forgotten(client, out),
        }
    }

    /// A LAYOUTRETURN; not `seen`: what may have been written under it is not known.
    pub(super) fn take_back(
        &mut self,
        now: Time,
        (client, stateid): (ClientId, &StateId),
        mode: ReturnMode,
        seen: bool,
    ) -> Result<(Option<StateId>, Vec<Effect>), Error> {
        let writes = |layouts: &Layouts| layouts.get(client).is_some_and(Layout::is_rw);
        let wrote = writes(&self.layouts);
        let returned = self.layouts.give_back(client, stateid, mode)?;
        let mut out = Vec::new();
        if !returned.left {
            out.push(Effect::Release { stateid: returned.stateid, kind: StateKind::Layout, client });
        }
        if !seen && wrote && !writes(&self.layouts) {
            self.ends_unseen(&mut out);
        }
        self.advance(now, &mut out);
        Ok((returned.left.then_some(returned.stateid), out))
    }

    /// RFC 8881 §12.5.5.1, the forgetful client: it holds nothing. A reply to a later LAYOUTGET may still be on
    /// its way to it, though, and what it wrote may be uncommitted: where that matters it is fenced, and
    /// the file settled.
    fn layout_forgotten(&mut self, client: ClientId, out: &mut Vec<Effect>) {
        let Some(held) = self.layouts.remove(client) else { return };
        out.push(Effect::Release { stateid: held.stateid, kind: StateKind::Layout, client });
        if held.is_rw() || held.recall.is_some_and(|r| r.changed) {
            self.end_uncleanly(client, held.is_rw(), out);
        }
    }

    fn end_uncleanly(&mut self, client: ClientId, read_write: bool, out: &mut Vec<Effect>) {
        if read_write {
            self.ends_unseen(out);
        }
        self.fence(client, read_write, false, out);
    }

    fn ends_unseen(&mut self, out: &mut Vec<Effect>) {
        self.layouts.row.unclean += 1;
        out.push(Effect::NeedsSettle);
    }

    /// Asks for a fence; until it is confirmed the holder counts.
    fn fence(&mut self, client: ClientId, read_write: bool, own: bool, out: &mut Vec<Effect>) {
        // One of a client at a time; the later one waits for no less than the earlier.
        let before = |fencing: &Fencing| fencing.client == client;
        let read_write = read_write || self.layouts.fencing.values().any(|f| before(f) && f.read_write);
        self.layouts.fencing.retain(|_, fencing| !before(fencing));
        let fence = FenceId(self.next_fence);
        self.next_fence += 1;
        self.layouts.fencing.insert(fence, Fencing { client, read_write });
        out.push(Effect::Fence { fence, client, own });
    }

    pub(super) fn cut_off(&mut self, client: ClientId, out: &mut Vec<Effect>) {
        let Some(held) = self.layouts.get_mut(client).filter(|held| held.is_rw()) else { return };
        // Told twice of one failure: nothing was handed out since.
        if !std::mem::replace(&mut held.cut_off, true) {
            self.fence(client, true, true, out);
        }
    }

    fn revoke_layout(&mut self, client: ClientId, reason: RevokeReason, out: &mut Vec<Effect>) {
        let Some(held) = self.layouts.remove(client) else { return };
        out.push(Effect::Revoked { stateid: held.stateid, kind: StateKind::Layout, client, reason });
        self.end_uncleanly(client, held.is_rw(), out);
    }

    /// The client has returned it and did not hear that we know, or has never had it (RFC 8881 §10.4.5: it goes on saying so
    /// until the deadline). Linux frees no stateid that it does not have: nothing is left that it would be told of for ever.
    fn delegation_forgotten(&mut self, ctx: &Ctx<'_>, client: ClientId, out: &mut Vec<Effect>) {
        let Some(held) = self.delegations.held.remove(&client) else { return };
        out.push(Effect::Release { stateid: held.stateid, kind: StateKind::Delegation, client });
        self.end_with_delegation(ctx, client, held.kind, RevokeReason::NotReturned, out);
    }

    fn revoke_delegation(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        reason: RevokeReason,
        out: &mut Vec<Effect>,
    ) {
        let Some(held) = self.delegations.held.remove(&client) else { return };
        out.push(Effect::Revoked { stateid: held.stateid, kind: StateKind::Delegation, client, reason });
        self.end_with_delegation(ctx, client, held.kind, reason, out);
    }

    fn end_with_delegation(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        kind: DelegationKind,
        reason: RevokeReason,
        out: &mut Vec<Effect>,
    ) {
        // Under it the client need not have asked for locks, nor told of opens: whoever goes on without its
        // return must not be overtaken by what it writes yet (RFC 8881 §10.4.6, §10.5).
        if kind == DelegationKind::Write && self.layouts.get(client).is_some_and(Layout::is_rw) {
            self.revoke_layout(client, reason, out);
        }
        self.last_close(ctx, out);
    }

    pub(super) fn revoke_overdue_(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        stateid: &StateId,
        out: &mut Vec<Effect>,
    ) {
        // It may have been returned after all.
        let held = self.delegations.get(client).filter(|held| held.stateid.other == stateid.other);
        match held.and_then(|held| held.recall) {
            Some(recall) if recall.unknown => self.delegation_forgotten(ctx, client, out),
            Some(_) => self.revoke_delegation(ctx, client, RevokeReason::NotReturned, out),
            None => {}
        }
    }

    pub(super) fn delegation_answer(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        stateid: &StateId,
        answer: RecallAnswer,
    ) {
        let Some(held) = self.delegations.held.get_mut(&client) else { return };
        if held.stateid.other != stateid.other {
            return;
        }
        let Some(pending) = &mut held.recall else { return };
        pending.unknown = matches!(answer, RecallAnswer::BadStateid | RecallAnswer::NoMatching)
            && ctx.now >= held.since.plus_nanos(ctx.policy.reply_travels);
        match answer {
            RecallAnswer::Ok => pending.retry_at = None,
            // RFC 8881 §10.4.5: BAD_STATEID may mean that the OPEN's reply has not arrived; ask again
            // until the deadline rather than take the delegation from under the client.
            RecallAnswer::Delay
            | RecallAnswer::Unreachable
            | RecallAnswer::OldStateid
            | RecallAnswer::NoMatching
            | RecallAnswer::BadStateid => {
                pending.retry_at = Some(ctx.now.plus_nanos(ctx.policy.recall_retry));
            }
        }
    }

    /// Takes all state of a client that is gone. While it can still write under a layout, its opens and
    /// locks go on excluding others: a lock must not pass on before the last write under it is cut off.
    pub(super) fn expire_client(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        reason: RevokeReason,
        out: &mut Vec<Effect>,
    ) {
        for held in self.tickets.values_mut().filter(|held| held.work.client() == Some(client)) {
            held.void = Some(for_good(held.void, reason));
        }
        // Its queued requests are answered by nobody; waking them lets their tasks end.
        self.queue.retain(|waiter| {
            let gone = waiter.work.client() == Some(client);
            if gone && !waiter.woken {
                out.push(Effect::Wake(waiter.token));
            }
            !gone
        });
        self.locks.waiting.forget_client(client, out);
        if !self.leaving.contains_key(&client) {
            self.revoke_opens_and_locks(client, reason, out);
        }
        self.revoke_delegation(ctx, client, reason, out);
        self.revoke_layout(client, reason, out);
        if self.can_still_write(client) {
            let before = self.leaving.get(&client).copied();
            self.leaving.insert(client, for_good(before, reason));
        } else {
            self.purge(ctx, client, out);
        }
    }

    /// Tells the index; the state itself stays until `purge`.
    fn revoke_opens_and_locks(&self, client: ClientId, reason: RevokeReason, out: &mut Vec<Effect>) {
        for open in self.opens.of_client(client) {
            out.push(Effect::Revoked { stateid: open.stateid, kind: StateKind::Open, client, reason });
        }
        for lock in self.locks.iter().filter(|lock| lock.owner.client == client) {
            out.push(Effect::Revoked { stateid: lock.stateid, kind: StateKind::Lock, client, reason });
        }
    }

    /// At a data server under a layout, or through the metadata server with what is under way.
    pub(super) fn can_still_write(&self, client: ClientId) -> bool {
        self.layouts.fencing.values().any(|f| f.client == client && f.read_write)
            || self.tickets.values().any(|held| held.work.client() == Some(client) && held.work.writes())
    }

    /// Who leaves is gone as soon as it cannot write any more.
    pub(super) fn left(&mut self, ctx: &Ctx<'_>, client: ClientId, out: &mut Vec<Effect>) {
        if self.leaving.contains_key(&client) && !self.can_still_write(client) {
            self.leaving.remove(&client);
            self.purge(ctx, client, out);
            self.notify_locks(ctx.now, out);
        }
    }

    fn purge(&mut self, ctx: &Ctx<'_>, client: ClientId, out: &mut Vec<Effect>) {
        let locks: Vec<_> =
            self.locks.iter().filter(|l| l.owner.client == client).map(|l| l.stateid.other).collect();
        for other in locks {
            self.locks.remove(&other);
        }
        let opens: Vec<_> = self.opens.of_client(client).map(|open| open.stateid.other).collect();
        for other in &opens {
            self.opens.remove(other);
        }
        if !opens.is_empty() {
            self.last_close(ctx, out);
        }
    }

    pub(super) fn fenced(&mut self, ctx: &Ctx<'_>, fence: FenceId, out: &mut Vec<Effect>) {
        let Some(Fencing { client, .. }) = self.layouts.fencing.remove(&fence) else { return };
        // A client has one fence at a time: until it is confirmed, nothing new is granted to it.
        self.left(ctx, client, out);
        self.notify_locks(ctx.now, out);
    }

    /// Recalls to repeat, and recalls that ran out.
    pub(super) fn tick_recalls(&mut self, ctx: &Ctx<'_>, out: &mut Vec<Effect>) {
        let now = ctx.now;
        let late: Vec<ClientId> = self
            .layouts
            .iter()
            .filter(|(_, l)| l.recall.is_some_and(|r| r.deadline <= now))
            .map(|(client, _)| client)
            .collect();
        for client in late {
            self.revoke_layout(client, RevokeReason::NotReturned, out);
        }
        for (client, held) in self.delegations.held.iter_mut() {
            if let Some(recall) = held.recall.as_mut().filter(|recall| recall.deadline <= now) {
                recall.deadline = now.plus_nanos(ctx.policy.recall_timeout);
                out.push(Effect::Overdue { client: *client, stateid: held.stateid });
            }
        }
        for (client, held) in self.layouts.iter_mut() {
            layout_callback_again(client, held, now, out);
        }
        for (client, held) in self.delegations.held.iter_mut() {
            delegation_callback_again(*client, held, now, out);
        }
    }

    /// When a recall that is under way runs out, and what the callback comes after (csa_referring_call_lists): of a layout the
    /// LAYOUTGETs that moved its seqid. `None`: what it asks for has been returned, or taken.
    #[must_use]
    pub fn recall_under_way(
        &self,
        kind: RecallKind,
        client: ClientId,
        stateid: &StateId,
    ) -> Option<(Time, Calls)> {
        let (held, recall, calls) = match kind {
            RecallKind::Layout { .. } => {
                self.layouts.get(client).map(|held| (held.stateid, held.recall, held.calls))?
            }
            RecallKind::Delegation => {
                self.delegations.get(client).map(|held| (held.stateid, held.recall, Calls::default()))?
            }
        };
        recall.filter(|_| held.other == stateid.other).map(|recall| (recall.deadline, calls))
    }

    pub(super) fn answer(
        &mut self,
        ctx: &Ctx<'_>,
        (kind, client, stateid): (RecallKind, ClientId, &StateId),
        answer: RecallAnswer,
        out: &mut Vec<Effect>,
    ) {
        match kind {
            RecallKind::Layout { .. } => self.layout_answer(ctx, client, stateid, answer, out),
            RecallKind::Delegation => self.delegation_answer(ctx, client, stateid, answer),
        }
    }

    /// When the next recall is to be repeated or runs out.
    pub(super) fn recall_deadline(&self) -> Option<Time> {
        // As of nearly every file at nearly every step.
        if self.layouts.is_empty() && self.delegations.held.is_empty() {
            return None;
        }
        let layouts = self.layouts.iter().filter_map(|(_, l)| l.recall);
        let delegations = self.delegations.held.values().filter_map(|d| d.recall);
        layouts.chain(delegations).map(|r| r.next_deadline()).min()
    }
}

/// Who is gone does not come back because something of it is broken besides.
fn for_good(before: Option<RevokeReason>, reason: RevokeReason) -> RevokeReason {
    before.filter(|before| *before == RevokeReason::LeaseExpired).unwrap_or(reason)
}
