//! What happens to an inode that loses a name.

use std::pin::pin;

use sluice_env::Wall;
use sluice_kv::Transaction;

use crate::error::FsError;
use crate::inode::{Inode, InodeRecord, Kind, Node};
use crate::keys::{self, InodeKey, Statistic};
use crate::pending::Settle;
use crate::quota::{self, Charged};
use crate::reclaim::{self, Garbage};
use crate::{Namespace, fetch, inline, layout, size};

/// An inode that lost a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlinked {
    /// It has other names.
    Linked(Inode),
    /// It has no name, and stays for those who have it open until [`crate::Namespace::reclaim_orphan`].
    Orphaned(Inode),
    /// It is gone; its data files, if it had any, are in the garbage queue.
    Removed { key: InodeKey, kind: Kind, garbage: Option<Garbage> },
}

impl Settle for Unlinked {
    fn settle(&mut self, change: u64) {
        match self {
            Self::Linked(inode) | Self::Orphaned(inode) => inode.settle(change),
            Self::Removed { .. } => {}
        }
    }
}

impl Namespace {
    /// Takes one name from what is not a directory.
    pub(crate) async fn drop_link(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        mut record: InodeRecord,
        open: bool,
        now: Wall,
    ) -> Result<Unlinked, FsError> {
        let left = record.nlink.saturating_sub(1);
        if left == 0 && !open {
            let garbage = pin!(self.erase(txn, key, &record)).await?;
            return Ok(Unlinked::Removed { key: *key, kind: record.kind(), garbage });
        }
        record.nlink = left;
        record.ctime = now;
        fetch::put(txn, key, &record);
        let inode = Inode { key: *key, record, directory: None, change: 0 };
        if left > 0 {
            return Ok(Unlinked::Linked(inode));
        }
        reclaim::put_orphan(txn, key);
        Ok(Unlinked::Orphaned(inode))
    }

    /// Erases an inode and every row that hangs on it; its data files go to the garbage queue.
    pub(crate) async fn erase(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        record: &InodeRecord,
    ) -> Result<Option<Garbage>, FsError> {
        pin!(self.charge(txn, key, Some(Charged::of(record)), None)).await?;
        txn.clear(keys::inode(key));
        fetch::count(txn, Statistic::Files, key.fileid, -1);
        if record.xattrs {
            txn.clear_range(&keys::xattrs(key.fileid));
            txn.clear_range(&keys::xattr_values(key.fileid));
        }
        Ok(match &record.node {
            Node::File(file) => {
                fetch::count(txn, Statistic::Bytes, key.fileid, -size::signed(file.space_used));
                if file.inline.is_some() {
                    inline::rows::clear(txn, key.fileid, file.size);
                }
                layout::clear_rows(txn, key, file.layout.as_ref());
                file.layout.as_ref().map(|layout| reclaim::put_garbage(txn, key, layout))
            }
            Node::Directory(_) => {
                txn.clear_range(&keys::directory_fields(key.fileid));
                if record.tree == Some(key.fileid) {
                    quota::clear_tree(txn, key.fileid);
                }
                None
            }
            _ => None,
        })
    }
}
