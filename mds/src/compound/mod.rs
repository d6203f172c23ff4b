//! COMPOUND: one request of several operations, run in order until one fails. RFC 8881 §2.3, §16.2.

pub(crate) mod bound;
pub(crate) mod context;
pub(crate) mod gate;
mod machine;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod table;

pub(crate) use context::Context;

use sluice_xdr::nfs4::{nfs_resop4, nfsstat4};

/// How an operation fails: a bare status, or a result arm that carries more beside it (LOCK denied,
/// GETDEVICEINFO too small, LAYOUTGET try later).
#[derive(Debug)]
pub(crate) enum OpError {
    Status(nfsstat4),
    Arm(nfsstat4, Box<nfs_resop4>),
}

impl From<nfsstat4> for OpError {
    fn from(status: nfsstat4) -> Self {
        Self::Status(status)
    }
}

/// What every operation returns.
pub(crate) type OpResult<T> = Result<T, OpError>;
