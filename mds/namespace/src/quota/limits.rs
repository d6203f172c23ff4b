//! Limits, and since when they are exceeded.

use sluice_kv::Transaction;

use super::Subject;
use crate::Namespace;
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys::{self, FileId, InodeKey};
use crate::stable_storage::Row;

/// Of files or of bytes; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// May be exceeded for a while.
    pub soft: u64,
    /// May not be exceeded.
    pub hard: u64,
}

/// What somebody may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub bytes: Limit,
    pub files: Limit,
    /// Seconds for which soft limits may be exceeded.
    pub grace: u32,
}

impl Limits {
    /// As Linux has it: a week.
    pub const GRACE: u32 = 7 * 24 * 3600;

    pub fn is_none(&self) -> bool {
        (self.bytes, self.files) == Default::default()
    }
}

/// Where a tree is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeState {
    /// What was in the directory is being put into the tree; what is made there is in it.
    Filling,
    Whole,
    /// What is in it is being taken out; then it is gone.
    Emptying,
}

/// A row of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub subject: Subject,
    pub limits: Limits,
    /// Of a tree: its topmost directory.
    pub tree: Option<(InodeKey, TreeState)>,
}

/// Since when soft limits are exceeded, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverSince {
    pub bytes: Option<u64>,
    pub files: Option<u64>,
}

struct QuotaRow {
    limits: Limits,
    tree: Option<(InodeKey, TreeState)>,
}

impl Row for QuotaRow {
    const WHAT: &'static str = "quota";
    fn encode(&self, w: &mut Writer) {
        for limit in [self.limits.bytes, self.limits.files] {
            w.u64(limit.soft).u64(limit.hard);
        }
        w.u32(self.limits.grace).bool(self.tree.is_some());
        if let Some((root, state)) = &self.tree {
            root.encode(w);
            w.u8(match state {
                TreeState::Filling => 1,
                TreeState::Whole => 2,
                TreeState::Emptying => 3,
            });
        }
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let bytes = Limit { soft: r.u64()?, hard: r.u64()? };
        let files = Limit { soft: r.u64()?, hard: r.u64()? };
        let limits = Limits { bytes, files, grace: r.u32()? };
        if !r.bool()? {
            return Ok(Self { limits, tree: None });
        }
        let root = InodeKey::decode(r)?;
        let state = match r.u8()? {
            1 => TreeState::Filling,
            2 => TreeState::Whole,
            3 => TreeState::Emptying,
            _ => return Err(r.corrupt()),
        };
        Ok(Self { limits, tree: Some((root, state)) })
    }
}

impl Row for OverSince {
    const WHAT: &'static str = "time of exceeding a quota";
    fn encode(&self, w: &mut Writer) {
        for since in [self.bytes, self.files] {
            w.bool(since.is_some()).u64(since.unwrap_or_default());
        }
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let mut since = || Ok::<_, FsError>((r.bool()?, r.u64()?)).map(|(is, at)| is.then_some(at));
        Ok(Self { bytes: since()?, files: since()? })
    }
}

pub(super) fn put(txn: &mut Transaction, quota: &Quota) {
    let (kind, id) = quota.subject.code();
    let row = QuotaRow { limits: quota.limits, tree: quota.tree };
    txn.set(keys::quota(keys::QUOTA, kind, id), row.to_bytes());
}

/// Limits go, and with them what is remembered of their being exceeded.
pub(crate) fn clear(txn: &mut Transaction, subject: Subject) {
    let (kind, id) = subject.code();
    txn.clear(keys::quota(keys::QUOTA, kind, id));
    txn.clear(keys::quota(keys::OVER_QUOTA, kind, id));
}

/// A tree loses its directory.
pub(crate) fn clear_tree(txn: &mut Transaction, root: FileId) {
    clear(txn, Subject::Tree(root));
    txn.clear_range(&keys::tree_walks(root));
}

impl Namespace {
    /// The limits set for somebody.
    pub async fn quota(&self, txn: &Transaction, subject: Subject) -> Result<Option<Quota>, FsError> {
        let (kind, id) = subject.code();
        let value = txn.get(&keys::quota(keys::QUOTA, kind, id)).await?;
        let row = value.map(QuotaRow::from_bytes).transpose()?;
        Ok(row.map(|row| Quota { subject, limits: row.limits, tree: row.tree }))
    }

    /// Limits of the kind of `like` after number `after`, at most `limit`.
    pub async fn quotas(
        &self,
        txn: &Transaction,
        like: Subject,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Quota>, FsError> {
        let range = keys::quotas(keys::QUOTA, like.code().0, after);
        let rows = txn.snapshot_range(&range, limit, false).await?;
        let quota = |(key, value): (bytes::Bytes, bytes::Bytes)| {
            let (kind, id) = keys::quota_of(&key)?;
            let subject = Subject::from_code(kind, id).ok_or(FsError::corrupt("quota key"))?;
            let row = QuotaRow::from_bytes(value)?;
            Ok(Quota { subject, limits: row.limits, tree: row.tree })
        };
        rows.into_iter().map(quota).collect()
    }

    /// Sets the limits of anybody but a tree ([`Self::set_tree`]); none at all clears them, unless they keep
    /// those for everybody away.
    pub fn set_limits(&self, txn: &mut Transaction, subject: Subject, limits: Limits) {
        put(txn, &Quota { subject, limits, tree: None });
    }

    /// Removes the limits of anybody but a tree ([`Self::remove_tree`]).
    pub fn clear_limits(&self, txn: &mut Transaction, subject: Subject) {
        clear(txn, subject);
    }

    /// Since when somebody uses more than its soft limits allow.
    pub async fn over_since(&self, txn: &Transaction, subject: Subject) -> Result<OverSince, FsError> {
        let (kind, id) = subject.code();
        let value = txn.get(&keys::quota(keys::OVER_QUOTA, kind, id)).await?;
        Ok(value.map(OverSince::from_bytes).transpose()?.unwrap_or_default())
    }

    pub fn set_over_since(&self, txn: &mut Transaction, subject: Subject, since: OverSince) {
        let (kind, id) = subject.code();
        let key = keys::quota(keys::OVER_QUOTA, kind, id);
        if since == OverSince::default() { txn.clear(key) } else { txn.set(key, since.to_bytes()) }
    }
}
