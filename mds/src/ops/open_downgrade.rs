//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn open_downgrade(_cx: &mut Context, _args: OPEN_DOWNGRADE4args) -> OpResult<OPEN_DOWNGRADE4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
