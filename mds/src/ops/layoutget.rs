//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn layoutget(_cx: &mut Context, _args: LAYOUTGET4args) -> OpResult<LAYOUTGET4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
