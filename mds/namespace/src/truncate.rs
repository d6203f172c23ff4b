//! Truncation: the size changes at once, the data files follow, driven by a durable intent.

use bytes::Bytes;
use sluice_kv::Transaction;

use crate::codec::{Reader, Writer};
use crate::credential::Want;
use crate::data_file::Layout;
use crate::error::FsError;
use crate::inode::{Inode, Node};
use crate::keys::{self, FileId, InodeKey, Statistic};
use crate::pending::{Pending, settle_fields};
use crate::quota::Charged;
use crate::reclaim::{self, Garbage};
use crate::setattr::SetAttr;
use crate::size::{MAX_FILE_SIZE, signed, space_for};
use crate::{Namespace, Request, fetch, heal, inline, layout};

/// A size to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSize {
    /// Bytes.
    pub size: u64,
    /// Data files to take instead of the old ones, used for size 0 only: no data server is waited for.
    pub fresh: Option<Layout>,
    /// The old ones, as they were when those were chosen; `None`: whatever they are.
    pub old: Option<Layout>,
    /// The caller holds the file open for writing: its mode was checked then.
    pub writable_open: bool,
}

/// A truncation that data servers have yet to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncateIntent {
    pub inode: InodeKey,
    /// No byte at or above it may stay.
    pub size: u64,
}

/// What is left to do after the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TruncateOutcome {
    /// Nothing; the logical end of a sparse file may have moved up.
    Done,
    /// New data files; the old ones are in the garbage queue.
    Swapped(Garbage),
    /// Truncate the data files, then [`Namespace::truncate_done`].
    Intent(TruncateIntent),
}

/// What a truncation led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncated {
    pub inode: Inode,
    pub outcome: TruncateOutcome,
}
settle_fields!(Truncated: inode);

impl TruncateIntent {
    fn encode(&self) -> Bytes {
        let mut w = Writer::default();
        w.u8(1);
        self.inode.encode(&mut w);
        w.u64(self.size).finish()
    }
    fn decode(value: Bytes) -> Result<Self, FsError> {
        let mut r = Reader::new("truncate intent", value);
        r.schema(1)?;
        let intent = Self { inode: InodeKey::decode(&mut r)?, size: r.u64()? };
        r.finish()?;
        Ok(intent)
    }
}

impl Namespace {
    /// Sets the size of a file whose read-write layouts have been recalled and whose size is settled.
    ///
    /// Errors: Stale, IsDirectory, WrongType, Access, TooBig, Busy (an earlier truncation is under way, or the old data files are
    /// others by now).
    pub async fn truncate(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        set: &SetSize,
        request: &Request<'_>,
    ) -> Result<Pending<Truncated>, FsError> {
        self.truncate_and(txn, key, set, &SetAttr::default(), request).await
    }

    /// As [`Self::truncate`], and changes other attributes, which come after the size.
    ///
    /// Errors: as of both.
    pub async fn truncate_and(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        set: &SetSize,
        rest: &SetAttr,
        request: &Request<'_>,
    ) -> Result<Pending<Truncated>, FsError> {
        let mut inode = fetch::inode(txn, key, self.base()).await?;
        let (owned, charged) = (inode.record.owned(), Charged::of(&inode.record));
        if inode.is_directory() {
            return Err(FsError::IsDirectory);
        }
        let Node::File(file) = &mut inode.record.node else { return Err(FsError::WrongType) };
        if !set.writable_open {
            owned.require(request.who, Want::WRITE)?;
        }
        if set.size > MAX_FILE_SIZE {
            return Err(FsError::TooBig);
        }
        if set.fresh.as_ref().is_some_and(|l| !l.is_valid()) {
            return Err(FsError::Invalid);
        }
        // What an earlier one has still to cut is no part of the file once it has other data files.
        let swaps = set.size == 0 && set.fresh.is_some() && file.layout.is_some();
        let unfinished = truncate_intent(txn, key.fileid).await?.is_some();
        if unfinished && !swaps {
            return Err(FsError::Busy);
        }
        if let Some(kept) = file.inline {
            // The caller makes it an ordinary file before it grows so.
            if !kept.holds(set.size) {
                return Err(FsError::Busy);
            }
            if set.size < file.size {
                inline::rows::cut(txn, key.fileid, set.size, file.size).await?;
            }
        }
        let (old_size, old_space) = (file.size, file.space_used);
        file.size = set.size;
        let most = set.size.div_ceil(4096).saturating_mul(4096);
        file.space_used = space_for(set.size, old_space.min(most));
        let space = signed(file.space_used) - signed(old_space);
        // Data may lie beyond the size (a writer that died before its commit), so a truncation to
        // the present size clears it too; only growing leaves the data files as they are.
        let shrinks = set.size <= old_size && file.layout.is_some();
        let outcome = match (&mut file.layout, &set.fresh) {
            (Some(old), Some(fresh)) if swaps => {
                if set.old.is_some() && !layout::is_still(Some(old), set.old.as_ref()) {
                    return Err(FsError::Busy);
                }
                if unfinished {
                    txn.clear(keys::by_u64(keys::TRUNCATE, key.fileid.0));
                }
                layout::clear_owner(txn, old.id);
                heal::track(txn, key, old.is_degraded(), false);
                let garbage = reclaim::put_garbage(txn, key, old);
                layout::put_owner(txn, fresh.id, key);
                *old = fresh.clone();
                TruncateOutcome::Swapped(garbage)
            }
            _ if shrinks => {
                let intent = TruncateIntent { inode: *key, size: set.size };
                txn.set(keys::by_u64(keys::TRUNCATE, key.fileid.0), intent.encode());
                TruncateOutcome::Intent(intent)
            }
            _ => TruncateOutcome::Done,
        };
        fetch::count(txn, Statistic::Bytes, key.fileid, space);
        inode.record.mtime = request.now;
        inode.record.ctime = request.now;
        inode.record.mode = owned.written_by(request.who);
        self.change(txn, &mut inode, rest, request).await?;
        self.charge(txn, key, Some(charged), Some(Charged::of(&inode.record))).await?;
        fetch::put(txn, key, &inode.record);
        inode.change = 0;
        Ok(Pending::new(Truncated { inode, outcome }, self.base()))
    }

    /// The truncation under way on a file: LAYOUTGET, READ and WRITE wait for its end.
    pub async fn truncate_intent(
        &self,
        txn: &Transaction,
        file: FileId,
    ) -> Result<Option<TruncateIntent>, FsError> {
        truncate_intent(txn, file).await
    }

    /// What a truncation that data servers have to follow leaves, and nothing else makes.
    pub fn witness_of_truncation(file: FileId) -> Bytes {
        keys::by_u64(keys::TRUNCATE, file.0)
    }

    /// The data files have followed.
    pub fn truncate_done(&self, txn: &mut Transaction, file: FileId) {
        txn.clear(keys::by_u64(keys::TRUNCATE, file.0));
    }

    /// Truncations under way, after file `after`, at most `limit`: to be carried out again after a restart.
    pub async fn truncate_intents(
        &self,
        txn: &Transaction,
        after: Option<FileId>,
        limit: usize,
    ) -> Result<Vec<TruncateIntent>, FsError> {
        let range = keys::from_u64(keys::TRUNCATE, after.map(|f| f.0));
        let rows = txn.range(&range, limit, false).await?;
        rows.into_iter().map(|(_, value)| TruncateIntent::decode(value)).collect()
    }
}

pub(crate) async fn truncate_intent(
    txn: &Transaction,
    file: FileId,
) -> Result<Option<TruncateIntent>, FsError> {
    let value = txn.get(&keys::by_u64(keys::TRUNCATE, file.0)).await?;
    value.map(TruncateIntent::decode).transpose()
}
