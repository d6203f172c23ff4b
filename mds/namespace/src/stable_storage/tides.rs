//! How far the stores of data servers had come, so that an older copy of one is recognised.

use sluice_kv::Transaction;

use super::{Row, decode_option, encode_option, get};
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys::{self, StoreId};

/// The newest mark that a store has told of. It was durable there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tide {
    pub store: StoreId,
    pub mark: u64,
    /// When it was told, in seconds since 1970.
    pub told: i64,
    /// A copy that had come so far only is let in all the same.
    pub accepted: Option<u64>,
    /// Handles of capability epochs before this one are refused there: whom an older copy refused since, it does not know. 0: none.
    pub from_epoch: u32,
}

impl Row for Tide {
    const WHAT: &'static str = "tide mark";
    fn encode(&self, w: &mut Writer) {
        w.u16(self.store.0).u64(self.mark).u64(self.told.cast_unsigned());
        encode_option(w, self.accepted.as_ref(), |mark, w| {
            w.u64(*mark);
        });
        w.u32(self.from_epoch);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self {
            store: StoreId(r.u16()?),
            mark: r.u64()?,
            told: r.u64()?.cast_signed(),
            accepted: decode_option(r, Reader::u64)?,
            from_epoch: r.u32()?,
        })
    }
}

pub async fn tide(txn: &Transaction, id: StoreId) -> Result<Option<Tide>, FsError> {
    get(txn, &keys::tide(id)).await
}

pub fn put_tide(txn: &mut Transaction, tide: &Tide) {
    txn.set(keys::tide(tide.store), tide.to_bytes());
}
