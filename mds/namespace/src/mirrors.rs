//! How many mirrors a file has that exists already.
//!
//! What is added is a mirror that missed every write so far: nobody reads it before it was healed. What is given up
//! is a spare from then on, to be removed. Slot numbers grow: the greatest of a layout is never given up, so that none that
//! was part of the file is used again.

use sluice_kv::Transaction;

use crate::data_file::{Component, DataFile, Layout};
use crate::error::FsError;
use crate::heal::{Spare, greatest_spare};
use crate::inode::{Inode, Node};
use crate::keys::{DataFileId, InodeKey, StoreId};
use crate::truncate::truncate_intent;
use crate::{Namespace, fetch};

/// A mirrored file is one segment to every client if it can be (docs/adr/0033): the first part of one that begins at one
/// data server becomes all of it while nobody has been behind that part.
pub fn is_one_segment_from_now_on(layout: &Layout, size: u64) -> bool {
    match layout.components.as_slice() {
        [first, rest @ ..] => {
            !rest.is_empty() && first.width == 1 && rest.iter().all(|c| c.is_untouched(size))
        }
        [] => false,
    }
}

impl Namespace {
    /// Every column that has fewer gets `mirrors` of them: `places` has the data servers to add, for each column of the layout
    /// in order (of its first component alone where it [`is_one_segment_from_now_on`]).
    ///
    /// Errors: Stale, WrongType, Busy (mirrors wait to be healed, or a truncation is under way), NoSpace (slot numbers are used
    /// up), Invalid (another layout than `id`, or `places` are not what it lacks, or are more than a component holds).
    pub async fn add_mirrors(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        id: DataFileId,
        mirrors: u16,
        places: &[Vec<StoreId>],
    ) -> Result<Inode, FsError> {
        let size = self.undisturbed(txn, key, id).await?;
        let spare = greatest_spare(txn, id).await?;
        self.change_layout(txn, key, |layout| {
            // What is left out below had its numbers, too.
            let greatest = *layout.greatest().ok_or(FsError::Invalid)?;
            if is_one_segment_from_now_on(layout, size) {
                layout.components.truncate(1);
                layout.components.iter_mut().for_each(|first| first.end = u64::MAX);
            }
            let mut last = DataFile { slot: greatest.slot.max(spare.unwrap_or(0)), ..greatest };
            let mut places = places.iter();
            for component in &mut layout.components {
                let columns = places.by_ref().take(component.width.into());
                grow(component, size, mirrors, columns, &mut last)?;
            }
            let fewer = layout.greatest().is_none_or(|now| now.slot < greatest.slot);
            if places.next().is_some() || fewer || !layout.is_valid() {
                Err(FsError::Invalid)
            } else {
                Ok(true)
            }
        })
        .await
    }

    /// These data files are no part of the file any more, and are removed: the same number of each column of a component, the rest
    /// of which has all of its bytes. Nobody may hold a layout that names them.
    ///
    /// Errors: Stale, WrongType, Busy (mirrors wait to be healed, or a truncation is under way), Invalid (another layout than
    /// `id`, a column would have no mirror, or not as many as others, or one has the greatest slot).
    pub async fn drop_mirrors(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        id: DataFileId,
        slots: &[u16],
    ) -> Result<Inode, FsError> {
        self.undisturbed(txn, key, id).await?;
        let mut gone = Vec::new();
        let inode = self
            .change_layout(txn, key, |layout| {
                let greatest = layout.data_files().map(|file| file.slot).max();
                if slots.iter().any(|slot| Some(*slot) == greatest) {
                    return Err(FsError::Invalid);
                }
                for component in &mut layout.components {
                    gone.append(&mut shrink(component, slots)?);
                }
                if gone.len() != slots.len() || !layout.is_valid() {
                    return Err(FsError::Invalid);
                }
                Ok(!gone.is_empty())
            })
            .await?;
        for DataFile { store, slot, generation, .. } in gone {
            Spare { id, slot, store, generation }.put(txn);
        }
        Ok(inode)
    }

    /// How many mirrors the data files of an inline file will have, should it get any. False: it said so before.
    ///
    /// Errors: Stale, WrongType, Invalid (it is not inline).
    pub async fn set_inline_mirrors(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        mirrors: u8,
    ) -> Result<bool, FsError> {
        let mut inode = fetch::inode(txn, key, self.base()).await?;
        let Node::File(file) = &mut inode.record.node else { return Err(FsError::WrongType) };
        let inline = file.inline.as_mut().ok_or(FsError::Invalid)?;
        let changed = std::mem::replace(&mut inline.mirrors, mirrors) != mirrors;
        if changed {
            fetch::put_quietly(txn, key, &inode.record);
        }
        Ok(changed)
    }

    /// The file's size, if nothing else is the matter with this layout of it.
    async fn undisturbed(&self, txn: &Transaction, key: &InodeKey, id: DataFileId) -> Result<u64, FsError> {
        if truncate_intent(txn, key.fileid).await?.is_some() {
            return Err(FsError::Busy);
        }
        let inode = fetch::inode(txn, key, self.base()).await?;
        let Some(file) = inode.file() else { return Err(FsError::WrongType) };
        match &file.layout {
            Some(layout) if layout.id == id && layout.is_degraded() => Err(FsError::Busy),
            Some(layout) if layout.id == id => Ok(file.size),
            _ => Err(FsError::Invalid),
        }
    }
}

/// Adds to each column what it lacks, numbered from behind `last` on and with its generation.
fn grow<'a>(
    component: &mut Component,
    size: u64,
    mirrors: u16,
    places: impl Iterator<Item = &'a Vec<StoreId>>,
    last: &mut DataFile,
) -> Result<(), FsError> {
    let lacks = usize::from(mirrors.saturating_sub(component.mirrors));
    // What nobody has written to is as good in one place as in another.
    let stale = !component.is_untouched(size);
    let mut slots = Vec::with_capacity(component.slots.len() + lacks * usize::from(component.width));
    let mut places = places.map(Vec::as_slice);
    for column in component.slots.chunks(usize::from(component.mirrors.max(1))) {
        let places = places.next().unwrap_or_default();
        let twice = |at: usize, store: &StoreId| {
            places.iter().take(at).chain(column.iter().map(|file| &file.store)).any(|other| other == store)
        };
        if places.len() != lacks || places.iter().enumerate().any(|(at, store)| twice(at, store)) {
            return Err(FsError::Invalid);
        }
        slots.extend_from_slice(column);
        for store in places {
            last.slot = last.slot.checked_add(1).ok_or(FsError::NoSpace)?;
            let DataFile { slot, generation, .. } = *last;
            slots.push(DataFile { store: *store, slot, generation, stale, ..DataFile::default() });
        }
    }
    component.slots = slots;
    component.mirrors = component.mirrors.max(mirrors);
    Ok(())
}

/// Takes these away, which must leave all columns alike; what was taken.
fn shrink(component: &mut Component, slots: &[u16]) -> Result<Vec<DataFile>, FsError> {
    let goes = |file: &DataFile| slots.contains(&file.slot);
    let mut columns = component.slots.chunks(usize::from(component.mirrors.max(1)));
    let left = |column: &[DataFile]| column.iter().filter(|file| !goes(file)).count();
    let each = columns.next().map_or(0, left);
    if each == 0 || columns.any(|column| left(column) != each) {
        return Err(FsError::Invalid);
    }
    let gone = component.slots.extract_if(.., |file| goes(file)).collect();
    component.mirrors = u16::try_from(each).map_err(|_| FsError::Invalid)?;
    Ok(gone)
}
