//! Every operation that this server declines, in one place (docs/SEMANTICS.md lists them with reasons).
//! RFC 8881 §15.1.1.5 (NFS4ERR_NOTSUPP): Linux clears the capability for the mount and goes on.

use sluice_xdr::nfs4::{nfs_argop4, nfs_resop4, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) fn notsupp(_cx: &mut Context, op: &nfs_argop4) -> OpResult<nfs_resop4> {
    tracing::debug!(operation = ?op.discriminant(), "declined");
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
