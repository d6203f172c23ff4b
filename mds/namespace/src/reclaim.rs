//! What outlives its name: orphans, kept for those who have them open, and the durable queue of
//! data files to remove.

use bytes::Bytes;
use sluice_kv::Transaction;

use crate::codec::{Reader, Writer};
use crate::data_file::Layout;
use crate::error::FsError;
use crate::inode::Kind;
use crate::keys::{self, DataFileId, FileId, InodeKey};
use crate::{Namespace, fetch, layout};

/// Data files to remove, with all that is needed to find them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage {
    /// The inode they belonged to; it may live on with others.
    pub inode: InodeKey,
    pub layout: Layout,
}

/// Some of the garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GarbageBatch {
    pub rows: Vec<Garbage>,
    /// Where to go on, unless this was all.
    pub next: Option<DataFileId>,
}

/// What became of an orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// Erased; its data files are in the garbage queue.
    Erased { kind: Kind, garbage: Option<Garbage> },
    /// It was gone already.
    Gone,
    /// It has names: it is none.
    Named,
}

impl Garbage {
    fn encode(&self) -> Bytes {
        let mut w = Writer::default();
        w.u8(1);
        self.inode.encode(&mut w);
        self.layout.encode(&mut w);
        w.finish()
    }

    pub(crate) fn decode(value: Bytes) -> Result<Self, FsError> {
        let mut r = Reader::new("garbage row", value);
        r.schema(1)?;
        let garbage = Self { inode: InodeKey::decode(&mut r)?, layout: Layout::decode(&mut r)? };
        r.finish()?;
        Ok(garbage)
    }
}

pub(crate) fn put_garbage(txn: &mut Transaction, key: &InodeKey, layout: &Layout) -> Garbage {
    let garbage = Garbage { inode: *key, layout: layout.clone() };
    txn.set(keys::by_u64(keys::GARBAGE, layout.id.0), garbage.encode());
    garbage
}

pub(crate) fn put_orphan(txn: &mut Transaction, key: &InodeKey) {
    txn.set(keys::by_u64(keys::ORPHAN, key.fileid.0), layout::encode_key(key));
}

impl Namespace {
    /// Garbage after id `after`, at most `limit` rows. Recall or fence the layouts of `inode`, have
    /// every data server entomb its data files, then [`Self::garbage_done`].
    pub async fn next_garbage(
        &self,
        txn: &Transaction,
        after: Option<DataFileId>,
        limit: usize,
    ) -> Result<GarbageBatch, FsError> {
        let range = keys::from_u64(keys::GARBAGE, after.map(|d| d.0));
        let found = txn.snapshot_range(&range, limit, false).await?;
        let full = found.len() == limit;
        let rows: Vec<Garbage> =
            found.into_iter().map(|(_, value)| Garbage::decode(value)).collect::<Result<_, _>>()?;
        let next = rows.last().filter(|_| full).map(|g| g.layout.id);
        Ok(GarbageBatch { rows, next })
    }

    /// The data files with this id are in the garbage queue.
    pub async fn is_garbage(&self, txn: &Transaction, id: DataFileId) -> Result<bool, FsError> {
        Ok(txn.get(&keys::by_u64(keys::GARBAGE, id.0)).await?.is_some())
    }

    /// These data files are gone everywhere.
    pub fn garbage_done(&self, txn: &mut Transaction, ids: &[DataFileId]) {
        for id in ids {
            txn.clear(keys::by_u64(keys::GARBAGE, id.0));
        }
    }

    /// The last who had an inode without a name open has closed it (or will never reclaim its open).
    pub async fn reclaim_orphan(&self, txn: &mut Transaction, key: &InodeKey) -> Result<Reclaimed, FsError> {
        let orphan = keys::by_u64(keys::ORPHAN, key.fileid.0);
        txn.clear(orphan);
        let Some(record) = fetch::find_record(txn, key).await? else { return Ok(Reclaimed::Gone) };
        if record.nlink > 0 {
            return Ok(Reclaimed::Named);
        }
        Ok(Reclaimed::Erased { kind: record.kind(), garbage: self.erase(txn, key, &record).await? })
    }

    /// Orphans after file `after`, at most `limit`.
    pub async fn orphans(
        &self,
        txn: &Transaction,
        after: Option<FileId>,
        limit: usize,
    ) -> Result<Vec<InodeKey>, FsError> {
        let range = keys::from_u64(keys::ORPHAN, after.map(|f| f.0));
        let rows = txn.snapshot_range(&range, limit, false).await?;
        rows.into_iter().map(|(_, value)| layout::decode_key("orphan row", value)).collect()
    }
}
