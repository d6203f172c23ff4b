//! Checksums at rest (docs/adr/0023-checksums-at-rest.md): a block of a data file has a sum when it has been durable and
//! left alone for a while; before the first write after that the sum is given up, durably. So a sum that is there is
//! the sum of what the device must hold, whatever crashed when.
//!
//! | module | what |
//! | --- | --- |
//! | `record` | the sums of one region, as they lie in the side file |
//! | `file` | a data file that gives its sums up when it is written to, and shows nobody what is in quarantine |
//! | `seal` | sums for what has come to rest |
//! | `verify` | whether the device holds what the sums say |
//! | `scrub` | both, for the whole store, in the background |
//! | `quarantine` | what does not |

mod file;
mod keep;
mod quarantine;
mod record;
mod scrub;
mod seal;
mod verify;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use sluice_env::Clock;

pub(crate) use file::SummedFile;
pub use quarantine::Damage;
pub(crate) use quarantine::{Quarantine, Quarantined, forget as forget_quarantine};
pub use scrub::Scrub;
pub(crate) use scrub::State as ScrubState;
pub(crate) use seal::is_of_medium;

use crate::device::Device;
use crate::places::{leaf_path, path_of};
use crate::{FileKey, StoreError};

/// Bytes with a sum of their own.
pub(crate) const BLOCK: u64 = 4096;
/// Bytes whose sums are sealed and given up together.
pub(crate) const REGION: u64 = 4 << 20;
/// Blocks of a region.
pub(crate) const BLOCKS: usize = (REGION / BLOCK) as usize;

/// How checksums are kept.
#[derive(Clone, Copy, Debug)]
pub struct SumOptions {
    /// Sums are made of what nobody wrote to for so long.
    pub quiet: Duration,
    /// Bytes per second that may be read for sums and for scrubbing; 0: as fast as it goes.
    pub rate: u64,
    /// From the end of one scrub to the beginning of the next; zero: only when it is asked for.
    pub interval: Duration,
}

impl Default for SumOptions {
    fn default() -> Self {
        Self {
            quiet: Duration::from_secs(10),
            rate: 100 << 20,
            interval: Duration::from_secs(14 * 24 * 3600),
        }
    }
}

/// What a scrub and the sealing of sums have done since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Bytes read back and found good.
    pub(crate) verified: AtomicU64,
    /// Bytes that got sums.
    pub(crate) sealed: AtomicU64,
    /// Regions whose sums were given up because of a write.
    pub(crate) unsealed: AtomicU64,
    /// Blocks found bad.
    pub(crate) bad: AtomicU64,
    /// Records of sums that were bad themselves, and side files that could not be read.
    pub(crate) lost: AtomicU64,
}

impl Counts {
    pub(crate) fn add(count: &AtomicU64, n: u64) {
        count.fetch_add(n, Ordering::Relaxed);
    }
}

/// Data files remembered for sealing; others are found by the next scrub.
const QUEUE: usize = 65_536;

/// The sums of a store.
#[derive(Debug)]
pub(crate) struct Sums {
    // Constant.
    /// Names this store's sums since they were switched on: others are of an earlier time and count for nothing.
    pub(crate) id: u64,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: SumOptions,
    // Each guards itself.
    pub(crate) quarantine: Quarantine,
    pub(crate) counts: Counts,
    /// Written to since their sums were last made.
    queue: Mutex<HashSet<FileKey, FixedState>>,
    /// Regions whose sums could not be given up durably: what is in memory says otherwise than the device may.
    unsure: Mutex<HashSet<(FileKey, u64), FixedState>>,
    /// Data files whose side file could not be read and was removed: it is not durable yet that it is gone.
    lost: Mutex<HashSet<FileKey, FixedState>>,
}

impl Sums {
    pub(crate) fn new(
        id: u64,
        device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        options: SumOptions,
        quarantine: Quarantine,
    ) -> Arc<Self> {
        let (queue, unsure, lost) = (Mutex::default(), Mutex::default(), Mutex::default());
        let counts = Counts::default();
        Arc::new(Self { id, device, clock, options, quarantine, counts, queue, unsure, lost })
    }

    /// False when there are too many already.
    fn enqueue(&self, key: FileKey) -> bool {
        let mut queue = self.queue.lock();
        queue.len() < QUEUE && {
            queue.insert(key);
            true
        }
    }

    pub(crate) fn take_queue(&self) -> Vec<FileKey> {
        let mut queue = self.queue.lock();
        let mut keys: Vec<FileKey> = std::mem::take(&mut *queue).into_iter().collect();
        keys.sort_unstable();
        keys
    }

    /// A data file has come into being: what was known of one before is not about it.
    pub(crate) fn comes_anew(&self, key: FileKey) {
        if !self.quarantine.is_empty() {
            self.quarantine.forget(key);
        }
    }

    /// A data file is gone, and its side file with it.
    pub(crate) fn forget(&self, key: FileKey) {
        self.queue.lock().remove(&key);
        self.quarantine.forget(key);
    }
}

/// What the name of a data file ends with in that of its side file.
pub(crate) const SUFFIX: &str = ".sums";

/// Where the sums of a data file are.
fn side_path(key: FileKey) -> String {
    format!("{}{SUFFIX}", path_of(key))
}

/// One that is not there is no error. Blocking.
pub(crate) fn remove_side(device: &dyn Device, key: FileKey) -> Result<(), StoreError> {
    match device.remove(&side_path(key)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// The data files that have side files in one folder, themselves there or not. Blocking.
pub(crate) fn sides_in(device: &dyn Device, folder: u16) -> Result<Vec<FileKey>, StoreError> {
    let names = match device.list(&leaf_path(folder)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    Ok(names.iter().filter_map(|name| FileKey::parse(name.strip_suffix(SUFFIX)?)).collect())
}
