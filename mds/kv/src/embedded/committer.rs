//! Group commit: one group of transactions at a time is validated, resolved, written, synced once
//! and published. While it syncs, the next group gathers.
//!
//! There is no committer thread to own: whoever queues a transaction while nobody leads hands the
//! queue to blocking work, which leads until the queue is empty. In a simulation that work runs inline.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use sluice_env::Env;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SetOnce, oneshot};

use crate::embedded::EmbeddedOptions;
use crate::embedded::cold::Cold;
use crate::embedded::effect::Effect;
use crate::embedded::engine::{Engine, Snapshot};
use crate::embedded::rows::Rows;
use crate::history::History;
use crate::key::hash;
use crate::store::{Request, Shared};
use crate::views::Views;
use crate::writes::WriteSet;
use crate::{Committed, KeyValue, KvError, Versionstamp};

/// A group stops growing at this many bytes: bounds the memory of a batch and the wait behind it.
const MAX_GROUP_BYTES: usize = 32 << 20;

type Answer = oneshot::Sender<Result<Committed, KvError>>;

#[derive(Debug)]
struct Job {
    request: Request<Shared<Snapshot>>,
    answer: Answer,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Somebody leads, or is about to.
    led: bool,
    closed: bool,
}

/// More leaders than there can be: one leads, others may still be leaving.
const LEADERS: u32 = 1 << 16;

/// Reads that wait for the disk at once: as many as keep a fast one busy. More would take the threads that commits need.
const READERS: u32 = 64;

/// The leader's alone while it leads.
#[derive(Debug)]
struct Validator {
    history: History,
    views: Views<Snapshot>,
    version: u64,
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) engine: Engine,
    rows: Rows,
    cold: Cold,
    /// Of the large rows: they are read from the disk when all others are long in memory.
    cold_large: Cold,
    /// Each read that is elsewhere has a permit until it has let go of this core.
    readers: Arc<Semaphore>,
    max_group: usize,
    queue: Mutex<Queue>,
    /// Each leader has a permit until it has let go of this core.
    leaders: Arc<Semaphore>,
    validator: Mutex<Validator>,
    /// Committed since the store was opened.
    groups: AtomicU64,
    /// The view new transactions read.
    newest: RwLock<Shared<Snapshot>>,
    /// Why the store answers nothing more: after a failed sync nobody knows what is on the device.
    failed: SetOnce<KvError>,
}

impl Core {
    pub(crate) fn new(env: Env, engine: Engine, version: u64, options: &EmbeddedOptions) -> Self {
        let views = Views::new(version, engine.snapshot());
        let newest = RwLock::new(views.newest().clone());
        let history = History::new(version, options.history_bytes);
        Self {
            env,
            engine,
            rows: Rows::new(version, options.row_bytes),
            cold: Cold::default(),
            cold_large: Cold::default(),
            readers: Arc::new(Semaphore::new(READERS as usize)),
            // A versionstamp has two bytes for the order within a version.
            max_group: options.max_group.clamp(1, usize::from(u16::MAX)),
            queue: Mutex::new(Queue::default()),
            leaders: Arc::new(Semaphore::new(LEADERS as usize)),
            validator: Mutex::new(Validator { history, views, version }),
            groups: AtomicU64::new(0),
            newest,
            failed: SetOnce::new(),
        }
    }

    pub(crate) fn newest(&self) -> Shared<Snapshot> {
        self.newest.read().clone()
    }

    /// What is kept here, so that nobody needs to look it up.
    pub(crate) fn known(&self, view: &Shared<Snapshot>, key: &[u8]) -> Option<Option<Bytes>> {
        self.rows.get(key, view.version)
    }

    /// As [`Self::known`], as of the newest version. Every group is here before its version is the newest.
    pub(crate) fn now(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let version = self.newest.read().version;
        self.rows.get(key, version)
    }

    /// What `then` makes of the value of `key`, which has this hash, in memory or in the LSM.
    fn base<T>(
        &self,
        view: &Shared<Snapshot>,
        (hash, key): (u64, &[u8]),
        then: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<T, KvError> {
        match self.rows.with(hash, key, view.version, then) {
            Ok(done) => Ok(done),
            Err(then) => Ok(then(self.look_up(view, key)?.as_deref())),
        }
    }

    /// Whether the row of `key` has this value, if it is kept here; it is not copied.
    pub(crate) fn known_to_be(&self, view: &Shared<Snapshot>, key: &[u8], value: &[u8]) -> Option<bool> {
        self.rows.with(hash(key), key, view.version, |known| known == Some(value)).ok()
    }

    /// What reads have met lately in the tree that has `key`.
    pub(crate) fn cold(&self, key: &[u8]) -> &Cold {
        if self.engine.is_large(key) { &self.cold_large } else { &self.cold }
    }

    /// In the LSM, which may wait for the disk.
    pub(crate) fn look_up(&self, view: &Shared<Snapshot>, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let began = self.env.clock.now();
        let value = self.engine.get(&view.snapshot, key)?;
        self.cold(key).note(self.env.clock.now() - began, 1);
        self.rows.offer(key, value.as_ref(), view.version);
        Ok(value)
    }

    /// The same of a range.
    pub(crate) fn range(
        &self,
        view: &Shared<Snapshot>,
        begin: &[u8],
        end: &[u8],
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        let began = self.env.clock.now();
        let pairs = self.engine.range(&view.snapshot, begin, end, limit, reverse)?;
        self.cold(begin).note(self.env.clock.now() - began, pairs.len());
        Ok(pairs)
    }

    /// The same of what is read at leisure, which may take long whether or not the disk is waited for: it says nothing of other
    /// reads.
    pub(crate) fn range_at_leisure(
        &self,
        view: &Shared<Snapshot>,
        begin: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<KeyValue>, KvError> {
        self.engine.range(&view.snapshot, begin, end, limit, false)
    }

    /// On a thread that may wait for the disk. It goes on if the caller stops waiting.
    pub(crate) async fn elsewhere<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Self) -> Result<T, KvError> + Send + 'static,
    ) -> Result<T, KvError> {
        let presence = self.readers.clone().acquire_owned().await.map_err(|_| KvError::Closed)?;
        let (answer, answered) = oneshot::channel();
        let core = self.clone();
        let work = move || {
            let found = read(&core);
            // Before the asker hears: when it drops the store then, that is not in use any more.
            drop(core);
            drop(presence);
            // It may have gone; then nobody needs the answer.
            answer.send(found).ok();
        };
        // Not awaited: the answer says when it is done.
        drop(self.env.spawn.blocking(Box::new(work)));
        answered.await.unwrap_or(Err(KvError::Closed))
    }

    pub(crate) fn groups(&self) -> u64 {
        self.groups.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<(), KvError> {
        match self.failed.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Completes when the store answers nothing more, with the reason.
    pub(crate) async fn failed(&self) -> KvError {
        self.failed.wait().await.clone()
    }

    /// Tells once: whoever asks from now on is told, too.
    fn fail(&self, error: &KvError) {
        if self.failed.initialized() {
            return;
        }
        // Before whoever waits for it hears: the process may end then.
        tracing::error!(%error, "the metadata store failed and answers nothing more");
        let what = match error {
            KvError::Io { what } => what.clone(),
            other => other.to_string(),
        };
        // It was closed meanwhile: that answers nothing either.
        self.failed.set(KvError::Failed { what }).ok();
    }

    /// Queues a transaction, at once, and completes when it is durable or refused. It goes on if the caller
    /// stops waiting.
    pub(crate) fn commit(
        self: &Arc<Self>,
        request: Request<Shared<Snapshot>>,
    ) -> impl Future<Output = Result<Committed, KvError>> + Send + use<> {
        // Not in the future, which need have no room for the request then.
        let queued = self.queue(request);
        async move { queued?.await.unwrap_or(Err(KvError::CommitUnknown)) }
    }

    /// Where the answer comes.
    fn queue(
        self: &Arc<Self>,
        request: Request<Shared<Snapshot>>,
    ) -> Result<oneshot::Receiver<Result<Committed, KvError>>, KvError> {
        self.check()?;
        let (answer, answered) = oneshot::channel();
        let lead = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(KvError::Closed);
            }
            queue.jobs.push_back(Job { request, answer });
            !std::mem::replace(&mut queue.led, true)
        };
        if lead {
            let presence = self.leaders.clone().try_acquire_owned().ok();
            let leader = Leader { core: self.clone(), done: false, _presence: presence };
            // Not awaited: it has begun, and every queued transaction has its own answer.
            drop(self.env.spawn.blocking(Box::new(move || leader.lead())));
        }
        Ok(answered)
    }

    /// Syncs the engine's journal.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), KvError> {
        let (answer, answered) = oneshot::channel();
        let core = self.clone();
        self.env.spawn.blocking(Box::new(move || drop(answer.send(core.engine.sync())))).await;
        answered.await.unwrap_or(Err(KvError::Closed))
    }

    /// Fails if the engine did, in the background.
    pub(crate) async fn look_at_engine(self: &Arc<Self>) {
        let look = self.elsewhere(|core| core.engine.check().inspect_err(|error| core.fail(error)));
        // It is told to whoever waits for that.
        look.await.ok();
    }

    /// Refuses new transactions and completes when the queued ones are answered and no leader or reader
    /// holds the store open.
    pub(crate) async fn close(&self) {
        self.queue.lock().closed = true;
        // It is never closed; an error could only mean that nobody leads.
        self.leaders.acquire_many(LEADERS).await.ok();
        // An error means that it was closed before.
        self.readers.acquire_many(READERS).await.ok();
        self.readers.close();
    }

    /// Makes every later call answer [`KvError::Closed`].
    pub(crate) fn shut(&self) {
        // One that failed before stays so.
        self.failed.set(KvError::Closed).ok();
    }

    /// The next group, into `group`, which is empty; false: then nobody leads any more.
    fn next_group(&self, group: &mut Vec<Job>) -> bool {
        let mut queue = self.queue.lock();
        if queue.jobs.is_empty() {
            queue.led = false;
            return false;
        }
        let mut bytes = 0;
        while bytes < MAX_GROUP_BYTES
            && group.len() < self.max_group
            && let Some(job) = queue.jobs.pop_front()
        {
            bytes += job.request.bytes;
            group.push(job);
        }
        true
    }

    /// Takes every job out of `group`.
    fn commit_group(&self, group: &mut Vec<Job>) {
        let mut validator = self.validator.lock();
        let mut draft = Draft {
            core: self,
            latest: validator.views.newest().clone(),
            version: validator.version + 1,
            effect: Effect::with_room(group.iter().map(|job| job.request.writes.entries.len()).sum()),
            hashes: Vec::new(),
            resolved: Vec::new(),
            accepted: Vec::with_capacity(group.len()),
        };
        for job in group.drain(..) {
            match self.check().and_then(|()| draft.accept(&mut validator.history, job.request)) {
                Ok(committed) => draft.accepted.push((job.answer, committed)),
                // The asker may have gone; then nobody needs the answer.
                Err(error) => drop(job.answer.send(Err(error))),
            }
        }
        let Draft { version, effect, accepted, latest, .. } = draft;
        drop(latest);
        if accepted.is_empty() {
            return;
        }
        if let Err(error) = self.engine.write(&effect, version) {
            self.fail(&error);
            for (answer, _) in accepted {
                answer.send(Err(KvError::CommitUnknown)).ok();
            }
            return;
        }
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.rows.apply(&effect, version);
        self.publish(&mut validator, version);
        drop(validator);
        for (answer, committed) in accepted {
            answer.send(Ok(committed)).ok();
        }
    }

    /// Lets new transactions read `version`, before anybody hears that it committed.
    fn publish(&self, validator: &mut Validator, version: u64) {
        let now = self.env.clock.now();
        validator.version = version;
        validator.views.publish(version, self.engine.snapshot(), now);
        *self.newest.write() = validator.views.newest().clone();
        let oldest = validator.views.oldest(now);
        validator.history.trim(oldest);
    }
}

/// Leads until the queue is empty. If it dies, everything queued is answered and the store has failed.
struct Leader {
    core: Arc<Core>,
    done: bool,
    // After `core`, so that it is given back last.
    _presence: Option<OwnedSemaphorePermit>,
}

impl Leader {
    fn lead(mut self) {
        // One group's memory serves the next: there are thousands a second, of up to thousands of jobs.
        let mut group = Vec::new();
        while self.core.next_group(&mut group) {
            self.core.commit_group(&mut group);
            // Who is ready to run may have something to commit, and a larger group costs each of them less. Where nobody is,
            // this is nothing.
            std::thread::yield_now();
        }
        self.done = true;
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.core.fail(&KvError::Io { what: "the committer stopped".into() });
        // Dropped answers read as unknown.
        let mut group = Vec::new();
        while self.core.next_group(&mut group) {
            group.clear();
        }
    }
}

/// A group in the making.
struct Draft<'a> {
    core: &'a Core,
    /// The store before the group.
    latest: Shared<Snapshot>,
    version: u64,
    effect: Effect,
    /// Of the keys of one transaction's entries.
    hashes: Vec<u64>,
    /// What one transaction comes to, before it is accepted, each key with its hash.
    resolved: Vec<(u64, Bytes, Option<Bytes>)>,
    accepted: Vec<(Answer, Committed)>,
}

impl Draft<'_> {
    /// A read error refuses one transaction whole. Then the history has writes that were not made, which may be a conflict to
    /// somebody, who tries again.
    fn accept(
        &mut self,
        history: &mut History,
        request: Request<Shared<Snapshot>>,
    ) -> Result<Committed, KvError> {
        let Request { view, reads, writes, write_conflicts, .. } = request;
        let read_at = view.as_ref().map_or(self.latest.version, |v| v.version);
        history.validate(&reads, read_at)?;
        self.hashes.clear();
        self.hashes.extend(writes.hashes());
        history.record(self.version, &writes, &self.hashes, &write_conflicts);
        let order = u16::try_from(self.accepted.len()).unwrap_or(u16::MAX);
        let stamp = Versionstamp::new(self.version, order);
        self.resolve(writes, stamp)?;
        self.resolved.drain(..).for_each(|(hash, key, value)| self.effect.put(hash, key, value));
        Ok(Committed { version: self.version, versionstamp: Some(stamp), exact: true })
    }

    /// What `writes` come to over the store and the group so far. Changes nothing but `resolved`.
    fn resolve(&mut self, writes: WriteSet, stamp: Versionstamp) -> Result<(), KvError> {
        let Self { core, latest, effect, hashes, resolved, .. } = self;
        // Of one that was refused.
        resolved.clear();
        for (begin, end) in &writes.cleared {
            let stored = core.engine.keys(&latest.snapshot, begin, end)?;
            let grouped = effect.keys_in(begin, end).cloned();
            resolved.extend(stored.into_iter().chain(grouped).map(|key| (hash(&key), key, None)));
        }
        let mut outcome = Ok(());
        let mut hashes = hashes.iter();
        writes.entries.drain(|key, pending| {
            // There is one for each.
            let Some(&hash) = hashes.next().filter(|_| outcome.is_ok()) else { return };
            let value = if !pending.needs_base() {
                pending.resolve(None, stamp)
            } else if let Some(value) = effect.get(hash, &key) {
                pending.resolve(value.as_deref(), stamp)
            } else {
                match core.base(latest, (hash, &key), |base| pending.resolve(base, stamp)) {
                    Ok(value) => value,
                    Err(error) => {
                        outcome = Err(error);
                        return;
                    }
                }
            };
            resolved.push((hash, key, value));
        });
        outcome
    }
}
