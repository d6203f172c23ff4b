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
use crate::{Capacity, Store, StoreError};

/// What is known of the device.
#[derive(Clone, Debug, Default)]
pub struct Vitals {
    /// As it was last told; `None`: it never was, or not when last asked.
    pub capacity: Option<Capacity>,
    /// Why the fence journal could not be written last time.
    pub journal: Option<StoreError>,
    /// Why the last probe failed; `None` where there was no reason for one.
    pub probe: Option<StoreError>,
    /// For so long an answer has been owed.
    pub silent: Duration,
}

#[derive(Debug, Default)]
struct Known {
    vitals: Vitals,
    /// When the look began that is under way.
    begun: Option<Monotonic>,
}

#[derive(Debug, Default)]
pub(crate) struct Health {
    /// An operation failed since the last probe that went well began.
    doubt: AtomicBool,
    known: Mutex<Known>,
    /// A look has ended.
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

    fn end(&self, vitals: Vitals) {
        *self.known.lock() = Known { vitals, begun: None };
        self.ended.notify_waiters();
    }

    fn known(&self, now: Monotonic) -> Vitals {
        let known = self.known.lock();
        let silent = known.begun.map_or(Duration::ZERO, |begun| now.since(begun));
        Vitals { silent, ..known.vitals.clone() }
    }
}

impl Store {
    /// Looks after the device, for at most `patience`: a look that takes longer goes on, is the only one, and is told of
    /// by a later call.
    pub async fn vitals(self: &Arc<Self>, patience: Duration) -> Vitals {
        let ended = self.health.ended.notified();
        tokio::pin!(ended);
        ended.as_mut().enable();
        if self.health.begin(self.env.clock.now()) {
            let store = Arc::clone(self);
            // Many who wait for a device that is only busy would keep it from asking whether the device answers at all.
            self.env.spawn.apart(Box::new(move || {
                let (vitals, health) = (store.look(), Arc::clone(&store.health));
                // First: whoever has the answer and drops the store may open it again.
                drop(store);
                health.end(vitals);
            }));
        }
        // Then it is silent.
        let _ = self.env.clock.timeout(patience, ended).await;
        self.health.known(self.env.clock.now())
    }

    fn look(&self) -> Vitals {
        let capacity = self.capacity_now();
        // A file system tells that from memory, and who writes or flushes may wait for a device that hangs: it is asked for
        // something past all memory. Any answer is one.
        let _ = self.device.read_uncached(SUPERBLOCK, &mut [0; 512], 0);
        let journal = self.journal.mend().err();
        let doubt = self.health.doubt.swap(false, Ordering::Relaxed);
        let probe = if doubt { self.probe().err() } else { None };
        if probe.is_some() {
            self.health.doubt.store(true, Ordering::Relaxed);
        }
        if let Err(error) = &capacity {
            tracing::debug!(store = %self.place(), %error, "the device does not tell its capacity");
        }
        // The device works, as far as could be tried.
        let journal = journal.filter(|error| !matches!(error, StoreError::NoDescriptors));
        let probe = probe.filter(|error| !matches!(error, StoreError::NoSpace | StoreError::NoDescriptors));
        Vitals { capacity: capacity.ok(), journal, probe, silent: Duration::ZERO }
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
