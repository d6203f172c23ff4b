//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn listxattrs(_cx: &mut Context, _args: LISTXATTRS4args) -> OpResult<LISTXATTRS4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
