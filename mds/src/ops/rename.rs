//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn rename(_cx: &mut Context, _args: RENAME4args) -> OpResult<RENAME4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
