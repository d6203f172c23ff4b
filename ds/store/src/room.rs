//! Room on the device: writes are refused before the file system wedges.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::StoreError;
use crate::device::{Device, DeviceFile, Space};

/// The device is asked again at the latest after so many bytes were admitted.
const STRIDE: u64 = 256 << 20;

/// Inodes kept free for the journal and for the file system's own use.
const INODE_RESERVE: u64 = 64;

#[derive(Debug)]
pub(crate) struct Room {
    reserve: u64,
    /// Bytes that may be admitted before the device is asked again.
    credit: AtomicI64,
}

impl Room {
    pub(crate) fn new(reserve: u64) -> Self {
        Self { reserve, credit: AtomicI64::new(0) }
    }

    /// Bytes that clients may still fill.
    pub(crate) fn left(&self, space: &Space) -> u64 {
        space.free.saturating_sub(self.reserve)
    }

    /// Whether `length` bytes at `offset` of `file` may be written. Blocking, rarely.
    pub(crate) fn admit(
        &self,
        device: &dyn Device,
        file: &dyn DeviceFile,
        offset: u64,
        length: u64,
    ) -> Result<(), StoreError> {
        let cost = length.cast_signed();
        if self.credit.fetch_sub(cost, Ordering::AcqRel) >= cost {
            return Ok(());
        }
        let left = self.left(&device.space()?);
        if left < length {
            self.credit.store(0, Ordering::Release);
            return if overwrites(file, offset, length)? { Ok(()) } else { Err(StoreError::NoSpace) };
        }
        // Closer to the end the device is asked more often: others may be filling it too.
        let stride = (left - length).min(STRIDE) / 4;
        self.credit.store(stride.cast_signed(), Ordering::Release);
        Ok(())
    }

    /// Whether another file may be created. Blocking.
    pub(crate) fn admit_file(&self, device: &dyn Device) -> Result<(), StoreError> {
        let space = device.space()?;
        let starved = space.inodes > 0 && space.inodes_free < INODE_RESERVE;
        if starved || self.left(&space) == 0 { Err(StoreError::NoSpace) } else { Ok(()) }
    }
}

/// Data in place of data needs no room.
fn overwrites(file: &dyn DeviceFile, offset: u64, length: u64) -> Result<bool, StoreError> {
    let end = offset.saturating_add(length);
    if file.stat()?.size < end {
        return Ok(false);
    }
    Ok(file.seek_hole(offset)?.is_some_and(|hole| hole >= end))
}
