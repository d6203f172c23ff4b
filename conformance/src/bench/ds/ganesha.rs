//! NFS-Ganesha with its VFS module, from the distribution, on a directory of its own.

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

/// A running server.
#[derive(Debug)]
pub(super) struct Ganesha {
    process: Group,
    pub(super) address: SocketAddr,
    pub(super) version: String,
}

fn program() -> Option<&'static str> {
    let module =
        ["/usr/lib/x86_64-linux-gnu/ganesha", "/usr/lib/aarch64-linux-gnu/ganesha", "/usr/lib/ganesha"];
    let has_vfs = module.iter().any(|folder| Path::new(folder).join("libfsalvfs.so").exists());
    let programs = ["/usr/bin/ganesha.nfsd", "/usr/sbin/ganesha.nfsd"];
    programs.into_iter().find(|path| has_vfs && Path::new(path).exists())
}

impl Ganesha {
    /// Starts it with its data and files of its own below `home`, on `port` and the next one.
    pub(super) fn start(home: &Path, port: u16) -> Result<Self> {
        let Some(program) = program() else {
            bail!(
                "NFS-Ganesha is not on this machine, and without a peer there is no comparison: \
                 apt-get install nfs-ganesha nfs-ganesha-vfs, or leave it out with --peers ceiling"
            );
        };
        portmap::serve()?;
        let data = home.join("data");
        fs::create_dir_all(&data)?;
        let config = home.join("ganesha.conf");
        fs::write(&config, configuration(&data, port))?;
        let log = Log::create(home.join("output"))?;
        let mut command = Command::new(program);
        command.arg("-F").arg("-f").arg(&config);
        command.arg("-L").arg(home.join("log")).arg("-p").arg(home.join("pid"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = Group::spawn(command)?;
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let mut ganesha = Self { process, address, version: version(program)? };
        ganesha.wait_ready(home)?;
        Ok(ganesha)
    }

    fn wait_ready(&mut self, home: &Path) -> Result<()> {
        let limit = Instant::now() + START;
        while Wire::connect(self.address, 0).is_err() || Wire::connect(self.mount_address(), 0).is_err() {
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

    pub(super) fn process(&self) -> u32 {
        self.process.id()
    }

    /// New files, each empty.
    pub(super) fn create(&self, home: &Path, count: usize) -> Result<Vec<File>> {
        exported::create(self.mount_address(), self.address, &home.join("data"), count)
    }
}

fn version(program: &str) -> Result<String> {
    let output = Command::new(program).arg("-v").stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or("NFS-Ganesha of an unknown version").trim().to_owned())
}

/// Defaults but for what is needed to run beside others.
fn configuration(data: &Path, port: u16) -> String {
    format!(
        "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {port}; MNT_Port = {}; Bind_addr = 127.0.0.1; \
         Enable_NLM = false; Enable_RQUOTA = false; }}\n\
         EXPORT {{ Export_Id = 1; Path = {data}; Pseudo = /bench; Access_Type = RW; \
         Squash = No_Root_Squash; SecType = sys; Protocols = 3; Transports = TCP; FSAL {{ Name = VFS; }} }}\n\
         LOG {{ Default_Log_Level = EVENT; }}\n",
        port + 1,
        data = data.display(),
    )
}
