//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn setxattr(_cx: &mut Context, _args: SETXATTR4args) -> OpResult<SETXATTR4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
