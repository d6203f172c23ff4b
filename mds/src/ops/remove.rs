//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn remove(_cx: &mut Context, _args: REMOVE4args) -> OpResult<REMOVE4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
