//! LOOKUPP. RFC 8881 §18.14.

use sluice_xdr::nfs4::{LOOKUPP4res, nfsstat4};

use super::lookup::not_a_directory;
use crate::compound::{Context, OpResult};

pub(crate) async fn lookupp(cx: &mut Context) -> OpResult<LOOKUPP4res> {
    let directory = cx.current()?.inode;
    let (namespace, who) = (&cx.server.namespace, &cx.who);
    let parent = cx
        .server
        .read(|txn| Box::pin(async move { namespace.lookup_parent(&txn, &directory, who).await }))
        .await;
    let parent = match parent {
        Err(sluice_namespace::FsError::NotDirectory) => return Err(not_a_directory(cx).await),
        other => other?,
    };
    cx.set_current_known(parent);
    Ok(LOOKUPP4res { status: nfsstat4::NFS4_OK })
}
