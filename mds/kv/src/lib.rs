//! An ordered, transactional key-value store with FoundationDB's semantics (docs/DESIGN §4).
//!
//! Strictly serialisable optimistic transactions over ordered byte keys: reads see one version of
//! the store plus the transaction's own writes; commit fails with [`KvError::Conflict`] if a key or
//! range read (not snapshot-read) was written since. Every backend enforces the same envelope:
//! keys up to 9.9 kB, values up to 100 kB, transactions up to 10 MB and 5 s. Keys are not empty and do
//! not begin with 0xff.
//!
//! A [`Database`] is one of several backends behind one contract suite (tests/contract).

mod atomic;
mod database;
mod embedded;
mod entries;
mod error;
mod faults;
mod foundation;
mod history;
mod key;
mod lock;
mod memory;
mod reads;
mod run;
mod snapshot;
mod store;
mod transaction;
mod trial;
mod views;
mod writes;

use std::time::Duration;

use bytes::Bytes;

pub use atomic::AtomicOp;
pub use database::{Database, Room, Work};
pub use embedded::EmbeddedOptions;
pub use error::KvError;
pub use faults::Faults;
pub use foundation::{FoundationOptions, Tls, end_client};
pub use key::{KeyReader, KeyWriter, strinc, successor};
pub use run::{Attempt, RunLimits};
pub use snapshot::Snapshot;
pub use transaction::Transaction;

/// Largest key, in bytes: FoundationDB's 10,000 with room for the name of a file system before it.
pub const MAX_KEY: usize = 9_900;
/// Largest value, in bytes.
pub const MAX_VALUE: usize = 100_000;
/// Largest sum of the keys and values written and the conflict ranges of one transaction, in bytes.
pub const MAX_TRANSACTION: usize = 10_000_000;
/// Longest time from a transaction's first read to its commit.
pub const MAX_AGE: Duration = Duration::from_secs(5);
/// The end of the keys a caller may use: what begins with 0xff is the backends' own.
pub const KEYS_END: &[u8] = b"\xff";

/// Ten bytes, big-endian, greater for every later commit: 8 bytes commit version, 2 bytes order within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Versionstamp(pub [u8; 10]);

impl Versionstamp {
    /// In bytes.
    pub const LEN: usize = 10;

    pub(crate) fn new(version: u64, order: u16) -> Self {
        let mut raw = [0; Self::LEN];
        let (high, low) = raw.split_at_mut(8);
        high.copy_from_slice(&version.to_be_bytes());
        low.copy_from_slice(&order.to_be_bytes());
        Self(raw)
    }

    /// The commit version.
    pub fn version(&self) -> u64 {
        let mut v = [0; 8];
        v.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(v)
    }

    /// The stamp at `offset` of `stored`, if that is `template` everywhere else.
    pub(crate) fn within(template: &[u8], stored: &[u8], offset: usize) -> Option<Self> {
        let end = offset.checked_add(Self::LEN)?;
        let same = template.len() == stored.len()
            && template.get(..offset)? == stored.get(..offset)?
            && template.get(end..)? == stored.get(end..)?;
        let raw = stored.get(offset..end)?.try_into().ok()?;
        same.then_some(Self(raw))
    }
}

/// The outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The commit version, or the version read at if nothing was written. Transactions committed
    /// together share it; it never decreases, across restarts too.
    pub version: u64,
    /// `None` if nothing was written.
    pub versionstamp: Option<Versionstamp>,
    /// `false` when an unknown result was resolved by a plain key: the transaction committed, at
    /// `version` or earlier, and its stamp is not known. A versionstamped key keeps it exact.
    pub exact: bool,
}

/// A key range `[begin, end)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub begin: Bytes,
    pub end: Bytes,
}

/// A key with its value.
pub type KeyValue = (Bytes, Bytes);
