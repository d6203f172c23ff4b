//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn lockt(_cx: &mut Context, _args: LOCKT4args) -> OpResult<LOCKT4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
