//! Reads that nobody waits for yet. What is not in memory shall be on its way from the device as soon as it was asked for,
//! so that one thread can wait for many such reads. A kernel may begin to read what it was asked for without leave to wait
//! (`RWF_NOWAIT`; Linux 6.18 and 7.2 do). One that is not seen to is told to, where telling it takes no waiting either.

use std::fs::File;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{Advice, fadvise};

use super::resident::is_resident;

/// After so many reads in a row that the kernel had begun it is believed to begin the next ones.
const SURE: u32 = 16;

/// Every so many reads it is looked at again: what was begun may have been somebody else's.
const AGAIN: u32 = 64;

/// Longer reads are left to who waits for them, and to the kernel's own reading ahead.
const LONG: usize = 16 << 10;

/// What is known of the kernel.
#[derive(Debug)]
pub(super) struct Begins {
    /// Reads in a row that it had begun.
    seen: AtomicU32,
    /// It can be told to. XFS would wait for those who write to the file.
    told: bool,
    /// It tells what is in memory; shared with all who ask.
    tells: Arc<AtomicBool>,
}

impl Begins {
    pub(super) fn new(told: bool, tells: Arc<AtomicBool>) -> Self {
        Self { seen: AtomicU32::new(0), told, tells }
    }

    /// What was missed is on its way, as far as is known.
    pub(super) fn will(&self) -> bool {
        self.told || self.seen.load(Ordering::Relaxed) >= SURE
    }

    /// The kernel was asked for these bytes and did not have them. A single byte was asked only to see.
    pub(super) fn missed(&self, file: &File, offset: u64, length: usize) {
        if !(2..=LONG).contains(&length) {
            return;
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed);
        if seen >= SURE && !seen.is_multiple_of(AGAIN) {
            return;
        }
        if self.tells.load(Ordering::Relaxed) {
            match is_resident(file, offset, length as u64) {
                Ok(true) => return,
                Ok(false) => {}
                Err(_) => self.tells.store(false, Ordering::Relaxed),
            }
        }
        self.seen.store(0, Ordering::Relaxed);
        if self.told {
            // Whoever waits for it reads it in any case.
            fadvise(file, offset, NonZeroU64::new(length as u64), Advice::WillNeed).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    use super::*;

    /// A file with nothing of it in memory; `None` where the file system has nothing else.
    fn cold() -> Option<File> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 1 << 20], 0).unwrap();
        file.sync_all().unwrap();
        // A page that somebody is just looking at stays.
        for _ in 0..100 {
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            // Kernels before 6.5 do not tell.
            let pages = (0..256).map(|page| is_resident(&file, page << 12, 4096));
            if !pages.collect::<Result<Vec<_>, _>>().ok()?.contains(&true) {
                return Some(file);
            }
        }
        None
    }

    fn begins(told: bool) -> Begins {
        Begins::new(told, Arc::new(AtomicBool::new(true)))
    }

    #[test]
    fn what_was_missed_is_on_its_way() {
        let Some(file) = cold() else { return };
        let begins = begins(true);
        // Pages apart: none of them comes with another.
        for page in (0..256).step_by(64) {
            begins.missed(&file, page << 12, 4096);
            assert!(is_resident(&file, page << 12, 4096).unwrap(), "page {page}");
        }
        // A look at a byte begins nothing.
        begins.missed(&file, 32 << 12, 1);
        assert!(!is_resident(&file, 32 << 12, 4096).unwrap());
    }

    /// However often it seemed to begin reads by itself, a kernel that does not is found out.
    #[test]
    fn a_kernel_is_not_believed_for_ever() {
        let Some(file) = cold() else { return };
        let begins = begins(true);
        let mut place = [0; 4096];
        assert_eq!(file.read_at(&mut place, 0).unwrap(), 4096);
        for _ in 0..2 * SURE {
            begins.missed(&file, 0, 4096);
        }
        assert!(begins.seen.load(Ordering::Relaxed) >= 2 * SURE);
        // From now on everything it is asked for is not there.
        let missed = (0..2 * AGAIN).find(|_| {
            begins.missed(&file, 128 << 12, 4096);
            is_resident(&file, 128 << 12, 4096).unwrap()
        });
        assert!(missed.is_some(), "never told to begin");
    }

    /// Where it cannot be told, nobody counts on it before it was seen to, nor afterwards when it does not any more.
    #[test]
    fn what_cannot_be_told_is_believed_when_it_was_seen() {
        let Some(file) = cold() else { return };
        let begins = begins(false);
        let mut place = [0; 4096];
        assert_eq!(file.read_at(&mut place, 0).unwrap(), 4096);
        for seen in 0..SURE {
            assert!(!begins.will(), "after {seen}");
            begins.missed(&file, 0, 4096);
        }
        assert!(begins.will());
        assert!((0..2 * AGAIN).any(|_| {
            begins.missed(&file, 128 << 12, 4096);
            !begins.will()
        }));
        assert!(!is_resident(&file, 128 << 12, 4096).unwrap(), "nobody is told");
        // Nor where it does not tell.
        let silent = Begins::new(false, Arc::default());
        for _ in 0..2 * SURE {
            silent.missed(&file, 0, 4096);
            assert!(!silent.will());
        }
    }

    /// The kernel this runs on, as far as it tells: a read without leave to wait, and then the bytes.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the device takes real time")]
    fn the_bytes_come_without_anybody_waiting() {
        let Some(file) = cold() else { return };
        let begins = begins(true);
        let mut place = [0; 4096];
        let mut read =
            || preadv2(&file, &mut [IoSliceMut::new(&mut place)], 100 << 12, ReadWriteFlags::NOWAIT);
        assert_eq!(read(), Err(Errno::AGAIN));
        begins.missed(&file, 100 << 12, 4096);
        let came = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            read() == Ok(4096)
        });
        assert!(came && place == [7; 4096]);
    }
}
