//! Clients by the hosts that established them.

use std::net::IpAddr;

use super::{Client, Clients, OwnerEntry};
use crate::ids::household;

impl Clients {
    /// From where those were established who are known by this owner, or may come back as it, where that is known.
    #[must_use]
    pub fn hosts_of(&self, owner: &[u8]) -> Vec<Option<IpAddr>> {
        let OwnerEntry { confirmed, unconfirmed } = self.by_owner.get(owner).copied().unwrap_or_default();
        let known = [confirmed, unconfirmed].into_iter().flatten().filter_map(|id| self.by_id.get(&id));
        let absent = self.absent.get(owner).map(|absent| absent.row.host);
        known.map(|client| client.row.host).chain(absent).collect()
    }

    /// There may be no client more of this one's host: else one machine that calls itself by many names could be all there are.
    pub(super) fn host_is_full(&self, client: &Client) -> bool {
        let there = self.confirmed_count();
        let left = self.config.max_clients.saturating_sub(there);
        // One that was restarted takes the place of what it was. And no host has more than there are: nearly always that says it
        // all, and nothing is counted.
        let again = self.by_owner.get(&client.row.owner).is_some_and(|known| known.confirmed.is_some());
        let counts = !again && left <= there;
        let Some(host) = client.row.host.map(household).filter(|_| counts) else { return left == 0 };
        let of_host = |other: &&Client| other.confirmed && other.row.host.map(household) == Some(host);
        left == 0 || self.by_id.values().filter(of_host).nth(left - 1).is_some()
    }
}
