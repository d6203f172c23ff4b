//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn readlink(_cx: &mut Context) -> OpResult<READLINK4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
