//! One order at a time per file. An order whose connection was lost may still be running when it, or
//! a later one, comes again over a new connection: it must not act after the later one was answered.
//!
//! Nor does it act when the metadata server has long given it up, or was replaced: by then others may have written there.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use sluice_env::Monotonic;
use sluice_store::{FileKey, Refusal, Step, StoreError};
use sluice_xdr::control::ctl_caller;
use tokio::sync::oneshot;

use crate::shared::Shared;

/// How long an order may wait for its turn, and one that moves data go on: less than the metadata server waits for it
/// (docs/control-protocol.md), by what the way there and back may take.
pub(super) const SHORT: Duration = Duration::from_secs(8);
pub(super) const MOVING: Duration = Duration::from_secs(50);

/// Until when an order acts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    /// It is given up then.
    time: Monotonic,
    /// The incarnation of the metadata server that gave it. It acts until a newer one has spoken.
    caller: u64,
}

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
    /// For an order that came just now.
    pub(super) fn patient(&self, caller: &ctl_caller, time: Duration) -> Until {
        Until { time: self.env.clock.now() + time, caller: caller.mds_epoch }
    }

    /// Each step of an order that changes data, held until it is done. A peer is not waited for in one: whoever waits for
    /// the end of the step waits for this device and for nobody else.
    pub(super) fn step(&self, until: Until) -> Result<Step<'_>, StoreError> {
        if self.env.clock.now() < until.time {
            self.store.step(until.caller)
        } else {
            Err(StoreError::Closing)
        }
    }

    /// Runs `work` on a data file when it is its turn, if it is in time, whoever gave the order is not an older incarnation
    /// of the metadata server by then and the data file was not removed.
    pub(super) async fn order<T: Send + 'static>(
        self: &Arc<Self>,
        (key, generation): (FileKey, u16),
        until: Until,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, wait) = oneshot::channel();
        let shared = Arc::clone(self);
        // A task of its own: it holds its turn to the end even if the connection is lost.
        self.env.spawn.spawn(Box::pin(async move {
            let turn = shared.orders.turn(key.file);
            let clock = &shared.env.clock;
            let result = match clock.timeout(until.time.since(clock.now()), turn.lock()).await {
                Ok(_mine) => match shared.store.admit_caller(until.caller).await {
                    Ok(()) if shared.store.is_removed(key, generation) => {
                        Err(StoreError::Refused(Refusal::Removed))
                    }
                    Ok(()) => work.await,
                    Err(error) => Err(error),
                },
                Err(_) => Err(StoreError::Closing),
            };
            shared.orders.done(key.file, turn);
            // The caller may have gone away.
            let _ = done.send(result);
        }));
        wait.await.unwrap_or(Err(StoreError::Closing))
    }
}
