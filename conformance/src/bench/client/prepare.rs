//! Small files that are there before a guest mounts anything: put on the servers' disk by this machine itself, in a minute
//! or two. Emulated guests would write as many for hours, and what is measured is reading them. Each server's are made
//! as that server makes them: the kernel's as files of its ext4, Sluice's by Sluice.

use std::fs::{self, File, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use nix::sys::signal::Signal;
use sluice_env::Env;
use sluice_rpc::Tcp;
use sluice_xdr::nfs3::stable_how;
use sluice_xdr::nfs4::{layoutiomode4, nfs_fh4};

use super::load::{FOLDER, make_folders, small, write_small};
use super::{LEASE, Peer};
use crate::bench::KERNEL;
use crate::bench::disk::Disk;
use crate::bench::load::{self, AsyncOperation, Until};
use crate::client::{Client, How, Identity};
use crate::guest::process::Group;

/// Test clients that write at once.
const WRITERS: usize = 32;
const PORT: u16 = 2049;
const START: Duration = Duration::from_secs(60);
/// Everything that is in memory goes to the disk before it ends.
const STOP: Duration = Duration::from_secs(300);

/// What shall be there.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) program: PathBuf,
    /// Of the disk.
    pub(super) bytes: u64,
    /// For each peer.
    pub(super) files: u64,
    pub(super) data_servers: u8,
    pub(super) peers: Vec<Peer>,
}

/// Makes `disk.img` in the directory that guests share.
///
/// # Errors
/// Without root or loop devices, or if a server refuses a file.
pub(super) fn disk(share: &Path, plan: &Plan) -> Result<()> {
    let disk = Disk::make(&share.join("disk.img"), &share.join("prepared"), plan.bytes, "")?;
    if plan.peers.contains(&Peer::Kernel) {
        kernel(&disk.root().join("export/cold"), plan.files)?;
    }
    let folders: Vec<_> = plan.peers.iter().filter_map(|peer| peer.folder()).collect();
    if !folders.is_empty() {
        sluice(&disk.root().join("sluice"), &share.join("prepared.log"), &folders, plan)?;
    }
    disk.unmount()
}

impl Peer {
    /// Its directory of Sluice.
    fn folder(self) -> Option<&'static str> {
        match self {
            Self::Kernel => None,
            Self::Sluice => Some("cold"),
            Self::Inline => Some("inline"),
        }
    }
}

fn kernel(folder: &Path, files: u64) -> Result<()> {
    make_folders(folder, 0, files)?;
    fs::set_permissions(folder, Permissions::from_mode(0o777))?;
    let mut buffer = Vec::new();
    for file in 0..files {
        write_small(folder, file, &mut buffer)?;
    }
    Ok(())
}

fn sluice(data: &Path, log: &Path, folders: &[&str], plan: &Plan) -> Result<()> {
    let out = File::create(log)?;
    let mut command = Command::new(&plan.program);
    command.arg("up").arg("--data-dir").arg(data).args(["--inline", "off", "--port", &PORT.to_string()]);
    command.args(["--data-servers", &plan.data_servers.to_string(), "--lease", &LEASE.to_string()]);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    let mut up = Group::spawn(command)?;
    let done = ready(&mut up, log).and_then(|()| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        folders.iter().try_for_each(|folder| runtime.block_on(fill(folder, data, plan)))
    });
    up.signal(Signal::SIGTERM);
    let stopped = up.wait_until(Instant::now() + STOP)?;
    done.with_context(|| last_words(log))?;
    match stopped {
        Some(status) if status.success() => Ok(()),
        other => bail!("`sluice up` ended with {other:?}: {}", last_words(log)),
    }
}

fn ready(up: &mut Group, log: &Path) -> Result<()> {
    let limit = Instant::now() + START;
    while !fs::read_to_string(log)?.contains("Sluice is ready") {
        if up.wait_until(Instant::now() + Duration::from_millis(20))?.is_some() || Instant::now() > limit {
            bail!("`sluice up` did not start");
        }
    }
    Ok(())
}

fn last_words(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}

async fn fill(folder: &str, data: &Path, plan: &Plan) -> Result<()> {
    let mds = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT);
    let mut clients = Vec::with_capacity(WRITERS);
    for number in 0..WRITERS {
        let identity = Identity::new(&format!("prepare-{folder}-{number}"), KERNEL);
        clients.push(Client::connect(Env::system(), Arc::new(Tcp), mds, identity).await?);
    }
    let first = clients.first().context("no clients")?;
    let top = first.mkdir(first.root(), folder.as_bytes(), 0o777).await?.handle;
    if Peer::Inline.folder() == Some(folder) {
        keep_inline(&plan.program, data, folder)?;
    }
    let mut below = Vec::new();
    for number in 0..plan.files.div_ceil(FOLDER) {
        below.push(first.mkdir(&top, number.to_string().as_bytes(), 0o755).await?.handle);
    }
    let folders = Arc::new(below);
    let writers =
        clients.iter().map(|client| Writer { client: client.clone(), folders: Arc::clone(&folders) });
    load::run(writers.collect(), Until::Done(plan.files), Put).await?;
    // The server that starts next would wait for those who are still there.
    for client in clients {
        client.leave().await?;
    }
    Ok(())
}

fn keep_inline(program: &Path, data: &Path, folder: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.args(["policy", &format!("/{folder}"), "--inline", "32KiB", "--data-dir"]).arg(data);
    let output = command.stdin(Stdio::null()).output().context("sluice policy")?;
    if !output.status.success() {
        bail!("`sluice policy` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[derive(Clone, Debug)]
struct Writer {
    client: Client,
    folders: Arc<Vec<nfs_fh4>>,
}

/// Writes a small file.
struct Put;

impl AsyncOperation<Writer> for Put {
    async fn once(&self, writer: &mut Writer, file: u64) -> Result<bool> {
        let client = &writer.client;
        let mut data = Vec::new();
        small(&mut data, file);
        let last = (data.len() as u64).saturating_sub(1);
        let data = Bytes::from(data);
        let folder = writer.folders.get(usize::try_from(file / FOLDER)?).context("no such folder")?;
        let (how, rw) = (How::new_file(0o644), layoutiomode4::LAYOUTIOMODE4_RW);
        let (open, segment) = client.open_asking(folder, format!("file{file}").as_bytes(), &how, rw).await?;
        match segment {
            Some(segment) => {
                client.write(&segment, 0, data, stable_how::FILE_SYNC).await?;
                client.layoutcommit_and_look(&segment, Some(last)).await?;
                client.return_and_close(&open).await?;
            }
            None => {
                client.write_through(&open, 0, data).await?;
                client.close(&open).await?;
            }
        }
        Ok(true)
    }
}
