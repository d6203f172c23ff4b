//! Clients by the hosts that established them.

use std::net::IpAddr;

use super::{Clients, OwnerEntry};

impl Clients {
    /// From where those were established who are known by this owner, or may come back as it, where that is known.
    #[must_use]
    pub fn hosts_of(&self, owner: &[u8]) -> Vec<Option<IpAddr>> {
        let OwnerEntry { confirmed, unconfirmed } = self.by_owner.get(owner).copied().unwrap_or_default();
        let known = [confirmed, unconfirmed].into_iter().flatten().filter_map(|id| self.by_id.get(&id));
        let absent = self.absent.get(owner).map(|absent| absent.row.host);
        known.map(|client| client.row.host).chain(absent).collect()
    }
}
