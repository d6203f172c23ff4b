//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn allocate(_cx: &mut Context, _args: ALLOCATE4args) -> OpResult<ALLOCATE4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
