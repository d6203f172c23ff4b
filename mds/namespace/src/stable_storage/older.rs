//! That the metadata are an older copy of what data servers have served, as one of them has shown.

use sluice_kv::Transaction;

use super::{Row, get};
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys::{self, DataFileId};

/// A data server had a data file that these metadata had yet to number. All data servers are refused from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Older {
    /// The store that has it.
    pub store: [u8; 16],
    pub file: DataFileId,
    /// The next id that was to be given out.
    pub next: DataFileId,
}

impl Row for Older {
    const WHAT: &'static str = "older copy";
    fn encode(&self, w: &mut Writer) {
        w.raw(&self.store).u64(self.file.0).u64(self.next.0);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self { store: r.array()?, file: DataFileId(r.u64()?), next: DataFileId(r.u64()?) })
    }
}

pub async fn older(txn: &Transaction) -> Result<Option<Older>, FsError> {
    get(txn, &keys::single(keys::OLDER)).await
}

pub fn put_older(txn: &mut Transaction, older: &Older) {
    txn.set(keys::single(keys::OLDER), older.to_bytes());
}
