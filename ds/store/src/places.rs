//! Where data files lie: in 4096 folders, the leaves of a fan-out of 16 with 256 each.
//!
//! Ids are handed out in order, and mixed first: neighbours lie in different folders. File systems keep what a folder holds
//! together, and files that are written at the same time would be in each other's way
//! ([ADR 0028](../../../docs/adr/0028-files-that-come-together.md)).

use crate::FileKey;
use crate::format::DATA;

/// Leaf folders.
pub(crate) const LEAVES: u16 = 4096;

/// Leaf folders of one middle folder.
pub(crate) const LEAVES_OF_MIDDLE: u16 = 256;

/// The leaf folder of a data file, `0..LEAVES`.
pub(crate) fn leaf_of(key: FileKey) -> u16 {
    (key.mixed() % u64::from(LEAVES)) as u16
}

/// A leaf folder: `data/h/hh`.
pub(crate) fn leaf_path(leaf: u16) -> String {
    format!("{DATA}/{:x}/{:02x}", leaf / LEAVES_OF_MIDDLE, leaf % LEAVES_OF_MIDDLE)
}

/// A data file.
pub(crate) fn path_of(key: FileKey) -> String {
    format!("{}/{key}", leaf_path(leaf_of(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_even() {
        let mut count = [0u32; LEAVES as usize];
        for file in 0..409_600 {
            count[usize::from(leaf_of(FileKey { file, slot: 0 }))] += 1;
        }
        assert!(count.iter().all(|n| (40..180).contains(n)));
    }
}
