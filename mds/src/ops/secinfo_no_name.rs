//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn secinfo_no_name(_cx: &mut Context, _args: SECINFO_NO_NAME4args) -> OpResult<SECINFO_NO_NAME4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
