//! The servers side by side: Sluice's data server as it is shipped, NFS-Ganesha, and the ceiling.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use sluice_env::Env;
use sluice_rpc::{AuthSys, Credential, Tcp};
use sluice_xdr::nfs4::layoutiomode4;
use tempfile::TempDir;

use super::ganesha::{Ganesha, Protocol};
use super::kernel;
use super::line::Certificate;
use super::wire::{File, Wire};
use crate::bench::host::{Installation, Process};
use crate::bench::{KERNEL, Store};
use crate::client::{Client, How, Identity};
use crate::guest::process::Group;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Name {
    Sluice,
    /// Sluice with checksums at rest
    Summed,
    /// Sluice with a certificate, and the client under TLS
    Tls,
    Ganesha,
    Ceiling,
    /// The kernel's own, in a guest
    Kernel,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sluice => "sluice",
            Self::Summed => "summed",
            Self::Tls => "tls",
            Self::Ganesha => "ganesha",
            Self::Ceiling => "ceiling",
            Self::Kernel => "kernel",
        })
    }
}

/// A server that is ready, with its files.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: Name,
    pub(super) about: String,
    pub(super) address: SocketAddr,
    pub(super) files: Vec<File>,
    /// By which it is reached, if not in clear.
    tls: Option<Certificate>,
    /// One process, or the threads of the kernel.
    processes: Vec<Process>,
    _alive: Alive,
}

/// What must live as long as the server shall. The home is removed after the processes have ended.
#[derive(Debug)]
#[allow(dead_code, reason = "held for its drop")]
enum Alive {
    Sluice(Box<(Client, tokio::runtime::Runtime, Installation)>),
    Ganesha(Box<(Ganesha, TempDir)>),
    Ceiling(Group),
    Kernel,
}

/// Below the range from which the kernel gives ports to clients.
pub(in crate::bench) fn free_port() -> Result<u16> {
    let free = |port: &u16| [0, 1].iter().all(|n| TcpListener::bind((Ipv4Addr::LOCALHOST, port + n)).is_ok());
    (10_000..20_000).step_by(2).find(free).context("no free ports between 10000 and 20000")
}

impl Peer {
    pub(super) fn start(name: Name, sluice: &Path, below: &Path, files: usize) -> Result<Self> {
        match name {
            Name::Sluice | Name::Summed | Name::Tls => Self::sluice(name, sluice, below, files),
            Name::Ganesha => Self::ganesha(below, files),
            Name::Ceiling => Self::ceiling(files),
            Name::Kernel => Self::kernel(files),
        }
        .with_context(|| format!("cannot start {name}"))
    }

    /// A connection to it.
    pub(super) fn connect(&self, seed: u64) -> Result<Wire> {
        Wire::connect_by(self.address, seed, self.tls.as_ref().map(|tls| &tls.clients))
    }

    /// Seconds of processors that it has used.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        self.processes.iter().map(|process| process.cpu_seconds()).sum()
    }

    /// What has memory of its own to look at.
    pub(super) fn process(&self) -> Option<Process> {
        self.processes.first().copied().filter(|_| self.name != Name::Kernel)
    }

    fn kernel(count: usize) -> Result<Self> {
        let files = kernel::create(count)?;
        Ok(Self {
            name: Name::Kernel,
            about: format!("the NFS server of Linux {}", kernel::release()?),
            address: kernel::address(),
            files,
            tls: None,
            processes: kernel::threads()?.into_iter().map(Process).collect(),
            _alive: Alive::Kernel,
        })
    }

    /// A whole installation with one data server; the capabilities are those of layouts.
    fn sluice(name: Name, program: &Path, below: &Path, count: usize) -> Result<Self> {
        let certificate = match name {
            Name::Tls => Some(Certificate::new(Ipv4Addr::LOCALHOST.into())?),
            _ => None,
        };
        let mut options = if name == Name::Summed { vec!["--checksums"] } else { vec![] };
        if let Some(certificate) = &certificate {
            options.extend(certificate.options()?);
        }
        let installation = Installation::start_with(program, Some(below), 1, Store::Embedded, &options)?;
        let process = installation.process("ds1")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (client, address, files) = runtime.block_on(async {
            let identity = Identity { slots: 8, ..Identity::new("bench-ds", KERNEL) };
            let client = Client::connect(Env::system(), Arc::new(Tcp), installation.mds(), identity).await?;
            let (mut files, mut address) = (Vec::new(), None);
            for number in 0..count {
                let name = format!("file{number}");
                let open = client.open(client.root(), name.as_bytes(), &How::create(0o644)).await?;
                let segment = client.layoutget(&open, layoutiomode4::LAYOUTIOMODE4_RW, 0).await?;
                let place = segment.place(0).context("a layout without byte 0")?;
                ensure!(place.end >= super::SIZE, "only {} bytes in one data file", place.end);
                let file = segment.mirrors.first().and_then(|mirror| mirror.get(place.stripe));
                let file = file.context("an empty layout")?;
                address = Some(file.address);
                let credential = match &file.credential {
                    Credential::Sys(sys) => sys.clone(),
                    _ => AuthSys::root("bench"),
                };
                files.push(File { handle: file.handle.to_vec(), credential });
            }
            anyhow::Ok((client, address.context("no file")?, files))
        })?;
        Ok(Self {
            name,
            about: installation.describe()? + if name == Name::Tls { ", clients under TLS" } else { "" },
            address,
            files,
            tls: certificate,
            processes: vec![process],
            _alive: Alive::Sluice(Box::new((client, runtime, installation))),
        })
    }

    fn ganesha(below: &Path, count: usize) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("sluice-bench-ganesha-").tempdir_in(below)?;
        let data = home.path().join("data");
        let ganesha = Ganesha::start(home.path(), &data, free_port()?, Protocol::V3)?;
        let files = ganesha.create(&data, count)?;
        Ok(Self {
            name: Name::Ganesha,
            about: ganesha.version.clone(),
            address: ganesha.address,
            files,
            tls: None,
            processes: vec![Process(ganesha.process())],
            _alive: Alive::Ganesha(Box::new((ganesha, home))),
        })
    }

    fn ceiling(count: usize) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("ceiling").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut group = Group::spawn(command)?;
        let mut line = String::new();
        BufReader::new(group.child().stdout.take().context("no output")?).read_line(&mut line)?;
        let port = line.trim().parse().context("the ceiling does not say its port")?;
        Ok(Self {
            name: Name::Ceiling,
            about: "answers from memory: one thread a connection, no store, no checks".to_owned(),
            address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
            files: vec![File { handle: vec![0; 32], credential: AuthSys::root("bench") }; count],
            tls: None,
            processes: vec![Process(group.id())],
            _alive: Alive::Ceiling(group),
        })
    }
}
