//! Files whose mirrors are to be made equal again, or made anew: a durable queue with one row per file.
//!
//! The row is there exactly while the layout is [`Layout::is_degraded`]: every function that changes a layout
//! keeps it so, in the same transaction. What a replacement is filled into is no part of the layout before it is
//! whole; until then, and for what it replaced afterwards, a spare row says that the data file may have to be
//! removed.

use bytes::Bytes;
use sluice_kv::Transaction;

use crate::codec::{Reader, Writer};
use crate::data_file::{DataFile, Layout};
use crate::error::FsError;
use crate::inode::Inode;
use crate::keys::{self, DataFileId, FileId, InodeKey, Statistic, StoreId};
use crate::{Namespace, fetch};

/// A data file that is being filled to take the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Slot of the one that goes.
    pub old: u16,
    pub new: DataFile,
}

/// A file that waits to be healed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heal {
    pub inode: InodeKey,
    /// No slot number at or above it was used for a replacement since this row is there. What was before it
    /// [`Layout::greatest`] says.
    next_slot: u16,
    pub replacements: Vec<Replacement>,
}

/// Data files that hold now what their column holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Healed {
    /// Of the layout that was healed; another one is left alone.
    pub id: DataFileId,
    /// Those that were stale, or were replaced.
    pub slots: Vec<HealedSlot>,
    /// Mirrors that are not stale might differ when it was planned.
    pub dirty: bool,
    /// All mirrors that are not stale are equal.
    pub equal: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealedSlot {
    pub slot: u16,
    pub generation: u16,
    /// Where its bytes are now: its own place, or that of what replaces it.
    pub filled: (StoreId, u16),
    /// There is a data file now; its column may hold nothing at all.
    pub exists: bool,
}

/// A data file outside of every layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    pub id: DataFileId,
    pub slot: u16,
    pub store: StoreId,
    pub generation: u16,
}

impl Heal {
    /// Nothing is planned for it.
    pub fn of(inode: InodeKey) -> Self {
        Self { inode, next_slot: 0, replacements: Vec::new() }
    }

    fn encode(&self) -> Bytes {
        let mut w = Writer::default();
        w.u8(1);
        self.inode.encode(&mut w);
        w.u16(self.next_slot).u16(u16::try_from(self.replacements.len()).unwrap_or(u16::MAX));
        for r in &self.replacements {
            w.u16(r.old).u16(r.new.store.0).u16(r.new.slot).u16(r.new.generation);
        }
        w.finish()
    }

    pub(crate) fn decode(value: Bytes) -> Result<Self, FsError> {
        let mut r = Reader::new("heal row", value);
        r.schema(1)?;
        let (inode, next_slot) = (InodeKey::decode(&mut r)?, r.u16()?);
        let count = r.u16()?;
        let mut replacements = Vec::new();
        for _ in 0..count {
            let (old, store, slot, generation) = (r.u16()?, StoreId(r.u16()?), r.u16()?, r.u16()?);
            let new = DataFile { store, slot, generation, ..DataFile::default() };
            replacements.push(Replacement { old, new });
        }
        r.finish()?;
        Ok(Self { inode, next_slot, replacements })
    }

    /// What is to take the place of this slot.
    pub fn replacement(&self, slot: u16) -> Option<DataFile> {
        self.replacements.iter().find(|r| r.old == slot).map(|r| r.new)
    }
}

impl Spare {
    pub(crate) fn put(&self, txn: &mut Transaction) {
        let mut w = Writer::default();
        w.u8(1).u16(self.store.0).u16(self.generation);
        txn.set(keys::spare(self.id, self.slot), w.finish());
    }

    pub(crate) fn decode(key: &Bytes, value: Bytes) -> Result<Self, FsError> {
        let (id, slot) = keys::spare_of(key)?;
        let mut r = Reader::new("spare data file", value);
        r.schema(1)?;
        let (store, generation) = (StoreId(r.u16()?), r.u16()?);
        r.finish()?;
        Ok(Self { id, slot, store, generation })
    }
}

/// Keeps the queue and its counter in step with a layout that changes.
pub(crate) fn track(txn: &mut Transaction, key: &InodeKey, before: bool, after: bool) {
    match (before, after) {
        (false, true) => {
            txn.set(keys::by_u64(keys::HEAL, key.fileid.0), Heal::of(*key).encode());
            fetch::count(txn, Statistic::Degraded, key.fileid, 1);
        }
        (true, false) => {
            txn.clear(keys::by_u64(keys::HEAL, key.fileid.0));
            fetch::count(txn, Statistic::Degraded, key.fileid, -1);
        }
        _ => {}
    }
}

/// One that was withdrawn, or given up, keeps its number until it is gone: the greatest of those.
pub(crate) async fn greatest_spare(txn: &Transaction, id: DataFileId) -> Result<Option<u16>, FsError> {
    let spares = txn.snapshot_range(&keys::spares(id), 1, true).await?;
    Ok(spares.first().map(|(key, _)| keys::spare_of(key)).transpose()?.map(|(_, slot)| slot))
}

impl Namespace {
    /// Files to heal after file `after`, at most `limit`.
    pub async fn heals(
        &self,
        txn: &Transaction,
        after: Option<FileId>,
        limit: usize,
    ) -> Result<Vec<Heal>, FsError> {
        let range = keys::from_u64(keys::HEAL, after.map(|f| f.0));
        let rows = txn.snapshot_range(&range, limit, false).await?;
        rows.into_iter().map(|(_, value)| Heal::decode(value)).collect()
    }

    /// What is planned for a file, if it is to be healed.
    pub async fn heal(&self, txn: &Transaction, file: FileId) -> Result<Option<Heal>, FsError> {
        let value = txn.get(&keys::by_u64(keys::HEAL, file.0)).await?;
        value.map(Heal::decode).transpose()
    }

    /// A data file of `store` is to take the place of slot `old`, once it has been filled. One planned
    /// before for the same slot is given up.
    ///
    /// Errors: Stale, WrongType, Invalid (no such slot, or the store holds a mirror of it or is to), NoSpace
    /// (slot numbers are used up).
    pub async fn plan_replacement(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        old: u16,
        store: StoreId,
    ) -> Result<DataFile, FsError> {
        let mut row = self.heal(txn, key.fileid).await?.unwrap_or(Heal::of(*key));
        let planned = |layout: &mut Layout| {
            let column = layout.column_mut(old).ok_or(FsError::Invalid)?;
            let comes = |s: &DataFile| row.replacement(s.slot).is_some_and(|new| new.store == store);
            if column.iter().any(|s| s.store == store || (s.slot != old && comes(s))) {
                return Err(FsError::Invalid);
            }
            column.iter_mut().filter(|s| s.slot == old).for_each(|s| s.moving = true);
            Ok(true)
        };
        let inode = self.change_layout(txn, key, planned).await?;
        let layout = inode.layout().ok_or(FsError::Invalid)?;
        let greatest = layout.greatest().ok_or(FsError::Invalid)?;
        let last = greatest_spare(txn, layout.id).await?.unwrap_or(0).max(greatest.slot);
        let slot = last.checked_add(1).ok_or(FsError::NoSpace)?.max(row.next_slot);
        row.next_slot = slot.checked_add(1).ok_or(FsError::NoSpace)?;
        let generation = greatest.generation;
        // It may have to be said that this one was given up.
        generation.checked_add(1).ok_or(FsError::NoSpace)?;
        let new = DataFile { store, slot, generation, ..DataFile::default() };
        row.replacements.retain(|r| r.old != old);
        row.replacements.push(Replacement { old, new });
        txn.set(keys::by_u64(keys::HEAL, key.fileid.0), row.encode());
        Spare { id: layout.id, slot, store, generation: new.generation }.put(txn);
        Ok(new)
    }

    /// Nothing is to take the place of slot `old` any more, as `store` was to; what was filled there is removed. False:
    /// that was not planned.
    ///
    /// Errors: Stale, WrongType, Invalid (there is no layout).
    pub async fn withdraw_replacement(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        old: u16,
        store: StoreId,
    ) -> Result<bool, FsError> {
        let Some(mut row) = self.heal(txn, key.fileid).await? else { return Ok(false) };
        let Some(new) = row.replacement(old).filter(|new| new.store == store) else { return Ok(false) };
        let stays = |layout: &mut Layout| {
            let file = layout.data_file_mut(old).ok_or(FsError::Invalid)?;
            file.moving = false;
            // The row may go, and then its number is known here only.
            layout.gives_up(new.generation);
            Ok(true)
        };
        let inode = self.change_layout(txn, key, stays).await?;
        // The last one took the row with it.
        if inode.layout().is_some_and(Layout::is_degraded) {
            row.replacements.retain(|r| r.old != old);
            txn.set(keys::by_u64(keys::HEAL, key.fileid.0), row.encode());
        }
        Ok(true)
    }

    /// Mirrors are equal again; replacements take their places.
    ///
    /// Errors: Stale, WrongType, Invalid (the layout, where they are to be, or whether mirrors may differ, has changed since they
    /// were filled).
    pub async fn healed(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        healed: &Healed,
    ) -> Result<Inode, FsError> {
        let mut row = self.heal(txn, key.fileid).await?.ok_or(FsError::Invalid)?;
        let mut gone = Vec::new();
        let inode = self
            .change_layout(txn, key, |layout| {
                // What came to differ meanwhile nobody has compared.
                if layout.id != healed.id || layout.mirrors_dirty != healed.dirty {
                    return Err(FsError::Invalid);
                }
                for done in &healed.slots {
                    let file = layout.data_file_mut(done.slot).filter(|f| f.generation == done.generation);
                    let file = file.ok_or(FsError::Invalid)?;
                    let new = row.replacement(done.slot);
                    // It may have been sent elsewhere since it was filled.
                    let planned = new.unwrap_or(*file);
                    if (planned.store, planned.slot) != done.filled {
                        return Err(FsError::Invalid);
                    }
                    if let Some(new) = new {
                        gone.push((*file, new));
                        *file = new;
                    }
                    (file.stale, file.materialised) = (false, done.exists);
                }
                layout.mirrors_dirty &= !healed.equal;
                if layout.is_valid() { Ok(true) } else { Err(FsError::Invalid) }
            })
            .await?;
        for (old, new) in gone {
            row.replacements.retain(|r| r.old != old.slot);
            txn.clear(keys::spare(healed.id, new.slot));
            Spare { id: healed.id, slot: old.slot, store: old.store, generation: old.generation }.put(txn);
        }
        if inode.layout().is_some_and(Layout::is_degraded) {
            txn.set(keys::by_u64(keys::HEAL, key.fileid.0), row.encode());
        }
        Ok(inode)
    }

    /// Data files outside of layouts, after `after`, at most `limit`. One that some [`Heal`] fills is to stay.
    pub async fn spares(
        &self,
        txn: &Transaction,
        after: Option<(DataFileId, u16)>,
        limit: usize,
    ) -> Result<Vec<Spare>, FsError> {
        let whole = keys::table(keys::SPARE);
        let range = match after {
            None => whole,
            Some((id, slot)) => keys::after(&keys::spare(id, slot), &whole),
        };
        let rows = txn.snapshot_range(&range, limit, false).await?;
        rows.into_iter().map(|(key, value)| Spare::decode(&key, value)).collect()
    }

    /// Whether it may be removed: it is a spare still, and no heal is filling it.
    pub async fn spare_may_go(&self, txn: &Transaction, spare: &Spare) -> Result<bool, FsError> {
        // It may have got its place in the layout since it was seen.
        let key = keys::spare(spare.id, spare.slot);
        let now = txn.get(&key).await?.map(|value| Spare::decode(&key, value)).transpose()?;
        if now.as_ref() != Some(spare) {
            return Ok(false);
        }
        let Some(key) = self.data_file_owner(txn, spare.id).await? else { return Ok(true) };
        let row = self.heal(txn, key.fileid).await?;
        Ok(!row.is_some_and(|row| row.replacements.iter().any(|r| r.new.slot == spare.slot)))
    }

    /// It is gone from its store.
    pub fn spare_done(&self, txn: &mut Transaction, spare: &Spare) {
        txn.clear(keys::spare(spare.id, spare.slot));
    }

    /// The name that an inode was made under, if it still has it.
    pub async fn first_name(&self, txn: &Transaction, key: &InodeKey) -> Result<Option<Bytes>, FsError> {
        let Some(value) = txn.get(&keys::dirent(key.home, key.cookie)).await? else { return Ok(None) };
        let stored = crate::dirent::Stored::decode(key.home, key.cookie, value)?;
        Ok(stored.entry.filter(|entry| entry.inode == *key).map(|entry| entry.name))
    }

    /// Some data files' owners after data file `after`, at most `limit`: to look for what is on a store.
    pub async fn data_file_owners(
        &self,
        txn: &Transaction,
        after: Option<DataFileId>,
        limit: usize,
    ) -> Result<Vec<(DataFileId, InodeKey)>, FsError> {
        let range = keys::from_u64(keys::DATA_FILE, after.map(|id| id.0));
        let rows = txn.snapshot_range(&range, limit, false).await?;
        let owner = |(key, value): (Bytes, Bytes)| {
            Ok((keys::data_file_of(&key)?, crate::layout::decode_key("data file owner", value)?))
        };
        rows.into_iter().map(owner).collect()
    }
}
