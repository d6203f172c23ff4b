//! Layout policies, and the counters of the whole file system.

use bytes::Bytes;
use sluice_kv::Transaction;

use super::{Row, get, list};
use crate::codec::{self, Reader, Writer};
use crate::error::FsError;
use crate::join;
use crate::keys::{self, Statistic};

/// The numbers behind the name of a [`crate::Shape`], where an administrator changed them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRow {
    /// `default`, `small`, `wide` or `wide-any`.
    pub name: Bytes,
    /// Bytes on one data server before the stripes begin; 0 none.
    pub first: u64,
    /// Bytes.
    pub stripe_unit: u64,
    /// Columns; 0 as many as there are data servers.
    pub width: u16,
    pub mirrors: u16,
}

impl Row for PolicyRow {
    const WHAT: &'static str = "layout policy";
    fn encode(&self, w: &mut Writer) {
        w.bytes(&self.name).u64(self.first).u64(self.stripe_unit).u16(self.width).u16(self.mirrors);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self {
            name: r.bytes()?,
            first: r.u64()?,
            stripe_unit: r.u64()?,
            width: r.u16()?,
            mirrors: r.u16()?,
        })
    }
}

pub async fn policy(txn: &Transaction, name: &[u8]) -> Result<Option<PolicyRow>, FsError> {
    get(txn, &keys::policy(name)).await
}
pub fn put_policy(txn: &mut Transaction, policy: &PolicyRow) {
    txn.set(keys::policy(&policy.name), policy.to_bytes());
}
pub fn clear_policy(txn: &mut Transaction, name: &[u8]) {
    txn.clear(keys::policy(name));
}
/// Every policy changed.
pub async fn policies(txn: &Transaction) -> Result<Vec<PolicyRow>, FsError> {
    list(txn, &keys::table(keys::POLICY), 256).await
}

/// Keys that one counter may be on: those that are written now, and as many more as there once were.
const STATISTIC_SHARDS: u8 = 16;

/// A counter of the whole file system: the sum of its shards, without a conflict.
pub async fn statistic(txn: &Transaction, what: Statistic) -> Result<u64, FsError> {
    // Point reads: a scan would step over every old version of counters that are always written.
    let shards = (0..STATISTIC_SHARDS)
        .map(|shard| async move { Ok::<_, FsError>(txn.snapshot_get(&keys::statistic(what, shard)).await?) });
    let mut sum = 0_u64;
    for value in join::all(shards).await?.into_iter().flatten() {
        // Shards are signed: one may have removed what another made.
        sum = sum.wrapping_add(codec::counter("statistic", &value)?);
    }
    Ok(sum)
}
