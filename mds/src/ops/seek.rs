//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn seek(_cx: &mut Context, _args: SEEK4args) -> OpResult<SEEK4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
