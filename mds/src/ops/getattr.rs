//! GETATTR. RFC 8881 §18.7.

use bytes::BytesMut;
use sluice_xdr::nfs4::{GETATTR4args, GETATTR4res, GETATTR4resok, nfsstat4};

use crate::attr::{acl, current, get, straight};
use crate::compound::{Context, OpResult};
use crate::dsctl::capacity;

/// Bytes that the usual attributes take, about.
const ROOM: usize = 192;

pub(crate) async fn getattr(cx: &mut Context, args: GETATTR4args) -> OpResult<GETATTR4res> {
    // §18.7.3: attributes that can only be set may not be asked for.
    if !args.attr_request.and(get::WRITE_ONLY).is_empty() {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    let (mut inode, mut known) = (cx.take_inode().await?, true);
    if !args.attr_request.and(get::MOVES_WITH_DATA).is_empty()
        && let Some(now) = current::current(cx, &inode).await?
    {
        // It may be more than what is stored.
        (inode, known) = (now, false);
    }
    acl::permit(&args.attr_request, &inode, &cx.who)?;
    let export = cx.current()?.export;
    if straight::is_all(&args.attr_request) {
        let mut values = BytesMut::with_capacity(ROOM);
        let obj_attributes = straight::of_inode(&cx.server, export, &inode, &args.attr_request, &mut values);
        if known {
            cx.give_back(inode);
        }
        return Ok(GETATTR4res::NFS4_OK(GETATTR4resok { obj_attributes }));
    }
    if !args.attr_request.and(get::SPACE).is_empty() {
        capacity::look(&cx.server).await;
    }
    let standing = get::standing(&cx.server, &inode, &args.attr_request).await?;
    let of = (&inode, standing.as_ref());
    let attributes = get::attributes(&cx.server, cx.minor, export, of, &args.attr_request);
    let obj_attributes = attributes.encode(&args.attr_request).map_err(|_| nfsstat4::NFS4ERR_SERVERFAULT)?;
    if known {
        cx.give_back(inode);
    }
    Ok(GETATTR4res::NFS4_OK(GETATTR4resok { obj_attributes }))
}
