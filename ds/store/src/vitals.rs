//! Whether the device works. Operations that failed are reason to probe it: one bad sector fails those who need it, and a
//! device that is gone fails everybody.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::Monotonic;
use tokio::sync::Notify;

use crate::format::{PROBE, SUPERBLOCK};
use crate::{Capacity, Store, StoreError, witness};

/// What is known of the device.
#[derive(Clone, Debug, Default)]
pub struct Vitals {
    /// As it was last told; `None`: it never was, or not when last asked.
    pub capacity: Option<Capacity>,
    /// Why the fence journal could not be written last time.
    pub journal: Option<StoreError>,
    /// Why the last probe failed; `None` where there was no reason for one.
    pub probe: Option<StoreError>,
    /// For so long an answer has been owed: to a question, and not to what waits for much that is to be flushed before it.
    pub silent: Duration,
    /// For so long an overwrite has been on its way that waits for nothing else: it is begun where a change does not end.
    pub unwritten: Duration,
}

/// What came of writing where something had failed.
#[derive(Clone, Debug, Default)]
struct Trial {
    journal: Option<StoreError>,
    probe: Option<StoreError>,
}

impl Trial {
    fn went_well(&self) -> bool {
        self.journal.is_none() && self.probe.is_none()
    }
}

#[derive(Debug, Default)]
struct Known {
    capacity: Option<Capacity>,
    /// When the look began that is under way.
    begun: Option<Monotonic>,
    /// The last trial.
    trial: Trial,
    /// The next one is under way.
    trying: bool,
    /// Since when something was being changed whenever somebody looked, as far as no witness has said more.
    changing: Option<Monotonic>,
    /// When the witness began that is under way.
    witness: Option<Monotonic>,
}

/// Changes that do not end for so long are reason to call the witness. Most are done in a moment, and of those that are not, most
/// wait for a flush of much.
const CHANGING: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Health {
    /// An operation failed since the last probe that went well began.
    doubt: AtomicBool,
    known: Mutex<Known>,
    /// A look, or a trial, has ended.
    ended: Notify,
}

impl Health {
    /// Passes `result` on. An error that may be the device's is reason to probe it.
    pub(crate) fn note<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Io(_) | StoreError::ReadOnly) = &result {
            self.doubt.store(true, Ordering::Relaxed);
        }
        result
    }

    /// True: nobody looks, and the caller is to see to it.
    fn begin(&self, now: Monotonic) -> bool {
        let mut known = self.known.lock();
        let idle = known.begun.is_none();
        known.begun.get_or_insert(now);
        idle
    }

    /// The same of a trial, if there is reason for one.
    fn begin_trial(&self, journal_failed: bool) -> bool {
        let mut known = self.known.lock();
        let reason = journal_failed || self.doubt.load(Ordering::Relaxed) || !known.trial.went_well();
        let begins = reason && !known.trying;
        known.trying |= begins;
        begins
    }

    /// The same of a witness. It is no verdict that something is being changed: a store in use has always some of that, and then a
    /// block is overwritten every few seconds.
    fn begin_witness(&self, now: Monotonic, changing: bool) -> bool {
        let mut known = self.known.lock();
        if !changing {
            known.changing = None;
            return false;
        }
        let since = *known.changing.get_or_insert(now);
        let begins = known.witness.is_none() && now.since(since) >= CHANGING;
        if begins {
            (known.changing, known.witness) = (Some(now), Some(now));
        }
        begins
    }

    fn is_idle(&self) -> bool {
        let known = self.known.lock();
        known.begun.is_none() && !known.trying
    }

    /// Completes when all that was begun has ended.
    async fn idle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.is_idle() {
                return;
            }
            ended.await;
        }
    }

    fn known(&self, now: Monotonic) -> Vitals {
        let known = self.known.lock();
        let Trial { journal, probe } = known.trial.clone();
        let owed = |begun: Option<Monotonic>| begun.map_or(Duration::ZERO, |begun| now.since(begun));
        let (silent, unwritten) = (owed(known.begun), owed(known.witness));
        Vitals { capacity: known.capacity, journal, probe, silent, unwritten }
    }
}

impl Store {
    /// Looks after the device, for at most `patience`: a look that takes longer goes on, is the only one, and is told of
    /// by a later call. So does a trial beside it: it waits for what is to be flushed before it, however well the device is.
    /// For the [witness] nobody waits.
    pub async fn vitals(self: &Arc<Self>, patience: Duration) -> Vitals {
        let now = self.env.clock.now();
        if self.health.begin(now) {
            let keep = |known: &mut Known, capacity| (known.capacity, known.begun) = (capacity, None);
            self.apart("look", Self::look, keep);
        }
        if self.health.begin_trial(self.journal.has_failed()) {
            let keep = |known: &mut Known, trial| (known.trial, known.trying) = (trial, false);
            self.apart("trial", Self::try_writes, keep);
        }
        if self.health.begin_witness(now, self.is_changing()) {
            self.apart("witness", |store| witness::call(&*store.device), |known, ()| known.witness = None);
        }
        // Then it is silent, or busy.
        let _ = self.env.clock.timeout(patience, self.health.idle()).await;
        self.health.known(self.env.clock.now())
    }

    /// Whether somebody is writing, flushing or carrying out an order, at this moment. Those who are, count themselves already.
    fn is_changing(&self) -> bool {
        self.gate.is_occupied()
            || self.orders.is_occupied()
            || self.write_lane.is_at_work()
            || self.flushes.lane.is_at_work()
            || self.journal.is_at_work()
    }

    /// Many who wait for a device that is only busy would keep `work` from asking whether the device answers at all.
    fn apart<T: 'static>(
        self: &Arc<Self>,
        name: &'static str,
        work: fn(&Self) -> T,
        keep: fn(&mut Known, T),
    ) {
        let store = Arc::clone(self);
        let work = move || {
            let (found, health) = (work(&store), Arc::clone(&store.health));
            // First: whoever has the answer and drops the store may open it again.
            drop(store);
            keep(&mut health.known.lock(), found);
            health.ended.notify_waiters();
        };
        self.env.spawn.apart(name, Box::new(work));
    }

    fn look(&self) -> Option<Capacity> {
        let capacity = self.capacity_now();
        // A file system tells that from memory, and who writes or flushes may wait for a device that hangs: it is asked for
        // something past all memory. Any answer is one.
        let _ = self.device.read_uncached(SUPERBLOCK, &mut [0; 512], 0);
        if let Err(error) = &capacity {
            tracing::debug!(store = %self.place(), %error, "the device does not tell its capacity");
        }
        capacity.ok()
    }

    /// Writes the journal if that failed, and a small file if anything did.
    fn try_writes(&self) -> Trial {
        let journal = self.journal.mend().err();
        let doubt = self.health.doubt.swap(false, Ordering::Relaxed);
        let probe = if doubt { self.probe().err() } else { None };
        if probe.is_some() {
            self.health.doubt.store(true, Ordering::Relaxed);
        }
        // The device works, as far as could be tried.
        let journal = journal.filter(|error| !matches!(error, StoreError::NoDescriptors));
        let probe = probe.filter(|error| !matches!(error, StoreError::NoSpace | StoreError::NoDescriptors));
        Trial { journal, probe }
    }

    /// Whether a small file can be made, made durable and removed.
    fn probe(&self) -> Result<(), StoreError> {
        match self.device.remove(PROBE) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let file = self.device.create(PROBE)?;
        file.write_at(b"probe\n", 0)?;
        file.sync_data()?;
        Ok(self.device.remove(PROBE)?)
    }
}
