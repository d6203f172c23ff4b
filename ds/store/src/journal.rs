//! The fence table and its journal: a row counts in memory at once and is acknowledged when it is
//! durable. Callers that come while a flush runs share the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use sluice_env::Env;
use tokio::sync::{Notify, oneshot};

use crate::StoreError;
use crate::data_file::{DataFile, Done, answer};
use crate::device::Device;
use crate::fence::{Access, Refusal, Row, Table};
use crate::log::{Log, Recovered};
use crate::unfinished::Unfinished;

/// Who is told when rows are durable; the data file of which they say that it has come into being, if it is that.
#[derive(Debug)]
struct Waiter {
    file: Option<Arc<DataFile>>,
    all: Vec<Done>,
}

#[derive(Debug, Default)]
struct Queue {
    rows: Vec<Row>,
    waiters: Vec<Waiter>,
    /// Someone is writing and will come back for more.
    running: bool,
}

impl Queue {
    /// True: nobody is writing, and the caller is to see to it.
    fn take(&mut self, table: &mut Table, rows: &[Row], waiter: Waiter) -> bool {
        rows.iter().for_each(|row| table.apply(row));
        self.rows.extend_from_slice(rows);
        self.waiters.push(waiter);
        !std::mem::replace(&mut self.running, true)
    }
}

#[derive(Debug)]
pub(crate) struct Journal {
    // Constant.
    device: Arc<dyn Device>,
    env: Env,
    max_rows: usize,
    /// Told when data files have come into being.
    pub(crate) materialised: Arc<Notify>,
    // Atomic.
    /// The greatest id of a data file that has come into being, 0 if that is not known. Raised before its row is written.
    made: AtomicU64,
    /// How often it was written since it was opened.
    written: AtomicU64,
    // Each guards itself. Lock order: queue, then log, then table or failed; none is held across an await.
    queue: Mutex<Queue>,
    log: Mutex<Log>,
    table: RwLock<Table>,
    /// Why it could not be written last time.
    failed: Mutex<Option<StoreError>>,
}

impl Journal {
    /// Blocking. `create` starts an empty journal; otherwise the one there is recovered and
    /// rewritten, which also buries a torn tail.
    pub(crate) fn open(
        env: &Env,
        device: Arc<dyn Device>,
        max_rows: usize,
        create: bool,
    ) -> Result<Self, StoreError> {
        let mut table = Table::default();
        let Recovered { id, made, rows } =
            if create { Recovered::default() } else { Log::recover(&*device)? };
        rows.iter().for_each(|row| table.apply(row));
        let log = Log::create(&*device, &Recovered { id: id + 1, made, rows: table.rows() })?;
        Ok(Self {
            device,
            env: env.clone(),
            max_rows,
            materialised: Arc::default(),
            made: AtomicU64::new(made),
            written: AtomicU64::new(0),
            queue: Mutex::default(),
            log: Mutex::new(log),
            table: RwLock::new(table),
            failed: Mutex::default(),
        })
    }

    pub(crate) fn check(&self, access: &Access) -> Result<(), Refusal> {
        self.table.read().check(access)
    }

    /// Looks at the table.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&Table) -> T) -> T {
        look(&self.table.read())
    }

    /// Applies `rows` and returns when they are durable. On an error they hold in memory but may
    /// be gone after a crash: the caller must not acknowledge, and may repeat.
    pub(crate) async fn append(self: &Arc<Self>, rows: Vec<Row>) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let (done, wait) = oneshot::channel();
        let lead = {
            // Both locks at once: the journal replays in the order in which the table saw things.
            let mut queue = self.queue.lock();
            let mut table = self.table.write();
            let grows = rows.iter().any(|row| matches!(row, Row::Fence(_) | Row::Tombstone { .. }));
            if grows && table.len() + rows.len() > self.max_rows {
                return Err(StoreError::FencesFull);
            }
            queue.take(&mut table, &rows, Waiter { file: None, all: vec![done] })
        };
        if lead {
            self.lead();
        }
        wait.await.unwrap_or(Err(StoreError::Closing))
    }

    /// A data file with this id comes into being.
    pub(crate) fn makes(&self, file: u64) {
        self.made.fetch_max(file, Ordering::Relaxed);
    }

    /// The greatest id of those, in all the time that was counted; 0 before any.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// How often it was written since it was opened.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Says that data files have come into being, and tells those who wait when that is durable. Blocking.
    pub(crate) fn record(self: &Arc<Self>, files: Vec<(Arc<DataFile>, Vec<Done>)>) {
        let mut lead = false;
        // Some may be of before this process, and of nobody who waited for them then.
        files.iter().for_each(|(file, _)| self.makes(file.key.file));
        {
            let mut queue = self.queue.lock();
            let mut table = self.table.write();
            for (file, all) in files {
                let row = Row::Materialised { key: file.key, generation: file.generation() };
                lead |= queue.take(&mut table, &[row], Waiter { file: Some(file), all });
            }
        }
        // Once: those who come meanwhile are for another thread, this one has other work.
        if lead && self.write_queued() && !self.rests() {
            self.lead();
        }
    }

    /// Whether nobody waits, and whoever comes next is to write. For who writes now.
    fn rests(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.running = !queue.waiters.is_empty();
        !queue.running
    }

    /// Not awaited: the work goes on if the caller goes away, and others wait for it.
    fn lead(self: &Arc<Self>) {
        let this = Arc::clone(self);
        drop(self.env.spawn.blocking(Box::new(move || while this.write_queued() {})));
    }

    /// Rows that need not be durable now: the next flush takes them along.
    pub(crate) fn append_lazily(&self, rows: &[Row]) {
        let mut queue = self.queue.lock();
        let mut table = self.table.write();
        rows.iter().for_each(|row| table.apply(row));
        queue.rows.extend_from_slice(rows);
    }

    /// What is queued becomes durable. False, and whoever comes next is to write, when nobody waits for that.
    fn write_queued(&self) -> bool {
        let (rows, waiters) = {
            let mut queue = self.queue.lock();
            queue.running = !queue.waiters.is_empty();
            if !queue.running {
                return false;
            }
            (std::mem::take(&mut queue.rows), std::mem::take(&mut queue.waiters))
        };
        let unfinished = Unfinished(|| self.abandon());
        let result = self.write(&rows);
        drop(unfinished);
        if let Err(error) = &result {
            tracing::error!(store = %self.device.name(), %error, "the fence journal cannot be written");
        }
        self.tell(waiters, &result);
        true
    }

    /// Whoever wrote has failed: who waits is told so, and whoever comes next is to write, all of the table.
    fn abandon(&self) {
        *self.failed.lock() = Some(StoreError::Io("a write ended in the middle".to_owned()));
        let mut queue = self.queue.lock();
        queue.running = false;
        queue.waiters.clear();
    }

    fn tell(&self, waiters: Vec<Waiter>, result: &Result<(), StoreError>) {
        let mut files = Vec::new();
        for Waiter { file, all } in waiters {
            if let Some(file) = file.filter(|_| result.is_ok()) {
                file.set_recorded();
                files.push(file);
            }
            answer(all, result);
        }
        if !files.is_empty() {
            self.materialised.notify_one();
        }
        // Behind the answers: without its mark a file is only recorded, and told of, once more.
        for file in files {
            if let Err(error) = file.file.set_recorded() {
                tracing::debug!(store = %self.device.name(), file = %file.key, %error, "a data file has no mark");
            }
        }
    }

    /// Whether it is being written, at this moment.
    pub(crate) fn is_at_work(&self) -> bool {
        self.queue.lock().running
    }

    /// Whether it could not be written last time.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.lock().is_some()
    }

    /// Tries again, if so. Blocking.
    pub(crate) fn mend(&self) -> Result<(), StoreError> {
        // Then it is written as a whole.
        if self.has_failed() { self.write(&[]) } else { Ok(()) }
    }

    fn write(&self, rows: &[Row]) -> Result<(), StoreError> {
        let mut log = self.log.lock();
        let written = self.write_to(&mut log, rows);
        if written.is_ok() {
            // Before anybody hears of it.
            self.written.fetch_add(1, Ordering::AcqRel);
        }
        *self.failed.lock() = written.as_ref().err().cloned();
        written
    }

    fn write_to(&self, log: &mut Log, rows: &[Row]) -> Result<(), StoreError> {
        let live = self.table.read().live();
        if !log.wants_compaction(live) && log.append(rows).is_ok() {
            return Ok(());
        }
        // The table holds the new rows already, so a rewrite is as good as an append, and the only
        // way on after a failed flush: its pages may be marked clean without being on the device.
        let all = self.table.read().rows();
        match log.rewrite(&*self.device, self.made(), all) {
            // It could become shorter, and need not: there is room for rows on a device that has none for another file.
            Err(error) if !log.is_broken() => {
                tracing::debug!(store = %self.device.name(), %error, "the fence journal stays as long as it is");
                log.append(rows)
            }
            written => written,
        }
    }
}
