//! How a directory's times, counts and change attribute move when its entries do.

use bytes::Bytes;
use sluice_env::Wall;
use sluice_kv::{AtomicOp, Transaction};

use crate::codec;
use crate::error::FsError;
use crate::fetch;
use crate::inode::{DirectoryState, Inode, InodeRecord, Kind, Node, STAMP_OFFSET};
use crate::keys::{self, DirectoryField, FileId, InodeKey};
use crate::pending::DirectoryChange;
use crate::{Namespace, Request};

/// How an operation updates the directories whose entries it changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectoryUpdate {
    /// Reads the state under conflict: change_info is atomic, and of two operations in one
    /// directory at the same time one starts over. For directories that are not contended.
    #[default]
    Exact,
    /// Writes stamp, time and counts without reading them: operations on different names of one
    /// directory do not meet, and change_info says that it is not atomic (RFC 8881 §3.3.3).
    Blind,
}

/// What an operation does to the counts of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) entries: i64,
    pub(crate) subdirectories: i64,
}

impl Delta {
    pub(crate) fn plus(kind: Kind) -> Self {
        Self { entries: 1, subdirectories: i64::from(kind == Kind::Directory) }
    }
    pub(crate) fn minus(kind: Kind) -> Self {
        Self { entries: -1, subdirectories: -i64::from(kind == Kind::Directory) }
    }
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            subdirectories: self.subdirectories + other.subdirectories,
        }
    }
}

impl Namespace {
    /// The directory's current change attribute, as of its record and the state already read.
    fn change_of(&self, record: &InodeRecord, state: &DirectoryState) -> u64 {
        self.base().wrapping_add(record.stamp.version().max(state.stamp.version()))
    }

    /// Applies `delta` to the directory with this record (read in this transaction).
    pub(crate) async fn update_directory(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        record: &InodeRecord,
        delta: Delta,
        request: &Request<'_>,
    ) -> Result<DirectoryChange, FsError> {
        let touched = touch_time(record, request.now);
        let directory = key.fileid;
        let stored = fetch::exact_state(txn, directory).await?;
        if request.directory == DirectoryUpdate::Blind && stored.split {
            update_blindly(txn, directory, delta, touched);
            return Ok(DirectoryChange { before: self.change_of(record, &stored), after: 0, atomic: false });
        }
        let state = if stored.split { fetch::state(txn, directory).await? } else { stored };
        let new = DirectoryState {
            touched: state.touched.max(touched),
            entries: state.entries.wrapping_add_signed(delta.entries),
            subdirectories: state.subdirectories.wrapping_add_signed(delta.subdirectories),
            // The first blind update prepares the way for the others.
            split: request.directory == DirectoryUpdate::Blind,
            ..state
        };
        if stored.split {
            clear_deltas(txn, directory);
        }
        txn.set_versionstamped_value(
            keys::directory(directory, DirectoryField::State),
            new.encode(),
            STAMP_OFFSET,
        );
        Ok(DirectoryChange { before: self.change_of(record, &state), after: 0, atomic: true })
    }

    /// What an operation that changed nothing in a directory says of it.
    pub(crate) async fn directory_unchanged(
        &self,
        txn: &Transaction,
        key: &InodeKey,
        record: &InodeRecord,
    ) -> Result<DirectoryChange, FsError> {
        let state = fetch::state(txn, key.fileid).await?;
        Ok(DirectoryChange::none(self.change_of(record, &state)))
    }

    /// Attributes of an inode: one point read, two for a directory.
    pub async fn getattr(&self, txn: &Transaction, key: &InodeKey) -> Result<Inode, FsError> {
        fetch::inode(txn, key, self.base()).await
    }
}

/// An update shows its own time even when somebody has just set another one explicitly.
fn touch_time(record: &InodeRecord, now: Wall) -> Wall {
    match &record.node {
        Node::Directory(d) => now.max(codec::from_nanos(codec::nanos(d.mtime_set).saturating_add(1))),
        _ => now,
    }
}

fn update_blindly(txn: &mut Transaction, d: FileId, delta: Delta, touched: Wall) {
    let stamp = keys::directory(d, DirectoryField::Stamp);
    txn.set_versionstamped_value(stamp, Bytes::from_static(&[0; 10]), 0);
    let time = Bytes::copy_from_slice(&codec::nanos(touched).to_le_bytes());
    txn.atomic(AtomicOp::Max, keys::directory(d, DirectoryField::Touched), time);
    if delta.entries != 0 {
        fetch::add(txn, keys::directory(d, DirectoryField::Entries), delta.entries);
    }
    if delta.subdirectories != 0 {
        fetch::add(txn, keys::directory(d, DirectoryField::Subdirectories), delta.subdirectories);
    }
}

fn clear_deltas(txn: &mut Transaction, d: FileId) {
    for field in [
        DirectoryField::Stamp,
        DirectoryField::Touched,
        DirectoryField::Entries,
        DirectoryField::Subdirectories,
    ] {
        txn.clear(keys::directory(d, field));
    }
}
