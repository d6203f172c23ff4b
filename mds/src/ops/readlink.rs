//! READLINK. RFC 8881 §18.24.

use sluice_xdr::nfs4::{READLINK4res, READLINK4resok, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) async fn readlink(cx: &mut Context) -> OpResult<READLINK4res> {
    let inode = cx.inode().await?;
    let link = inode.symlink().cloned().ok_or(nfsstat4::NFS4ERR_WRONG_TYPE)?;
    Ok(READLINK4res::NFS4_OK(READLINK4resok { link }))
}
