//! Requests that wait: first come first served among those that conflict.

use crate::effect::{Effect, WaitToken};
use crate::ids::{ClientId, Time};
use crate::{delegation, layout};

use super::work::Work;
use super::{Ctx, Error, File, Intent};

#[derive(Debug, Hash)]
pub(super) struct Waiter {
    pub(super) token: WaitToken,
    pub(super) work: Work,
    /// [`Effect::Wake`] was sent and the request has not come back yet.
    pub(super) woken: bool,
    /// Waited too long: no longer in the way of others; answered NFS4ERR_DELAY when it comes back.
    pub(super) expired: bool,
    pub(super) expires: Time,
    /// `Policy::wait`, for the second deadline.
    wait: u64,
    /// `Policy::recall_timeout`, for recalls started on its behalf.
    pub(super) recall_timeout: u64,
}

/// Holders in the way of a request, by what is to be done about them.
#[derive(Debug, Default)]
pub(super) struct Blockers {
    layouts: Vec<ClientId>,
    /// clora_changed.
    changed: bool,
    delegations: Vec<ClientId>,
    /// Only a fence ends them.
    fences: bool,
}

impl Blockers {
    pub(super) fn is_empty(&self) -> bool {
        !self.needs_recall() && !self.fences
    }

    /// Some holder must be asked to give back.
    pub(super) fn needs_recall(&self) -> bool {
        !self.layouts.is_empty() || !self.delegations.is_empty()
    }
}

impl File {
    /// Is there a ticket that this must wait for?
    pub(super) fn behind_ticket(&self, work: &Work) -> bool {
        self.tickets.values().any(|held| held.work.conflicts(work))
    }

    /// Is there an earlier request that this must wait for? `before` bounds the part of the queue.
    pub(super) fn behind_waiter(&self, work: &Work, before: usize) -> bool {
        // A client that owes us a return may need this very request to make it.
        let exempt = work.passes_queue() || work.client().is_some_and(|c| self.is_recalled(c));
        !exempt && self.queue.iter().take(before).any(|w| !w.expired && w.work.conflicts(work))
    }

    fn is_recalled(&self, client: ClientId) -> bool {
        self.layouts.get(client).is_some_and(|l| l.recall.is_some())
            || self.delegations.get(client).is_some_and(|d| d.recall.is_some())
    }

    /// The holders that must go first.
    pub(super) fn blockers(&self, work: &Work) -> Blockers {
        let mut found = Blockers::default();
        if let (Some(client), Some(use_)) = (work.client(), work.uses()) {
            found.delegations = self.delegations.against(client, use_);
        }
        match &work.intent {
            Intent::Open(open) => {
                // A client that is being fenced can still write: its reservation stands until then.
                found.fences = self
                    .opens
                    .conflict(open)
                    .is_some_and(|holder| self.leaving.contains_key(&holder.owner.client));
            }
            Intent::SetSize { client, replace, fresh } => {
                found.changed = *fresh;
                found.layouts = self.layouts_where(|c, rw| *replace || (rw && c != *client));
                found.fences = self.fencing_where(|_, rw| *replace || rw);
            }
            // Unordered concurrent I/O is the client's own business (close-to-open); but a write that
            // falls back to us must not be overtaken by its own predecessor at a data server.
            Intent::ProxyIo { client, write, exclusive } => {
                found.layouts = self.layouts_where(|_, rw| *exclusive && rw);
                found.fences = self.fencing_where(|c, rw| rw && (*exclusive || (*write && c == *client)));
            }
            Intent::Relayout => {
                found.changed = true;
                found.layouts = self.layouts_where(|_, _| true);
                found.fences = self.fencing_where(|_, _| true);
            }
            Intent::Settle => found.fences = self.fencing_where(|_, rw| rw),
            _ => {}
        }
        found
    }

    fn layouts_where(&self, which: impl Fn(ClientId, bool) -> bool) -> Vec<ClientId> {
        self.layouts.iter().filter(|(c, l)| which(*c, l.is_rw())).map(|(c, _)| c).collect()
    }

    pub(super) fn fencing_where(&self, which: impl Fn(ClientId, bool) -> bool) -> bool {
        self.layouts.fencing.values().any(|f| which(f.client, f.read_write))
    }

    /// Recalls what can be recalled; nothing is asked twice.
    pub(super) fn recall_blockers(
        &mut self,
        blockers: &Blockers,
        now: Time,
        timeout: u64,
        out: &mut Vec<Effect>,
    ) {
        for client in &blockers.layouts {
            if let Some(held) = self.layouts.get_mut(*client) {
                out.extend(layout::recall(*client, held, blockers.changed, now, timeout));
            }
        }
        for client in &blockers.delegations {
            out.extend(self.delegations.recall(*client, now, timeout));
        }
    }

    /// Every holder that can be asked was asked.
    pub(super) fn all_asked(&self, blockers: &Blockers) -> bool {
        let layout = |c: &ClientId| self.layouts.get(*c).is_some_and(|l| l.recall.is_some());
        let delegation = |c: &ClientId| self.delegations.get(*c).is_some_and(|d| d.recall.is_some());
        blockers.layouts.iter().all(layout) && blockers.delegations.iter().all(delegation)
    }

    /// Puts a request at the end of the queue.
    pub(super) fn enqueue(&mut self, ctx: &Ctx<'_>, work: Work) -> Result<WaitToken, Error> {
        let client = work.client();
        let of_client = self.queue.iter().filter(|w| w.work.client() == client).count();
        if self.queue.len() >= ctx.policy.max_waiters_per_file
            || of_client >= ctx.policy.max_waiters_per_client
        {
            return Err(Error::Delay);
        }
        let token = WaitToken(self.next_token);
        self.next_token += 1;
        self.queue.push(Waiter {
            token,
            work,
            woken: false,
            expired: false,
            expires: ctx.now.plus_nanos(ctx.policy.wait),
            wait: ctx.policy.wait,
            recall_timeout: ctx.policy.recall_timeout,
        });
        Ok(token)
    }

    /// After any step: starts the recalls of requests whose turn has come, wakes those that can go on.
    pub(super) fn advance(&mut self, now: Time, out: &mut Vec<Effect>) {
        // A recall lets its client past the queue, also with a request that was looked at already.
        loop {
            let before = out.len();
            self.advance_once(now, out);
            if out.len() == before {
                break;
            }
        }
        self.note_rw_idle(out);
    }

    fn advance_once(&mut self, now: Time, out: &mut Vec<Effect>) {
        for i in 0..self.queue.len() {
            let Some(waiter) = self.queue.get(i) else { break };
            if waiter.woken || self.behind_ticket(&waiter.work) || self.behind_waiter(&waiter.work, i) {
                continue;
            }
            let (token, timeout) = (waiter.token, waiter.recall_timeout);
            let blockers = self.blockers(&waiter.work);
            if blockers.is_empty() {
                out.push(Effect::Wake(token));
                if let Some(waiter) = self.queue.get_mut(i) {
                    waiter.woken = true;
                }
            } else {
                self.recall_blockers(&blockers, now, timeout, out);
            }
        }
    }

    /// Wakes requests that waited too long; forgets those that were woken and never came back.
    pub(super) fn expire_waits(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.leave_queue(|waiter| waiter.expired && waiter.expires <= now);
        for waiter in self.queue.iter_mut().filter(|waiter| waiter.expires <= now) {
            waiter.expired = true;
            waiter.expires = now.plus_nanos(waiter.wait);
            if !waiter.woken {
                waiter.woken = true;
                out.push(Effect::Wake(waiter.token));
            }
        }
    }

    /// These wait no longer. A row that was to be cleared is still there, and idle: that is said again.
    pub(super) fn leave_queue(&mut self, gone: impl Fn(&Waiter) -> bool) {
        let row = &mut self.layouts.row;
        self.queue.retain(|waiter| {
            let gone = gone(waiter);
            row.told_idle &= !(gone && matches!(waiter.work.intent, Intent::ClearRw));
            !gone
        });
    }

    /// Says once that the rw_layout row is no longer needed.
    pub(super) fn note_rw_idle(&mut self, out: &mut Vec<Effect>) {
        self.layouts.row.awaited &= self.is_open();
        if self.rw_idle() && !self.layouts.row.told_idle {
            self.layouts.row.told_idle = true;
            out.push(Effect::RwIdle);
        }
    }

    /// The row exists, or may, and nobody holds, gets, awaits, or uncleanly lost a read-write layout.
    pub(super) fn rw_idle(&self) -> bool {
        let row = &self.layouts.row;
        (row.durable || row.possible) && !row.awaited && !row.needs_settle() && !self.rw_live()
    }

    /// Somebody holds a read-write layout, may still write under one, or is getting one.
    #[must_use]
    pub fn rw_live(&self) -> bool {
        self.layouts.any_rw() || self.tickets.values().any(|held| held.work.is_rw_layout_get())
    }
}

pub(super) fn layout_callback_again(
    client: ClientId,
    held: &mut layout::Layout,
    now: Time,
    out: &mut Vec<Effect>,
) {
    if let Some(pending) = &mut held.recall
        && pending.take_retry(now)
    {
        out.push(layout::callback(client, held.stateid, pending.changed));
    }
}

pub(super) fn delegation_callback_again(
    client: ClientId,
    held: &mut delegation::Delegation,
    now: Time,
    out: &mut Vec<Effect>,
) {
    if let Some(pending) = &mut held.recall
        && pending.take_retry(now)
    {
        out.push(delegation::callback(client, held.stateid));
    }
}
