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
        let there = device.list(folder)?;
        for leaf in middle * LEAVES..=middle * LEAVES + (LEAVES - 1) {
            let path = leaf_path(leaf);
            let name = path.rsplit_once('/').map_or("", |(_, name)| name);
            if there.binary_search_by(|known| known.as_str().cmp(name)).is_err() {
                device.create_dir(&path)?;
            }
        }
        device.sync_dir(folder)?;
        *durable = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemDevice;

    /// An incarnation that died in the middle left some of them.
    #[test]
    fn all_leaves_are_there_whatever_was_there_before() {
        let device = MemDevice::new();
        for path in [DATA, "data/3", "data/3/07", "data/3/ff"] {
            device.create_dir(path).unwrap();
        }
        let folders = Folders::default();
        for leaf in [0x3_07, 0x3_00, 0x4_80] {
            folders.make(&device, leaf).unwrap();
        }
        assert_eq!(device.list(DATA).unwrap(), ["3", "4"]);
        for middle in ["data/3", "data/4"] {
            let names: Vec<String> = (0..LEAVES).map(|leaf| format!("{leaf:02x}")).collect();
            assert_eq!(device.list(middle).unwrap(), names);
        }
    }
}
