//! Exports, layout policies, and the counters of the whole file system.

use bytes::Bytes;
use sluice_kv::Transaction;

use super::{Row, decode_list, encode_list, get, list};
use crate::codec::{self, Reader, Writer};
use crate::error::FsError;
use crate::keys::{self, InodeKey, Statistic};

/// Whom an export takes for somebody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Root becomes the anonymous user.
    #[default]
    Root,
    /// Nobody.
    None,
    /// Everybody becomes the anonymous user.
    All,
}

/// A directory that clients may mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// In filehandles; never reused.
    pub id: u32,
    /// In the server's tree.
    pub path: Bytes,
    pub root: InodeKey,
    pub read_only: bool,
    pub squash: Squash,
    pub anonymous_uid: u32,
    pub anonymous_gid: u32,
    /// Networks that may use it, in text (`10.0.0.0/8`); none: everybody.
    pub networks: Vec<Bytes>,
}

impl Row for Export {
    const WHAT: &'static str = "export row";
    fn encode(&self, w: &mut Writer) {
        w.u32(self.id).bytes(&self.path);
        self.root.encode(w);
        let squash = match self.squash {
            Squash::Root => 0,
            Squash::None => 1,
            Squash::All => 2,
        };
        w.bool(self.read_only).u8(squash).u32(self.anonymous_uid).u32(self.anonymous_gid);
        encode_list(w, &self.networks, |n, w| {
            w.bytes(n);
        });
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self {
            id: r.u32()?,
            path: r.bytes()?,
            root: InodeKey::decode(r)?,
            read_only: r.bool()?,
            squash: match r.u8()? {
                0 => Squash::Root,
                1 => Squash::None,
                2 => Squash::All,
                _ => return Err(r.corrupt()),
            },
            anonymous_uid: r.u32()?,
            anonymous_gid: r.u32()?,
            networks: decode_list(r, Reader::bytes)?,
        })
    }
}

pub async fn export(txn: &Transaction, id: u32) -> Result<Option<Export>, FsError> {
    get(txn, &keys::export(id)).await
}
pub fn put_export(txn: &mut Transaction, export: &Export) {
    txn.set(keys::export(export.id), export.to_bytes());
}
pub fn clear_export(txn: &mut Transaction, id: u32) {
    txn.clear(keys::export(id));
}
/// Exports after id `after`.
pub async fn exports(txn: &Transaction, after: Option<u32>, limit: usize) -> Result<Vec<Export>, FsError> {
    let whole = keys::table(keys::EXPORT);
    let range = after.map_or_else(|| whole.clone(), |id| keys::after(&keys::export(id), &whole));
    list(txn, &range, limit).await
}

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

/// A counter of the whole file system: the sum of its shards, without a conflict.
pub async fn statistic(txn: &Transaction, what: Statistic) -> Result<u64, FsError> {
    let mut sum = 0_u64;
    for (_, value) in txn.snapshot_range(&keys::statistics(what), 256, false).await? {
        // Shards are signed: one may have removed what another made.
        sum = sum.wrapping_add(codec::counter("statistic", &value)?);
    }
    Ok(sum)
}
