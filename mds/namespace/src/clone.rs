//! CLONE: a file takes data files that share what another one holds. All of them at once, in one transaction; until
//! it commits they are garbage.

use sluice_kv::Transaction;

use crate::data_file::Layout;
use crate::error::FsError;
use crate::inode::{Inode, Node};
use crate::keys::{FileId, InodeKey, Statistic};
use crate::pending::{Pending, settle_fields};
use crate::quota::Charged;
use crate::reclaim::{self, Garbage};
use crate::size::{MAX_FILE_SIZE, signed, space_for};
use crate::truncate::truncate_intent;
use crate::{Namespace, Request, fetch, heal, layout};

/// What a file becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetClone {
    /// Its data files from now on, which [`Namespace::promise_garbage`] wrote down.
    pub fresh: Layout,
    /// Those that they were made beside.
    pub old: Option<Layout>,
    /// Where the range ends.
    pub end: u64,
    /// Bytes that are stored.
    pub space_used: u64,
    /// The file that they share with: it is not being truncated.
    pub source: FileId,
}

/// The file as it is now; the data files that it had are garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloned {
    pub inode: Inode,
    pub garbage: Option<Garbage>,
}
settle_fields!(Cloned: inode);

impl Namespace {
    /// Writes down data files that are about to be made: garbage, should nobody take them.
    pub fn promise_garbage(&self, txn: &mut Transaction, key: &InodeKey, fresh: &Layout) {
        reclaim::put_garbage(txn, key, fresh);
    }

    /// Gives a file whose layouts have all been recalled new data files. The caller has checked that it may write.
    ///
    /// Errors: Stale, WrongType, TooBig, Invalid, Busy (a truncation of one of the two is under way, or its data files
    /// are others by now, or have more mirrors, or fewer).
    pub async fn set_clone(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        set: &SetClone,
        request: &Request<'_>,
    ) -> Result<Pending<Cloned>, FsError> {
        let mut inode = fetch::inode(txn, key, self.base()).await?;
        let mode = inode.record.written_by(request.who);
        let charged = Charged::of(&inode.record);
        let Node::File(file) = &mut inode.record.node else { return Err(FsError::WrongType) };
        if set.end > MAX_FILE_SIZE {
            return Err(FsError::TooBig);
        }
        if !set.fresh.is_valid() {
            return Err(FsError::Invalid);
        }
        for file in [key.fileid, set.source] {
            if truncate_intent(txn, file).await?.is_some() {
                return Err(FsError::Busy);
            }
        }
        if file.inline.is_some() || !layout::is_still(file.layout.as_ref(), set.old.as_ref()) {
            return Err(FsError::Busy);
        }
        self.garbage_done(txn, &[set.fresh.id]);
        layout::put_owner(txn, set.fresh.id, key);
        let garbage = file.layout.take().map(|old| {
            layout::clear_owner(txn, old.id);
            heal::track(txn, key, old.is_degraded(), false);
            reclaim::put_garbage(txn, key, &old)
        });
        file.layout = Some(set.fresh.clone());
        let old_space = file.space_used;
        file.size = file.size.max(set.end);
        file.space_used = space_for(file.size, set.space_used);
        let space = signed(file.space_used) - signed(old_space);
        fetch::count(txn, Statistic::Bytes, key.fileid, space);
        self.charge(txn, key, Some(charged), Some(Charged::of(&inode.record))).await?;
        inode.record.mtime = request.now;
        inode.record.ctime = request.now;
        inode.record.mode = mode;
        fetch::put(txn, key, &inode.record);
        inode.change = 0;
        Ok(Pending::new(Cloned { inode, garbage }, self.base()))
    }
}
