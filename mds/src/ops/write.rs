//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn write(_cx: &mut Context, _args: WRITE4args) -> OpResult<WRITE4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
