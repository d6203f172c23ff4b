//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn locku(_cx: &mut Context, _args: LOCKU4args) -> OpResult<LOCKU4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
