//! LINK. RFC 8881 §18.9: the saved filehandle gets a name in the current directory.

use sluice_namespace::{DirectoryChange, DirectoryUpdate, FsError, InodeKey, Name};
use sluice_state::file::Intent;
use sluice_xdr::nfs4::{LINK4args, LINK4res, LINK4resok, nfs_resop4, nfsstat4};

use super::lookup::not_a_directory;
use super::remove::find;
use crate::attr::change_info;
use crate::compound::{Context, OpError, OpResult};
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
    let client = cx.client()?;
    // Nobody gives back what he holds for what is refused.
    if entry.peek(|file| file.is_delegated_beside(client))
        && let Err(error) = Box::pin(rehearse(cx, &file.inode, &directory.inode, &newname)).await
    {
        return Err(refused(cx, error).await);
    }
    let held = mds.prepare(&entry, &Intent::SetAttributes { client }).await?;
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
        Err(error) => return Err(refused(cx, error).await),
        Ok(done) => done,
    };
    held.commit()?;
    let linked = pending.resolve(version);
    Ok(answer(linked.directory))
}

async fn refused(cx: &mut Context, error: FsError) -> OpError {
    match error {
        FsError::NotDirectory => not_a_directory(cx).await,
        error => error.into(),
    }
}

/// Tries it, and leaves it at that.
async fn rehearse(
    cx: &Context,
    file: &InodeKey,
    directory: &InodeKey,
    newname: &Name<'_>,
) -> Result<(), FsError> {
    let namespace = &cx.server.namespace;
    let tried = cx.server.read(|mut txn| {
        Box::pin(async move {
            let request = cx.request(DirectoryUpdate::Blind);
            namespace.link(&mut txn, file, directory, newname, &request).await.map(drop)
        })
    });
    tried.await
}

fn answer(directory: DirectoryChange) -> LINK4res {
    LINK4res::NFS4_OK(LINK4resok { cinfo: change_info(directory) })
}
