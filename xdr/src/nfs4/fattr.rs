//! `bitmap4` and `fattr4` (RFC 8881 §3.3.7, §5): a set of attribute numbers, and the values of a set of
//! attributes one behind the other in ascending order.

#![allow(non_camel_case_types)]

use bytes::Bytes;

use crate::{Decode, DecodeError, Encode, Reader, UNBOUNDED, Writer};

/// Words kept of a bitmap; attributes defined so far need three.
const WORDS: u32 = 8;

/// A set of small numbers: attributes, operations, notifications. Numbers up to 255.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct bitmap4 {
    words: [u32; WORDS as usize],
}

impl bitmap4 {
    /// The empty set.
    pub const EMPTY: Self = Self { words: [0; WORDS as usize] };

    /// Largest number plus one.
    pub const CAPACITY: u32 = WORDS * 32;

    /// The set of `numbers`; those beyond [`bitmap4::CAPACITY`] are left out.
    #[allow(clippy::indexing_slicing, reason = "the index is below the capacity; `get_mut` is not const")]
    pub const fn of(numbers: &[u32]) -> Self {
        let mut set = Self::EMPTY;
        let mut rest = numbers;
        while let [first, tail @ ..] = rest {
            if *first < Self::CAPACITY {
                set.words[(*first / 32) as usize] |= 1 << (*first % 32);
            }
            rest = tail;
        }
        set
    }

    /// The set whose words, lowest numbers first, are `words`; words beyond the capacity are left out.
    pub fn from_words(words: &[u32]) -> Self {
        let mut set = Self::EMPTY;
        for (to, from) in set.words.iter_mut().zip(words) {
            *to = *from;
        }
        set
    }

    /// The words up to the last that is not zero: what goes on the wire.
    pub fn words(&self) -> &[u32] {
        let used = self.words.iter().rposition(|&w| w != 0).map_or(0, |i| i + 1);
        self.words.get(..used).unwrap_or_default()
    }

    /// Whether `number` is in the set.
    pub fn contains(&self, number: u32) -> bool {
        self.words.get((number / 32) as usize).is_some_and(|w| w >> (number % 32) & 1 == 1)
    }

    /// Adds `number`; numbers beyond [`bitmap4::CAPACITY`] are ignored.
    pub fn insert(&mut self, number: u32) {
        if let Some(word) = self.words.get_mut((number / 32) as usize) {
            *word |= 1 << (number % 32);
        }
    }

    /// Takes `number` out.
    pub fn remove(&mut self, number: u32) {
        if let Some(word) = self.words.get_mut((number / 32) as usize) {
            *word &= !(1 << (number % 32));
        }
    }

    /// The set with `number` in it.
    #[must_use]
    pub fn with(mut self, number: u32) -> Self {
        self.insert(number);
        self
    }

    fn zip(self, other: Self, f: impl Fn(u32, u32) -> u32) -> Self {
        let mut set = self;
        for (a, b) in set.words.iter_mut().zip(other.words) {
            *a = f(*a, b);
        }
        set
    }

    /// What is in both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// What is in either set.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// What is in this set and not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// How many numbers are in the set.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// The numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        // One step for each number that is there, not for each that could be: every request with attributes comes by here.
        (0..).zip(self.words).flat_map(|(at, word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let lowest = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(at * 32 + lowest)
            })
        })
    }
}

impl FromIterator<u32> for bitmap4 {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        numbers.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl std::fmt::Debug for bitmap4 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Encode for bitmap4 {
    fn encode(&self, w: &mut Writer) {
        w.array(self.words(), WORDS, |w, v| w.u32(*v));
    }
}

impl Decode for bitmap4 {
    const MIN_SIZE: usize = 4;

    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let count = r.length(WORDS, 4)?;
        let mut set = Self::EMPTY;
        for word in set.words.iter_mut().take(count) {
            *word = r.u32()?;
        }
        Ok(set)
    }
}

/// Attributes as they travel: which, and their values in ascending order of number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct fattr4 {
    /// Attributes present.
    pub attrmask: bitmap4,
    /// Their values, XDR behind XDR.
    pub attr_vals: Bytes,
}

impl Encode for fattr4 {
    fn encode(&self, w: &mut Writer) {
        self.attrmask.encode(w);
        w.opaque(&self.attr_vals, UNBOUNDED);
    }
}

impl Decode for fattr4 {
    const MIN_SIZE: usize = 8;

    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { attrmask: bitmap4::decode(r)?, attr_vals: r.opaque(UNBOUNDED)? })
    }
}
