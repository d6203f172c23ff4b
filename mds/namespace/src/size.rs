//! The size of a file, as writers on data servers report it.

use std::pin::pin;

use sluice_env::Wall;
use sluice_kv::Transaction;

use crate::error::FsError;
use crate::inode::{Inode, Node};
use crate::keys::{InodeKey, Statistic};
use crate::pending::{Pending, settle_fields};
use crate::quota::Charged;
use crate::{Namespace, Request, fetch, heal, layout};

/// Greatest size of a file, in bytes: offsets are signed on every client.
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// Bytes of storage shown for a file of `size` bytes of which `reported` are known to be stored:
/// never 0 for a file that is not empty, or archivers would take it for a hole.
pub(crate) fn space_for(size: u64, reported: u64) -> u64 {
    if size == 0 { 0 } else { reported.max(512) }
}

/// For sums of differences.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// What is known of a file after data was written to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitSize {
    /// One past the last byte written; `None`: within the size known.
    pub end: Option<u64>,
    /// When, by the client's clock; one in the future is not believed.
    pub mtime: Option<Wall>,
    /// Bytes of storage, if a data server told.
    pub space_used: Option<u64>,
    /// The data servers were asked; no writer has said so. Times move only if the size does.
    pub observed: bool,
    /// The file is settled: no read-write layout is out, and its row goes.
    pub settled: bool,
    /// A read-write layout of mirrors ended uncleanly.
    pub mirrors_dirty: bool,
    /// What was there may have been written over, and nobody will say so: what clients remember of it is not to be
    /// believed. The time of modification stays: clients choose it (`cp -p`), and perhaps nothing was written.
    pub unseen: bool,
    /// Nothing is done once the change attribute is another than this.
    pub since: Option<u64>,
}

/// What led to a size that may be new: it is as much as was found to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeCommitted {
    pub inode: Inode,
    /// The size changed.
    pub grew: bool,
    /// By so many bytes.
    pub added: u64,
}
settle_fields!(SizeCommitted: inode);

impl SizeCommitted {
    pub(crate) const fn of(inode: Inode, added: u64) -> Self {
        Self { inode, grew: added > 0, added }
    }
}

impl Namespace {
    /// LAYOUTCOMMIT, a proxied write, or settling: the size becomes the greater of the two, change
    /// attribute and times move once. It never fails for space (DESIGN §6). An inode that nobody
    /// wrote to (settled without data) only loses its row.
    ///
    /// Errors: Stale, WrongType, TooBig, Busy (more than is kept inline).
    pub async fn commit_size(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        commit: &CommitSize,
        request: &Request<'_>,
    ) -> Result<Pending<SizeCommitted>, FsError> {
        let inode = pin!(fetch::inode(txn, key, self.base())).await?;
        pin!(self.commit_size_of(txn, inode, commit, request)).await
    }

    /// As [`Self::commit_size`], of an inode that was read in this transaction.
    pub(crate) async fn commit_size_of(
        &self,
        txn: &mut Transaction,
        mut inode: Inode,
        commit: &CommitSize,
        request: &Request<'_>,
    ) -> Result<Pending<SizeCommitted>, FsError> {
        let key = &{ inode.key };
        if commit.since.is_some_and(|since| since != inode.change) {
            return Ok(Pending::new(SizeCommitted::of(inode, 0), self.base()));
        }
        let charged = Charged::of(&inode.record);
        let Node::File(file) = &mut inode.record.node else { return Err(FsError::WrongType) };
        let (old_size, old_space) = (file.size, file.space_used);
        if commit.settled {
            layout::clear_read_write(txn, key);
        }
        let end = commit.end.unwrap_or(0);
        if end > MAX_FILE_SIZE {
            return Err(FsError::TooBig);
        }
        if file.inline.is_some_and(|inline| !inline.holds(end)) {
            return Err(FsError::Busy);
        }
        file.size = old_size.max(end);
        let added = file.size - old_size;
        let grew = added > 0;
        // Unless told better, what was appended is taken to be stored.
        let guess = old_space.saturating_add(file.size - old_size);
        file.space_used = space_for(file.size, commit.space_used.unwrap_or(guess));
        let dirtied = commit.mirrors_dirty && file.layout.as_ref().is_some_and(|l| !l.mirrors_dirty);
        if let Some(layout) = &mut file.layout {
            let before = layout.is_degraded();
            layout.mirrors_dirty |= commit.mirrors_dirty;
            heal::track(txn, key, before, layout.is_degraded());
        }
        let space = signed(file.space_used) - signed(old_space);
        fetch::count(txn, Statistic::Bytes, key.fileid, space);
        pin!(self.charge(txn, key, Some(charged), Some(Charged::of(&inode.record)))).await?;
        if (commit.settled || commit.observed) && !grew && commit.mtime.is_none() {
            if commit.unseen && old_size > 0 {
                inode.record.ctime = request.now;
                fetch::put(txn, key, &inode.record);
                inode.change = 0;
            } else if dirtied || space != 0 {
                // Nothing was written that clients do not know of already.
                fetch::put_quietly(txn, key, &inode.record);
            }
            return Ok(Pending::new(SizeCommitted::of(inode, added), self.base()));
        }
        inode.record.mtime = commit.mtime.unwrap_or(request.now).min(request.now);
        inode.record.ctime = request.now;
        inode.record.mode = inode.record.written_by(request.who);
        fetch::put(txn, key, &inode.record);
        inode.change = 0;
        Ok(Pending::new(SizeCommitted::of(inode, added), self.base()))
    }

    /// Somebody is about to write without this server seeing it: set-id bits go now, as they do with a WRITE.
    ///
    /// Errors: Stale.
    pub async fn drop_set_id(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        request: &Request<'_>,
    ) -> Result<(), FsError> {
        let mut inode = fetch::inode(txn, key, self.base()).await?;
        let without = inode.record.written_by(request.who);
        if inode.record.mode != without {
            inode.record.mode = without;
            inode.record.ctime = request.now;
            fetch::put(txn, key, &inode.record);
        }
        Ok(())
    }
}
