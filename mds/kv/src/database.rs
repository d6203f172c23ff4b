//! A database handle.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sluice_env::Env;

use crate::embedded::{Embedded, EmbeddedOptions, is_store};
use crate::faults::Faults;
use crate::foundation::{Foundation, FoundationOptions};
use crate::memory::Memory;
use crate::store::Backend;
use crate::{KvError, RunLimits, Transaction};

/// A handle to one store, cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) env: Env,
    pub(crate) backend: Backend,
    pub(crate) committed: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) views: AtomicU64,
    pub(crate) reads: AtomicU64,
}

/// What a store has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Transactions that wrote something.
    pub transactions: u64,
    /// Groups of them, each of which was one flush of the device.
    pub groups: u64,
    /// Attempts that lost against another transaction and were made again, or given up.
    pub conflicts: u64,
    /// Transactions, and attempts, that read. Of a cluster, each asked for a version to read at.
    pub views: u64,
    /// Reads of a key or a range that went to the backend.
    pub reads: u64,
}

/// The device under a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub total: u64,
    pub free: u64,
}

impl Database {
    /// Opens the store in `dir`, creating directory and store as needed. Blocks on the disk.
    ///
    /// Refused with [`KvError::InUse`], [`KvError::Foreign`], [`KvError::NewerFormat`] or [`KvError::Corrupt`].
    pub fn open_embedded(env: Env, dir: &Path, options: EmbeddedOptions) -> Result<Self, KvError> {
        let store = Embedded::open(env.clone(), dir, &options)?;
        Ok(Self::new(env, Backend::Embedded(Arc::new(store))))
    }

    /// Whether there is a store in `dir`, which [`Self::open_embedded`] would make otherwise.
    pub fn is_embedded(dir: &Path) -> bool {
        is_store(dir)
    }

    /// Opens a file system's store in a FoundationDB cluster, making it as needed. A cluster that does not answer
    /// within seconds is [`KvError::Unavailable`]; asking again is harmless.
    ///
    /// Refused with [`KvError::NoClient`], [`KvError::Foreign`], [`KvError::InUse`] or [`KvError::NewerFormat`].
    pub async fn open_foundation(env: Env, options: &FoundationOptions) -> Result<Self, KvError> {
        let store = Foundation::open(env.clone(), options).await?;
        Ok(Self::new(env, Backend::Foundation(store)))
    }

    /// An empty store in memory.
    pub fn memory(env: Env, faults: Faults) -> Self {
        Self::memory_after(env, faults, 0)
    }

    /// The same, whose versions go on behind `version` of another store.
    pub fn memory_after(env: Env, faults: Faults, version: u64) -> Self {
        let store = Memory::new(env.clone(), faults, version);
        Self::new(env, Backend::Memory(Arc::new(store)))
    }

    fn new(env: Env, backend: Backend) -> Self {
        Self {
            inner: Arc::new(Inner {
                env,
                backend,
                committed: AtomicU64::new(0),
                conflicts: AtomicU64::new(0),
                views: AtomicU64::new(0),
                reads: AtomicU64::new(0),
            }),
        }
    }

    /// What it has cost so far.
    pub fn work(&self) -> Work {
        let transactions = self.inner.committed.load(Ordering::Relaxed);
        let groups = match &self.inner.backend {
            Backend::Memory(_) | Backend::Foundation(_) => transactions,
            Backend::Embedded(embedded) => embedded.groups(),
        };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let inner = &self.inner;
        Work {
            transactions,
            groups,
            conflicts: count(&inner.conflicts),
            views: count(&inner.views),
            reads: count(&inner.reads),
        }
    }

    /// How much there is where the rows are, and how much is free; unknown where it cannot be had. A cluster says it twice a
    /// minute, of its fullest process.
    pub fn room(&self) -> Option<Room> {
        match &self.inner.backend {
            Backend::Embedded(embedded) => embedded.room(),
            Backend::Memory(memory) => Some(memory.room()),
            Backend::Foundation(foundation) => foundation.room(),
        }
    }

    /// Limits of an operation that waits for so long, however often it is tried meanwhile.
    pub fn for_as_long_as(&self, patience: Duration) -> RunLimits {
        let deadline = self.inner.env.clock.now() + patience;
        RunLimits { max_attempts: u32::MAX, ..RunLimits::until(deadline) }
    }

    /// A transaction without a retry loop around it; prefer [`Database::run`].
    pub fn begin(&self) -> Transaction {
        Transaction::new(self.inner.clone())
    }

    /// The value of `key` as a transaction finds it that begins now and reads nothing else, if a store on this machine has it in
    /// memory: `Some(None)` if there is none. Costs a fifth of such a transaction.
    pub fn now(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let Backend::Embedded(embedded) = &self.inner.backend else { return None };
        let found = embedded.now(key)?;
        self.inner.reads.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Completes when everything acknowledged is durable. Commits already are when they are acknowledged.
    pub async fn flush(&self) -> Result<(), KvError> {
        self.inner.backend.flush().await
    }

    /// Refuses new work, waits for commits in flight. The directory is released when the last handle
    /// and transaction are dropped.
    pub async fn close(self) -> Result<(), KvError> {
        self.inner.backend.close().await
    }

    /// Completes when another server has taken over a shared store: this one answers nothing more.
    pub async fn taken_over(&self) {
        match &self.inner.backend {
            Backend::Foundation(foundation) => foundation.taken_over().await,
            Backend::Memory(_) | Backend::Embedded(_) => std::future::pending().await,
        }
    }

    /// Completes when a store on this machine has failed for good or was closed, with the reason: it answers nothing more
    /// until it is opened again.
    pub async fn failed(&self) -> KvError {
        match &self.inner.backend {
            Backend::Embedded(embedded) => embedded.failed().await,
            Backend::Memory(_) | Backend::Foundation(_) => std::future::pending().await,
        }
    }

    /// Whether no other server can have taken over a shared store by now. One that cannot tell answers nobody from
    /// memory; what it asks the store is [`KvError::Unavailable`].
    pub fn is_ours(&self) -> bool {
        match &self.inner.backend {
            Backend::Foundation(foundation) => foundation.is_ours(),
            Backend::Memory(memory) => memory.is_ours(),
            Backend::Embedded(_) => true,
        }
    }

    /// Completes when no other server can have taken over.
    ///
    /// # Errors
    /// One has, or the store is closed.
    pub async fn until_ours(&self) -> Result<(), KvError> {
        match &self.inner.backend {
            Backend::Foundation(foundation) => foundation.until_ours().await,
            Backend::Memory(memory) => memory.until_ours().await,
            Backend::Embedded(_) => Ok(()),
        }
    }

    /// Changes the faults of a test's store from now on; no effect on any other.
    pub fn set_faults(&self, faults: Faults) {
        match &self.inner.backend {
            Backend::Memory(memory) => memory.set_faults(faults),
            Backend::Foundation(foundation) => foundation.set_faults(faults),
            Backend::Embedded(_) => {}
        }
    }

    /// Ends a test's store as a power loss would and returns its next incarnation, which holds
    /// exactly what was committed; every old handle and transaction answers [`KvError::Closed`], and is not ours.
    /// `None` for any other backend.
    pub fn crash(&self) -> Option<Self> {
        let next = match &self.inner.backend {
            Backend::Memory(memory) => Backend::Memory(Arc::new(memory.crash())),
            Backend::Foundation(foundation) => Backend::Foundation(Arc::new(foundation.crash()?)),
            Backend::Embedded(_) => return None,
        };
        Some(Self::new(self.inner.env.clone(), next))
    }
}
