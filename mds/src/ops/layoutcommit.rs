//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn layoutcommit(_cx: &mut Context, _args: LAYOUTCOMMIT4args) -> OpResult<LAYOUTCOMMIT4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
