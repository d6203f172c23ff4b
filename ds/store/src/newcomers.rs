//! Data files that come into being: the first stable acknowledgement of one waits until its directory entry is durable and
//! its existence is in the journal. From then on its absence is a loss.
//!
//! The entry is flushed beside the data. The journal is flushed for all whose data and entries are durable by then, by the
//! thread that happens to have flushed the first of them.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::StoreError;
use crate::data_file::{DataFile, Done, answer};
use crate::flush::Flushes;
use crate::lane::{Rest, Turn};
use crate::places::{leaf_of, leaf_path};
use crate::unfinished::Unfinished;

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
    fn push(&self, file: &Arc<DataFile>, mut waiters: Vec<Done>) -> bool {
        let mut queue = self.queue.lock();
        // What comes again is one file still, with one row in the journal, and one answer of the device about its folder.
        match queue.files.iter_mut().find(|(known, _)| Arc::ptr_eq(known, file)) {
            Some((_, all)) => all.append(&mut waiters),
            None => queue.files.push((Arc::clone(file), waiters)),
        }
        !std::mem::replace(&mut queue.running, true)
    }

    /// Whoever was at work has failed: who waits is told so, and whoever comes next is to see to it.
    fn abandon(&self) {
        *self.queue.lock() = Queue::default();
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
        self.lane.run(&self.env, Turn::Any, move || {
            if let Err(error) = file.flush_entry_beside(|| this.sync_folder(&file)) {
                this.entries_failed(&file, &error);
            }
        });
    }

    /// The data of a newcomer is durable, and `waiters` are told when the rest is. What is returned is to be run, where
    /// it may block.
    pub(crate) fn welcome(self: &Arc<Self>, file: &Arc<DataFile>, waiters: Vec<Done>) -> Option<Rest> {
        let lead = self.newcomers.push(file, waiters);
        let this = Arc::clone(self);
        lead.then(|| Box::new(move || this.lead()) as Rest)
    }

    fn lead(&self) {
        let _unfinished = Unfinished(|| self.newcomers.abandon());
        while let Some(batch) = self.newcomers.take() {
            let mut durable = Vec::with_capacity(batch.len());
            for (file, waiters) in batch {
                match self.flush_entry(&file) {
                    Ok(()) => durable.push((file, waiters)),
                    failed => answer(waiters, &failed),
                }
            }
            self.journal.record(durable);
        }
    }

    /// The entry of a newcomer is durable afterwards.
    ///
    /// # Errors
    /// As [`DataFile::flush_entry`]; everybody whom it concerns hears of it.
    pub(crate) fn flush_entry(&self, file: &DataFile) -> Result<(), StoreError> {
        let mut asked = false;
        let sync = || {
            asked = true;
            self.sync_folder(file)
        };
        file.flush_entry(sync).inspect_err(|error| {
            self.failed(file, error);
            if asked {
                self.entries_failed(file, error);
            }
        })
    }

    fn sync_folder(&self, file: &DataFile) -> Result<(), StoreError> {
        let sync = || Ok(self.device.sync_dir(&leaf_path(leaf_of(file.key)))?);
        match sync() {
            Err(StoreError::NoDescriptors) => {
                // Of those that are clean only: a flush of another one may need a descriptor for its folder, too.
                drop(self.files.take_some());
                sync()
            }
            other => other,
        }
    }

    /// A device tells of a failure once, here to `told`: those whose entries may be lost with it hear of it when their turn
    /// comes.
    fn entries_failed(&self, told: &DataFile, error: &StoreError) {
        if error.is_for_later() {
            return;
        }
        for file in self.files.of_folder(leaf_of(told.key)) {
            if !std::ptr::eq(&*file, told) && !file.is_recorded() {
                file.entry_failed(error.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_env::Env;
    use tokio::sync::oneshot;

    use super::*;
    use crate::device::MemDevice;
    use crate::{FileKey, Options, Store};

    async fn file() -> Arc<DataFile> {
        let options = Options { create: true, ..Options::default() };
        let store = Store::open(&Env::simulated(1), Arc::new(MemDevice::new()), options).await.unwrap();
        store.open_or_create(FileKey { file: 1, slot: 0 }, 0).unwrap()
    }

    /// It is to be in the journal once, and a folder that fails it fails all who wait for it.
    #[tokio::test]
    async fn a_file_that_comes_again_is_one() {
        let (newcomers, file) = (Newcomers::default(), file().await);
        assert!(newcomers.push(&file, vec![oneshot::channel().0]));
        assert!(!newcomers.push(&file, vec![oneshot::channel().0]), "somebody is to come for it");
        let all: Vec<usize> =
            newcomers.take().unwrap().into_iter().map(|(_, waiters)| waiters.len()).collect();
        assert_eq!(all, [2]);
        assert!(newcomers.take().is_none());
        assert!(newcomers.push(&file, Vec::new()), "nobody is at work any more");
    }

    #[tokio::test]
    async fn what_is_durable_is_not_lost_with_others() {
        let file = file().await;
        let lost = StoreError::Io("lost".to_owned());
        file.entry_failed(lost.clone());
        assert!(file.flush_entry(|| Ok(())).is_err(), "it may be gone, whatever the device says now");
        file.flush_entry(|| Ok(())).unwrap();
        file.entry_failed(lost);
        file.flush_entry(|| panic!("it is durable")).unwrap();
    }
}
