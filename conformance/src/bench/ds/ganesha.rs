//! NFS-Ganesha with its VFS module, from the distribution, on a directory of its own: NFSv3 as a data server is asked, or
//! NFSv4 as a metadata server is.

use std::fs::{self, File as Log};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::wire::{File, Wire};
use super::{exported, portmap};
use crate::guest::process::Group;

const START: Duration = Duration::from_secs(60);

/// Under which name its NFSv4 root has the directory.
pub(in crate::bench) const PSEUDO: &str = "bench";

/// What it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Protocol {
    /// With MOUNT on the next port.
    V3,
    V4,
}

/// A running server.
#[derive(Debug)]
pub(in crate::bench) struct Ganesha {
    process: Group,
    protocol: Protocol,
    pub(in crate::bench) address: SocketAddr,
    pub(in crate::bench) version: String,
}

fn program() -> Option<&'static str> {
    let module =
        ["/usr/lib/x86_64-linux-gnu/ganesha", "/usr/lib/aarch64-linux-gnu/ganesha", "/usr/lib/ganesha"];
    let has_vfs = module.iter().any(|folder| Path::new(folder).join("libfsalvfs.so").exists());
    let programs = ["/usr/bin/ganesha.nfsd", "/usr/sbin/ganesha.nfsd"];
    programs.into_iter().find(|path| has_vfs && Path::new(path).exists())
}

impl Ganesha {
    /// Starts it with the directory `data`, files of its own in `home`, on `port` and the next one.
    pub(in crate::bench) fn start(home: &Path, data: &Path, port: u16, protocol: Protocol) -> Result<Self> {
        let Some(program) = program() else {
            bail!(
                "NFS-Ganesha is not on this machine, and without a peer there is no comparison: \
                 apt-get install nfs-ganesha nfs-ganesha-vfs, or leave it out (--peers)"
            );
        };
        portmap::serve()?;
        fs::create_dir_all(data)?;
        let config = home.join("ganesha.conf");
        fs::write(&config, configuration(home, data, port, protocol))?;
        let log = Log::create(home.join("output"))?;
        let mut command = Command::new(program);
        command.arg("-F").arg("-f").arg(&config);
        command.arg("-L").arg(home.join("log")).arg("-p").arg(home.join("pid"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = Group::spawn(command)?;
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let mut ganesha = Self { process, protocol, address, version: version(program)? };
        ganesha.wait_ready(home)?;
        Ok(ganesha)
    }

    fn answers(&self) -> bool {
        let mounts = self.protocol == Protocol::V4 || Wire::connect(self.mount_address(), 0).is_ok();
        mounts && Wire::connect(self.address, 0).is_ok()
    }

    fn wait_ready(&mut self, home: &Path) -> Result<()> {
        let limit = Instant::now() + START;
        while !self.answers() {
            let ended = self.process.wait_until(Instant::now() + Duration::from_millis(50))?;
            if ended.is_some() || Instant::now() > limit {
                let log = fs::read_to_string(home.join("log")).unwrap_or_default();
                let last: Vec<_> = log.lines().rev().take(3).collect();
                bail!("NFS-Ganesha does not start: {}", last.join(" | "));
            }
        }
        Ok(())
    }

    fn mount_address(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.address.port() + 1)
    }

    pub(in crate::bench) fn process(&self) -> u32 {
        self.process.id()
    }

    /// New files, each empty.
    pub(super) fn create(&self, data: &Path, count: usize) -> Result<Vec<File>> {
        exported::create(self.mount_address(), self.address, data, count)
    }
}

fn version(program: &str) -> Result<String> {
    let output = Command::new(program).arg("-v").stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or("NFS-Ganesha of an unknown version").trim().to_owned())
}

/// Defaults but for what is needed to run beside others; no grace period, in which nothing could be opened.
fn configuration(home: &Path, data: &Path, port: u16, protocol: Protocol) -> String {
    let (number, mount) = match protocol {
        Protocol::V3 => (3, format!("MNT_Port = {};", port + 1)),
        Protocol::V4 => (4, String::new()),
    };
    let state = home.join("state");
    format!(
        "NFS_CORE_PARAM {{ Protocols = {number}; NFS_Port = {port}; {mount} Bind_addr = 127.0.0.1; \
         Enable_NLM = false; Enable_RQUOTA = false; }}\n\
         NFSV4 {{ Graceless = true; Minor_Versions = 1, 2; RecoveryBackend = fs; RecoveryRoot = {state}; }}\n\
         EXPORT {{ Export_Id = 1; Path = {data}; Pseudo = /{PSEUDO}; Access_Type = RW; \
         Squash = No_Root_Squash; SecType = sys; Protocols = {number}; Transports = TCP; FSAL {{ Name = VFS; }} }}\n\
         LOG {{ Default_Log_Level = EVENT; }}\n",
        state = state.display(),
        data = data.display(),
    )
}
