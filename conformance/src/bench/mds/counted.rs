//! A metadata server in a process of its own that counts its allocations: the same code on the same kind of store as in
//! `sluice mds`, with this program's counting allocator in place of the shipped one. Small files are inline, so that it
//! needs no data server. Under valgrind its instructions are counted as well.

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

/// What the server has done since it was last asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) allocations: u64,
    /// Of the whole process, its libraries and threads; not of the kernel.
    pub(super) instructions: Option<u64>,
}

/// Such a server, seen from the benchmark.
#[derive(Debug)]
pub(super) struct Counted {
    process: Group,
    output: BufReader<std::process::ChildStdout>,
    pub(super) address: SocketAddr,
    /// Where valgrind writes what it counted, under a name that ends with the number of the part.
    profile: Option<PathBuf>,
    /// How often it was asked, each of which ends a part.
    asked: u32,
    allocations: u64,
    // After the process that writes there.
    _home: TempDir,
}

impl Counted {
    /// `instructions`: valgrind counts them.
    pub(super) fn start(below: &Path, instructions: bool) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("sluice-bench-counted-").tempdir_in(below)?;
        let program = std::env::current_exe()?;
        let profile = instructions.then(|| home.path().join("profile"));
        let mut command = match &profile {
            None => Command::new(program),
            Some(profile) => under_valgrind(&program, profile),
        };
        command.arg("counted-mds").arg("--data-dir").arg(home.path().join("store"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Group::spawn(command).with_context(|| match instructions {
            true => "instructions are counted by valgrind: apt-get install valgrind",
            false => "the server that counts its allocations",
        })?;
        let mut output = BufReader::new(process.child().stdout.take().context("no output")?);
        let port = number(&mut output).context("the counted server does not say its port")?;
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), u16::try_from(port)?);
        Ok(Self { process, output, address, profile, asked: 0, allocations: 0, _home: home })
    }

    pub(super) fn done(&mut self) -> Result<Done> {
        let input = self.process.child().stdin.as_mut().context("no input")?;
        input.write_all(b"\n")?;
        let allocations = number(&mut self.output)?;
        let before = std::mem::replace(&mut self.allocations, allocations);
        self.asked += 1;
        let part = self.profile.as_ref().map(|profile| profile.with_extension(self.asked.to_string()));
        let read = |part: PathBuf| {
            let profile = std::fs::read_to_string(&part);
            total(&profile.with_context(|| format!("no profile of valgrind's at {}", part.display()))?)
        };
        let instructions = part.map(read).transpose()?;
        Ok(Done { allocations: allocations - before, instructions })
    }
}

/// Each call of [`allocations`] begins a new part of the profile.
fn under_valgrind(program: &Path, profile: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args([
        "--quiet",
        "--tool=callgrind",
        "--dump-before=sluice_conformance::allocations::allocations",
    ]);
    command.arg(format!("--callgrind-out-file={}", profile.display()));
    command.arg(program);
    command
}

/// Instructions in a part of a profile.
fn total(profile: &str) -> Result<u64> {
    let line = profile.lines().find_map(|line| line.strip_prefix("summary: "));
    line.context("valgrind's profile has no sum")?.trim().parse().context("valgrind's sum is not a number")
}

fn number(output: &mut impl BufRead) -> Result<u64> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    line.trim().parse().context("not a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_says_its_sum() {
        assert_eq!(
            total("version: 1\nevents: Ir\nsummary: 120690684\n\nfn=(1) main\n31 279\n").unwrap(),
            120_690_684
        );
        assert!(total("version: 1\nevents: Ir\n").is_err());
        assert!(total("summary: many\n").is_err());
    }
}
