//! Reading and writing inode records and directory states.

use std::pin::pin;

use bytes::Bytes;
use sluice_kv::{AtomicOp, Transaction};

use crate::codec;
use crate::data_file::LayoutPolicy;
use crate::error::FsError;
use crate::inode::{DirectoryState, Inode, InodeRecord, Kind, STAMP_OFFSET};
use crate::join;
use crate::keys::{self, DirectoryField, FileId, InodeKey, Statistic};

/// The record, under read conflict; [`FsError::Stale`] if the inode is gone.
pub(crate) async fn record(txn: &Transaction, key: &InodeKey) -> Result<InodeRecord, FsError> {
    pin!(find_record(txn, key)).await?.ok_or(FsError::Stale)
}

pub(crate) async fn find_record(txn: &Transaction, key: &InodeKey) -> Result<Option<InodeRecord>, FsError> {
    pin!(txn.get(&keys::inode(key))).await?.map(InodeRecord::decode).transpose()
}

/// The policy of a directory, the default of what is none.
pub(crate) async fn policy(txn: &Transaction, key: &InodeKey) -> Result<LayoutPolicy, FsError> {
    InodeRecord::policy_of(txn.get(&keys::inode(key)).await?.ok_or(FsError::Stale)?)
}

/// The record of something that must be a directory.
pub(crate) async fn directory(txn: &Transaction, key: &InodeKey) -> Result<InodeRecord, FsError> {
    let record = pin!(record(txn, key)).await?;
    if record.kind() == Kind::Directory { Ok(record) } else { Err(FsError::NotDirectory) }
}

/// The record, and the state of what is a directory.
pub(crate) async fn inode(txn: &Transaction, key: &InodeKey, base: u64) -> Result<Inode, FsError> {
    let mut inode = simple(key, pin!(record(txn, key)).await?, base);
    pin!(complete(txn, &mut inode, base)).await?;
    Ok(inode)
}

/// As [`inode`], the state by snapshot: whoever changes the record alone does not start over for what is made in the
/// directory meanwhile. What has to hold until the commit, [`crate::directory`] makes hold.
pub(crate) async fn inode_beside(txn: &Transaction, key: &InodeKey, base: u64) -> Result<Inode, FsError> {
    let mut inode = simple(key, record(txn, key).await?, base);
    if inode.is_directory() {
        inode.directory = Some(state_beside(txn, key.fileid).await?);
        inode.change = base.wrapping_add(inode.version());
    }
    Ok(inode)
}

/// Adds the state to a directory.
pub(crate) async fn complete(txn: &Transaction, inode: &mut Inode, base: u64) -> Result<(), FsError> {
    if inode.is_directory() {
        inode.directory = Some(pin!(state(txn, inode.key.fileid)).await?);
        inode.change = base.wrapping_add(inode.version());
    }
    Ok(())
}

/// What is complete without a state: anything but a directory.
pub(crate) fn simple(key: &InodeKey, record: InodeRecord, base: u64) -> Inode {
    let change = base.wrapping_add(record.stamp.version());
    Inode { key: *key, record, directory: None, change }
}

/// Writes a record so that the commit stamps it: the change attribute moves.
pub(crate) fn put(txn: &mut Transaction, key: &InodeKey, record: &InodeRecord) {
    txn.set_versionstamped_value(keys::inode(key), record.encode(), STAMP_OFFSET);
}

/// Writes a record whose change clients need not notice: its stamp stays.
pub(crate) fn put_quietly(txn: &mut Transaction, key: &InodeKey, record: &InodeRecord) {
    txn.set(keys::inode(key), record.encode());
}

/// Whether a transaction starts over when somebody writes what it has read.
#[derive(Clone, Copy)]
enum Reading {
    Conflict,
    Snapshot,
}

/// The state of a directory with the blind updates merged in, under read conflict.
pub(crate) async fn state(txn: &Transaction, directory: FileId) -> Result<DirectoryState, FsError> {
    state_as(txn, directory, Reading::Conflict).await
}

/// As [`state`], by snapshot.
pub(crate) async fn state_beside(txn: &Transaction, directory: FileId) -> Result<DirectoryState, FsError> {
    state_as(txn, directory, Reading::Snapshot).await
}

async fn state_as(txn: &Transaction, directory: FileId, reading: Reading) -> Result<DirectoryState, FsError> {
    let value = pin!(field(txn, directory, DirectoryField::State, reading)).await?;
    let exact = DirectoryState::decode(value.ok_or(FsError::corrupt("directory without state"))?)?;
    // Few directories are so busy: not everybody's future shall have room for it.
    if exact.split { Box::pin(merge_as(txn, directory, exact, reading)).await } else { Ok(exact) }
}

async fn field(
    txn: &Transaction,
    directory: FileId,
    field: DirectoryField,
    reading: Reading,
) -> Result<Option<Bytes>, FsError> {
    let key = keys::directory(directory, field);
    Ok(match reading {
        Reading::Conflict => txn.get(&key).await?,
        Reading::Snapshot => txn.snapshot_get(&key).await?,
    })
}

/// Adds the blind updates to an exact state, under read conflict.
pub(crate) async fn merge(
    txn: &Transaction,
    directory: FileId,
    state: DirectoryState,
) -> Result<DirectoryState, FsError> {
    merge_as(txn, directory, state, Reading::Conflict).await
}

async fn merge_as(
    txn: &Transaction,
    directory: FileId,
    mut state: DirectoryState,
    reading: Reading,
) -> Result<DirectoryState, FsError> {
    const WHAT: &str = "directory delta";
    // Point reads: these keys are written over and over in a busy directory, and a scan would step over
    // every old version of each.
    let field = |which| field(txn, directory, which, reading);
    let ((stamp, touched), (entries, subdirectories)) = join::both(
        join::both(field(DirectoryField::Stamp), field(DirectoryField::Touched)),
        join::both(field(DirectoryField::Entries), field(DirectoryField::Subdirectories)),
    )
    .await?;
    if let Some(value) = stamp {
        let stamp: [u8; 10] = value.as_ref().try_into().map_err(|_| FsError::corrupt(WHAT))?;
        state.stamp.0 = state.stamp.0.max(stamp);
    }
    if let Some(value) = touched {
        state.touched = state.touched.max(codec::from_nanos(codec::counter(WHAT, &value)?));
    }
    // Deltas are signed; wrapping addition of two's complement is right for both signs.
    if let Some(value) = entries {
        state.entries = state.entries.wrapping_add(codec::counter(WHAT, &value)?);
    }
    if let Some(value) = subdirectories {
        state.subdirectories = state.subdirectories.wrapping_add(codec::counter(WHAT, &value)?);
    }
    Ok(state)
}

/// Records of several inodes at once; `None` for those that are gone.
pub(crate) async fn records(
    txn: &Transaction,
    inodes: &[InodeKey],
) -> Result<Vec<Option<InodeRecord>>, FsError> {
    join::all(inodes.iter().map(|key| find_record(txn, key))).await
}

/// Keys that one counter is spread over, as usage is (`quota::charge`): each more is a row that transactions of one batch
/// do not share. There were 16, and all that are there count.
const SHARDS: u64 = 4;

/// Adds to a counter of the whole file system, on a shard that spreads the writers.
pub(crate) fn count(txn: &mut Transaction, what: Statistic, spread: FileId, delta: i64) {
    if delta == 0 {
        return;
    }
    let shard = u8::try_from(spread.0 % SHARDS).unwrap_or(0);
    add(txn, keys::statistic(what, shard), delta);
}

pub(crate) fn add(txn: &mut Transaction, key: impl Into<Bytes>, delta: i64) {
    txn.atomic(AtomicOp::Add, key, delta.to_le_bytes());
}
