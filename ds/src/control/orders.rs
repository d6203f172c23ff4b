//! One order at a time per file. An order whose connection was lost may still be running when it, or
//! a later one, comes again over a new connection: it must not act after the later one was answered.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use sluice_store::{FileKey, Refusal, StoreError};
use sluice_xdr::control::ctl_caller;
use tokio::sync::oneshot;

use crate::shared::Shared;

type Turn = Arc<tokio::sync::Mutex<()>>;

#[derive(Debug, Default)]
pub(crate) struct Orders {
    files: Mutex<HashMap<u64, Turn, FixedState>>,
}

impl Orders {
    fn turn(&self, file: u64) -> Turn {
        Arc::clone(self.files.lock().entry(file).or_default())
    }

    fn done(&self, file: u64, turn: Turn) {
        let mut files = self.files.lock();
        drop(turn);
        if files.get(&file).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            files.remove(&file);
        }
    }
}

impl Shared {
    /// Runs `work` on a data file when it is its turn, if `caller` is not an older incarnation of the
    /// metadata server by then and the data file was not removed.
    pub(crate) async fn order<T: Send + 'static>(
        self: &Arc<Self>,
        caller: &ctl_caller,
        (key, generation): (FileKey, u16),
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, wait) = oneshot::channel();
        let (shared, epoch) = (Arc::clone(self), caller.mds_epoch);
        // A task of its own: it holds its turn to the end even if the connection is lost.
        self.env.spawn.spawn(Box::pin(async move {
            let turn = shared.orders.turn(key.file);
            let result = {
                let _mine = turn.lock().await;
                match shared.store.admit_caller(epoch).await {
                    Ok(()) if shared.store.is_removed(key, generation) => {
                        Err(StoreError::Refused(Refusal::Removed))
                    }
                    Ok(()) => work.await,
                    Err(error) => Err(error),
                }
            };
            shared.orders.done(key.file, turn);
            // The caller may have gone away.
            let _ = done.send(result);
        }));
        wait.await.unwrap_or(Err(StoreError::Closing))
    }
}
