//! Trees: a directory and all below it, charged together.
//!
//! Every inode says which tree it is in; what is made takes it from its directory. A directory that was there
//! before it became a tree is walked from the top, in bounded transactions while it is in use: a directory is
//! put into the tree before its entries are read, so that what is made there meanwhile is in it already, and
//! a directory does not move between one that is and one that is not ([`crate::FsError::CrossDevice`]). So
//! nothing gets behind the walk.

use bytes::Bytes;
use sluice_kv::Transaction;

use super::limits::{self, Limits, Quota, TreeState};
use super::{Charged, Subject};
use crate::codec::{Reader, Writer};
use crate::dirent::Stored;
use crate::error::FsError;
use crate::inode::{InodeRecord, Kind, Node};
use crate::keys::{self, Cookie, FileId, InodeKey};
use crate::{Namespace, fetch};

/// What a step of a walk led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// There is more to do.
    Some,
    /// Everything is as the tree's state wants it.
    All,
}

/// Deepest path that is climbed.
const MAX_DEPTH: usize = 4096;

impl Namespace {
    /// Makes a directory a tree, or changes the limits of one. What is in it follows by [`Self::walk_some`].
    ///
    /// Errors: Stale, NotDirectory, Invalid (in another tree), Busy (it is being taken apart).
    pub async fn set_tree(
        &self,
        txn: &mut Transaction,
        root: &InodeKey,
        limits: Limits,
    ) -> Result<TreeState, FsError> {
        let record = fetch::directory(txn, root).await?;
        let subject = Subject::Tree(root.fileid);
        if let Some(quota) = self.quota(txn, subject).await? {
            let state = quota.tree.map_or(TreeState::Whole, |tree| tree.1);
            if state == TreeState::Emptying {
                return Err(FsError::Busy);
            }
            limits::put(txn, &Quota { limits, ..quota });
            return Ok(state);
        }
        // RFC 8881 knows one quota of each kind for an object; of two trees it could show one.
        if self.tree_above(txn, root).await?.is_some() {
            return Err(FsError::Invalid);
        }
        limits::put(txn, &Quota { subject, limits, tree: Some((*root, TreeState::Filling)) });
        self.tag(txn, root, record, Some(root.fileid)).await?;
        Ok(TreeState::Filling)
    }

    /// Begins to take a tree apart; [`Self::walk_some`] goes on with it.
    ///
    /// Errors: NotFound.
    pub async fn remove_tree(&self, txn: &mut Transaction, tree: FileId) -> Result<(), FsError> {
        let quota = self.quota(txn, Subject::Tree(tree)).await?.ok_or(FsError::NotFound)?;
        let (root, state) = quota.tree.ok_or(FsError::corrupt("quota of a tree"))?;
        if state == TreeState::Emptying {
            return Ok(());
        }
        txn.clear_range(&keys::tree_walks(tree));
        let limits = Limits { grace: quota.limits.grace, ..Limits::default() };
        limits::put(txn, &Quota { limits, tree: Some((root, TreeState::Emptying)), ..quota });
        let Some(record) = fetch::find_record(txn, &root).await? else {
            limits::clear_tree(txn, tree);
            return Ok(());
        };
        self.tag(txn, &root, record, None).await
    }

    /// The next directory of a tree, up to `limit` entries of it.
    pub async fn walk_some(
        &self,
        txn: &mut Transaction,
        tree: FileId,
        limit: usize,
    ) -> Result<Walked, FsError> {
        let Some(quota) = self.quota(txn, Subject::Tree(tree)).await? else { return Ok(Walked::All) };
        let (root, state) = quota.tree.ok_or(FsError::corrupt("quota of a tree"))?;
        let (from, to) = match state {
            TreeState::Whole => return Ok(Walked::All),
            TreeState::Filling => (None, Some(tree)),
            TreeState::Emptying => (Some(tree), None),
        };
        let next = txn.range(&keys::tree_walks(tree), 1, false).await?.pop();
        let Some((row, value)) = next else {
            match state {
                TreeState::Emptying => limits::clear_tree(txn, tree),
                _ => limits::put(txn, &Quota { tree: Some((root, TreeState::Whole)), ..quota }),
            }
            return Ok(Walked::All);
        };
        let (directory, after) = decode_walk(value)?;
        let places = Cookie(after.0.saturating_add(1))..=Cookie(u64::MAX);
        // A directory that is gone has no entries.
        let found = txn.range(&keys::dirents(directory.fileid, &places), limit, false).await?;
        let mut last = after;
        for (key, value) in &found {
            let cookie = keys::dirent_of(key)?.1;
            last = cookie;
            let Some(entry) = Stored::decode(directory.fileid, cookie, value.clone())?.entry else {
                continue;
            };
            let Some(record) = fetch::find_record(txn, &entry.inode).await? else { continue };
            if record.tree == from {
                self.tag(txn, &entry.inode, record, to).await?;
            } else if let (TreeState::Filling, Some(other)) = (state, record.tree)
                && other != tree
                && self.is_emptying(txn, other).await?
            {
                // The tree around this one is being taken apart, and that walk has not come here yet. It would find
                // nothing of its own any more; what is below still is, and is left to whichever walk comes first.
                if record.kind() == Kind::Directory {
                    let row = encode_walk(&entry.inode, Cookie(0));
                    txn.set(keys::tree_walk(other, entry.inode.fileid), row);
                }
                self.tag(txn, &entry.inode, record, to).await?;
            }
        }
        if found.len() < limit {
            txn.clear(row);
        } else {
            txn.set(row, encode_walk(&directory, last));
        }
        Ok(Walked::Some)
    }

    async fn is_emptying(&self, txn: &Transaction, tree: FileId) -> Result<bool, FsError> {
        let quota = self.quota(txn, Subject::Tree(tree)).await?;
        Ok(quota.and_then(|quota| quota.tree).is_some_and(|(_, state)| state == TreeState::Emptying))
    }

    /// What a file says of a tree that was taken apart is of names that it had there: the walk found only those that were left.
    pub(crate) async fn living_tree(
        &self,
        txn: &Transaction,
        tree: Option<FileId>,
    ) -> Result<Option<FileId>, FsError> {
        let Some(root) = tree else { return Ok(None) };
        Ok(self.quota(txn, Subject::Tree(root)).await?.and(tree))
    }

    /// The tree that a directory is in, or will be in when the walk arrives.
    pub async fn tree_above(
        &self,
        txn: &Transaction,
        directory: &InodeKey,
    ) -> Result<Option<FileId>, FsError> {
        let mut at = *directory;
        for _ in 0..MAX_DEPTH {
            let record = fetch::record(txn, &at).await?;
            let Node::Directory(node) = &record.node else { return Err(FsError::NotDirectory) };
            if record.tree.is_some() || at == InodeKey::ROOT {
                return Ok(record.tree);
            }
            at = node.parent;
        }
        Err(FsError::NameTooLong)
    }

    /// Whether `directory` is `above` or below it.
    pub async fn is_within(
        &self,
        txn: &Transaction,
        directory: &InodeKey,
        above: &InodeKey,
    ) -> Result<bool, FsError> {
        let mut at = *directory;
        for _ in 0..MAX_DEPTH {
            if at == *above {
                return Ok(true);
            }
            if at == InodeKey::ROOT {
                return Ok(false);
            }
            let Node::Directory(node) = fetch::record(txn, &at).await?.node else {
                return Err(FsError::NotDirectory);
            };
            at = node.parent;
        }
        Err(FsError::NameTooLong)
    }

    /// The path of a directory, with a slash before each name; `None` when it has none any more.
    pub async fn path_of(&self, txn: &Transaction, directory: &InodeKey) -> Result<Option<Bytes>, FsError> {
        let (mut names, mut at) = (Vec::new(), *directory);
        for _ in 0..MAX_DEPTH {
            if at == InodeKey::ROOT {
                names.reverse();
                let path: Vec<u8> =
                    names.into_iter().flat_map(|name: Bytes| [&b"/"[..], &name].concat()).collect();
                return Ok(Some(if path.is_empty() { Bytes::from_static(b"/") } else { path.into() }));
            }
            let Some(record) = fetch::find_record(txn, &at).await? else { return Ok(None) };
            let Node::Directory(node) = &record.node else { return Err(FsError::NotDirectory) };
            let Some(name) = name_in(txn, &node.parent, &at).await? else { return Ok(None) };
            names.push(name);
            at = node.parent;
        }
        Ok(None)
    }

    /// Puts one inode into a tree or takes it out; the entries of a directory follow later.
    async fn tag(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        mut record: InodeRecord,
        to: Option<FileId>,
    ) -> Result<(), FsError> {
        let tree = to.or(record.tree).ok_or(FsError::corrupt("walk of a tree"))?;
        let before = Charged::of(&record);
        record.tree = to;
        self.charge(txn, key, Some(before), Some(Charged::of(&record))).await?;
        fetch::put_quietly(txn, key, &record);
        if record.kind() == Kind::Directory {
            txn.set(keys::tree_walk(tree, key.fileid), encode_walk(key, Cookie(0)));
        }
        Ok(())
    }
}

/// What an inode is called in a directory.
async fn name_in(
    txn: &Transaction,
    directory: &InodeKey,
    inode: &InodeKey,
) -> Result<Option<Bytes>, FsError> {
    let named = |cookie, value| -> Result<Option<Bytes>, FsError> {
        let entry = Stored::decode(directory.fileid, cookie, value)?.entry;
        Ok(entry.filter(|entry| entry.inode == *inode).map(|entry| entry.name))
    };
    // Where it was made, mostly.
    if inode.home == directory.fileid
        && let Some(value) = txn.snapshot_get(&keys::dirent(directory.fileid, inode.cookie)).await?
        && let Some(name) = named(inode.cookie, value)?
    {
        return Ok(Some(name));
    }
    let mut range = keys::all_dirents(directory.fileid);
    loop {
        let page = txn.snapshot_range(&range, 1_000, false).await?;
        let Some((last, _)) = page.last() else { return Ok(None) };
        range = keys::after(last, &range);
        for (key, value) in page {
            if let Some(name) = named(keys::dirent_of(&key)?.1, value)? {
                return Ok(Some(name));
            }
        }
    }
}

/// Which tree an inode is in that gets its name in `into` and had it in `from` before.
///
/// # Errors
/// CrossDevice: a directory would change trees, or a file that has other names.
pub(crate) fn moved_to(
    moved: (&InodeKey, &InodeRecord),
    from: &InodeRecord,
    into: &InodeRecord,
) -> Result<Option<FileId>, FsError> {
    let (key, record) = moved;
    if record.kind() == Kind::Directory {
        let topmost = record.tree == Some(key.fileid);
        // As in, while a walk is under way, not all is in the tree that will be.
        let counted_in = if topmost { from.tree } else { record.tree };
        return if counted_in == into.tree { Ok(record.tree) } else { Err(FsError::CrossDevice) };
    }
    if from.tree != into.tree && record.nlink > 1 {
        return Err(FsError::CrossDevice);
    }
    Ok(into.tree)
}

fn encode_walk(directory: &InodeKey, after: Cookie) -> Bytes {
    let mut w = Writer::default();
    w.u8(1);
    directory.encode(&mut w);
    w.u64(after.0).finish()
}

fn decode_walk(value: Bytes) -> Result<(InodeKey, Cookie), FsError> {
    let mut r = Reader::new("walk of a tree", value);
    r.schema(1)?;
    let walk = (InodeKey::decode(&mut r)?, Cookie(r.u64()?));
    r.finish()?;
    Ok(walk)
}
