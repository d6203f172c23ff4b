//! `sluice up` on loopback, for suites that speak NFS themselves.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::guest::process::Group;

const DATA_SERVERS: u16 = 2;
const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(50);
/// How often to look for ports in a row that are free.
const PORT_TRIES: u32 = 50;
/// What `up` prints when clients can mount.
const READY: &str = "Sluice is ready";

/// A fresh installation; it ends with the value.
#[derive(Debug)]
pub(super) struct Server {
    process: Group,
    pub(super) port: u16,
}

impl Server {
    /// Starts `program up` with its data below `home` and its words in `log`, and waits until clients can
    /// mount. A new installation has nobody to reclaim anything: no grace period follows.
    pub(super) fn start(program: &Path, home: &Path, log: &Path, lease: u32) -> Result<Self> {
        let port = free_ports(DATA_SERVERS + 1)?;
        let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(program);
        command.arg("up").arg("--data-dir").arg(home);
        command.args(["--data-servers", &DATA_SERVERS.to_string(), "--listen", "127.0.0.1"]);
        command.args(["--port", &port.to_string(), "--lease", &lease.to_string()]);
        // What is known of each test is of files that have layouts.
        command.args(["--inline", "off"]);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut process = Group::spawn(command)?;
        let limit = Instant::now() + START;
        while !fs::read_to_string(log).unwrap_or_default().contains(READY) {
            if let Some(status) = process.wait_until(Instant::now() + LOOK)? {
                bail!("`sluice up` ended with {status}: see {}", log.display());
            }
            if Instant::now() > limit {
                bail!("`sluice up` was not ready within {} s: see {}", START.as_secs(), log.display());
            }
        }
        Ok(Self { process, port })
    }

    /// Process id of `up`, the servers' parent.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Stops as Ctrl-C does; an error if it ended before or does not stop.
    pub(super) fn stop(mut self) -> Result<()> {
        if let Some(status) = self.process.wait_until(Instant::now())? {
            bail!("`sluice up` had ended with {status} before it was stopped");
        }
        self.process.signal(Signal::SIGTERM);
        if self.process.wait_until(Instant::now() + STOP)?.is_none() {
            bail!("`sluice up` did not stop within {} s", STOP.as_secs());
        }
        Ok(())
    }
}

/// The first of `count` ports in a row that nobody listens on now.
pub(crate) fn free_ports(count: u16) -> Result<u16> {
    for _ in 0..PORT_TRIES {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = first.local_addr()?.port();
        let free = |offset: u16| {
            port.checked_add(offset)
                .is_some_and(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        };
        if (1..count).all(free) {
            return Ok(port);
        }
    }
    bail!("found no {count} free ports in a row")
}

/// The program to test: the one named, else the one beside this program, else the workspace's own build.
pub(crate) fn program(named: Option<&Path>) -> Result<PathBuf> {
    let mut candidates: Vec<PathBuf> = named.map(Path::to_owned).into_iter().collect();
    if candidates.is_empty() {
        let beside = std::env::current_exe()?;
        candidates.extend(beside.parent().map(|folder| folder.join("sluice")));
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        candidates.extend(["release", "debug"].map(|kind| target.join(kind).join("sluice")));
    }
    match candidates.iter().find(|file| file.is_file()) {
        Some(file) => Ok(file.canonicalize()?),
        None => bail!("there is no program to test: cargo build -p sluice, or name one with --sluice"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_a_row_are_free() {
        let port = free_ports(3).unwrap();
        let held: Vec<_> =
            (port..port + 3).map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
        assert_eq!(held.len(), 3);
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        assert!(program(Some(Path::new("/nonexistent/sluice"))).is_err());
    }
}
