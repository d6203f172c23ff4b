//! An open data file: what has been written, what has been flushed, who waits for a flush.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::Monotonic;
use tokio::sync::oneshot;

use crate::device::DeviceFile;
use crate::sums::SummedFile;
use crate::{FileKey, StoreError};

/// Count of modifications of a file just opened. A file found on the device may hold writes of a
/// process that died, still unflushed in the page cache: its first flush is never skipped.
const UNTOUCHED: u64 = 1;

/// For so long a data file is not sent from memory after the device did not read something of it.
const UNREAD: Duration = Duration::from_secs(60);

/// Where somebody waits for a flush.
pub(crate) type Done = oneshot::Sender<Result<(), StoreError>>;

pub(crate) fn answer(waiters: Vec<Done>, result: &Result<(), StoreError>) {
    for waiter in waiters {
        // A caller that went away needs no answer.
        let _ = waiter.send(result.clone());
    }
}

#[derive(Debug)]
struct Flushing {
    /// Writes known durable, in the count of `written`.
    flushed: u64,
    /// A thread is flushing and will serve `waiters` next.
    running: bool,
    waiters: Vec<Done>,
}

#[derive(Debug)]
pub(crate) struct DataFile {
    // Constant.
    pub(crate) key: FileKey,
    pub(crate) file: Arc<dyn DeviceFile>,
    /// The same, where there are checksums.
    pub(crate) summed: Option<Arc<SummedFile>>,
    // Atomic.
    /// The newest generation of handles that wrote it, 0 before any since it was opened; only for reports.
    generation: AtomicU16,
    /// Second chance for the cache.
    pub(crate) referenced: AtomicBool,
    /// Modifications completed. Counted after the write: a flush that begins later covers it.
    written: AtomicU64,
    /// Number of the newest write, as [`WriteCount`](crate::write_count::WriteCount) gives them.
    last_write: AtomicU64,
    /// First materialisation is in the journal.
    recorded: AtomicBool,
    /// Nanoseconds on the monotonic clock until which it is not sent from memory.
    unread_until: AtomicU64,
    // Each guards itself.
    flushing: Mutex<Flushing>,
    /// Held while the entry is flushed.
    entry: Mutex<Entry>,
}

/// The file's directory entry.
#[derive(Debug)]
enum Entry {
    Unknown,
    Durable,
    /// A flush of it failed, and nobody was told yet.
    Failed(StoreError),
}

impl DataFile {
    /// `fresh`: it has just come into being.
    pub(crate) fn new(
        key: FileKey,
        generation: u16,
        file: Arc<dyn DeviceFile>,
        fresh: bool,
    ) -> Result<Self, StoreError> {
        let recorded = !fresh && file.is_recorded()?;
        Ok(Self {
            key,
            file,
            summed: None,
            generation: AtomicU16::new(generation),
            referenced: AtomicBool::new(true),
            written: AtomicU64::new(UNTOUCHED),
            last_write: AtomicU64::new(0),
            recorded: AtomicBool::new(recorded),
            unread_until: AtomicU64::new(0),
            flushing: Mutex::new(Flushing { flushed: 0, running: false, waiters: Vec::new() }),
            entry: Mutex::new(Entry::Unknown),
        })
    }

    /// A handle of this generation is about to write.
    pub(crate) fn used_by(&self, generation: u16) {
        // Many writers of one file would take the memory from each other for what is nearly always there.
        if self.generation() < generation {
            self.generation.fetch_max(generation, Ordering::Relaxed);
        }
    }

    pub(crate) fn generation(&self) -> u16 {
        self.generation.load(Ordering::Relaxed)
    }

    /// A modification is complete.
    pub(crate) fn touched(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// A write is complete, and this is its number.
    pub(crate) fn wrote(&self, number: u64) {
        self.last_write.fetch_max(number, Ordering::AcqRel);
        self.touched();
    }

    /// Of its writes before it was opened the newest had this number, or a smaller one.
    pub(crate) fn goes_on_from(&self, number: u64) {
        self.last_write.fetch_max(number, Ordering::AcqRel);
    }

    pub(crate) fn last_write(&self) -> u64 {
        self.last_write.load(Ordering::Acquire)
    }

    /// Whether closing this file loses nothing: never written here, or flushed since, and its entry with it.
    pub(crate) fn is_clean(&self) -> bool {
        let flushing = self.flushing.lock();
        let written = self.written.load(Ordering::Acquire);
        let durable = || flushing.flushed >= written && (self.is_recorded() || self.has_entry());
        !flushing.running && (written == UNTOUCHED || durable())
    }

    fn has_entry(&self) -> bool {
        // Locked: it is being flushed.
        self.entry.try_lock().is_some_and(|entry| matches!(*entry, Entry::Durable))
    }

    /// Whether anything was done to it since it was opened.
    pub(crate) fn was_changed(&self) -> bool {
        self.written.load(Ordering::Acquire) != UNTOUCHED
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Acquire)
    }

    pub(crate) fn set_recorded(&self) {
        self.recorded.store(true, Ordering::Release);
    }

    /// The device did not read something of it just now. Linux keeps a page that it could not read, and counts it as in memory: who
    /// sends from there promises what it has not.
    pub(crate) fn set_unread(&self, now: Monotonic) {
        self.unread_until.fetch_max((now + UNREAD).0, Ordering::Relaxed);
    }

    /// Whether that was lately.
    pub(crate) fn is_unread(&self, now: Monotonic) -> bool {
        now.0 < self.unread_until.load(Ordering::Relaxed)
    }

    /// Lets `done` wait for the next flush; whether the caller must see to it that [`Self::flush`] is called until
    /// nobody waits.
    ///
    /// # Errors
    /// `done`, when there is nothing to flush.
    pub(crate) fn join(&self, done: Done) -> Result<bool, Done> {
        let mut flushing = self.flushing.lock();
        if flushing.flushed >= self.written.load(Ordering::Acquire) {
            return Err(done);
        }
        flushing.waiters.push(done);
        Ok(!std::mem::replace(&mut flushing.running, true))
    }

    /// Whether there is something to flush that nobody flushes; then the caller must see to it that [`Self::flush`] is
    /// called, and again until nobody waits.
    pub(crate) fn leads(&self) -> bool {
        let mut flushing = self.flushing.lock();
        let dirty = flushing.flushed < self.written.load(Ordering::Acquire);
        dirty && !std::mem::replace(&mut flushing.running, true)
    }

    /// All who wait by now, for whom a flush is to follow. Those who join later share the next one.
    pub(crate) fn waiters(&self) -> Vec<Done> {
        std::mem::take(&mut self.flushing.lock().waiters)
    }

    /// Flushes all that was written so far. Blocking.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        let covers = self.written.load(Ordering::Acquire);
        // Size and blocks with it. The times of data files are nobody's: clients take them from the metadata server.
        let result = self.file.sync_data();
        if result.is_ok() {
            let mut flushing = self.flushing.lock();
            flushing.flushed = flushing.flushed.max(covers);
        }
        result.map_err(StoreError::from)
    }

    /// Whether nobody waits, and whoever comes next is to see to the flush. For who does so now.
    pub(crate) fn rests(&self) -> bool {
        let mut flushing = self.flushing.lock();
        flushing.running = !flushing.waiters.is_empty();
        !flushing.running
    }

    /// Whoever flushed has failed in the middle: whoever waits is told so, and whoever comes next is to see to the flush.
    pub(crate) fn abandon(&self) {
        let mut flushing = self.flushing.lock();
        flushing.running = false;
        flushing.waiters.clear();
    }

    /// Whether the directory entry is still to be flushed.
    pub(crate) fn owes_entry(&self) -> bool {
        // Locked: it is being flushed.
        self.entry.try_lock().is_some_and(|entry| matches!(*entry, Entry::Unknown))
    }

    /// The directory entry is durable afterwards, by `sync` if it has to be flushed. Blocking.
    ///
    /// # Errors
    /// What `sync` says, or an earlier flush that nobody was told of.
    pub(crate) fn flush_entry(
        &self,
        sync: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut entry = self.entry.lock();
        match std::mem::replace(&mut *entry, Entry::Unknown) {
            Entry::Durable => {}
            Entry::Unknown => sync()?,
            // Asked again, the device might say yes to what it has lost.
            Entry::Failed(error) => return Err(error),
        }
        *entry = Entry::Durable;
        Ok(())
    }

    /// Flushes the entry beside a flush of the file: whoever needs it waits for it, and is told of a failure. Blocking.
    ///
    /// # Errors
    /// What `sync` says, for others whom it concerns.
    pub(crate) fn flush_entry_beside(
        &self,
        sync: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut entry = self.entry.lock();
        if !matches!(*entry, Entry::Unknown) {
            return Ok(());
        }
        let result = sync();
        *entry = match &result {
            Ok(()) => Entry::Durable,
            // Whoever needs it tries again, and is told what comes of that.
            Err(error) if error.is_for_later() => Entry::Unknown,
            Err(error) => Entry::Failed(error.clone()),
        };
        result
    }

    /// A flush of the folder failed for another file. What is durable stays so.
    pub(crate) fn entry_failed(&self, error: StoreError) {
        let mut entry = self.entry.lock();
        if matches!(*entry, Entry::Unknown) {
            *entry = Entry::Failed(error);
        }
    }
}
