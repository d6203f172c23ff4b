//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn verify(_cx: &mut Context, _args: VERIFY4args) -> OpResult<VERIFY4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
