//! Where data files lie: 4096 folders, the leaves of a fan-out of 16 with 256 each.
//!
//! Ids are handed out in order. A run of them shares a folder, so that files which come into being at the same time have one
//! flush of it; runs are mixed, so that neighbours do not crowd one part of a file system.

use crate::FileKey;
use crate::format::DATA;

/// Leaf folders.
pub(crate) const LEAVES: u16 = 4096;

/// Leaf folders of one middle folder.
pub(crate) const LEAVES_OF_MIDDLE: u16 = 256;

/// The rule by which a store finds a data file, for as long as the store lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Runs are of 2 to the power of this many ids.
    pub(crate) run: u8,
}

impl Places {
    /// The leaf folder of a data file, `0..LEAVES`.
    pub(crate) fn leaf(self, key: FileKey) -> u16 {
        let of_run = FileKey { file: key.file >> self.run, ..key };
        (of_run.mixed() % u64::from(LEAVES)) as u16
    }

    pub(crate) fn path(self, key: FileKey) -> String {
        path_in(self.leaf(key), key)
    }
}

/// A leaf folder: `data/h/hh`.
pub(crate) fn leaf_path(leaf: u16) -> String {
    format!("{DATA}/{:x}/{:02x}", leaf / LEAVES_OF_MIDDLE, leaf % LEAVES_OF_MIDDLE)
}

/// A data file known to lie there.
pub(crate) fn path_in(leaf: u16, key: FileKey) -> String {
    format!("{}/{key}", leaf_path(leaf))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_even_and_runs_stay_together() {
        for run in [0, 8] {
            let places = Places { run };
            let leaf = |file| places.leaf(FileKey { file, slot: 0 });
            let mut count = [0u32; LEAVES as usize];
            for file in 0..409_600u64 << run {
                count[usize::from(leaf(file))] += 1;
                assert!(file % (1 << run) == 0 || leaf(file) == leaf(file - 1));
            }
            assert!(count.iter().all(|n| (40..180).contains(&(n >> run))));
        }
    }
}
