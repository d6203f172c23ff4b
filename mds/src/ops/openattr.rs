//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn openattr(_cx: &mut Context, _args: OPENATTR4args) -> OpResult<OPENATTR4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
