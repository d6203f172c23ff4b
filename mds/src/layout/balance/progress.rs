//! How far a balance is. What is durable of it is in its row; what was moved, in the files' layouts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_namespace::stable_storage::{Balance, BalanceState};
use sluice_namespace::{InodeKey, StoreId};
use sluice_state::Time;

use super::choose::Levels;
use crate::layout::census::Amount;
use crate::layout::drain::progress::MOST_HELD;
use crate::layout::pace::Pace;

/// Nanoseconds between two lines of the log.
const LINE: u64 = 60_000_000_000;

/// The balance that was asked for last.
#[derive(Debug)]
pub(crate) struct Progress {
    taken_up: AtomicBool,
    stopped: AtomicBool,
    numbers: Mutex<Numbers>,
}

/// Its numbers now.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// As it is stored.
    pub(crate) row: Balance,
    /// Since this server's start.
    pub(crate) pace: Pace,
    /// Of what it has moved, what the row counts.
    stored: Amount,
    /// Bytes still to move, as things were a moment ago; not known until the data servers were looked at.
    pub(crate) left: Option<u64>,
    /// Thousandths between the fullest and the emptiest.
    pub(crate) spread: u16,
    /// Files looked at in this walk.
    pub(crate) seen: u64,
    /// What it waits for, in words; "": nothing.
    pub(crate) waits: String,
    /// Files that could not be moved when it was tried last, and why.
    pub(crate) held: BTreeMap<InodeKey, String>,
    /// When the log told of it last.
    told: Option<Time>,
}

impl Numbers {
    pub(crate) fn is_running(&self) -> bool {
        self.row.state == BalanceState::Running
    }

    /// What was moved so far.
    pub(crate) fn moved(&self) -> Amount {
        let stored = Amount { data_files: self.row.data_files, bytes: self.row.bytes };
        stored.plus(self.pace.moved.minus(self.stored))
    }
}

impl Progress {
    pub(super) fn new(row: Balance) -> Self {
        let over = row.state != BalanceState::Running;
        let numbers = Numbers {
            row,
            pace: Pace::default(),
            stored: Amount::default(),
            left: None,
            spread: 0,
            seen: 0,
            waits: String::new(),
            held: BTreeMap::new(),
            told: None,
        };
        Self { taken_up: AtomicBool::new(over), stopped: AtomicBool::new(over), numbers: Mutex::new(numbers) }
    }

    pub(super) fn row(&self) -> Balance {
        self.numbers.lock().row.clone()
    }

    pub(super) fn set_row(&self, row: Balance) {
        self.numbers.lock().row = row;
    }

    /// The row counts what was moved before, and `moved` since this server's start.
    pub(super) fn is_stored(&self, row: Balance, moved: Amount) {
        let mut numbers = self.numbers.lock();
        (numbers.row, numbers.stored) = (row, moved);
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

    pub(super) fn waits(&self, what: String) {
        self.numbers.lock().waits = what;
    }

    pub(super) fn shows(&self, levels: &Levels) {
        let mut numbers = self.numbers.lock();
        (numbers.left, numbers.spread) = (Some(levels.to_give()), levels.spread());
    }

    pub(super) fn seen(&self, files: Option<usize>) {
        let mut numbers = self.numbers.lock();
        numbers.seen = files.map_or(0, |files| numbers.seen.saturating_add(files.try_into().unwrap_or(0)));
    }

    /// Data files of a file are where they were to go.
    pub(super) fn moved(&self, now: Time, key: &InodeKey, amount: Amount) {
        let mut numbers = self.numbers.lock();
        numbers.held.remove(key);
        numbers.left = numbers.left.map(|left| left.saturating_sub(amount.bytes));
        numbers.pace.moved(now, amount);
    }

    /// It cannot be moved now.
    pub(super) fn held(&self, key: InodeKey, why: String) {
        let mut numbers = self.numbers.lock();
        if numbers.held.len() < MOST_HELD || numbers.held.contains_key(&key) {
            numbers.held.insert(key, why);
        }
    }

    /// All files are looked at once more.
    pub(super) fn forget_held(&self) {
        self.numbers.lock().held.clear();
    }

    /// Some were copied from a data server that gives.
    pub(super) fn copied(&self, now: Time, from: StoreId, bytes: u64) -> Duration {
        let mut numbers = self.numbers.lock();
        if !numbers.is_running() || !numbers.row.givers.contains(&from) {
            return Duration::ZERO;
        }
        let limit = numbers.row.rate;
        numbers.pace.copied(now, limit, bytes)
    }

    /// The log tells of it now and then: whether it has.
    pub(super) fn tell(&self, now: Time) -> bool {
        let mut numbers = self.numbers.lock();
        if now.since(*numbers.told.get_or_insert(now)) < LINE {
            return false;
        }
        numbers.told = Some(now);
        let moved = numbers.moved();
        tracing::info!(
            moved_data_files = moved.data_files,
            moved_mib = moved.bytes >> 20,
            left_mib = numbers.left.unwrap_or(0) >> 20,
            held_up = numbers.held.len(),
            "data servers are being balanced"
        );
        true
    }
}
