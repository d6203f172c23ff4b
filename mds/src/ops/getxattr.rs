//! GETXATTR. RFC 8276 §8.4.2.

use sluice_xdr::nfs4::{GETXATTR4args, GETXATTR4res, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) async fn getxattr(cx: &mut Context, args: GETXATTR4args) -> OpResult<GETXATTR4res> {
    let key = cx.current()?.inode;
    let (namespace, who, name) = (&cx.server.namespace, &cx.who, &args.gxa_name);
    let value = cx
        .server
        .read(|txn| Box::pin(async move { namespace.get_xattr(&txn, &key, name, who).await }))
        .await?;
    // §8.4.2.3: a value beyond what the channel can carry is too big, not a reply that is too big.
    if value.len().saturating_add(16) > cx.reply_room {
        return Err(nfsstat4::NFS4ERR_TOOSMALL.into());
    }
    Ok(GETXATTR4res::NFS4_OK(value))
}
