//! The metadata server. In the order of a request:
//!
//! | module | what |
//! | --- | --- |
//! | `program` | NFS4_PROGRAM: NULL and COMPOUND |
//! | `compound` | the loop, the operation table, what an operation is given |
//! | `accounts`, `groups`, `owners` | what this host's directory service says: groups of callers, where not the client knows them; owners by name |
//! | `exports` | what clients may mount, and who may do what there |
//! | `ops` | one file per operation |
//! | `attr` | fattr4 to and from inodes |
//! | `files`, `effects` | file state machines, the ticket discipline, what follows a step |
//! | `clients`, `callback`, `reaper` | clients, sessions, the back channel, leases |
//! | `pressure` | asking for layouts and delegations before there are too many |
//! | `copies` | COPY, while it is answered and after |
//! | `layout` | placement, flexible-file encoding, capabilities |
//! | `dsctl` | the data servers: registration, health, fences, sizes; the MDS's own I/O |
//! | `transact` | transactions on the store |
//! | `admin` | the command line's questions |
//! | `metrics` | what is counted |

mod accounts;
mod admin;
mod attr;
mod callback;
mod clients;
mod compound;
pub mod config;
mod copies;
mod dsctl;
mod effects;
mod error;
mod exports;
mod files;
mod groups;
mod layout;
mod metrics;
mod ops;
mod owners;
mod path;
mod pressure;
mod program;
mod pulse;
mod quota;
mod reaper;
mod server;
mod transact;

pub use accounts::Accounts;
pub use config::{Config, Delegations, Limits, Names};
pub use exports::{ExportSummary, Resolver};
pub use metrics::{
    BUCKETS, BalanceStatistics, DataServerStatistics, OperationSnapshot, QuotaStatistics, Statistics,
};
pub use owners::{Owners, TellNames};
pub use server::{Mds, StartError};
pub use sluice_namespace::stable_storage::{
    BadClients, ClientName, Clients, Flavours, NOBODY, Network, Protection, Rule, Squash,
};
