//! `bench-mds`: names and small files at the metadata server, beside its store alone and NFS-Ganesha, the same client, in
//! rounds that interleave. Everything shares this machine's processors, and every change is durable when it is answered
//! (but for the peer that says so).
//!
//! | module | what |
//! | --- | --- |
//! | `work` | what clients do |
//! | `peers` | Sluice and NFS-Ganesha, started, with their clients |
//! | `store` | the store alone, with the write set of a create |
//! | `counted` | a metadata server that counts its allocations, and its instructions |
//! | `cold` | small files that nobody has in memory |
//! | `flat` | what an operation costs with few files and with many |
//! | `report` | medians, spread, ratios, goals |

mod cold;
pub mod counted;
mod flat;
mod peers;
mod report;
mod store;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use super::ds::network;
use super::load::{self, Run, Until};
use super::{host, interrupted};
use counted::Counted;
use peers::{DIRECTORIES, Name, Peer};
use report::{Goal, Measured, Own, Report, Sample};
use store::Bare;
use work::{Phase, Step, Worker};

/// How many clients there are.
const CLIENTS: [usize; 4] = [1, 8, 64, 256];
/// The number that goals are about.
const JUDGED: usize = 64;
/// Up to which size files are kept in the metadata, where that is measured.
const INLINE: &str = "8KiB";

/// Options of `bench-mds`.
#[derive(Args, Debug)]
pub struct Options {
    /// The program to measure [default: beside this one, else target/release/sluice]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// Where the servers keep their data, removed at the end; its file system counts [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Milliseconds that a row of one server takes in one round
    #[arg(long, value_name = "MS", default_value_t = 500)]
    round_ms: u64,
    /// Besides Sluice
    #[arg(long, value_enum, value_delimiter = ',', default_value = "store,ganesha,ganesha-plain")]
    peers: Vec<Name>,
    /// How many clients at once
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = CLIENTS)]
    clients: Vec<usize>,
    /// How many files the directory grows to in which an operation must cost the same at the end; 0: it is not tried
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    files: u64,
    /// How many small files are written for the row in which nothing is in memory, of which 20,000 at most are read; 0: it is not
    /// tried. It drops this machine's caches
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    cold: u64,
    /// Only rows whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Count instructions too, with valgrind: however busy the machine is, they are the same
    #[arg(long)]
    instructions: bool,
    /// Write the table there too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// So long, at least, a row takes whose instructions are counted: the server is some fifty times slower then.
const COUNTING: Duration = Duration::from_secs(3);

/// Small files read in one round of the row in which nothing is in memory.
const COLD_READS: u64 = 20_000;

/// A row, before how many clients there are.
#[derive(Clone, Copy, Debug)]
struct Shape {
    title: &'static str,
    phase: Phase,
    /// Clients have directories of their own, as far as there are [`DIRECTORIES`].
    apart: bool,
    goal: Goal,
}

const fn shape(title: &'static str, phase: Phase, apart: bool, goal: Goal) -> Shape {
    Shape { title, phase, apart, goal }
}

/// A change must be durable, and Ganesha's is, too.
const CHANGE: Goal = Goal { rate: None, ganesha: Some(3.0), store: None };
const CREATE: Goal = Goal { rate: Some(15_000.0), ganesha: Some(3.0), store: Some(0.5) };
/// The store alone has 64 write sets under way, not a thousand: it is no measure of this.
const TOGETHER: Goal = Goal { rate: Some(15_000.0), ganesha: Some(3.0), store: None };

const NO_GOAL: Goal = Goal { rate: None, ganesha: None, store: None };

const fn rate(least: f64) -> Goal {
    Goal { rate: Some(least), ganesha: None, store: None }
}

/// In the order in which they leave behind what the next ones need.
const SHAPES: [Shape; 15] = [
    shape("creates, one directory", Phase::Create, false, CREATE),
    shape("creates, one directory, 16 in flight each", Phase::CreateTogether, false, TOGETHER),
    shape("getattrs", Phase::GetAttributes, false, rate(100_000.0)),
    shape("getattrs, 16 in flight each", Phase::GetAttributesTogether, false, rate(100_000.0)),
    shape("readdir entries, names only", Phase::Names, false, NO_GOAL),
    shape("readdir entries, with attributes", Phase::Listing, false, rate(300_000.0)),
    shape("renames, one directory", Phase::Rename, false, CHANGE),
    shape("removes, one directory", Phase::Remove, false, CHANGE),
    shape("creates, 64 directories", Phase::Create, true, CREATE),
    shape("renames, 64 directories", Phase::Rename, true, CHANGE),
    shape("removes, 64 directories", Phase::Remove, true, CHANGE),
    shape("4 KiB files: create, write, close", Phase::Write, true, CHANGE),
    shape("4 KiB files: open, read, close", Phase::Read, true, NO_GOAL),
    shape("128 KiB files: create, write, close", Phase::WriteLarge, true, NO_GOAL),
    shape("128 KiB files: open, read, close", Phase::ReadLarge, true, NO_GOAL),
];

impl Shape {
    fn row(&self, clients: usize) -> String {
        format!("{}, {clients} client{}", self.title, if clients == 1 { "" } else { "s" })
    }
}

/// Runs `bench-mds`: success when every goal is met.
///
/// # Errors
/// If a peer is missing or cannot be started, or an operation fails.
pub fn main(options: &Options) -> Result<ExitCode> {
    let network = network::enter()?;
    // All clients are one thread's: what they send together it sends without waking another, and the servers have the
    // rest of the processors.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        tokio::select! {
            report = measure(options, network) => report,
            why = interrupted() => Err(why),
        }
    })?;
    print!("{report}");
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&report.json())?;
        std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(options: &Options, network: String) -> Result<Report> {
    let program = host::program(options.sluice.as_deref())?;
    let below = options.data_dir.clone().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&below).with_context(|| format!("cannot make {}", below.display()))?;
    let most = options.clients.iter().copied().max().unwrap_or(1).max(1);
    let mut report = Report::default();
    let mut bench = Bench { options, peers: Vec::new(), store: None, rows: BTreeMap::new() };
    for name in [Name::Sluice].iter().chain(options.peers.iter().filter(|name| **name != Name::Store)) {
        let peer = Peer::start(*name, &program, &below, most).await?;
        report.about.push(format!("{:<14} {}", peer.name, peer.about));
        bench.peers.push(peer);
    }
    if options.peers.contains(&Name::Store) {
        let store = Bare::open(&below).await?;
        report.about.push(format!("{:<14} {}", Name::Store, store.about()));
        bench.store = Some(store);
    }
    report.about.push(network);
    report.about.push(format!(
        "medians of {} interleaved rounds of {} ms; client and servers share {} processors; CPU is the server's, for one \
         operation or entry",
        options.rounds,
        options.round_ms,
        std::thread::available_parallelism().map_or(1, usize::from),
    ));
    // First: what it needs may be missing, and the rounds take minutes.
    let own = bench.own(&below).await?;
    for round in 0..options.rounds {
        for clients in &options.clients {
            bench.round(round, *clients).await?;
        }
        eprintln!("round {} of {}", round + 1, options.rounds);
    }
    report.rows = bench.measured(&own);
    if options.cold > 0 {
        let plan = cold::Plan {
            sluice: &program,
            below: &below,
            files: options.cold,
            reads: options.cold.min(COLD_READS),
            rounds: options.rounds,
        };
        let ganesha = options.peers.iter().any(|name| matches!(name, Name::Ganesha | Name::GaneshaPlain));
        report.rows.push(cold::measure(plan, ganesha).await?);
    }
    if options.files > 0
        && let Some(peer) = bench.peers.first()
    {
        report.figures = flat::measure(peer, options.files).await?;
    }
    Ok(report)
}

/// What is under way.
struct Bench<'a> {
    options: &'a Options,
    peers: Vec<Peer>,
    store: Option<Bare>,
    /// By clients and by place in [`SHAPES`].
    rows: BTreeMap<(usize, usize), BTreeMap<Name, Vec<Sample>>>,
}

impl Bench<'_> {
    fn shown(&self) -> impl Iterator<Item = (usize, Shape)> {
        let only = self.options.only.clone().unwrap_or_default();
        SHAPES.into_iter().enumerate().filter(move |(_, shape)| shape.title.contains(&only))
    }

    fn until(&self) -> Until {
        Until::Elapsed(Duration::from_millis(self.options.round_ms))
    }

    fn note(&mut self, clients: usize, shape: usize, name: Name, sample: Sample) {
        self.rows.entry((clients, shape)).or_default().entry(name).or_default().push(sample);
    }

    /// Every row of every server; who begins changes from round to round.
    async fn round(&mut self, round: u32, clients: usize) -> Result<()> {
        let places = self.peers.len() + usize::from(self.store.is_some());
        for turn in 0..places {
            let at = (turn + round as usize) % places;
            match self.peers.get(at) {
                Some(_) => self.series(at, round, clients).await?,
                None => self.alone(round, clients).await?,
            }
        }
        Ok(())
    }

    /// The store alone, in the place of a server.
    async fn alone(&mut self, round: u32, clients: usize) -> Result<()> {
        let creates: Vec<usize> =
            self.shown().filter(|(_, s)| s.goal.store.is_some()).map(|(at, _)| at).collect();
        let Some(store) = self.store.as_ref().filter(|_| !creates.is_empty()) else { return Ok(()) };
        let before = host::Usage::own()?.cpu_seconds;
        let run = store.run(clients, u64::from(round) << 10 | clients as u64, self.until()).await?;
        let cpu = host::Usage::own()?.cpu_seconds - before;
        for at in creates {
            self.note(clients, at, Name::Store, sample(&run, run.operations.len() as u64, cpu));
        }
        Ok(())
    }

    /// All rows of one server.
    async fn series(&mut self, at: usize, round: u32, clients: usize) -> Result<()> {
        let shapes: Vec<(usize, Shape)> = self.shown().collect();
        let until = self.until();
        let peer = self.peers.get(at).context("no such peer")?;
        let name = peer.name;
        let mut samples = Vec::new();
        for apart in [false, true] {
            let shapes: Vec<_> = shapes.iter().copied().filter(|(_, shape)| shape.apart == apart).collect();
            if shapes.is_empty() {
                continue;
            }
            let mut directories = Vec::new();
            for number in 0..if apart { DIRECTORIES.min(clients) } else { 1 } {
                directories.push(peer.directory(&format!("round{round}-{clients}-{apart}-{number}")).await?);
            }
            let mut workers = peer.workers(clients, &directories)?;
            workers = prepared(workers, &shapes, until).await?;
            for (at, shape) in shapes {
                let before = peer.cpu_seconds()?;
                let (run, after) = phase(workers, shape.phase, until)
                    .await
                    .with_context(|| format!("{name}: {}", shape.row(clients)))?;
                let units = after.iter().map(|worker| worker.units).sum();
                samples.push((at, sample(&run, units, peer.cpu_seconds()? - before)));
                workers = after;
            }
        }
        for (at, sample) in samples {
            self.note(clients, at, name, sample);
        }
        Ok(())
    }

    /// What one operation or entry costs the metadata server by itself, by place in [`SHAPES`].
    async fn own(&self, below: &std::path::Path) -> Result<BTreeMap<usize, Own>> {
        let (below, instructions) = (below.to_owned(), self.options.instructions);
        let start = move || Counted::start(&below, instructions);
        let mut counted = tokio::task::spawn_blocking(start).await??;
        let peer = Peer::counted(counted.address, JUDGED).await?;
        let mut until = Duration::from_millis(self.options.round_ms);
        if instructions {
            until = until.max(COUNTING);
        }
        let mut all = BTreeMap::new();
        for apart in [false, true] {
            let counts = |shape: Shape| shape.apart == apart && !shape.phase.needs_data_servers();
            let shapes: Vec<_> = self.shown().filter(|(_, shape)| counts(*shape)).collect();
            if shapes.is_empty() {
                continue;
            }
            let directories = [peer.directory(&format!("counted-{apart}")).await?];
            let mut workers = peer.workers(JUDGED, &directories)?;
            workers = prepared(workers, &shapes, Until::Elapsed(until)).await?;
            for (at, shape) in shapes {
                counted.done()?;
                let (_, after) = phase(workers, shape.phase, Until::Elapsed(until)).await?;
                let done = counted.done()?;
                let units = after.iter().map(|worker| worker.units).sum::<u64>().max(1) as f64;
                let of_one = |all: u64| all as f64 / units;
                let instructions = done.instructions.map(of_one);
                all.insert(at, Own { allocations: of_one(done.allocations), instructions });
                workers = after;
            }
        }
        Ok(all)
    }

    fn measured(&mut self, own: &BTreeMap<usize, Own>) -> Vec<Measured> {
        let rows = std::mem::take(&mut self.rows).into_iter().filter_map(|((clients, at), samples)| {
            let shape = SHAPES.get(at)?;
            let judged = clients == JUDGED;
            Some(Measured {
                title: shape.row(clients),
                goal: if judged { shape.goal } else { Goal::default() },
                samples,
                own: own.get(&at).copied().filter(|_| judged),
            })
        });
        rows.collect()
    }
}

/// What the first of these rows finds there, where no row before it makes it.
async fn prepared(mut workers: Vec<Worker>, shapes: &[(usize, Shape)], until: Until) -> Result<Vec<Worker>> {
    let has = |wanted: &[Phase]| shapes.iter().any(|(_, shape)| wanted.contains(&shape.phase));
    let of_files = [Phase::GetAttributes, Phase::GetAttributesTogether, Phase::Rename, Phase::Remove];
    let missing = [
        (has(&of_files) && !has(&[Phase::Create, Phase::CreateTogether]), Phase::Create),
        (has(&[Phase::Read]) && !has(&[Phase::Write]), Phase::Write),
        (has(&[Phase::ReadLarge]) && !has(&[Phase::WriteLarge]), Phase::WriteLarge),
    ];
    for (_, makes) in missing.into_iter().filter(|(missing, _)| *missing) {
        workers = phase(workers, makes, until).await?.1;
    }
    Ok(workers)
}

/// One phase, and the workers as it leaves them.
async fn phase(mut workers: Vec<Worker>, phase: Phase, until: Until) -> Result<(Run, Vec<Worker>)> {
    for worker in &mut workers {
        worker.begin();
    }
    load::run(workers, until, Step(phase)).await
}

/// `units`: what is counted, operations or entries. `cpu`: seconds.
fn sample(run: &Run, units: u64, cpu: f64) -> Sample {
    let (p50, p99) = load::latency([run]);
    let units = units as f64;
    Sample { rate: units / run.elapsed.as_secs_f64(), p50, p99, cpu: cpu * 1e6 / units.max(1.0) }
}
