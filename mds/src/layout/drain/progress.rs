//! How far a drain is. Nothing of it is durable: what was moved is, in the files' layouts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_namespace::stable_storage::Drain;
use sluice_namespace::{InodeKey, StoreId};
use sluice_state::Time;

use crate::layout::census::{self, Amount, Census};
use crate::layout::pace::Pace;
use crate::server::Mds;

/// Files remembered by name that cannot be moved now; all are counted.
pub(in crate::layout) const MOST_HELD: usize = 1 << 14;
/// After a count that failed.
const RETRY: Duration = Duration::from_secs(10);

/// One drain.
#[derive(Debug)]
pub(crate) struct Progress {
    taken_up: AtomicBool,
    stopped: AtomicBool,
    closed: Mutex<Closed>,
    numbers: Mutex<Numbers>,
    /// By which it was last said what is lost with the data server.
    shown: Mutex<Option<Arc<Census>>>,
}

/// Whether something may still come to the data server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// Files that are being made.
    No,
    /// What was on its way there before.
    ForNew,
    /// Nothing, since then.
    Since(Time),
}

/// Its numbers now.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// As it is stored.
    pub(crate) row: Drain,
    /// Since this server's start.
    pub(crate) pace: Pace,
    /// Not known until it was counted.
    pub(crate) left: Option<Amount>,
    /// Files that could not be moved when it was tried last, and why.
    pub(crate) held: BTreeMap<InodeKey, String>,
}

impl Progress {
    pub(super) fn new(row: Drain) -> Self {
        let numbers = Numbers {
            row,
            pace: Pace::default(),
            left: row.done.then(Amount::default),
            held: BTreeMap::new(),
        };
        Self {
            taken_up: AtomicBool::new(row.done),
            stopped: AtomicBool::new(false),
            closed: Mutex::new(if row.done { Closed::Since(Time::ZERO) } else { Closed::No }),
            numbers: Mutex::new(numbers),
            shown: Mutex::default(),
        }
    }

    pub(super) fn show(&self, census: Arc<Census>) {
        *self.shown.lock() = Some(census);
    }

    pub(super) fn shown(&self) -> Option<Arc<Census>> {
        self.shown.lock().clone()
    }

    pub(crate) fn store(&self) -> StoreId {
        self.numbers.lock().row.store
    }

    pub(super) fn set_row(&self, row: Drain) {
        let mut numbers = self.numbers.lock();
        numbers.row = row;
        if row.done {
            numbers.left = Some(Amount::default());
            numbers.held.clear();
        }
    }

    pub(super) fn closed(&self) -> Closed {
        *self.closed.lock()
    }

    pub(super) fn close(&self, closed: Closed) {
        *self.closed.lock() = closed;
    }

    /// The numbers as of `now`.
    pub(crate) fn numbers(&self, now: Time) -> Numbers {
        let mut numbers = self.numbers.lock();
        numbers.pace.look(now);
        numbers.clone()
    }

    /// True once: somebody is to do it.
    pub(super) fn take_up(&self) -> bool {
        !self.taken_up.swap(true, Ordering::AcqRel)
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// A file's data files are elsewhere.
    pub(super) fn moved(&self, now: Time, key: &InodeKey, amount: Amount) {
        let mut numbers = self.numbers.lock();
        numbers.held.remove(key);
        numbers.left = numbers.left.map(|left| left.minus(amount));
        numbers.pace.moved(now, amount);
    }

    /// It cannot be moved now.
    pub(super) fn held(&self, key: InodeKey, why: String) {
        let mut numbers = self.numbers.lock();
        if numbers.held.len() < MOST_HELD || numbers.held.contains_key(&key) {
            numbers.held.insert(key, why);
        }
    }

    /// So much was copied from it; how long to wait before more is.
    pub(super) fn copied(&self, now: Time, bytes: u64) -> Duration {
        let mut numbers = self.numbers.lock();
        let limit = numbers.row.rate;
        numbers.pace.copied(now, limit, bytes)
    }
}

/// Finds out how much is left, beside the work.
pub(super) async fn count(mds: Arc<Mds>, progress: Arc<Progress>) {
    while !progress.is_stopped() {
        let before = progress.numbers.lock().pace.moved;
        match census::take(&mds).await {
            Ok(counted) => {
                let found = counted.of(progress.store()).amount;
                let mut numbers = progress.numbers.lock();
                let meanwhile = numbers.pace.moved.minus(before);
                if !numbers.row.done {
                    numbers.left = Some(found.minus(meanwhile));
                }
                return;
            }
            Err(error) => tracing::warn!(%error, "cannot count what is on data servers; trying again"),
        }
        mds.env.clock.sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(rate: u64) -> Progress {
        let row = Drain { store: StoreId(3), since: 0, rate, data_files: 10, bytes: 1000, done: false };
        Progress::new(row)
    }

    #[test]
    fn what_is_left_and_the_rate_follow_what_is_moved() {
        let drain = progress(0);
        let file = |n| InodeKey { fileid: sluice_namespace::FileId(n), ..InodeKey::ROOT };
        drain.numbers.lock().left = Some(Amount { data_files: 10, bytes: 1000 });
        drain.held(file(1), "a client holds on".to_owned());
        drain.held(file(2), "full".to_owned());
        drain.numbers(Time::from_secs(100));
        drain.moved(Time::from_secs(105), &file(1), Amount { data_files: 2, bytes: 500 });
        let now = drain.numbers(Time::from_secs(106));
        assert_eq!(now.left, Some(Amount { data_files: 8, bytes: 500 }));
        assert_eq!(now.pace.rate, Amount { data_files: 0, bytes: 100 });
        assert_eq!(now.held.keys().collect::<Vec<_>>(), [&file(2)]);
    }
}
