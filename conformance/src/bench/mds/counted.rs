//! A metadata server in a process of its own that counts its allocations: the same code on the same kind of store as in
//! `sluice mds`, with this program's counting allocator in place of the shipped one. Small files are inline, so that it
//! needs no data server.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use sluice_env::Env;
use sluice_kv::{Database, EmbeddedOptions};
use sluice_mds::{Config, Mds};
use sluice_namespace::LayoutPolicy;
use sluice_rpc::{Limits, Server, Tcp, Transport};
use tempfile::TempDir;

use super::INLINE;
use crate::allocations::allocations;
use crate::guest::process::Group;

/// Options of the hidden command.
#[derive(Args, Debug)]
pub struct Options {
    #[arg(long)]
    data_dir: PathBuf,
}

/// Serves until standard input ends. The first line of its output is its port; for every line of input it says how
/// many allocations there were so far.
///
/// # Errors
/// If it cannot start.
pub fn serve(options: &Options) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let listener = runtime.block_on(listen(&options.data_dir))?;
    println!("{}", listener.port());
    for line in std::io::stdin().lines() {
        line?;
        println!("{}", allocations());
        std::io::stdout().flush()?;
    }
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

async fn listen(data_dir: &Path) -> Result<SocketAddr> {
    let env = Env::system();
    let transport: Arc<dyn Transport> = Arc::new(Tcp);
    let db = Database::open_embedded(env.clone(), data_dir, EmbeddedOptions::default())?;
    let policy = LayoutPolicy::parse(&format!("default,inline={INLINE}")).context("the policy")?;
    let config = Config { policy, ..Config::default() };
    let mds = Mds::start(env.clone(), Arc::clone(&transport), db, config).await?;
    let server = Arc::new(Server::new(env.clone(), transport, Limits::default(), mds.plain_programs()));
    let listener = server.listen(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).await?;
    let address = listener.local_addr();
    env.spawn.spawn(Box::pin(server.serve(listener)));
    Ok(address)
}

/// Such a server, seen from the benchmark.
#[derive(Debug)]
pub(super) struct Counted {
    process: Group,
    output: BufReader<std::process::ChildStdout>,
    pub(super) address: SocketAddr,
    // After the process that writes there.
    _home: TempDir,
}

impl Counted {
    pub(super) fn start(below: &Path) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("sluice-bench-counted-").tempdir_in(below)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("counted-mds").arg("--data-dir").arg(home.path().join("store"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Group::spawn(command)?;
        let mut output = BufReader::new(process.child().stdout.take().context("no output")?);
        let port = number(&mut output).context("the counted server does not say its port")?;
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), u16::try_from(port)?);
        Ok(Self { process, output, address, _home: home })
    }

    pub(super) fn allocations(&mut self) -> Result<u64> {
        let input = self.process.child().stdin.as_mut().context("no input")?;
        input.write_all(b"\n")?;
        number(&mut self.output)
    }
}

fn number(output: &mut impl BufRead) -> Result<u64> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    line.trim().parse().context("not a number")
}
