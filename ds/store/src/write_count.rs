//! Numbers of writes: whether a data file was written to since some moment, exactly, whatever the resolution of
//! the device's clock.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;

use crate::FileKey;

/// Numbers of one incarnation: more writes than a device could take in its life.
const PER_BOOT: u32 = 40;
/// Closed data files whose numbers a shard remembers.
const CLOSED: usize = 4096;

/// Numbers writes in ascending order, across restarts too.
#[derive(Debug)]
pub(crate) struct WriteCount {
    newest: AtomicU64,
    /// At least the number of the newest write of any data file that is not open, and not remembered as closed.
    forgotten: AtomicU64,
}

impl WriteCount {
    pub(crate) fn new(boot: u64) -> Self {
        let first = boot << PER_BOOT;
        Self { newest: AtomicU64::new(first), forgotten: AtomicU64::new(first) }
    }

    /// The number of a write that is complete and not yet acknowledged.
    pub(crate) fn next(&self) -> u64 {
        self.newest.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// A data file with this number is closed, and nothing remembers it.
    fn forget(&self, last_write: u64) {
        self.forgotten.fetch_max(last_write, Ordering::AcqRel);
    }

    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Acquire)
    }
}

/// Numbers of data files closed lately. What is written in one go is closed soon after, while its client may set times
/// on it or commit its layout much later: it is not to count then as if whatever was closed meanwhile had been written.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    numbers: HashMap<FileKey, u64, FixedState>,
    /// As they were closed; some of them are open again.
    order: VecDeque<(FileKey, u64)>,
}

impl Closed {
    pub(crate) fn get(&self, key: FileKey) -> Option<u64> {
        self.numbers.get(&key).copied()
    }

    pub(crate) fn take(&mut self, key: FileKey) -> Option<u64> {
        self.numbers.remove(&key)
    }

    pub(crate) fn put(&mut self, key: FileKey, number: u64, writes: &WriteCount) {
        if number <= writes.forgotten() {
            return;
        }
        if self.order.len() >= CLOSED
            && let Some((oldest, number)) = self.order.pop_front()
            && self.get(oldest) == Some(number)
        {
            self.numbers.remove(&oldest);
            writes.forget(number);
        }
        self.numbers.insert(key, number);
        self.order.push_back((key, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_closed_files_are_exact_until_there_are_too_many() {
        let (writes, mut closed) = (WriteCount::new(1), Closed::default());
        let key = |file| FileKey { file, slot: 0 };
        let first = writes.next();
        closed.put(key(1), first, &writes);
        for file in 2..=CLOSED as u64 {
            closed.put(key(file), writes.next(), &writes);
        }
        assert_eq!(closed.get(key(1)), Some(first));
        assert!(writes.forgotten() < first);
        closed.put(key(0), writes.next(), &writes);
        assert_eq!((closed.get(key(1)), writes.forgotten()), (None, first));
        // Open again, and closed with a newer number: the older one leaves nothing behind.
        let again = closed.take(key(2)).unwrap_or_default();
        let newer = writes.next();
        closed.put(key(2), newer, &writes);
        closed.put(key(5000), writes.next(), &writes);
        assert!(writes.forgotten() < again || closed.get(key(2)) == Some(newer));
        assert_eq!(closed.get(key(2)), Some(newer));
        // What was only read says nothing new.
        closed.put(key(6000), writes.forgotten(), &writes);
        assert_eq!(closed.get(key(6000)), None);
    }
}
