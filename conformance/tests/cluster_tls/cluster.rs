//! A FoundationDB cluster of one process on loopback, with TLS or without.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use sluice_conformance::guest::process::Group;

use super::certificates::{Side, text};

/// Of a new cluster, until it takes transactions.
const START: Duration = Duration::from_secs(90);

/// Where the programs and the client library are.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    programs: PathBuf,
    pub(crate) library: PathBuf,
}

impl Installed {
    pub(crate) fn named() -> Self {
        let named = |name| {
            std::env::var_os(name).map(PathBuf::from).expect(
                "NOT RUN: FoundationDB with TLS: SLUICE_FDB_PROGRAMS and SLUICE_FDB_LIBRARY are not set",
            )
        };
        Self { programs: named("SLUICE_FDB_PROGRAMS"), library: named("SLUICE_FDB_LIBRARY") }
    }

    fn program(&self, name: &str) -> PathBuf {
        let here = self.programs.join(name);
        if here.exists() { here } else { name.into() }
    }
}

pub(crate) struct Cluster {
    pub(crate) installed: Installed,
    home: PathBuf,
    address: SocketAddr,
    side: Option<Side>,
    process: Option<Group>,
}

impl Cluster {
    /// A new one that keeps everything in `home`; with TLS if it has `side`.
    pub(crate) fn start(home: &Path, side: Option<&Side>) -> Self {
        fs::create_dir_all(home).unwrap();
        let address = free_address();
        let mut cluster = Self {
            installed: Installed::named(),
            home: home.to_owned(),
            address,
            side: side.cloned(),
            process: None,
        };
        fs::write(cluster.file(), format!("test:test@{}\n", cluster.said())).unwrap();
        cluster.begin();
        cluster.until("configure new single memory");
        cluster
    }

    /// The cluster file.
    pub(crate) fn file(&self) -> PathBuf {
        self.home.join("fdb.cluster")
    }

    fn said(&self) -> String {
        format!("{}{}", self.address, if self.side.is_some() { ":tls" } else { "" })
    }

    /// Another cluster file for it, which says `suffix` behind the address.
    pub(crate) fn file_saying(&self, suffix: &str) -> PathBuf {
        let file = self.home.join(format!("other{}.cluster", suffix.replace(':', "-")));
        fs::write(&file, format!("test:test@{}{suffix}\n", self.address)).unwrap();
        file
    }

    fn tls(&self, command: &mut Command) {
        if let Some(side) = &self.side {
            command.arg("--tls_certificate_file").arg(&side.certificate);
            command.arg("--tls_key_file").arg(&side.key).arg("--tls_ca_file").arg(&side.ca);
        }
    }

    pub(crate) fn begin(&mut self) {
        let (data, logs) = (self.home.join("data"), self.home.join("logs"));
        fs::create_dir_all(&data).unwrap();
        fs::create_dir_all(&logs).unwrap();
        let mut command = Command::new(self.installed.program("fdbserver"));
        command.args(["-p", &self.said(), "-C", &text(&self.file())]);
        command.args(["-d", &text(&data), "-L", &text(&logs)]);
        self.tls(&mut command);
        let out = File::options().create(true).append(true).open(self.home.join("said")).unwrap();
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        self.process = Some(Group::spawn(command).unwrap());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.signal(Signal::SIGKILL);
        }
    }

    /// One command of fdbcli, repeated until it succeeds.
    fn until(&self, what: &str) {
        let limit = Instant::now() + START;
        loop {
            let mut command = Command::new(self.installed.program("fdbcli"));
            command.arg("-C").arg(self.file()).args(["--timeout", "20", "--exec", what]);
            self.tls(&mut command);
            let output = command.stdin(Stdio::null()).output().unwrap();
            if output.status.success() {
                return;
            }
            let (asked, serves) = (output.stdout, fs::read(self.home.join("said")).unwrap());
            let said = String::from_utf8([asked, serves].concat()).unwrap();
            assert!(Instant::now() < limit && !said.contains("ERROR:"), "fdbcli: {what}: {said}");
        }
    }
}

pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}
