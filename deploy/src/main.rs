//! `sluice`: the servers and the commands around them.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a command-line program at the outer edge: it talks to a terminal and supervises in real time"
)]

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
mod key;
mod layouts;
mod logs;
mod mds;
mod meta;
mod metrics;
mod ports;
mod reach;
mod status;
mod stop;
mod store;
mod supervised;
mod top;
mod up;
mod why;

use std::process::ExitCode;

use anyhow::{Context, Result};
use cli::{Cli, Command};

/// Buffers of 1 MiB come and go with every READ and WRITE: the C library's allocator gives each back to the
/// kernel and faults it in again, which costs more than the copy.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let outcome = config::parse(std::env::args_os().collect()).and_then(run);
    sluice_kv::end_client();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
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
            Command::Meta { command } => meta::run(command).await,
            Command::Export { command } => exports::run(command).await,
            Command::Completions { shell } => generate::completions(shell),
            Command::Man { dir } => generate::man(&dir),
            Command::Config { command: cli::Config::Check { file } } => config::check(&file),
            Command::Key { command } => key::run(&command),
        }
    })
}
