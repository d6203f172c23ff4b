//! Removals that are still to be made durable. One that is asked for again because that failed finds nothing to remove.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use crate::FileKey;
use crate::places::leaf_of;

/// Folders with removals that are not known to be durable.
#[derive(Debug, Default)]
pub(crate) struct Emptied(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    newest: u64,
    /// The newest removal from each.
    folders: BTreeMap<u16, u64>,
}

impl Emptied {
    /// For a process that begins where these had been removed: the one before may have died before that was durable.
    pub(crate) fn of(removed: impl IntoIterator<Item = FileKey>) -> Self {
        let emptied = Self::default();
        let leaves: BTreeSet<u16> = removed.into_iter().map(leaf_of).collect();
        leaves.into_iter().for_each(|leaf| emptied.note(leaf));
        emptied
    }

    /// Something was removed from a folder.
    pub(crate) fn note(&self, leaf: u16) {
        let mut notes = self.0.lock();
        notes.newest += 1;
        let newest = notes.newest;
        notes.folders.insert(leaf, newest);
    }

    /// The newest removal from a folder, if one is to be made durable.
    pub(crate) fn noted(&self, leaf: u16) -> Option<u64> {
        self.0.lock().folders.get(&leaf).copied()
    }

    /// What was noted by then is durable.
    pub(crate) fn flushed(&self, leaf: u16, noted: u64) {
        let mut notes = self.0.lock();
        if notes.folders.get(&leaf) == Some(&noted) {
            notes.folders.remove(&leaf);
        }
    }
}
