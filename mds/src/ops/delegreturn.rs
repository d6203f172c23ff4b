//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn delegreturn(_cx: &mut Context, _args: DELEGRETURN4args) -> OpResult<DELEGRETURN4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
