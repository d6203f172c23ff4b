//! What can go wrong, by what the caller should do about it.

use std::path::PathBuf;

/// The failure of a read, a commit or the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Something the transaction read was written since. Nothing was applied.
    #[error("the transaction conflicts with a later write")]
    Conflict,
    /// The transaction outlived [`crate::MAX_AGE`] or the history kept for it. Nothing was applied.
    #[error("the transaction is too old")]
    TooOld,
    /// The commit may or may not have been applied; it is no longer in flight.
    #[error("it is unknown whether the transaction committed")]
    CommitUnknown,
    /// The deadline or the number of attempts of [`crate::RunLimits`] ran out; the last error is within.
    /// Nothing was applied by the attempts that ended this way.
    #[error("gave up after {attempts} attempts: {last}")]
    GaveUp { attempts: u32, last: Box<Self> },
    /// The transaction is larger than [`crate::MAX_TRANSACTION`].
    #[error("the transaction has {bytes} bytes, more than the limit")]
    TooLarge { bytes: usize },
    /// The key is longer than [`crate::MAX_KEY`].
    #[error("a key of {bytes} bytes is longer than the limit")]
    KeyTooLong { bytes: usize },
    /// The key is empty or begins with 0xff, which every backend reserves.
    #[error("the key is empty or in the reserved space")]
    KeyOutside,
    /// The value is longer than [`crate::MAX_VALUE`].
    #[error("a value of {bytes} bytes is longer than the limit")]
    ValueTooLong { bytes: usize },
    /// The key of [`crate::RunLimits::guarded_by`] has another value.
    #[error("another server has taken over this store")]
    Superseded,
    /// The range ends before it begins.
    #[error("the range ends before it begins")]
    InvertedRange,
    /// An operand that is not 1 to 16 bytes long, or a versionstamp that does not fit in its value.
    #[error("the operand has the wrong length")]
    BadOperand,
    /// A versionstamped value was read by the transaction that writes it; it is not known before commit.
    #[error("the value is unreadable until the transaction commits")]
    Unreadable,
    /// The store cannot be reached now.
    #[error("the store is unavailable: {what}")]
    Unavailable { what: String },
    /// The stored bytes contradict themselves.
    #[error("the store is corrupt: {what}")]
    Corrupt { what: String },
    /// The device, the file system or the cluster failed.
    #[error("the store failed: {what}")]
    Io { what: String },
    /// A store failed for good: nobody knows what of the last commits is on its device. It answers nothing more until it
    /// is opened again.
    #[error("the store answers nothing more since it failed: {what}")]
    Failed { what: String },
    /// Another process has the directory open.
    #[error("{} is in use by another process", dir.display())]
    InUse { dir: PathBuf },
    /// The directory holds something, and it is not a store.
    #[error("{} is not empty and is not a metadata store: give an empty directory, or the right one", dir.display())]
    Foreign { dir: PathBuf },
    /// The directory was written by a newer release.
    #[error("{} has format {found}, newer than {supported}, the newest this release reads", dir.display())]
    NewerFormat { dir: PathBuf, found: u32, supported: u32 },
    /// What the FoundationDB backend needs on this host is not there or does not fit.
    #[error("{what}")]
    NoClient { what: String },
    /// The database was closed.
    #[error("the store is closed")]
    Closed,
}

impl KvError {
    /// Whether running the operation again on a fresh transaction may succeed, and surely applies it
    /// at most once.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Conflict | Self::TooOld | Self::Unavailable { .. })
    }

    /// Whether others were at work at the same place, for as long as it was tried: a transaction that does less may get
    /// through.
    pub fn is_contention(&self) -> bool {
        match self {
            Self::Conflict | Self::TooOld => true,
            Self::GaveUp { last, .. } => last.is_contention(),
            _ => false,
        }
    }

    /// Whether the transaction may have been applied.
    pub fn maybe_committed(&self) -> bool {
        match self {
            Self::CommitUnknown => true,
            Self::GaveUp { last, .. } => last.maybe_committed(),
            _ => false,
        }
    }
}
