//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn readdir(_cx: &mut Context, _args: READDIR4args) -> OpResult<READDIR4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
