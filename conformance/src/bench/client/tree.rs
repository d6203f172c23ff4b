//! What people do with a tree of source files, by one thread: unpack it, list it, search it, remove it.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::load::{Said, fill, micros, said};
use crate::kills::dice::Dice;

/// Files of one directory, and directories of one above them.
const FILES: u64 = 25;
const DIRECTORIES: u64 = 8;
/// Most sources are small, one in twenty is not.
const MOST: (u64, u64) = (200, 16 << 10);
const SOME: (u64, u64) = (33 << 10, 128 << 10);

/// What is done with the tree.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub enum Part {
    /// `tar x`
    Unpack,
    /// `ls -lR`
    List,
    /// The same once more
    Again,
    /// `grep -r`
    Search,
    /// `rm -r`
    Remove,
}

impl Part {
    /// Does it to the tree `root` of so many files.
    ///
    /// # Errors
    /// If something cannot be done, or is not there as it was unpacked.
    pub(super) fn run(self, root: &Path, files: u64) -> Result<Said> {
        let (calls, begun, mut work) = (calls(root)?, Instant::now(), Work::default());
        match self {
            Self::Unpack => work.unpack(root, files)?,
            Self::List | Self::Again => work.walk(root, &mut |work, path| {
                work.bytes += fs::symlink_metadata(path)?.len();
                Ok(())
            })?,
            Self::Search => work.walk(root, &mut |work, path| {
                work.buffer.clear();
                File::open(path)?.read_to_end(&mut work.buffer)?;
                work.bytes += work.buffer.len() as u64;
                Ok(())
            })?,
            Self::Remove => work.remove(root)?,
        }
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(work.took.len() as u64 == files, "{} of {files} files", work.took.len());
        let whole: u64 = (0..files).map(size_of).sum();
        ensure!(self == Self::Remove || work.bytes == whole, "{} of {whole} bytes", work.bytes);
        let calls = self::calls(root)?.saturating_sub(calls);
        Ok(Said { calls: Some(calls), ..said(work.took, work.bytes, seconds) })
    }
}

fn size_of(file: u64) -> u64 {
    let mut dice = Dice::new(file ^ 0x7ee);
    let (least, most) = if dice.below(20) == 0 { SOME } else { MOST };
    least + dice.below(most - least + 1)
}

fn directory(root: &Path, file: u64) -> PathBuf {
    let number = file / FILES;
    root.join(format!("part{}", number / DIRECTORIES)).join(format!("sub{}", number % DIRECTORIES))
}

/// The time of a file in the archive.
fn time_of(file: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000 + file)
}

#[derive(Debug, Default)]
struct Work {
    /// One file, in microseconds.
    took: Vec<u32>,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Work {
    fn unpack(&mut self, root: &Path, files: u64) -> Result<()> {
        for file in 0..files {
            let folder = directory(root, file);
            if file % FILES == 0 {
                fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            }
            fill(&mut self.buffer, size_of(file), file);
            let begun = Instant::now();
            let path = folder.join(format!("source{file}.c"));
            let mut open = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
            open.write_all(&self.buffer)?;
            open.set_times(FileTimes::new().set_accessed(time_of(0)).set_modified(time_of(file)))?;
            drop(open);
            self.took.push(micros(begun));
            self.bytes += self.buffer.len() as u64;
        }
        Ok(())
    }

    fn walk(&mut self, folder: &Path, visit: &mut impl FnMut(&mut Self, &Path) -> Result<()>) -> Result<()> {
        for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                self.walk(&entry.path(), visit)?;
                continue;
            }
            let begun = Instant::now();
            visit(self, &entry.path()).with_context(|| format!("{}", entry.path().display()))?;
            self.took.push(micros(begun));
        }
        Ok(())
    }

    fn remove(&mut self, folder: &Path) -> Result<()> {
        let names: Vec<_> = fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
        for entry in names {
            if entry.file_type()?.is_dir() {
                self.remove(&entry.path())?;
                continue;
            }
            let begun = Instant::now();
            fs::remove_file(entry.path())?;
            self.took.push(micros(begun));
        }
        Ok(fs::remove_dir(folder)?)
    }
}

/// Calls that the mount with this path has sent, those straight to data servers aside: the kernel counts them apart.
fn calls(path: &Path) -> Result<u64> {
    Ok(counted(&fs::read_to_string("/proc/self/mountstats")?, path))
}

/// Of the mount that is nearest to the path.
fn counted(stats: &str, path: &Path) -> u64 {
    let mut mounts = Vec::new();
    for line in stats.lines() {
        match *line.split_whitespace().collect::<Vec<_>>() {
            ["device", _, "mounted", "on", at, ..] => mounts.push((PathBuf::from(at), 0)),
            [operation, sent, ..] if operation.ends_with(':') && operation == operation.to_uppercase() => {
                if let (Some((_, all)), Ok(sent)) = (mounts.last_mut(), sent.parse::<u64>()) {
                    *all += sent;
                }
            }
            _ => {}
        }
    }
    let near = mounts.iter().filter(|(at, _)| path.starts_with(at));
    near.max_by_key(|(at, _)| at.as_os_str().len()).map_or(0, |(_, sent)| *sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unpacked_is_listed_found_and_gone() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("tree");
        for part in [Part::Unpack, Part::List, Part::Again, Part::Search] {
            let said = part.run(&root, 230).unwrap();
            assert_eq!((said.count, said.bytes > 230 * 200), (230, true), "{part:?}");
        }
        let some = directory(&root, 229).join("source229.c");
        assert_eq!(fs::metadata(&some).unwrap().modified().unwrap(), time_of(229));
        fs::write(&some, b"").unwrap();
        assert!(Part::List.run(&root, 230).is_err());
        Part::Remove.run(&root, 230).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn calls_are_those_of_the_mount_that_is_nearest() {
        let stats = "device rootfs mounted on / with fstype rootfs\n\
            device 10.0.0.1:/ mounted on /mnt/nfs with fstype nfs4 statvers=1.1\n\
            \topts:\trw,vers=4.2\n\tevents:\t1 2 3\n\tper-op statistics\n\
            \t        NULL: 1 1 0 44 24 0 0 0 0\n\t        READ: 20 20 0 1 1 0 0 0 0\n\
            device 10.0.0.2:/ mounted on /mnt/nfs/deep with fstype nfs4 statvers=1.1\n\
            \tper-op statistics\n\t       WRITE: 7 7 0 1 1 0 0 0 0\n";
        let of = |path| counted(stats, Path::new(path));
        assert_eq!((of("/mnt/nfs/a"), of("/mnt/nfs/deep/a"), of("/home")), (21, 7, 0));
    }
}
