//! The newest dump that is known to be whole.

use sluice_kv::Transaction;

use super::{Row, get};
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys;

/// A dump that was written to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dumped {
    /// The moment that it shows, in seconds since 1970.
    pub seconds: i64,
    pub rows: u64,
    pub bytes: u64,
    /// It was read back, and is as it was written.
    pub verified: bool,
}

impl Row for Dumped {
    const WHAT: &'static str = "newest dump";
    fn encode(&self, w: &mut Writer) {
        w.u64(self.seconds.cast_unsigned()).u64(self.rows).u64(self.bytes).bool(self.verified);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self { seconds: r.u64()?.cast_signed(), rows: r.u64()?, bytes: r.u64()?, verified: r.bool()? })
    }
}

pub async fn dumped(txn: &Transaction) -> Result<Option<Dumped>, FsError> {
    get(txn, &keys::single(keys::DUMPED)).await
}

pub fn put_dumped(txn: &mut Transaction, dumped: &Dumped) {
    txn.set(keys::single(keys::DUMPED), dumped.to_bytes());
}
