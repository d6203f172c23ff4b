//! Finding names.

use std::pin::pin;

use sluice_kv::Transaction;

use crate::credential::{Credential, Want};
use crate::dirent::{self, Dirent};
use crate::error::FsError;
use crate::fetch;
use crate::inode::{Inode, Node};
use crate::keys::InodeKey;
use crate::name::Name;
use crate::{Namespace, join};

/// A name and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub entry: Dirent,
    pub inode: Inode,
}

impl Namespace {
    /// The inode that `name` means in `directory`: point reads of the directory, the entry and the inode.
    ///
    /// Errors: Stale, NotDirectory, Access (no search permission), NotFound.
    pub async fn lookup(
        &self,
        txn: &Transaction,
        directory: &InodeKey,
        name: &Name<'_>,
        who: &Credential,
    ) -> Result<Found, FsError> {
        let (parent, place) = pin!(join::both(
            fetch::directory(txn, directory),
            dirent::find(txn, &self.hash, directory.fileid, name),
        ))
        .await?;
        parent.owned().require(who, Want::EXECUTE)?;
        let entry = place.entry.ok_or(FsError::NotFound)?;
        let inode = pin!(fetch::inode(txn, &entry.inode, self.base())).await.map_err(missing_is_corrupt)?;
        Ok(Found { entry, inode })
    }

    /// As [`Self::lookup`], with the directory itself first, as it is in the same version: for who shows both.
    pub async fn lookup_with_directory(
        &self,
        txn: &Transaction,
        directory: &InodeKey,
        name: &Name<'_>,
        who: &Credential,
    ) -> Result<(Inode, Inode), FsError> {
        let parent = async {
            let record = fetch::directory(txn, directory).await?;
            let mut inode = fetch::simple(directory, record, self.base());
            fetch::complete(txn, &mut inode, self.base()).await?;
            Ok(inode)
        };
        let (parent, named) = pin!(join::both(parent, self.named(txn, directory, name))).await?;
        // What is not there is nobody's business who may not search.
        parent.record.owned().require(who, Want::EXECUTE)?;
        Ok((parent, named.ok_or(FsError::NotFound)?))
    }

    /// What two names mean in their directories, in one version: what RENAME looks for. Nothing is said of the second if there
    /// is nothing under the first, or if it may not be looked for.
    ///
    /// Errors: Stale, NotDirectory, Access (no search permission).
    pub async fn lookup_two(
        &self,
        txn: &Transaction,
        (from, old): (&InodeKey, &Name<'_>),
        (to, new): (&InodeKey, &Name<'_>),
        who: &Credential,
    ) -> Result<(Option<Inode>, Option<Inode>), FsError> {
        // Side by side, but each with a verdict of its own: the first one's counts.
        let first = async {
            let found = join::both(search(txn, from, who), self.named(txn, from, old)).await;
            Ok::<_, FsError>(found.map(|((), inode)| inode))
        };
        let second = async {
            if from == to {
                return Ok(self.named(txn, to, new).await);
            }
            let found = join::both(search(txn, to, who), self.named(txn, to, new)).await;
            Ok(found.map(|((), inode)| inode))
        };
        let (first, second) = pin!(join::both(first, second)).await?;
        match first? {
            None => Ok((None, None)),
            first => Ok((first, second?)),
        }
    }

    /// What a name means, whoever asks.
    async fn named(
        &self,
        txn: &Transaction,
        directory: &InodeKey,
        name: &Name<'_>,
    ) -> Result<Option<Inode>, FsError> {
        let place = pin!(dirent::find(txn, &self.hash, directory.fileid, name)).await?;
        let Some(entry) = place.entry else { return Ok(None) };
        pin!(fetch::inode(txn, &entry.inode, self.base())).await.map(Some).map_err(missing_is_corrupt)
    }

    /// The directory that `directory` is in; of the root, [`FsError::NotFound`].
    pub async fn lookup_parent(
        &self,
        txn: &Transaction,
        directory: &InodeKey,
        who: &Credential,
    ) -> Result<Inode, FsError> {
        let record = fetch::directory(txn, directory).await?;
        record.owned().require(who, Want::EXECUTE)?;
        match record.node {
            // RFC 8881 §18.14.3: LOOKUPP of the root of the server's tree is NFS4ERR_NOENT.
            Node::Directory(_) if *directory == InodeKey::ROOT => Err(FsError::NotFound),
            Node::Directory(d) => fetch::inode(txn, &d.parent, self.base()).await,
            _ => Err(FsError::NotDirectory),
        }
    }
}

/// Whether names may be looked for in a directory.
async fn search(txn: &Transaction, directory: &InodeKey, who: &Credential) -> Result<(), FsError> {
    fetch::directory(txn, directory).await?.owned().require(who, Want::EXECUTE)
}

/// An entry without its inode is not the client's fault.
pub(crate) fn missing_is_corrupt(error: FsError) -> FsError {
    match error {
        FsError::Stale => FsError::corrupt("directory entry without inode"),
        other => other,
    }
}
