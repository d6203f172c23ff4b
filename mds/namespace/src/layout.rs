//! The layout description of a file over time: chosen, handed out, written to, re-placed.
//!
//! None of this moves the change attribute: clients see data, not where it is.

use bytes::Bytes;
use sluice_kv::Transaction;

use crate::codec::{Reader, Writer};
use crate::data_file::{Component, Layout};
use crate::error::FsError;
use crate::inline::Inline;
use crate::inode::{Inode, Node};
use crate::keys::{self, DataFileId, FileId, InodeKey, StoreId};
use crate::truncate::truncate_intent;
use crate::{Namespace, fetch, heal};

/// What a layout is wanted for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutNeed {
    /// The description to take if the file has none.
    pub propose: Option<Layout>,
    /// What the inode said of a file without data files when that was chosen.
    pub inline: Option<Inline>,
    /// The component that holds each of these bytes (by offset range) goes out to a client and may
    /// not be re-placed any more.
    pub hand_out: Option<std::ops::Range<u64>>,
    /// Somebody will write: the size is unsettled from now on.
    pub read_write: bool,
}

/// A file ready for a layout to be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignedLayout {
    pub inode: Inode,
    /// The proposal was taken.
    pub assigned: bool,
}

impl Namespace {
    /// Makes ready what must be durable before a layout goes out. Costs no write when everything was
    /// ready before.
    ///
    /// Errors: Stale, WrongType, Busy (a truncation is under way, or the proposal is for a file that has changed since), Invalid (no
    /// layout and no valid proposal).
    pub async fn prepare_layout(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        need: &LayoutNeed,
    ) -> Result<AssignedLayout, FsError> {
        if truncate_intent(txn, key.fileid).await?.is_some() {
            return Err(FsError::Busy);
        }
        let mut inode = fetch::inode(txn, key, self.base()).await?;
        let Node::File(file) = &mut inode.record.node else { return Err(FsError::WrongType) };
        let assigned = file.layout.is_none();
        if assigned {
            // What it holds must be at data servers first: `Namespace::promote`.
            let inline = file.inline.take();
            if inline.is_some() && (file.size > 0 || inline != need.inline) {
                return Err(FsError::Busy);
            }
            let proposal = need.propose.clone().filter(Layout::is_valid).ok_or(FsError::Invalid)?;
            put_owner(txn, proposal.id, key);
            file.layout = Some(proposal);
        }
        let mut changed = assigned;
        if let (Some(bytes), Some(layout)) = (&need.hand_out, &mut file.layout) {
            for c in layout.components.iter_mut().filter(|c| c.start < bytes.end && bytes.start < c.end) {
                changed |= !c.handed_out;
                c.handed_out = true;
            }
        }
        if changed {
            fetch::put_quietly(txn, key, &inode.record);
        }
        if need.read_write && !is_read_write(txn, key.fileid).await? {
            put_read_write(txn, key);
        }
        Ok(AssignedLayout { inode, assigned })
    }

    /// Replaces a component that no client has seen, because a data server is full or gone.
    ///
    /// Errors: Stale, WrongType, Invalid (handed out, or not a valid replacement).
    pub async fn replace_component(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        index: usize,
        new: Component,
    ) -> Result<Inode, FsError> {
        self.change_layout(txn, key, |layout| {
            let component = layout.components.get_mut(index).ok_or(FsError::Invalid)?;
            if component.handed_out || component.start != new.start || component.end != new.end {
                return Err(FsError::Invalid);
            }
            *component = new;
            if layout.is_valid() { Ok(true) } else { Err(FsError::Invalid) }
        })
        .await
    }

    /// A data server wrote these data files (by slot and generation) for the first time. Generation 0 is one that
    /// the data server does not know any more: it opened the file again before it could report it. Unknown ids are ignored: the
    /// file is gone. So is what was placed elsewhere meanwhile, and of what was left behind the work of handles from before: it
    /// is healed, which finds out.
    pub async fn materialised(
        &self,
        txn: &mut Transaction,
        (store, id): (StoreId, DataFileId),
        slots: &[(u16, u16)],
    ) -> Result<(), FsError> {
        let Some(key) = self.data_file_owner(txn, id).await? else { return Ok(()) };
        let mark = |layout: &mut Layout| {
            let mut changed = false;
            for s in layout.components.iter_mut().flat_map(|c| &mut c.slots) {
                let of_it = |generation| match generation {
                    0 => true,
                    // Whoever wrote it did so with a handle of before, which was good.
                    earlier if earlier < s.generation => !s.stale,
                    now => now == s.generation,
                };
                let reported = slots.iter().any(|&(slot, generation)| slot == s.slot && of_it(generation));
                if !s.materialised && reported && s.store == store {
                    s.materialised = true;
                    changed = true;
                }
            }
            Ok(changed)
        };
        self.change_layout(txn, &key, mark).await?;
        Ok(())
    }

    /// Raises the generation of these slots: handles made before must die.
    pub async fn raise_generation(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        slots: &[u16],
    ) -> Result<Inode, FsError> {
        self.change_layout(txn, key, |layout| {
            for s in layout.components.iter_mut().flat_map(|c| &mut c.slots) {
                if slots.contains(&s.slot) {
                    s.generation = s.generation.checked_add(1).ok_or(FsError::NoSpace)?;
                }
            }
            Ok(!slots.is_empty())
        })
        .await
    }

    /// These slots miss writes from now on: nothing reads them, and handles made before die with their
    /// generation. Slots marked before are left alone.
    ///
    /// Errors: Stale, WrongType, Invalid (no layout, or a column would be left without a good mirror).
    pub async fn leave_behind(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        slots: &[u16],
    ) -> Result<Inode, FsError> {
        self.change_layout(txn, key, |layout| {
            let mut changed = false;
            for c in &mut layout.components {
                for s in c.slots.iter_mut().filter(|s| slots.contains(&s.slot) && !s.stale) {
                    s.generation = s.generation.checked_add(1).ok_or(FsError::NoSpace)?;
                    s.stale = true;
                    changed = true;
                }
                let mirrors = usize::from(c.mirrors.max(1));
                if c.slots.chunks(mirrors).any(|column| column.iter().all(|s| s.stale)) {
                    return Err(FsError::Invalid);
                }
            }
            if changed && !layout.has_copies() {
                // The last copy is the truth.
                layout.mirrors_dirty = false;
            }
            Ok(changed)
        })
        .await
    }

    /// The mirrors are equal again, or may not be. That they may not be is written though it was known: a heal that ends at the
    /// same time has compared before it was said again, and must not come behind it.
    pub async fn set_mirrors_dirty(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        dirty: bool,
    ) -> Result<Inode, FsError> {
        self.change_layout(txn, key, |layout| {
            Ok(std::mem::replace(&mut layout.mirrors_dirty, dirty) != dirty || dirty)
        })
        .await
    }

    pub(crate) async fn change_layout(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        change: impl FnOnce(&mut Layout) -> Result<bool, FsError>,
    ) -> Result<Inode, FsError> {
        let mut inode = fetch::inode(txn, key, self.base()).await?;
        let Node::File(file) = &mut inode.record.node else { return Err(FsError::WrongType) };
        let layout = file.layout.as_mut().ok_or(FsError::Invalid)?;
        let (before, greatest) = (layout.is_degraded(), layout.greatest().copied());
        if change(layout)? {
            greatest.into_iter().for_each(|greatest| layout.remembers(greatest));
            heal::track(txn, key, before, layout.is_degraded());
            fetch::put_quietly(txn, key, &inode.record);
        }
        Ok(inode)
    }

    /// The inode whose data files have this id; `None` if it is gone (or in the garbage queue).
    pub async fn data_file_owner(
        &self,
        txn: &Transaction,
        id: DataFileId,
    ) -> Result<Option<InodeKey>, FsError> {
        let value = txn.get(&keys::by_u64(keys::DATA_FILE, id.0)).await?;
        value.map(|v| decode_key("data file owner", v)).transpose()
    }

    /// A read-write layout goes out: durable before its reply (DESIGN §6).
    pub fn mark_read_write(&self, txn: &mut Transaction, key: &InodeKey) {
        put_read_write(txn, key);
    }

    /// The last read-write layout came back cleanly.
    pub fn clear_read_write(&self, txn: &mut Transaction, key: &InodeKey) {
        clear_read_write(txn, key);
    }

    /// Whether a read-write layout may be out.
    pub async fn is_read_write(&self, txn: &Transaction, file: FileId) -> Result<bool, FsError> {
        is_read_write(txn, file).await
    }

    /// Files of which a read-write layout may be out, after file `after`, at most `limit`: to be
    /// settled after a restart.
    pub async fn read_write_files(
        &self,
        txn: &Transaction,
        after: Option<FileId>,
        limit: usize,
    ) -> Result<Vec<InodeKey>, FsError> {
        let range = keys::from_u64(keys::RW_LAYOUT, after.map(|f| f.0));
        let rows = txn.range(&range, limit, false).await?;
        rows.into_iter().map(|(_, value)| decode_key("read-write layout row", value)).collect()
    }
}

/// Whether the same data files are there, with as many mirrors: what was chosen in their place is as they are.
pub(crate) fn is_still(now: Option<&Layout>, then: Option<&Layout>) -> bool {
    fn shape(layout: &Layout) -> impl Iterator<Item = (u64, u64, u16)> {
        layout.components.iter().map(|component| (component.start, component.end, component.mirrors))
    }
    match (now, then) {
        (Some(now), Some(then)) => now.id == then.id && shape(now).eq(shape(then)),
        (now, then) => now.is_none() && then.is_none(),
    }
}

pub(crate) fn encode_key(key: &InodeKey) -> Bytes {
    let mut w = Writer::with_capacity(1 + InodeKey::SIZE);
    w.u8(1);
    key.encode(&mut w);
    w.finish()
}

pub(crate) fn decode_key(what: &'static str, value: Bytes) -> Result<InodeKey, FsError> {
    let mut r = Reader::new(what, value);
    r.schema(1)?;
    let key = InodeKey::decode(&mut r)?;
    r.finish()?;
    Ok(key)
}

pub(crate) fn put_owner(txn: &mut Transaction, id: DataFileId, key: &InodeKey) {
    txn.set(owner(id), encode_key(key));
}

pub(crate) fn clear_owner(txn: &mut Transaction, id: DataFileId) {
    txn.clear(owner(id));
}

/// The key of the row that says whose a data file is.
pub(crate) fn owner(id: DataFileId) -> Bytes {
    keys::by_u64(keys::DATA_FILE, id.0)
}

pub(crate) fn put_read_write(txn: &mut Transaction, key: &InodeKey) {
    txn.set(keys::by_u64(keys::RW_LAYOUT, key.fileid.0), encode_key(key));
}

pub(crate) fn clear_read_write(txn: &mut Transaction, key: &InodeKey) {
    txn.clear(keys::by_u64(keys::RW_LAYOUT, key.fileid.0));
}

async fn is_read_write(txn: &Transaction, file: FileId) -> Result<bool, FsError> {
    Ok(txn.get(&keys::by_u64(keys::RW_LAYOUT, file.0)).await?.is_some())
}

/// The rows of a file that goes away. One that never had data files has none of them, and to clear what is not there is as
/// much work for the store as to write it.
pub(crate) fn clear_rows(txn: &mut Transaction, key: &InodeKey, layout: Option<&Layout>) {
    let Some(layout) = layout else { return };
    clear_read_write(txn, key);
    txn.clear(keys::by_u64(keys::TRUNCATE, key.fileid.0));
    heal::track(txn, key, layout.is_degraded(), false);
    clear_owner(txn, layout.id);
}
