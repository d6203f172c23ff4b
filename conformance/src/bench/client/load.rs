//! What the client of `bench-client` does on a mount: small files written, and read in random order; large files written
//! by some threads while others read small pieces of another; what `tree` does.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Subcommand;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use super::tree::Part;
use crate::kills::dice::Dice;

const KIB: u64 = 1 << 10;
const MIB: usize = 1 << 20;
const PIECE: usize = 4096;
/// Sizes of small files: 4 to 32 KiB.
const SMALL: (u64, u64) = (4 * KIB, 32 * KIB);
/// Files of one directory.
pub(in crate::bench) const FOLDER: u64 = 100;
/// Readers have the servers for themselves for so long before the burst.
const ALONE: Duration = Duration::from_secs(4);
/// Of what is not to be repeated from file to file.
const MARK: u64 = 0x51;

/// What to do in a directory of the mount.
#[derive(Debug, Subcommand)]
pub enum Load {
    /// Write small files
    Fill {
        folder: PathBuf,
        /// So many are there
        #[arg(long, default_value_t = 0)]
        from: u64,
        #[arg(long)]
        files: u64,
        #[arg(long)]
        tasks: u64,
    },
    /// Read some of them in random order, and check them
    Read {
        folder: PathBuf,
        #[arg(long)]
        files: u64,
        #[arg(long)]
        reads: u64,
        #[arg(long)]
        tasks: u64,
        #[arg(long)]
        seed: u64,
    },
    /// Write the file that is read in small pieces
    Big {
        folder: PathBuf,
        #[arg(long)]
        mib: u64,
    },
    /// Write large files beside small reads
    Burst {
        folder: PathBuf,
        #[arg(long)]
        writers: u64,
        #[arg(long)]
        mib: u64,
        #[arg(long)]
        readers: u64,
        #[arg(long)]
        seed: u64,
    },
    /// Do something with a tree of source files
    Tree {
        part: Part,
        folder: PathBuf,
        #[arg(long)]
        files: u64,
    },
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Said {
    /// Small files, or small reads while the large files were written.
    pub(super) count: u64,
    /// Of small files, or of large ones.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Of one small file or read, in microseconds.
    pub(super) p50: u32,
    pub(super) p99: u32,
    /// Small reads a second and their p99 before the burst.
    pub(super) alone: Option<(f64, u32)>,
    /// Calls of the mount, those to data servers aside, where they are counted.
    pub(super) calls: Option<u64>,
}

impl Load {
    /// Does it; prints what came of it on one line.
    ///
    /// # Errors
    /// If a file cannot be written or read, or holds something else than was written.
    pub fn run(&self) -> Result<()> {
        let said = match self {
            Self::Fill { folder, from, files, tasks } => {
                make_folders(folder, *from, *files)?;
                each(&(*from..*files).collect::<Vec<_>>(), *tasks, |file, buffer| {
                    // What close would say of it is lost in a drop.
                    write_small(folder, file, buffer)?.sync_all()?;
                    Ok(buffer.len() as u64)
                })?
            }
            Self::Read { folder, files, reads, tasks, seed } => {
                each(&chosen(*files, *reads, *seed), *tasks, |file, buffer| read_small(folder, file, buffer))?
            }
            Self::Big { folder, mib } => {
                write_large(&folder.join("big"), *mib, 0)?;
                return Ok(());
            }
            Self::Burst { folder, writers, mib, readers, seed } => {
                burst(folder, *writers, *mib, *readers, *seed)?
            }
            Self::Tree { part, folder, files } => part.run(&folder.join("tree"), *files)?,
        };
        println!("{}", serde_json::to_string(&said)?);
        Ok(())
    }
}

/// The first of a random order of all files.
pub(in crate::bench) fn chosen(files: u64, reads: u64, seed: u64) -> Vec<u64> {
    let mut dice = Dice::new(seed);
    let mut all: Vec<u64> = (0..files).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, dice.index(at + 1));
    }
    all.truncate(usize::try_from(reads).unwrap_or(usize::MAX));
    all
}

fn size_of(file: u64) -> u64 {
    SMALL.0 + Dice::new(file).below(SMALL.1 - SMALL.0 + 1)
}

fn place(folder: &Path, file: u64) -> PathBuf {
    folder.join((file / FOLDER).to_string()).join(format!("file{file}"))
}

/// The directories of files `from..to`.
pub(super) fn make_folders(folder: &Path, from: u64, to: u64) -> Result<()> {
    for number in from / FOLDER..to.div_ceil(FOLDER) {
        let made = folder.join(number.to_string());
        fs::create_dir_all(&made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    Ok(())
}

/// What a small file holds.
pub(in crate::bench) fn small(buffer: &mut Vec<u8>, file: u64) {
    fill(buffer, size_of(file), file);
}

/// Bytes that no compression and no other file has.
pub(super) fn fill(buffer: &mut Vec<u8>, size: u64, seed: u64) {
    let mut dice = Dice::new(seed ^ MARK);
    buffer.clear();
    while (buffer.len() as u64) < size {
        buffer.extend_from_slice(&dice.next().to_le_bytes());
    }
    buffer.truncate(usize::try_from(size).unwrap_or(usize::MAX));
}

pub(super) fn write_small(folder: &Path, file: u64, buffer: &mut Vec<u8>) -> Result<File> {
    small(buffer, file);
    let mut open = OpenOptions::new().write(true).create_new(true).open(place(folder, file))?;
    open.write_all(buffer)?;
    Ok(open)
}

fn read_small(folder: &Path, file: u64, buffer: &mut Vec<u8>) -> Result<u64> {
    buffer.clear();
    File::open(place(folder, file))?.read_to_end(buffer)?;
    let mut wanted = Vec::new();
    fill(&mut wanted, 8, file);
    ensure!(
        buffer.len() as u64 == size_of(file) && buffer.starts_with(&wanted),
        "file {file} is not what was written: {} bytes",
        buffer.len()
    );
    Ok(buffer.len() as u64)
}

/// Every file once, by so many threads.
fn each(files: &[u64], tasks: u64, work: impl Fn(u64, &mut Vec<u8>) -> Result<u64> + Sync) -> Result<Said> {
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let (took, bytes) = thread::scope(|scope| {
        let worker = || {
            let (mut took, mut bytes, mut buffer) = (Vec::new(), 0, Vec::new());
            while let Some(file) = files.get(index(next.fetch_add(1, Ordering::Relaxed))) {
                let begun = Instant::now();
                bytes += work(*file, &mut buffer).with_context(|| format!("file {file}"))?;
                took.push(micros(begun));
            }
            anyhow::Ok((took, bytes))
        };
        let threads: Vec<_> = (0..tasks).map(|_| scope.spawn(worker)).collect();
        joined(threads)
    })?;
    Ok(said(took, bytes, begun.elapsed().as_secs_f64()))
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

pub(super) fn micros(begun: Instant) -> u32 {
    u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX)
}

type Took = Result<(Vec<u32>, u64)>;

fn joined(threads: Vec<ScopedJoinHandle<'_, Took>>) -> Took {
    let (mut took, mut bytes) = (Vec::new(), 0);
    for thread in threads {
        let (more, moved) = thread.join().map_err(|_| anyhow!("a thread died"))??;
        took.extend(more);
        bytes += moved;
    }
    Ok((took, bytes))
}

pub(super) fn said(mut took: Vec<u32>, bytes: u64, seconds: f64) -> Said {
    took.sort_unstable();
    let at = |percent: usize| {
        took.get((took.len() * percent / 100).min(took.len().saturating_sub(1))).copied().unwrap_or(0)
    };
    Said { count: took.len() as u64, bytes, seconds, p50: at(50), p99: at(99), alone: None, calls: None }
}

/// 1 MiB at a time, durable at its end.
fn write_large(path: &Path, mib: u64, seed: u64) -> Result<u64> {
    let mut buffer = Vec::new();
    fill(&mut buffer, MIB as u64, seed);
    let mut file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    for _ in 0..mib {
        file.write_all(&buffer)?;
    }
    file.sync_all()?;
    Ok(mib * MIB as u64)
}

/// Small reads around the page cache, which must not answer them, until told to end.
fn read_pieces(path: &Path, seed: u64, end: &AtomicBool) -> Took {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_DIRECT.bits()).open(path)?;
    let pieces = file.metadata()?.len() / PIECE as u64;
    ensure!(pieces > 0, "{} is empty", path.display());
    let mut dice = Dice::new(seed);
    let (mut took, mut buffer) = (Vec::new(), vec![0; PIECE]);
    while !end.load(Ordering::Relaxed) {
        let begun = Instant::now();
        file.read_exact_at(&mut buffer, dice.below(pieces) * PIECE as u64)?;
        took.push(micros(begun));
    }
    let bytes = took.len() as u64 * PIECE as u64;
    Ok((took, bytes))
}

fn burst(folder: &Path, writers: u64, mib: u64, readers: u64, seed: u64) -> Result<Said> {
    let big = folder.join("big");
    for writer in 0..writers {
        // Those of the round before: a checkpoint goes to new files.
        match fs::remove_file(checkpoint(folder, writer)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => bail!("cannot remove: {error}"),
            _ => {}
        }
    }
    let (alone_ends, burst_ends) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let begun = Instant::now();
        let threads = read(scope, &big, readers, seed, &alone_ends);
        thread::sleep(ALONE);
        alone_ends.store(true, Ordering::Relaxed);
        let (took, bytes) = joined(threads)?;
        let alone = said(took, bytes, begun.elapsed().as_secs_f64());

        let begun = Instant::now();
        let threads = read(scope, &big, readers, seed + 1000, &burst_ends);
        let write = |writer| {
            scope.spawn(move || Ok((Vec::new(), write_large(&checkpoint(folder, writer), mib, writer)?)))
        };
        let written = joined((0..writers).map(write).collect());
        let seconds = begun.elapsed().as_secs_f64();
        burst_ends.store(true, Ordering::Relaxed);
        let (took, _) = joined(threads)?;
        let beside = said(took, written?.1, seconds);
        Ok(Said { alone: Some((alone.count as f64 / alone.seconds, alone.p99)), ..beside })
    })
}

fn checkpoint(folder: &Path, writer: u64) -> PathBuf {
    folder.join(format!("checkpoint{writer}"))
}

fn read<'scope>(
    scope: &'scope Scope<'scope, '_>,
    big: &'scope Path,
    readers: u64,
    seed: u64,
    end: &'scope AtomicBool,
) -> Vec<ScopedJoinHandle<'scope, Took>> {
    (0..readers).map(|reader| scope.spawn(move || read_pieces(big, seed << 8 | reader, end))).collect()
}
