//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn bind_conn_to_session(_cx: &mut Context, _args: BIND_CONN_TO_SESSION4args) -> OpResult<BIND_CONN_TO_SESSION4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
