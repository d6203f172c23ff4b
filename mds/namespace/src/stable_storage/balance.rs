//! Data files go from fuller data servers to emptier ones.

use sluice_kv::Transaction;

use super::{Row, decode_list, encode_list, get};
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys::{self, StoreId};

/// The balance that was asked for last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Seconds since 1970.
    pub since: i64,
    /// How far, in thousandths of a device, a data server may be from the mean.
    pub tolerance: u16,
    /// Bytes per second at most; 0: no limit.
    pub rate: u64,
    /// Data servers that give. No other one does, and they take nothing, so that nothing is moved twice.
    pub givers: Vec<StoreId>,
    pub state: BalanceState,
    /// Why it ended so, in words.
    pub why: String,
    /// Seconds since 1970; 0: it goes on.
    pub ended: i64,
    /// Data files moved, as of its end or a while ago.
    pub data_files: u64,
    /// The bytes in them.
    pub bytes: u64,
}

/// How a balance stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceState {
    Running,
    /// Every data server is as full as the mean, within the tolerance.
    Even,
    /// Nothing that is left may move.
    NothingMore,
    /// By an administrator.
    Stopped,
    /// What may move could not be moved.
    NoProgress,
}

impl BalanceState {
    const ALL: [Self; 5] = [Self::Running, Self::Even, Self::NothingMore, Self::Stopped, Self::NoProgress];

    fn number(self) -> u8 {
        match self {
            Self::Running => 0,
            Self::Even => 1,
            Self::NothingMore => 2,
            Self::Stopped => 3,
            Self::NoProgress => 4,
        }
    }
}

impl Row for Balance {
    const WHAT: &'static str = "balance row";
    fn encode(&self, w: &mut Writer) {
        w.u64(self.since.cast_unsigned()).u16(self.tolerance).u64(self.rate);
        encode_list(w, &self.givers, |store, w| {
            w.u16(store.0);
        });
        w.u8(self.state.number()).bytes(self.why.as_bytes()).u64(self.ended.cast_unsigned());
        w.u64(self.data_files).u64(self.bytes);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let (since, tolerance, rate) = (r.u64()?.cast_signed(), r.u16()?, r.u64()?);
        let givers = decode_list(r, |r| Ok(StoreId(r.u16()?)))?;
        let number = r.u8()?;
        let state = BalanceState::ALL.into_iter().find(|state| state.number() == number);
        Ok(Self {
            since,
            tolerance,
            rate,
            givers,
            state: state.ok_or(FsError::corrupt("state of a balance"))?,
            why: String::from_utf8_lossy(&r.bytes()?).into_owned(),
            ended: r.u64()?.cast_signed(),
            data_files: r.u64()?,
            bytes: r.u64()?,
        })
    }
}

pub async fn balance(txn: &Transaction) -> Result<Option<Balance>, FsError> {
    get(txn, &keys::single(keys::BALANCE)).await
}

pub fn put_balance(txn: &mut Transaction, balance: &Balance) {
    txn.set(keys::single(keys::BALANCE), balance.to_bytes());
}
