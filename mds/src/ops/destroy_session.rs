//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn destroy_session(_cx: &mut Context, _args: DESTROY_SESSION4args) -> OpResult<DESTROY_SESSION4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
