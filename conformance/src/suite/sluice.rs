//! The servers under test: `sluice up` as a user starts it, and what a test may do to its processes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};

use super::cases::Case;
use super::certificates;
use super::kerberos::Kerberos;
use crate::guest::command::{self, output};
use crate::guest::lab::{SERVERS, server_address};
use crate::guest::process::{Group, pid};

/// How long a start may take; a restart with clients may not wait for their reclaim.
const START: Duration = Duration::from_secs(60);
/// `up` waits longer before each restart of a process that keeps dying.
const RESTART: Duration = Duration::from_secs(15);
const STOP: Duration = Duration::from_secs(15);
/// What `up` prints when clients can mount.
const READY: &str = "Sluice is ready";

/// An installation of one host, on the lab's server addresses.
#[derive(Debug)]
pub(super) struct Sluice {
    program: PathBuf,
    /// Holds one data directory per installation.
    home: PathBuf,
    installation: u32,
    log: PathBuf,
    process: Option<Group>,
    data_servers: u8,
    lease: u32,
    inline: &'static str,
    /// Where they are mounted, in the lab's own mount namespace.
    devices: Vec<PathBuf>,
    kerberos: Option<Kerberos>,
}

impl Drop for Sluice {
    /// Else what they are mounted on cannot be removed.
    fn drop(&mut self) {
        self.process = None;
        for place in &self.devices {
            let _ = umount2(place, MntFlags::MNT_DETACH);
        }
    }
}

impl Sluice {
    /// Not started yet; data below `home`, the servers' words in `log`, as the case wants it.
    pub(super) fn new(program: &Path, home: &Path, log: &Path, case: &Case) -> Self {
        Self {
            program: program.to_owned(),
            home: home.to_owned(),
            installation: 0,
            log: log.to_owned(),
            process: None,
            data_servers: case.data_servers.min(SERVERS - 1),
            lease: case.lease,
            inline: case.inline_limit(),
            devices: Vec::new(),
            kerberos: None,
        }
    }

    fn data_dir(&self) -> PathBuf {
        self.home.join(format!("installation{}", self.installation))
    }

    /// Starts, with further options of `sluice up`, and waits until clients can mount.
    pub(super) fn start(&mut self, extra: &[String]) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let before = log.metadata()?.len();
        let addresses: Vec<_> = (2..=self.data_servers + 1).map(server_address).collect();
        let mut command = Command::new(&self.program);
        command.arg("up").arg("--data-dir").arg(self.data_dir());
        command.args(["--data-servers", &self.data_servers.to_string(), "--listen", &server_address(1)]);
        command.args([
            "--port",
            "2049",
            "--data-listen",
            &addresses.join(","),
            "--lease",
            &self.lease.to_string(),
        ]);
        // Guests are other hosts.
        command.args(["--allow", "any", "--inline", self.inline]);
        if let Some(kerberos) = &self.kerberos {
            command.env("KRB5_CONFIG", kerberos.dir().join("krb5.conf"));
        }
        command.args(extra).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut process = Group::spawn(command)?;
        let limit = Instant::now() + START;
        while !said_since(&self.log, before, READY)? {
            if let Some(status) = process.wait_until(Instant::now() + Duration::from_millis(20))? {
                bail!("`sluice up` ended with {status}: {}", self.last_words());
            }
            if Instant::now() > limit {
                bail!("`sluice up` was not ready within {} s: {}", START.as_secs(), self.last_words());
            }
        }
        self.process = Some(process);
        Ok(())
    }

    /// Stops as Ctrl-C does; kills what does not stop in time and says so.
    pub(super) fn stop(&mut self) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        // A frozen parent cannot stop its children.
        process.signal(Signal::SIGCONT);
        process.signal(Signal::SIGTERM);
        if process.wait_until(Instant::now() + STOP)?.is_none() {
            bail!("`sluice up` did not stop within {} s", STOP.as_secs());
        }
        Ok(())
    }

    /// A new, empty installation.
    pub(super) fn fresh(&mut self, data_servers: u8, extra: &[String]) -> Result<()> {
        self.stop()?;
        if self.data_dir().exists() {
            fs::remove_dir_all(self.data_dir())?;
        }
        self.installation += 1;
        self.data_servers = data_servers.clamp(1, SERVERS - 1);
        self.start(extra)
    }

    /// What TLS needs, in a directory that guests see as /share/certificates; says where the servers see it.
    pub(super) fn certificates(&self) -> Result<String> {
        let dir = self.home.join("share").join("certificates");
        certificates::make(&dir)?;
        Ok(dir.display().to_string())
    }

    /// A realm, in a directory that guests see as /share/kerberos, to which the servers belong from their next start on; says where they
    /// see it.
    pub(super) fn kerberos(&mut self) -> Result<String> {
        let kerberos = Kerberos::make(&self.home.join("share").join("kerberos"))?;
        let dir = kerberos.dir().display().to_string();
        self.kerberos = Some(kerberos);
        Ok(dir)
    }

    /// Each data server gets a device of its own, of so many MiB of memory, with what it holds. It is gone with the case.
    pub(super) fn give_devices(&mut self, mib: u32) -> Result<()> {
        self.stop()?;
        for number in 1..=self.data_servers {
            let place = self.data_dir().join(format!("ds{number}"));
            let aside = place.with_extension("before");
            fs::rename(&place, &aside)?;
            fs::create_dir(&place)?;
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=700"), "sluice"]).arg(&place);
            command::run(mount)?;
            self.devices.push(place.clone());
            let mut copy = Command::new("cp");
            copy.arg("-a").arg(aside.join(".")).arg(&place);
            command::run(copy)?;
            fs::remove_dir_all(aside)?;
        }
        self.start(&[])
    }

    /// Its processes by name: mds, ds1, ds2 ...
    pub(super) fn processes(&self) -> Result<BTreeMap<String, u32>> {
        let Some(process) = &self.process else { bail!("Sluice is not running") };
        let mut found = BTreeMap::new();
        for entry in fs::read_dir("/proc")? {
            let path = entry?.path();
            let Some(id) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
            // Processes come and go while we look.
            let Ok(stat) = fs::read_to_string(path.join("stat")) else { continue };
            let Ok(words) = fs::read(path.join("cmdline")) else { continue };
            if parent(&stat) == Some(process.id())
                && let Some(name) = role(&words)
            {
                found.insert(name, id);
            }
        }
        Ok(found)
    }

    /// Sends a signal to one process; waits for it if it is just being restarted.
    pub(super) fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        let limit = Instant::now() + RESTART;
        loop {
            let processes = self.processes()?;
            if let Some(id) = processes.get(name) {
                return kill(pid(*id), signal).with_context(|| format!("cannot signal {name}"));
            }
            if Instant::now() > limit {
                let names: Vec<_> = processes.into_keys().collect();
                bail!("no process of Sluice is called {name}; there are {}", names.join(" "));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops one process as an administrator does, and waits until its successor is there.
    pub(super) fn renew(&self, name: &str) -> Result<()> {
        let before = self.processes()?.get(name).copied();
        self.signal(name, Signal::SIGTERM)?;
        let limit = Instant::now() + STOP + RESTART;
        while self.processes()?.get(name).is_none_or(|id| Some(*id) == before) {
            if Instant::now() > limit {
                bail!("{name} did not stop and start again");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Keeps `up` from restarting what dies, or lets it.
    pub(super) fn freeze(&self, frozen: bool) {
        if let Some(process) = &self.process {
            process.signal(if frozen { Signal::SIGSTOP } else { Signal::SIGCONT });
        }
    }

    /// `sluice status --json`.
    pub(super) fn status(&self) -> Result<String> {
        output(self.command(&["status", "--json"]))
    }

    /// `sluice policy PATH POLICY`, and what else it is given.
    pub(super) fn policy(&self, path: &str, policy: &[&str]) -> Result<String> {
        output(self.command(&[&["policy", path], policy].concat()))
    }

    /// `sluice WORDS...`, of a command that knows its installation by --data-dir.
    pub(super) fn ask(&self, words: &[&str]) -> Result<String> {
        output(self.command(words))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--data-dir").arg(self.data_dir());
        command
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

fn said_since(log: &Path, from: u64, words: &str) -> Result<bool> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).contains(words))
}

/// The parent in /proc/PID/stat: the second field after the name, which may itself contain anything.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// What a child of `up` is, by its command line: `sluice mds ...`, `sluice ds --data-dir .../ds2 ...`.
fn role(words: &[u8]) -> Option<String> {
    let words = String::from_utf8_lossy(words);
    let words: Vec<&str> = words.split('\0').collect();
    match *words.get(1)? {
        "mds" => Some("mds".to_owned()),
        "ds" => {
            let at = words.iter().position(|word| *word == "--data-dir")?;
            Some(Path::new(words.get(at + 1)?).file_name()?.to_str()?.to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_recognised() {
        assert_eq!(parent("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(role(b"/x/sluice\0mds\0--data-dir\0/d/mds\0"), Some("mds".to_owned()));
        assert_eq!(role(b"/x/sluice\0ds\0--mds\0h\0--data-dir\0/d/ds12\0"), Some("ds12".to_owned()));
        assert_eq!(role(b"/x/sluice\0up\0"), None);
    }
}
