//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn exchange_id(_cx: &mut Context, _args: EXCHANGE_ID4args) -> OpResult<EXCHANGE_ID4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
