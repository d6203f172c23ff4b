//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn putfh(_cx: &mut Context, _args: PUTFH4args) -> OpResult<PUTFH4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
