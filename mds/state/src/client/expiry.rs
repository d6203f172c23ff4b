//! The end of clients: conflict with expired state, age, caps, the administrator. RFC 8881 §8.3, §8.4.

use super::{Client, Clients, Error};
use crate::ids::{ClientId, Time};
use crate::lease::{LeaseState, seq4_status};
use crate::recovery::Effect;

/// Effects of one round of housekeeping, but for those of its last client. Their rows are written in one transaction, and
/// after a power loss at a site thousands of clients are gone together.
const MOST: usize = 1000;

/// Answer to a conflict with a client's state.
#[derive(Debug, PartialEq, Eq)]
pub enum Expire {
    /// The lease has not elapsed: the conflict stands.
    Active,
    /// The client is dead but requests of it are still being served: ask again.
    Draining,
    /// The client is gone. §8.4.3: the durable effects come first, then its state is released, then the
    /// conflicting operation goes on. Empty when it was gone before.
    Gone(Vec<Effect>),
}

impl Clients {
    /// Somebody conflicts with state of the client: ends it if its lease has elapsed.
    pub fn expire(&mut self, now: Time, id: ClientId) -> Expire {
        let lease_nanos = self.config.lease_nanos;
        let Some(client) = self.by_id.get(&id) else { return Expire::Gone(Vec::new()) };
        if client.creating || !client.shared.kill_if_elapsed(now, lease_nanos) {
            return Expire::Active;
        }
        if client.shared.in_flight() > 0 {
            return Expire::Draining;
        }
        Expire::Gone(self.remove(id))
    }

    /// Of the clients in courtesy that `counts`, the one that has been silent for longest.
    pub fn longest_silent(&self, now: Time, counts: &dyn Fn(ClientId) -> bool) -> Option<ClientId> {
        let lease = self.config.lease_nanos;
        let silent = self.by_id.iter().filter(|(id, client)| {
            client.confirmed && client.shared.lease(now, lease) == LeaseState::Courtesy && counts(**id)
        });
        silent.min_by_key(|(_, client)| client.shared.renewed()).map(|(id, _)| *id)
    }

    /// Ends the client whatever its lease. Errors: StaleClientid; Delay while requests of it are being
    /// served, after which [`Self::reap`] finishes the work.
    pub fn evict(&mut self, id: ClientId) -> Result<Vec<Effect>, Error> {
        let client = self.by_id.get(&id).ok_or(Error::StaleClientid)?;
        client.shared.kill();
        if client.creating || client.shared.in_flight() > 0 {
            return Err(Error::Delay);
        }
        Ok(self.remove(id))
    }

    /// One that would be a client now is a stranger, and there are as many of those as there may be.
    pub(super) fn is_one_too_many(&self, id: ClientId) -> bool {
        let Some(client) = self.by_id.get(&id).filter(|c| !c.confirmed) else { return false };
        let owner = &client.row.owner;
        // It takes the place of an earlier incarnation.
        let known = self.by_owner.get(owner).is_some_and(|entry| entry.confirmed.is_some());
        !known && self.strangers.len() >= self.config.max_strangers && (self.config.is_stranger)(owner)
    }

    /// Ends the oldest strangers that nothing is being served for, whatever their leases, so that there may be one more: the
    /// effects, if any of them could be ended. Of many, some.
    pub(super) fn end_strangers(&mut self) -> Option<Vec<Effect>> {
        let surplus = (self.strangers.len() + 1).saturating_sub(self.config.max_strangers);
        let idle = |client: &&Client| !client.creating && client.shared.in_flight() == 0;
        let known = self.strangers.iter().filter_map(|id| self.by_id.get(id));
        let oldest: Vec<_> = known.filter(idle).map(|client| client.row.id).take(surplus).collect();
        let mut effects = Vec::new();
        for id in oldest {
            if effects.len() >= MOST {
                break;
            }
            // A SEQUENCE may have come in since: then it goes when that is answered.
            effects.extend(self.evict(id).unwrap_or_default());
        }
        effects.sort_by_key(|e| !e.is_durable());
        (!effects.is_empty()).then_some(effects)
    }

    /// Housekeeping: rows of clients that did not come back in time, unconfirmed records older than a lease, dead clients
    /// that have drained, those in courtesy for too long (without state: for a lease) or too many of them. Of many, some.
    pub fn reap(&mut self, now: Time, has_state: &dyn Fn(ClientId) -> bool) -> Vec<Effect> {
        let lease = self.config.lease_nanos;
        let mut effects = Vec::new();
        if !self.grace.in_grace() {
            // Their rows have lost all meaning (§8.4.3): only to be swept up.
            let rows = std::iter::from_fn(|| self.absent.pop_first());
            effects.extend(rows.take(MOST).map(|(_, absent)| Effect::ForgetClient(absent.row.id)));
        }
        let late = self.unconfirmed.iter().take_while(|(created, _)| now > created.plus_nanos(lease));
        for id in late.map(|(_, id)| *id).collect::<Vec<_>>() {
            if self.by_id.get(&id).is_some_and(|c| !c.creating) {
                self.remove(id);
            }
        }
        self.give_up_deaf(now, has_state);
        let mut courtesy = Vec::new();
        let mut gone = Vec::new();
        for (id, client) in self.by_id.iter().filter(|(_, c)| c.confirmed && !c.creating) {
            match client.shared.lease(now, lease) {
                LeaseState::Active => {}
                LeaseState::Dead if client.shared.in_flight() == 0 => gone.push(*id),
                LeaseState::Dead => {}
                LeaseState::Courtesy => {
                    let (silent, stateful) = (now.since(client.shared.renewed()), has_state(*id));
                    // One lease more for its session alone: it may be a slow host's, and no more, since a restart
                    // would wait for it to reclaim.
                    let kept = if stateful { self.config.courtesy_nanos } else { lease };
                    if silent > lease.saturating_add(kept) {
                        gone.push(*id);
                    } else {
                        courtesy.push((stateful, client.shared.renewed(), *id));
                    }
                }
            }
        }
        courtesy.sort_unstable();
        let surplus = courtesy.len().saturating_sub(self.config.max_courtesy);
        gone.extend(courtesy.into_iter().take(surplus).map(|(.., id)| id));
        for id in gone {
            // The next round is for the others.
            if effects.len() >= MOST {
                break;
            }
            // A SEQUENCE may have come in since.
            if let Expire::Gone(more) = self.expire(now, id) {
                effects.extend(more);
            }
        }
        effects.sort_by_key(|e| !e.is_durable());
        effects
    }

    /// Ends those who were taken up with a session of before the restart, have been told for a lease that they are to
    /// reclaim, and have not done so by the end of grace: they do not look at the flag (FreeBSD). They would be told GRACE
    /// for ever; BADSESSION and STALE_CLIENTID they understand. Both: with a new session for the client ID they have, they
    /// believe that their state is there. Whoever has state has begun to reclaim, and has a lease more to come to an end.
    fn give_up_deaf(&mut self, now: Time, has_state: &dyn Fn(ClientId) -> bool) {
        let lease = self.config.lease_nanos;
        let over = (!self.grace.in_grace()).then(|| *self.grace_over.get_or_insert(now));
        for (id, client) in &mut self.by_id {
            let owes = client.shared.status_flags() & seq4_status::RESTART_RECLAIM_NEEDED != 0;
            if !owes || client.creating || client.reclaiming || client.shared.told() == Time::ZERO {
                continue;
            }
            let told = *client.told_since.get_or_insert(now);
            let Some(over) = over else { continue };
            let since = if has_state(*id) { told.max(over) } else { told };
            if now > since.plus_nanos(lease) {
                client.shared.kill();
            }
        }
    }

    /// When [`Self::reap`] or the grace period next have something to do; [`Time::NEVER`] if never.
    #[must_use]
    pub fn next_deadline(&self, now: Time) -> Time {
        let lease = self.config.lease_nanos;
        let just_after = |t: Time, nanos: u64| t.plus_nanos(nanos).plus_nanos(1);
        let unconfirmed = self.unconfirmed.first().map_or(Time::NEVER, |(t, _)| just_after(*t, lease));
        let clients = self.by_id.values().filter(|c| c.confirmed).map(|c| {
            let renewed = c.shared.renewed();
            match c.shared.lease(now, lease) {
                LeaseState::Active => just_after(renewed.max(now), 0).max(just_after(renewed, lease)),
                LeaseState::Dead => now,
                LeaseState::Courtesy => {
                    let twice = just_after(renewed, lease.saturating_mul(2));
                    let end = just_after(renewed, lease.saturating_add(self.config.courtesy_nanos));
                    if now < twice { twice.min(end) } else { end }
                }
            }
        });
        clients.min().unwrap_or(Time::NEVER).min(unconfirmed).min(self.grace.next_deadline())
    }
}
