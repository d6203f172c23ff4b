//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn getxattr(_cx: &mut Context, _args: GETXATTR4args) -> OpResult<GETXATTR4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
