//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn create(_cx: &mut Context, _args: CREATE4args) -> OpResult<CREATE4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
