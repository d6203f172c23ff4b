//! What must hold between any two steps. Run after each step in tests and simulation.

use std::collections::{BTreeMap, BTreeSet};

use crate::delegation::DelegationKind;
use crate::ids::{ClientId, StateId, StateKind};
use crate::open::shares_conflict;
use crate::stateid::{Usage, seqid_before};

use super::File;

type Check = Result<(), String>;

fn ensure(ok: bool, what: impl FnOnce() -> String) -> Check {
    if ok { Ok(()) } else { Err(what()) }
}

impl File {
    /// Checks the whole state of the file.
    ///
    /// # Errors
    /// The first invariant that does not hold, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.no_conflicting_opens()?;
        self.no_conflicting_locks()?;
        self.stateids_are_unique()?;
        self.layouts_are_sound()?;
        self.delegations_are_sound()?;
        self.tickets_exclude()?;
        self.leaving_means_unfenced()?;
        self.dead_means_empty()?;
        self.nobody_waits_in_vain()
    }

    /// The live stateids of clients that are not being fenced: what a `StateIndex` must hold.
    pub fn live_stateids(&self) -> Vec<StateId> {
        let opens = self.opens.iter().map(|o| (o.owner.client, o.stateid));
        let locks = self.locks.iter().map(|l| (l.owner.client, l.stateid));
        let layouts = self.layouts.iter().map(|(client, l)| (client, l.stateid));
        let delegations = self.delegations.held.iter().map(|(client, d)| (*client, d.stateid));
        opens
            .chain(locks)
            .chain(layouts)
            .chain(delegations)
            .filter(|(client, _)| !self.leaving.contains_key(client))
            .map(|(_, stateid)| stateid)
            .collect()
    }

    /// What a `StateIndex` must say that each client has beside stateids, of those that are not being fenced.
    pub fn counted(&self) -> BTreeMap<ClientId, Usage> {
        let mut counted: BTreeMap<ClientId, Usage> = BTreeMap::new();
        for lock in self.locks.iter().filter(|lock| !self.leaving.contains_key(&lock.owner.client)) {
            let ranges = u32::try_from(lock.ranges.len()).unwrap_or(u32::MAX);
            counted.entry(lock.owner.client).or_default().ranges += ranges;
        }
        for client in self.locks.waiting.clients() {
            counted.entry(client).or_default().waiting += 1;
        }
        counted
    }

    fn no_conflicting_opens(&self) -> Check {
        ensure(self.opens.counts_are_right(), || format!("counts of opens are wrong: {:?}", self.opens))?;
        for a in self.opens.iter() {
            ensure(self.opens.of_owner(&a.owner).is_some_and(|o| o.stateid == a.stateid), || {
                format!("open {a:?} is not found by its owner")
            })?;
            for b in self.opens.iter().filter(|b| b.owner != a.owner) {
                ensure(!shares_conflict((a.access, a.deny), (b.access, b.deny)), || {
                    format!("opens exclude each other: {a:?} {b:?}")
                })?;
            }
        }
        Ok(())
    }

    fn no_conflicting_locks(&self) -> Check {
        for lock in self.locks.iter() {
            let open = self.opens.get(&lock.open);
            ensure(open.is_some_and(|open| open.owner.client == lock.owner.client), || {
                format!("lock without its open: {lock:?}")
            })?;
            for (range, kind) in lock.ranges.iter() {
                let conflict = self.locks.conflict(&lock.owner, kind, range);
                ensure(conflict.is_none(), || format!("locks exclude each other: {lock:?} {conflict:?}"))?;
            }
        }
        Ok(())
    }

    fn stateids_are_unique(&self) -> Check {
        let opens = self.opens.iter().map(|o| (StateKind::Open, o.stateid));
        let locks = self.locks.iter().map(|l| (StateKind::Lock, l.stateid));
        let layouts = self.layouts.iter().map(|(_, l)| (StateKind::Layout, l.stateid));
        let delegations = self.delegations.held.values().map(|d| (StateKind::Delegation, d.stateid));
        let mut seen = BTreeSet::new();
        for (kind, stateid) in opens.chain(locks).chain(layouts).chain(delegations) {
            ensure(stateid.kind() == Some(kind), || format!("{stateid:?} is not a {kind:?}"))?;
            ensure(stateid.seqid != 0, || format!("{stateid:?} has seqid 0"))?;
            ensure(seen.insert(stateid.other), || format!("{stateid:?} twice"))?;
        }
        Ok(())
    }

    fn layouts_are_sound(&self) -> Check {
        for (client, held) in self.layouts.iter() {
            ensure(!held.modes().is_empty(), || format!("{client:?} holds an empty layout"))?;
            ensure(!self.leaving.contains_key(&client), || format!("{client:?} is gone and has a layout"))?;
            for granted in held.grants() {
                ensure(!seqid_before(held.stateid.seqid, granted), || {
                    format!("grant from the future: {held:?}")
                })?;
            }
        }
        let row = &self.layouts.row;
        ensure(!self.layouts.iter().any(|(_, l)| l.is_rw()) || row.durable, || {
            "a read-write layout without a durable row".into()
        })?;
        ensure(!self.rw_idle() || row.told_idle, || "the row is idle and nobody was told".into())
    }

    fn delegations_are_sound(&self) -> Check {
        let held = &self.delegations.held;
        let writers = held.values().filter(|d| d.kind == DelegationKind::Write).count();
        ensure(writers == 0 || held.len() == 1, || format!("a write delegation is not alone: {held:?}"))?;
        for (holder, delegation) in held.iter() {
            let alone = delegation.kind == DelegationKind::Write;
            ensure(alone || delegation.kept.is_none(), || format!("times of {delegation:?} of {holder:?}"))?;
            let open = self.opens.iter().find(|o| o.owner.client != *holder && (alone || o.access.writes()));
            ensure(open.is_none(), || format!("{delegation:?} of {holder:?} beside {open:?}"))?;
            let layout = self.layouts.iter().find(|(client, l)| client != holder && l.is_rw());
            ensure(layout.is_none(), || format!("{delegation:?} of {holder:?} beside {layout:?}"))?;
        }
        Ok(())
    }

    fn tickets_exclude(&self) -> Check {
        for (id, held) in self.tickets.iter() {
            ensure(id.0 < self.next_ticket, || format!("{id:?} from the future"))?;
            ensure(!held.work.clears_rw || !self.rw_live(), || format!("{id:?} clears a row in use"))?;
            ensure(!self.blockers(&held.work).needs_recall(), || {
                format!("{id:?} {:?} runs against a holder", held.work.intent)
            })?;
            for (other_id, other) in self.tickets.iter().take_while(|(other, _)| *other < id) {
                ensure(!held.work.conflicts(&other.work), || {
                    format!(
                        "tickets exclude each other: {id:?} {:?}, {other_id:?} {:?}",
                        held.work, other.work
                    )
                })?;
            }
        }
        Ok(())
    }

    fn leaving_means_unfenced(&self) -> Check {
        let fenced: BTreeSet<_> = self.layouts.fencing.values().map(|f| f.client).collect();
        ensure(fenced.len() == self.layouts.fencing.len(), || {
            format!("two fences of one client: {:?}", self.layouts.fencing)
        })?;
        for client in self.leaving.keys() {
            ensure(self.can_still_write(*client), || format!("{client:?} is kept for nothing"))?;
        }
        Ok(())
    }

    fn dead_means_empty(&self) -> Check {
        let empty = self.layouts.is_empty() && self.delegations.held.is_empty() && self.locks.is_empty();
        ensure(!self.is_dead() || empty, || "a dead file has state".into())
    }

    /// No lost wake-up: a request waits for a ticket, for an earlier request, for a holder that was asked.
    fn nobody_waits_in_vain(&self) -> Check {
        for (i, waiter) in self.queue.iter().enumerate() {
            if waiter.woken || self.behind_ticket(&waiter.work) || self.behind_waiter(&waiter.work, i) {
                continue;
            }
            let blockers = self.blockers(&waiter.work);
            ensure(!blockers.is_empty(), || format!("waits for nothing: {waiter:?}"))?;
            ensure(self.all_asked(&blockers), || {
                format!("waits for a holder that was not asked: {waiter:?}")
            })?;
        }
        Ok(())
    }
}
