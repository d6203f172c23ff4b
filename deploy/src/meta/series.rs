//! The newest dumps of a file system in a folder: `sluice meta dump --into DIR --keep N`, as a timer runs it.
//!
//! Names say whose they are and of when: the file system's identity, and the time of the moment that the dump shows. Only
//! such names are ever removed, of files that begin as dumps do.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sluice_env::date;

use super::dump::{PARTIAL, begins_as_dump, sync_folder};
use crate::status::hex;

const SUFFIX: &str = ".dump";
/// As in 20261128T023000Z.
const STAMP: usize = 16;

pub(super) struct Series {
    dir: PathBuf,
    /// What the names begin with.
    prefix: String,
    /// Locked: nobody else makes or removes dumps of this file system here.
    _alone: File,
}

impl Series {
    /// One that is made when it is not there would be on a device that is not mounted.
    pub(super) fn must_be_there(dir: &Path) -> Result<()> {
        ensure!(
            dir.is_dir(),
            "{} is no folder that is there: make it, or mount what it is on",
            dir.display()
        );
        Ok(())
    }

    /// What an earlier run left that was broken off is gone then.
    pub(super) fn open(dir: &Path, uuid: [u8; 16]) -> Result<Self> {
        let prefix = format!("{}-", hex(&uuid));
        let lock = dir.join(format!(".{}lock", prefix));
        let alone = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock)
            .with_context(|| format!("cannot write {}", lock.display()))?;
        match alone.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("another dump into {} is under way", dir.display()),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", lock.display()));
            }
        }
        let series = Self { dir: dir.to_owned(), prefix, _alone: alone };
        for broken in series.names(&format!("{SUFFIX}{PARTIAL}"))? {
            fs::remove_file(&broken).with_context(|| format!("cannot remove {}", broken.display()))?;
        }
        Ok(series)
    }

    /// The file of a moment, in seconds since 1970.
    fn file(&self, seconds: i64) -> PathBuf {
        self.dir.join(format!("{}{}{SUFFIX}", self.prefix, stamp(seconds)))
    }

    /// The same of the next moment that has none, where another dump is of this one.
    pub(super) fn next_file(&self, seconds: i64) -> PathBuf {
        (seconds..).map(|at| self.file(at)).find(|file| !file.exists()).unwrap_or_else(|| self.file(seconds))
    }

    /// Removes all but the newest `keep`, of which `new` is one whatever the clock said; what was removed.
    pub(super) fn keep(&self, keep: u32, new: &Path) -> Result<Vec<PathBuf>> {
        let mut older: Vec<PathBuf> =
            self.names(SUFFIX)?.into_iter().filter(|file| file != new && begins_as_dump(file)).collect();
        older.sort_unstable();
        let others = usize::try_from(keep).unwrap_or(usize::MAX).saturating_sub(1);
        older.truncate(older.len().saturating_sub(others));
        for file in &older {
            fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
        if !older.is_empty() {
            sync_folder(&self.dir)?;
        }
        Ok(older)
    }

    /// Files with names of this series that end so.
    fn names(&self, suffix: &str) -> Result<Vec<PathBuf>> {
        let cannot = || format!("cannot read {}", self.dir.display());
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let name = entry.file_name();
            let ours = name
                .to_str()
                .and_then(|name| name.strip_prefix(&self.prefix))
                .and_then(|name| name.strip_suffix(suffix))
                .is_some_and(is_stamp);
            // Nothing that a link leads to.
            if ours && entry.file_type().with_context(cannot)?.is_file() {
                found.push(entry.path());
            }
        }
        Ok(found)
    }
}

fn is_stamp(text: &str) -> bool {
    let digit_but = |at: usize, byte: u8| match at {
        8 => byte == b'T',
        15 => byte == b'Z',
        _ => byte.is_ascii_digit(),
    };
    text.len() == STAMP && text.bytes().enumerate().all(|(at, byte)| digit_but(at, byte))
}

/// In UTC, so that names are in the order of time.
fn stamp(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [0xab; 16];

    #[test]
    fn names_are_the_time_in_utc() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_798_761_599, "20261231T235959Z"),
            (1_798_761_600, "20270101T000000Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(stamp(seconds), text);
            assert!(is_stamp(text));
        }
        assert!(!is_stamp("20261231T235959") && !is_stamp("2026123xT235959Z") && !is_stamp(""));
    }

    fn dump(series: &Series, seconds: i64) -> PathBuf {
        let file = series.file(seconds);
        fs::write(&file, b"sluice metadata\nand so on").unwrap();
        file
    }

    #[test]
    fn the_oldest_go_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let series = Series::open(dir.path(), UUID).unwrap();
        let all: Vec<PathBuf> = (0..5).map(|day| dump(&series, day * 86_400)).collect();
        let name = |file: &Path| file.file_name().unwrap().to_str().unwrap().to_owned();
        let others = [
            // Of another file system; somebody's copy; no dump, whatever it is called; a folder; a link.
            format!("{}-19700101T000000Z.dump", "cd".repeat(16)),
            name(&all[0]).replace(".dump", ".dump.gz"),
            name(&all[0]).replace("0101T", "0109T"),
            "kept.dump".to_owned(),
        ];
        fs::copy(&all[0], dir.path().join(&others[0])).unwrap();
        fs::copy(&all[0], dir.path().join(&others[1])).unwrap();
        fs::write(dir.path().join(&others[2]), "something else").unwrap();
        fs::copy(&all[0], dir.path().join(&others[3])).unwrap();
        fs::create_dir(series.file(-86_400)).unwrap();
        std::os::unix::fs::symlink(&all[4], series.file(-2 * 86_400)).unwrap();
        // A clock that went back: the new one is kept all the same.
        let new = all[1].clone();
        assert_eq!(series.keep(3, &new).unwrap(), [all[0].clone(), all[2].clone()]);
        assert_eq!(series.keep(3, &new).unwrap(), Vec::<PathBuf>::new());
        assert!(
            all[1].exists() && all[3].exists() && all[4].exists() && !all[0].exists() && !all[2].exists()
        );
        assert!(others.iter().all(|other| dir.path().join(other).exists()));
        assert!(series.file(-86_400).is_dir() && series.file(-2 * 86_400).is_symlink());
        assert_eq!(series.keep(1, &new).unwrap(), [all[3].clone(), all[4].clone()]);
        assert!(new.exists());
    }

    #[test]
    fn one_at_a_time_and_what_was_broken_off_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Series::must_be_there(&dir.path().join("x")).unwrap_err().to_string();
        assert!(
            missing.ends_with("is no folder that is there: make it, or mount what it is on"),
            "{missing}"
        );
        let series = Series::open(dir.path(), UUID).unwrap();
        let mut left = dump(&series, 0).into_os_string();
        left.push(PARTIAL);
        fs::rename(series.file(0), &left).unwrap();
        let busy = Series::open(dir.path(), UUID).err().unwrap().to_string();
        assert!(busy.starts_with("another dump into") && Path::new(&left).exists(), "{busy}");
        drop(Series::open(dir.path(), [0xcd; 16]).unwrap());
        assert!(Path::new(&left).exists(), "another file system's");
        drop(series);
        drop(Series::open(dir.path(), UUID).unwrap());
        assert!(!Path::new(&left).exists());
    }
}
