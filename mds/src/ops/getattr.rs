//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn getattr(_cx: &mut Context, _args: GETATTR4args) -> OpResult<GETATTR4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
