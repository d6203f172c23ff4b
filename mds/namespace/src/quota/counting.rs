//! Counting what is there already: a file system made by software that kept no account, or one whose account
//! is to be made anew. It goes through the inodes in the order of their keys while the file system is in use:
//! one row says how far, and an operation charges what it does to an inode up to there; the rest is counted
//! later, as it is then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use sluice_kv::Transaction;

use super::{Charged, Subject, charge};
use crate::Namespace;
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::inode::InodeRecord;
use crate::keys::{self, InodeKey};

/// How far the counting of inodes is: `None` has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress(pub(crate) Option<InodeKey>);

impl Progress {
    pub(crate) fn encode(self) -> Bytes {
        let mut w = Writer::default();
        w.u8(1).bool(self.0.is_some());
        if let Some(key) = self.0 {
            key.encode(&mut w);
        }
        w.finish()
    }

    pub(crate) fn decode(value: Bytes) -> Result<Self, FsError> {
        let mut r = Reader::new("progress of counting", value);
        r.schema(1)?;
        let key = if r.bool()? { Some(InodeKey::decode(&mut r)?) } else { None };
        r.finish()?;
        Ok(Self(key))
    }

    pub(crate) fn includes(self, key: &InodeKey) -> bool {
        self.0.is_some_and(|last| *key <= last)
    }
}

/// What a step of counting led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// So many inodes more; there are others.
    Some(usize),
    /// All are counted.
    All,
}

/// Whether everything is known to be counted. The row decides; this spares reading it.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllCounted(Arc<AtomicBool>);

impl AllCounted {
    pub(crate) fn set(&self, all: bool) {
        self.0.store(all, Ordering::SeqCst);
    }
    fn get(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Namespace {
    /// Whether what happens to this inode is to be charged. Under conflict with whoever counts.
    pub(super) async fn is_counted(&self, txn: &mut Transaction, key: &InodeKey) -> Result<bool, FsError> {
        let row = keys::single(keys::COUNTING);
        if self.all_counted.get() {
            txn.add_read_conflict_key(&row);
            return Ok(true);
        }
        match txn.get(&row).await? {
            None => Ok(true),
            Some(value) => Ok(Progress::decode(value)?.includes(key)),
        }
    }

    /// Whether everything is counted, so that what is said of usage is true.
    pub async fn all_counted(&self, txn: &Transaction) -> Result<bool, FsError> {
        Ok(txn.snapshot_get(&keys::single(keys::COUNTING)).await?.is_none())
    }

    /// Begins to count anew. Operations whose transactions are under way meet the row and start over.
    pub fn count_anew(&self, txn: &mut Transaction) {
        // Before the row is there: an operation that begins from now on looks for it.
        self.all_counted.set(false);
        txn.clear_range(&keys::table(keys::USAGE));
        txn.set(keys::single(keys::COUNTING), Progress(None).encode());
    }

    /// Counts up to `limit` inodes more.
    pub async fn count_some(&self, txn: &mut Transaction, limit: usize) -> Result<Counted, FsError> {
        let row = keys::single(keys::COUNTING);
        let Some(value) = txn.get(&row).await? else { return Ok(Counted::All) };
        let progress = Progress::decode(value)?;
        // Under conflict: what changes one of them meanwhile has not charged it.
        let found = txn.range(&keys::inodes_after(progress.0.as_ref()), limit, false).await?;
        let mut sums: BTreeMap<Subject, (InodeKey, u128)> = BTreeMap::new();
        let mut last = progress.0;
        for (key, value) in &found {
            let (key, record) = (keys::inode_of(key)?, InodeRecord::decode(value.clone())?);
            let charged = Charged::of(&record);
            for subject in charged.subjects() {
                let sum = sums.entry(subject).or_insert((key, 0));
                sum.1 = sum.1.wrapping_add(charged.usage());
            }
            last = Some(key);
        }
        for (subject, (key, sum)) in sums {
            charge::add(txn, subject, &key, sum);
        }
        if found.len() < limit {
            txn.clear(row);
            return Ok(Counted::All);
        }
        txn.set(row, Progress(last).encode());
        Ok(Counted::Some(found.len()))
    }

    /// [`Self::count_some`] said that all are counted, and its transaction has committed.
    pub fn counting_ended(&self) {
        self.all_counted.set(true);
    }
}
