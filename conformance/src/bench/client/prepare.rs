//! Small files that are there before a guest mounts anything: put on the servers' disk by this machine itself, in a minute
//! or two. Emulated guests would write as many for hours, and what is measured is reading them. Each server's are made
//! as that server makes them: the kernel's as files of its ext4, Sluice's by Sluice.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use sluice_env::Env;
use sluice_rpc::Tcp;
use sluice_xdr::nfs3::stable_how;
use sluice_xdr::nfs4::{layoutiomode4, nfs_fh4};

use super::load::{FOLDER, make_folders, small, write_small};
use super::{LEASE, Peer};
use crate::bench::disk::Disk;
use crate::bench::host::Installation;
use crate::bench::load::{self, AsyncOperation, Until};
use crate::bench::{KERNEL, Store};
use crate::client::{Client, How, Identity};

/// Test clients that write at once.
const WRITERS: usize = 32;

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
        sluice(disk.root().join("sluice"), share, &folders, plan)?;
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

fn sluice(data: PathBuf, share: &Path, folders: &[&str], plan: &Plan) -> Result<()> {
    let home = tempfile::Builder::new().prefix("prepare-").tempdir_in(share)?;
    let (count, lease) = (plan.data_servers.into(), LEASE.to_string());
    let mut servers =
        Installation::start_at(&plan.program, home, data, count, Store::Embedded, &["--lease", &lease])?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let filled = folders.iter().try_for_each(|folder| runtime.block_on(fill(folder, &servers, plan.files)));
    filled.with_context(|| servers.last_words())?;
    servers.stop()
}

async fn fill(folder: &str, servers: &Installation, files: u64) -> Result<()> {
    let mut clients = Vec::with_capacity(WRITERS);
    for number in 0..WRITERS {
        let identity = Identity::new(&format!("prepare-{folder}-{number}"), KERNEL);
        clients.push(Client::connect(Env::system(), Arc::new(Tcp), servers.mds(), identity).await?);
    }
    let first = clients.first().context("no clients")?;
    let top = first.mkdir(first.root(), folder.as_bytes(), 0o777).await?.handle;
    if Peer::Inline.folder() == Some(folder) {
        servers.keep_inline_below(&format!("/{folder}"), "32KiB")?;
    }
    let mut below = Vec::new();
    for number in 0..files.div_ceil(FOLDER) {
        below.push(first.mkdir(&top, number.to_string().as_bytes(), 0o755).await?.handle);
    }
    let folders = Arc::new(below);
    let writers =
        clients.iter().map(|client| Writer { client: client.clone(), folders: Arc::clone(&folders) });
    load::run(writers.collect(), Until::Done(files), Put).await?;
    // The server that starts next would wait for those who are still there.
    for client in clients {
        client.leave().await?;
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
