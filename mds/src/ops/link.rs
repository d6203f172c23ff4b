//! LINK. RFC 8881 §18.9: the saved filehandle gets a name in the current directory.

use sluice_namespace::{DirectoryChange, FsError};
use sluice_state::file::Intent;
use sluice_xdr::nfs4::{LINK4args, LINK4res, LINK4resok, nfs_resop4, nfsstat4};

use super::lookup::not_a_directory;
use super::remove::find;
use crate::attr::change_info;
use crate::compound::{Context, OpResult};
use crate::layout::inline;
use crate::transact::Attempts;

pub(crate) async fn link(cx: &mut Context, args: LINK4args) -> OpResult<LINK4res> {
    let newname = cx.name(&args.newname)?;
    let (file, directory) = (cx.saved()?, cx.current()?);
    if file.export != directory.export {
        return Err(nfsstat4::NFS4ERR_XDEV.into());
    }
    if let Err(full) = inline::room_for_names(&cx.server)
        && find(cx, &directory.inode, &newname).await?.is_none()
    {
        return Err(full.into());
    }
    let mds = &cx.server;
    let entry = mds.file(&file.inode).await?;
    let held = mds.prepare(&entry, &Intent::SetAttributes { client: cx.client()? }).await?;
    let attempts = Attempts::default();
    let (namespace, newname, context, attempts) = (&mds.namespace, &newname, &*cx, &attempts);
    let linked = cx
        .write(|mut txn| {
            Box::pin(async move {
                let request = context.request(attempts.next());
                let (file, directory) = (&file.inode, &directory.inode);
                let pending = namespace.link(&mut txn, file, directory, newname, &request).await?;
                context.record(&mut txn, &nfs_resop4::OP_LINK(answer(pending.peek().directory)));
                Ok(pending)
            })
        })
        .await;
    let (pending, version) = match linked {
        Err(FsError::NotDirectory) => return Err(not_a_directory(cx).await),
        other => other?,
    };
    held.commit()?;
    let linked = pending.resolve(version);
    Ok(answer(linked.directory))
}

fn answer(directory: DirectoryChange) -> LINK4res {
    LINK4res::NFS4_OK(LINK4resok { cinfo: change_info(directory) })
}
