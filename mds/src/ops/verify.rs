//! VERIFY and what it shares with NVERIFY. RFC 8881 §18.31, §18.15.

use sluice_xdr::nfs4::*;

use crate::attr::{acl, current, get};
use crate::compound::{Context, OpError, OpResult};

pub(crate) async fn verify(cx: &mut Context, args: VERIFY4args) -> OpResult<VERIFY4res> {
    if same(cx, &args.obj_attributes).await? {
        Ok(VERIFY4res { status: nfsstat4::NFS4_OK })
    } else {
        Err(nfsstat4::NFS4ERR_NOT_SAME.into())
    }
}

/// Whether the current file's attributes are those given.
///
/// # Errors
/// ATTRNOTSUPP; INVAL for attributes that cannot be compared (§18.31.3: rdattr_error and those only set); DELAY while it cannot be
/// told who is named.
pub(super) async fn same(cx: &mut Context, given: &fattr4) -> Result<bool, OpError> {
    let incomparable = get::WRITE_ONLY.with(FATTR4_RDATTR_ERROR);
    if !given.attrmask.and(incomparable).is_empty() {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    if !given.attrmask.without(get::supported(&cx.server, cx.minor)).is_empty() {
        return Err(nfsstat4::NFS4ERR_ATTRNOTSUPP.into());
    }
    let numbered = match cx.server.names.numbered(&cx.server.env, cx.from.address, given).await {
        Ok(numbered) => Some(numbered),
        // To whom nobody here knows nothing belongs.
        Err(nfsstat4::NFS4ERR_BADOWNER) => None,
        Err(status) => return Err(status.into()),
    };
    let mut inode = cx.inode().await?;
    if !given.attrmask.and(get::MOVES_WITH_DATA).is_empty()
        && let Some(now) = current::current(cx, &inode).await?
    {
        cx.forget_inode();
        inode = now;
    }
    acl::permit(&given.attrmask, &inode, &cx.who)?;
    let export = cx.current()?.export;
    let standing = get::standing(&cx.server, &inode, &given.attrmask).await?;
    let ours = get::attributes(&cx.server, cx.minor, export, (&inode, standing.as_ref()), &given.attrmask)
        .encode(&given.attrmask)
        .map_err(|_| nfsstat4::NFS4ERR_SERVERFAULT)?;
    Ok(numbered == Some(ours))
}
