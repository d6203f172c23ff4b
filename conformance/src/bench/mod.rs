//! `bench`: what one installation on this host does, in one table.
//!
//! | module | what |
//! | --- | --- |
//! | `disk` | an ext4 in a file, mounted as wanted |
//! | `host` | `sluice up` on free ports, its processes, their memory and CPU |
//! | `load` | workers that repeat an operation, rates and latencies |
//! | `data` | READ and WRITE at each data server, directly |
//! | `names` | creates, stats and removes by concurrent clients |
//! | `costs` | what each operation costs the metadata store: transactions, reads, conflicts |
//! | `small` | small files, from open to close, and what one costs the servers |
//! | `reread` | the same files read by several clients, twice |
//! | `directory` | one directory of many files |
//! | `client` | `bench-client`: a kernel's mount with cold caches, beside that kernel's own server |
//! | `ds` | `bench-ds`: one data server beside its peers |
//! | `mds` | `bench-mds`: the metadata server beside its store and its peers (feature `bench-mds`) |
//! | `table` | the rows, printed and as JSON |

pub mod client;
mod costs;
mod data;
mod directory;
mod disk;
pub mod ds;
pub(crate) mod host;
mod load;
#[cfg(feature = "bench-mds")]
pub mod mds;
mod names;
mod reread;
mod small;
mod table;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use sluice_env::Env;
use sluice_rpc::{Tcp, Transport};
use tokio::signal::unix::{SignalKind, signal};

use crate::client::{Client, Identity};
use host::{Installation, Usage};
use table::{Row, Table};

/// The kernel that test clients say they are: one that gets stripes.
const KERNEL: &str = "6.18.3";

/// Options of `bench`.
#[derive(Args, Debug)]
pub struct Options {
    /// The program to measure [default: beside this one, else target/release/sluice]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// Where a new installation goes and is removed again; its file system counts [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Data servers
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    data_servers: u16,
    /// Shorter rounds, 20,000 instead of 200,000 files
    #[arg(long)]
    quick: bool,
    /// Where the metadata is; a cluster is the one of the tests (docs/TESTING.md)
    #[arg(long, value_enum, value_name = "KIND", default_value = "embedded")]
    store: Store,
    /// Only these parts
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "data,names,costs,small,reread,directory"
    )]
    only: Vec<Part>,
    /// Write the table there too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What keeps the metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Store {
    #[default]
    Embedded,
    Foundationdb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Data,
    Names,
    Costs,
    Small,
    Reread,
    Directory,
}

/// How long and how much.
#[derive(Clone, Copy, Debug)]
struct Scale {
    rounds: u32,
    round: Duration,
    directory: u64,
    reread: u64,
}

impl Scale {
    const FULL: Self = Self { rounds: 3, round: Duration::from_secs(3), directory: 200_000, reread: 20_000 };
    const QUICK: Self =
        Self { rounds: 3, round: Duration::from_millis(500), directory: 20_000, reread: 2_000 };
}

/// The servers under test and how to reach them.
#[derive(Clone, Debug)]
struct Target {
    env: Env,
    transport: Arc<dyn Transport>,
    mds: SocketAddr,
    data_servers: u16,
    scale: Scale,
}

impl Target {
    async fn client(&self, name: &str, slots: u32) -> Result<Client> {
        let identity = Identity { slots, ..Identity::new(name, KERNEL) };
        let client = Client::connect(self.env.clone(), Arc::clone(&self.transport), self.mds, identity);
        client.await.with_context(|| format!("test client {name}"))
    }
}

/// Runs `bench`: success when everything could be measured and one directory of many files costs no more
/// at its end than at its beginning.
///
/// # Errors
/// If the servers cannot be started or an operation fails.
pub fn main(options: &Options) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let scale = if options.quick { Scale::QUICK } else { Scale::FULL };
    let program = host::program(options.sluice.as_deref())?;
    let mut installation =
        Installation::start(&program, options.data_dir.as_deref(), options.data_servers, options.store)?;
    let target = Target {
        env: Env::system(),
        transport: Arc::new(Tcp),
        mds: installation.mds(),
        data_servers: options.data_servers,
        scale,
    };
    let mut table = Table::new(installation.describe()?);
    let measured = runtime.block_on(async {
        tokio::select! {
            measured = measure(options, &target, &installation, &mut table) => measured,
            why = interrupted() => Err(why),
        }
    });
    if let Err(error) = &measured {
        table.fail(format!("{error:#}; {}", installation.last_words()));
    }
    for usage in installation.usage()? {
        table.rows(usage_rows(&usage));
    }
    table.rows(usage_rows(&Usage::own()?));
    installation.stop()?;
    for peer in host::missing_peers() {
        table.note(format!("{peer} is not on this machine: no comparison with it"));
    }
    table.note(
        "client and servers share this machine and its page cache: the figures are indicative".to_owned(),
    );
    print!("{table}");
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&table.json())?;
        std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(if table.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Completes when this process shall end: the servers must not outlive it.
async fn interrupted() -> anyhow::Error {
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = terminate => anyhow!("terminated"),
        _ = tokio::signal::ctrl_c() => anyhow!("interrupted"),
    }
}

async fn measure(
    options: &Options,
    target: &Target,
    installation: &Installation,
    table: &mut Table,
) -> Result<()> {
    // Every part is tried: one that fails shall not hide the others.
    let mut failed = None;
    for part in [Part::Names, Part::Costs, Part::Small, Part::Reread, Part::Directory, Part::Data] {
        if !options.only.contains(&part) {
            continue;
        }
        let done = match part {
            Part::Names => names::measure(target, table).await,
            Part::Costs => costs::measure(target, installation, table).await,
            Part::Small => small::measure(target, installation, table).await,
            Part::Reread => reread::measure(target, installation, table).await,
            Part::Directory => directory::measure(target, installation, table).await,
            Part::Data => data::measure(target, table).await,
        };
        if let Err(error) = done {
            failed.get_or_insert(error);
        }
    }
    failed.map_or(Ok(()), Err)
}

fn usage_rows(usage: &Usage) -> Vec<Row> {
    let mib = usage.peak_bytes as f64 / f64::from(1 << 20);
    vec![
        Row::new("peak memory (VmHWM)", &usage.name, mib, "MiB"),
        Row::new("CPU, user and system", &usage.name, usage.cpu_seconds, "s"),
    ]
}
