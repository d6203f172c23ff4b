//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn io_advise(_cx: &mut Context, _args: IO_ADVISE4args) -> OpResult<IO_ADVISE4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
