//! SETXATTR. RFC 8276 §8.4.3.

use std::sync::atomic::Ordering;

use sluice_namespace::{DirectoryChange, DirectoryUpdate, SetXattr};
use sluice_state::file::Intent;
use sluice_xdr::nfs4::{SETXATTR4args, SETXATTR4res, nfs_resop4, nfsstat4, setxattr_option4};

use crate::attr::change_info;
use crate::compound::{Context, OpResult};
use crate::layout::inline;
use crate::transact::Attempts;

/// What is longer is data, of which a metadata store whose device is nearly full takes no more: if that were full, nobody could
/// remove anything. Labels, capabilities and what Samba keeps are shorter.
const SMALL: usize = 1024;

pub(crate) async fn setxattr(cx: &mut Context, args: SETXATTR4args) -> OpResult<SETXATTR4res> {
    let how = match args.sxa_option {
        setxattr_option4::SETXATTR4_EITHER => SetXattr::Either,
        setxattr_option4::SETXATTR4_CREATE => SetXattr::Create,
        setxattr_option4::SETXATTR4_REPLACE => SetXattr::Replace,
        _ => return Err(nfsstat4::NFS4ERR_INVAL.into()),
    };
    let key = cx.current()?.inode;
    let mds = &cx.server;
    if args.sxa_value.len() > SMALL && !mds.room_for_data.load(Ordering::Relaxed) {
        return Err(nfsstat4::NFS4ERR_NOSPC.into());
    }
    inline::room_for_names(mds)?;
    let entry = mds.file(&key).await?;
    let client = cx.client()?;
    // Nobody gives back what he holds for what is refused: it is tried before.
    if entry.peek(|file| file.is_delegated_beside(client)) {
        let (namespace, args, cx) = (&mds.namespace, &args, &*cx);
        let tried = mds.read(|mut txn| {
            Box::pin(async move {
                let request = cx.request(DirectoryUpdate::Blind);
                namespace
                    .set_xattr(&mut txn, &key, &args.sxa_key, &args.sxa_value, how, &request)
                    .await
                    .map(drop)
            })
        });
        Box::pin(tried).await?;
    }
    let held = mds.prepare(&entry, &Intent::SetAttributes { client }).await?;
    let attempts = Attempts::default();
    let (namespace, args, context, attempts) = (&mds.namespace, &args, &*cx, &attempts);
    let (pending, version) = cx
        .write(|mut txn| {
            Box::pin(async move {
                let request = context.request(attempts.next());
                let (name, value) = (&args.sxa_key, &args.sxa_value);
                let pending = namespace.set_xattr(&mut txn, &key, name, value, how, &request).await?;
                let result = nfs_resop4::OP_SETXATTR(answer(*pending.peek()));
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

fn answer(change: DirectoryChange) -> SETXATTR4res {
    SETXATTR4res::NFS4_OK(change_info(change))
}
