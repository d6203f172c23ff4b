//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn layoutstats(_cx: &mut Context, _args: LAYOUTSTATS4args) -> OpResult<LAYOUTSTATS4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
