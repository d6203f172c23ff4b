//! Classes of data servers as an administrator meets them: commands in, what they say out. docs/adr/0041.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::{Value, json};

const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A metadata server, until this is gone.
struct Site {
    dir: tempfile::TempDir,
    key: PathBuf,
    at: String,
    server: Child,
    _log: BufReader<ChildStderr>,
}

impl Drop for Site {
    fn drop(&mut self) {
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

impl Site {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (key, at) = (dir.path().join("cluster.key"), format!("127.0.0.1:{}", free_port()));
        let made = Command::new(SLUICE).args(["key", "new"]).arg(&key).output().unwrap();
        assert!(made.status.success());
        let mut server = Command::new(SLUICE)
            .args(["mds", "--listen", &at, "--data-dir"])
            .arg(dir.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(server.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("metadata server ready") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it did not start");
        }
        Self { dir, key, at, server, _log: log }
    }

    /// What a command says, or why it fails.
    fn sluice(&self, words: &str) -> Result<String, String> {
        let key = self.key.to_str().unwrap();
        let said =
            Command::new(SLUICE).args(words.split(' ')).args(["--mds", &self.at, "--key", key]).output();
        let said = said.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if said.status.success() { Ok(text(said.stdout)) } else { Err(text(said.stderr)) }
    }

    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.sluice(&format!("{words} --json")).unwrap()).unwrap()
    }

    /// Registers a data server, which is not started: it is known from then on.
    fn add(&self, name: &str, more: &str) -> Result<String, String> {
        let store: &Path = &self.dir.path().join(name);
        std::fs::create_dir_all(store).unwrap();
        let (store, port) = (store.to_str().unwrap(), free_port());
        self.sluice(&format!("ds add --data-dir {store} --listen 127.0.0.1:{port}{more}"))
    }
}

#[test]
fn a_data_server_gets_a_class_and_a_directory_chooses_it() {
    let site = Site::start();
    let added = site.add("one", "").unwrap();
    assert!(added.starts_with("data server 1 is added") && !added.contains("class"), "{added}");
    // Nothing is different where there are no classes.
    assert!(!site.sluice("ds list").unwrap().contains("CLASS"));
    assert!(!site.sluice("status").unwrap().contains("CLASS"));
    assert_eq!(site.json("status")["classes"], json!([]));
    let added = site.add("two", " --class archive").unwrap();
    assert!(added.contains("data server 2 is added") && added.contains("of class archive"), "{added}");
    assert_eq!(site.sluice("ds class 2").unwrap().trim(), "data server 2 is of class archive");
    assert_eq!(site.sluice("ds class 1").unwrap().trim(), "data server 1 has no class");
    let listed = site.json("ds list");
    assert_eq!((&listed[0]["class"], &listed[1]["class"]), (&Value::Null, &json!("archive")));
    assert!(site.sluice("ds list").unwrap().contains("CLASS"));
    let status = site.json("status");
    assert_eq!(status["data_servers"][1]["class"], "archive");
    let classes = status["classes"].as_array().unwrap();
    let named: Vec<_> = classes.iter().map(|class| (&class["class"], &class["data_servers"])).collect();
    assert_eq!(named, [(&Value::Null, &json!([1])), (&json!("archive"), &json!([2]))]);
    // None of them runs.
    assert!(
        site.sluice("status").unwrap().contains("warning: no data server of class archive takes new files")
    );

    assert_eq!(site.json("policy / --class archive")["policy"], "default,inline=32KiB,class=archive");
    assert_eq!(site.json("policy / small")["policy"], "small,inline=32KiB,class=archive");
    assert_eq!(site.json("policy / --class none --inline off")["policy"], "small");
    assert_eq!(site.json("policy / wide,class=archive")["policy"], "wide,class=archive");

    assert_eq!(site.json("ds class 2 nvme"), json!({ "id": 2, "class": "nvme" }));
    assert_eq!(site.json("ds class 2 --none"), json!({ "id": 2, "class": null }));
    assert_eq!(site.sluice("policy /").unwrap().trim(), "/: wide,class=archive", "as it was said");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let site = Site::start();
    assert!(site.add("bad", " --class NVMe").unwrap_err().contains("lower-case letters, digits and hyphens"));
    site.add("one", "").unwrap();
    for (words, said) in [
        ("ds class 1 NVMe", "lower-case letters, digits and hyphens"),
        ("ds class 1 any", "neither none nor any"),
        ("ds class 1 archive --none", "cannot be used with"),
        ("ds class 7 archive", "there is no data server 7: sluice ds list shows them"),
        ("ds class 7", "there is no data server 7: sluice ds list shows them"),
        ("policy / --class archive", "no data server is of class archive"),
        ("policy / --class Any", "lower-case letters, digits and hyphens"),
        ("policy / small,class=", "no policy is called small,class="),
    ] {
        let why = site.sluice(words).unwrap_err();
        assert!(why.contains(said), "{words}: {why}");
    }
}
