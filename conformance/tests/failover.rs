//! Two metadata servers on one FoundationDB cluster, as processes: the one that has the file system is stopped, the
//! other takes over, the first goes on. With a cluster: `cargo check-all --only foundationdb`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "real processes in real time")]

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use sluice_conformance::client::{Client, Identity};
use sluice_conformance::guest::process::Group;
use sluice_env::Env;
use sluice_kv::FoundationOptions;
use sluice_rpc::Tcp;
use sluice_xdr::nfs4::Attributes;

/// Requests that wait at the stopped server, and those that come after it goes on.
const REQUESTS: u32 = 32;

fn sluice() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(Path::parent).unwrap().join("sluice");
    assert!(built.is_file(), "cargo build -p sluice first: there is no {}", built.display());
    built
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// A metadata server of the file system that `options` name.
struct Server {
    process: Group,
    address: SocketAddr,
    log: PathBuf,
}

impl Server {
    fn start(home: &Path, name: &str, options: &FoundationOptions) -> Self {
        let (address, dir) = (free_address(), home.join(name));
        let log = home.join(format!("{name}.log"));
        let out = File::create(&log).unwrap();
        let mut command = Command::new(sluice());
        command.arg("mds").arg("--data-dir").arg(dir).arg("--key").arg(home.join("cluster.key"));
        command.args(["--listen", &address.to_string(), "--lease", "4", "--standby"]);
        command.args(["--store", "foundationdb", "--fdb-name", &options.name]);
        command.arg("--fdb-cluster-file").arg(options.cluster_file.as_ref().unwrap());
        command.arg("--fdb-library").arg(options.library.as_ref().unwrap());
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        Self { process: Group::spawn(command).unwrap(), address, log }
    }

    async fn serves(&self) {
        let limit = Instant::now() + Duration::from_secs(60);
        while tokio::net::TcpStream::connect(self.address).await.is_err() {
            assert!(Instant::now() < limit, "{}", self.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    async fn client(&self, name: &str) -> Client {
        let identity = Identity { slots: REQUESTS, ..Identity::new(name, "6.18.3") };
        Client::connect(Env::system(), Arc::new(Tcp), self.address, identity).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
async fn foundation_a_server_that_was_replaced_answers_nobody() {
    let options = FoundationOptions::of_tests()
        .expect("NOT RUN: FoundationDB: SLUICE_FDB_CLUSTER_FILE and SLUICE_FDB_LIBRARY are not set");
    let home = tempfile::tempdir().unwrap();
    sluice_rpc::ClusterKey::generate(&Env::system()).write(&home.path().join("cluster.key")).unwrap();
    let mut old = Server::start(home.path(), "old", &options);
    old.serves().await;
    let standby = Server::start(home.path(), "standby", &options);
    let client = old.client("before").await;
    let made = client.mkdir(client.root(), b"directory", 0o700).await.unwrap();
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(tokio::net::TcpStream::connect(standby.address).await.is_err(), "the first one lives");

    old.process.signal(Signal::SIGSTOP);
    let stopped = Instant::now();
    // These wait in its socket.
    let ask = |client: &Client| {
        let (client, handle) = (client.clone(), made.handle.clone());
        async move { client.once(looking(&handle)).await }
    };
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..REQUESTS / 2 {
        waiting.spawn(ask(&client));
    }
    standby.serves().await;
    let outage = stopped.elapsed();
    println!("the standby serves {:.1} s after the first one was stopped", outage.as_secs_f64());
    assert!(outage < Duration::from_secs(20), "{outage:?}");
    let after = standby.client("after").await;
    let found = after.lookup(after.root(), b"directory").await.unwrap();
    let values = Attributes { mode: Some(0o755), ..Attributes::default() };
    after.setattr(&found.handle, sluice_xdr::nfs4::stateid4::default(), &values).await.unwrap();

    old.process.signal(Signal::SIGCONT);
    for _ in 0..REQUESTS / 2 {
        waiting.spawn(ask(&client));
    }
    // Whatever succeeds now is said by a server that was replaced.
    let change = client.mkdir(client.root(), b"late", 0o700);
    assert!(tokio::time::timeout(Duration::from_secs(10), change).await.is_ok_and(|made| made.is_err()));
    while let Some(answer) = waiting.join_next().await {
        assert!(answer.unwrap().is_err(), "a stale reply");
    }
    let limit = Instant::now() + Duration::from_secs(15);
    let ended = old.process.wait_until(limit).unwrap();
    assert!(ended.is_some_and(|status| status.code() == Some(1)), "{}", old.said());
    assert!(old.said().contains("another metadata server has taken over"), "{}", old.said());
    assert!(after.lookup(after.root(), b"late").await.is_err());
    assert_eq!(after.getattr(&found.handle).await.unwrap().mode, Some(0o755));
}

fn looking(handle: &sluice_xdr::nfs4::nfs_fh4) -> Vec<sluice_xdr::nfs4::nfs_argop4> {
    use sluice_conformance::client::ops;
    use sluice_xdr::nfs4::{FATTR4_MODE, bitmap4};
    vec![ops::putfh(handle), ops::getattr(bitmap4::of(&[FATTR4_MODE]))]
}
