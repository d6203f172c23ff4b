//! SECINFO. RFC 8881 §18.29.

use sluice_xdr::nfs4::{AUTH_NONE, AUTH_SYS, SECINFO4args, SECINFO4res, nfsstat4, secinfo4};

use super::remove::find;
use crate::attr::name;
use crate::compound::{Context, OpResult};

pub(crate) async fn secinfo(cx: &mut Context, args: SECINFO4args) -> OpResult<SECINFO4res> {
    let name = name(&args.name)?;
    let directory = cx.current()?.inode;
    find(cx, &directory, &name).await?.ok_or(nfsstat4::NFS4ERR_NOENT)?;
    consume(cx);
    Ok(SECINFO4res::NFS4_OK(flavours()))
}

/// §2.6.3.1.1.8: SECINFO and SECINFO_NO_NAME use the current filehandle up.
pub(super) fn consume(cx: &mut Context) {
    cx.current = None;
    cx.current_stateid = None;
    cx.forget_inode();
}

/// What this server accepts, the preferred one first.
pub(super) fn flavours() -> Vec<secinfo4> {
    vec![secinfo4::Default(AUTH_SYS), secinfo4::Default(AUTH_NONE)]
}
