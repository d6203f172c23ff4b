//! Data files that come into being: the first stable acknowledgement of one waits until its directory entry is durable and
//! its existence is in the journal. From then on its absence is a loss.
//!
//! The entry is flushed beside the data. The journal is flushed for all whose data and entries are durable by then, by the
//! thread that happens to have flushed the first of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::data_file::{DataFile, Done, answer};
use crate::flush::Flushes;
use crate::lane::Rest;
use crate::places::{leaf_of, leaf_path};
use crate::{FileKey, StoreError};

/// A data file the data of which is durable, and who waits for the rest.
type Newcomer = (Arc<DataFile>, Vec<Done>);

#[derive(Debug, Default)]
struct Queue {
    files: Vec<Newcomer>,
    /// Someone is at work and will come back for more.
    running: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Newcomers {
    queue: Mutex<Queue>,
}

impl Newcomers {
    /// True: nobody is at work, and the caller is to see to it.
    fn push(&self, file: &Arc<DataFile>, waiters: Vec<Done>) -> bool {
        let mut queue = self.queue.lock();
        queue.files.push((Arc::clone(file), waiters));
        !std::mem::replace(&mut queue.running, true)
    }

    /// All there are; `None`, and whoever comes next is to see to it, when there are none.
    fn take(&self) -> Option<Vec<Newcomer>> {
        let mut queue = self.queue.lock();
        queue.running = !queue.files.is_empty();
        queue.running.then(|| std::mem::take(&mut queue.files))
    }
}

impl Flushes {
    /// The data of a newcomer is about to be flushed.
    pub(crate) fn comes(self: &Arc<Self>, file: &Arc<DataFile>) {
        if !file.owes_entry() {
            return;
        }
        // A journaling file system commits both at once.
        let (this, file) = (Arc::clone(self), Arc::clone(file));
        drop(self.env.spawn.blocking(Box::new(move || {
            let folder = leaf_of(file.key);
            if let Err(error) = file.flush_entry_beside(|| this.sync_folder(folder)) {
                this.entries_failed(folder, &BTreeSet::from([file.key]), &error);
            }
        })));
    }

    /// The data of a newcomer is durable, and `waiters` are told when the rest is. What is returned is to be run, where
    /// it may block.
    pub(crate) fn welcome(self: &Arc<Self>, file: &Arc<DataFile>, waiters: Vec<Done>) -> Option<Rest> {
        let lead = self.newcomers.push(file, waiters);
        let this = Arc::clone(self);
        lead.then(|| Box::new(move || this.lead()) as Rest)
    }

    fn lead(&self) {
        while let Some(batch) = self.newcomers.take() {
            let mut folders = BTreeMap::new();
            let keys: BTreeSet<FileKey> = batch.iter().map(|(file, _)| file.key).collect();
            let mut durable = Vec::with_capacity(batch.len());
            for (file, waiters) in batch {
                let folder = leaf_of(file.key);
                let sync = || folders.entry(folder).or_insert_with(|| self.sync_folder(folder)).clone();
                match file.flush_entry(sync) {
                    Ok(()) => durable.push((file, waiters)),
                    Err(error) => {
                        self.failed(&file, &error);
                        answer(waiters, &Err(error));
                    }
                }
            }
            for (folder, result) in folders {
                if let Err(error) = result {
                    self.entries_failed(folder, &keys, &error);
                }
            }
            self.journal.record(durable);
        }
    }

    /// Of a newcomer that is not to be in the journal yet: what is closed has an entry.
    pub(crate) fn flush_entry(&self, file: &DataFile) {
        let folder = leaf_of(file.key);
        let mut asked = false;
        let sync = || {
            asked = true;
            self.sync_folder(folder)
        };
        if let Err(error) = file.flush_entry(sync) {
            self.failed(file, &error);
            if asked {
                self.entries_failed(folder, &BTreeSet::from([file.key]), &error);
            }
        }
    }

    fn sync_folder(&self, folder: u16) -> Result<(), StoreError> {
        Ok(self.device.sync_dir(&leaf_path(folder))?)
    }

    /// A device tells of a failure once: those whose entries may be lost with `told`, and whose turn comes later, hear of it then.
    fn entries_failed(&self, folder: u16, told: &BTreeSet<FileKey>, error: &StoreError) {
        for file in self.files.of_folder(folder) {
            if !told.contains(&file.key) && !file.is_recorded() {
                file.entry_failed(error.clone());
            }
        }
    }
}
