//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn secinfo(_cx: &mut Context, _args: SECINFO4args) -> OpResult<SECINFO4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
