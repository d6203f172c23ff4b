//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn deallocate(_cx: &mut Context, _args: DEALLOCATE4args) -> OpResult<DEALLOCATE4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
