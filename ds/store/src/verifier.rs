//! The write verifier: one per incarnation, and a new one for a file whose flush failed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::FixedState;
use parking_lot::Mutex;

use crate::{FileKey, Verifier};

/// Files remembered one by one; beyond that every file gets a new verifier.
const MOST: usize = 4096;

#[derive(Debug)]
pub(crate) struct Verifiers {
    base: AtomicU64,
    poisoned: Mutex<HashMap<FileKey, u64, FixedState>>,
    /// Size of `poisoned`, to spare the lock in a healthy store.
    count: AtomicUsize,
}

impl Verifiers {
    /// The boot count in the upper half makes restarts differ, chance in the lower one makes a
    /// restored old boot count differ.
    pub(crate) fn new(boot: u64, chance: u64) -> Self {
        let base = boot << 32 | chance & 0xffff_ffff;
        Self { base: AtomicU64::new(base), poisoned: Mutex::default(), count: AtomicUsize::new(0) }
    }

    pub(crate) fn of(&self, key: FileKey) -> Verifier {
        let own = match self.count.load(Ordering::Acquire) {
            0 => None,
            _ => self.poisoned.lock().get(&key).copied(),
        };
        Verifier(own.unwrap_or_else(|| self.base.load(Ordering::Acquire)).to_be_bytes())
    }

    /// A flush of `key` failed: unstable writes of it may be lost, so clients must send them again.
    pub(crate) fn poison(&self, key: FileKey, chance: u64) {
        let mut poisoned = self.poisoned.lock();
        if poisoned.len() >= MOST {
            // `chance` is the new base; files forgotten here fall back to it, which is new too.
            self.base.store(chance, Ordering::Release);
            poisoned.clear();
        } else {
            poisoned.insert(key, chance);
        }
        self.count.store(poisoned.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_changes_one_file_and_overflow_all() {
        let verifiers = Verifiers::new(3, 17);
        let key = |file| FileKey { file, slot: 0 };
        let before = verifiers.of(key(1));
        assert_eq!(before, verifiers.of(key(2)));
        verifiers.poison(key(1), 99);
        assert_ne!(verifiers.of(key(1)), before);
        assert_eq!(verifiers.of(key(2)), before);
        for file in 10..10 + MOST as u64 {
            verifiers.poison(key(file), 1000 + file);
        }
        assert_ne!(verifiers.of(key(2)), before);
        assert_ne!(verifiers.of(key(1)), Verifier(99u64.to_be_bytes()));
    }
}
