//! What an operator can set.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::LayoutPolicy;
use sluice_namespace::stable_storage::{Network, Protection, Rule, Squash};
use sluice_rpc::Keyring;
use sluice_state::client::ClientsConfig;
use sluice_state::file::Policy;
use sluice_state::pressure::Bound;

use crate::accounts::Accounts;
use crate::exports::Resolver;
use crate::owners::Owners;

/// Settings of a metadata server. [`Config::default`] suits `sluice up`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Lease of a client (RFC 8881 §8.3), and the length of grace after a restart.
    pub lease: Duration,
    /// From a recall to revocation and fencing.
    pub recall_timeout: Duration,
    /// Fences and tombstones that a data server may gather before old capabilities are retired. Each keeps
    /// 2^20 of them in memory at most; so many as here are what a hash table of 2^19 places takes, 13 MB of tombstones.
    pub capability_rows: u64,
    /// Deleted files of which it is remembered at which data servers they are gone, while they wait for another one.
    pub removals_remembered: usize,
    /// Between two heartbeats of a data server.
    pub heartbeat: Duration,
    /// A data server without contact for so long answers JUKEBOX, and is then treated as fenced after
    /// `isolation_margin` more.
    pub isolation: Duration,
    pub isolation_margin: Duration,
    /// A data server away for so long is lost for good: its mirrors are made anew on others. Zero: never.
    pub rebuild_after: Duration,
    /// Bytes that are compared, and copied where they differ, at a time when mirrors are made equal.
    pub heal_piece: u64,
    /// Bytes of data that a COPY moves while its client waits; more go on after the answer, if the client allows it.
    pub copy_at_once: u64,
    /// Bytes of data of one step of a copy, which other operations on its files may have to wait for.
    pub copy_step: u64,
    /// Who may use the export of the root, and how, until rules are stored for it.
    pub root_export: Vec<Rule>,
    /// Callers may come with Kerberos tickets: SECINFO says so where an export takes them.
    pub kerberos: bool,
    /// The most that clients' connections can be protected by here, as the server in front of this was told.
    pub protection: Protection,
    /// Hand out layouts. Off, every READ and WRITE goes through the metadata server (for comparison).
    pub layouts: bool,
    /// Delegations that clients may be given.
    pub delegations: Delegations,
    /// A file that was changed no longer ago than this is delegated only to who asks for it by name.
    pub delegation_quiet: Duration,
    /// How much clients may hold.
    pub limits: Limits,
    /// Who knows the groups of users; `None`: their clients.
    pub accounts: Option<Arc<dyn Accounts>>,
    /// Who knows hosts by name, for exports; `None`: nobody, and no export may have rules by name.
    pub resolver: Option<Arc<dyn Resolver>>,
    /// Whose names clients may use for owners; `None`: they give numbers.
    pub owners: Option<Owners>,
    /// Names that clients may use.
    pub names: Names,
    /// Policy of a new file system's root, and how many mirrors a policy has that does not say. What exists keeps the policy
    /// that it has.
    pub policy: LayoutPolicy,
    /// Files of at least this many bytes get their wide component; below it, one data server.
    pub first_component: u64,
    /// With what data servers are asked for data, if not in clear.
    pub sealed: Option<Keyring>,
    /// Names this server to clients in EXCHANGE_ID (server owner and scope).
    pub name: String,
    /// Of the software, for people.
    pub version: String,
}

/// Which delegations clients may be given (RFC 8881 §10.4). Whatever is set here, what was given before a restart
/// may be reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delegations {
    Off,
    Read,
    ReadWrite,
    /// The same, and who is given one for writing answers for the times of the file, if it wants to (RFC 9754 §5).
    Times,
}

/// Which names clients may use (RFC 8881 §14.5). Either way they are compared byte by byte: nothing is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Whatever may stand in a directory of Linux.
    Any,
    /// UTF-8 alone: another is refused wherever it is used, also one that was made before.
    Utf8,
}

/// How much clients may hold. What can be recalled they are asked to give back near it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of cached replies that the sessions of all clients may promise together; a slot costs a KiB of it, whatever it
    /// promises.
    pub replies: u64,
    /// Clients of hosts that no export lets in.
    pub strangers: usize,
    pub opens: Bound,
    pub layouts: Bound,
    pub delegations: Bound,
    /// Opens of one file. No client has more of them than are left to others.
    pub opens_of_file: usize,
    /// Lock-owners of one file. The same.
    pub lock_owners_of_file: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let policy = Policy::default();
        Self {
            replies: ClientsConfig::default().max_cache,
            strangers: ClientsConfig::default().max_strangers,
            opens: Bound { per_client: policy.max_opens_per_client, in_all: policy.max_opens },
            layouts: Bound { per_client: policy.max_layouts_per_client, in_all: policy.max_layouts },
            delegations: Bound {
                per_client: policy.max_delegations_per_client,
                in_all: policy.max_delegations,
            },
            opens_of_file: policy.max_opens_per_file,
            lock_owners_of_file: policy.max_lock_owners_per_file,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(60),
            recall_timeout: Duration::from_secs(20),
            capability_rows: 7 << 16,
            removals_remembered: 1 << 17,
            heartbeat: Duration::from_secs(2),
            isolation: Duration::from_secs(15),
            isolation_margin: Duration::from_secs(5),
            rebuild_after: Duration::from_secs(600),
            heal_piece: 16 << 20,
            copy_at_once: 32 << 20,
            copy_step: 256 << 20,
            root_export: vec![Rule { squash: Squash::None, ..Rule::new(Network::ANY) }],
            kerberos: false,
            protection: Protection::None,
            layouts: true,
            delegations: Delegations::ReadWrite,
            delegation_quiet: Duration::from_secs(30),
            accounts: None,
            resolver: None,
            owners: None,
            names: Names::Any,
            limits: Limits::default(),
            policy: LayoutPolicy::OF_NEW_FILE_SYSTEMS,
            first_component: 64 << 20,
            sealed: None,
            name: "sluice".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}
