//! Data servers that are being emptied, and that are out for good.

use sluice_kv::Transaction;

use super::stores::{Store, StoreState, put_store};
use super::{Row, get, list};
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys::{self, StoreId};

/// A store whose data files go to others. The row is there exactly while the store's state is
/// [`StoreState::Draining`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    pub store: StoreId,
    /// Seconds since 1970.
    pub since: i64,
    /// Bytes per second at most; 0: no limit.
    pub rate: u64,
    /// Data files to move, as counted when it began.
    pub data_files: u64,
    /// The bytes in them.
    pub bytes: u64,
    /// No layout names the store any more, and none will.
    pub done: bool,
}

impl Row for Drain {
    const WHAT: &'static str = "drain row";
    fn encode(&self, w: &mut Writer) {
        w.u16(self.store.0).u64(self.since.cast_unsigned()).u64(self.rate);
        w.u64(self.data_files).u64(self.bytes).bool(self.done);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self {
            store: StoreId(r.u16()?),
            since: r.u64()?.cast_signed(),
            rate: r.u64()?,
            data_files: r.u64()?,
            bytes: r.u64()?,
            done: r.bool()?,
        })
    }
}

pub async fn drain(txn: &Transaction, id: StoreId) -> Result<Option<Drain>, FsError> {
    get(txn, &keys::drain(id)).await
}

/// Every store that is being emptied.
pub async fn drains(txn: &Transaction) -> Result<Vec<Drain>, FsError> {
    list(txn, &keys::table(keys::DRAIN), usize::from(u16::MAX)).await
}

/// Nothing new is placed on the store from now on, and what is there goes.
pub fn put_drain(txn: &mut Transaction, store: &Store, drain: &Drain) {
    put_store(txn, &Store { state: StoreState::Draining, ..store.clone() });
    txn.set(keys::drain(store.id), drain.to_bytes());
}

/// It is as it was before.
pub fn cancel_drain(txn: &mut Transaction, store: &Store) {
    put_store(txn, &Store { state: StoreState::Active, ..store.clone() });
    txn.clear(keys::drain(store.id));
}

/// The store is out for good: its number and its uuid are never anybody else's, and nothing waits for it any more.
pub fn remove_store(txn: &mut Transaction, store: &Store) {
    put_store(txn, &Store { state: StoreState::Removed, ..store.clone() });
    txn.clear(keys::drain(store.id));
    txn.clear(keys::tide(store.id));
    txn.clear_range(&keys::fences(store.id));
}

/// The row of a drain, for the checker.
pub(crate) fn decode_drain(value: bytes::Bytes) -> Result<Drain, FsError> {
    Drain::from_bytes(value)
}
