//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn create_session(_cx: &mut Context, _args: CREATE_SESSION4args) -> OpResult<CREATE_SESSION4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
