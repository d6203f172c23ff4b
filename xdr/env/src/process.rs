//! What the operating system allows this process.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::thread::ThreadId;
use std::time::Duration;

/// File descriptors, of which each connection and each open file takes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    pub open: u64,
    /// At most so many may be open.
    pub most: u64,
}

/// The process as the operating system sees it.
pub trait Process: fmt::Debug + Send + Sync {
    /// Zeros where the system does not tell.
    fn descriptors(&self) -> Descriptors;

    /// How many threads can run at once.
    fn processors(&self) -> usize;

    /// Which thread this is, and how long it was ready to run and did not, since it began. `None` where the system does not
    /// tell.
    fn kept_waiting(&self) -> Option<(ThreadId, Duration)>;
}

#[derive(Debug)]
pub(crate) struct System;

impl Process for System {
    fn descriptors(&self) -> Descriptors {
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        // No limit is none.
        Descriptors { open: u64::try_from(open).unwrap_or(0), most: limit.current.unwrap_or(u64::MAX) }
    }

    fn processors(&self) -> usize {
        // Asking takes reading files.
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn kept_waiting(&self) -> Option<(ThreadId, Duration)> {
        thread_local! {
            /// Opening it would take as long as a write of a hundred kilobytes.
            static STAT: Option<File> = File::open("/proc/thread-self/schedstat").ok();
        }
        let mut text = [0; 80];
        let read = STAT.try_with(|stat| stat.as_ref()?.read_at(&mut text, 0).ok()).ok()??;
        // Nanoseconds it ran, nanoseconds it waited, times it was chosen.
        let mut words = text.get(..read)?.split(u8::is_ascii_whitespace);
        let waited = std::str::from_utf8(words.nth(1)?).ok()?.parse().ok()?;
        Some((std::thread::current().id(), Duration::from_nanos(waited)))
    }
}

#[derive(Debug)]
pub(crate) struct Simulated;

impl Process for Simulated {
    fn descriptors(&self) -> Descriptors {
        Descriptors { open: 10, most: 1 << 20 }
    }

    fn processors(&self) -> usize {
        8
    }

    fn kept_waiting(&self) -> Option<(ThreadId, Duration)> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each thread is told of itself, however often and whichever asked first.
    #[test]
    fn threads_are_told_how_long_they_waited_for_a_processor() {
        let waited = || {
            let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
            Some(Duration::from_nanos(stat.split_ascii_whitespace().nth(1)?.parse().ok()?))
        };
        let look = || {
            for _ in 0..100 {
                let (before, told, after) = (waited(), System.kept_waiting(), waited());
                // Some systems do not tell.
                assert_eq!(told.is_some(), before.is_some());
                let Some((thread, told)) = told else { return };
                assert_eq!(thread, std::thread::current().id());
                assert!(before <= Some(told) && Some(told) <= after, "{before:?} {told:?} {after:?}");
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(look))));
    }

    #[test]
    fn open_files_are_counted() {
        let before = System.descriptors();
        assert!(before.open > 0 && before.open < before.most, "{before:?}");
        let files: Vec<_> = (0..50).map(|_| File::open("/proc/self/stat")).collect();
        assert!(files.iter().all(Result::is_ok) && System.descriptors().open >= 50);
    }
}
