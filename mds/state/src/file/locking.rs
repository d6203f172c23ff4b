//! LOCK, LOCKT, LOCKU: RFC 8881 §18.10-18.12. No transaction: locks live in memory and are reclaimed.

use crate::effect::Effect;
use crate::ids::{ClientId, StateId, StateKind, Time};
use crate::lock::{LockConflict, LockKind, LockRequest, Locker, Locks};
use crate::open::Access;
use crate::owner::LockOwner;
use crate::range_set::Range;
use crate::stateid::Other;

use super::{Ctx, Error, File, Grace, Intent};
use crate::delegation::DelegationKind;

impl File {
    pub(super) fn lock_(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        request: &LockRequest,
        out: &mut Vec<Effect>,
    ) -> Result<StateId, Error> {
        match (ctx.grace, request.reclaim) {
            (Grace::Over, false) | (Grace::Active { may_reclaim: true }, true) => {}
            (Grace::Active { .. }, false) if self.is_delegated_for(client, request.kind) => {}
            (Grace::Active { .. }, false) => return Err(Error::Grace),
            // RFC 8881 §18.51.3: nothing to reclaim after RECLAIM_COMPLETE or outside of grace.
            (_, true) => return Err(Error::NoGrace),
        }
        let (owner, open, existing) = self.locker(client, &request.locker)?;
        if let Some(reason) = self.leaving.get(&client) {
            return Err(Error::taken(*reason));
        }
        self.may_lock(&open, request.kind)?;
        if let Err(error) = self.lock_conflict(ctx.now, &owner, request) {
            return Err(self.lock_denied(ctx, (&owner, open), request, error, out));
        }
        self.lock_room(ctx, existing.as_ref(), request.reclaim, client)?;
        let other = match existing {
            Some(other) => other,
            None => {
                if let Some(spent) = self.locks.of_owner(&owner).map(|lock| lock.stateid.other) {
                    self.drop_lock(&spent, out);
                }
                let stateid = ctx.ids.next(StateKind::Lock);
                // The reply must carry seqid 1 for a new state, and `set` counts one up.
                self.locks.add_owner(owner.clone(), open, stateid.with_seqid(0), ctx.now);
                out.push(Effect::Register { stateid, kind: StateKind::Lock, client });
                stateid.other
            }
        };
        let stateid = self.set_lock(ctx.now, &other, (request.range, Some(request.kind)), out)?;
        self.locks.waiting.served(&owner, request.range, out);
        // A write lock turned into a read lock, or a reservation used up, may free others.
        self.notify_locks_in(ctx.now, request.range, out);
        Ok(stateid)
    }

    /// Whether the client has a delegation under which it takes such locks by itself. What it tells of them when it is recalled
    /// is let in during grace, too: before the restart as now, it kept out whoever could reclaim what conflicts (RFC 8881
    /// §10.4.4, §8.4.2.1).
    #[must_use]
    pub fn is_delegated_for(&self, client: ClientId, kind: LockKind) -> bool {
        let held = self.delegations.get(client).map(|held| held.kind);
        held == Some(DelegationKind::Write) || (held.is_some() && kind == LockKind::Read)
    }

    /// The lock-owner, the open it locks under, and its lock stateid on this file if it has one.
    fn locker(&self, client: ClientId, locker: &Locker) -> Result<(LockOwner, Other, Option<Other>), Error> {
        match locker {
            Locker::New { open, owner } => {
                self.opens.check(client, open)?;
                if owner.client != client {
                    return Err(Error::Inval);
                }
                // A second open_to_lock_owner4 for a known owner: in 4.1 there is no seqid to protect, and
                // a client whose first LOCK was denied knows no lock stateid (RFC 8881 §9.1.3).
                let known = self.locks.of_owner(owner);
                // Without locks, and of another open, it is what a name was used for before: Linux gives the name of a
                // lock-owner away, to a process of another user perhaps, before its FREE_STATEID arrives. What is locked now
                // must not end with that user's CLOSE.
                let known = known.filter(|lock| lock.open == open.other || !lock.ranges.is_empty());
                let under = known.map_or(open.other, |lock| lock.open);
                Ok((owner.clone(), under, known.map(|lock| lock.stateid.other)))
            }
            Locker::Existing { lock } => {
                let state = self.locks.check(client, lock)?;
                Ok((state.owner.clone(), state.open, Some(lock.other)))
            }
        }
    }

    /// The open must allow the I/O that the lock is for, and not be closing.
    fn may_lock(&self, open: &Other, kind: LockKind) -> Result<(), Error> {
        let access = self.opens.get(open).map(|open| open.access).ok_or(Error::BadStateid)?;
        let allowed = match kind {
            LockKind::Read => access.reads(),
            LockKind::Write => access.writes(),
        };
        if !allowed {
            // RFC 8881 §18.10.3: a lock needs an open of the same kind.
            return Err(Error::Openmode);
        }
        let closing = self
            .tickets
            .values()
            .any(|held| matches!(&held.work.intent, Intent::Close { stateid, .. } if stateid.other == *open));
        if closing { Err(Error::Delay) } else { Ok(()) }
    }

    fn lock_conflict(&self, now: Time, owner: &LockOwner, request: &LockRequest) -> Result<(), LockConflict> {
        let LockRequest { kind, range, .. } = *request;
        if let Some(held) = self.locks.conflict(owner, kind, range) {
            return Err(held);
        }
        // RFC 8881 §9.6: blocking requests are served in order. Whoever does not wait is told of locks that are held: a
        // waiter that has given up (a signal interrupted it) does not say so, and would be in everybody's way for a while.
        if !request.blocking {
            return Ok(());
        }
        if let Some(reserved) = self.locks.waiting.reserved_against(now, owner, kind, range) {
            return Err(reserved);
        }
        if !self.locks.holds(owner)
            && let Some(ahead) = self.locks.waiting.ahead_of(owner, kind, range)
        {
            return Err(ahead);
        }
        Ok(())
    }

    fn lock_denied(
        &mut self,
        ctx: &Ctx<'_>,
        (owner, open): (&LockOwner, Other),
        request: &LockRequest,
        conflict: LockConflict,
        out: &mut Vec<Effect>,
    ) -> Error {
        if request.reclaim {
            return Error::ReclaimConflict;
        }
        // The holder goes as soon as it is fenced: nothing to learn from its name.
        if self.leaving.contains_key(&conflict.owner.client) {
            return Error::Delay;
        }
        let waiting = &mut self.locks.waiting;
        let room = !ctx.policy.waiting_locks_are_full(&ctx.usage)
            && waiting.len() < ctx.policy.max_waiting_locks_per_file
            && waiting.of_client(owner.client) < ctx.policy.max_waiting_locks_per_client;
        if request.blocking && (room || waiting.is_queued(owner, request.range)) {
            self.lock_reservation = ctx.policy.lock_reservation;
            let expires = ctx.now.plus_nanos(ctx.policy.lock_wait);
            let lock = match &request.locker {
                Locker::New { .. } => None,
                Locker::Existing { lock } => Some(lock.other),
            };
            waiting.enqueue((owner, open, lock), (request.kind, request.range), (ctx.now, expires), out);
        }
        Error::Denied(Box::new(conflict))
    }

    fn lock_room(
        &self,
        ctx: &Ctx<'_>,
        existing: Option<&Other>,
        reclaim: bool,
        client: ClientId,
    ) -> Result<(), Error> {
        // What was had before a restart was within the bounds of then.
        let usage = if reclaim { ctx.usage.had_before() } else { ctx.usage };
        let file_is_full = || match reclaim {
            true => self.locks.owners() >= ctx.policy.max_lock_owners_per_file,
            false => self.lock_owners_are_full(ctx.policy, client),
        };
        if ctx.policy.ranges_are_full(&usage) {
            return Err(Error::Resource);
        }
        match existing.and_then(|other| self.locks.get(other)) {
            Some(lock) if lock.ranges.len() + 2 > ctx.policy.max_ranges_per_lock => Err(Error::Resource),
            None if ctx.policy.locks_are_full(&usage) || file_is_full() => Err(Error::Resource),
            _ => Ok(()),
        }
    }

    /// Applies a lock or an unlock, and tells if the owner has more or fewer ranges by it.
    fn set_lock(
        &mut self,
        now: Time,
        other: &Other,
        (range, kind): (Range, Option<LockKind>),
        out: &mut Vec<Effect>,
    ) -> Result<StateId, Error> {
        let ranges = |locks: &Locks| locks.get(other).map_or(0, |lock| lock.ranges.len());
        let before = ranges(&self.locks);
        let stateid = self.locks.set(other, range, kind, now).ok_or(Error::BadStateid)?;
        let after = ranges(&self.locks);
        if after != before {
            out.push(Effect::Ranges { stateid, count: u32::try_from(after).unwrap_or(u32::MAX) });
        }
        Ok(stateid)
    }

    pub(super) fn test_lock_(
        &self,
        ctx: &Ctx<'_>,
        owner: &LockOwner,
        kind: LockKind,
        range: Range,
    ) -> Result<(), Error> {
        if ctx.grace != Grace::Over {
            return Err(Error::Grace);
        }
        match self.locks.conflict(owner, kind, range) {
            Some(conflict) => Err(Error::Denied(Box::new(conflict))),
            None => Ok(()),
        }
    }

    pub(super) fn unlock_(
        &mut self,
        ctx: &Ctx<'_>,
        client: ClientId,
        stateid: &StateId,
        range: Range,
        out: &mut Vec<Effect>,
    ) -> Result<StateId, Error> {
        let state = self.locks.check(client, stateid)?;
        let owner = state.owner.clone();
        let splits = state
            .ranges
            .overlapping(range)
            .any(|(held, _)| held.start() < range.start() && range.last() < held.last());
        let full =
            state.ranges.len() >= ctx.policy.max_ranges_per_lock || ctx.policy.splits_are_full(&ctx.usage);
        if splits && full {
            return Err(Error::Resource);
        }
        let stateid = self.set_lock(ctx.now, &stateid.other, (range, None), out)?;
        // A client that stops waiting unlocks what it waited for (RFC 8881 §9.6 leaves it no other way).
        self.locks.waiting.served(&owner, range, out);
        self.notify_locks_in(ctx.now, range, out);
        Ok(stateid)
    }

    /// The open behind an open or lock stateid allows this I/O.
    pub(super) fn check_access(&self, client: ClientId, stateid: &StateId, write: bool) -> Result<(), Error> {
        let other = match stateid.kind() {
            Some(StateKind::Lock) => self.locks.check(client, stateid)?.open,
            _ => self.opens.check(client, stateid)?.stateid.other,
        };
        let access = self.opens.get(&other).map_or(Access::READ, |open| open.access);
        if write {
            return if access.writes() { Ok(()) } else { Err(Error::Openmode) };
        }
        if access.reads() {
            return Ok(());
        }
        // Reading under a write-only open is allowed, unless somebody denies it: RFC 8881 §9.1.2 lets the server, and a client
        // that writes part of a page needs it.
        match self.opens.denying_to_read(&other) {
            Some(denies) => Err(Error::Locked { holder: denies.owner.client }),
            None => Ok(()),
        }
    }

    /// What this names is no reason to read the file: it was opened for writing alone, and whether its opener may read nobody has
    /// asked.
    #[must_use]
    pub fn is_for_writing_alone(&self, stateid: &StateId) -> bool {
        let open = self.under(stateid).and_then(|other| self.opens.get(&other));
        open.is_some_and(|open| !open.access.reads())
    }

    /// Locks of whichever ranges may be free.
    pub(super) fn notify_locks(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.notify_locks_in(now, Range::ALL, out);
    }

    fn notify_locks_in(&mut self, now: Time, freed: Range, out: &mut Vec<Effect>) {
        if !self.locks.waiting.is_empty() {
            out.extend(self.locks.notify(now, now.plus_nanos(self.lock_reservation), freed));
        }
    }
}
