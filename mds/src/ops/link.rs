//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn link(_cx: &mut Context, _args: LINK4args) -> OpResult<LINK4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
