//! A small NFSv4.1/4.2 client with flexible-file layouts, for benchmarks and simulation.
//!
//! ```text
//! let client = Client::connect(env, transport, addr, Identity::new("host", "6.18.3")).await?;
//! let file = client.open(client.root(), b"name", How::create(0o644)).await?;
//! let segment = client.layoutget(&file, layoutiomode4::LAYOUTIOMODE4_RW, 0).await?;
//! client.write(&segment, 0, data, stable_how::UNSTABLE).await?;
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | `session` | EXCHANGE_ID, CREATE_SESSION, COMPOUNDs over slots, the lease |
//! | `persistent` | the same, outliving connections and the server: what was not answered is sent again |
//! | `line` | how calls travel: the product's own connections, or a bare socket where the client's cost must be small |
//! | `slots` | which slots are free, and their sequence ids |
//! | `files` | operations on names and files |
//! | `delegations` | files opened and closed without a word |
//! | `layout` | LAYOUTGET, LAYOUTCOMMIT, LAYOUTRETURN, GETDEVICEINFO |
//! | `data` | NFSv3 READ, WRITE, COMMIT at data servers |
//! | `callback` | recalls, answered by returning |
//! | `ops` | operations in one line each |
//!
//! Time, randomness, tasks and the network are passed in: the same client runs against real servers and in
//! a simulated world.
#![warn(clippy::disallowed_methods)]

mod callback;
mod data;
mod delegations;
mod files;
mod layout;
mod line;
pub mod ops;
mod persistent;
mod session;
mod slots;

pub use data::{DataServer, Written};
pub use delegations::Reading;
pub use files::{Found, How, Open, Page};
pub use layout::{DataFile, Place, Segment};
pub(crate) use line::{LAST, put_head};
pub use persistent::{Answer, Lost, Persistent};
pub use session::{Client, Identity};

use sluice_rpc::{CallError, ConnectError};
use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::{AttributesError, nfs_opnum4, nfsstat4};
use sluice_xdr::{DecodeError, EncodeError};
use thiserror::Error;

/// Why an operation of the client failed.
#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("a reply cannot be decoded: {0}")]
    Decode(#[from] DecodeError),
    #[error("a call cannot be encoded: {0}")]
    Encode(#[from] EncodeError),
    #[error("attributes cannot be decoded: {0}")]
    Attributes(#[from] AttributesError),
    /// The operation of a COMPOUND that failed.
    #[error("{op} failed with {status}")]
    Status { op: nfs_opnum4, status: nfsstat4 },
    /// A data server's answer.
    #[error("{procedure} at a data server failed with {status}")]
    DataServer { procedure: &'static str, status: nfsstat3 },
    /// The server said something that the protocol does not allow.
    #[error("the server's answer breaks the protocol: {0}")]
    Protocol(&'static str),
    /// The segment was recalled or returned: ask for a new one.
    #[error("the layout was given back")]
    LayoutGone,
}

impl Error {
    /// The status of a COMPOUND, if that is what failed.
    #[must_use]
    pub fn status(&self) -> Option<nfsstat4> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// What operations of the client return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
