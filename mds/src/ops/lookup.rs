//! LOOKUP. RFC 8881 §18.13.

use sluice_xdr::nfs4::{LOOKUP4args, LOOKUP4res, nfsstat4};

use crate::compound::{Context, OpError, OpResult};

pub(crate) async fn lookup(cx: &mut Context, args: LOOKUP4args) -> OpResult<LOOKUP4res> {
    let name = cx.name(&args.objname)?;
    let directory = cx.current()?.inode;
    if cx.pseudo().is_some() {
        let place = cx.exports.lookup(&directory, name.bytes(), &cx.from)?;
        cx.go(place)?;
        return Ok(LOOKUP4res { status: nfsstat4::NFS4_OK });
    }
    let (namespace, who, name) = (&cx.server.namespace, &cx.who, &name);
    let found = cx
        .server
        .read(|txn| Box::pin(async move { namespace.lookup(&txn, &directory, name, who).await }))
        .await;
    let found = match found {
        // §18.13.4: a symbolic link as the directory is told apart, so that the client follows it.
        Err(sluice_namespace::FsError::NotDirectory) => return Err(not_a_directory(cx).await),
        other => other?,
    };
    cx.enter(found.inode)?;
    Ok(LOOKUP4res { status: nfsstat4::NFS4_OK })
}

/// The status of a name operation on something that is not a directory.
pub(crate) async fn not_a_directory(cx: &mut Context) -> OpError {
    match cx.inode().await {
        Ok(inode) if inode.kind() == sluice_namespace::Kind::Symlink => nfsstat4::NFS4ERR_SYMLINK.into(),
        Ok(_) => nfsstat4::NFS4ERR_NOTDIR.into(),
        Err(error) => error,
    }
}
