//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn getdeviceinfo(
    _cx: &mut Context,
    _args: GETDEVICEINFO4args,
) -> OpResult<GETDEVICEINFO4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
