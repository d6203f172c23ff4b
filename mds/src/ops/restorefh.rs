//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn restorefh(_cx: &mut Context) -> OpResult<RESTOREFH4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
