//! An ordered, transactional key-value store with FoundationDB's semantics (docs/DESIGN §4).
//!
//! Strictly serialisable optimistic transactions over ordered byte keys: reads see one version of
//! the store plus the transaction's own writes; commit fails with [`KvError::Conflict`] if a key or
//! range read (not snapshot-read) was written since. Every backend enforces the same envelope:
//! keys up to 10 kB, values up to 100 kB, transactions up to 10 MB and 5 s.
//!
//! A [`Database`] is one of several backends behind one contract suite (tests/contract.rs).

use bytes::Bytes;

/// Largest key, in bytes.
pub const MAX_KEY: usize = 10_000;
/// Largest value, in bytes.
pub const MAX_VALUE: usize = 100_000;
/// Largest sum of the keys and values written and the conflict ranges of one transaction, in bytes.
pub const MAX_TRANSACTION: usize = 10_000_000;

/// Ten bytes, big-endian, greater for every later commit: 8 bytes commit version, 2 bytes order within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Versionstamp(pub [u8; 10]);

impl Versionstamp {
    /// The commit version.
    pub fn version(&self) -> u64 {
        let mut v = [0; 8];
        v.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(v)
    }
}

/// An atomic read-modify-write that causes no read conflict. Operands and values are little-endian
/// unsigned integers of 1 to 8 bytes; an absent value counts as zero; the result has the operand's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Wrapping addition.
    Add,
    /// The greater of the two as unsigned integers.
    Max,
    /// The lesser of the two; an absent value becomes the operand.
    Min,
    /// The greater of the two as byte strings; an absent value becomes the operand.
    ByteMax,
}

/// A key range `[begin, end)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub begin: Bytes,
    pub end: Bytes,
}

/// A key with its value.
pub type KeyValue = (Bytes, Bytes);
