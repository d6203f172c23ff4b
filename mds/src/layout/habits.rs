//! What new files of a directory become, as far as those before them tell. A large file that begins inline costs its
//! client a LAYOUTGET of its own and the store a transaction (docs/adr/0020); where one file after another became
//! large, the next gets its data files and its layout with OPEN.
//!
//! A wrong guess leaves a small file at data servers for good. So it takes many large files in a row, and one small
//! one ends it: whatever share of a directory's files is large, at most 1.2 % of all are small ones that were guessed
//! wrong, because `share^32 * (1 - share)` is never more.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use sluice_namespace::FileId;

use crate::files::FileEntry;
use crate::metrics;
use crate::server::Mds;

/// So many large files in a row say that the next will be large.
const SURE: u16 = 32;
/// So many files may be under way, or stay empty, before one more must turn out large.
const AHEAD: u16 = 224;
/// Directories that are remembered; all are forgotten when there are more, and learn anew.
const DIRECTORIES: usize = 1 << 16;

/// Of each directory whose last file became large, how sure that is.
#[derive(Debug, Default)]
pub(crate) struct Habits(Mutex<BTreeMap<FileId, u16>>);

/// A new file of which it is not known yet what it becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth {
    pub(crate) directory: FileId,
    /// Bytes up to which it is a small one.
    pub(crate) limit: u64,
    /// It began at data servers because of the files before it.
    pub(crate) foreseen: bool,
}

impl Habits {
    /// Whether the next file of the directory is to begin at data servers. One more is under way then.
    pub(crate) fn foresee_large(&self, directory: FileId) -> bool {
        let mut sure = self.0.lock();
        match sure.get_mut(&directory).filter(|sure| **sure >= SURE) {
            Some(sure) => {
                *sure -= 1;
                true
            }
            None => false,
        }
    }

    fn became(&self, directory: FileId, large: bool) {
        let mut all = self.0.lock();
        if !large {
            all.remove(&directory);
            return;
        }
        if all.len() >= DIRECTORIES && !all.contains_key(&directory) {
            all.clear();
        }
        let sure = all.entry(directory).or_default();
        *sure = if *sure + 1 >= SURE { SURE + AHEAD } else { *sure + 1 };
    }
}

impl Mds {
    /// What was written to the file is in its inode: if that was the first of it, this is what the file became.
    pub(crate) fn learn(&self, entry: &FileEntry, size: u64) {
        let Some(birth) = entry.take_birth() else { return };
        let large = size > birth.limit;
        if birth.foreseen {
            let counter = if large { &self.metrics.foreseen } else { &self.metrics.misjudged };
            metrics::add(counter, 1);
        }
        self.habits.became(birth.directory, large);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: FileId = FileId(7);

    fn after(large: usize) -> Habits {
        let habits = Habits::default();
        (0..large).for_each(|_| habits.became(HERE, true));
        habits
    }

    #[test]
    fn it_takes_many_large_files_in_a_row_and_one_small_one_ends_it() {
        let habits = after(31);
        assert!(!habits.foresee_large(HERE));
        habits.became(HERE, true);
        assert!(habits.foresee_large(HERE) && !habits.foresee_large(FileId(8)));
        habits.became(HERE, false);
        assert!(!habits.foresee_large(HERE));
        (0..31).for_each(|_| habits.became(HERE, true));
        assert!(!habits.foresee_large(HERE));
    }

    #[test]
    fn files_of_which_nothing_is_heard_use_it_up() {
        let habits = after(32);
        let foreseen = (0..1000).filter(|_| habits.foresee_large(HERE)).count();
        assert_eq!(foreseen, usize::from(AHEAD) + 1);
        // As soon as one is heard of, it goes on.
        habits.became(HERE, true);
        assert!(habits.foresee_large(HERE));
    }

    #[test]
    fn a_million_directories_take_no_more_memory_than_there_is_for_them() {
        let habits = after(32);
        (100..1_000_100).for_each(|n| habits.became(FileId(n), true));
        assert!(habits.0.lock().len() <= DIRECTORIES);
        assert!(!habits.foresee_large(HERE), "forgotten");
    }

    /// Whatever share of the files is large, the whole is as good as said above.
    #[test]
    fn of_all_files_few_are_misjudged() {
        for percent in [50, 80, 90, 95, 97, 99] {
            let (habits, mut random, mut wrong) = (Habits::default(), 1_u64, 0);
            for _ in 0..20_000 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let large = (random >> 33) % 100 < percent;
                wrong += usize::from(habits.foresee_large(HERE) && !large);
                habits.became(HERE, large);
            }
            assert!(wrong <= 300, "{wrong} of 20,000 at {percent} %");
        }
    }
}
