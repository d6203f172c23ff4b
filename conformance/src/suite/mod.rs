//! `suite`: Sluice and stock kernels in one network, case by case.

pub(crate) mod board;
pub mod cases;
mod certificates;
pub mod foreign;
mod kerberos;
mod matrix;
mod options;
mod power;
mod record;
mod report;
mod sluice;
pub(crate) mod stage;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::guest::catalogue::Kernel;
use crate::guest::command;
use crate::guest::fetch::{Cache, Prepared};
use crate::guest::host;
use crate::guest::job::{self, Job, Running, Sink, Status};
use crate::guest::lab::{self, HOST_ADDRESS, Lab, server_address};
use cases::{CASES, Case};
use matrix::Cell;
pub use options::{Options, Reference};
use power::Machines;
use record::Record;
use report::Row;
use sluice::Sluice;
use stage::{Act, PORT, Stage};

/// Number, thus address, of the guest that serves reference runs.
const REFERENCE: u8 = 9;
/// The same for the guest that runs Sluice where a case switches it on and off, and for the client that dies with it.
const POWERED_SERVER: u8 = 9;
const POWERED_CLIENT: u8 = 8;
/// Of guests that serve.
const SERVER_KERNEL: &str = "uml7.2";
/// Holds everything that the two bulk cases write.
const REFERENCE_MEMORY: u32 = 4096;
const REFERENCE_START: Duration = Duration::from_secs(60);

/// Runs cases; the exit code says whether all passed.
///
/// # Errors
/// If the host lacks something that guests need.
pub fn main(options: &Options) -> Result<ExitCode> {
    if options.cases == ["list"] {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    let cells = options.cells()?;
    let kernels = options.kernels(&cells);
    if let Err(reason) = host::check(&kernels) {
        if options.no_guests {
            eprintln!("guest tests were NOT RUN: {reason:#}");
            return Ok(ExitCode::SUCCESS);
        }
        return Err(reason);
    }
    let record = options
        .write_matrix
        .as_deref()
        .map(|file| Record::open(file, options.commit.as_deref()))
        .transpose()?;
    let cache = Cache::open()?;
    if !lab::inside() {
        options.prepare(&cache, &kernels, &cells)?;
        return lab::enter();
    }
    let suite = Suite::open(options, cache, record)?;
    let rows = suite.run(&cells)?;
    report::print(&rows);
    println!("logs and results.json are in {}", suite.results.display());
    Ok(if rows.iter().all(|row| row.passed) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What became of a run.
pub(crate) enum Outcome {
    /// Here, with each kernel and minor version.
    Played(Vec<Row>),
    /// In a process inside the network, which ended so.
    Elsewhere(ExitCode),
}

/// Runs a suite that others wrote.
///
/// # Errors
/// If the host lacks something that guests need.
pub(crate) fn run_foreign(options: &Options) -> Result<Outcome> {
    let cells = options.cells()?;
    let kernels = options.kernels(&cells);
    host::check(&kernels)?;
    let cache = Cache::open()?;
    if !lab::inside() {
        options.prepare(&cache, &kernels, &cells)?;
        return Ok(Outcome::Elsewhere(lab::enter()?));
    }
    Ok(Outcome::Played(Suite::open(options, cache, None)?.run(&cells)?))
}

fn list() {
    for case in CASES {
        let marks = [(case.ci, "ci"), (case.reference, "reference")];
        let marks: Vec<_> = marks.iter().filter(|(set, _)| *set).map(|(_, mark)| *mark).collect();
        println!("{:<18} {} guest(s)  {:<13} {}", case.name, case.guests(), marks.join(","), case.shows);
    }
}

fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// What the guests and servers that have ended took, and this program.
fn processor_seconds() -> f64 {
    [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN]
        .into_iter()
        .filter_map(|who| getrusage(who).ok())
        .flat_map(|usage| [usage.user_time(), usage.system_time()])
        .map(|time| time.num_microseconds() as f64 / 1e6)
        .sum()
}

/// Everything that outlives a case.
struct Suite<'a> {
    options: &'a Options,
    cache: Cache,
    stage: Arc<Stage>,
    results: PathBuf,
    record: Option<Record>,
}

impl<'a> Suite<'a> {
    fn open(options: &'a Options, cache: Cache, record: Option<Record>) -> Result<Self> {
        let results = options.results.clone().unwrap_or_else(|| workspace().join("target/guest-suite"));
        fs::create_dir_all(&results).with_context(|| format!("cannot write {}", results.display()))?;
        let results = results.canonicalize()?;
        Ok(Self { options, cache, stage: Stage::open(Lab::new(REFERENCE)?)?, results, record })
    }

    fn run(&self, cells: &[Cell]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for cell in cells {
            let row = self.play(cell);
            let failed = !row.passed;
            if let Some(record) = &self.record {
                record.add(&row.line(&record.commit)?)?;
            }
            rows.push(row);
            report::write(&rows, &self.results.join("results.json"))?;
            if failed && self.options.fail_fast {
                break;
            }
        }
        Ok(rows)
    }

    fn play(&self, cell: &Cell) -> Row {
        let Cell { kernel, vers, case } = *cell;
        println!("== {} on {kernel}, vers={vers}: {}", case.name, case.shows);
        let (started, used) = (Instant::now(), processor_seconds());
        let kernels = case.kernels(kernel);
        let played = self.attempt(case, &kernels, vers).unwrap_or_else(Played::failed);
        let reason = played.verdict.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
        let row = Row {
            case: case.name,
            kernels: kernels.iter().map(ToString::to_string).collect(),
            releases: played.releases,
            vers: vers.to_owned(),
            passed: played.verdict.is_ok(),
            seconds: started.elapsed().as_secs_f64(),
            reason,
            metrics: played.metrics,
            output: played.output,
        };
        println!(
            "== {} on {kernel}: {} in {:.1} s ({:.0} s of processors) {}",
            case.name,
            if row.passed { "pass" } else { "FAIL" },
            row.seconds,
            processor_seconds() - used,
            row.reason
        );
        row
    }

    /// Errors are the runner's own.
    fn attempt(&self, case: &Case, kernels: &[Kernel], vers: &str) -> Result<Played> {
        let name = kernels.iter().map(|kernel| kernel.name()).collect::<Vec<_>>().join("+");
        let logs = self.results.join(format!("{}-{name}-{vers}", case.name));
        let _ = fs::remove_dir_all(&logs);
        fs::create_dir_all(&logs)?;
        let kernel = kernels.first().context("a case has a kernel")?;
        let limit = case.limit(*kernel, self.options.rounds);
        let home = tempfile::Builder::new().prefix("sluice-suite.").tempdir()?;
        let share = home.path().join("share");
        self.fill(&share, case)?;
        let on_host = self.options.reference.is_none() && !case.powered;
        let sluice = on_host
            .then(|| self.options.program())
            .transpose()?
            .map(|program| Sluice::new(&program, home.path(), &logs.join("sluice.log"), case));
        let machines = case.powered.then(|| self.machines(case, *kernel, vers, &share, &logs)).transpose()?;
        let act = Arc::new(Act::new(sluice, machines, limit));
        self.stage.begin(Arc::clone(&act))?;
        let end = End(&self.stage);
        let _reference = self.serve(&act, &share, &logs)?;
        let mut guests = Vec::new();
        for (number, kernel) in (1..).zip(kernels) {
            let job = self
                .guest(case, self.cache.kernel(*kernel)?, number, kernels.len(), vers, &share, limit)
                .console(logs.join(format!("guest{number}.console")));
            let running = job
                .spawn(&self.cache, echo(number, kernels.len(), &logs.join(format!("guest{number}.log")))?)?;
            act.add_guest(number, running.id());
            guests.push((number, running));
        }
        let mut outcomes = wait(&act, guests)?;
        for (number, outcome) in outcomes.iter().filter(|(_, outcome)| outcome.network_restarts() > 0) {
            let times = outcome.network_restarts();
            println!(
                "  guest {number}: the network driver of user-mode-linux gave up {times} times and was started again"
            );
        }
        // The first to fail is the cause; its partner fails because it waits in vain.
        outcomes.sort_by_key(|(_, outcome)| outcome.elapsed);
        drop(end);
        let mut by_number: Vec<_> = outcomes.iter().collect();
        by_number.sort_by_key(|(number, _)| *number);
        let releases = by_number.iter().map(|(_, outcome)| outcome.release().to_owned()).collect();
        let mut verdict = outcomes.iter().try_for_each(|(number, outcome)| judge(&act, *number, outcome));
        if let Some(sluice) = &act.sluice
            && let Err(error) = stage::lock(sluice).stop()
        {
            verdict = verdict.and(Err(error));
        }
        let output = by_number.iter().map(|(_, outcome)| outcome.output.as_str()).collect();
        Ok(Played { verdict, metrics: act.metrics(), releases, output })
    }

    /// The folder that guests see as /share: the helper libraries and what the case asked for.
    fn fill(&self, share: &Path, case: &Case) -> Result<()> {
        fs::create_dir(share)?;
        let assets = workspace().join("conformance/guest");
        copy_files(&assets, share)?;
        fs::create_dir(share.join("cases"))?;
        copy_files(&assets.join("cases"), &share.join("cases"))?;
        if let Some(foreign) = &self.options.foreign {
            // Much of the host's tree is not to be seen in a guest: /tmp, for one.
            let mut copy = Command::new("cp");
            copy.arg("-a").arg(&foreign.folder).arg(share.join("suite"));
            command::run(copy)?;
        }
        if let Some(which) = case.sources {
            let sources = self.cache.sources(which)?;
            fs::write(share.join("sources"), sources.display().to_string())?;
        }
        if self.options.reference.is_some() {
            let package = self.cache.nfs_server()?;
            fs::write(share.join("nfs-server"), package.display().to_string())?;
        }
        Ok(())
    }

    /// The machines that a case switches on and off.
    fn machines(
        &self,
        case: &Case,
        tested: Kernel,
        vers: &str,
        share: &Path,
        logs: &Path,
    ) -> Result<Machines> {
        // Guests reach the share wherever the program's own folder lies.
        fs::copy(self.options.program()?, share.join("sluice")).context("cannot copy the program to test")?;
        let limit = case.limit(tested, self.options.rounds);
        let mut jobs = BTreeMap::new();
        for (name, number, kernel) in
            [("server", POWERED_SERVER, SERVER_KERNEL.parse()?), ("client", POWERED_CLIENT, tested)]
        {
            let script = format!("power_{name}.sh");
            let job = self.guest(case, self.cache.kernel(kernel)?, number, 1, vers, share, limit);
            jobs.insert(name, job.script(share.join(script)).console(logs.join(format!("{name}.console"))));
        }
        Ok(Machines::new(self.cache.clone(), logs, jobs))
    }

    /// Starts the servers: Sluice, or a guest whose kernel serves.
    fn serve(&self, act: &Act, share: &Path, logs: &Path) -> Result<Option<Running>> {
        if let Some(sluice) = &act.sluice {
            stage::lock(sluice).start(&[])?;
            return Ok(None);
        }
        if act.has_machines() {
            return Ok(None);
        }
        let kernel = self.cache.kernel(SERVER_KERNEL.parse()?)?;
        let job = Job::new(kernel, REFERENCE, share.join("reference.sh"))
            .share(share)
            .env("REFERENCE", self.options.reference.map_or("", Reference::name))
            .memory(REFERENCE_MEMORY)
            .timeout(Duration::from_secs(7200))
            .console(logs.join("reference.console"));
        let job = conversation(job);
        let mut running = job.spawn(&self.cache, to_file(&logs.join("reference.log"))?)?;
        let limit = Instant::now() + REFERENCE_START;
        while act.board.wait("reference", Duration::from_millis(100)).is_err() {
            if running.ended()? || Instant::now() > limit {
                bail!("the reference server did not start: see {}", logs.join("reference.log").display());
            }
        }
        Ok(Some(running))
    }

    #[expect(clippy::too_many_arguments, reason = "one place knows what a guest of a case is told")]
    fn guest(
        &self,
        case: &Case,
        kernel: Prepared,
        number: u8,
        guests: usize,
        vers: &str,
        share: &Path,
        limit: Duration,
    ) -> Job {
        let stripes = kernel.kernel.entry().stripes && vers == "4.2";
        let folder = if self.options.foreign.is_some() { "external" } else { "cases" };
        let script = workspace().join("conformance/guest").join(folder).join(format!("{}.sh", case.name));
        let server = if self.options.reference.is_some() {
            Job::new(kernel.clone(), REFERENCE, &script).address()
        } else if case.powered {
            Job::new(kernel.clone(), POWERED_SERVER, &script).address()
        } else {
            server_address(1)
        };
        let job = Job::new(kernel, number, script)
            .share(share)
            .memory(case.memory)
            .timeout(limit)
            .env("CASE", case.name)
            .env("ROLE", number.to_string())
            .env("GUESTS", guests.to_string())
            .env("SERVER", server)
            .env("VERS", vers)
            .env("STRIPES", if stripes { "1" } else { "0" })
            .env("LEASE", case.lease.to_string())
            .env("INLINE", case.inline_limit())
            .env("ROUNDS", self.options.rounds.to_string())
            .env("SEED", self.options.seed.to_string())
            .env("DATA_SERVERS", case.data_servers.to_string())
            .env("REFERENCE", self.options.reference.map_or("", Reference::name));
        let words = self.options.foreign.iter().flat_map(|foreign| &foreign.words);
        conversation(words.fold(job, |job, (name, word)| job.env(*name, word)))
    }
}

/// What came of a case.
struct Played {
    verdict: Result<()>,
    /// Figures that the guests reported.
    metrics: Vec<stage::Metric>,
    /// The release of each guest's kernel.
    releases: Vec<String>,
    /// What the guests printed.
    output: String,
}

impl Played {
    /// The runner itself failed.
    fn failed(error: anyhow::Error) -> Self {
        Self { verdict: Err(error), metrics: Vec::new(), releases: Vec::new(), output: String::new() }
    }
}

pub(crate) fn conversation(job: Job) -> Job {
    job.env("HOST", HOST_ADDRESS).env("HOST_PORT", PORT.to_string())
}

/// Ends the act also when the runner itself fails.
struct End<'a>(&'a Stage);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Waits for all guests. The first that fails closes the board, so that its partner does not wait in vain.
fn wait(act: &Act, guests: Vec<(u8, Running)>) -> Result<Vec<(u8, job::Outcome)>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = guests
            .into_iter()
            .map(|(number, running)| {
                scope.spawn(move || {
                    let outcome = running.wait()?;
                    if !outcome.success() && !act.was_killed(number) {
                        act.board.close();
                    }
                    Ok((number, outcome))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a guest's thread failed")))
            .collect()
    })
}

fn judge(act: &Act, number: u8, outcome: &job::Outcome) -> Result<()> {
    if outcome.success() || act.was_killed(number) {
        return Ok(());
    }
    let last = outcome.output.lines().rev().find(|line| line.starts_with("FAIL")).unwrap_or_default();
    match outcome.status {
        Status::Exited(code) => bail!("guest {number} ended with {code}: {last}"),
        Status::TimedOut => bail!("guest {number} was killed at its time limit {last}"),
        Status::Died | Status::Killed => {
            let tail = outcome.console_tail();
            let panic = tail.lines().find(|line| line.contains("panic") || line.contains("GUEST-DIED"));
            bail!("guest {number} died: {}", panic.unwrap_or("see its console"))
        }
    }
}

pub(crate) fn copy_files(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            fs::copy(&path, to.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

/// Output to a file, and to the terminal with the guest's number when there are several.
fn echo(number: u8, guests: usize, file: &Path) -> Result<Sink> {
    let mut keep = fs::File::create(file)?;
    let mut line = Vec::new();
    Ok(Box::new(move |bytes| {
        let _ = keep.write_all(bytes);
        let mut out = std::io::stdout().lock();
        for byte in bytes {
            line.push(*byte);
            if *byte == b'\n' {
                let prefix = if guests > 1 { format!("  {number}| ") } else { "  ".to_owned() };
                let _ = out.write_all(prefix.as_bytes()).and_then(|()| out.write_all(&line));
                line.clear();
            }
        }
    }))
}

fn to_file(file: &Path) -> Result<Sink> {
    let mut keep = fs::File::create(file)?;
    Ok(Box::new(move |bytes| drop(keep.write_all(bytes))))
}
