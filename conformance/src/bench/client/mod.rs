//! `bench-client`: what a stock kernel's mount does when nothing is cached anywhere, beside that kernel's own NFS server: small
//! files in random order, a checkpoint beside random reads, and what people do with a tree of source files. The client is one
//! guest, the servers another, which runs one server at a time on one file system, so that both are equally slow.
//!
//! | module | what |
//! | --- | --- |
//! | `load` | the load, inside the client's guest |
//! | `prepare` | files that are there before |
//! | `report` | medians, spread, ratios |
//! | `tree` | a tree of source files unpacked, listed, searched and removed |

pub mod load;
mod prepare;
mod report;
mod tree;

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use super::host;
use crate::guest::catalogue::Kernel;
use crate::guest::fetch::Cache;
use crate::guest::job::{Job, Outcome, Running};
use crate::guest::lab::{self, Lab};
use crate::suite::stage::{Act, Stage};
use crate::suite::{conversation, copy_files};
use report::Report;
use tree::Part;

const CLIENT: u8 = 1;
const SERVERS: u8 = 2;
/// What the whole run may take.
const LIMIT: Duration = Duration::from_secs(6 * 3600);
/// In seconds; a client that has unmounted leaves nothing to wait for.
const LEASE: u32 = 15;
/// Of a small file, with what a file system needs besides.
const SMALL_KIB: u64 = 32;
/// Room for journals and stores.
const SPARE_MIB: u64 = 2048;

/// Options of `bench-client`.
#[derive(Args, Debug)]
pub struct Options {
    /// The kernel of both guests: 7.2, 6.18 and so on are exact and slow, uml7.2 a quick look
    #[arg(long, value_name = "KERNEL", default_value = "7.2")]
    kernel: Kernel,
    /// The program to measure [default: beside this one, else target/release/sluice]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// Where the servers' disk is kept meanwhile, a sparse file; its file system counts [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Small files of each peer
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    files: u64,
    /// How many of them are written through the mount. That takes hours for 100,000; the others are put on the servers'
    /// disk before, by this machine itself [default: all]
    #[arg(long, value_name = "N")]
    written: Option<u64>,
    /// How many of them are read in a round [default: all]
    #[arg(long, value_name = "N")]
    reads: Option<u64>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Threads that write and read small files, and threads of the kernel's server
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=256))]
    tasks: u64,
    /// Large files that are written at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    writers: u64,
    /// MiB of each of them
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    burst_mib: u64,
    /// Threads that read 4 KiB at a time meanwhile
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    readers: u64,
    /// MiB of the file that they read
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    big_mib: u64,
    /// Data servers of Sluice, all in the one guest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    data_servers: u8,
    /// Source files in the tree
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    tree_files: u64,
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cold,burst")]
    only: Vec<Work>,
    /// Whom to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kernel,sluice,inline")]
    peers: Vec<Peer>,
    /// After each row, what the client's calls took
    #[arg(long)]
    calls: bool,
    /// Write everything there too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A server, and how it keeps small files.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(super) enum Peer {
    /// That of the guest's kernel
    Kernel,
    /// Sluice with all files at data servers (`--inline off`)
    Sluice,
    /// Sluice as it is shipped, with small files in the metadata
    Inline,
}

/// What is done in a round.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Work {
    /// Reading small files
    Cold,
    /// A checkpoint beside random reads
    Burst,
    /// A tree of source files unpacked, listed, searched and removed
    Tree,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Row {
    /// Writing small files, which every run begins with
    Fill,
    /// Reading small files
    Cold,
    /// A checkpoint beside random reads
    Burst,
    /// Of a tree
    Tree(Part),
}

impl Work {
    fn rows(self) -> Vec<Row> {
        match self {
            Self::Cold => vec![Row::Cold],
            Self::Burst => vec![Row::Burst],
            Self::Tree => Part::value_variants().iter().map(|part| Row::Tree(*part)).collect(),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cold => "cold",
            Self::Burst => "burst",
            Self::Tree => "tree",
        })
    }
}

impl Peer {
    fn named(name: &str) -> Result<Self> {
        Self::from_str(name, false).map_err(|_| anyhow::anyhow!("no peer is called {name}"))
    }
}

impl Row {
    fn named(name: &str) -> Result<Self> {
        let all = Work::value_variants().iter().flat_map(|work| work.rows());
        all.chain([Self::Fill])
            .find(|row| row.name() == name)
            .with_context(|| format!("no row is called {name}"))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Cold => "cold",
            Self::Burst => "burst",
            Self::Tree(Part::Unpack) => "unpack",
            Self::Tree(Part::List) => "list",
            Self::Tree(Part::Again) => "again",
            Self::Tree(Part::Search) => "search",
            Self::Tree(Part::Remove) => "remove",
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel",
            Self::Sluice => "sluice",
            Self::Inline => "inline",
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Runs `bench-client`.
///
/// # Errors
/// If a guest or a server cannot be started, or does not come to its end.
pub fn main(options: &Options) -> Result<ExitCode> {
    let program = std::path::absolute(host::program(options.sluice.as_deref())?)?;
    crate::guest::host::check(&[options.kernel])?;
    let cache = Cache::open()?;
    if !lab::inside() {
        // The lab has no way out: what must be downloaded is downloaded before.
        cache.ready(&[options.kernel])?;
        cache.nfs_server()?;
        return lab::enter();
    }
    let stage = Stage::open(Lab::new(SERVERS)?)?;
    let act = Arc::new(Act::meeting(LIMIT));
    stage.begin(Arc::clone(&act))?;
    let below = options.data_dir.clone().unwrap_or_else(std::env::temp_dir);
    fs::create_dir_all(&below).with_context(|| format!("cannot make {}", below.display()))?;
    let share = tempfile::Builder::new().prefix("sluice-bench-client-").tempdir_in(below)?;
    copy_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("guest"), share.path())?;
    fs::write(share.path().join("nfs-server"), cache.nfs_server()?.display().to_string())?;
    if options.prepared() > 0 {
        let begun = Instant::now();
        prepare::disk(share.path(), &options.plan(&program))?;
        eprintln!(
            "{} files of each peer are there after {} s",
            options.prepared(),
            begun.elapsed().as_secs()
        );
    }
    let start = |number, script: &str, mib| {
        let job = options.job(&cache, &program, share.path(), number, script)?.memory(mib);
        job.spawn(&cache, Box::new(|bytes| drop(std::io::stderr().write_all(bytes))))
    };
    let servers = start(SERVERS, "bench_servers.sh", 2048)?;
    let client = start(CLIENT, "bench_client.sh", 1280)?;
    let (servers, client) = both(&act, servers, client)?;
    let mut report = Report::default();
    report.about = options.about(&program, client.release());
    report.take(&client.output)?;
    print!("{report}");
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&report.json())?;
        fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    for (outcome, who) in [(&servers, "the servers' guest"), (&client, "the client's guest")] {
        if !outcome.success() {
            bail!("{who} did not come to its end: {:?}\n{}", outcome.status, outcome.console_tail());
        }
    }
    report.complete(&options.wanted(), options.rounds as usize)?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for both; the first that fails keeps the other from waiting in vain.
fn both(act: &Act, servers: Running, client: Running) -> Result<(Outcome, Outcome)> {
    let wait = |running: Running| {
        let outcome = running.wait();
        if !outcome.as_ref().is_ok_and(Outcome::success) {
            act.board.close();
        }
        outcome
    };
    std::thread::scope(|scope| {
        let servers = scope.spawn(|| wait(servers));
        let client = wait(client);
        let servers = servers.join().map_err(|_| anyhow::anyhow!("a guest's thread died"))?;
        Ok((servers?, client?))
    })
}

impl Options {
    fn job(&self, cache: &Cache, sluice: &Path, share: &Path, number: u8, script: &str) -> Result<Job> {
        let kernel = cache.kernel(self.kernel)?;
        let server = Job::new(kernel.clone(), SERVERS, script).address();
        let own = std::env::current_exe()?.display().to_string();
        let names = |all: Vec<String>| all.join(" ");
        let job = Job::new(kernel, number, share.join(script))
            .share(share)
            .timeout(LIMIT)
            .env("CASE", "bench-client")
            .env("ROLE", number.to_string())
            .env("SERVER", server)
            .env("VERS", "4.2")
            .env("REFERENCE", "")
            .env("BENCH", own)
            .env("SLUICE", sluice.display().to_string())
            .env("DISK_MIB", self.disk_mib().to_string())
            .env("LEASE", LEASE.to_string())
            .env("OPS", if self.calls { "1" } else { "" })
            .env("PEERS", names(self.peers().iter().map(ToString::to_string).collect()))
            .env("ROWS", names(self.only.iter().map(ToString::to_string).collect()));
        let numbers = [
            ("FILES", self.small_files()),
            ("PREPARED", self.prepared()),
            ("READS", self.reads.unwrap_or(self.files)),
            ("ROUNDS", self.rounds.into()),
            ("TASKS", self.tasks),
            ("WRITERS", self.writers),
            ("BURST_MIB", self.burst_mib),
            ("READERS", self.readers),
            ("BIG_MIB", self.big_mib),
            ("TREE_FILES", self.tree_files),
            ("DATA_SERVERS", self.data_servers.into()),
        ];
        Ok(conversation(numbers.into_iter().fold(job, |job, (name, value)| job.env(name, value.to_string()))))
    }

    fn small_files(&self) -> u64 {
        if self.only.contains(&Work::Cold) { self.files } else { 0 }
    }

    /// Small files that no guest writes.
    fn prepared(&self) -> u64 {
        self.small_files().saturating_sub(self.written.unwrap_or(self.files))
    }

    fn disk_mib(&self) -> u64 {
        let large = 3 * (self.big_mib + self.writers * self.burst_mib);
        SPARE_MIB + 3 * self.small_files() * SMALL_KIB / 1024 + large
    }

    fn plan(&self, program: &Path) -> prepare::Plan {
        prepare::Plan {
            program: program.to_owned(),
            bytes: self.disk_mib() << 20,
            files: self.prepared(),
            data_servers: self.data_servers,
            peers: self.peers(),
        }
    }

    /// Each once, and the directory of `inline` is made on what `sluice` has begun or begins it itself.
    fn peers(&self) -> Vec<Peer> {
        let mut all = self.peers.clone();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The rows that must be there in the end.
    fn wanted(&self) -> Vec<(Row, Peer)> {
        let fill = (self.small_files() > self.prepared()).then_some(Row::Fill);
        let rows = fill.into_iter().chain(self.only.iter().flat_map(|work| work.rows()));
        let all = rows.flat_map(|row| self.peers().into_iter().map(move |peer| (row, peer)));
        // Nothing of a burst is small.
        all.filter(|pair| *pair != (Row::Burst, Peer::Inline)).collect()
    }

    fn about(&self, program: &Path, release: &str) -> Vec<String> {
        vec![
            format!("kernel   the NFS server of Linux {release}, {} threads", self.tasks),
            format!(
                "sluice   {}, {} data server(s), in the place of it, all files there (`--inline off`)",
                program.display(),
                self.data_servers
            ),
            "inline   the same as it is shipped, small files in the metadata".to_owned(),
            format!(
                "client and servers are guests ({}) with Linux {release}, NFS 4.2; one ext4; servers were started and all \
                 caches of both guests were empty before each row",
                self.kernel
            ),
            format!(
                "{} files of 4 to 32 KiB, {} of them put there by this machine, {} read by {} threads; {} x {} MiB written beside {} readers of {} MiB; \
                 medians of {} interleaved rounds",
                self.files,
                self.prepared(),
                self.reads.unwrap_or(self.files).min(self.files),
                self.tasks,
                self.writers,
                self.burst_mib,
                self.readers,
                self.big_mib,
                self.rounds
            ),
        ]
    }
}
