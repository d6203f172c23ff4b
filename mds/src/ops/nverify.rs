//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn nverify(_cx: &mut Context, _args: NVERIFY4args) -> OpResult<NVERIFY4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
