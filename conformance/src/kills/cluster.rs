//! A FoundationDB cluster of three processes on loopback, of which any one may die or hang: each thing is kept twice.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use super::dice::Dice;
use crate::external::fdb::{Programs, cluster_file};
use crate::external::server::free_ports;
use crate::guest::process::Group;

const PROCESSES: u16 = 3;
/// Of a new cluster, until it takes transactions.
const START: Duration = Duration::from_secs(60);
/// How long a process is dead or stopped, in milliseconds: from a moment that nobody notices to one after which the
/// others have done without it for long (they give it up after 4 s of silence, and at once when it dies).
const AWAY: (u64, u64) = (20, 7_000);

/// What happened to one of its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    Killed,
    Stopped,
}

/// Its processes; they end with the value.
#[derive(Debug)]
pub(crate) struct Cluster {
    programs: Programs,
    home: PathBuf,
    first_port: u16,
    processes: Vec<Option<Group>>,
}

impl Cluster {
    /// A new one that keeps everything in `home`.
    ///
    /// # Errors
    /// If it does not take transactions within a minute.
    pub(crate) fn start(programs: Programs, home: PathBuf) -> Result<Self> {
        fs::create_dir_all(&home)?;
        let first_port = free_ports(PROCESSES)?;
        let processes = (0..PROCESSES).map(|_| None).collect();
        let mut cluster = Self { programs, home, first_port, processes };
        // One process is the coordinator until the cluster knows of the others.
        fs::write(cluster_file(&cluster.home), format!("kills:kills@{}\n", cluster.address(0)))?;
        for n in 0..PROCESSES {
            cluster.begin(n)?;
        }
        cluster.until("configure new double ssd")?;
        let all: Vec<_> = (0..PROCESSES).map(|n| cluster.address(n)).collect();
        cluster.until(&format!("coordinators {}", all.join(" ")))?;
        Ok(cluster)
    }

    fn address(&self, n: u16) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.first_port + n)
    }

    /// What a metadata server is told of it.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.args(["--store", "foundationdb", "--fdb-name", "kills"]);
        command.arg("--fdb-cluster-file").arg(cluster_file(&self.home));
        if let Some(library) = &self.programs.library {
            command.arg("--fdb-library").arg(library);
        }
    }

    fn begin(&mut self, n: u16) -> Result<()> {
        let zone = format!("zone{n}");
        let more = ["--locality-zoneid", &zone, "--locality-machineid", &zone];
        let process = self.programs.serve(&self.home, (&zone, &self.address(n)), &more)?;
        *self.slot(n)? = Some(process);
        Ok(())
    }

    fn slot(&mut self, n: u16) -> Result<&mut Option<Group>> {
        self.processes.get_mut(usize::from(n)).context("there are three processes")
    }

    fn until(&self, what: &str) -> Result<()> {
        self.programs.order(&self.home, what, &[] as &[&str], START)
    }

    /// One process dies or hangs for a while; it is back when this ends.
    ///
    /// # Errors
    /// If one had ended by itself.
    pub(crate) async fn strike(&mut self, dice: &mut Dice) -> Result<Blow> {
        let n = u16::try_from(dice.below(PROCESSES.into()))?;
        let away = Duration::from_millis(AWAY.0 + dice.below(AWAY.1 - AWAY.0));
        let blow = if dice.below(2) == 0 { Blow::Killed } else { Blow::Stopped };
        let slot = self.slot(n)?;
        let mut process = slot.take().context("it is not running")?;
        if let Some(status) = process.wait_until(Instant::now())? {
            bail!("a process of the cluster had ended with {status}");
        }
        match blow {
            Blow::Killed => {
                process.kill();
                tokio::time::sleep(away).await;
                self.begin(n)?;
            }
            Blow::Stopped => {
                process.signal(Signal::SIGSTOP);
                tokio::time::sleep(away).await;
                process.signal(Signal::SIGCONT);
                *slot = Some(process);
            }
        }
        Ok(blow)
    }
}
