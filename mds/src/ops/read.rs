//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn read(_cx: &mut Context, _args: READ4args) -> OpResult<READ4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
