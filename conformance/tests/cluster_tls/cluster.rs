//! A FoundationDB cluster of one process on loopback, with TLS or without.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_conformance::external::fdb::{Programs, cluster_file};
use sluice_conformance::guest::process::Group;

use super::certificates::{Side, text};

/// Of a new cluster, until it takes transactions.
const START: Duration = Duration::from_secs(90);

/// Where they are is named for the whole step.
fn installed() -> Programs {
    let named = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .expect("NOT RUN: FoundationDB with TLS: SLUICE_FDB_PROGRAMS and SLUICE_FDB_LIBRARY are not set")
    };
    Programs { folder: named("SLUICE_FDB_PROGRAMS"), library: Some(named("SLUICE_FDB_LIBRARY")) }
}

pub(crate) struct Cluster {
    programs: Programs,
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
            programs: installed(),
            home: home.to_owned(),
            address,
            side: side.cloned(),
            process: None,
        };
        fs::write(cluster.file(), format!("test:test@{}\n", cluster.said())).unwrap();
        cluster.begin();
        cluster.programs.order(home, "configure new single memory", &cluster.tls(), START).unwrap();
        cluster
    }

    /// The cluster file.
    pub(crate) fn file(&self) -> PathBuf {
        cluster_file(&self.home)
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

    /// The client library.
    pub(crate) fn library(&self) -> String {
        self.programs.library.as_deref().map(text).unwrap_or_default()
    }

    fn tls(&self) -> Vec<String> {
        let Some(side) = &self.side else { return Vec::new() };
        let files = [
            ("--tls_certificate_file", &side.certificate),
            ("--tls_key_file", &side.key),
            ("--tls_ca_file", &side.ca),
        ];
        files.into_iter().flat_map(|(option, file)| [option.to_owned(), text(file)]).collect()
    }

    pub(crate) fn begin(&mut self) {
        let process = self.programs.serve(&self.home, ("data", &self.said()), &self.tls());
        self.process = Some(process.unwrap());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }
}

pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}
