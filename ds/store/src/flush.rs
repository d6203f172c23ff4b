//! Flushes: who begins one, who shares it, and who is told of a failure. What must be durable besides the data before the
//! first acknowledgement of a data file: [`newcomers`](crate::newcomers).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_env::Env;
use tokio::sync::oneshot;

use crate::data_file::{DataFile, Done, answer};
use crate::device::Device;
use crate::journal::Journal;
use crate::lane::{Lane, Rest, Turn};
use crate::newcomers::Newcomers;
use crate::open_files::OpenFiles;
use crate::unfinished::Unfinished;
use crate::verifier::Verifiers;
use crate::{Store, StoreError};

/// Files, and folders of newcomers, that are flushed at once: enough for a journaling file system to commit many together. Each
/// has a thread that waits for the device, perhaps for long, and others want threads, too: fences, reads, and whoever looks after the device.
const AT_ONCE: usize = 128;

/// What flushes need of the store. They do not hold the store itself: whoever has the answer and drops it may open it again.
#[derive(Debug)]
pub(crate) struct Flushes {
    // Constant.
    pub(crate) env: Env,
    pub(crate) device: Arc<dyn Device>,
    // Each guards itself.
    pub(crate) files: Arc<OpenFiles>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) newcomers: Newcomers,
    pub(crate) lane: Arc<Lane>,
    verifiers: Arc<Verifiers>,
    failures: AtomicU64,
    /// Flushes that went well.
    done: AtomicU64,
}

impl Store {
    /// Waits for a flush that covers everything written to `file` so far.
    pub(crate) async fn flush(self: &Arc<Self>, file: &Arc<DataFile>) -> Result<(), StoreError> {
        let (done, wait) = oneshot::channel();
        if let Some(rest) = self.flushes.begin(file, done) {
            // Not awaited: others wait for it even if this caller goes away.
            self.flushes.lane.run(&self.env, Turn::Any, rest);
        }
        wait.await.unwrap_or(Err(StoreError::Closing))
    }
}

impl Flushes {
    pub(crate) fn new(
        env: &Env,
        device: &Arc<dyn Device>,
        (files, journal): (&Arc<OpenFiles>, &Arc<Journal>),
        verifiers: &Arc<Verifiers>,
    ) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            device: Arc::clone(device),
            files: Arc::clone(files),
            journal: Arc::clone(journal),
            newcomers: Newcomers::default(),
            lane: Lane::new(AT_ONCE),
            verifiers: Arc::clone(verifiers),
            failures: AtomicU64::new(0),
            done: AtomicU64::new(0),
        })
    }

    /// What [`Self::begin`] said is to be run, by a thread that may block and has nothing else to do, or behind others.
    pub(crate) fn go_on(self: &Arc<Self>, rest: Rest) {
        self.lane.here(&self.env, rest);
    }

    /// Flushes that went well.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// Flushes that failed.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Lets `done` wait until everything written to `file` so far is durable, and the file with it. What is returned is
    /// to be run, where it may block.
    pub(crate) fn begin(self: &Arc<Self>, file: &Arc<DataFile>, done: Done) -> Option<Rest> {
        match file.join(done) {
            Ok(false) => None,
            Ok(true) => {
                if !file.is_recorded() {
                    self.comes(file);
                }
                let (this, file) = (Arc::clone(self), Arc::clone(file));
                Some(Box::new(move || this.run(&file)))
            }
            // Flushed by whom nobody waited for, or an earlier attempt has failed.
            Err(done) if !file.is_recorded() => self.welcome(file, vec![done]),
            Err(done) => {
                answer(vec![done], &Ok(()));
                None
            }
        }
    }

    /// Flushes `file` for nobody in particular, if nobody does so yet. Blocking, but not for those who want it flushed again
    /// meanwhile: others may be waiting for the caller.
    pub(crate) fn flush_if_nobody_does(self: &Arc<Self>, file: &Arc<DataFile>) {
        if !file.leads() {
            return;
        }
        let (rests, lead) = self.once(file);
        lead.into_iter().for_each(|lead| drop(self.env.spawn.blocking(lead)));
        if !rests {
            let (this, file) = (Arc::clone(self), Arc::clone(file));
            self.lane.run(&self.env, Turn::Any, move || this.run(&file));
        }
    }

    /// Flushes until nobody waits. Blocking.
    fn run(self: &Arc<Self>, file: &Arc<DataFile>) {
        loop {
            let (rests, lead) = self.once(file);
            if rests {
                lead.into_iter().for_each(|lead| lead());
                return;
            }
            lead.into_iter().for_each(|lead| drop(self.env.spawn.blocking(lead)));
        }
    }

    /// One flush, for all who wait. Whether nobody waits any more, and what else is to be done for those who did.
    fn once(self: &Arc<Self>, file: &Arc<DataFile>) -> (bool, Option<Rest>) {
        let waiters = file.waiters();
        // Behind it: they hear of it when it is done.
        let unfinished = Unfinished(|| {
            // What the device said, if it said anything, nobody heard.
            self.failed(file, &StoreError::Io("a flush ended in the middle".to_owned()));
            file.abandon();
        });
        let result = file.flush();
        if result.is_ok() {
            // Before anybody hears of it.
            self.done.fetch_add(1, Ordering::AcqRel);
        }
        let mut lead = None;
        match &result {
            Ok(()) if file.is_recorded() => answer(waiters, &result),
            // What is closed has an entry. Nobody waits to be told of a failure; the verifier tells.
            Ok(()) if waiters.is_empty() => drop(self.flush_entry(file)),
            Ok(()) => lead = self.welcome(file, waiters),
            Err(error) => {
                self.failed(file, error);
                answer(waiters, &result);
            }
        }
        let rests = file.rests();
        drop(unfinished);
        (rests, lead)
    }

    /// A flush failed. Before anybody hears of it.
    pub(crate) fn failed(&self, file: &DataFile, error: &StoreError) {
        if error.is_for_later() {
            tracing::debug!(store = %self.device.name(), file = %file.key, %error, "it is flushed later");
            return;
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.verifiers.poison(file.key, self.env.random.u64());
        tracing::error!(store = %self.device.name(), file = %file.key, %error, "flush failed");
    }
}
