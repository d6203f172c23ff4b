//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn commit(_cx: &mut Context, _args: COMMIT4args) -> OpResult<COMMIT4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
