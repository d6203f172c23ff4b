//! Which numbers of a context's calls have been.

/// A call that comes so far behind the newest one of its context is not heard (RFC 2203 §5.3.3.1). Linux gives one that has fallen so
/// far behind the newest sent a number of its own before it sends it; how many are under way its sessions' slots say.
pub(crate) const WINDOW: u32 = 1024;

const WORDS: usize = (WINDOW / 64) as usize;

/// A ring of bits, one for each of the last numbers.
#[derive(Debug, Default)]
pub(crate) struct Window {
    highest: u32,
    seen: Box<[u64; WORDS]>,
}

impl Window {
    /// Whether the number is new; from now on it is not.
    pub(crate) fn take(&mut self, number: u32) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            if ahead >= WINDOW {
                self.seen.fill(0);
            } else {
                (self.highest + 1..=number).for_each(|number| self.set(number, false));
            }
            self.highest = number;
        } else if self.highest - number >= WINDOW || self.has(number) {
            return false;
        }
        self.set(number, true);
        true
    }

    fn place(number: u32) -> (usize, u64) {
        let bit = number % WINDOW;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    fn has(&self, number: u32) -> bool {
        let (word, bit) = Self::place(number);
        self.seen.get(word).is_some_and(|seen| seen & bit != 0)
    }

    fn set(&mut self, number: u32, to: bool) {
        let (word, bit) = Self::place(number);
        if let Some(seen) = self.seen.get_mut(word) {
            *seen = if to { *seen | bit } else { *seen & !bit };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_taken_once_and_not_when_it_is_old(numbers in prop::collection::vec(0u32..6000, 1..400)) {
            let (mut window, mut seen, mut highest) = (Window::default(), BTreeSet::new(), 0);
            for number in numbers {
                let old = number <= highest && highest - number >= WINDOW;
                let new = !old && seen.insert(number);
                prop_assert_eq!(window.take(number), new, "{} after {}", number, highest);
                highest = highest.max(number);
            }
        }
    }

    #[test]
    fn numbers_may_begin_anywhere_and_jump() {
        let mut window = Window::default();
        assert!(window.take(0) && !window.take(0) && window.take(0x7fff_ffff) && window.take(0x8000_0000));
        assert!(!window.take(0x7fff_ffff) && !window.take(0) && window.take(0x7fff_fffe));
    }
}
