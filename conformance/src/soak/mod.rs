//! `soak`: real servers on loopback under a mixed load for as long as is wanted. Every promise is compared again and again, and
//! what the servers hold of the machine must stop growing: the load keeps a bounded number of files, clients and opens.
//!
//! | module | what |
//! | --- | --- |
//! | `visitors` | clients that come, use files in every way, and leave, or vanish |
//! | `growth` | samples, the rule, the table |
//!
//! The other workers are those of `kills`.

mod growth;
mod visitors;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::external::server::program;
use crate::kills::dice::Dice;
use crate::kills::herd::Herd;
use crate::kills::servers::Servers;
use crate::kills::{data, names};
use growth::Growth;

/// Everything that a worker does at once is answered sooner.
const PATIENCE: Duration = Duration::from_secs(120);
/// From one comparison of everything to the next.
const COMPARE: Duration = Duration::from_secs(60);

/// Options of `soak`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Seconds from one sample to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    every: u64,
    /// Steps a second of all workers together, at most: an even load beside other work [default: as many as can be]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Of the decisions of the load
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// The program to test [default: the one beside this one]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// Where its data is kept meanwhile
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Write every sample there, one line each: seconds, server, MiB in memory, descriptors, threads, MiB of its store
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

/// Runs `soak`: success when nothing grows and every promise is kept.
///
/// # Errors
/// A broken promise, or whatever keeps the test from being made.
pub fn main(options: &Options) -> Result<ExitCode> {
    let program = program(options.sluice.as_deref())?;
    let runtime = tokio::runtime::Runtime::new().context("tokio")?;
    runtime.block_on(async {
        let mut servers = Servers::start(&program, options.data_dir.as_deref(), None).await?;
        let soaked = soak(&mut servers, options).await;
        let growth = soaked.with_context(|| format!("the servers said: {}", servers.last_words()))?;
        print!("{growth}");
        Ok(if growth.grew() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    })
}

async fn soak(servers: &mut Servers, options: &Options) -> Result<Growth> {
    let mut dice = Dice::new(options.seed);
    let mut herd = Herd::new(PATIENCE);
    if let Some(rate) = options.rate {
        herd.at_most(rate);
    }
    let hosts = names::plant(servers, &mut herd, &mut dice, false).await?;
    let lives = data::begin(servers, &mut herd, &mut dice).await?;
    let visits = visitors::invite(servers, &mut herd, &mut dice)?;
    let mut growth = Growth::default();
    let begun = Instant::now();
    let (end, mut compared) = (Duration::from_secs(options.minutes * 60), 0);
    let mut next_look = Duration::from_secs(options.every);
    let mut next_comparison = COMPARE;
    while begun.elapsed() < end {
        tokio::time::sleep(next_look.min(next_comparison).saturating_sub(begun.elapsed())).await;
        if begun.elapsed() >= next_look {
            growth.look(servers, begun.elapsed())?;
            next_look += Duration::from_secs(options.every);
        }
        if begun.elapsed() >= next_comparison {
            compared += 1;
            herd.compare(compared).await?;
            herd.go_on();
            next_comparison = begun.elapsed() + COMPARE;
            eprintln!(
                "{} s: {} requests, {} stable blocks, {} visits, {compared} comparisons; {}",
                begun.elapsed().as_secs(),
                names::told(&hosts).0,
                lives.acknowledged(),
                visits.count(),
                growth.now(),
            );
        }
    }
    herd.compare(compared + 1).await?;
    herd.go_on();
    herd.end().await?;
    servers.check().context("at the end")?;
    if let Some(file) = &options.samples {
        growth.write(file)?;
    }
    println!(
        "{} minutes: {} requests about names, {} blocks acknowledged as stable, {} visits; all that was promised is there",
        options.minutes,
        names::told(&hosts).0,
        lives.acknowledged(),
        visits.count(),
    );
    Ok(growth)
}
