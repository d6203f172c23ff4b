//! What can go wrong in a store, once.

use std::io;

use crate::sums::Quarantined;

/// Of this process, and of the whole system.
const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();
const ENFILE: i32 = rustix::io::Errno::NFILE.raw_os_error();

/// A store's error. The first group ends start-up and reads as one line for an operator; the
/// second is about one request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{0}: not a Sluice store and not empty: give an empty directory, or the right one")]
    Foreign(String),
    #[error(
        "{0}: no Sluice store here: is the device mounted? (for a new one: sluice ds add with the same options)"
    )]
    Absent(String),
    #[error("{0}: store format {1} is newer than this program's {2}: upgrade the program")]
    NewerFormat(String, u32, u32),
    #[error("{0}: {1} has a record of kind {2}, which this program does not know: upgrade the program")]
    NewerRecord(String, String, u8),
    #[error("{0}: another process is using this store")]
    Locked(String),
    #[error("{0}: store {1} belongs to cluster {2}, not to {3}")]
    ForeignCluster(String, crate::Uuid, crate::Uuid, crate::Uuid),
    #[error("{0}: {1} is damaged: {2}")]
    Corrupt(String, String, String),
    #[error("{0}: {1}")]
    Directory(String, String),

    #[error("no such data file")]
    Missing,
    #[error("refused: {0}")]
    Refused(#[from] crate::Refusal),
    #[error("the device is full")]
    NoSpace,
    #[error("beyond the largest offset of the device")]
    TooBig,
    #[error("the file system of the device cannot share what files hold (XFS can, ext4 cannot)")]
    NoReflink,
    #[error("the device is read-only")]
    ReadOnly,
    #[error("the fence table is full until an epoch is retired")]
    FencesFull,
    #[error("from an older incarnation of the metadata server")]
    OldCaller,
    #[error("quarantined: the device does not hold what was written there")]
    Quarantined,
    #[error("device error: {0}")]
    Io(String),
    #[error("no more files can be opened: the process has as many as it may have (LimitNOFILE)")]
    NoDescriptors,
    #[error("the store is closing")]
    Closing,
}

impl StoreError {
    /// Whether the device was not asked, so that nothing is lost: for a flush that may be tried again.
    pub(crate) fn is_for_later(&self) -> bool {
        matches!(self, Self::NoDescriptors)
    }
}

/// Where a device would have said it: the way back is the same error.
impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoDescriptors => Self::from_raw_os_error(EMFILE),
            StoreError::NoSpace => io::ErrorKind::StorageFull.into(),
            StoreError::TooBig => io::ErrorKind::FileTooLarge.into(),
            StoreError::ReadOnly => io::ErrorKind::ReadOnlyFilesystem.into(),
            other => Self::other(other),
        }
    }
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        if error.get_ref().is_some_and(|inner| inner.is::<Quarantined>()) {
            return Self::Quarantined;
        }
        // One of ours that passed through here keeps its kind.
        if let Some(ours) = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>()) {
            return ours.clone();
        }
        // No kind is named for them.
        if error.raw_os_error().is_some_and(|code| [EMFILE, ENFILE].contains(&code)) {
            return Self::NoDescriptors;
        }
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::FileTooLarge => Self::TooBig,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            _ => Self::Io(error.to_string()),
        }
    }
}
