//! The one door: every check of the tree in a fixed order, stopping at the first that fails.

mod tidy;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// What to leave out.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Run only these steps: fmt, clippy, tidy, test
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

type Step = (&'static str, fn(&Path, &Options) -> Result<()>);

const STEPS: &[Step] = &[("fmt", fmt), ("clippy", clippy), ("tidy", |root, _| tidy::run(root)), ("test", test)];

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

fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program).args(arguments).current_dir(root).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` ended with {status}", arguments.join(" "));
    }
    Ok(())
}
