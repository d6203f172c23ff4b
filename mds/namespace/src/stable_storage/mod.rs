//! The tables that are not files: what a metadata server must find again after a restart.
//!
//! Each is a typed row with get, put, clear and list; lists come in pages of at most `limit` rows
//! after a given one. Like everything in this crate they act inside the caller's transaction.

mod balance;
mod client_names;
mod clients;
mod drains;
mod dumped;
mod epoch;
mod exports;
mod older;
mod stores;
mod tables;
mod tides;

use bytes::Bytes;
use sluice_kv::{KeyRange, Transaction};

pub use balance::{Balance, BalanceState, balance, put_balance};
pub use client_names::{BadClients, ClientName, Clients, Pattern, host_name};
pub use clients::{
    CallbackSecurity, Channel, ClientGuard, ClientHost, ClientRecord, Implementation, ReplyRow, ServerRecord,
    SessionRecord, clear_client, clear_client_guard, clear_client_host, clear_session, client, client_guards,
    client_hosts, clients, put_client, put_client_guard, put_client_host, put_reply, put_server, put_session,
    replies, reply, reply_key, server, session, sessions,
};
pub(crate) use drains::decode_drain;
pub use drains::{Drain, cancel_drain, drain, drains, put_drain, remove_store};
pub use dumped::{Dumped, dumped, put_dumped};
pub use epoch::{MdsEpoch, check_epoch, epoch, epoch_guard, take_epoch};
pub use exports::{
    BadNetwork, Export, Flavours, NOBODY, Network, Protection, Rule, Squash, clear_export, export, exports,
    put_export,
};
pub use older::{Older, older, put_older};
pub use stores::{
    CapabilityEpochs, CapabilityKey, Fence, PendingFence, Store, StoreAddress, StoreState, capability_epochs,
    clear_fence, fences, put_capability_epochs, put_fence, put_store, retire_fences, store, store_by_uuid,
    stores, witness_of_fence,
};
pub(crate) use stores::{decode_store, decode_store_number};
pub use tables::{PolicyRow, clear_policy, policies, policy, put_policy, statistic};
pub use tides::{Tide, put_tide, tide};

use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys;

/// A record with a schema version.
pub(crate) trait Row: Sized {
    /// In errors.
    const WHAT: &'static str;
    /// The newest version known.
    const SCHEMA: u8 = 1;
    fn encode(&self, w: &mut Writer);
    fn decode(r: &mut Reader) -> Result<Self, FsError>;

    /// The version that is written: the oldest that has all that is in this row.
    fn schema(&self) -> u8 {
        Self::SCHEMA
    }

    /// What this version has behind the fields of the first one.
    fn decode_more(&mut self, _schema: u8, _r: &mut Reader) -> Result<(), FsError> {
        Ok(())
    }

    /// Bytes that it takes, about: so much room is made for it.
    fn room(&self) -> usize {
        64
    }

    fn to_bytes(&self) -> Bytes {
        let mut w = Writer::with_capacity(self.room());
        w.u8(self.schema());
        self.encode(&mut w);
        w.finish()
    }

    fn from_bytes(value: Bytes) -> Result<Self, FsError> {
        let mut r = Reader::new(Self::WHAT, value);
        let schema = r.schema(Self::SCHEMA)?;
        let mut row = Self::decode(&mut r)?;
        row.decode_more(schema, &mut r)?;
        r.finish()?;
        Ok(row)
    }
}

/// Whether a row of one of these tables can be read.
pub(crate) fn readable(table: u8, value: Bytes) -> Result<(), FsError> {
    match table {
        keys::MDS_EPOCH => MdsEpoch::from_bytes(value).map(drop),
        keys::OLDER => Older::from_bytes(value).map(drop),
        keys::FENCE => PendingFence::from_bytes(value).map(drop),
        keys::CLIENT => ClientRecord::from_bytes(value).map(drop),
        keys::CLIENT_HOST => ClientHost::from_bytes(value).map(drop),
        keys::CLIENT_GUARD => ClientGuard::from_bytes(value).map(drop),
        keys::SESSION => SessionRecord::from_bytes(value).map(drop),
        keys::REPLY => ReplyRow::from_bytes(value).map(drop),
        keys::SERVER => ServerRecord::from_bytes(value).map(drop),
        keys::DUMPED => Dumped::from_bytes(value).map(drop),
        keys::CAPABILITY => CapabilityEpochs::from_bytes(value).map(drop),
        keys::EXPORT => Export::from_bytes(value).map(drop),
        keys::BALANCE => Balance::from_bytes(value).map(drop),
        keys::TIDE => Tide::from_bytes(value).map(drop),
        keys::POLICY => PolicyRow::from_bytes(value).map(drop),
        _ => Ok(()),
    }
}

async fn get<R: Row>(txn: &Transaction, key: &[u8]) -> Result<Option<R>, FsError> {
    txn.get(key).await?.map(R::from_bytes).transpose()
}

async fn list<R: Row>(txn: &Transaction, range: &KeyRange, limit: usize) -> Result<Vec<R>, FsError> {
    let rows = txn.range(range, limit, false).await?;
    rows.into_iter().map(|(_, value)| R::from_bytes(value)).collect()
}

/// A count of at most 65535 rows inside a record, then each.
fn encode_list<T>(w: &mut Writer, items: &[T], each: impl Fn(&T, &mut Writer)) {
    let n = u16::try_from(items.len()).unwrap_or(u16::MAX);
    w.u16(n);
    for item in items.iter().take(usize::from(n)) {
        each(item, w);
    }
}

fn decode_list<T>(
    r: &mut Reader,
    each: impl Fn(&mut Reader) -> Result<T, FsError>,
) -> Result<Vec<T>, FsError> {
    let n = r.u16()?;
    // No capacity is taken on trust: each item consumes bytes that are there.
    (0..n).map(|_| each(r)).collect()
}

fn encode_option<T>(w: &mut Writer, value: Option<&T>, each: impl FnOnce(&T, &mut Writer)) {
    w.bool(value.is_some());
    if let Some(value) = value {
        each(value, w);
    }
}

fn decode_option<T>(
    r: &mut Reader,
    each: impl FnOnce(&mut Reader) -> Result<T, FsError>,
) -> Result<Option<T>, FsError> {
    if r.bool()? { each(r).map(Some) } else { Ok(None) }
}
