//! Small files that nobody has in memory: written, then the server is stopped, all caches of this machine are dropped, the
//! server is started again, and files are opened, read and closed in random order. Both servers have an ext4 of their own in a
//! file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use sluice_xdr::nfs4::{OPEN4_SHARE_ACCESS_READ, nfs_fh4};
use tempfile::TempDir;

use super::peers::{Name, connect};
use super::report::{Goal, Measured, Sample};
use super::{JUDGED, sample};
use crate::bench::Store;
use crate::bench::client::load::{FOLDER, chosen, small};
use crate::bench::disk::Disk;
use crate::bench::ds::ganesha::{Ganesha, PSEUDO, Protocol};
use crate::bench::ds::peers::free_port;
use crate::bench::host::{Installation, Process, drop_caches};
use crate::bench::load::{self, AsyncOperation, Run, Until};
use crate::client::{Client, How};

/// Up to which size files are kept in the metadata: as shipped.
const INLINE: &str = "32KiB";
/// Bytes of a disk.
const DISK: u64 = 32 << 30;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    pub(super) sluice: &'a Path,
    /// Where disks are made.
    pub(super) below: &'a Path,
    pub(super) files: u64,
    /// Files read in one round.
    pub(super) reads: u64,
    pub(super) rounds: u32,
}

/// One row: Sluice and, if it is wanted, NFS-Ganesha.
///
/// # Errors
/// If a server does not start or refuses a file, or without the right to drop caches.
pub(super) async fn measure(plan: Plan<'_>, ganesha: bool) -> Result<Measured> {
    let mut all = vec![Site::make(plan, Name::Sluice)?];
    if ganesha {
        all.push(Site::make(plan, Name::GaneshaPlain)?);
    }
    for site in &all {
        site.fill(plan.files).await.with_context(|| format!("filling {}", site.name))?;
    }
    let title = format!("{} files of 4 to 32 KiB, cold: open, read, close, {JUDGED} clients", plan.files);
    let mut row = Measured { title, goal: Goal::default(), samples: Default::default(), own: None };
    for round in 0..plan.rounds {
        for turn in 0..all.len() {
            let site = &all[(turn + round as usize) % all.len()];
            let sample =
                site.read(plan, round).await.with_context(|| format!("reading from {}", site.name))?;
            row.samples.entry(site.name).or_default().push(sample);
        }
        eprintln!("cold files, round {} of {}", round + 1, plan.rounds);
    }
    Ok(row)
}

/// A server's disk.
#[derive(Debug)]
struct Site {
    name: Name,
    sluice: PathBuf,
    // Before the directory that it is in.
    disk: Disk,
    home: TempDir,
}

/// A server that runs.
enum Server {
    Sluice(Box<Installation>),
    Ganesha(Ganesha),
}

impl Server {
    fn process(&self) -> Result<Process> {
        match self {
            Self::Sluice(installation) => installation.process("mds"),
            Self::Ganesha(ganesha) => Ok(Process(ganesha.process())),
        }
    }

    /// Ganesha's files are in the kernel's memory, which outlives it.
    fn stop(self) -> Result<()> {
        match self {
            Self::Sluice(mut installation) => installation.stop(),
            Self::Ganesha(_) => Ok(()),
        }
    }
}

impl Site {
    fn make(plan: Plan<'_>, name: Name) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("sluice-bench-cold-").tempdir_in(plan.below)?;
        let disk = Disk::make(&home.path().join("image"), &home.path().join("mount"), DISK, "")?;
        Ok(Self { name, sluice: plan.sluice.to_owned(), disk, home })
    }

    /// With its clients and the directory that has the files of all.
    async fn start(&self) -> Result<(Server, Vec<Client>, nfs_fh4)> {
        let data = self.disk.root().join("data");
        let (server, address) = match self.name {
            Name::Sluice | Name::Store => {
                let log = tempfile::tempdir_in(&self.home)?;
                let started = Installation::start_at(&self.sluice, log, data, 1, Store::Embedded, &[])?;
                let address = started.mds();
                (Server::Sluice(Box::new(started)), address)
            }
            Name::Ganesha | Name::GaneshaPlain => {
                let started = Ganesha::start(self.home.path(), &data, free_port()?, Protocol::V4)?;
                let address = started.address;
                (Server::Ganesha(started), address)
            }
        };
        let clients = connect(address, JUDGED).await?;
        let first = clients.first().context("no clients")?;
        let top = match &server {
            Server::Sluice(_) => first.root().clone(),
            Server::Ganesha(_) => first.lookup(first.root(), PSEUDO.as_bytes()).await?.handle,
        };
        Ok((server, clients, top))
    }

    async fn fill(&self, files: u64) -> Result<()> {
        let (server, clients, top) = self.start().await?;
        let first = clients.first().context("no clients")?;
        let cold = first.mkdir(&top, b"cold", 0o755).await?.handle;
        if let Server::Sluice(installation) = &server {
            installation.keep_inline_below("/cold", INLINE)?;
        }
        let mut folders = Vec::new();
        for number in 0..files.div_ceil(FOLDER) {
            folders.push(first.mkdir(&cold, number.to_string().as_bytes(), 0o755).await?.handle);
        }
        load::run(workers(&clients, folders), Until::Done(files), Put).await?;
        leave(clients).await?;
        server.stop()
    }

    async fn read(&self, plan: Plan<'_>, round: u32) -> Result<Sample> {
        drop_caches()?;
        let (server, clients, top) = self.start().await?;
        let first = clients.first().context("no clients")?;
        let cold = first.lookup(&top, b"cold").await?.handle;
        let mut folders = Vec::new();
        for number in 0..plan.files.div_ceil(FOLDER) {
            folders.push(first.lookup(&cold, number.to_string().as_bytes()).await?.handle);
        }
        let process = server.process()?;
        let order = chosen(plan.files, plan.reads, round.into());
        let (count, before) = (order.len() as u64, process.cpu_seconds()?);
        let (run, _): (Run, _) =
            load::run(workers(&clients, folders), Until::Done(count), Get(order)).await?;
        let cpu = process.cpu_seconds()? - before;
        leave(clients).await?;
        server.stop()?;
        Ok(sample(&run, count, cpu))
    }
}

/// A server that starts next would wait for those who are still there.
async fn leave(clients: Vec<Client>) -> Result<()> {
    for client in clients {
        client.leave().await?;
    }
    Ok(())
}

#[derive(Clone, Debug)]
struct Worker {
    client: Client,
    folders: Arc<Vec<nfs_fh4>>,
}

fn workers(clients: &[Client], folders: Vec<nfs_fh4>) -> Vec<Worker> {
    let folders = Arc::new(folders);
    clients.iter().map(|client| Worker { client: client.clone(), folders: folders.clone() }).collect()
}

impl Worker {
    fn place(&self, file: u64) -> Result<(&nfs_fh4, Vec<u8>)> {
        let folder = self.folders.get(usize::try_from(file / FOLDER)?).context("no such folder")?;
        Ok((folder, format!("file{file}").into_bytes()))
    }
}

struct Put;

impl AsyncOperation<Worker> for Put {
    async fn once(&self, worker: &mut Worker, file: u64) -> Result<bool> {
        let mut data = Vec::new();
        small(&mut data, file);
        let (folder, name) = worker.place(file)?;
        let open = worker.client.open(folder, &name, &How::new_file(0o644)).await?;
        worker.client.write_through(&open, 0, Bytes::from(data)).await?;
        worker.client.close(&open).await?;
        Ok(true)
    }
}

/// In this order.
struct Get(Vec<u64>);

impl AsyncOperation<Worker> for Get {
    async fn once(&self, worker: &mut Worker, number: u64) -> Result<bool> {
        let file = *self.0.get(usize::try_from(number)?).context("no such file")?;
        let mut expected = Vec::new();
        small(&mut expected, file);
        let (folder, name) = worker.place(file)?;
        let open = worker.client.open(folder, &name, &How::existing(OPEN4_SHARE_ACCESS_READ)).await?;
        let length = u32::try_from(expected.len())?;
        let data = worker.client.read_through(&open, 0, length).await?;
        ensure!(data[..] == expected[..], "file {file} holds something else");
        worker.client.close(&open).await?;
        Ok(true)
    }
}
