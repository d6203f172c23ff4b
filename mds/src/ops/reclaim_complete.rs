//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn reclaim_complete(_cx: &mut Context, _args: RECLAIM_COMPLETE4args) -> OpResult<RECLAIM_COMPLETE4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
