//! The data server: NFSv3 READ, WRITE and COMMIT on data files for any client that holds a
//! capability, and orders from the metadata server.
//!
//! | module | what |
//! | --- | --- |
//! | [`server`] | start, status, shutdown |
//! | [`nfs3`] | the data path, one file per procedure (RFC 1813) |
//! | [`control`] | registration, heartbeats, reports; orders from the metadata server |
//! | `access` | is this handle good, and may its holder do this? |
//! | `contact` | may we serve at all, or have we lost the metadata server? |
//! | `metrics` | what is shown to an operator |
//! | `whereabouts` | where the metadata server may be |
//! | `logical_size` | where a file ends, which may be later than its data file does |

mod access;
mod contact;
pub mod control;
mod counters;
mod error;
mod logical_size;
mod metrics;
pub mod nfs3;
pub mod server;
mod shared;
mod whereabouts;

pub use counters::Snapshot;
pub use error::StartError;
pub use metrics::Metrics;
pub use server::{Config, DataServer, Status};
pub use whereabouts::Whereabouts;
