//! `sluice`: the servers and the commands around them.
#![allow(
    clippy::disallowed_methods,
    reason = "a command-line program at the outer edge: it supervises in real time"
)]

#[macro_use]
mod out;
mod owner;

mod accounts;
mod certificates;
mod cli;
mod clients;
mod config;
mod descriptors;
mod doctor;
mod ds;
mod durability;
mod exports;
mod generate;
mod installation;
mod kerberos;
mod key;
mod keys;
mod layouts;
mod locks;
mod logs;
mod mds;
mod memory;
mod meta;
mod metrics;
mod mirrors;
mod ports;
mod quotas;
mod reach;
mod resolver;
mod servers;
mod status;
mod stop;
mod store;
mod supervised;
mod top;
mod up;
mod why;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use cli::{Cli, Command};

/// Of this program: the release, and the commit if it is known (build.rs).
const VERSION: &str = env!("SLUICE_VERSION");

#[global_allocator]
static ALLOCATOR: sluice_env::Allocator = sluice_env::Allocator;

/// How long a thread for what blocks waits for more. Each piece of work wakes another one of those that wait: if they waited
/// for seconds, a device that was slow for a moment would leave a hundred of them, with their memory, for as long as there is
/// a little to do.
const SPARE_THREAD: Duration = Duration::from_millis(250);

/// How long the reason for which a server ends waits for what its parts still say when they are dropped, such as a store
/// whose device takes no more: the reason comes last, where people look.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let outcome = config::parse(std::env::args_os().collect()).and_then(run);
    sluice_kv::end_client();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            out::complain(format_args!("{}", out::in_words(&error)));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_keep_alive(SPARE_THREAD);
    if matches!(cli.command, Command::Ds(_)) {
        builder.worker_threads(ds::callers() + 1);
    }
    let runtime = builder.build().context("cannot start the runtime")?;
    if matches!(cli.command, Command::Up(_) | Command::Mds(_) | Command::Ds(_)) {
        out::outlives_readers();
    }
    let outcome = runtime.block_on(async {
        match cli.command {
            Command::Up(options) => up::run(options).await,
            Command::Mds(options) => mds::run(options).await,
            Command::Ds(options) => ds::run(options).await,
            Command::Status(options) => status::run(options).await,
            Command::Top(options) => top::run(options).await,
            Command::Policy(options) => status::policy(options).await,
            Command::Why(options) => why::run(options).await,
            Command::Doctor(options) => doctor::run(options).await,
            Command::Client { command } => clients::run(command).await,
            Command::Layout { command } => layouts::run(command).await,
            Command::Lock { command } => locks::run(command).await,
            Command::Mirror { command } => mirrors::run(command).await,
            Command::Meta { command } => meta::run(command).await,
            Command::Export { command } => exports::run(command).await,
            Command::Quota { command } => quotas::run(command).await,
            Command::Completions { shell } => generate::completions(shell),
            Command::Man { dir } => generate::man(&dir),
            Command::Config { command: cli::Config::Check { file, json } } => config::check(&file, json),
            Command::Key { command } => key::run(command).await,
        }
    });
    // A server that was asked to stop has finished what it had begun. A thread that reads standard input, to hear when
    // the parent ends, would keep the process until then.
    match outcome {
        Ok(()) => runtime.shutdown_background(),
        Err(_) => runtime.shutdown_timeout(LAST_WORDS),
    }
    outcome
}
