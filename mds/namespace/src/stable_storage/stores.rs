//! The data servers' stores, what they are yet to be told, and the capability epochs and keys.

use bytes::Bytes;
use sluice_kv::Transaction;

use super::{Row, decode_list, encode_list, get, list};
use crate::class::Class;
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys::{self, DataFileId, Sequence, StoreId};
use crate::sequence::lease_block;

/// Where clients reach a data server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// An IP address in text.
    pub host: Bytes,
    pub port: u16,
}

/// What an administrator wants of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreState {
    /// New files are placed on it.
    #[default]
    Active,
    /// It serves what it has; nothing new is placed on it.
    Draining,
    /// It is out: handles to it are not made any more.
    Removed,
}

impl StoreState {
    fn encode(self) -> u8 {
        match self {
            Self::Active => 0,
            Self::Draining => 1,
            Self::Removed => 2,
        }
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        match r.u8()? {
            0 => Ok(Self::Active),
            1 => Ok(Self::Draining),
            2 => Ok(Self::Removed),
            _ => Err(r.corrupt()),
        }
    }
}

/// A registered store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    pub id: StoreId,
    /// Its own, in its superblock.
    pub uuid: [u8; 16],
    pub addresses: Vec<StoreAddress>,
    pub state: StoreState,
    /// Bytes, as last told.
    pub total_bytes: u64,
    /// Bytes, as last told.
    pub free_bytes: u64,
    pub class: Option<Class>,
}

/// It has no class. Releases that know none read it.
const PLAIN: u8 = 1;
/// It has one: such a release would place on it what is to be elsewhere, and move what is there to others, and refuses the store
/// instead.
const WITH_CLASS: u8 = 2;

impl Row for Store {
    const WHAT: &'static str = "store row";
    const SCHEMA: u8 = WITH_CLASS;
    fn encode(&self, w: &mut Writer) {
        w.u16(self.id.0).raw(&self.uuid).u8(self.state.encode());
        w.u64(self.total_bytes).u64(self.free_bytes);
        encode_list(w, &self.addresses, |a, w| {
            w.bytes(&a.host).u16(a.port);
        });
        if let Some(class) = &self.class {
            class.encode(w);
        }
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self {
            id: StoreId(r.u16()?),
            uuid: r.array()?,
            state: StoreState::decode(r)?,
            total_bytes: r.u64()?,
            free_bytes: r.u64()?,
            addresses: decode_list(r, |r| Ok(StoreAddress { host: r.bytes()?, port: r.u16()? }))?,
            class: None,
        })
    }

    fn schema(&self) -> u8 {
        if self.class.is_some() { WITH_CLASS } else { PLAIN }
    }

    fn decode_more(&mut self, schema: u8, r: &mut Reader) -> Result<(), FsError> {
        if schema == WITH_CLASS {
            self.class = Some(Class::decode(r)?);
        }
        Ok(())
    }
}

struct StoreNumber(StoreId);

impl Row for StoreNumber {
    const WHAT: &'static str = "store uuid row";
    fn encode(&self, w: &mut Writer) {
        w.u16(self.0.0);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self(StoreId(r.u16()?)))
    }
}

pub async fn store(txn: &Transaction, id: StoreId) -> Result<Option<Store>, FsError> {
    get(txn, &keys::store(id)).await
}

/// The store with this uuid, registered now if it is new: ids are given once and never reused.
/// [`FsError::NoSpace`] after 65535.
pub async fn store_by_uuid(txn: &mut Transaction, uuid: &[u8; 16]) -> Result<Store, FsError> {
    if let Some(StoreNumber(id)) = get(txn, &keys::store_uuid(uuid)).await? {
        return store(txn, id).await?.ok_or(FsError::corrupt("store without row"));
    }
    let next = lease_block(txn, Sequence::Store, 1).await?.start;
    let id = StoreId(u16::try_from(next).map_err(|_| FsError::NoSpace)?);
    let store = Store {
        id,
        uuid: *uuid,
        addresses: Vec::new(),
        state: StoreState::Active,
        total_bytes: 0,
        free_bytes: 0,
        class: None,
    };
    txn.set(keys::store_uuid(uuid), StoreNumber(id).to_bytes());
    put_store(txn, &store);
    Ok(store)
}

/// Writes the row of a store registered before.
pub fn put_store(txn: &mut Transaction, store: &Store) {
    txn.set(keys::store(store.id), store.to_bytes());
}

/// Stores after id `after`.
pub async fn stores(txn: &Transaction, after: Option<StoreId>, limit: usize) -> Result<Vec<Store>, FsError> {
    let whole = keys::table(keys::STORE);
    let range = after.map_or_else(|| whole.clone(), |id| keys::after(&keys::store(id), &whole));
    list(txn, &range, limit).await
}

/// What a data server must refuse from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Everything of a holder.
    Holder { holder: u32 },
    /// A holder on one file.
    HolderFile { holder: u32, file: DataFileId },
    /// Older generations of one data file.
    Generation { file: DataFileId, slot: u16, generation: u16 },
}

/// A fence that a store has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingFence {
    pub store: StoreId,
    /// Leased from [`Sequence::Fence`].
    pub id: u64,
    pub fence: Fence,
    /// The capability epoch it dies with.
    pub epoch: u32,
}

impl Row for PendingFence {
    const WHAT: &'static str = "fence row";
    fn encode(&self, w: &mut Writer) {
        w.u16(self.store.0).u64(self.id).u32(self.epoch);
        match self.fence {
            Fence::Holder { holder } => w.u8(0).u32(holder),
            Fence::HolderFile { holder, file } => w.u8(1).u32(holder).u64(file.0),
            Fence::Generation { file, slot, generation } => w.u8(2).u64(file.0).u16(slot).u16(generation),
        };
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let (store, id, epoch) = (StoreId(r.u16()?), r.u64()?, r.u32()?);
        let fence = match r.u8()? {
            0 => Fence::Holder { holder: r.u32()? },
            1 => Fence::HolderFile { holder: r.u32()?, file: DataFileId(r.u64()?) },
            2 => Fence::Generation { file: DataFileId(r.u64()?), slot: r.u16()?, generation: r.u16()? },
            _ => return Err(r.corrupt()),
        };
        Ok(Self { store, id, fence, epoch })
    }
}

pub fn put_fence(txn: &mut Transaction, fence: &PendingFence) {
    txn.set(keys::fence(fence.store, fence.id), fence.to_bytes());
}

/// What [`put_fence`] writes, and nothing else: IDs are never used twice.
pub fn witness_of_fence(fence: &PendingFence) -> Bytes {
    keys::fence(fence.store, fence.id)
}

/// The store has made it durable.
pub fn clear_fence(txn: &mut Transaction, store: StoreId, id: u64) {
    txn.clear(keys::fence(store, id));
}
/// Fences that a store has not acknowledged, by their numbers, after `after`.
pub async fn fences(
    txn: &Transaction,
    store: StoreId,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<PendingFence>, FsError> {
    let whole = keys::fences(store);
    let range = after.map_or_else(|| whole.clone(), |id| keys::after(&keys::fence(store, id), &whole));
    list(txn, &range, limit).await
}
/// Drops up to `limit` fences of a store that died with epochs below `oldest`; true when none may be left.
pub async fn retire_fences(
    txn: &mut Transaction,
    store: StoreId,
    oldest: u32,
    after: &mut Option<u64>,
    limit: usize,
) -> Result<bool, FsError> {
    let found = fences(txn, store, *after, limit).await?;
    for fence in found.iter().filter(|f| f.epoch < oldest) {
        clear_fence(txn, store, fence.id);
    }
    *after = found.last().map(|f| f.id).or(*after);
    Ok(found.len() < limit)
}

/// A key that capabilities are sealed with.
#[derive(Clone, PartialEq, Eq)]
pub struct CapabilityKey {
    pub id: u8,
    /// The capability epoch it was first used in.
    pub epoch: u32,
    pub key: [u8; 32],
}

impl std::fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapabilityKey")
            .field("id", &self.id)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// Which capabilities are good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapabilityEpochs {
    /// New ones are made in it.
    pub current: u32,
    /// Older ones are refused.
    pub oldest: u32,
    /// The newest last.
    pub keys: Vec<CapabilityKey>,
}

impl CapabilityKey {
    /// The epoch of a key that data servers are being told of: nothing is sealed with it yet.
    pub const ANNOUNCED: u32 = u32::MAX;
}

impl CapabilityEpochs {
    /// The keys of handles that are good, the newest last.
    pub fn opening(&self) -> impl DoubleEndedIterator<Item = &CapabilityKey> {
        self.keys.iter().filter(|key| key.epoch != CapabilityKey::ANNOUNCED)
    }

    /// What capabilities of the current epoch are sealed with.
    #[must_use]
    pub fn sealing(&self) -> Option<&CapabilityKey> {
        self.opening().next_back()
    }

    /// The key that comes next.
    #[must_use]
    pub fn announced(&self) -> Option<&CapabilityKey> {
        self.keys.last().filter(|key| key.epoch == CapabilityKey::ANNOUNCED)
    }

    /// A key comes next, unless one does already.
    pub fn announce(&mut self, key: [u8; 32]) {
        if self.announced().is_some() {
            return;
        }
        let newest = self.keys.last().map_or(0, |key| key.id);
        // Of 256 ids a few are taken.
        let mut ids = (1..=u8::MAX).map(|step| newest.wrapping_add(step));
        if let Some(id) = ids.find(|id| self.keys.iter().all(|key| key.id != *id)) {
            self.keys.push(CapabilityKey { id, epoch: CapabilityKey::ANNOUNCED, key });
        }
    }

    /// The next epoch begins, and with it the key that was announced.
    pub fn turn_key(&mut self) {
        self.current += 1;
        let current = self.current;
        if let Some(key) = self.keys.last_mut().filter(|key| key.epoch == CapabilityKey::ANNOUNCED) {
            key.epoch = current;
        }
    }

    /// Epochs before this one are over, and the keys that no other one used.
    pub fn retire(&mut self, oldest: u32) {
        self.oldest = self.oldest.max(oldest);
        let over = |next: &CapabilityKey| next.epoch <= self.oldest;
        let dead = self.keys.iter().skip(1).take_while(|next| over(next)).count();
        self.keys.drain(..dead);
    }
}

impl Row for CapabilityEpochs {
    const WHAT: &'static str = "capability epochs";
    fn encode(&self, w: &mut Writer) {
        w.u32(self.current).u32(self.oldest);
        encode_list(w, &self.keys, |k, w| {
            w.u8(k.id).u32(k.epoch).raw(&k.key);
        });
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self {
            current: r.u32()?,
            oldest: r.u32()?,
            keys: decode_list(r, |r| Ok(CapabilityKey { id: r.u8()?, epoch: r.u32()?, key: r.array()? }))?,
        })
    }
}

pub async fn capability_epochs(txn: &Transaction) -> Result<Option<CapabilityEpochs>, FsError> {
    get(txn, &keys::single(keys::CAPABILITY)).await
}
pub fn put_capability_epochs(txn: &mut Transaction, epochs: &CapabilityEpochs) {
    txn.set(keys::single(keys::CAPABILITY), epochs.to_bytes());
}

/// The row of a store, for the checker.
pub(crate) fn decode_store(value: Bytes) -> Result<Store, FsError> {
    Store::from_bytes(value)
}

/// The row of a store's uuid, for the checker.
pub(crate) fn decode_store_number(value: Bytes) -> Result<StoreId, FsError> {
    StoreNumber::from_bytes(value).map(|number| number.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_a_class_is_as_it_was_and_one_with_it_is_closed_to_who_knows_none() {
        let plain = Store {
            id: StoreId(3),
            uuid: [7; 16],
            addresses: vec![StoreAddress { host: "10.0.0.1".into(), port: 2050 }],
            state: StoreState::Draining,
            total_bytes: 100,
            free_bytes: 50,
            class: None,
        };
        assert_eq!(plain.to_bytes().first(), Some(&1));
        assert_eq!(Store::from_bytes(plain.to_bytes()).unwrap(), plain);
        let classed = Store { class: Class::parse("archive"), ..plain.clone() };
        assert_eq!(classed.to_bytes().first(), Some(&2));
        assert_eq!(Store::from_bytes(classed.to_bytes()).unwrap(), classed);
        // As the release before reads it.
        let error = Reader::new(Store::WHAT, classed.to_bytes()).schema(1).unwrap_err().to_string();
        assert_eq!(error, "store row: schema 2 is newer than this software reads (up to 1); upgrade it");
        let cut = classed.to_bytes();
        assert!(Store::from_bytes(cut.slice(..cut.len() - 1)).is_err());
        // Back without it, the row is one that everybody reads.
        assert_eq!(Store { class: None, ..classed }.to_bytes(), plain.to_bytes());
    }
}
