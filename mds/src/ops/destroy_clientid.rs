//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn destroy_clientid(_cx: &mut Context, _args: DESTROY_CLIENTID4args) -> OpResult<DESTROY_CLIENTID4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
