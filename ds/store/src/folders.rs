//! The folders of the fan-out: 16 with 256 each. All 256 are made before anybody needs one of them, or else with the first
//! data file of any of them, so that a new data file seldom waits for more than its own entry.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::device::Device;
use crate::format::DATA;
use crate::places::{LEAVES_OF_MIDDLE as LEAVES, leaf_path};
use crate::{Capacity, Store, StoreError};

const MIDDLES: u16 = 16;

/// Of the room and the inodes that are left, those for which nobody has asked yet take this part at most.
const SHARE: u64 = 16;

/// Bytes of an empty folder, where it takes any.
const FOLDER: u64 = 4096;

/// Which folders are known durable.
#[derive(Debug, Default)]
pub(crate) struct Folders {
    /// By middle folder. Held while its folders are made: whoever comes meanwhile needs them too.
    durable: [Mutex<bool>; MIDDLES as usize],
}

impl Store {
    /// Makes all folders that are not there, so that no write has to wait for 256 of them; nothing on a device where they would
    /// take more than a sixteenth of what is left. What goes wrong is told to the write that needs the folder.
    pub async fn make_folders(self: Arc<Self>) {
        if !self.capacity().await.is_ok_and(|capacity| has_room(&capacity)) {
            tracing::debug!(store = %self.place(), "folders are made when they are needed");
            return;
        }
        for middle in 0..MIDDLES {
            let (device, folders) = (Arc::clone(&self.device), Arc::clone(&self.folders));
            let (done, made) = oneshot::channel();
            // Without the store: whoever closes it meanwhile may open it again.
            drop(self.env.spawn.blocking(Box::new(move || {
                // Nobody waits when the store is closed.
                let _ = done.send(folders.make(&*device, middle * LEAVES));
            })));
            if let Err(error) = made.await.unwrap_or(Err(StoreError::Closing)) {
                tracing::debug!(store = %self.place(), %error, "folders are made when they are needed");
                return;
            }
        }
    }
}

/// Whether all folders are a small part of what is left.
fn has_room(capacity: &Capacity) -> bool {
    let most = u64::from(MIDDLES) * u64::from(LEAVES + 1) * SHARE;
    capacity.free >= most * FOLDER && (capacity.inodes == 0 || capacity.inodes_free >= most)
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
    use sluice_env::Env;

    use super::*;
    use crate::Options;
    use crate::device::MemDevice;

    async fn store(device: &MemDevice) -> Arc<Store> {
        let options = Options { create: true, ..Options::default() };
        Store::open(&Env::simulated(1), Arc::new(device.clone()), options).await.unwrap()
    }

    #[tokio::test]
    async fn all_are_there_before_somebody_needs_them() {
        let device = MemDevice::new();
        store(&device).await.make_folders().await;
        device.crash();
        let middles = device.list(DATA).unwrap();
        assert_eq!(middles.len(), usize::from(MIDDLES));
        for middle in middles {
            assert_eq!(device.list(&format!("{DATA}/{middle}")).unwrap().len(), usize::from(LEAVES));
        }
    }

    /// Where they would take room that data could have, those that are needed are made when they are.
    #[tokio::test]
    async fn a_small_device_has_none_that_nobody_needs() {
        let device = MemDevice::new();
        device.set_capacity(300 << 20);
        store(&device).await.make_folders().await;
        assert_eq!(device.list(DATA).unwrap(), Vec::<String>::new());
        let room = |free, inodes, inodes_free| {
            has_room(&Capacity { free, inodes, inodes_free, ..Capacity::default() })
        };
        assert!(room(258 << 20, 0, 0));
        assert!(!room(256 << 20, 0, 0));
        assert!(room(1 << 40, 1 << 20, 66_000));
        assert!(!room(1 << 40, 1 << 20, 65_000));
    }

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
