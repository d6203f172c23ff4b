//! The servers side by side: a whole installation as it is shipped, and NFS-Ganesha with its VFS module on an ext4 where
//! every change is durable when it is answered, and on one where it is not.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use sluice_env::Env;
use sluice_xdr::nfs4::nfs_fh4;
use tempfile::TempDir;

use super::INLINE;
use super::work::{IN_FLIGHT, Worker};
use crate::bench::disk::Disk;
use crate::bench::ds::ganesha::{Ganesha, PSEUDO, Protocol};
use crate::bench::ds::peers::free_port;
use crate::bench::host::{Installation, Process};
use crate::bench::load::{self, AsyncOperation, Until};
use crate::bench::{KERNEL, Store};
use crate::client::{Client, How, Identity};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Name {
    #[value(skip)]
    Sluice,
    /// On ext4 mounted `sync,dirsync`
    Ganesha,
    /// On ext4 mounted plainly: what it answers is not durable yet
    GaneshaPlain,
    /// The store alone, with the write set of a create
    Store,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sluice => "sluice",
            Self::Ganesha => "ganesha, sync",
            Self::GaneshaPlain => "ganesha, plain",
            Self::Store => "store alone",
        })
    }
}

/// Entries of the directory that is listed.
pub(super) const LISTED: u64 = 2000;
/// Directories, where clients do not share one.
pub(super) const DIRECTORIES: usize = 64;
/// Bytes of a disk.
const DISK: u64 = 16 << 30;
/// Clients that fill directories beforehand.
const FILLERS: usize = 16;

/// A server that is ready, with its clients.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: Name,
    pub(super) about: String,
    process: Process,
    /// Where the benchmark works.
    root: nfs_fh4,
    listed: nfs_fh4,
    clients: Vec<Client>,
    alive: Alive,
}

/// What must live as long as the server shall, in the order in which it goes.
#[derive(Debug)]
#[allow(dead_code, reason = "held for its drop")]
enum Alive {
    Sluice(Box<Installation>),
    Ganesha(Box<(Ganesha, Disk, TempDir)>),
    Elsewhere,
}

impl Peer {
    pub(super) async fn start(name: Name, sluice: &Path, below: &Path, clients: usize) -> Result<Self> {
        match name {
            Name::Sluice | Name::Store => Self::sluice(sluice, below, clients).await,
            Name::Ganesha => Self::ganesha(name, "sync,dirsync", below, clients).await,
            Name::GaneshaPlain => Self::ganesha(name, "", below, clients).await,
        }
        .with_context(|| format!("cannot start {name}"))
    }

    async fn sluice(program: &Path, below: &Path, count: usize) -> Result<Self> {
        let installation = Installation::start(program, Some(below), 1, Store::Embedded)?;
        installation.keep_inline(INLINE)?;
        let process = installation.process("mds")?;
        let clients = connect(installation.mds(), count).await?;
        let first = clients.first().context("no clients")?;
        let root = first.mkdir(first.root(), b"rates", 0o755).await?.handle;
        let about = installation.describe()?;
        let alive = Alive::Sluice(Box::new(installation));
        Self { name: Name::Sluice, about, process, listed: root.clone(), root, clients, alive }.filled().await
    }

    async fn ganesha(name: Name, options: &str, below: &Path, count: usize) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("sluice-bench-ganesha-").tempdir_in(below)?;
        let (image, mount) = (home.path().join("image"), home.path().join("mount"));
        let disk = Disk::make(&image, &mount, DISK, options)?;
        let ganesha = Ganesha::start(home.path(), &disk.root().join("data"), free_port()?, Protocol::V4)?;
        let clients = connect(ganesha.address, count).await?;
        let first = clients.first().context("no clients")?;
        let root = first.lookup(first.root(), PSEUDO.as_bytes()).await?.handle;
        let mounted = if options.is_empty() { "default options" } else { options };
        let about = format!("{}, VFS on ext4 in a file, mounted with {mounted}", ganesha.version);
        let process = Process(ganesha.process());
        let alive = Alive::Ganesha(Box::new((ganesha, disk, home)));
        Self { name, about, process, listed: root.clone(), root, clients, alive }.filled().await
    }

    /// A metadata server that somebody else has started and looks after.
    pub(super) async fn counted(address: SocketAddr, count: usize) -> Result<Self> {
        let clients = connect(address, count).await?;
        let root = clients.first().context("no clients")?.root().clone();
        let (about, process) = (String::new(), Process(std::process::id()));
        let alive = Alive::Elsewhere;
        Self { name: Name::Sluice, about, process, listed: root.clone(), root, clients, alive }.filled().await
    }

    /// With the directory that is listed.
    async fn filled(mut self) -> Result<Self> {
        self.listed = self.directory("listed").await?;
        let workers = self.workers(FILLERS, std::slice::from_ref(&self.listed))?;
        let (_, workers) = load::run(workers, Until::Done(LISTED), Fill).await?;
        drop(workers);
        Ok(self)
    }

    pub(super) async fn directory(&self, name: &str) -> Result<nfs_fh4> {
        let first = self.clients.first().context("no clients")?;
        Ok(first.mkdir(&self.root, name.as_bytes(), 0o755).await?.handle)
    }

    /// So many clients, which share these directories.
    pub(super) fn workers(&self, count: usize, directories: &[nfs_fh4]) -> Result<Vec<Worker>> {
        let clients = self.clients.iter().cycle().take(count).enumerate();
        let workers = clients.map(|(number, client)| {
            let directory = directories.get(number % directories.len().max(1)).context("no directory")?;
            Ok(Worker::new(client, number, directory, &self.listed, self.name == Name::Sluice))
        });
        workers.collect()
    }

    /// So many of its clients; one may come several times.
    pub(super) fn clients(&self, count: usize) -> impl Iterator<Item = Client> {
        self.clients.iter().cycle().take(count).cloned()
    }

    /// Seconds of processors that the server has used, or all servers of an installation.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        match &self.alive {
            Alive::Sluice(installation) => installation.cpu(),
            _ => self.process.cpu_seconds(),
        }
    }
}

/// Each with a connection and a session of its own.
pub(super) async fn connect(address: SocketAddr, count: usize) -> Result<Vec<Client>> {
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        // Another one is for renewing the lease.
        let slots = u32::try_from(IN_FLIGHT)? + 1;
        let identity = Identity { slots, ..Identity::new(&format!("bench-mds-{number}"), KERNEL) };
        let client = Client::bare(Env::system(), address, identity).await;
        clients.push(client.with_context(|| format!("test client {number}"))?);
    }
    Ok(clients)
}

/// Makes an empty file.
pub(super) struct Fill;

impl AsyncOperation<Worker> for Fill {
    async fn once(&self, worker: &mut Worker, number: u64) -> Result<bool> {
        worker.fill(number).await?;
        Ok(true)
    }
}

impl Worker {
    async fn fill(&self, number: u64) -> Result<()> {
        let name = format!("listed{number:08}");
        let open = self.client.open(&self.directory, name.as_bytes(), &How::new_file(0o644)).await?;
        self.client.close(&open).await?;
        Ok(())
    }
}
