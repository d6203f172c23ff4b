//! A metadata server as a process: when it does not begin, and when it ends so that it is started again.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "processes are waited for in real time")]

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");
const PATIENCE: Duration = Duration::from_secs(60);

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn sluice(arguments: &[&str]) -> std::process::Output {
    Command::new(SLUICE).args(arguments).output().unwrap()
}

/// A metadata server that answers, with what it says from then on. A file that becomes too long is an error to it, and does
/// not kill it.
fn start(dir: &Path, port: u16) -> (Child, BufReader<std::process::ChildStderr>) {
    let line = r#"trap "" XFSZ; exec "$0" mds --data-dir "$1" --listen "127.0.0.1:$2""#;
    let mut server = Command::new("sh")
        .args(["-c", line, SLUICE])
        .arg(dir)
        .arg(port.to_string())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("metadata server ready") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it did not start");
    }
    (server, log)
}

fn ended(server: &mut Child) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = server.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > PATIENCE {
            server.kill().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_whose_store_fails_ends_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("cluster.key");
    assert!(sluice(&["key", "new", key.to_str().unwrap()]).status.success());
    let port = free_port();
    let (mut server, mut log) = start(dir.path(), port);
    // The device takes no more, as far as this process is concerned.
    let pid = server.id().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--fsize=1"]).status().unwrap().success());
    let at = format!("127.0.0.1:{port}");
    let change = ["policy", "/", "wide", "--mds", &at, "--key", key.to_str().unwrap()];
    assert!(!sluice(&change).status.success(), "nothing can be written");
    assert_eq!(ended(&mut server).code(), Some(1));
    let mut said = String::new();
    log.read_to_string(&mut said).unwrap();
    let failed = said.lines().filter(|line| line.contains("the metadata store failed")).count();
    assert_eq!(failed, 1, "{said}");
    let last = said.lines().last().unwrap();
    let metadata = dir.path().join("metadata");
    assert!(last.starts_with(&format!("sluice: {}: ", metadata.display())), "{said}");
    assert!(last.contains("File too large") && last.contains("free space there"), "{said}");
    // And the next one goes on with what was committed.
    let (mut server, _log) = start(dir.path(), port);
    assert!(sluice(&change).status.success());
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn exports_have_names_of_this_hosts_name_service() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("cluster.key");
    assert!(sluice(&["key", "new", key.to_str().unwrap()]).status.success());
    let port = free_port();
    let at = format!("127.0.0.1:{port}");
    let export = |arguments: &[&str]| {
        sluice(&[&["export"], arguments, &["--mds", &at, "--key", key.to_str().unwrap()]].concat())
    };
    let said = |output: &std::process::Output| {
        String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
    };
    let (mut server, _log) = start(dir.path(), port);
    let set = export(&["set", "/", "--client", "LocalHost,*.example.com", "--read-only"]);
    assert!(set.status.success(), "{}", said(&set));
    for (clients, words) in [
        ("sluice.invalid", "sluice.invalid: the name service of the metadata server's host"),
        (
            "@sluice-has-no-such-group",
            "@sluice-has-no-such-group: the name service of the metadata server's host",
        ),
        ("10.0.0", "names no clients"),
    ] {
        let refused = export(&["set", "/", "--client", clients]);
        assert!(!refused.status.success() && said(&refused).contains(words), "{}", said(&refused));
    }
    server.kill().unwrap();
    server.wait().unwrap();
    // The next one knows it still.
    let (mut server, _log) = start(dir.path(), port);
    let list = said(&export(&["list", "--json"]));
    let (names, refreshed) = (said(&export(&["names", "--json"])), said(&export(&["refresh", "--json"])));
    server.kill().unwrap();
    server.wait().unwrap();
    for (clients, kind) in [("localhost", "host"), ("*.example.com", "wildcard"), ("127.0.0.0/8", "network")]
    {
        let (clients, kind) = (format!("\"clients\": \"{clients}\""), format!("\"kind\": \"{kind}\""));
        assert!(list.contains(&clients) && list.contains(&kind), "{list}");
    }
    for told in [names, refreshed] {
        assert!(told.contains("\"name\": \"localhost\"") && told.contains("\"127.0.0.1\""), "{told}");
    }
}

#[test]
fn a_metrics_port_that_is_taken_is_told_before_anything_is_begun() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("cluster.key");
    assert!(sluice(&["key", "new", key.to_str().unwrap()]).status.success());
    let (taken, port) = (TcpListener::bind("127.0.0.1:0").unwrap(), free_port());
    let (at, metrics) = (format!("127.0.0.1:{port}"), taken.local_addr().unwrap().to_string());
    let refused =
        sluice(&["mds", "--data-dir", dir.path().to_str().unwrap(), "--listen", &at, "--metrics", &metrics]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("choose another port with --metrics") && !said.contains("ready"), "{said}");
    // Nobody was told to reclaim: the next start is the first.
    let (mut server, _log) = start(dir.path(), port);
    let status = sluice(&["status", "--json", "--mds", &at, "--key", key.to_str().unwrap()]);
    server.kill().unwrap();
    server.wait().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("\"epoch\": 1,"), "{status}");
}

/// What a start says that is refused. One that is not would go on for ever.
fn refused(arguments: &[&str]) -> String {
    let outcome = Command::new("timeout").args(["60", SLUICE]).args(arguments).output().unwrap();
    let said = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{said}");
    said
}

#[test]
fn a_port_that_is_taken_is_told_before_anything_is_begun() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("cluster.key");
    assert!(sluice(&["key", "new", key.to_str().unwrap()]).status.success());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let said = refused(&["mds", "--data-dir", dir.path().to_str().unwrap(), "--listen", &at]);
    assert!(said.contains("choose another port with --listen"), "{said}");
    assert!(!dir.path().join("metadata").exists(), "{said}");
}

#[test]
fn a_dump_can_be_piped_on_and_a_wrong_key_is_called_that() {
    let (dir, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let text = |dir: &tempfile::TempDir, name| dir.path().join(name).to_str().unwrap().to_owned();
    let key = text(&dir, "cluster.key");
    let (other, dumped) = (text(&beside, "other.key"), text(&beside, "dumped"));
    for key in [&key, &other] {
        assert!(sluice(&["key", "new", key]).status.success());
    }
    let port = free_port();
    let at = format!("127.0.0.1:{port}");
    let (mut server, _log) = start(dir.path(), port);
    let dump = sluice(&["meta", "dump", "-", "--mds", &at, "--key", &key]);
    let wrong = sluice(&["status", "--mds", &at, "--key", &other]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(dump.status.success() && !dump.stdout.is_empty());
    std::fs::write(&dumped, dump.stdout).unwrap();
    let checked = sluice(&["meta", "check", "--file", &dumped]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(!Path::new("-").exists());
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(said.contains("is --key (or --data-dir) that of this file system?"), "{said}");
}

#[test]
fn a_copy_of_a_store_is_adopted_and_goes_on() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (key, here, there) = (text(&dir.path().join("cluster.key")), text(dir.path()), text(copy.path()));
    assert!(sluice(&["key", "new", &key]).status.success());
    let port = free_port();
    let at = format!("127.0.0.1:{port}");
    let (mut server, _log) = start(dir.path(), port);
    assert!(sluice(&["policy", "/", "wide", "--mds", &at, "--key", &key]).status.success());
    let said = refused(&["meta", "adopt", "--data-dir", &here]);
    assert!(said.contains("a metadata server is running with") && said.contains("stop it first"), "{said}");
    server.kill().unwrap();
    server.wait().unwrap();
    let said = refused(&["meta", "adopt", "--data-dir", &there]);
    assert!(said.contains("there is no metadata in"), "{said}");
    let copied = Command::new("cp").arg("-r").arg(dir.path().join("metadata")).arg(&there).status();
    assert!(copied.unwrap().success());
    let adopted = sluice(&["meta", "adopt", "--data-dir", &there]);
    let said = String::from_utf8(adopted.stdout).unwrap();
    let name = text(&copy.path().join("metadata"));
    assert!(
        adopted.status.success() && said.starts_with(&format!("{name}: adopted: files go on from")),
        "{said}"
    );
    assert!(
        said.contains("data files from 42949672") && said.contains("starts from epoch 65537\n"),
        "{said}"
    );
    assert!(said.contains("\nstart the metadata server on this copy, and on no other"), "{said}");
    assert!(said.contains("`sluice ds audit`"), "{said}");
    assert!(said.contains("`sluice mirror compare --all`"), "{said}");
    let checked = sluice(&["meta", "check", "--data-dir", &there]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    std::fs::copy(&key, copy.path().join("cluster.key")).unwrap();
    let (mut server, _log) = start(copy.path(), port);
    let status = sluice(&["status", "--json", "--mds", &at, "--key", &key]);
    let policy = sluice(&["policy", "/", "--mds", &at, "--key", &key]);
    server.kill().unwrap();
    server.wait().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("\"epoch\": 65538,"), "{status}");
    let policy = String::from_utf8(policy.stdout).unwrap();
    assert!(policy.contains("wide"), "{policy}");
}

/// What a restart finds where its device was: nothing, or other things. None of it becomes a file system.
#[test]
fn no_file_system_is_made_where_one_may_have_been() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("cluster.key");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    assert!(sluice(&["key", "new", &text(&key)]).status.success());
    let at = format!("127.0.0.1:{}", free_port());
    let data = text(dir.path());
    let said = refused(&["mds", "--data-dir", &data, "--listen", &at, "--existing"]);
    assert!(said.contains("is the device mounted?"), "{said}");
    std::fs::write(dir.path().join("photos"), "").unwrap();
    let said = refused(&["mds", "--data-dir", &data, "--listen", &at]);
    assert!(said.contains("is not empty (photos)"), "{said}");
    assert!(!dir.path().join("metadata").exists());
    // An installation that was in use, without its metadata.
    let installation = dir.path().join("up");
    std::fs::create_dir(&installation).unwrap();
    std::fs::copy(&key, installation.join("cluster.key")).unwrap();
    let shape = r#"{"format": 1, "data_servers": 1, "started": 1, "mds": "127.0.0.1:2049"}"#;
    std::fs::write(installation.join("installation.json"), shape).unwrap();
    let port = free_port().to_string();
    let said = refused(&["up", "--data-dir", &text(&installation), "--port", &port]);
    assert!(said.contains("is the device mounted?"), "{said}");
    assert!(!installation.join("mds").exists());
}

/// Another one may be at work there.
#[test]
fn an_installation_is_left_as_it_is_by_a_start_that_fails() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (data, port) = (dir.path().join("up"), taken.local_addr().unwrap().port().to_string());
    let up = |more: &[&str]| {
        let line = ["up", "--data-dir", data.to_str().unwrap(), "--port", &port];
        refused(&[&line, more].concat())
    };
    assert!(up(&[]).contains("choose another port"));
    assert!(up(&["--mirrors", "3", "--data-servers", "2"]).contains("needs 3 data servers, and there are 2"));
    assert!(!data.exists());
    std::fs::create_dir(&data).unwrap();
    let held = std::fs::File::open(&data).unwrap();
    held.try_lock().unwrap();
    let shape = r#"{"format": 1, "data_servers": 1, "started": 0, "mds": "127.0.0.1:2049"}"#;
    std::fs::write(data.join("installation.json"), shape).unwrap();
    let said = up(&["--data-servers", "3"]);
    assert!(said.contains("another `sluice up` runs with"), "{said}");
    drop(held);
    assert!(up(&["--data-servers", "3"]).contains("choose another port"));
    assert_eq!(std::fs::read_to_string(data.join("installation.json")).unwrap(), shape);
}

#[test]
fn who_holds_files_is_asked_and_broken_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("cluster.key");
    assert!(sluice(&["key", "new", key.to_str().unwrap()]).status.success());
    let port = free_port();
    let (mut server, _log) = start(dir.path(), port);
    let at = format!("127.0.0.1:{port}");
    let lock = |arguments: &[&str]| {
        let all = [&["lock"], arguments, &["--mds", &at, "--key", key.to_str().unwrap()]].concat();
        let ended = sluice(&all);
        let said = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
        (ended.status.code(), said.trim_end().to_owned())
    };
    let told = |code, said: &str| (Some(code), said.to_owned());
    assert_eq!(lock(&["list"]), told(0, "nobody holds anything"));
    assert_eq!(lock(&["list", "--json"]), told(0, ""));
    let directory = "sluice: /: is a directory: layouts and locks are of files";
    assert_eq!(lock(&["list", "/"]), told(1, directory));
    assert_eq!(lock(&["break", "/"]), told(1, directory));
    assert!(lock(&["list", "--client", "10.0.0.9"]).1.contains("no client is 10.0.0.9"));
    assert_eq!(lock(&["list", ""]).0, Some(2));
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Numbers that no user of this host has.
const SOMEBODY: u32 = 47_110;
const ANOTHER: u32 = 47_111;

/// What a start as SOMEBODY says, which is refused.
fn refused_to_somebody(arguments: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.args(["60", SLUICE]).args(arguments).uid(SOMEBODY).gid(SOMEBODY);
    let outcome = command.output().unwrap();
    let said = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{said}");
    said
}

#[test]
fn a_store_is_its_directorys_owners_and_what_is_anothers_is_told_with_whose_it_is() {
    if !nix::unistd::geteuid().is_root() {
        writeln!(std::io::stderr(), "NOT RUN: only root may give files away").unwrap();
        return;
    }
    let (dir, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (key, own) = (dir.path().join("cluster.key"), home.path().join("own.key"));
    let disk = home.path().join("disk");
    std::fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(&disk).unwrap();
    assert!(sluice(&["key", "new", key.to_str().unwrap()]).status.success());
    std::fs::copy(&key, &own).unwrap();
    for given in [&disk, &own] {
        chown(given, Some(SOMEBODY), None).unwrap();
    }
    let port = free_port();
    let (mut server, _log) = start(dir.path(), port);
    let (at, listen) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", free_port()));
    let options = ["--mds", &at, "--data-dir", disk.to_str().unwrap(), "--key", own.to_str().unwrap()];
    let options = [&options[..], &["--listen", &listen]].concat();
    let added = sluice(&[&["ds", "add"], &options[..]].concat());
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    let store = disk.join("store");
    for made in
        [&store, &store.join("superblock"), &store.join("boot"), &store.join("journal"), &store.join("data")]
    {
        assert_eq!(std::fs::metadata(made).unwrap().uid(), SOMEBODY, "{}", made.display());
    }
    // It comes from a host where another has that number.
    let serve = [&["ds"], &options[..]].concat();
    let all = |owner: u32| {
        let given = Command::new("chown").args(["-R", &owner.to_string()]).arg(&store).status();
        assert!(given.unwrap().success());
    };
    all(ANOTHER);
    let said = refused_to_somebody(&serve);
    let advice =
        "it belongs to 47111, and this runs as 47110: run it as 47111, or give it away: chown -R 47110:";
    let name = store.display();
    assert!(said.contains(&format!("{name}: permission denied; {advice} {name}")), "{said}");
    // One file alone, as something that was run as another user leaves it.
    all(SOMEBODY);
    chown(store.join("boot"), Some(ANOTHER), None).unwrap();
    let said = refused_to_somebody(&serve);
    assert!(said.contains(&format!("{name}/boot: permission denied; {advice} {name}")), "{said}");
}

#[test]
fn a_key_that_is_anothers_is_told_with_whose_it_is() {
    if !nix::unistd::geteuid().is_root() {
        writeln!(std::io::stderr(), "NOT RUN: only root may become another user").unwrap();
        return;
    }
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
    let key = home.path().join("cluster.key");
    assert!(sluice(&["key", "new", key.to_str().unwrap()]).status.success());
    let (data, key) = (home.path().to_str().unwrap(), key.to_str().unwrap());
    let told = format!(
        "cannot read the cluster key {key}: Permission denied (os error 13); it belongs to root, and this runs as 47110: run it as root, or give it away: chown 47110: {key}"
    );
    for server in [&["mds"][..], &["ds", "--mds", "127.0.0.1"]] {
        let said = refused_to_somebody(&[server, &["--data-dir", data, "--listen", "127.0.0.1:0"]].concat());
        assert!(said.contains(&told), "{said}");
    }
}

#[test]
fn a_store_is_made_once_for_each_device() {
    let (dir, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let key = dir.path().join("cluster.key");
    assert!(sluice(&["key", "new", key.to_str().unwrap()]).status.success());
    let port = free_port();
    let (mut server, _log) = start(dir.path(), port);
    let (at, listen) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", free_port()));
    let data = home.path().to_str().unwrap();
    let add = ["ds", "add", "--once", "--mds", &at, "--data-dir", data, "--key", key.to_str().unwrap()];
    let add = [&add[..], &["--listen", &listen]].concat();
    let said = || {
        let added = sluice(&add);
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
        String::from_utf8(added.stdout).unwrap()
    };
    assert!(said().starts_with("data server 1 is added"));
    let there = format!("{data} has a store already: it is left as it is\n");
    assert_eq!(said(), there);
    // The device is not mounted.
    let (store, away) = (home.path().join("store"), home.path().join("away"));
    std::fs::rename(&store, &away).unwrap();
    let refusal = refused(&add);
    assert!(
        refusal.contains(&format!("data server 1 is registered at {listen}, and {data} has no store")),
        "{refusal}"
    );
    assert!(refusal.contains("is the device mounted?") && !store.exists(), "{refusal}");
    std::fs::rename(&away, &store).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(said(), there, "nobody needs to be asked");
}

/// Where the one `sluice up` is, and the other. Their ports are not among those that other tests choose.
const HOST: &str = "127.0.7.1";
const OTHER: &str = "127.0.7.2";

/// `sluice up` in a directory that it knows, until it is to stop.
struct Up(Child);

impl Up {
    fn start(dir: &Path, host: &str, port: u16, data_servers: u16) -> Self {
        let mut command = Command::new(SLUICE);
        command.args(["up", "--data-servers", &data_servers.to_string()]);
        command.args(["--listen", host, "--port", &port.to_string()]);
        command.arg("--data-dir").arg(dir);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn stop(mut self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        assert!(ended(&mut self.0).success());
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The data servers that are not removed, once so many of them are connected.
fn connected(home: &Path, wanted: usize) -> Vec<serde_json::Value> {
    let began = Instant::now();
    loop {
        let asked = sluice(&["status", "--json", "--data-dir", home.to_str().unwrap()]);
        let said: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap_or_default();
        let all = said["data_servers"].as_array().cloned().unwrap_or_default();
        if all.iter().filter(|server| server["health"] == "ok").count() == wanted {
            return all;
        }
        assert!(began.elapsed() < PATIENCE, "{said} {}", String::from_utf8_lossy(&asked.stderr));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Once `up` knows, too, that so many have started.
fn noted(home: &Path, data_servers: u16) {
    let (begun, wanted) = (Instant::now(), format!("\"started\": {data_servers}"));
    while !std::fs::read_to_string(home.join("installation.json")).unwrap().contains(&wanted) {
        assert!(begun.elapsed() < PATIENCE, "it does not note that all have started");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_installation_goes_on_when_a_data_server_was_taken_out() {
    let dir = tempfile::tempdir().unwrap();
    let (home, port) = (dir.path().join("up"), free_port());
    let of_home = ["--data-dir", home.to_str().unwrap()];
    let up = Up::start(&home, HOST, port, 2);
    let all = connected(&home, 2);
    noted(&home, 2);
    let first = format!("{HOST}:{}", port + 1);
    let out = all.iter().find(|server| server["address"].to_string().contains(&first)).unwrap();
    let id = out["id"].to_string();
    assert!(sluice(&[&["ds", "drain", &id], &of_home[..]].concat()).status.success());
    let removed = sluice(&[&["ds", "remove", &id], &of_home[..]].concat());
    assert!(removed.status.success());
    let said = String::from_utf8(removed.stdout).unwrap();
    assert!(said.contains("\nmake a dump (`sluice meta dump`)"), "{said}");
    up.stop();

    let out = home.join("ds1");
    for is_there in [true, false] {
        std::fs::remove_dir_all(&out).unwrap();
        if is_there {
            std::fs::create_dir(&out).unwrap();
        }
        let mut up = Up::start(&home, HOST, port, 2);
        connected(&home, 1);
        // Whatever ends in its first three seconds.
        std::thread::sleep(Duration::from_secs(5));
        assert!(up.0.try_wait().unwrap().is_none(), "it has ended");
        connected(&home, 1);
        up.stop();
        assert!(!out.join("store").exists(), "it made a new one");
    }
    // Without any there is nothing to go on with.
    let other = home.join("ds2");
    std::fs::remove_dir_all(&other).unwrap();
    std::fs::create_dir(&other).unwrap();
    assert_eq!(ended(&mut Up::start(&home, HOST, port, 2).0).code(), Some(1));
}

#[test]
fn new_data_servers_are_noted_though_an_old_one_does_not_begin() {
    let dir = tempfile::tempdir().unwrap();
    let (home, port) = (dir.path().join("up"), free_port());
    let up = Up::start(&home, OTHER, port, 2);
    connected(&home, 2);
    noted(&home, 2);
    up.stop();
    // As where a device is not mounted.
    std::fs::remove_dir_all(home.join("ds1")).unwrap();
    std::fs::create_dir(home.join("ds1")).unwrap();
    let up = Up::start(&home, OTHER, port, 3);
    connected(&home, 2);
    // From the next start on none makes a store.
    noted(&home, 3);
    up.stop();
    assert!(home.join("ds3/store/superblock").exists() && !home.join("ds1/store").exists());
    for number in 1..=3 {
        std::fs::remove_dir_all(home.join(format!("ds{number}"))).unwrap();
    }
    let (data, port) = (home.to_str().unwrap(), port.to_string());
    let said = refused(&["up", "--data-dir", data, "--listen", OTHER, "--port", &port]);
    assert!(said.contains("none of its 3 data servers has a directory any more"), "{said}");
}
