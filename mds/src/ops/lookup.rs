//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn lookup(_cx: &mut Context, _args: LOOKUP4args) -> OpResult<LOOKUP4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
