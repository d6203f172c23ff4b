//! Who has waited long for room in a server's budget, in order. Who asks for little finds room between two releases; who
//! asks for much would wait for as long as others do that. What is freed is kept for the first in line.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Whoever waits longer for room gets in line. A full budget of a data server leaves within that over 1 Gbit/s: where peers
/// take what they asked for, hardly anybody waits so long. Clients wait a minute for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct Line {
    /// What the first in line asks for, or 0.
    kept: AtomicUsize,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    last: u64,
    /// What each asks for.
    waiting: BTreeMap<u64, usize>,
}

impl Places {
    fn first(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(number, _)| *number)
    }

    fn kept(&self) -> usize {
        self.waiting.first_key_value().map_or(0, |(_, bytes)| *bytes)
    }
}

impl Line {
    /// Bytes that are kept for the first in line. Usually there is no line.
    pub(crate) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    pub(crate) fn is_first(&self, number: u64) -> bool {
        self.places.lock().first() == Some(number)
    }

    /// The number of a new place, for one who asks for so many bytes. Never 0.
    pub(crate) fn enter(&self, bytes: usize) -> u64 {
        let mut places = self.places.lock();
        places.last += 1;
        let number = places.last;
        places.waiting.insert(number, bytes);
        self.kept.store(places.kept(), Ordering::Relaxed);
        number
    }

    /// Whether it was the first: others may find room now.
    pub(crate) fn leave(&self, number: u64) -> bool {
        let mut places = self.places.lock();
        let first = places.first() == Some(number);
        places.waiting.remove(&number);
        self.kept.store(places.kept(), Ordering::Relaxed);
        first
    }
}
