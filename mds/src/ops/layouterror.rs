//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn layouterror(_cx: &mut Context, _args: LAYOUTERROR4args) -> OpResult<LAYOUTERROR4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
