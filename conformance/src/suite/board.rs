//! Where the guests of a case meet: named values and barriers.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Values posted by guests, and waits for them.
#[derive(Debug, Default)]
pub(crate) struct Board {
    content: Mutex<Content>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Content {
    closed: bool,
    values: BTreeMap<String, String>,
    /// Arrivals so far; a barrier with a name may be used again and again.
    arrivals: BTreeMap<String, u64>,
}

impl Board {
    /// Sets a value; the last one stays.
    pub(crate) fn post(&self, name: &str, value: &str) {
        self.lock().values.insert(name.to_owned(), value.to_owned());
        self.changed.notify_all();
    }

    /// Waits for a value.
    pub(crate) fn wait(&self, name: &str, limit: Duration) -> Result<String> {
        self.until(limit, name, |content| content.values.get(name).cloned())
    }

    /// Waits until `count` guests have come to this barrier.
    pub(crate) fn barrier(&self, name: &str, count: u64, limit: Duration) -> Result<()> {
        let count = count.max(1);
        let round = {
            let mut content = self.lock();
            let arrivals = content.arrivals.entry(name.to_owned()).or_default();
            *arrivals += 1;
            arrivals.div_ceil(count)
        };
        self.changed.notify_all();
        self.until(limit, name, |content| {
            content.arrivals.get(name).filter(|arrivals| **arrivals >= round * count).map(|_| ())
        })
    }

    /// Ends every wait, now and later.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn until<T>(&self, limit: Duration, name: &str, find: impl Fn(&Content) -> Option<T>) -> Result<T> {
        let end = Instant::now() + limit;
        let mut content = self.lock();
        loop {
            if let Some(found) = find(&content) {
                return Ok(found);
            }
            if content.closed {
                bail!("the case has ended while a guest waited for {name}");
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("nobody else came to {name} within {} s", limit.as_secs());
            }
            content = self.changed.wait_timeout(content, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_barrier_waits_for_all_and_can_be_used_again() {
        let board = Board::default();
        assert!(board.barrier("b", 2, Duration::from_millis(20)).is_err());
        let board = Board::default();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..50).for_each(|_| board.barrier("b", 2, LONG).unwrap()));
            }
        });
    }

    #[test]
    fn waits_end_with_the_case() {
        let board = Board::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| board.wait("x", LONG));
            board.close();
            assert!(waiting.join().unwrap().is_err());
        });
        board.post("y", "1");
        assert_eq!(board.wait("y", LONG).unwrap(), "1");
    }
}
