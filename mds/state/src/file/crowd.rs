//! How many opens and lock-owners one file has room for, and how many of them one client may have: never more than it leaves
//! to others. Else one that may only read a file could keep everybody else from opening and locking it.

use std::collections::BTreeSet;

use crate::ids::ClientId;

use super::{File, Policy};

/// So many are there, and there may be so many. The client may have no more.
fn is_full(there: usize, most: usize, mut of_client: impl Iterator) -> bool {
    let left = most.saturating_sub(there);
    // It has no more than there are: nearly always that says it all, and nothing is counted.
    left == 0 || (left <= there && of_client.nth(left - 1).is_some())
}

impl File {
    /// A client may not open the file under one more owner.
    pub(super) fn opens_are_full(&self, policy: &Policy, client: ClientId) -> bool {
        is_full(self.opens.len(), policy.max_opens_per_file, self.opens.of_client(client))
    }

    /// A client may not lock in it under one more owner.
    pub(super) fn lock_owners_are_full(&self, policy: &Policy, client: ClientId) -> bool {
        is_full(self.locks.owners(), policy.max_lock_owners_per_file, self.locks.of_client(client))
    }

    /// Those who have the file open, where so many do that the client may not. Nobody while some of them are about to go.
    #[must_use]
    pub fn in_the_way_of_open(&self, policy: &Policy, client: ClientId) -> BTreeSet<ClientId> {
        let full = self.leaving.is_empty() && self.opens_are_full(policy, client);
        if full { self.opens.clients() } else { BTreeSet::new() }
    }

    /// The same of those who have something locked in it.
    #[must_use]
    pub fn in_the_way_of_lock(&self, policy: &Policy, client: ClientId) -> BTreeSet<ClientId> {
        let full = self.leaving.is_empty() && self.lock_owners_are_full(policy, client);
        if full { self.locks.clients() } else { BTreeSet::new() }
    }
}
