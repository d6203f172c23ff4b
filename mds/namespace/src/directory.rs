//! How a directory's times, counts and change attribute move when its entries do.

use bytes::Bytes;
use sluice_env::Wall;
use sluice_kv::{AtomicOp, Database, Transaction};

use crate::codec;
use crate::data_file::LayoutPolicy;
use crate::error::FsError;
use crate::fetch;
use crate::inode::{DirectoryState, Inode, InodeRecord, Kind, Node, STAMP_OFFSET};
use crate::keys::{self, DirectoryField, FileId, InodeKey};
use crate::pending::DirectoryChange;
use crate::{Namespace, Request, join};

/// How an operation updates the directories whose entries it changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectoryUpdate {
    /// Blind while blind updates keep coming, exact otherwise: for the first attempt of an operation.
    /// A directory becomes contended by [`Self::Blind`] and stops being so by a second of rest.
    #[default]
    Adaptive,
    /// Reads the state under conflict: change_info is atomic, and of two operations in one
    /// directory at the same time one starts over.
    Exact,
    /// Writes stamp, time and counts without reading them: operations on different names of one
    /// directory do not meet, and change_info says that it is not atomic (RFC 8881 §3.3.3). For an
    /// attempt after a conflict.
    Blind,
}

/// Nanoseconds without a blind update after which a directory is no longer contended.
const REST: u64 = 1_000_000_000;

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

/// A directory whose entries an operation changes, as read in its transaction.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    pub(crate) key: InodeKey,
    pub(crate) record: InodeRecord,
    /// As of the last exact update.
    exact: DirectoryState,
}

impl Parent {
    /// Reads record and state side by side, the state without conflict: to whoever changes nothing, it makes no difference
    /// that others do. Errors: Stale, NotDirectory.
    pub(crate) async fn read(txn: &Transaction, key: &InodeKey) -> Result<Self, FsError> {
        let state_key = keys::directory(key.fileid, DirectoryField::State);
        let state = async { Ok(txn.snapshot_get(&state_key).await?) };
        let (record, state) = join::both(fetch::directory(txn, key), state).await?;
        let exact = DirectoryState::decode(state.ok_or(FsError::corrupt("directory without state"))?)?;
        Ok(Self { key: *key, record, exact })
    }

    /// What was read of the state holds until the commit.
    fn hold(&self, txn: &mut Transaction) {
        txn.add_read_conflict_key(&keys::directory(self.key.fileid, DirectoryField::State));
    }

    /// The state with the blind updates, these under read conflict.
    async fn state(&self, txn: &Transaction) -> Result<DirectoryState, FsError> {
        if self.exact.split {
            Box::pin(fetch::merge(txn, self.key.fileid, self.exact)).await
        } else {
            Ok(self.exact)
        }
    }

    /// The change attribute as of a state.
    fn change(&self, base: u64, state: &DirectoryState) -> u64 {
        base.wrapping_add(self.record.stamp.version().max(state.stamp.version()))
    }

    /// Whether this update goes blind.
    async fn goes_blind(&self, txn: &Transaction, request: &Request<'_>) -> Result<bool, FsError> {
        match request.directory {
            DirectoryUpdate::Exact => Ok(false),
            DirectoryUpdate::Blind => Ok(true),
            DirectoryUpdate::Adaptive if !self.exact.split => Ok(false),
            DirectoryUpdate::Adaptive => Ok(is_busy(self.last_touched(txn).await?, request)),
        }
    }

    /// Nanoseconds since 1970; read without conflict, it only decides how to go on.
    async fn last_touched(&self, txn: &Transaction) -> Result<u64, FsError> {
        let key = keys::directory(self.key.fileid, DirectoryField::Touched);
        let blind = match txn.snapshot_get(&key).await? {
            Some(value) => codec::counter("directory delta", &value)?,
            None => 0,
        };
        Ok(blind.max(codec::nanos(self.exact.touched)))
    }
}

impl Namespace {
    /// Applies `delta` to a directory.
    pub(crate) async fn update_directory(
        &self,
        txn: &mut Transaction,
        parent: &Parent,
        delta: Delta,
        request: &Request<'_>,
    ) -> Result<DirectoryChange, FsError> {
        parent.hold(txn);
        let touched = touch_time(&parent.record, request.now);
        let directory = parent.key.fileid;
        let blind = parent.goes_blind(txn, request).await?;
        if blind && parent.exact.split {
            update_blindly(txn, directory, delta, touched);
            let before = parent.change(self.base(), &parent.exact);
            return Ok(DirectoryChange { before, after: 0, atomic: false });
        }
        let state = parent.state(txn).await?;
        let new = DirectoryState {
            touched: state.touched.max(touched),
            entries: state.entries.wrapping_add_signed(delta.entries),
            subdirectories: state.subdirectories.wrapping_add_signed(delta.subdirectories),
            // The first blind update prepares the way for the others.
            split: blind,
            ..state
        };
        if parent.exact.split {
            clear_deltas(txn, directory);
        }
        txn.set_versionstamped_value(
            keys::directory(directory, DirectoryField::State),
            new.encode(),
            STAMP_OFFSET,
        );
        Ok(DirectoryChange { before: parent.change(self.base(), &state), after: 0, atomic: true })
    }

    /// What an operation that changed nothing in a directory says of it: as of its commit, unless the directory is busy. Then
    /// one that writes down how it is answered would never commit.
    pub(crate) async fn directory_unchanged(
        &self,
        txn: &mut Transaction,
        parent: &Parent,
        request: &Request<'_>,
    ) -> Result<DirectoryChange, FsError> {
        let atomic = !parent.goes_blind(txn, request).await?;
        let state = if atomic {
            parent.hold(txn);
            parent.state(txn).await?
        } else {
            fetch::state_beside(txn, parent.key.fileid).await?
        };
        let at = parent.change(self.base(), &state);
        Ok(DirectoryChange { before: at, after: at, atomic })
    }

    /// The policy for what is made in a directory, the default if it is none: one point read.
    pub async fn policy(&self, txn: &Transaction, key: &InodeKey) -> Result<LayoutPolicy, FsError> {
        fetch::policy(txn, key).await
    }

    /// As [`Self::policy`], in no transaction, if the store has it in memory.
    pub fn policy_now(&self, db: &Database, key: &InodeKey) -> Option<Result<LayoutPolicy, FsError>> {
        let found = db.now(&keys::inode(key))?;
        Some(found.ok_or(FsError::Stale).and_then(InodeRecord::policy_of))
    }

    /// As [`Self::getattr`], in no transaction, of what is one row and in the store's memory: directories are two.
    pub fn getattr_now(&self, db: &Database, key: &InodeKey) -> Option<Result<Inode, FsError>> {
        match db.now(&keys::inode(key))?.ok_or(FsError::Stale).and_then(InodeRecord::decode) {
            Ok(record) if record.kind() == Kind::Directory => None,
            record => Some(record.map(|record| fetch::simple(key, record, self.base()))),
        }
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
    let time = codec::nanos(touched).to_le_bytes();
    txn.atomic(AtomicOp::Max, keys::directory(d, DirectoryField::Touched), time);
    if delta.entries != 0 {
        fetch::add(txn, keys::directory(d, DirectoryField::Entries), delta.entries);
    }
    if delta.subdirectories != 0 {
        fetch::add(txn, keys::directory(d, DirectoryField::Subdirectories), delta.subdirectories);
    }
}

/// What blind updates write.
const DELTAS: [DirectoryField; 4] =
    [DirectoryField::Stamp, DirectoryField::Touched, DirectoryField::Entries, DirectoryField::Subdirectories];

fn clear_deltas(txn: &mut Transaction, d: FileId) {
    for field in DELTAS {
        txn.clear(keys::directory(d, field));
    }
}

/// Whether there was a blind update so lately, at `last` in nanoseconds since 1970, that there will be more.
fn is_busy(last: u64, request: &Request<'_>) -> bool {
    codec::nanos(request.now).saturating_sub(last) < REST
}

/// Makes what [`fetch::inode_beside`] read hold until the commit, unless the directory is busy: then nothing would ever
/// commit. Whether it holds: the change attribute read is the one before this change.
pub(crate) fn hold(txn: &mut Transaction, inode: &Inode, request: &Request<'_>) -> bool {
    let Some(state) = &inode.directory else { return true };
    let busy = match request.directory {
        DirectoryUpdate::Exact => false,
        DirectoryUpdate::Blind => true,
        DirectoryUpdate::Adaptive => state.split && is_busy(codec::nanos(state.touched), request),
    };
    if !busy {
        let directory = inode.key.fileid;
        txn.add_read_conflict_key(&keys::directory(directory, DirectoryField::State));
        for field in DELTAS.into_iter().filter(|_| state.split) {
            txn.add_read_conflict_key(&keys::directory(directory, field));
        }
    }
    !busy
}

/// For a transaction that sets the time of the last change of a directory that [`fetch::inode_beside`] read: blind updates
/// that commit before it are older, and their time does not show. Those that commit later have read the record, and
/// [`touch_time`] makes theirs show.
pub(crate) fn forget_touched(txn: &mut Transaction, inode: &Inode) {
    let Some(state) = &inode.directory else { return };
    let directory = inode.key.fileid;
    // Exact updates, and the first blind one, have their time there.
    txn.add_read_conflict_key(&keys::directory(directory, DirectoryField::State));
    if state.split {
        let touched = codec::nanos(state.touched).to_le_bytes();
        txn.set(keys::directory(directory, DirectoryField::Touched), touched.to_vec());
    }
}
