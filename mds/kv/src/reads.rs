//! What a transaction read, for validation.

use crate::KeyRange;

/// Room for the keys of most transactions: they read a handful of rows.
const KEYS: usize = 12;
const BYTES: usize = 32 * KEYS;

/// Keys one behind the other in one piece of memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Keys {
    pub(crate) fn push(&mut self, key: &[u8]) {
        if self.ends.is_empty() {
            self.bytes.reserve(BYTES);
            self.ends.reserve(KEYS);
        }
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// As they were read: one may be there several times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).filter_map(|(begin, end)| self.bytes.get(begin..*end))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ReadSet {
    pub(crate) keys: Keys,
    pub(crate) ranges: Vec<KeyRange>,
}

impl ReadSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        let mut keys = Keys::default();
        assert!(keys.is_empty() && keys.iter().next().is_none());
        let all: [&[u8]; 5] = [b"ab", b"", b"c", b"ab", &[7; 500]];
        all.iter().for_each(|key| keys.push(key));
        assert!(keys.iter().eq(all));
    }
}
