//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn lock(_cx: &mut Context, _args: LOCK4args) -> OpResult<LOCK4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
