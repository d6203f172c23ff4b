//! A metadata server and data servers as processes on loopback, each of which can be killed and started again.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sluice_env::Env;
use sluice_rpc::{ClusterKey, Tcp, Transport};
use tempfile::TempDir;

use super::cluster::Cluster;
use crate::bench::host::Process;
use crate::external::fdb::Programs;
use crate::external::server::free_ports;
use crate::guest::process::Group;

pub(crate) const DATA_SERVERS: u16 = 3;
const START: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);
/// Also the longest that grace lasts: it ends early when every client has reclaimed.
const LEASE: &str = "30";
/// The least that a server takes by itself.
const METADATA_CACHE_MIB: &str = "320";

/// The installation; it ends with the value.
#[derive(Debug)]
pub(crate) struct Servers {
    program: PathBuf,
    first_port: u16,
    mds: Option<Group>,
    data: Vec<Option<Group>>,
    /// Of the metadata, if they are on FoundationDB.
    pub(crate) cluster: Option<Cluster>,
    // After the processes that write there.
    home: TempDir,
}

impl Servers {
    /// A new installation; it serves. With `programs` its metadata are on a FoundationDB cluster of its own.
    pub(crate) async fn start(
        program: &Path,
        below: Option<&Path>,
        programs: Option<Programs>,
    ) -> Result<Self> {
        let below = below.map_or_else(std::env::temp_dir, Path::to_owned);
        fs::create_dir_all(&below).with_context(|| format!("cannot make {}", below.display()))?;
        let home = tempfile::Builder::new().prefix("sluice-kills-").tempdir_in(below)?;
        ClusterKey::generate(&Env::system()).write(&home.path().join("cluster.key"))?;
        let cluster = programs
            .map(|programs| Cluster::start(programs, home.path().join("foundationdb")))
            .transpose()?;
        let mut servers = Self {
            program: program.to_owned(),
            first_port: free_ports(DATA_SERVERS + 1)?,
            mds: None,
            data: (0..DATA_SERVERS).map(|_| None).collect(),
            cluster,
            home,
        };
        servers.start_mds()?;
        servers.listens(servers.mds_address()).await?;
        for n in 0..DATA_SERVERS {
            servers.start_data_server(n, true)?;
            servers.listens(servers.address(n + 1)).await?;
        }
        Ok(servers)
    }

    /// What runs, by name, and where it keeps its data.
    pub(crate) fn running(&self) -> Vec<(String, Process, PathBuf)> {
        let data = self.data.iter().enumerate().map(|(n, process)| (format!("ds{n}"), process.as_ref()));
        let all = std::iter::once(("mds".to_owned(), self.mds.as_ref())).chain(data);
        all.filter_map(|(name, process)| {
            let home = self.home.path().join(&name);
            Some((name, Process(process?.id()), home))
        })
        .collect()
    }

    fn address(&self, n: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.first_port + n)
    }

    pub(crate) fn mds_address(&self) -> SocketAddr {
        self.address(0)
    }

    pub(crate) fn data_address(&self, n: u16) -> SocketAddr {
        self.address(n + 1)
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("log")
    }

    fn spawn(&self, mut command: Command) -> Result<Group> {
        command.arg("--key").arg(self.home.path().join("cluster.key"));
        let log: File = OpenOptions::new().create(true).append(true).open(self.log())?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Group::spawn(command)
    }

    pub(crate) fn start_mds(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("mds").arg("--data-dir").arg(self.home.path().join("mds"));
        command.args(["--lease", LEASE, "--listen", &self.mds_address().to_string()]);
        // Not a share of this machine: `soak` must see the caches full.
        command.args(["--metadata-cache", METADATA_CACHE_MIB]);
        if let Some(cluster) = &self.cluster {
            cluster.tell(&mut command);
        }
        self.mds = Some(self.spawn(command)?);
        Ok(())
    }

    pub(crate) fn start_data_server(&mut self, n: u16, new: bool) -> Result<()> {
        let dir = self.home.path().join(format!("ds{n}"));
        fs::create_dir_all(&dir)?;
        let mut command = Command::new(&self.program);
        command.arg("ds").arg("--data-dir").arg(dir);
        command.args(["--mds", &self.mds_address().to_string()]);
        command.args(["--listen", &self.data_address(n).to_string()]);
        if new {
            command.arg("--new");
        }
        let process = self.spawn(command)?;
        if let Some(slot) = self.data.get_mut(usize::from(n)) {
            *slot = Some(process);
        }
        Ok(())
    }

    /// kill -9. A server that had ended by itself is an error.
    pub(crate) fn kill_mds(&mut self) -> Result<()> {
        kill(self.mds.take(), "the metadata server")
    }

    pub(crate) fn kill_data_server(&mut self, n: u16) -> Result<()> {
        kill(self.data.get_mut(usize::from(n)).and_then(Option::take), "a data server")
    }

    /// Waits until somebody accepts connections there.
    pub(crate) async fn listens(&self, address: SocketAddr) -> Result<()> {
        let limit = Instant::now() + START;
        while Arc::new(Tcp).connect(address).await.is_err() {
            if Instant::now() > limit {
                bail!("nobody listens at {address} after {} s", START.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// `sluice meta check` while it serves; asked again while the server cannot be reached yet.
    pub(crate) fn check(&self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["meta", "check", "--mds", &self.mds_address().to_string()]);
        command.arg("--key").arg(self.home.path().join("cluster.key"));
        let output = command.stdin(Stdio::null()).output().context("sluice meta check")?;
        if !output.status.success() {
            let (said, complained) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            bail!("sluice meta check: {said}{complained}");
        }
        Ok(())
    }

    /// The end of what the servers said.
    pub(crate) fn last_words(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().rev().take(8).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

fn kill(process: Option<Group>, what: &str) -> Result<()> {
    let mut process = process.with_context(|| format!("{what} is not running"))?;
    if let Some(status) = process.wait_until(Instant::now())? {
        bail!("{what} had ended with {status} before it was killed");
    }
    process.kill();
    Ok(())
}
