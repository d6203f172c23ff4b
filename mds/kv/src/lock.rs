//! A file that one process at a time holds.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use crate::KvError;

/// A file locked for as long as this exists.
#[derive(Debug)]
pub(crate) struct LockedFile(File);

impl LockedFile {
    /// Locks `file`; `place` is what an administrator knows it by.
    pub(crate) fn new(
        file: File,
        place: &Path,
        failed: impl Fn(io::Error) -> KvError,
    ) -> Result<Self, KvError> {
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(KvError::InUse { dir: place.to_owned() }),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }
}

/// Closing the file is not enough: a process that this one is just starting has a copy of every open file until it has
/// its own program, and the lock lasts as long as any copy.
impl Drop for LockedFile {
    fn drop(&mut self) {
        // Then it is unlocked when the last copy is closed.
        self.0.unlock().ok();
    }
}
