//! `bench-ds`: the data server beside its peers on the same file system, the same client, in rounds that
//! interleave.
//!
//! | module | what |
//! | --- | --- |
//! | `peers` | Sluice, NFS-Ganesha and the ceiling, started and with their files |
//! | `kernel` | the kernel's own, and the guest that both are measured in |
//! | `exported` | files of servers that know the MOUNT protocol |
//! | `ganesha`, `portmap` | the one from the distribution, and what it needs |
//! | `network` | a name space with nothing but loopback |
//! | `ceiling` | a server that answers from memory |
//! | `wire`, `line` | the test client: NFSv3 over one blocking connection, in clear or under TLS |
//! | `report` | medians, spread, ratios, goals |

pub mod ceiling;
mod exported;
pub(super) mod ganesha;
mod kernel;
mod line;
pub(super) mod network;
pub(super) mod peers;
mod portmap;
pub(super) mod report;
mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use sluice_rpc::AuthSys;
use sluice_xdr::nfs3::{COMMIT3args, COMMIT3res, NFS_V3, NFS3_PROGRAM, NFSPROC3_COMMIT, nfs_fh3};

use super::host;
use crate::guest::catalogue::Kernel;
use peers::{Name, Peer};
use report::{Figure, Goal, Measured, Report, Sample, median};
use wire::{File, Job, Kind, Order, Wire};

const MIB: u32 = 1 << 20;
/// Of each file: what is measured is the server, not the device.
const SIZE: u64 = 64 << 20;
/// Files of a row. Those of stable writes are others: what they write is not in memory afterwards, and other rows are about
/// memory.
const FILES: usize = 4;
const GIB: f64 = (1u64 << 30) as f64;

/// Options of `bench-ds`.
#[derive(Args, Debug)]
pub struct Options {
    /// The program to measure [default: beside this one, else target/release/sluice]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// Where the servers keep their data, removed at the end; its file system counts [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Milliseconds that a row of one server takes in one round
    #[arg(long, value_name = "MS", default_value_t = 700)]
    round_ms: u64,
    /// Besides Sluice; `summed` is Sluice with checksums at rest, `tls` Sluice with the client under TLS
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ganesha,ceiling")]
    peers: Vec<Name>,
    /// Run in a guest, beside the NFS server of its kernel: 7.2, 6.18 and so on are exact and slow, uml7.2 a quick look
    #[arg(long, value_name = "KERNEL", conflicts_with_all = ["peers", "json", "data_dir"])]
    guest: Option<Kernel>,
    /// Only rows whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Write the table there too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Options {
    /// Those of a run in a guest.
    fn again(&self) -> Vec<String> {
        let mut all = vec![format!("--rounds={}", self.rounds), format!("--round-ms={}", self.round_ms)];
        all.extend(self.only.iter().map(|only| format!("--only={only}")));
        all
    }
}

/// A row: so many connections, each with so many calls in flight.
#[derive(Clone, Copy, Debug)]
struct Shape {
    title: &'static str,
    kind: Kind,
    bytes: u32,
    order: Order,
    connections: usize,
    depth: usize,
    /// Another client streams 1 MiB writes meanwhile.
    beside: bool,
    /// Nothing that is read may be in the server's memory, or its kernel's: each place once.
    cold: bool,
    goal: Goal,
}

const fn goal(ganesha: f64, ceiling: f64, pinned: f64) -> Goal {
    Goal { ganesha: Some(ganesha), ceiling: Some((ceiling, pinned)), cpu: None }
}

const NO_GOAL: Goal = Goal { ganesha: None, ceiling: None, cpu: None };

/// The best server ever seen that answers from memory, in rates of NFS-Ganesha in the same run: rates drift from machine
/// to machine and from day to day, ratios less. Measured once, in November 2026, with another client (libnfs): reads of
/// four connections 5651 to 3166 MB/s, writes of one 2925 to 2282 MB/s, small ones 271 to 45.7 and 290 to 38.7 kIOPS.
mod pinned {
    pub(super) const READS: f64 = 5651.0 / 3166.0;
    pub(super) const WRITES: f64 = 2925.0 / 2282.0;
    pub(super) const SMALL_READS: f64 = 271.0 / 45.7;
    pub(super) const SMALL_WRITES: f64 = 290.0 / 38.7;
}

const ALONE: &str = "4 KiB random reads, 1 connection, depth 32";

const fn large(title: &'static str, kind: Kind, connections: usize, depth: usize, goal: Goal) -> Shape {
    Shape {
        title,
        kind,
        bytes: MIB,
        order: Order::Forward,
        connections,
        depth,
        beside: false,
        cold: false,
        goal,
    }
}

const fn small(title: &'static str, kind: Kind, beside: bool, goal: Goal) -> Shape {
    Shape { bytes: 4096, order: Order::Random, beside, ..large(title, kind, 1, 32, goal) }
}

const fn cold(title: &'static str, bytes: u32, order: Order, depth: usize) -> Shape {
    Shape { bytes, order, cold: true, ..large(title, Kind::Read, 4, depth, NO_GOAL) }
}

const SHAPES: [Shape; 11] = [
    large(
        "1 MiB reads, 4 connections, depth 4",
        Kind::Read,
        4,
        4,
        Goal { cpu: Some(0.30), ..goal(1.5, 0.8, pinned::READS) },
    ),
    large("1 MiB UNSTABLE writes, 4 connections, depth 4", Kind::Write, 4, 4, goal(1.2, 0.9, pinned::WRITES)),
    large("1 MiB FILE_SYNC writes, 4 connections, depth 4", Kind::Stable, 4, 4, NO_GOAL),
    large("1 MiB FILE_SYNC writes, 1 connection, depth 1", Kind::Stable, 1, 1, NO_GOAL),
    large(
        "1 MiB reads, 1 connection, depth 8",
        Kind::Read,
        1,
        8,
        Goal { ganesha: Some(1.2), ceiling: None, cpu: None },
    ),
    small(ALONE, Kind::Read, false, goal(4.5, 0.75, pinned::SMALL_READS)),
    small(
        "4 KiB random UNSTABLE writes, 1 connection, depth 32",
        Kind::Write,
        false,
        goal(4.5, 0.75, pinned::SMALL_WRITES),
    ),
    small("4 KiB random reads beside another client's 1 MiB writes", Kind::Read, true, NO_GOAL),
    cold("4 KiB reads with nothing in memory, 4 connections, depth 8", 4096, Order::Once, 8),
    cold("128 KiB reads with nothing in memory, 4 connections, depth 8", 128 << 10, Order::Once, 8),
    cold(
        "1 MiB reads from end to end with nothing in memory, 4 connections, depth 4",
        MIB,
        Order::Forward,
        4,
    ),
];

impl Shape {
    /// What counts is how many, not how much.
    fn is_small(&self) -> bool {
        self.bytes < 64 << 10
    }

    fn unit(&self) -> &'static str {
        if self.is_small() { "kIOPS" } else { "MB/s" }
    }

    fn files<'a>(&self, peer: &'a Peer) -> &'a [File] {
        let (others, stable) = peer.files.split_at(FILES.min(peer.files.len()));
        if self.kind == Kind::Stable { stable } else { others }
    }

    fn job<'a>(&self, file: &'a File, payload: &'a [u8]) -> Job<'a> {
        let (kind, bytes, order, depth) = (self.kind, self.bytes, self.order, self.depth);
        Job { file, kind, bytes, places: SIZE / u64::from(bytes), order, depth, payload }
    }
}

/// Runs `bench-ds`: success when every goal is met.
///
/// # Errors
/// If a server is missing or cannot be started, or an operation fails.
pub fn main(options: &Options) -> Result<ExitCode> {
    let program = host::program(options.sluice.as_deref())?;
    if let Some(kernel) = options.guest {
        return kernel::in_guest(kernel, std::path::absolute(program)?, options.again());
    }
    // The kernel's own server listens in the name space that it was started in.
    let network = match options.peers.contains(&Name::Kernel) {
        true => "loopback of a guest".to_owned(),
        false => network::enter()?,
    };
    let below = options.data_dir.clone().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&below).with_context(|| format!("cannot make {}", below.display()))?;
    let mut names = vec![Name::Sluice];
    names.extend(options.peers.iter().filter(|name| **name != Name::Sluice));
    let peers: Vec<Peer> =
        names.iter().map(|name| Peer::start(*name, &program, &below, 2 * FILES)).collect::<Result<_>>()?;
    let mut report = Report::default();
    report.about.extend(peers.iter().map(|peer| format!("{:<8} {}", peer.name, peer.about)));
    report.about.push(network);
    report.about.push(format!(
        "medians of {} interleaved rounds of {} ms; client and servers share this machine",
        options.rounds, options.round_ms
    ));
    let payload = vec![0xa5; MIB as usize];
    for peer in &peers {
        pass(peer, Kind::Write, &payload)
            .with_context(|| format!("cannot fill the files of {}", peer.name))?;
    }
    let shown = |shape: &&Shape| options.only.as_ref().is_none_or(|only| shape.title.contains(only.as_str()));
    let shapes: Vec<Shape> = SHAPES.iter().filter(shown).copied().collect();
    report.rows = rounds(options, &peers, &shapes, &payload)?;
    mixed(&mut report);
    for peer in &peers {
        let Some(process) = peer.process() else { continue };
        let peak = process.usage(peer.name.to_string())?.peak_bytes;
        report.figures.push(mebibytes(format!("{}: peak memory under this load", peer.name), peak, None));
    }
    // A guest has one processor and little memory.
    if options.only.as_ref().is_none_or(|only| CROWD.contains(only.as_str()))
        && !options.peers.contains(&Name::Kernel)
    {
        for connections in [100, 1000] {
            for peer in &peers {
                crowd(peer, connections, &payload, &mut report)
                    .with_context(|| format!("{} with {connections} connections", peer.name))?;
            }
        }
    }
    print!("{report}");
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&report.json())?;
        std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every file from end to end. Written, it is durable: nothing measured is the first write of a block. Read, it is in memory:
/// all rows but the cold ones are about that.
fn pass(peer: &Peer, kind: Kind, payload: &[u8]) -> Result<()> {
    let mut wire = peer.connect(1)?;
    for file in &peer.files {
        let places = SIZE / u64::from(MIB);
        let job = Job { file, kind, bytes: MIB, places, order: Order::Forward, depth: 4, payload };
        wire.drive(&job, far(), places)?;
        if kind.writes() {
            commit(&mut wire, file)?;
        }
    }
    Ok(())
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn commit(wire: &mut Wire, file: &File) -> Result<()> {
    let handle = nfs_fh3 { data: bytes::Bytes::copy_from_slice(&file.handle) };
    let args = COMMIT3args { file: handle, offset: 0, count: 0 };
    let credential: &AuthSys = &file.credential;
    let result = wire.call((NFS3_PROGRAM, NFS_V3, NFSPROC3_COMMIT), credential, &args)?;
    match sluice_xdr::from_bytes(result.into())? {
        COMMIT3res::NFS3_OK(_) => Ok(()),
        COMMIT3res::Default(status, _) => Err(anyhow!("COMMIT failed: {status:?}")),
    }
}

/// Every row of every server in each round; who begins changes from round to round.
fn rounds(options: &Options, peers: &[Peer], shapes: &[Shape], payload: &[u8]) -> Result<Vec<Measured>> {
    let new = |shape: &Shape| Measured {
        title: shape.title.to_owned(),
        unit: shape.unit(),
        goal: shape.goal,
        samples: BTreeMap::new(),
    };
    let mut rows: Vec<Measured> = shapes.iter().map(new).collect();
    for round in 0..options.rounds {
        for (shape, row) in shapes.iter().zip(&mut rows) {
            for turn in 0..peers.len() {
                let Some(peer) = peers.get((turn + round as usize) % peers.len()) else { continue };
                // It has no files that could be on a device.
                if shape.cold && peer.name == Name::Ceiling {
                    continue;
                }
                let time = Duration::from_millis(options.round_ms);
                let sample = measure(peer, shape, time, u64::from(round), payload)
                    .with_context(|| format!("{}: {}", peer.name, shape.title))?;
                row.samples.entry(peer.name).or_default().push(sample);
            }
            if shape.cold {
                peers.iter().try_for_each(|peer| pass(peer, Kind::Read, payload))?;
            }
        }
        eprintln!("round {} of {}", round + 1, options.rounds);
    }
    Ok(rows)
}

fn measure(peer: &Peer, shape: &Shape, time: Duration, round: u64, payload: &[u8]) -> Result<Sample> {
    let mut wires = (0..=shape.connections)
        .map(|number| peer.connect(round << 8 | number as u64))
        .collect::<Result<Vec<_>>>()?;
    let writer = wires.pop();
    if shape.cold {
        host::drop_caches()?;
    }
    let cpu = || peer.cpu_seconds();
    let (cpu_before, begun) = (cpu()?, Instant::now());
    let until = begun + time;
    let (took, written) = thread::scope(|scope| {
        let load = wires.iter_mut().zip(shape.files(peer)).map(|(wire, file)| {
            let job = shape.job(file, payload);
            let most = if shape.cold { job.places } else { u64::MAX };
            scope.spawn(move || wire.drive(&job, until, most))
        });
        let load: Vec<_> = load.collect();
        let stream = writer.filter(|_| shape.beside).zip(shape.files(peer).last()).map(|(mut wire, file)| {
            let job = Shape { kind: Kind::Write, bytes: MIB, order: Order::Forward, depth: 4, ..*shape }
                .job(file, payload);
            scope.spawn(move || wire.drive(&job, until, u64::MAX))
        });
        let mut took = Vec::new();
        for thread in load {
            took.extend(thread.join().map_err(|_| anyhow!("a client died"))??);
        }
        let written =
            stream.map(|thread| thread.join().map_err(|_| anyhow!("a client died"))?).transpose()?;
        anyhow::Ok((took, written))
    })?;
    let (elapsed, spent) = (begun.elapsed().as_secs_f64(), cpu()? - cpu_before);
    if shape.kind.writes() || shape.beside {
        let mut wire = peer.connect(0)?;
        shape.files(peer).iter().try_for_each(|file| commit(&mut wire, file))?;
    }
    Ok(sample(shape, took, written.map(|written| written.len()), elapsed, spent))
}

fn sample(shape: &Shape, mut took: Vec<u32>, written: Option<usize>, elapsed: f64, cpu: f64) -> Sample {
    took.sort_unstable();
    let at = |percent: usize| {
        let index = (took.len() * percent / 100).min(took.len().saturating_sub(1));
        took.get(index).map_or(f64::NAN, |micros| f64::from(*micros))
    };
    let moved = took.len() as f64 * f64::from(shape.bytes);
    let beside = written.map(|count| count as f64 * f64::from(MIB));
    Sample {
        rate: if shape.is_small() { took.len() as f64 / elapsed / 1e3 } else { moved / elapsed / 1e6 },
        p50: at(50),
        p99: at(99),
        cpu: cpu / ((moved + beside.unwrap_or(0.0)) / GIB),
        beside: beside.map(|bytes| bytes / elapsed / 1e6),
    }
}

/// Small reads beside a stream of large writes against small reads alone, round by round.
fn mixed(report: &mut Report) {
    let find = |title: &str| report.rows.iter().find(|row| row.title == title);
    let beside = SHAPES.iter().find(|shape| shape.beside).and_then(|shape| find(shape.title));
    let (Some(alone), Some(beside)) = (find(ALONE), beside) else { return };
    let mut figures = Vec::new();
    for (name, rounds) in &beside.samples {
        let Some(before) = alone.samples.get(name) else { continue };
        let over =
            |what: fn(&Sample) -> f64| median(rounds.iter().zip(before).map(|(a, b)| what(a) / what(b)));
        let ours = *name == Name::Sluice;
        figures.push(Figure {
            title: format!("{name}: small reads beside large writes, share of rate"),
            value: over(|sample| sample.rate),
            unit: "",
            bound: ours.then_some((0.8, true)),
        });
        figures.push(Figure {
            title: format!("{name}: small reads beside large writes, times p99"),
            value: over(|sample| sample.p99),
            unit: "",
            bound: ours.then_some((2.0, false)),
        });
    }
    report.figures.extend(figures);
}

fn mebibytes(title: String, bytes: u64, most: Option<f64>) -> Figure {
    Figure {
        title,
        value: bytes as f64 / f64::from(MIB),
        unit: " MiB",
        bound: most.map(|most| (most, false)),
    }
}

/// What `--only` finds for the rows about memory.
const CROWD: &str = "peak memory, connections busy";

/// So many connections that all write and read 1 MiB at once, twice, and then stay: the peak, and what is left.
fn crowd(peer: &Peer, connections: usize, payload: &[u8], report: &mut Report) -> Result<()> {
    let Some(process) = peer.process() else { return Ok(()) };
    process.reset_peak()?;
    let wires = thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..connections {
            let file = peer.files.get(number % FILES).context("no file")?;
            let mut wire = peer.connect(number as u64)?;
            let work = move || -> Result<Wire> {
                for kind in [Kind::Write, Kind::Read, Kind::Write, Kind::Read] {
                    let places = SIZE / u64::from(MIB);
                    let job = Job { file, kind, bytes: MIB, places, order: Order::Random, depth: 1, payload };
                    wire.drive(&job, far(), 1)?;
                }
                Ok(wire)
            };
            threads.push(thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, work)?);
        }
        let wires = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a client died"))?);
        wires.collect::<Result<Vec<_>>>()
    })?;
    let peak = process.usage(String::new())?.peak_bytes;
    thread::sleep(Duration::from_millis(500));
    let rest = process.resident()?;
    drop(wires);
    let most = match connections {
        100 => Some(64.0),
        _ => Some(256.0),
    };
    let most = most.filter(|_| peer.name == Name::Sluice);
    let title = format!("{}: peak memory, {connections} connections busy", peer.name);
    report.figures.push(mebibytes(title, peak, most));
    let title = format!("{}: memory, {connections} connections idle afterwards", peer.name);
    report.figures.push(mebibytes(title, rest, None));
    Ok(())
}
