//! GETATTR. RFC 8881 §18.7.

use std::pin::pin;

use bytes::BytesMut;
use sluice_xdr::nfs4::{
    FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_METADATA, FATTR4_TIME_MODIFY, GETATTR4args, GETATTR4res,
    GETATTR4resok, bitmap4, nfsstat4,
};

use crate::attr::{acl, current, get, straight};
use crate::compound::{Context, OpResult};
use crate::dsctl::capacity;
use crate::owners;

/// What tells a client whether its caches of a file still hold.
const FOR_CACHES: bitmap4 =
    bitmap4::of(&[FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_METADATA, FATTR4_TIME_MODIFY]);
/// Bytes that the usual attributes take, about.
const ROOM: usize = 192;

pub(crate) async fn getattr(cx: &mut Context, mut args: GETATTR4args) -> OpResult<GETATTR4res> {
    // §18.7.3: attributes that can only be set may not be asked for.
    if !args.attr_request.and(get::WRITE_ONLY).is_empty() {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    // ADR 0032: a Linux client takes what comes with a LAYOUTCOMMIT or a SETXATTR for newer than all that it has written
    // since it asked, and would cut its view of the file to a size from before that. Who keeps nothing of a file in
    // memory asks for no change attribute.
    let own = cx.is_behind_writer().filter(|_| args.attr_request.contains(FATTR4_CHANGE));
    let mut moves = args.attr_request.and(get::MOVES_WITH_DATA);
    if let Some(alone) = own {
        args.attr_request.remove(FATTR4_SIZE);
        moves = moves.without(FOR_CACHES);
        // Nor does it look again at what others have written, if their changes are in what it takes for its own.
        if !alone {
            args.attr_request.remove(FATTR4_CHANGE);
        }
    }
    let (mut inode, mut known) = (pin!(cx.take_inode()).await?, true);
    if !moves.is_empty() {
        let now = pin!(current::current(cx, &inode)).await?;
        // It may be more than what is stored.
        (inode, known) = now.map_or((inode, known), |now| (now, false));
    }
    acl::permit(&args.attr_request, &inode, &cx.who)?;
    let export = cx.current()?.export;
    let by_name = cx.server.names.tells(&cx.wire_credential, &args.attr_request);
    if !by_name && straight::is_all(&args.attr_request) {
        let mut values = BytesMut::with_capacity(ROOM);
        let obj_attributes = straight::of_inode(&cx.server, export, &inode, &args.attr_request, &mut values);
        if known {
            cx.give_back(inode);
        }
        return Ok(GETATTR4res::NFS4_OK(GETATTR4resok { obj_attributes }));
    }
    if !args.attr_request.and(get::SPACE).is_empty() {
        Box::pin(capacity::look(&cx.server)).await;
    }
    let standing = get::standing(&cx.server, &inode, &args.attr_request).await?;
    let of = (&inode, standing.as_ref());
    let mut attributes = get::attributes(&cx.server, cx.minor, export, of, &args.attr_request);
    if by_name {
        let whose = owners::whose(&inode, &args.attr_request).collect();
        Box::pin(cx.server.names.learn(&cx.server.env, cx.from.address, whose)).await;
        cx.server.names.name(&cx.server.env, &mut attributes);
    }
    let obj_attributes = attributes.encode(&args.attr_request).map_err(|_| nfsstat4::NFS4ERR_SERVERFAULT)?;
    if known {
        cx.give_back(inode);
    }
    Ok(GETATTR4res::NFS4_OK(GETATTR4resok { obj_attributes }))
}
