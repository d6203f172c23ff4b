//! Where a caller calls from, and who that is by name. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use sluice_namespace::stable_storage::ClientName;

use super::rules::ByName;
use super::table::Table;

/// Where a caller calls from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) address: IpAddr,
    /// What is known of it; `None`: nobody asked, or nobody can tell.
    pub(crate) peer: Option<Arc<Peer>>,
}

impl Origin {
    /// Of whom only that is known.
    pub(crate) fn address(address: IpAddr) -> Self {
        Self { address, peer: None }
    }
}

/// A host that calls.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// `None`: it cannot be told who it is.
    pub(crate) who: Option<Who>,
    /// The table of exports that the rest is of.
    of: Option<u64>,
    /// What the rules by name have for it, by export: of one table, so that no name is compared for each operation.
    decided: BTreeMap<u32, ByName>,
}

/// What a name service says of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Who {
    /// Its name, in lower case, which has its address.
    pub(crate) name: Option<String>,
    /// Netgroups that were asked for, and whether it is in them. Of one that is not here nobody could tell.
    pub(crate) netgroups: BTreeMap<String, bool>,
}

impl Who {
    /// Whether a rule is for it; `None`: that cannot be told.
    pub(super) fn is(&self, clients: &ClientName) -> Option<bool> {
        match clients {
            // Those are found by their addresses.
            ClientName::Host { .. } => Some(false),
            ClientName::Pattern(pattern) => {
                Some(self.name.as_ref().is_some_and(|name| pattern.is_like(name)))
            }
            ClientName::Netgroup(group) => self.netgroups.get(group).copied(),
        }
    }
}

impl Peer {
    pub(super) fn new(who: Option<Who>, table: &Table) -> Self {
        let decided = table.decide(who.as_ref());
        Self { who, of: Some(table.version()), decided }
    }

    /// It was judged by this table of exports.
    pub(super) fn is_of(&self, version: u64) -> bool {
        self.of == Some(version)
    }

    /// By one table of exports, what rules have for the one they have for the other.
    pub(super) fn decides_as(&self, other: &Self) -> bool {
        self.of == other.of && self.decided == other.decided
    }

    pub(super) fn decided(&self, version: u64, export: u32) -> Option<ByName> {
        self.decided.get(&export).copied().filter(|_| self.is_of(version))
    }
}
