//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn test_stateid(_cx: &mut Context, _args: TEST_STATEID4args) -> OpResult<TEST_STATEID4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
