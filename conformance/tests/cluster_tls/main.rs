//! A metadata server whose FoundationDB cluster speaks TLS, as an operator sees it: what serves, what is replaced while it
//! runs, and what is said when something does not fit. `cargo check-all --only foundationdb` with `fdbserver` (docs/TESTING.md).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "real processes in real time")]

mod certificates;
mod cluster;

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use sluice_conformance::client::{Client, Identity};
use sluice_conformance::guest::process::Group;
use sluice_env::Env;
use sluice_rpc::Tcp;

use certificates::{Authority, Side, text};
use cluster::{Cluster, free_address};

/// What starts, starts within this.
const PATIENCE: Duration = Duration::from_secs(60);
/// How soon the client library takes certificates that were replaced, and some time for a busy machine.
const RELOADED: Duration = Duration::from_secs(100);

fn sluice() -> Command {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(Path::parent).unwrap().join("sluice");
    assert!(built.is_file(), "cargo build -p sluice first: there is no {}", built.display());
    let mut command = Command::new(built);
    for name in ["CERTIFICATE_FILE", "KEY_FILE", "CA_FILE", "VERIFY_PEERS", "PASSWORD"] {
        command.env_remove(format!("FDB_TLS_{name}"));
    }
    command.stdin(Stdio::null());
    command
}

/// The options of everything that opens the metadata.
fn store(cluster: &Cluster, file: &Path, tls: &[String]) -> Vec<String> {
    let library = cluster.library();
    let mut options: Vec<_> =
        ["--store", "foundationdb", "--fdb-library", &library, "--fdb-cluster-file", &text(file)]
            .map(str::to_owned)
            .to_vec();
    options.extend_from_slice(tls);
    options
}

/// What a command says that ends.
fn said_by(mut command: Command) -> (bool, String) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// A metadata server.
struct Server {
    process: Group,
    address: SocketAddr,
    log: PathBuf,
}

impl Server {
    fn start(home: &Path, address: SocketAddr, options: &[String]) -> Self {
        let log = home.join("mds.log");
        let out = File::options().create(true).append(true).open(&log).unwrap();
        let mut command = sluice();
        command.arg("mds").args(options);
        command.stdout(out.try_clone().unwrap()).stderr(out);
        Self { process: Group::spawn(command).unwrap(), address, log }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Its last line.
    fn has_ended(&self) -> bool {
        self.said().lines().any(|line| line.starts_with("sluice: "))
    }

    async fn says(&self, what: &str, within: Duration) {
        let limit = Instant::now() + within;
        while !self.said().contains(what) {
            assert!(Instant::now() < limit && !self.has_ended(), "{what:?} is not in\n{}", self.said());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// While nobody listens, or the store is away, it comes again.
    async fn client(&self, name: &str, limit: Instant) -> Client {
        loop {
            let identity = Identity::new(name, "6.18.3");
            let why = match Client::connect(Env::system(), Arc::new(Tcp), self.address, identity).await {
                Ok(client) => return client,
                Err(why) => why,
            };
            assert!(Instant::now() < limit && !self.has_ended(), "{why}\n{}", self.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn stop(mut self) {
        self.process.signal(Signal::SIGTERM);
        let ended = self.process.wait_until(Instant::now() + PATIENCE).unwrap();
        assert!(ended.is_some_and(|status| status.success()), "{}", self.said());
    }
}

/// The options of a server in `home`.
fn serving(home: &Path, address: SocketAddr) -> Vec<String> {
    let key = home.join("installation.key");
    if !key.exists() {
        sluice_rpc::ClusterKey::generate(&Env::system()).write(&key).unwrap();
    }
    let (listen, dir) = (address.to_string(), text(&home.join("mds")));
    ["--listen", &listen, "--data-dir", &dir, "--key", &text(&key), "--lease", "4"]
        .map(str::to_owned)
        .to_vec()
}

/// What is said by `sluice meta check` with these options, which cannot succeed.
fn refusal(home: &Path, options: &[String], password: Option<&str>) -> String {
    let mut command = sluice();
    command.args(["meta", "check", "--data-dir", &text(&home.join("check"))]).args(options);
    if let Some(password) = password {
        command.env("FDB_TLS_PASSWORD", password);
    }
    let start = Instant::now();
    let (succeeded, said) = said_by(command);
    assert!(!succeeded, "{said}");
    assert!(start.elapsed() < PATIENCE, "{said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs FoundationDB: cargo check-all --only foundationdb"]
async fn foundation_with_tls_serves_and_starts_again() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let authority = Authority::new("authority");
    let cluster = Cluster::start(&home.join("fdb"), Some(&authority.sign(home, "cluster", 30)));
    let side = authority.sign(home, "server", 30);
    let pattern = ["--fdb-tls-verify-peers", "Check.Valid=1,S.CN=cluster"].map(str::to_owned);
    let options = store(&cluster, &cluster.file(), &[side.options(), pattern.to_vec()].concat());

    // By options.
    let address = free_address();
    let server = Server::start(home, address, &[serving(home, address), options.clone()].concat());
    let client = server.client("one", Instant::now() + PATIENCE).await;
    client.mkdir(client.root(), b"directory", 0o700).await.unwrap();
    server.stop();
    // By a file, with a key that has a password.
    side.lock("sesame");
    let keys = home.join("installation.key");
    let config = home.join("mds.toml");
    let text_of_config = format!(
        "[mds]\ndata-dir = {:?}\nkey = {keys:?}\nlisten = \"{address}\"\nlease = 4\nexisting = true\nstore = \"foundationdb\"\nfdb-cluster-file = {:?}\nfdb-library = {:?}\n{}fdb-tls-verify-peers = \"S.O=Example\"\n",
        home.join("mds"),
        cluster.file(),
        cluster.library(),
        side.keys(),
    );
    fs::write(&config, text_of_config).unwrap();
    let log = home.join("mds.log");
    let out = File::options().append(true).open(&log).unwrap();
    let mut command = sluice();
    command.args(["mds", "--config", &text(&config)]).env("FDB_TLS_PASSWORD", "sesame");
    command.stdout(out.try_clone().unwrap()).stderr(out);
    let server = Server { process: Group::spawn(command).unwrap(), address, log };
    let client = server.client("two", Instant::now() + PATIENCE).await;
    client.lookup(client.root(), b"directory").await.unwrap();
    server.stop();

    // Whatever else opens it.
    let meta = |arguments: &[&str], dir: &str| {
        let mut command = sluice();
        command.arg("meta").args(arguments).args(["--data-dir", &text(&home.join(dir))]).args(&options);
        command.env("FDB_TLS_PASSWORD", "sesame");
        let (succeeded, said) = said_by(command);
        assert!(succeeded, "{arguments:?}: {said}");
        said
    };
    let dump = text(&home.join("dump"));
    meta(&["check"], "mds");
    meta(&["dump", &dump], "mds");
    meta(&["load", &dump, "--fdb-name", "loaded"], "loaded");
    meta(&["check", "--fdb-name", "loaded"], "loaded");
}

/// Both sides' certificates change, and their authority, while the server runs; then no connection is left from before.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs FoundationDB: cargo check-all --only foundationdb"]
async fn foundation_with_tls_takes_certificates_that_were_replaced() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let before = Authority::new("before");
    let mut cluster = Cluster::start(&home.join("fdb"), Some(&before.sign(home, "cluster", 30)));
    let side = before.sign(home, "server", 4);
    let address = free_address();
    let options = store(&cluster, &cluster.file(), &side.options());
    let server = Server::start(home, address, &[serving(home, address), options].concat());
    let client = server.client("one", Instant::now() + PATIENCE).await;
    server.says("is good until", PATIENCE).await;

    // The library compares times in whole seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = Authority::new("after");
    after.sign(home, "cluster", 30);
    after.sign(home, "server", 30);
    cluster.kill();
    cluster.begin();
    let replaced = Instant::now();
    // What was asked for meanwhile waits for the cluster, as long as this client has the patience (60 s).
    let asked = client.mkdir(client.root(), b"one", 0o700).await;
    println!("asked meanwhile: {:?}", asked.map(drop));
    let again = server.client("two", replaced + RELOADED).await;
    again.mkdir(again.root(), b"two", 0o700).await.unwrap();
    println!(
        "the cluster is had again {:.0} s after all certificates were replaced",
        replaced.elapsed().as_secs_f64()
    );
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs FoundationDB: cargo check-all --only foundationdb"]
async fn foundation_with_tls_says_what_does_not_fit() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let (authority, other) = (Authority::new("authority"), Authority::new("other"));
    let of_cluster = authority.sign(home, "cluster", 30);
    let cluster = Cluster::start(&home.join("fdb"), Some(&of_cluster));
    let good = authority.sign(home, "server", 30);
    let file = cluster.file();
    let refused = |file: &Path, tls: &[String]| refusal(home, &store(&cluster, file, tls), None);
    let says = |said: String, parts: &[&str]| {
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in\n{said}");
        }
        // A throttle of the cluster: a client that was refused twice waits for nine seconds.
        std::thread::sleep(Duration::from_secs(10));
    };

    // What is told before the cluster is asked.
    says(refused(&file, &[]), &["cannot use FoundationDB", "speaks TLS", "--fdb-tls-certificate"]);
    let strange = Side { key: of_cluster.key.clone(), ..good.clone() };
    says(refused(&file, &strange.options()), &["is not that of the certificate"]);
    let over = authority.sign(home, "over", 0);
    says(refused(&file, &over.options()), &["has expired", "replace it"]);
    let locked = authority.sign(home, "locked", 30);
    locked.lock("sesame");
    let options = store(&cluster, &file, &locked.options());
    says(refusal(home, &options, Some("wrong")), &["FDB_TLS_PASSWORD is not the password of the key"]);

    // What the cluster is asked for.
    let unknown = other.sign(home, "unknown", 30);
    let unknown = Side { ca: good.ca.clone(), ..unknown };
    says(
        refused(&file, &unknown.options()),
        &["does not believe the certificate of this client", "CN=unknown"],
    );
    let wrong = Side { ca: other.sign(home, "wrong", 30).ca, ..good.clone() };
    says(refused(&file, &wrong.options()), &["none of the authorities has signed it", "wrong-ca.pem"]);
    let pattern = ["--fdb-tls-verify-peers", "S.CN=somebody"].map(str::to_owned);
    says(
        refused(&file, &[good.options(), pattern.to_vec()].concat()),
        &["does not say what --fdb-tls-verify-peers", "CN=cluster"],
    );
    let clear = cluster.file_saying("");
    says(refused(&clear, &good.options()), &["speaks TLS, and the cluster file", "write `:tls`"]);
    says(refused(&clear, &[]), &["speaks TLS, and the cluster file", "write `:tls`"]);
    let in_clear = Cluster::start(&home.join("clear"), None);
    let options = store(&in_clear, &in_clear.file_saying(":tls"), &good.options());
    says(refusal(home, &options, None), &["take `:tls` from the address"]);

    // A server goes on trying, and says so with the reason.
    let address = free_address();
    let options = store(&cluster, &file, &wrong.options());
    let server = Server::start(home, address, &[serving(home, address), options].concat());
    server.says("does not answer; trying again", PATIENCE).await;
    server.says("none of the authorities has signed it", PATIENCE).await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "it serves nobody meanwhile");
}
