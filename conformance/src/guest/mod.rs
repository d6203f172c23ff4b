//! Stock kernels as clients: `guest setup`, `guest fetch`, `guest run`, `guest lab`.
//!
//! A guest sees the host's file tree under an overlay (reads pass, writes stay in the guest), so every program of
//! the host is there. It is no security boundary.

mod apt;
pub mod catalogue;
pub mod command;
pub mod fetch;
pub mod host;
mod initramfs;
pub mod job;
pub mod lab;
pub mod process;
mod qemu;
mod uml;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use catalogue::Kernel;
use fetch::Cache;
use job::{Job, Status};
use lab::Lab;

/// What to do with guests.
#[derive(Debug, Subcommand)]
pub enum Guest {
    /// Install the packages of this machine that guests need
    Setup,
    /// Download and prepare kernels (kept in the cache; not needed before `run`)
    Fetch {
        /// uml6.1 uml6.12 uml7.2 (user-mode-linux), 6.1 6.12 6.18 7.2 (qemu) [default: all]
        kernels: Vec<Kernel>,
    },
    /// Run a bash script in a guest and exit with its status (124: time-out, 125: the guest died)
    Run(Run),
    /// Run a command on a private network: servers 10.77.0.1-9, the host 10.77.0.254, taps kc1..kcN
    Lab {
        /// How many taps
        #[arg(short, default_value_t = 4, value_parser = clap::value_parser!(u8).range(0..=200))]
        n: u8,
        /// The command
        #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

/// Options of `guest run`.
#[derive(Args, Debug)]
pub struct Run {
    /// Number of the guest: its tap (kcN), address (10.77.0.10+N) and host name
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=200))]
    number: u8,
    /// Folder of the host, writable in the guest as /share
    #[arg(long, value_name = "DIR")]
    share: Option<PathBuf>,
    /// Environment variable of the script
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Hard limit in seconds
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// Memory in MiB
    #[arg(long, default_value_t = 768)]
    mem: u32,
    /// Keep the kernel's console in this file
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    /// uml6.1 uml6.12 uml7.2 6.1 6.12 6.18 7.2
    kernel: Kernel,
    /// A bash script
    script: PathBuf,
    /// Arguments of the script
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs a `guest` command.
///
/// # Errors
/// If the host lacks something; the script's own failure is an exit code.
pub fn main(command: &Guest) -> Result<ExitCode> {
    match command {
        Guest::Setup => host::install().map(|()| ExitCode::SUCCESS),
        Guest::Fetch { kernels } => fetch_all(kernels),
        Guest::Run(options) => {
            host::check(&[options.kernel])?;
            if lab::inside() {
                return run(options);
            }
            // The lab has no way out: what must be downloaded is downloaded before.
            Cache::open()?.ready(&[options.kernel])?;
            lab::enter()
        }
        Guest::Lab { n, command } => {
            host::check(&[])?;
            if lab::inside() { in_lab(*n, command) } else { lab::enter() }
        }
    }
}

fn fetch_all(kernels: &[Kernel]) -> Result<ExitCode> {
    let cache = Cache::open()?;
    let all: Vec<_> = Kernel::all().collect();
    for prepared in cache.ready(if kernels.is_empty() { &all } else { kernels })? {
        println!("{:8} {}", prepared.kernel, prepared.image.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn in_lab(taps: u8, command: &[String]) -> Result<ExitCode> {
    let _lab = Lab::new(taps)?;
    let (program, arguments) = command.split_first().context("a command is required")?;
    // SLUICE_LAB stays set: a `guest run` below uses this network.
    let status = Command::new(program)
        .args(arguments)
        .env("SLUICE_LAB", "2")
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    Ok(code(status.code().unwrap_or(1)))
}

fn run(options: &Run) -> Result<ExitCode> {
    let cache = Cache::open()?;
    // Inside `guest lab` the taps are there already.
    if std::env::var_os("SLUICE_LAB").is_some_and(|value| value == "1") {
        Lab::new(options.number)?;
    }
    let mut job = Job::new(cache.kernel(options.kernel)?, options.number, &options.script)
        .args(options.args.clone())
        .memory(options.mem)
        .timeout(Duration::from_secs(options.timeout));
    for pair in &options.env {
        let (name, value) =
            pair.split_once('=').with_context(|| format!("--env {pair}: NAME=VALUE is wanted"))?;
        job = job.env(name, value);
    }
    if let Some(share) = &options.share {
        job = job.share(share);
    }
    if let Some(console) = &options.console {
        job = job.console(console);
    }
    let print = |bytes: &[u8]| {
        let mut out = std::io::stdout().lock();
        // A reader that has gone away is no reason to stop the guest.
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    };
    let outcome = job.run(&cache, Box::new(print))?;
    if !matches!(outcome.status, Status::Exited(_)) {
        eprintln!(
            "{}: {:?} after {:.1} s; the console's end:\n{}",
            options.kernel,
            outcome.status,
            outcome.elapsed.as_secs_f64(),
            outcome.console_tail()
        );
    }
    Ok(code(outcome.status.code()))
}

fn code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
