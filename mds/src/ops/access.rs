//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn access(_cx: &mut Context, _args: ACCESS4args) -> OpResult<ACCESS4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
