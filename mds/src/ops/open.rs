//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn open(_cx: &mut Context, _args: OPEN4args) -> OpResult<OPEN4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
