//! Renaming files and directories, within a directory and across.

use std::pin::pin;

use sluice_kv::Transaction;

use crate::credential::Want;
use crate::directory::{Delta, Parent};
use crate::dirent::{self, Dirent, Place};
use crate::error::FsError;
use crate::inode::{InodeRecord, Kind, Node};
use crate::keys::{FileId, InodeKey};
use crate::lookup::missing_is_corrupt;
use crate::name::Name;
use crate::pending::{DirectoryChange, Pending, settle_fields};
use crate::quota::{self, Charged};
use crate::remove::{expect, require_empty};
use crate::unlink::Unlinked;
use crate::{Namespace, Request, fetch, join};

/// A rename.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    pub from: InodeKey,
    pub from_name: Name<'a>,
    pub to: InodeKey,
    pub to_name: Name<'a>,
    /// What the caller found under the old name.
    pub expect_source: Option<InodeKey>,
    /// What the caller found under the new name: `Some(None)` for nothing, `None` for "did not look".
    pub expect_target: Option<Option<InodeKey>>,
    /// Somebody has the target open.
    pub target_open: bool,
}

/// What a rename led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    pub source_directory: DirectoryChange,
    pub target_directory: DirectoryChange,
    pub moved: InodeKey,
    /// What the new name meant before.
    pub replaced: Option<Unlinked>,
}
settle_fields!(Renamed: source_directory, target_directory, replaced);

/// One of the two directories, as read.
struct Side {
    parent: Parent,
    place: Place,
}

/// Deepest path that a cycle check climbs; what is deeper is refused.
const MAX_DEPTH: usize = 4096;

impl Namespace {
    /// Renames; a target that exists is replaced if it is of the same sort and, being a directory,
    /// empty. Two names of one inode: nothing happens (RFC 8881 §18.26.3).
    ///
    /// Errors: Stale, NotDirectory, Access, NotFound, NameMoved, NotOwner (sticky), Exists (of
    /// another sort), NotEmpty, Invalid (into itself), CrossDevice (into another quota tree), NoSpace.
    pub async fn rename(
        &self,
        txn: &mut Transaction,
        rename: &Rename<'_>,
        request: &Request<'_>,
    ) -> Result<Pending<Renamed>, FsError> {
        let (source, target) = pin!(self.sides(txn, rename, request)).await?;
        // Something is added there, or nothing happens; whether an entry may go, its own list has a say in.
        target.parent.record.owned().require_change(request.who)?;
        let Some(entry) = source.place.entry.clone() else {
            source.parent.record.owned().require_change(request.who)?;
            return Err(FsError::NotFound);
        };
        expect(rename.expect_source, &entry)?;
        expect_target(rename, &target)?;
        if target.place.entry.as_ref().is_some_and(|e| e.inode == entry.inode) {
            source.parent.record.owned().require_change(request.who)?;
            return Box::pin(self.nothing(txn, (&source, &target), &entry, request)).await;
        }
        let moved = pin!(fetch::record(txn, &entry.inode)).await.map_err(missing_is_corrupt)?;
        source.parent.record.owned().require_remove(&moved.owned(), request.who)?;
        target.parent.record.owned().require_add(request.who, entry.kind)?;
        let replaced = pin!(accept_target(txn, &target, entry.kind, request)).await?;
        let across = source.parent.key != target.parent.key;
        if across && entry.kind == Kind::Directory {
            // The entry `..` changes, which takes write permission on the directory itself.
            moved.owned().require(request.who, Want::WRITE)?;
            let above = Box::pin(require_outside(txn, &entry.inode, &target)).await?;
            Box::pin(self.require_no_border(txn, &source, &target, above)).await?;
        }
        pin!(self.apply(txn, rename, request, source, target, (entry, moved), replaced)).await
    }

    /// A directory does not move to where the walk of a tree has yet to arrive, but within that part of it: there may be a
    /// tree in it, and trees do not nest. `above` is the tree that the target is in, or will be.
    async fn require_no_border(
        &self,
        txn: &Transaction,
        source: &Side,
        target: &Side,
        above: Option<FileId>,
    ) -> Result<(), FsError> {
        let arrived = target.parent.record.tree.is_some();
        if arrived || above.is_none() || self.tree_above(txn, &source.parent.key).await? == above {
            return Ok(());
        }
        Err(FsError::CrossDevice)
    }

    /// Both directories, of which there is but one as a rule.
    async fn sides(
        &self,
        txn: &Transaction,
        rename: &Rename<'_>,
        request: &Request<'_>,
    ) -> Result<(Side, Side), FsError> {
        let source = self.side(txn, rename.from, &rename.from_name, request);
        if rename.from == rename.to {
            let target = dirent::find(txn, &self.hash, rename.to.fileid, &rename.to_name);
            let (source, place) = pin!(join::both(source, target)).await?;
            let target = Side { parent: source.parent.clone(), place };
            return Ok((source, target));
        }
        pin!(join::both(source, self.side(txn, rename.to, &rename.to_name, request))).await
    }

    async fn side(
        &self,
        txn: &Transaction,
        key: InodeKey,
        name: &Name<'_>,
        request: &Request<'_>,
    ) -> Result<Side, FsError> {
        let read = join::both(Parent::read(txn, &key), dirent::find(txn, &self.hash, key.fileid, name));
        let (parent, place) = pin!(read).await?;
        parent.record.owned().require(request.who, Want::EXECUTE)?;
        Ok(Side { parent, place })
    }

    async fn nothing(
        &self,
        txn: &mut Transaction,
        (source, target): (&Side, &Side),
        entry: &Dirent,
        request: &Request<'_>,
    ) -> Result<Pending<Renamed>, FsError> {
        let renamed = Renamed {
            source_directory: self.directory_unchanged(txn, &source.parent, request).await?,
            target_directory: self.directory_unchanged(txn, &target.parent, request).await?,
            moved: entry.inode,
            replaced: None,
        };
        Ok(Pending::new(renamed, self.base()))
    }

    #[allow(clippy::too_many_arguments, reason = "all of them were read in this transaction")]
    async fn apply(
        &self,
        txn: &mut Transaction,
        rename: &Rename<'_>,
        request: &Request<'_>,
        source: Side,
        target: Side,
        (entry, mut moved): (Dirent, InodeRecord),
        replaced: Option<(Dirent, InodeRecord)>,
    ) -> Result<Pending<Renamed>, FsError> {
        let same = source.parent.key == target.parent.key;
        let (from, into) = (&source.parent.record, &target.parent.record);
        let tree = quota::moved_to((&entry.inode, &moved), from, into)?;
        let shares = source.place.shares_hash(&target.place);
        source.place.remove(txn)?;
        // Where the two names share a hash, where the new one goes depends on the old one being gone.
        let place = if same && shares {
            Box::pin(dirent::find(txn, &self.hash, target.parent.key.fileid, &rename.to_name)).await?
        } else {
            target.place
        };
        let minus = replaced.as_ref().map_or_else(Delta::default, |(old, _)| Delta::minus(old.kind));
        let replaced = match replaced {
            None => {
                place.insert(txn, &rename.to_name, entry.kind, entry.inode)?;
                None
            }
            Some((old, record)) => {
                place.replace(txn, entry.kind, entry.inode)?;
                Some(Box::pin(self.drop_name(txn, &old.inode, record, rename.target_open, request)).await?)
            }
        };
        let before = Charged::of(&moved);
        moved.tree = tree;
        pin!(self.charge(txn, &entry.inode, Some(before), Some(Charged::of(&moved)))).await?;
        moved.ctime = request.now;
        if let Node::Directory(node) = &mut moved.node {
            node.parent = target.parent.key;
        }
        fetch::put(txn, &entry.inode, &moved);
        let (out, into) = (Delta::minus(entry.kind), Delta::plus(entry.kind).and(minus));
        let (source_directory, target_directory) = if same {
            let change = pin!(self.update_directory(txn, &source.parent, out.and(into), request)).await?;
            (change, change)
        } else {
            let left = pin!(self.update_directory(txn, &source.parent, out, request)).await?;
            (left, pin!(self.update_directory(txn, &target.parent, into, request)).await?)
        };
        let renamed = Renamed { source_directory, target_directory, moved: entry.inode, replaced };
        Ok(Pending::new(renamed, self.base()))
    }
}

fn expect_target(rename: &Rename<'_>, target: &Side) -> Result<(), FsError> {
    match (rename.expect_target, &target.place.entry) {
        (None, _) | (Some(None), None) => Ok(()),
        (Some(Some(inode)), Some(found)) if found.inode == inode => Ok(()),
        _ => Err(FsError::NameMoved),
    }
}

/// Whether the target may be replaced by something of this kind.
async fn accept_target(
    txn: &Transaction,
    target: &Side,
    kind: Kind,
    request: &Request<'_>,
) -> Result<Option<(Dirent, InodeRecord)>, FsError> {
    let Some(old) = target.place.entry.clone() else { return Ok(None) };
    let record = pin!(fetch::record(txn, &old.inode)).await.map_err(missing_is_corrupt)?;
    target.parent.record.owned().require_remove(&record.owned(), request.who)?;
    // RFC 8881 §18.26.3: both directories or neither, otherwise NFS4ERR_EXIST.
    if (kind == Kind::Directory) != (old.kind == Kind::Directory) {
        return Err(FsError::Exists);
    }
    if old.kind == Kind::Directory {
        require_empty(txn, &old.inode).await?;
    }
    Ok(Some((old, record)))
}

/// The target must not be inside the directory moved. Every ancestor is read under conflict: of two
/// renames that together would make a cycle, one starts over. Returns the first quota tree on the way up.
async fn require_outside(
    txn: &Transaction,
    moved: &InodeKey,
    target: &Side,
) -> Result<Option<FileId>, FsError> {
    let mut at = target.parent.key;
    let mut tree = None;
    let mut record = target.parent.record.clone();
    for _ in 0..MAX_DEPTH {
        if at == *moved {
            return Err(FsError::Invalid);
        }
        tree = tree.or(record.tree);
        if at == InodeKey::ROOT {
            return Ok(tree);
        }
        let Node::Directory(node) = &record.node else { return Err(FsError::corrupt("parent")) };
        at = node.parent;
        record = fetch::find_record(txn, &at).await?.ok_or(FsError::corrupt("parent is missing"))?;
    }
    Err(FsError::NameTooLong)
}
