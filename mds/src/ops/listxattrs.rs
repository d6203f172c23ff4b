//! LISTXATTRS. RFC 8276 §8.4.4.

use sluice_namespace::MAX_XATTRS;
use sluice_xdr::nfs4::{LISTXATTRS4args, LISTXATTRS4res, LISTXATTRS4resok, nfsstat4};

use crate::compound::{Context, OpResult};

/// Cookie, count of names, eof.
const FIXED: usize = 8 + 4 + 4;

pub(crate) async fn listxattrs(cx: &mut Context, args: LISTXATTRS4args) -> OpResult<LISTXATTRS4res> {
    let key = cx.current()?.inode;
    let (namespace, who) = (&cx.server.namespace, &cx.who);
    let names =
        cx.server.read(|txn| Box::pin(async move { namespace.list_xattrs(&txn, &key, who).await })).await?;
    // The cookie counts names from the beginning: §8.4.4.3 lets attributes that come and go meanwhile be
    // missed or seen twice. So one that was good is also where the list has become shorter: nothing is left there.
    let start = usize::try_from(args.lxa_cookie).unwrap_or(usize::MAX);
    if start > MAX_XATTRS {
        return Err(nfsstat4::NFS4ERR_BAD_COOKIE.into());
    }
    let room = usize::try_from(args.lxa_maxcount).unwrap_or(usize::MAX).min(cx.reply_room.saturating_sub(8));
    let mut left = room.checked_sub(FIXED).ok_or(nfsstat4::NFS4ERR_TOOSMALL)?;
    let mut fitting = Vec::new();
    for name in names.iter().skip(start) {
        let size = 4 + name.len().next_multiple_of(4);
        if size > left {
            break;
        }
        left -= size;
        fitting.push(name.clone());
    }
    let end = start + fitting.len();
    let eof = end >= names.len();
    if fitting.is_empty() && !eof {
        return Err(nfsstat4::NFS4ERR_TOOSMALL.into());
    }
    Ok(LISTXATTRS4res::NFS4_OK(LISTXATTRS4resok {
        lxr_cookie: u64::try_from(end).unwrap_or(u64::MAX),
        lxr_names: fitting,
        lxr_eof: eof,
    }))
}
