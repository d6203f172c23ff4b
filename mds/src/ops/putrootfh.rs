//! (to be written)

use sluice_xdr::nfs4::*;

use crate::compound::{Context, OpResult};

pub(crate) async fn putpubfh(_cx: &mut Context) -> OpResult<PUTPUBFH4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}

pub(crate) async fn putrootfh(_cx: &mut Context) -> OpResult<PUTROOTFH4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
