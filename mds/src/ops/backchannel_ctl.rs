//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn backchannel_ctl(_cx: &mut Context, _args: BACKCHANNEL_CTL4args) -> OpResult<BACKCHANNEL_CTL4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
