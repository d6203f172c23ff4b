//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn removexattr(_cx: &mut Context, _args: REMOVEXATTR4args) -> OpResult<REMOVEXATTR4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
