//! Flushes: who begins one, who shares it, and what else must be durable before the first is acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use crate::data_file::{DataFile, Done, answer};
use crate::{Store, StoreError};

/// Where a flush is waited for.
pub(crate) type Flushed = oneshot::Receiver<Result<(), StoreError>>;

impl Store {
    /// Waits for a flush that covers everything written to `file` so far.
    pub(crate) async fn flush(self: &Arc<Self>, file: &Arc<DataFile>) -> Result<(), StoreError> {
        let begun = self.begin_flush(file);
        self.flushed(file, begun).await
    }

    /// Begins that flush, or joins another; for [`Self::flushed`].
    pub(crate) fn begin_flush(self: &Arc<Self>, file: &Arc<DataFile>) -> Option<Flushed> {
        let (wait, lead) = file.join()?;
        if lead && file.owes_entry() {
            // Beside the file's own flush: a journaling file system commits both at once.
            let (device, file) = (Arc::clone(&self.device), Arc::clone(file));
            drop(self.env.spawn.blocking(Box::new(move || file.flush_entry(&*device))));
        }
        if lead {
            let (store, file) = (Arc::clone(self), Arc::clone(file));
            // Not awaited: others wait for it even if this caller goes away.
            drop(self.env.spawn.blocking(Box::new(move || store.flush_file(&file))));
        }
        Some(wait)
    }

    /// Waits for it, and until the file is in the journal.
    pub(crate) async fn flushed(
        self: &Arc<Self>,
        file: &Arc<DataFile>,
        begun: Option<Flushed>,
    ) -> Result<(), StoreError> {
        if let Some(wait) = begun {
            wait.await.unwrap_or(Err(StoreError::Closing))?;
        }
        if file.is_recorded() {
            return Ok(());
        }
        // Flushed by whom nobody waited for, or an earlier attempt has failed.
        let (done, wait) = oneshot::channel();
        self.journal.record(Arc::clone(file), vec![done]);
        wait.await.unwrap_or(Err(StoreError::Closing))
    }

    /// Flushes until nobody waits. The first stable acknowledgement of a file waits until it is in the journal: from then
    /// on its absence is a loss. Blocking.
    fn flush_file(self: Arc<Self>, file: &Arc<DataFile>) {
        let mut store = self;
        while let Some((waiters, result)) = store.flush_once(file) {
            let (journal, weak) = (Arc::clone(&store.journal), Arc::downgrade(&store));
            // First: whoever has the answer and drops the store may open it again.
            drop(store);
            if result.is_ok() && !file.is_recorded() {
                journal.record(Arc::clone(file), waiters);
            } else {
                answer(waiters, &result);
            }
            if file.rests() {
                return;
            }
            let Some(again) = weak.upgrade() else { return };
            store = again;
        }
    }

    /// The same on the calling thread, for nobody in particular. Blocking.
    pub(crate) fn flush_here(&self, file: &DataFile) {
        while let Some((waiters, result)) = self.flush_once(file) {
            answer(waiters, &result);
        }
    }

    fn flush_once(&self, file: &DataFile) -> Option<(Vec<Done>, Result<(), StoreError>)> {
        let (waiters, result) = file.flush(&*self.device)?;
        if let Err(error) = &result {
            self.flush_failures.fetch_add(1, Ordering::Relaxed);
            // Before anybody hears of it.
            self.verifiers.poison(file.key, self.env.random.u64());
            tracing::error!(store = %self.place(), file = %file.key, %error, "flush failed");
        }
        Some((waiters, result))
    }
}
