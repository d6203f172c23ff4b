//! The folders of the fan-out: 16 with 256 each. All 256 come with the first data file of any of them, so that
//! a new data file seldom waits for more than its own entry.

use parking_lot::Mutex;

use crate::StoreError;
use crate::data_file::leaf_path;
use crate::device::Device;
use crate::format::DATA;

/// Leaf folders of one middle folder.
const LEAVES: u16 = 256;

/// Which folders are known durable.
#[derive(Debug, Default)]
pub(crate) struct Folders {
    /// By middle folder. Held while its folders are made: whoever comes meanwhile needs them too.
    durable: [Mutex<bool>; 16],
}

impl Folders {
    /// The leaf folder is there, durably, afterwards. What an incarnation before this one left may be in memory
    /// alone: each looks after them itself. Blocking.
    pub(crate) fn make(&self, device: &dyn Device, leaf: u16) -> Result<(), StoreError> {
        let middle = leaf / LEAVES;
        let Some(durable) = self.durable.get(usize::from(middle)) else { return Ok(()) };
        let mut durable = durable.lock();
        if *durable {
            return Ok(());
        }
        let first = leaf_path(middle * LEAVES);
        let folder = first.rsplit_once('/').map_or("", |(folder, _)| folder);
        device.create_dir(folder)?;
        device.sync_dir(DATA)?;
        for leaf in middle * LEAVES..=middle * LEAVES + (LEAVES - 1) {
            device.create_dir(&leaf_path(leaf))?;
        }
        device.sync_dir(folder)?;
        *durable = true;
        Ok(())
    }
}
