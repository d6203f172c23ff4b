//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn lookupp(_cx: &mut Context) -> OpResult<LOOKUPP4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
