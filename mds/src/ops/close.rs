//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn close(_cx: &mut Context, _args: CLOSE4args) -> OpResult<CLOSE4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
