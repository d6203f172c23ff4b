//! The queue of denied READW and WRITEW locks: RFC 8881 §9.6 (fairness), §20.11 (CB_NOTIFY_LOCK).
//!
//! ```text
//! denied ──▶ waiting ──freed──▶ reserved (CB_NOTIFY_LOCK) ──LOCK──▶ granted, leaves
//!               │ not asked again in time      │ reservation ran out
//!               └──────────────▶ forgotten ◀───┘
//! ```

use crate::effect::Effect;
use crate::ids::{ClientId, Time};
use crate::owner::LockOwner;
use crate::range_set::Range;
use crate::stateid::Other;

use super::{LockConflict, LockKind, excludes};

#[derive(Debug, Hash)]
pub(crate) struct WaitingLock {
    pub(crate) owner: LockOwner,
    /// The open that it would lock under.
    pub(crate) open: Other,
    /// The lock stateid that it asked with, if it had one.
    pub(super) lock: Option<Other>,
    pub(crate) kind: LockKind,
    pub(crate) range: Range,
    /// Among all that ever waited for this file: it keeps it while others come and go.
    pub(crate) number: u64,
    /// Since when.
    pub(crate) since: Time,
    /// Forgotten then: a client that still waits polls more often than this (§9.6).
    pub(super) expires: Time,
    /// Set once the client was notified: until then nobody else who waits gets the lock.
    pub(super) reserved_until: Option<Time>,
}

/// Denied blocking locks, oldest first.
#[derive(Debug, Default, Hash)]
pub(crate) struct WaitingLocks {
    pub(super) entries: Vec<WaitingLock>,
    /// So many have waited.
    numbered: u64,
}

impl WaitingLocks {
    /// In the order in which they came, from this number on.
    pub(crate) fn starting_at(&self, number: u64) -> impl Iterator<Item = &WaitingLock> {
        let from = self.entries.partition_point(|entry| entry.number < number);
        self.entries.get(from..).unwrap_or_default().iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.entries.iter().map(|entry| entry.owner.client)
    }

    pub(crate) fn of_client(&self, client: ClientId) -> usize {
        self.clients().filter(|waiter| *waiter == client).count()
    }

    /// A reservation in the way of `owner`, who waits as well.
    pub(crate) fn reserved_against(
        &self,
        now: Time,
        owner: &LockOwner,
        kind: LockKind,
        range: Range,
    ) -> Option<LockConflict> {
        self.first(owner, kind, range, |entry| entry.reserved_until.is_some_and(|until| until > now))
    }

    /// A waiter of another owner that came before `owner` and wants what conflicts.
    pub(crate) fn ahead_of(&self, owner: &LockOwner, kind: LockKind, range: Range) -> Option<LockConflict> {
        let mine = self.entries.iter().position(|e| e.owner == *owner && e.range == range);
        let ahead = self.entries.get(..mine.unwrap_or(self.entries.len())).unwrap_or_default();
        Self::conflict_in(ahead.iter(), owner, kind, range)
    }

    fn first(
        &self,
        owner: &LockOwner,
        kind: LockKind,
        range: Range,
        which: impl Fn(&WaitingLock) -> bool,
    ) -> Option<LockConflict> {
        Self::conflict_in(self.entries.iter().filter(|entry| which(entry)), owner, kind, range)
    }

    fn conflict_in<'a>(
        mut entries: impl Iterator<Item = &'a WaitingLock>,
        owner: &LockOwner,
        kind: LockKind,
        range: Range,
    ) -> Option<LockConflict> {
        entries
            .find(|e| e.owner != *owner && e.range.overlaps(range) && excludes(e.kind, kind))
            .map(|e| LockConflict { range: e.range, kind: e.kind, owner: e.owner.clone() })
    }

    /// Queues a denied lock, or renews it when its owner asks again.
    pub(crate) fn enqueue(
        &mut self,
        (owner, open, lock): (&LockOwner, Other, Option<Other>),
        (kind, range): (LockKind, Range),
        (now, expires): (Time, Time),
        out: &mut Vec<Effect>,
    ) {
        match self.entries.iter_mut().find(|e| e.owner == *owner && e.range == range) {
            Some(entry) => {
                (entry.open, entry.lock, entry.kind) = (open, lock, kind);
                entry.expires = expires;
                // It was notified, asked, and still cannot have it: it waits as before.
                entry.reserved_until = None;
            }
            None => {
                self.numbered += 1;
                out.push(Effect::Waits { client: owner.client });
                self.entries.push(WaitingLock {
                    owner: owner.clone(),
                    open,
                    lock,
                    kind,
                    range,
                    number: self.numbered,
                    since: now,
                    expires,
                    reserved_until: None,
                });
            }
        }
    }

    pub(crate) fn is_queued(&self, owner: &LockOwner, range: Range) -> bool {
        self.entries.iter().any(|e| e.owner == *owner && e.range == range)
    }

    /// Whoever does not wait any more is counted no more: nobody leaves but here.
    fn retain(&mut self, out: &mut Vec<Effect>, stays: impl Fn(&WaitingLock) -> bool) {
        self.entries.retain(|entry| {
            let stays = stays(entry);
            if !stays {
                out.push(Effect::WaitsNoMore { client: entry.owner.client });
            }
            stays
        });
    }

    /// The owner was granted `range`, or unlocked it: it waits for nothing within it any more.
    pub(crate) fn served(&mut self, owner: &LockOwner, range: Range, out: &mut Vec<Effect>) {
        self.retain(out, |e| e.owner != *owner || !range.contains(e.range));
    }

    pub(crate) fn forget_client(&mut self, client: ClientId, out: &mut Vec<Effect>) {
        self.retain(out, |e| e.owner.client != client);
    }

    /// Nobody asks again with a lock stateid that is gone. Who asked without one goes on waiting, though the owner had this
    /// one: Linux gives the owner's name away before its FREE_STATEID arrives, to the next process that wants a lock.
    pub(crate) fn forget_with(&mut self, lock: &Other, out: &mut Vec<Effect>) {
        self.retain(out, |e| e.lock != Some(*lock));
    }

    /// Nobody waits under an open that is closed: a process that was killed sends no LOCKU for what it never had.
    pub(crate) fn forget_under(&mut self, open: &Other, out: &mut Vec<Effect>) {
        self.retain(out, |e| e.open != *open);
    }

    /// Forgets those whose time ran out.
    pub(crate) fn expire(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.retain(out, |e| e.expires > now);
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.entries.iter().map(|e| e.expires).min()
    }
}
