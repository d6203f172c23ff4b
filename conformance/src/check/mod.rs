//! The one door: every check of the tree. What can be told from the sources comes first and stops at the first failure; then
//! everything is built, and run.

mod exceptions;
mod lanes;
mod promises;
mod tidy;
mod tools;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::guest::catalogue::Kernel;
use crate::guest::host;
use crate::suite::cases::{CASES, Case, ROUNDS};
use lanes::Cell;

/// What to leave out.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Run only these steps: fmt, clippy, tidy, build, test, fuzz, seeds, deploy, kills, foundationdb, pynfs, guest
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Pass without kernel clients where they cannot run (they need root)
    #[arg(long)]
    no_guests: bool,
}

/// The kernels that run the cases marked `ci`, over 4.2, the newest last. The full matrix is one command (docs/TESTING.md).
const KERNELS: &[&str] = &["uml6.1", "uml7.2"];
/// What runs besides, and first: who cannot even do this need not wait for the rest.
const FIRST: (&str, &str, &str) = ("smoke", "uml7.2", "4.1");
/// An administrator's hosts, with the kernels of their two clients. What is old comes first where a fault is about that.
const HOSTS: [(&str, &str); 2] = [("faults", "uml6.1,uml7.2"), ("three-hosts", "uml7.2,uml6.1")];
/// Cases side by side. More than processors, as each waits now and then, `scaling` nearly always.
const LANES: usize = 5;
/// Where the servers of kernel clients keep their data: in memory, if it can be had. What CI shows does not depend on
/// a disk (a power loss ends a guest, not this machine); the same cases by command are on one.
const IN_MEMORY: &str = "/dev/shm";

/// How everything is built: this program, what it runs, and the tests, so that what they consist of is built once.
const PROFILE: &str = "proof";
/// What this program itself is built without.
const ALL: &str = "sluice-conformance/bench-mds";
/// Simulated worlds.
const SEEDS: &str = "200";

/// What is killed, and what kernels mount.
const SERVERS: [&str; 6] = ["build", "--profile", PROFILE, "--quiet", "-p", "sluice"];
/// All of it, even where a part is run: of fewer packages others would be built.
const TESTS: [&str; 7] = ["test", "--profile", PROFILE, "--quiet", "--workspace", "--features", ALL];

/// A name, and what is done; its output comes when it has ended where steps run side by side.
type Step = (&'static str, fn(&Path, &Options) -> Result<()>);

/// What finds faults soonest, one after the other.
const STEPS: &[Step] =
    &[("fmt", fmt), ("clippy", clippy), ("tidy", |root, _| tidy::run(root)), ("build", build)];
/// What runs what was built: fuzzing keeps one processor busy, tests and servers that were killed wait half of their time.
const TOGETHER: &[Step] =
    &[("test", test), ("fuzz", fuzz), ("seeds", seeds), ("deploy", tools::deploy), ("kills", kills)];
/// What needs more than this tree, and the longest.
const LAST: &[Step] = &[("foundationdb", foundationdb), ("pynfs", pynfs), ("guest", guest)];

/// Runs every step, or the chosen ones, and prints how long each took.
///
/// # Errors
/// The steps that failed, by name.
pub fn run(options: &Options) -> Result<()> {
    let root = root()?;
    lanes::program()?;
    if let Some(unknown) = options.only.iter().find(|name| all().all(|(step, _)| step != name)) {
        bail!("no step is called {unknown:?}; there are {}", names());
    }
    let chosen = |name: &&str| options.only.is_empty() || options.only.iter().any(|chosen| chosen == name);
    for step in STEPS.iter().filter(|(name, _)| chosen(name)) {
        timed(step, &root, options)?;
    }
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let running: Vec<_> = TOGETHER
            .iter()
            .filter(|(name, _)| chosen(name))
            .map(|step| scope.spawn(|| timed(step, &root, options)))
            .collect();
        running.into_iter().map(|step| step.join().unwrap_or_else(|_| bail!("a step died"))).collect()
    });
    let failed: Vec<_> =
        results.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    LAST.iter().filter(|(name, _)| chosen(name)).try_for_each(|step| timed(step, &root, options))
}

fn all() -> impl Iterator<Item = &'static Step> {
    STEPS.iter().chain(TOGETHER).chain(LAST)
}

fn timed((name, step): &Step, root: &Path, options: &Options) -> Result<()> {
    let start = Instant::now();
    println!("== {name}");
    step(root, options).with_context(|| format!("{name} failed"))?;
    println!("== {name}: ok in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn names() -> String {
    all().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// The workspace's root: the parent of this crate's manifest.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("the conformance crate lies in the workspace")?.to_path_buf())
}

fn fmt(root: &Path, _: &Options) -> Result<()> {
    cargo(root, &["fmt", "--all", "--check"])
}

fn clippy(root: &Path, _: &Options) -> Result<()> {
    cargo(
        root,
        &[
            &["clippy", "--profile", PROFILE, "--workspace", "--all-targets", "--features", ALL][..],
            &["--quiet", "--", "-D", "warnings"],
        ]
        .concat(),
    )
}

/// Everything that runs later, so that nothing is built beside what runs.
fn build(root: &Path, _: &Options) -> Result<()> {
    cargo(root, &SERVERS)?;
    cargo(root, &[&TESTS[..], &["--no-run"]].concat())
}

fn test(root: &Path, _: &Options) -> Result<()> {
    let mut command = program();
    command.args(TESTS);
    // Those on FoundationDB are a step of their own.
    for name in FOUNDATIONDB {
        command.env_remove(name);
    }
    apart(root, &mut command)
}

/// What these name makes the tests of the metadata run on FoundationDB (`sluice_kv`'s `Database::fresh`).
const FOUNDATIONDB: [&str; 2] = ["SLUICE_FDB_CLUSTER_FILE", "SLUICE_FDB_LIBRARY"];
/// The folder of `fdbserver`, for tests that start clusters of their own: those with TLS.
const PROGRAMS: &str = "SLUICE_FDB_PROGRAMS";

/// Whether all that these variables name is there for `what`. Where a step is asked for by name, it must be.
fn at_hand(what: &str, variables: &[&str], options: &Options) -> Result<bool> {
    let Some(missing) = variables.iter().find(|name| std::env::var_os(name).is_none()) else {
        return Ok(true);
    };
    let said = format!("NOT RUN: {what}: {missing} is not set (docs/TESTING.md)");
    if !options.only.is_empty() {
        bail!(said);
    }
    println!("{said}");
    Ok(false)
}

/// The store's contract and the tests above it, on a real cluster.
fn foundationdb(root: &Path, options: &Options) -> Result<()> {
    if !at_hand("the store on FoundationDB", &FOUNDATIONDB, options)? {
        return Ok(());
    }
    let tests = |what: &str| some(root, program().args(TESTS).args(what.split(' ')));
    tests("--test contract --test foundation -- --ignored foundation")?;
    tests("--test suite")?;
    tests("--test ops")?;
    // Change attributes are the cluster's versions: no seed decides them.
    tests("--test world -- --skip one_seed_is_one_world")?;
    tests("--bin sluice -- --ignored foundation")?;
    cargo(root, &SERVERS)?;
    tests("--test failover -- --ignored foundation --nocapture")?;
    if !at_hand("FoundationDB with TLS", &[PROGRAMS], options)? {
        return Ok(());
    }
    tests("--test cluster_tls -- --ignored foundation")
}

/// Where a built checkout of pynfs is: it cannot be had from a registry.
const PYNFS: &str = "SLUICE_PYNFS";

/// What others know of the protocol, both minor versions.
fn pynfs(root: &Path, options: &Options) -> Result<()> {
    if !at_hand("pynfs", &[PYNFS], options)? {
        return Ok(());
    }
    cargo(root, &SERVERS)?;
    let suite = std::env::var_os(PYNFS).context("it was there")?;
    let mut command = Command::new(std::env::current_exe().context("this program has no path")?);
    run_command(root, command.args(["pynfs", "--minor", "1,2", "--suite"]).arg(suite))
}

/// Every decoder, with seeded mutations, for a minute.
fn fuzz(root: &Path, _: &Options) -> Result<()> {
    let mut command = program();
    command.args(TESTS).args(["--test", "fuzz"]);
    apart(root, command.env("SLUICE_FUZZ_SECONDS", "60"))
}

/// Simulated worlds in which everything fails.
fn seeds(root: &Path, _: &Options) -> Result<()> {
    let mut command = program();
    command.args(TESTS).args(["--test", "world", "whatever_fails"]).env("SLUICE_CHAOS_SEEDS", SEEDS);
    apart(root, &mut command)
}

/// Servers are killed under load; and the checker finds what it must.
fn kills(root: &Path, _: &Options) -> Result<()> {
    cargo(root, &SERVERS)?;
    let memory = Path::new(IN_MEMORY);
    crate::kills::few(memory.is_dir().then_some(memory))
}

/// Stock kernels mount what was just built.
fn guest(root: &Path, options: &Options) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        if options.no_guests {
            println!("NOT RUN: kernel clients need root (--no-guests was given)");
            return Ok(());
        }
        bail!("NOT RUN: kernel clients need root; run as root, or pass --no-guests to go without them");
    }
    if options.no_guests {
        println!("NOT RUN: kernel clients (--no-guests was given)");
        return Ok(());
    }
    if std::env::var_os("CI").is_some() {
        host::prepare()?;
    }
    // Once, and not for each case.
    host::check(&Kernel::all().filter(|kernel| KERNELS.contains(&kernel.name())).collect::<Vec<_>>())?;
    cargo(root, &SERVERS)?;
    let memory = Path::new(IN_MEMORY);
    lanes::run(root, &cells(), LANES, memory.is_dir().then_some(memory))
}

/// The longest first, so that none is left over at the end; what waits most for clocks, before.
fn cells() -> Vec<Cell> {
    // The table has the quickest first.
    let mut cases: Vec<_> = CASES.iter().rev().filter(|case| case.ci).collect();
    cases.sort_by_key(|case| std::cmp::Reverse(case.most_seconds(ROUNDS)));
    let with =
        |case: &'static Case| case.worth(KERNELS).iter().map(|kernel| Cell::case(case.name, kernel, "4.2"));
    let with_all = cases.into_iter().flat_map(with);
    let (case, kernel, vers) = FIRST;
    let hosts = HOSTS.map(|(command, kernels)| Cell::hosts(command, kernels));
    std::iter::once(Cell::case(case, kernel, vers)).chain(hosts).chain(with_all).collect()
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    run_command(root, program().args(arguments))
}

fn program() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn run_command(root: &Path, command: &mut Command) -> Result<()> {
    let status = command.current_dir(root).status().context("cannot start a step's program")?;
    ended_well(command, status)
}

/// The same of tests that are chosen by their names, of which each program must have one: that nothing bears a name is
/// no success.
fn some(root: &Path, command: &mut Command) -> Result<()> {
    let mut running =
        command.current_dir(root).stdout(Stdio::piped()).spawn().context("cannot start a step's program")?;
    let said = running.stdout.take().context("a step's program has no output")?;
    let empty = copied(said, std::io::stdout());
    ended_well(command, running.wait().context("cannot wait for a step's program")?)?;
    if empty? {
        bail!("`{}` ran a program without any test of these names", words(command));
    }
    Ok(())
}

/// Copies what tests print, as it comes, and tells if a program of theirs ran none.
fn copied(mut from: impl Read, mut to: impl Write) -> std::io::Result<bool> {
    let (mut buffer, mut line, mut empty) = ([0; 4096], Vec::new(), false);
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(empty);
        }
        to.write_all(&buffer[..length])?;
        to.flush()?;
        for &byte in &buffer[..length] {
            if byte == b'\n' {
                empty |= line.starts_with(b"test result: ok. 0 passed;");
                line.clear();
            } else {
                line.push(byte);
            }
        }
    }
}

/// The same beside others: what it prints comes at its end.
fn apart(root: &Path, command: &mut Command) -> Result<()> {
    let ended = command.current_dir(root).output().context("cannot start a step's program")?;
    print!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    ended_well(command, ended.status)
}

fn ended_well(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` ended with {status}", words(command));
    }
    Ok(())
}

fn words(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::copied;

    /// What `cargo test --quiet` prints of two programs.
    const RAN: &str = "\nrunning 2 tests\n..\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\n";
    const IGNORED: &str =
        "\nrunning 1 test\ni\ntest result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 1 filtered out\n";
    const NONE: &str = "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored\n\n";

    #[test]
    fn a_program_without_tests_of_these_names_is_told_from_others() {
        for (programs, empty) in
            [(&[RAN, RAN][..], false), (&[RAN, NONE], true), (&[NONE, RAN], true), (&[IGNORED], true)]
        {
            let printed = programs.concat();
            let mut out = Vec::new();
            assert_eq!(copied(printed.as_bytes(), &mut out).unwrap(), empty, "{printed}");
            assert_eq!(out, printed.as_bytes());
        }
    }
}
