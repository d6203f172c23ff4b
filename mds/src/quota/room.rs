//! Room for what an operation is about to add. RFC 8881 §15.1.8.2: NFS4ERR_DQUOT.

use std::sync::Arc;

use sluice_namespace::{Charged, Create, Credential, FsError, Inode, SetAttr};

use super::{Amount, Pass};
use crate::server::Mds;

/// For a new file, directory or whatever else.
///
/// # Errors
/// [`FsError::Quota`], unless the name is taken: then nothing is made, and that is the answer.
pub(crate) async fn to_create(
    mds: &Arc<Mds>,
    who: &Credential,
    create: &Create<'_>,
) -> Result<Option<Pass>, FsError> {
    if !mds.quotas.any() {
        return Ok(None);
    }
    // Not everybody's future shall have room for it.
    Box::pin(limited(mds, who, create)).await
}

/// Where somebody has limits.
async fn limited(mds: &Arc<Mds>, who: &Credential, create: &Create<'_>) -> Result<Option<Pass>, FsError> {
    let (namespace, directory) = (&mds.namespace, create.directory);
    let parent = mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &directory).await })).await?;
    let charged = create.charged(&parent.record, who);
    match mds.find_room(who, charged.subjects(), Amount::new(1, charged.bytes)).await? {
        Ok(pass) => Ok(pass),
        Err(subject) => {
            let found = mds
                .read(|txn| {
                    Box::pin(async move { namespace.lookup(&txn, &directory, &create.name, who).await })
                })
                .await;
            match found {
                Err(FsError::NotFound) => Err(mds.quotas.refusals.refuse(subject)),
                // It says itself what is wrong.
                _ => Ok(None),
            }
        }
    }
}

/// For a file that is to be so large.
///
/// # Errors
/// [`FsError::Quota`].
pub(crate) async fn to_grow(
    mds: &Arc<Mds>,
    who: &Credential,
    inode: &Inode,
    size: u64,
) -> Result<Option<Pass>, FsError> {
    let more = size.saturating_sub(inode.size());
    mds.make_room(who, &Charged::of(&inode.record), Amount::new(0, more)).await
}

/// For a file that is given to somebody else.
///
/// # Errors
/// [`FsError::Quota`].
pub(crate) async fn to_give(
    mds: &Arc<Mds>,
    who: &Credential,
    inode: &Inode,
    (set, size): (&SetAttr, u64),
) -> Result<Option<Pass>, FsError> {
    let mut before = Charged::of(&inode.record);
    // It grows in the same breath.
    before.bytes = before.bytes.max(size);
    let after = Charged { uid: set.uid.unwrap_or(before.uid), gid: set.gid.unwrap_or(before.gid), ..before };
    to_move(mds, who, before, after).await
}

/// For a file that moves into the directory `into`: into its tree, if it has one.
///
/// # Errors
/// [`FsError::Quota`].
pub(crate) async fn to_rename(
    mds: &Arc<Mds>,
    who: &Credential,
    moved: &Inode,
    into: &Inode,
) -> Result<Option<Pass>, FsError> {
    // A directory does not change trees.
    if moved.is_directory() {
        return Ok(None);
    }
    let before = Charged::of(&moved.record);
    to_move(mds, who, before, Charged { tree: into.record.tree, ..before }).await
}

async fn to_move(
    mds: &Arc<Mds>,
    who: &Credential,
    before: Charged,
    after: Charged,
) -> Result<Option<Pass>, FsError> {
    let new = after.subjects().filter(|subject| !before.subjects().any(|old| old == *subject));
    mds.make_room_for(who, new, Amount::new(1, before.bytes)).await
}
