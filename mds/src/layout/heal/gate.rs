//! Between a file that is being healed and those who write to it meanwhile.
//!
//! While a gate is *closed* no read-write layout of the file goes out. Writes that come through this server
//! share the gate and go to what is being filled as well; a piece that is copied has it alone, so that it
//! cannot put back what a write has just replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sluice_namespace::{DataFile, DataFileId, FileId, InodeKey, Layout, StoreId};
use sluice_state::Time;
use sluice_xdr::nfs4::nfsstat4;
use tokio::sync::{Notify, RwLock};

use super::older::Accepting;
use super::room::Full;

/// A heal shorter than this is waited for by writers; during a longer one they write through this server.
/// Linux asks again two minutes after it was told that there is no layout.
const SHORT: u64 = 10_000_000_000;
/// Files remembered as having refused a layout; beyond it they are forgotten, which costs writers a wait.
const MOST: usize = 1 << 14;

/// A data file that is filled, beside those of the column that slot `column` is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filling {
    /// Of the layout that it is to be part of. A truncation gives the file another one while a heal pauses, and that
    /// counts its slots from 0 again.
    pub(crate) id: DataFileId,
    pub(crate) column: u16,
    pub(crate) target: DataFile,
}

/// What is to be written beside a column of this layout.
pub(crate) fn beside(filling: &[Filling], layout: &Layout, column: &[DataFile]) -> Vec<DataFile> {
    let joins = |fill: &&Filling| fill.id == layout.id && column.iter().any(|file| file.slot == fill.column);
    filling.iter().filter(joins).map(|fill| fill.target).collect()
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// What is being filled now. Shared by writes, held alone by a piece that is copied.
    pub(crate) lock: RwLock<Vec<Filling>>,
    closed: AtomicBool,
    /// What was copied before may not be true any more.
    disturbed: AtomicBool,
}

impl Gate {
    /// What was copied before may not be true any more: begin again.
    pub(crate) fn disturb(&self) {
        self.disturbed.store(true, Ordering::Release);
    }

    pub(super) fn was_disturbed(&self) -> bool {
        self.disturbed.swap(false, Ordering::AcqRel)
    }

    /// The same; it stays to be begun again.
    pub(super) fn is_disturbed(&self) -> bool {
        self.disturbed.load(Ordering::Acquire)
    }
}

/// The gates of all files that need one now, and the queue's wake-up.
#[derive(Debug, Default)]
pub(crate) struct Heals {
    gates: Mutex<BTreeMap<FileId, Arc<Gate>>>,
    /// Since when read-write layouts of a file are refused, and none was given.
    refused: Mutex<BTreeMap<FileId, Time>>,
    /// Files that have just come into the queue.
    fresh: Mutex<Vec<InodeKey>>,
    pub(super) queued: Notify,
    /// Files whose writers wait for a mirror that has just gone.
    wanted: Mutex<BTreeSet<InodeKey>>,
    /// Files whose absent mirrors are being left behind.
    pub(super) leaving: Mutex<BTreeSet<FileId>>,
    /// Which files wait for what, as last looked at.
    waits: Mutex<BTreeMap<Waits, Waiting>>,
    pub(super) full: Full,
    /// How far an older copy of a data server's store is accepted.
    pub(super) accepting: tokio::sync::Mutex<Option<Accepting>>,
}

/// What a file in the queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waits {
    For(StoreId),
    ForRoom,
    /// Its device cannot read some of it.
    Unreadable(StoreId),
    /// What this data server had was removed with it, and what else there is of the file missed writes.
    ForNothing(StoreId),
}

/// Each file counts once, however often it is looked at.
#[derive(Debug, Default)]
struct Waiting {
    known: BTreeSet<FileId>,
    /// Those that are not remembered.
    more: u64,
}

/// A gate in use.
#[derive(Debug)]
pub(crate) struct InUse<'a> {
    heals: &'a Heals,
    file: FileId,
    gate: Arc<Gate>,
}

/// A gate that is closed until this is dropped.
#[derive(Debug)]
pub(super) struct Closed<'a>(InUse<'a>);

impl std::ops::Deref for InUse<'_> {
    type Target = Gate;
    fn deref(&self) -> &Gate {
        &self.gate
    }
}

impl std::ops::Deref for Closed<'_> {
    type Target = Gate;
    fn deref(&self) -> &Gate {
        &self.0
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let mut gates = self.heals.gates.lock();
        // The table's reference and ours.
        if Arc::strong_count(&self.gate) == 2 {
            gates.remove(&self.file);
        }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.closed.store(false, Ordering::Release);
    }
}

impl Waiting {
    fn count(&self) -> u64 {
        u64::try_from(self.known.len()).unwrap_or(u64::MAX).saturating_add(self.more)
    }
}

impl Heals {
    /// The gate of a file.
    pub(crate) fn gate(&self, file: FileId) -> InUse<'_> {
        let gate = Arc::clone(self.gates.lock().entry(file).or_default());
        InUse { heals: self, file, gate }
    }

    /// The gate of a file that is being healed.
    pub(crate) fn busy(&self, file: FileId) -> Option<InUse<'_>> {
        let gate = Arc::clone(self.gates.lock().get(&file)?);
        Some(InUse { heals: self, file, gate }).filter(|gate| gate.closed.load(Ordering::Acquire))
    }

    /// Is the file being healed? Holds nothing, other than [`Self::busy`].
    pub(crate) fn is_busy(&self, file: FileId) -> bool {
        self.gates.lock().get(&file).is_some_and(|gate| gate.closed.load(Ordering::Acquire))
    }

    /// Closes the gate of a file. `None`: it is being healed already.
    pub(super) fn close(&self, file: FileId) -> Option<Closed<'_>> {
        let gate = self.gate(file);
        let before = gate.closed.swap(true, Ordering::AcqRel);
        if before { None } else { Some(Closed(gate)) }
    }

    /// What a LAYOUTGET for writing is answered while a file is, or waits to be, healed.
    pub(crate) fn refusal(&self, file: FileId, now: Time) -> nfsstat4 {
        let mut refused = self.refused.lock();
        if refused.len() >= MOST {
            refused.clear();
        }
        let since = *refused.entry(file).or_insert(now);
        if now.since(since) < SHORT { nfsstat4::NFS4ERR_DELAY } else { nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE }
    }

    /// Read-write layouts are given again. A heal that comes to nothing does not say so; whoever is given one does.
    pub(crate) fn over(&self, file: FileId) {
        self.refused.lock().remove(&file);
    }

    /// A file has come into the queue, durably.
    pub(crate) fn queue(&self, key: InodeKey) {
        let mut fresh = self.fresh.lock();
        // Beyond it the next look at the whole queue finds them.
        if fresh.len() < MOST {
            fresh.push(key);
        }
        self.queued.notify_one();
    }

    /// It is looked for what can be healed now.
    pub(crate) fn wake(&self) {
        self.queued.notify_one();
    }

    /// Somebody waits to write to a file.
    pub(crate) fn want(&self, key: InodeKey) {
        let mut wanted = self.wanted.lock();
        // Beyond it writers ask again, some seconds later.
        if wanted.len() < MOST {
            wanted.insert(key);
        }
    }

    pub(super) fn take_wanted(&self) -> BTreeSet<InodeKey> {
        std::mem::take(&mut *self.wanted.lock())
    }

    /// The whole queue is looked at anew.
    pub(super) fn forget_waits(&self) {
        self.waits.lock().clear();
    }

    /// A file was looked at, and waits for these.
    pub(super) fn waits(&self, file: FileId, missed: &[Waits]) {
        let mut waits = self.waits.lock();
        for waiting in waits.values_mut() {
            waiting.known.remove(&file);
        }
        for what in missed {
            let waiting = waits.entry(*what).or_default();
            if waiting.known.len() < MOST {
                waiting.known.insert(file);
            } else {
                waiting.more += 1;
            }
        }
        waits.retain(|_, waiting| waiting.count() > 0);
    }

    /// What the files in the queue wait for, for people.
    pub(crate) fn words(&self) -> String {
        let waits = self.waits.lock();
        let words = |(what, waiting): (&Waits, &Waiting)| match (what, waiting.count()) {
            (Waits::For(store), files) => format!("{files} wait for data server {}", store.0),
            (Waits::Unreadable(store), files) => {
                format!("{files} wait for what data server {} cannot read of them", store.0)
            }
            (Waits::ForRoom, files) => format!("{files} wait for room on a data server"),
            (Waits::ForNothing(store), files) => format!("{files} lost with data server {}", store.0),
        };
        let words: Vec<String> = waits.iter().map(words).collect();
        // As much as the protocol carries.
        words.join(", ").chars().take(200).collect()
    }

    pub(super) fn take_fresh(&self) -> Vec<InodeKey> {
        std::mem::take(&mut *self.fresh.lock())
    }
}
