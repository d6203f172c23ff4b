//! REMOVEXATTR. RFC 8276 §8.4.5.

use sluice_namespace::{DirectoryChange, DirectoryUpdate};
use sluice_state::file::Intent;
use sluice_xdr::nfs4::{REMOVEXATTR4args, REMOVEXATTR4res, nfs_resop4};

use crate::attr::change_info;
use crate::compound::{Context, OpResult};
use crate::transact::Attempts;

pub(crate) async fn removexattr(cx: &mut Context, args: REMOVEXATTR4args) -> OpResult<REMOVEXATTR4res> {
    let key = cx.current()?.inode;
    let mds = &cx.server;
    let entry = mds.file(&key).await?;
    let client = cx.client()?;
    // Nobody gives back what he holds for what is refused: it is tried before.
    if entry.peek(|file| file.is_delegated_beside(client)) {
        let (namespace, args, cx) = (&mds.namespace, &args, &*cx);
        let tried = mds.read(|mut txn| {
            Box::pin(async move {
                let request = cx.request(DirectoryUpdate::Blind);
                namespace.remove_xattr(&mut txn, &key, &args.rxa_name, &request).await.map(drop)
            })
        });
        Box::pin(tried).await?;
    }
    let held = mds.prepare(&entry, &Intent::SetAttributes { client }).await?;
    let attempts = Attempts::default();
    let (namespace, name, context, attempts) = (&mds.namespace, &args.rxa_name, &*cx, &attempts);
    let (pending, version) = cx
        .write(|mut txn| {
            Box::pin(async move {
                let request = context.request(attempts.next());
                let pending = namespace.remove_xattr(&mut txn, &key, name, &request).await?;
                let result = nfs_resop4::OP_REMOVEXATTR(answer(*pending.peek()));
                context.record(&mut txn, &result);
                Ok(pending)
            })
        })
        .await?;
    held.commit()?;
    if entry.peek(|file| file.may_write(client)) {
        cx.is_of_writer(true);
    }
    Ok(answer(pending.resolve(version)))
}

fn answer(change: DirectoryChange) -> REMOVEXATTR4res {
    REMOVEXATTR4res::NFS4_OK(change_info(change))
}
