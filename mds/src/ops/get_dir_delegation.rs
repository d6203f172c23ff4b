//! GET_DIR_DELEGATION. RFC 8881 §18.39: declined. Linux 6.19 and later ask with every GETATTR of a directory
//! and stop asking at NOTSUPP; any other error they hand to the application.

use sluice_xdr::nfs4::{GET_DIR_DELEGATION4args, GET_DIR_DELEGATION4res, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) fn get_dir_delegation(
    _cx: &mut Context,
    _args: GET_DIR_DELEGATION4args,
) -> OpResult<GET_DIR_DELEGATION4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
