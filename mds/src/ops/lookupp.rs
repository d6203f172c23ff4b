//! LOOKUPP. RFC 8881 §18.14.

use sluice_namespace::{FileHandle, FsError, Inode, InodeKey};
use sluice_xdr::nfs4::{LOOKUPP4res, nfsstat4};

use super::lookup::not_a_directory;
use crate::compound::{Context, OpError, OpResult};
use crate::exports::Place;

/// Directories between an inode and the root of its export at most.
const DEPTH: usize = 1024;

pub(crate) async fn lookupp(cx: &mut Context) -> OpResult<LOOKUPP4res> {
    up(cx).await?;
    match cx.refused() {
        Some(status) => Err(status.into()),
        None => Ok(LOOKUPP4res { status: nfsstat4::NFS4_OK }),
    }
}

/// To the directory above, whether or not the caller's flavour is good there.
///
/// # Errors
/// NOENT: there is none. STALE, NOTDIR, ACCESS, and what the store says.
pub(super) async fn up(cx: &mut Context) -> Result<(), OpError> {
    let FileHandle { export, inode: directory } = cx.current()?;
    if let Some(key) = cx.pseudo() {
        cx.go(Place::Pseudo(cx.exports.parent(&key).ok_or(nfsstat4::NFS4ERR_NOENT)?))?;
    } else if export == FileHandle::ROOT_EXPORT {
        let parent = parent(cx, directory).await?;
        cx.set_current_known(parent);
    } else if cx.exports.get(export).is_some_and(|export| export.root == directory) {
        out_of_export(cx, export, directory).await?;
    } else {
        let parent = parent(cx, directory).await?;
        within(cx, export, &parent).await?;
        cx.set_current_known(parent);
    }
    Ok(())
}

async fn parent(cx: &mut Context, directory: InodeKey) -> Result<Inode, OpError> {
    let (namespace, who) = (&cx.server.namespace, &cx.who);
    let parent = cx
        .server
        .read(|txn| Box::pin(async move { namespace.lookup_parent(&txn, &directory, who).await }))
        .await;
    match parent {
        Err(FsError::NotDirectory) => Err(not_a_directory(cx).await),
        other => Ok(other?),
    }
}

/// §18.14.3: out of the root of a file system leads to the directory that it is in: in the export around it that the
/// caller may use, or else in one that only leads to exports.
async fn out_of_export(cx: &mut Context, export: u32, root: InodeKey) -> Result<(), OpError> {
    match cx.exports.around(export, &cx.from) {
        Some(outer) => {
            let parent = parent(cx, root).await?;
            // By its path it lies in that one; a directory on the way there may have been moved elsewhere.
            within(cx, outer, &parent).await?;
            cx.set_current(FileHandle { export: outer, inode: parent.key });
            Ok(())
        }
        None => {
            let above = cx.exports.parent_of_export(export).ok_or(nfsstat4::NFS4ERR_NOENT)?;
            Ok(cx.go(Place::Pseudo(above))?)
        }
    }
}

/// A directory that was moved out of the export is no way out of it.
async fn within(cx: &Context, export: u32, parent: &Inode) -> Result<(), OpError> {
    let root = cx.exports.get(export).ok_or(nfsstat4::NFS4ERR_STALE)?.root;
    let (namespace, first) = (&cx.server.namespace, parent.clone());
    let inside = cx
        .server
        .read(|txn| {
            let mut at = first.clone();
            Box::pin(async move {
                for _ in 0..DEPTH {
                    match at.directory_node() {
                        _ if at.key == root => return Ok(true),
                        Some(node) if at.key != InodeKey::ROOT => {
                            at = namespace.getattr(&txn, &node.parent).await?;
                        }
                        _ => break,
                    }
                }
                Ok(false)
            })
        })
        .await?;
    if inside { Ok(()) } else { Err(nfsstat4::NFS4ERR_STALE.into()) }
}
