//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn free_stateid(_cx: &mut Context, _args: FREE_STATEID4args) -> OpResult<FREE_STATEID4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
