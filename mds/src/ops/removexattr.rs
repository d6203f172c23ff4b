//! REMOVEXATTR. RFC 8276 §8.4.5.

use sluice_state::file::Intent;
use sluice_xdr::nfs4::{REMOVEXATTR4args, REMOVEXATTR4res, change_info4, nfs_resop4};

use crate::compound::{Context, OpResult};

pub(crate) async fn removexattr(cx: &mut Context, args: REMOVEXATTR4args) -> OpResult<REMOVEXATTR4res> {
    let key = cx.current()?.inode;
    let mds = &cx.server;
    let entry = mds.file(&key).await?;
    let held = mds.prepare(&entry, &Intent::SetAttributes { client: cx.client()? }).await?;
    let (namespace, name, context) = (&mds.namespace, &args.rxa_name, &*cx);
    let ((before, pending), version) = cx
        .write(|mut txn| {
            Box::pin(async move {
                let request = context.request(sluice_namespace::DirectoryUpdate::Exact);
                let before = namespace.getattr(&txn, &key).await?.change;
                let pending = namespace.remove_xattr(&mut txn, &key, name, &request).await?;
                let result = nfs_resop4::OP_REMOVEXATTR(answer(before, pending.peek().change));
                context.record(&mut txn, &result);
                Ok((before, pending))
            })
        })
        .await?;
    held.commit()?;
    let after = pending.resolve(version).change;
    Ok(answer(before, after))
}

fn answer(before: u64, after: u64) -> REMOVEXATTR4res {
    REMOVEXATTR4res::NFS4_OK(change_info4 { atomic: true, before, after })
}
