//! Who may: fences, tombstones, epochs, callers. Each is durable when it returns, and from then on no
//! write that it refuses is on its way to the device.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::data_file::DataFile;
use crate::fence::{Access, Fence, Refusal, Row};
use crate::gate::Pass;
use crate::journal::Journal;
use crate::places::{leaf_of, leaf_path, path_of};
use crate::sums::remove_side;
use crate::{Epoch, FileKey, Store, StoreError};

/// What is known to hold of rows that are asked for again and again. Those in the table may be lost in a crash still, and
/// what they refuse may be on its way. Each is held by who sees to it, and others wait.
#[derive(Debug)]
pub(crate) struct Settled {
    /// Durable, and no write that it refuses is on its way.
    oldest: Mutex<Option<Epoch>>,
    /// Durable.
    caller: Mutex<u64>,
}

impl Settled {
    /// As a store begins, with a journal just read.
    pub(crate) fn new(journal: &Journal) -> Self {
        journal.peek(|table| Self { oldest: Mutex::new(table.oldest()), caller: Mutex::new(table.caller()) })
    }
}

/// Held until what the step does is with the device. A newer incarnation of the metadata server is not answered before: what
/// came late could undo what was acknowledged under it.
#[derive(Debug)]
pub struct Step<'a> {
    _pass: Pass<'a>,
}

impl Store {
    /// Whether a well-sealed handle may be used. Constant time, never blocks on the device.
    pub fn check(&self, access: &Access) -> Result<(), Refusal> {
        self.journal.check(access)
    }

    /// Whether a tombstone covers this generation of a data file.
    pub fn is_removed(&self, key: FileKey, generation: u16) -> bool {
        self.journal.peek(|table| table.tombstone(key)) >= Some(generation)
    }

    /// Makes fences durable. When this returns, no write they refuse is on its way any more, whether they were known before
    /// or not.
    pub async fn fence(self: &Arc<Self>, fences: &[Fence]) -> Result<(), StoreError> {
        if fences.is_empty() {
            return Ok(());
        }
        self.journal.append(fences.iter().copied().map(Row::Fence).collect()).await?;
        self.gate.drain().await;
        Ok(())
    }

    /// Whether fences are in force, though perhaps not durable; if so, no write they refuse is on its way any more.
    pub async fn in_force(&self, fences: &[Fence]) -> bool {
        let holds = self.journal.peek(|table| fences.iter().all(|fence| table.holds(fence)));
        if holds {
            self.gate.drain().await;
        }
        holds
    }

    /// Rows in the fence table, tombstones included.
    pub fn rows(&self) -> usize {
        self.journal.peek(|table| table.len())
    }

    /// Handles of epochs before `oldest` are refused from now on, and rows that only stood against
    /// them are dropped.
    pub async fn retire(self: &Arc<Self>, oldest: Epoch) -> Result<(), StoreError> {
        let mut retired = self.settled.oldest.lock().await;
        if retired.is_some_and(|known| !known.is_before(oldest)) {
            return Ok(());
        }
        self.journal.append(vec![Row::Oldest(oldest)]).await?;
        self.gate.drain().await;
        *retired = Some(oldest);
        Ok(())
    }

    /// Whether handles of epochs before `oldest` are refused, though perhaps not durably; if so, no write of theirs is on its
    /// way any more.
    pub async fn is_retired(&self, oldest: Epoch) -> bool {
        let retired = self.oldest().is_some_and(|known| !known.is_before(oldest));
        if retired {
            self.gate.drain().await;
        }
        retired
    }

    /// The oldest epoch whose handles are accepted; `None` before any was retired.
    pub fn oldest(&self) -> Option<Epoch> {
        self.journal.peek(|table| table.oldest())
    }

    /// Admits an order from incarnation `epoch` of the metadata server and remembers it, durably. When it returns, no step of
    /// an order of an older one is on its way any more, also where it cannot be made durable.
    ///
    /// # Errors
    /// `OldCaller` when a newer incarnation has spoken.
    pub async fn admit_caller(self: &Arc<Self>, epoch: u64) -> Result<(), StoreError> {
        let mut durable = self.settled.caller.lock().await;
        if epoch < self.newest_caller() {
            return Err(StoreError::OldCaller);
        }
        if *durable < epoch {
            let written = self.journal.append(vec![Row::Caller(epoch)]).await;
            self.orders.drain().await;
            written?;
            *durable = epoch;
        }
        Ok(())
    }

    /// The same for what changes no data. Where nothing can be written down it is enough that this process remembers: the next
    /// one serves nobody before it has registered, and hears of the newest incarnation then.
    ///
    /// # Errors
    /// `OldCaller` when a newer incarnation has spoken.
    pub async fn hear_caller(self: &Arc<Self>, epoch: u64) -> Result<(), StoreError> {
        match self.admit_caller(epoch).await {
            // A row that could not be written counts in memory.
            Err(_) if self.newest_caller() > epoch => Err(StoreError::OldCaller),
            Err(error) if self.newest_caller() == epoch => {
                tracing::debug!(%error, epoch, "the caller is remembered in memory only");
                Ok(())
            }
            other => other,
        }
    }

    /// A step of an order of incarnation `epoch` that changes data.
    ///
    /// # Errors
    /// `OldCaller` when a newer incarnation has spoken.
    pub fn step(&self, epoch: u64) -> Result<Step<'_>, StoreError> {
        let step = Step { _pass: self.orders.enter() };
        if epoch < self.newest_caller() { Err(StoreError::OldCaller) } else { Ok(step) }
    }

    /// The newest incarnation of the metadata server that gave an order.
    pub fn newest_caller(&self) -> u64 {
        self.journal.peek(|table| table.caller())
    }

    /// Removes data files, for handles up to the generation given: when it returns, a tombstone
    /// that lives until `epoch` is retired and the removal itself are durable. Absent files are
    /// no error: a late write could still bring them into being. What is there for a later generation stays: this order was given
    /// up long ago, and carried out when it was given again.
    pub async fn remove(
        self: &Arc<Self>,
        targets: &[(FileKey, u16)],
        epoch: Epoch,
    ) -> Result<(), StoreError> {
        let leaves: BTreeSet<u16> = targets.iter().map(|(key, _)| leaf_of(*key)).collect();
        let mut removing = Removing::begin(self, targets);
        let rows = targets.iter().map(|&(key, generation)| Row::Tombstone { key, generation, epoch });
        self.journal.append(rows.collect()).await?;
        self.gate.drain().await;
        self.blocking(move |store| {
            removing.files.clear();
            let result = store.unlink(&removing.keys).and_then(|()| store.unlinked(leaves));
            drop(removing);
            result
        })
        .await
    }

    fn unlink(&self, keys: &[FileKey]) -> Result<(), StoreError> {
        for key in keys {
            self.files.shard_at_rest(*key).made.forget(*key);
            match self.device.remove(&path_of(*key)) {
                Ok(()) => self.emptied.note(leaf_of(*key)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(sums) = &self.sums {
                remove_side(&*self.device, *key)?;
                sums.forget(*key);
            }
        }
        Ok(())
    }

    /// Durable now, not later: the tombstone dies with its epoch and must not leave a file. What is not there may have been
    /// removed by an attempt that failed here.
    fn unlinked(&self, leaves: BTreeSet<u16>) -> Result<(), StoreError> {
        for leaf in leaves {
            if let Some(noted) = self.emptied.noted(leaf) {
                self.afford(|| Ok(self.device.sync_dir(&leaf_path(leaf))?))?;
                self.emptied.flushed(leaf, noted);
            }
        }
        Ok(())
    }
}

/// While it lives, its data files can be neither opened nor created.
struct Removing {
    store: Arc<Store>,
    /// Those that are to go.
    keys: Vec<FileKey>,
    /// Those that were open. They are closed by whoever unlinks them.
    files: Vec<Arc<DataFile>>,
}

impl Removing {
    fn begin(store: &Arc<Store>, targets: &[(FileKey, u16)]) -> Self {
        let (mut keys, mut files) = (Vec::with_capacity(targets.len()), Vec::new());
        for &(key, generation) in targets {
            let mut shard = store.files.shard(key);
            if let Some(open) = shard.begin_removal(key, generation) {
                keys.push(key);
                files.extend(open);
            }
        }
        Self { store: Arc::clone(store), keys, files }
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        for key in &self.keys {
            // Another removal of it may be under way still, which was given up.
            self.store.files.shard(*key).end_removal(*key);
        }
    }
}
