//! Exports that want TLS of connections, as an administrator sets them at a metadata server that speaks it or does not.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

fn sluice(arguments: &[&str]) -> std::process::Output {
    Command::new(SLUICE).args(arguments).output().unwrap()
}

/// Ends with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A metadata server that answers, and what it said until then.
fn start(dir: &Path, at: &str, options: &[&str]) -> (Running, BufReader<ChildStderr>, String) {
    let mut server = Command::new(SLUICE)
        .args(["mds", "--listen", at, "--data-dir"])
        .arg(dir)
        .args(options)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap());
    let server = Running(server);
    let mut said = String::new();
    while !said.contains("exported") {
        assert!(log.read_line(&mut said).unwrap() > 0, "it did not start: {said}");
    }
    (server, log, said)
}

#[test]
fn exports_want_of_connections_what_the_server_can_give() {
    let [dir, beside] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let file = |name: &str| beside.path().join(name).to_str().unwrap().to_owned();
    let (key, pem, own) = (dir.path().join("cluster.key"), file("tls.pem"), file("tls.key"));
    let key = key.to_str().unwrap().to_owned();
    assert!(sluice(&["key", "new", &key]).status.success());
    let pair = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&pair).unwrap();
    std::fs::write(&pem, certificate.pem()).unwrap();
    std::fs::write(&own, pair.serialize_pem()).unwrap();
    std::fs::set_permissions(&own, Permissions::from_mode(0o600)).unwrap();
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let export = |arguments: &[&str]| {
        let output = sluice(&[&["export"], arguments, &["--mds", &at, "--key", &key]].concat());
        (
            output.status.success(),
            String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap(),
        )
    };
    let refused = |how: &str, words: &str| {
        let (good, said) = export(&["set", "/", "--xprtsec", how]);
        assert!(!good && said.contains(words), "{how}: {said}");
    };
    let ways = [
        &[][..],
        &["--tls-certificate", &pem, "--tls-key", &own],
        &["--tls-certificate", &pem, "--tls-key", &own, "--tls-clients", &pem],
        &[],
    ];
    for (way, options) in ways.into_iter().enumerate() {
        let (_server, _log, said) = start(dir.path(), &at, options);
        let refuses = said.contains("this export wants more of connections");
        assert_eq!(refuses, way == 3, "{said}");
        match way {
            0 => {
                refused("tls", "--tls-certificate FILE and --tls-key FILE first");
                refused("none:ssl", "\"ssl\" protects no connection");
            }
            1 => {
                refused("mtls", "--tls-clients FILE first");
                let (good, said) = export(&["set", "/", "--xprtsec", "tls:mtls"]);
                assert!(good && said.contains(" under tls "), "{said}");
                let (good, said) =
                    export(&["set", "/", "--client", "10.0.0.0/8", "--no-access", "--xprtsec", "tls"]);
                assert!(!good, "{said}");
            }
            2 => {
                let (good, said) =
                    export(&["set", "/", "--client", "10.0.0.0/8", "--xprtsec", "mtls", "--json"]);
                assert!(good, "{said}");
                let (_, said) = export(&["list", "--json"]);
                assert!(
                    said.contains("\"xprtsec\": \"mtls\"") && said.contains("\"xprtsec\": \"tls\""),
                    "{said}"
                );
            }
            // What was set before stays, and can be changed, or taken back.
            _ => {
                let (good, said) = export(&["set", "/", "--read-only"]);
                assert!(good && said.contains(" under mtls "), "{said}");
                let (good, said) = export(&["set", "/", "--xprtsec", "none"]);
                assert!(good && !said.contains(" under "), "{said}");
            }
        }
    }
}
