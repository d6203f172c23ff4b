//! What must hold after every step.

use std::collections::BTreeSet;

use super::{Client, Clients, Promised};

impl Clients {
    /// Checks the table; the error names what is broken. For tests and simulation.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.check_owners()?;
        if self.promised != self.count_promised() {
            return Err(format!("{:?} is not what the sessions have together", self.promised));
        }
        let is_stranger = |c: &&Client| c.confirmed && (self.config.is_stranger)(&c.row.owner);
        if !self.by_id.values().filter(is_stranger).map(|c| c.row.id).eq(self.strangers.iter().copied()) {
            return Err(format!("strangers are not {:?}", self.strangers));
        }
        for (id, client) in &self.by_id {
            let row = &client.row;
            if row.id != *id {
                return Err(format!("{id:?} is filed under another id {:?}", row.id));
            }
            let entry = self.by_owner.get(&row.owner).ok_or(format!("{id:?} has no owner entry"))?;
            let slot = if client.confirmed { entry.confirmed } else { entry.unconfirmed };
            if slot != Some(*id) {
                return Err(format!("{id:?} is not the record of its owner: {entry:?}"));
            }
            if client.confirmed == self.unconfirmed.contains(&(client.created, *id)) {
                return Err(format!("{id:?} confirmed={} disagrees with the queue", client.confirmed));
            }
            if !client.confirmed && !client.sessions.is_empty() {
                return Err(format!("{id:?} is unconfirmed and has sessions"));
            }
            if client.sessions.iter().any(|s| s.id.client() != *id) {
                return Err(format!("{id:?} lists a session of another client"));
            }
            let mut ids: Vec<_> = client.sessions.iter().map(|s| s.id.counter()).collect();
            ids.sort_unstable();
            ids.dedup();
            if ids.len() != client.sessions.len() {
                return Err(format!("{id:?} lists a session twice"));
            }
            if client.sessions.len() > self.config.max_sessions {
                return Err(format!("{id:?} has {} sessions", client.sessions.len()));
            }
            if client.promised() > self.config.channel.cache_per_client {
                return Err(format!("{id:?} promises {} bytes of cache", client.promised()));
            }
        }
        Ok(())
    }

    /// What all sessions have together, counted anew.
    pub(crate) fn count_promised(&self) -> Promised {
        let mut all = Promised::default();
        self.by_id.values().flat_map(|client| &client.sessions).for_each(|session| all.add(session));
        all
    }

    fn check_owners(&self) -> Result<(), String> {
        for (owner, entry) in &self.by_owner {
            let ids = [entry.confirmed, entry.unconfirmed];
            if ids == [None, None] {
                return Err(format!("empty entry of {owner:?}"));
            }
            for id in ids.into_iter().flatten() {
                if !self.by_id.contains_key(&id) {
                    return Err(format!("{owner:?} names {id:?}, which does not exist"));
                }
            }
        }
        if self.unconfirmed.len() > self.config.max_unconfirmed {
            return Err(format!("{} unconfirmed records", self.unconfirmed.len()));
        }
        let queued = self.unconfirmed.iter().filter(|(_, id)| !self.by_id.contains_key(id)).count();
        if queued > 0 {
            return Err(format!("{queued} queued records do not exist"));
        }
        let absent = self.absent.values().filter(|a| a.may_reclaim).map(|a| a.row.id);
        let live = self.by_id.values().filter(|c| c.shared.may_reclaim()).map(|c| c.row.id);
        let may: BTreeSet<_> = absent.chain(live).collect();
        if let Some(id) = self.grace.waits_for().iter().find(|id| !may.contains(id)) {
            return Err(format!("grace waits for {id:?}, which may not reclaim"));
        }
        Ok(())
    }
}
