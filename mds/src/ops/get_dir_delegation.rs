//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn get_dir_delegation(_cx: &mut Context, _args: GET_DIR_DELEGATION4args) -> OpResult<GET_DIR_DELEGATION4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
