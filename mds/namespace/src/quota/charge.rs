//! Charging: blind additions in the transaction that changes the inode.

use sluice_kv::{AtomicOp, Transaction};

use super::{Charged, Subject, Usage, shard};
use crate::error::FsError;
use crate::keys::{self, InodeKey};
use crate::{Namespace, join};

/// Keys that one counter is spread over. Additions never conflict; more keys would only spread the load of a
/// distributed store, and every one of them is a row to write in a batch that would otherwise share it.
const SHARDS: u8 = 4;

impl Namespace {
    /// An inode was charged as `before` and is as `after`: `None` if it was not there, or is gone.
    pub(crate) async fn charge(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        before: Option<Charged>,
        after: Option<Charged>,
    ) -> Result<(), FsError> {
        if before == after || !self.is_counted(txn, key).await? {
            return Ok(());
        }
        let was: Vec<Subject> = before.iter().flat_map(Charged::subjects).collect();
        let (minus, plus) = (before.map_or(0, |c| c.usage()), after.map_or(0, |c| c.usage()));
        for subject in after.iter().flat_map(Charged::subjects) {
            let stays = if was.contains(&subject) { minus } else { 0 };
            add(txn, subject, key, plus.wrapping_sub(stays));
        }
        let goes = |subject: &&Subject| !after.is_some_and(|c| c.subjects().any(|other| other == **subject));
        for subject in was.iter().filter(goes) {
            add(txn, *subject, key, 0_u128.wrapping_sub(minus));
        }
        Ok(())
    }

    /// What somebody uses, without a conflict: the transaction that reads it is no party to those that charge.
    pub async fn usage(&self, txn: &Transaction, subject: Subject) -> Result<Usage, FsError> {
        let (kind, id) = subject.code();
        // Point reads: a scan would step over every old version of counters that are always written.
        let one = async |n| Ok::<_, FsError>(txn.snapshot_get(&keys::usage(kind, id, n)).await?);
        let (a, b) = join::both(join::both(one(0), one(1)), join::both(one(2), one(3))).await?;
        let mut sum = 0_u128;
        for value in [a.0, a.1, b.0, b.1].into_iter().flatten() {
            sum = sum.wrapping_add(shard(&value)?);
        }
        Ok(Usage::from_sum(sum))
    }

    /// What users, groups or trees (the kind of `like`) use, in the order of their numbers after `after`, at most
    /// `limit` of them, and the number to go on after unless this was all. Those that use nothing are left out.
    pub async fn usages(
        &self,
        txn: &Transaction,
        like: Subject,
        after: Option<u64>,
        limit: usize,
    ) -> Result<(Vec<(Subject, Usage)>, Option<u64>), FsError> {
        let kind = like.code().0;
        let rows = limit.saturating_mul(usize::from(SHARDS));
        let found = txn.snapshot_range(&keys::quotas(keys::USAGE, kind, after), rows, false).await?;
        let full = found.len() == rows;
        let mut sums: Vec<(u64, u128)> = Vec::new();
        for (key, value) in &found {
            let (id, value) = (keys::quota_of(key)?.1, shard(value)?);
            match sums.last_mut().filter(|last| last.0 == id) {
                Some(last) => last.1 = last.1.wrapping_add(value),
                None => sums.push((id, value)),
            }
        }
        // The last one may go on behind the page, unless it is the only one: then it has all its shards.
        if full && sums.len() > 1 {
            sums.pop();
        }
        let next = sums.last().filter(|_| full).map(|last| last.0);
        let used = sums
            .into_iter()
            .filter(|(_, sum)| *sum != 0)
            .filter_map(|(id, sum)| Some((Subject::from_code(kind, id)?, Usage::from_sum(sum))));
        Ok((used.collect(), next))
    }
}

/// Adds to a counter, on the shard of an inode.
pub(super) fn add(txn: &mut Transaction, subject: Subject, key: &InodeKey, delta: u128) {
    if delta == 0 {
        return;
    }
    let (kind, id) = subject.code();
    let shard = u8::try_from(key.fileid.0 % u64::from(SHARDS)).unwrap_or(0);
    txn.atomic(AtomicOp::Add, keys::usage(kind, id, shard), delta.to_le_bytes());
}
