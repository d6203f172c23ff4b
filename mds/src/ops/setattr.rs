//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn setattr(_cx: &mut Context, _args: SETATTR4args) -> OpResult<SETATTR4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
