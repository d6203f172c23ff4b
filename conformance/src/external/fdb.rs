//! FoundationDB's own programs, for clusters on loopback that end with whoever started them. All of one cluster is in one folder.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::guest::process::Group;

/// What fdbcli may take for one command, in seconds.
const COMMAND: &str = "20";
/// In a cluster's folder: what its servers said.
const SAID: &str = "said";

/// Where they are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The folder of `fdbserver` and `fdbcli`; what is not there is looked for in PATH.
    pub folder: PathBuf,
    /// The client library. `None`: where the loader finds it.
    pub library: Option<PathBuf>,
}

/// The file of the cluster in `home`, which clients and servers rewrite.
pub fn cluster_file(home: &Path) -> PathBuf {
    home.join("fdb.cluster")
}

impl Programs {
    fn named(&self, name: &str) -> PathBuf {
        let here = self.folder.join(name);
        if here.exists() { here } else { name.into() }
    }

    /// A server of the cluster in `home`, at `address`, which keeps its data in the folder `data` there. `more`: what else it
    /// is told.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn serve(
        &self,
        home: &Path,
        (data, address): (&str, &str),
        more: &[impl AsRef<OsStr>],
    ) -> Result<Group> {
        let (file, data, logs) = (cluster_file(home), home.join(data), home.join("logs"));
        fs::create_dir_all(&data)?;
        fs::create_dir_all(&logs)?;
        let mut command = Command::new(self.named("fdbserver"));
        command.args(["-p", address]).args(more);
        let places: [(&str, &Path); 3] = [("-C", &file), ("-d", &data), ("-L", &logs)];
        command.args(places.iter().flat_map(|(option, place)| [OsStr::new(option), place.as_os_str()]));
        let said = OpenOptions::new().create(true).append(true).open(home.join(SAID))?;
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        Group::spawn(command)
    }

    /// One command of fdbcli to the cluster in `home`, repeated until it succeeds.
    ///
    /// # Errors
    /// What it says when it does not within that time, and what the servers said.
    pub fn order(&self, home: &Path, what: &str, more: &[impl AsRef<OsStr>], within: Duration) -> Result<()> {
        let limit = Instant::now() + within;
        loop {
            let mut command = Command::new(self.named("fdbcli"));
            command.arg("-C").arg(cluster_file(home)).args(["--timeout", COMMAND, "--exec", what]).args(more);
            let output = command.stdin(Stdio::null()).output().context("fdbcli")?;
            if output.status.success() {
                return Ok(());
            }
            if Instant::now() > limit {
                let said = [output.stdout, fs::read(home.join(SAID))?].concat();
                bail!("fdbcli: {what}: {}", String::from_utf8_lossy(&said));
            }
        }
    }
}
