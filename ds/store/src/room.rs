//! Room on the device: writes are refused before the file system wedges.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::StoreError;
use crate::device::{Device, DeviceFile, Space};

/// The device is asked again at the latest after so many bytes were admitted.
const STRIDE: u64 = 256 << 20;

/// The device is asked again at the latest after so many files were admitted.
const FILES: u64 = 256;

/// Bytes of a file system's block.
pub(crate) const BLOCK: u64 = 4096;

/// Inodes kept free for the journal and for the file system's own use.
const INODE_RESERVE: u64 = 64;

#[derive(Debug)]
pub(crate) struct Room {
    reserve: u64,
    /// Bytes that may be admitted before the device is asked again.
    credit: AtomicI64,
    /// Files that may be admitted before the device is asked again.
    files: AtomicI64,
}

impl Room {
    pub(crate) fn new(reserve: u64) -> Self {
        Self { reserve, credit: AtomicI64::new(0), files: AtomicI64::new(0) }
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
            // Data in place of data, or where room was set aside for it.
            return if file.has_place(offset, length)? { Ok(()) } else { Err(StoreError::NoSpace) };
        }
        // Closer to the end the device is asked more often: others may be filling it too.
        let stride = (left - length).min(STRIDE) / 4;
        self.credit.store(stride.cast_signed(), Ordering::Release);
        Ok(())
    }

    /// Whether another file may be created. Blocking, rarely.
    pub(crate) fn admit_file(&self, device: &dyn Device) -> Result<(), StoreError> {
        if self.files.fetch_sub(1, Ordering::AcqRel) >= 1 {
            return Ok(());
        }
        let more = self.files_more(&device.space()?);
        // Others may be filling it too.
        self.files.store((more / 4).cast_signed(), Ordering::Release);
        if more == 0 { Err(StoreError::NoSpace) } else { Ok(()) }
    }

    /// Files that may be created before there is neither an inode nor a block for one, and no more than a few.
    pub(crate) fn files_more(&self, space: &Space) -> u64 {
        let inodes = match space.inodes {
            0 => FILES,
            _ => (space.inodes_free + 1).saturating_sub(INODE_RESERVE),
        };
        inodes.min(self.left(space).div_ceil(BLOCK)).min(FILES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemDevice;

    #[test]
    fn close_to_the_end_few_files_are_admitted_at_once() {
        let room = Room::new(1 << 20);
        let more = |free, inodes, inodes_free| {
            room.files_more(&Space { free, inodes, inodes_free, ..Space::default() })
        };
        assert_eq!(more(1 << 40, 0, 0), FILES);
        assert_eq!(more(1 << 40, 1 << 20, 1 << 20), FILES);
        assert_eq!(
            (more(1 << 40, 1 << 20, 63), more(1 << 40, 1 << 20, 64), more(1 << 40, 1 << 20, 99)),
            (0, 1, 36)
        );
        let left = |bytes: u64| more((1 << 20) + bytes, 0, 0);
        assert_eq!((left(0), left(1), left(4096), left(4097), left(1 << 20)), (0, 1, 1, 2, 256));
    }

    #[test]
    fn the_device_is_asked_again_before_a_quarter_of_them_is_there() {
        let (room, device) = (Room::new(0), MemDevice::new());
        device.set_capacity(8 * BLOCK);
        room.admit_file(&device).unwrap();
        // Others fill it.
        device.set_capacity(0);
        (0..2).for_each(|_| room.admit_file(&device).unwrap());
        (0..2).for_each(|_| assert!(matches!(room.admit_file(&device), Err(StoreError::NoSpace))));
    }
}
