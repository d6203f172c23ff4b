//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn layoutreturn(_cx: &mut Context, _args: LAYOUTRETURN4args) -> OpResult<LAYOUTRETURN4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
