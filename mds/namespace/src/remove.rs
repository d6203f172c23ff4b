//! Removing names: files and empty directories.

use std::pin::pin;

use sluice_kv::Transaction;

use crate::credential::Want;
use crate::directory::{Delta, Parent};
use crate::dirent::{self, Dirent};
use crate::error::FsError;
use crate::inode::{InodeRecord, Kind};
use crate::keys::{self, InodeKey};
use crate::lookup::missing_is_corrupt;
use crate::name::Name;
use crate::pending::{DirectoryChange, Pending, settle_fields};
use crate::unlink::Unlinked;
use crate::{Namespace, Request, fetch, join};

/// A removal.
#[derive(Clone, Copy, Debug)]
pub struct Remove<'a> {
    pub directory: InodeKey,
    pub name: Name<'a>,
    /// What the caller found under the name and prepared its state for; [`FsError::NameMoved`] if
    /// it is another by now.
    pub expect: Option<InodeKey>,
    /// Somebody has it open: losing its last name makes it an orphan.
    pub open: bool,
}

/// What a removal led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    pub directory: DirectoryChange,
    pub unlinked: Unlinked,
}
settle_fields!(Removed: directory, unlinked);

impl Namespace {
    /// Removes a name, and the inode if it was the last. Bounded: whatever the directory or the
    /// file holds, it touches a handful of keys.
    ///
    /// Errors: Stale, NotDirectory, Access, NotFound, NameMoved, NotOwner (sticky), NotEmpty.
    pub async fn remove(
        &self,
        txn: &mut Transaction,
        remove: &Remove<'_>,
        request: &Request<'_>,
    ) -> Result<Pending<Removed>, FsError> {
        let directory = &remove.directory;
        let (parent, place) = pin!(join::both(
            Parent::read(txn, directory),
            dirent::find(txn, &self.hash, directory.fileid, &remove.name),
        ))
        .await?;
        parent.record.owned().require(request.who, Want::EXECUTE)?;
        let entry = place.entry.clone().ok_or(FsError::NotFound)?;
        expect(remove.expect, &entry)?;
        let record = pin!(fetch::record(txn, &entry.inode)).await.map_err(missing_is_corrupt)?;
        parent.record.owned().require_remove(&record.owned(), request.who)?;
        if record.kind() == Kind::Directory {
            Box::pin(require_empty(txn, &entry.inode)).await?;
        }
        place.remove(txn)?;
        let unlinked = pin!(self.drop_name(txn, &entry.inode, record, remove.open, request)).await?;
        let delta = Delta::minus(entry.kind);
        let directory = pin!(self.update_directory(txn, &parent, delta, request)).await?;
        Ok(Pending::new(Removed { directory, unlinked }, self.base()))
    }
}

/// The name must mean what the caller thinks, if it thinks something.
pub(crate) fn expect(expected: Option<InodeKey>, found: &Dirent) -> Result<(), FsError> {
    match expected {
        Some(inode) if inode != found.inode => Err(FsError::NameMoved),
        _ => Ok(()),
    }
}

/// An empty range is read under conflict: an entry made at the same time makes one of the two start over.
pub(crate) async fn require_empty(txn: &Transaction, directory: &InodeKey) -> Result<(), FsError> {
    let found = txn.range(&keys::all_dirents(directory.fileid), 1, false).await?;
    if found.is_empty() { Ok(()) } else { Err(FsError::NotEmpty) }
}

impl Namespace {
    /// A directory (which must be empty) goes with its only name, anything else with its last.
    pub(crate) async fn drop_name(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        record: InodeRecord,
        open: bool,
        request: &Request<'_>,
    ) -> Result<Unlinked, FsError> {
        if record.kind() == Kind::Directory {
            pin!(self.erase(txn, key, &record)).await?;
            return Ok(Unlinked::Removed { key: *key, kind: Kind::Directory, garbage: None });
        }
        pin!(self.drop_link(txn, key, record, open, request.now)).await
    }
}
