//! `sluice up` on this host for the time of a measurement.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use nix::sys::statfs::{EXT4_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, statfs};
use nix::unistd::{SysconfVar, sysconf};
use tempfile::TempDir;

use super::Store;
use crate::guest::process::Group;

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(30);
/// What `up` prints when clients can mount.
const READY: &str = "Sluice is ready";

/// How `up` and the environment call what leads to the tests' cluster.
const CLUSTER: [(&str, &str); 2] =
    [("--fdb-cluster-file", "SLUICE_FDB_CLUSTER_FILE"), ("--fdb-library", "SLUICE_FDB_LIBRARY")];

/// An installation that runs as long as the value lives.
#[derive(Debug)]
pub(super) struct Installation {
    program: PathBuf,
    process: Group,
    mds: SocketAddr,
    data_servers: u16,
    data: PathBuf,
    // After the processes that write there: the log, and `data`, if it was not told where else.
    home: TempDir,
}

/// What a process has used so far.
#[derive(Debug)]
pub(super) struct Usage {
    pub(super) name: String,
    pub(super) peak_bytes: u64,
    pub(super) cpu_seconds: f64,
}

/// A server process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    fn folder(self) -> PathBuf {
        Path::new("/proc").join(self.0.to_string())
    }

    pub(super) fn usage(self, name: String) -> Result<Usage> {
        Usage::of(&self.folder(), name)
    }

    /// Also of a thread of the kernel, which has no memory of its own.
    pub(super) fn cpu_seconds(self) -> Result<f64> {
        cpu_seconds(&self.folder())
    }

    /// Bytes in memory now.
    pub(crate) fn resident(self) -> Result<u64> {
        bytes_of(&fs::read_to_string(self.folder().join("status"))?, "VmRSS:")
    }

    /// Open files, sockets among them.
    pub(crate) fn descriptors(self) -> Result<u64> {
        Ok(fs::read_dir(self.folder().join("fd"))?.count() as u64)
    }

    pub(crate) fn threads(self) -> Result<u64> {
        Ok(fs::read_dir(self.folder().join("task"))?.count() as u64)
    }

    /// The peak begins anew at what is in memory now. proc_pid_clear_refs(5).
    pub(super) fn reset_peak(self) -> Result<()> {
        fs::write(self.folder().join("clear_refs"), "5").context("cannot reset the peak of a server's memory")
    }
}

/// A line of /proc/PID/status.
fn bytes_of(status: &str, name: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib: Option<u64> = line.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.map(|kib| kib << 10).context("/proc/PID/status has another form")
}

/// What the servers did since they started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Durable transactions of the metadata server, and the flushes that they shared.
    pub(super) transactions: u64,
    pub(super) groups: u64,
    /// Its transactions that read, their reads, and attempts that lost against another.
    pub(super) views: u64,
    pub(super) reads: u64,
    pub(super) conflicts: u64,
    /// Calls to data servers, and of data servers, heartbeats aside.
    pub(super) orders: u64,
    pub(super) reports: u64,
    /// Of the devices of all data servers.
    pub(super) flushes: u64,
}

impl Work {
    fn of(status: &serde_json::Value) -> Option<Self> {
        let mds = status.get("mds")?;
        let count = |name: &str| mds.get(name)?.as_u64();
        let flushes = status.get("data_servers")?.as_array()?.iter();
        Some(Self {
            transactions: count("transactions")?,
            groups: count("transaction_groups")?,
            views: count("read_versions")?,
            reads: count("reads")?,
            conflicts: count("transaction_conflicts")?,
            orders: count("orders")?,
            reports: count("reports")?,
            flushes: flushes.map(|server| server.get("flushes")?.as_u64()).sum::<Option<u64>>()?,
        })
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            transactions: self.transactions.saturating_sub(before.transactions),
            groups: self.groups.saturating_sub(before.groups),
            views: self.views.saturating_sub(before.views),
            reads: self.reads.saturating_sub(before.reads),
            conflicts: self.conflicts.saturating_sub(before.conflicts),
            orders: self.orders.saturating_sub(before.orders),
            reports: self.reports.saturating_sub(before.reports),
            flushes: self.flushes.saturating_sub(before.flushes),
        }
    }
}

/// The program to measure: as told, or beside this one, or in the workspace.
pub(super) fn program(told: Option<&Path>) -> Result<PathBuf> {
    if let Some(told) = told {
        return told.canonicalize().with_context(|| format!("no program at {}", told.display()));
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("sluice")));
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/sluice");
    let found = beside.into_iter().chain([workspace]).find(|path| path.is_file());
    found.context("no sluice to measure: `cargo build --release` makes one, --sluice names another")
}

impl Installation {
    pub(super) fn start(
        program: &Path,
        below: Option<&Path>,
        data_servers: u16,
        store: Store,
    ) -> Result<Self> {
        Self::start_with(program, below, data_servers, store, &[])
    }

    /// The same with more options of `sluice up`. A new one; removed with the value.
    pub(super) fn start_with(
        program: &Path,
        below: Option<&Path>,
        data_servers: u16,
        store: Store,
        options: &[&str],
    ) -> Result<Self> {
        let below = below.map_or_else(std::env::temp_dir, Path::to_owned);
        fs::create_dir_all(&below).with_context(|| format!("cannot make {}", below.display()))?;
        let home = tempfile::Builder::new().prefix("sluice-bench-").tempdir_in(&below)?;
        let data = home.path().join("data");
        Self::start_at(program, home, data, data_servers, store, options)
    }

    /// The same on `data`, which stays.
    pub(super) fn start_at(
        program: &Path,
        home: TempDir,
        data: PathBuf,
        data_servers: u16,
        store: Store,
        options: &[&str],
    ) -> Result<Self> {
        let port = free_ports(data_servers)?;
        let log = File::create(home.path().join("log"))?;
        let mut command = Command::new(program);
        command.arg("up").arg("--data-dir").arg(&data);
        command.args(["--data-servers", &data_servers.to_string(), "--port", &port.to_string()]);
        command.args(options);
        if store == Store::Foundationdb {
            command.args(["--store", "foundationdb", "--fdb-name", &format!("bench-{}", std::process::id())]);
            for (option, variable) in CLUSTER {
                let value = std::env::var_os(variable);
                command.arg(option).arg(value.with_context(|| format!("{variable} is not set"))?);
            }
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = Group::spawn(command)?;
        let mds = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let mut installation = Self { program: program.to_owned(), process, mds, data_servers, data, home };
        installation.wait_ready()?;
        // What is measured is asked for: files are at data servers unless a part says otherwise.
        installation.keep_inline("off")?;
        Ok(installation)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let limit = Instant::now() + START;
        while !self.log().contains(READY) {
            if let Some(status) = self.process.wait_until(Instant::now() + Duration::from_millis(20))? {
                bail!("`sluice up` ended with {status}: {}", self.last_words());
            }
            if Instant::now() > limit {
                bail!("`sluice up` was not ready within {} s: {}", START.as_secs(), self.last_words());
            }
        }
        Ok(())
    }

    pub(super) fn mds(&self) -> SocketAddr {
        self.mds
    }

    fn log(&self) -> String {
        fs::read(self.home.path().join("log"))
            .map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The end of what the servers said.
    pub(super) fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// What was measured, where.
    pub(super) fn describe(&self) -> Result<String> {
        let kind = match statfs(self.home.path())?.filesystem_type() {
            EXT4_SUPER_MAGIC => "ext4".to_owned(),
            XFS_SUPER_MAGIC => "xfs".to_owned(),
            TMPFS_MAGIC => "tmpfs, where nothing is durable".to_owned(),
            other => format!("file system {:#x}", other.0),
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(format!(
            "{}: an MDS and {} data servers on one host with {processors} processors, data on {kind}",
            self.program.display(),
            self.data_servers,
        ))
    }

    /// Every server process.
    pub(super) fn usage(&self) -> Result<Vec<Usage>> {
        let mut found: Vec<Usage> = self
            .processes()?
            .into_iter()
            .map(|(name, process)| process.usage(name))
            .collect::<Result<_>>()?;
        found.sort_by(|a, b| (a.name != "mds", &a.name).cmp(&(b.name != "mds", &b.name)));
        Ok(found)
    }

    /// The server of that name: `mds`, `ds1` and so on.
    pub(super) fn process(&self, name: &str) -> Result<Process> {
        let mut all = self.processes()?.into_iter();
        let found = all.find(|(found, _)| found == name);
        found.map(|(_, process)| process).with_context(|| format!("there is no server {name}"))
    }

    fn processes(&self) -> Result<Vec<(String, Process)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let path = entry?.path();
            // Processes come and go while we look.
            let Ok(stat) = fs::read_to_string(path.join("stat")) else { continue };
            let Ok(words) = fs::read(path.join("cmdline")) else { continue };
            if parent(&stat) == Some(self.process.id())
                && let Some(name) = role(&words)
            {
                let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
                found.extend(number.map(|number| (name, Process(number))));
            }
        }
        Ok(found)
    }

    /// What `sluice status` counts.
    pub(super) fn work(&self) -> Result<Work> {
        let mut command = Command::new(&self.program);
        command.args(["status", "--json", "--data-dir"]).arg(&self.data);
        let output = command.stdin(Stdio::null()).output().context("sluice status")?;
        let status: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("sluice status --json")?;
        Work::of(&status).context("sluice status has another form")
    }

    /// Up to which size files are kept in the metadata, in directories made from now on.
    pub(super) fn keep_inline(&self, limit: &str) -> Result<()> {
        self.keep_inline_below("/", limit)
    }

    /// The same below a directory.
    pub(super) fn keep_inline_below(&self, directory: &str, limit: &str) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["policy", directory, "--inline", limit, "--data-dir"]).arg(&self.data);
        let output = command.stdin(Stdio::null()).output().context("sluice policy")?;
        if !output.status.success() {
            bail!("`sluice policy` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// CPU seconds of all servers so far.
    pub(super) fn cpu(&self) -> Result<f64> {
        Ok(self.usage()?.iter().map(|usage| usage.cpu_seconds).sum())
    }

    /// CPU seconds of the metadata server so far.
    pub(super) fn mds_cpu(&self) -> Result<f64> {
        let usage = self.usage()?;
        let mds = usage.iter().find(|usage| usage.name == "mds");
        mds.map(|mds| mds.cpu_seconds).context("the metadata server does not run")
    }

    /// As Ctrl-C does.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM);
        if self.process.wait_until(Instant::now() + STOP)?.is_none() {
            bail!("`sluice up` did not stop within {} s", STOP.as_secs());
        }
        Ok(())
    }
}

impl Usage {
    /// Of this process, which makes the load.
    pub(super) fn own() -> Result<Self> {
        Self::of(Path::new("/proc/self"), "test clients".to_owned())
    }

    fn of(process: &Path, name: String) -> Result<Self> {
        let status = fs::read_to_string(process.join("status"))?;
        let peak_bytes = bytes_of(&status, "VmHWM:")?;
        Ok(Self { name, peak_bytes, cpu_seconds: cpu_seconds(process)? })
    }
}

fn cpu_seconds(process: &Path) -> Result<f64> {
    let stat = fs::read_to_string(process.join("stat"))?;
    let per_second = sysconf(SysconfVar::CLK_TCK)?.unwrap_or(100) as f64;
    let ticks = ticks(&stat).context("/proc/PID/stat has another form")?;
    Ok(ticks as f64 / per_second)
}

/// What nobody has written yet is written, and nothing that is on a disk is in memory any more.
pub(super) fn drop_caches() -> Result<()> {
    nix::unistd::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop this machine's caches; it needs root")
}

/// Servers for comparison that cannot be run here.
pub(super) fn missing_peers() -> Vec<&'static str> {
    let peers = [
        ("the Linux kernel's NFS server", &["/proc/fs/nfsd/threads", "/usr/sbin/rpc.nfsd"][..]),
        ("NFS-Ganesha", &["/usr/bin/ganesha.nfsd", "/usr/sbin/ganesha.nfsd"][..]),
    ];
    let missing = peers.into_iter().filter(|(_, paths)| !paths.iter().any(|path| Path::new(path).exists()));
    missing.map(|(name, _)| name).collect()
}

/// The first of consecutive ports for the metadata server and its data servers, below the range from which
/// the kernel gives ports to clients: none of ours shall take one meanwhile.
fn free_ports(data_servers: u16) -> Result<u16> {
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    // Where to begin differs from process to process, so that two measurements seldom meet.
    let first = 20_000 + u16::try_from(std::process::id() % 100).unwrap_or(0) * 100;
    let mut bases = (first..32_000).step_by(usize::from(data_servers) + 1);
    bases
        .find(|base| (*base..=base + data_servers).all(free))
        .context("no free ports between 20000 and 32000")
}

fn fields(stat: &str) -> Option<std::str::Split<'_, char>> {
    Some(stat.rsplit_once(") ")?.1.split(' '))
}

fn parent(stat: &str) -> Option<u32> {
    fields(stat)?.nth(1)?.parse().ok()
}

/// utime and stime.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = fields(stat)?.skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// What a child of `up` is, by its command line.
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
    fn proc_is_understood() {
        let stat = "12 (a) b) S 7 12 12 0 -1 4194560 1 2 3 4 150 25 0 0 20";
        assert_eq!((parent(stat), ticks(stat)), (Some(7), Some(175)));
        let own = Usage::own().unwrap();
        assert!(own.peak_bytes > 1 << 20);
    }
}
