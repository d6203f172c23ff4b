//! The one door: every check of the tree in a fixed order, stopping at the first that fails.

mod lanes;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::suite::cases::CASES;
use lanes::Cell;

/// What to leave out.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Run only these steps: fmt, clippy, tidy, test, fuzz, guest
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Pass without kernel clients where they cannot run (they need root)
    #[arg(long)]
    no_guests: bool,
}

/// The kernels that run every case marked `ci`, over 4.2. The full matrix is one command (docs/TESTING.md).
const KERNELS: &[&str] = &["uml6.1", "uml7.2"];
/// What runs besides, and first: who cannot even do this need not wait for the rest.
const FIRST: &[Cell] = &[Cell { kernel: "uml7.2", vers: "4.1", case: "smoke" }];
/// Cases side by side. More than processors, as each mostly waits.
const LANES: usize = 4;

type Step = (&'static str, fn(&Path, &Options) -> Result<()>);

const STEPS: &[Step] = &[
    ("fmt", fmt),
    ("clippy", clippy),
    ("tidy", |root, _| tidy::run(root)),
    ("test", test),
    ("fuzz", fuzz),
    ("guest", guest),
];

/// Runs every step, or the chosen ones, and prints how long each took.
///
/// # Errors
/// The first step that failed, by name.
pub fn run(options: &Options) -> Result<()> {
    let root = root()?;
    if let Some(unknown) = options.only.iter().find(|name| STEPS.iter().all(|(step, _)| step != name)) {
        bail!("no step is called {unknown:?}; there are {}", names());
    }
    for (name, step) in STEPS {
        if !options.only.is_empty() && !options.only.iter().any(|chosen| chosen == name) {
            continue;
        }
        let start = Instant::now();
        println!("== {name}");
        step(&root, options).with_context(|| format!("{name} failed"))?;
        println!("== {name}: ok in {:.0} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

fn names() -> String {
    STEPS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
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
    cargo(root, &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])
}

fn test(root: &Path, _: &Options) -> Result<()> {
    cargo(root, &["test", "--workspace", "--quiet"])
}

/// Every decoder, with seeded mutations, for a minute.
fn fuzz(root: &Path, _: &Options) -> Result<()> {
    let mut command = program();
    command.args(["test", "--release", "--quiet", "-p", "sluice-xdr", "--test", "fuzz"]);
    run_command(root, command.env("SLUICE_FUZZ_SECONDS", "60"))
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
    cargo(root, &["build", "--release", "--quiet", "-p", "sluice"])?;
    lanes::run(root, &cells(), LANES)
}

/// The longest first, so that none is left over at the end.
fn cells() -> Vec<Cell> {
    let mut cases: Vec<_> = CASES.iter().filter(|case| case.ci).collect();
    cases.sort_by_key(|case| std::cmp::Reverse(case.seconds));
    let with_all = cases
        .into_iter()
        .flat_map(|case| KERNELS.iter().map(|kernel| Cell { kernel, vers: "4.2", case: case.name }));
    FIRST.iter().copied().chain(with_all).collect()
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    run_command(root, program().args(arguments))
}

fn program() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn run_command(root: &Path, command: &mut Command) -> Result<()> {
    let status = command.current_dir(root).status().context("cannot start a step's program")?;
    if !status.success() {
        let words: Vec<_> = [command.get_program()]
            .into_iter()
            .chain(command.get_args())
            .map(|word| word.to_string_lossy())
            .collect();
        bail!("`{}` ended with {status}", words.join(" "));
    }
    Ok(())
}
