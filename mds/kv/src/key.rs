//! Order-preserving keys: the order of the bytes is the order of the tuples they encode.
//!
//! A key is a sequence of fixed-width big-endian integers, ended by at most one raw byte string.

use std::hash::BuildHasher;
use std::sync::LazyLock;

use bytes::{BufMut, Bytes, BytesMut};
use foldhash::fast::RandomState;

use crate::KeyRange;

/// One for all tables of keys, so that what is written is hashed once for all of them. Another in each process: nobody can
/// choose keys that meet.
static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// The hash of a key, whatever table it is for.
pub(crate) fn hash(key: &[u8]) -> u64 {
    HASH.hash_one(key)
}

/// Builds a key, field by field.
#[derive(Clone, Debug, Default)]
pub struct KeyWriter(BytesMut);

impl KeyWriter {
    pub fn new() -> Self {
        Self(BytesMut::with_capacity(48))
    }

    #[must_use]
    pub fn u8(mut self, v: u8) -> Self {
        self.0.put_u8(v);
        self
    }

    #[must_use]
    pub fn u16(mut self, v: u16) -> Self {
        self.0.put_u16(v);
        self
    }

    #[must_use]
    pub fn u32(mut self, v: u32) -> Self {
        self.0.put_u32(v);
        self
    }

    #[must_use]
    pub fn u64(mut self, v: u64) -> Self {
        self.0.put_u64(v);
        self
    }

    /// Ends the key with raw bytes: their length is not recorded, so nothing may follow.
    pub fn tail(mut self, bytes: &[u8]) -> Bytes {
        self.0.put_slice(bytes);
        self.0.freeze()
    }

    /// Ends the key.
    pub fn finish(self) -> Bytes {
        self.0.freeze()
    }
}

/// Takes a key apart, field by field; `None` when the key is shorter than asked for.
#[derive(Clone, Copy, Debug)]
pub struct KeyReader<'a>(&'a [u8]);

impl<'a> KeyReader<'a> {
    pub fn new(key: &'a [u8]) -> Self {
        Self(key)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[b]| b)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// The raw bytes that end the key.
    pub fn tail(self) -> &'a [u8] {
        self.0
    }

    /// `Some` when nothing is left.
    pub fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// The first key after `key`.
pub fn successor(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

/// The first key after every key that begins with `prefix`, `None` when `prefix` is all 0xff.
pub fn strinc(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut next = BytesMut::from(&prefix[..=last]);
    next[last] += 1;
    Some(next.freeze())
}

impl KeyRange {
    /// `[begin, end)`.
    pub fn new(begin: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { begin: begin.into(), end: end.into() }
    }

    /// Every key that begins with `prefix`. A prefix that is empty or all 0xff ends at the reserved space.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let begin = prefix.into();
        let end = strinc(&begin).unwrap_or_else(|| Bytes::from_static(crate::KEYS_END));
        Self { begin, end }
    }

    /// `key` alone.
    pub fn single(key: impl Into<Bytes>) -> Self {
        let begin = key.into();
        let end = successor(&begin);
        Self { begin, end }
    }

    /// Every key a caller can write.
    pub fn all() -> Self {
        Self { begin: Bytes::new(), end: Bytes::from_static(crate::KEYS_END) }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        *self.begin <= *key && *key < *self.end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strinc_skips_trailing_ff() {
        assert_eq!(strinc(b"a\xff\xff").unwrap(), &b"b"[..]);
        assert_eq!(strinc(b"ab").unwrap(), &b"ac"[..]);
        assert_eq!(strinc(b"\xff\xff"), None);
        assert_eq!(strinc(b""), None);
    }

    proptest! {
        #[test]
        fn a_prefix_range_holds_exactly_the_keys_with_the_prefix(
            prefix in prop::collection::vec(prop_oneof![Just(0u8), Just(0xfe), Just(0xff)], 0..3),
            key in prop::collection::vec(prop_oneof![Just(0u8), Just(0xfe), Just(0xff)], 1..5),
        ) {
            prop_assume!(key[0] != 0xff && prefix.first() != Some(&0xff));
            prop_assert_eq!(KeyRange::prefix(prefix.clone()).contains(&key), key.starts_with(&prefix));
        }

        #[test]
        fn keys_order_as_their_fields(a: (u8, u16, u32, u64, Vec<u8>), b: (u8, u16, u32, u64, Vec<u8>)) {
            let encode = |t: &(u8, u16, u32, u64, Vec<u8>)| {
                KeyWriter::new().u8(t.0).u16(t.1).u32(t.2).u64(t.3).tail(&t.4)
            };
            prop_assert_eq!(encode(&a).cmp(&encode(&b)), a.cmp(&b));
            let key = encode(&a);
            let mut reader = KeyReader::new(&key);
            prop_assert_eq!((reader.u8(), reader.u16()), (Some(a.0), Some(a.1)));
            prop_assert_eq!((reader.u32(), reader.u64()), (Some(a.2), Some(a.3)));
            prop_assert_eq!(reader.tail(), &a.4[..]);
            prop_assert_eq!(reader.end().is_some(), a.4.is_empty());
        }
    }
}
