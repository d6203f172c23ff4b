use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{ServerConfig, ServerConnection};

use super::super::Tls;
use super::*;

const FILE: &str = "/etc/a.cluster";
const DAY: Duration = Duration::from_secs(24 * 3600);

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Good since yesterday, for so many days.
fn signed(authority: &Authority, name: &str, days: u32) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.not_before = (std::time::UNIX_EPOCH + now() - DAY).into();
    params.not_after = (std::time::UNIX_EPOCH + now() - DAY + DAY * days).into();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.signed_by(&key, authority).unwrap(), key)
}

fn now() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "certificates are made for today")]
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap()
}

/// What a client has whose certificate `of` has signed, and who believes `believes`.
fn client(of: &Authority, believes: &Authority, pattern: &str) -> Identity {
    let dir = tempfile::tempdir().unwrap();
    let (own, key) = signed(of, "client", 3);
    let put = |name: &str, text: String| {
        std::fs::write(dir.path().join(name), text).unwrap();
        Some(dir.path().join(name))
    };
    let tls = Tls {
        certificate: put("own.pem", own.pem()),
        key: put("own.key", key.serialize_pem()),
        ca: put("ca.pem", believes.pem()),
        verify_peers: Some(pattern.to_owned()).filter(|pattern| !pattern.is_empty()),
    };
    tls.files(|_| None).read(Some(Path::new(FILE)), now()).unwrap()
}

/// Answers one connection.
fn served(answer: impl FnOnce(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || answer(listener.accept().unwrap().0));
    address
}

/// A coordinator with a certificate of `authority` for so many days, which believes clients of `believes`.
fn coordinator(authority: &Authority, believes: &Authority, days: u32) -> String {
    let (own, key) = signed(authority, "cluster", days);
    let mut store = RootCertStore::empty();
    store.add(believes.der().clone()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![own.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    served(move |mut stream| {
        let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
        while connection.is_handshaking() {
            if connection.complete_io(&mut stream).is_err() {
                _ = connection.write_tls(&mut stream);
                return;
            }
        }
        // Waits for a client that has something to say.
        _ = stream.read(&mut [0; 64]);
    })
}

fn cluster(socket: &str, tls: bool) -> ClusterFile {
    let address = Address { socket: socket.to_owned(), tls };
    ClusterFile { path: FILE.into(), addresses: vec![address] }
}

/// What an operator reads about a cluster with TLS at `address`, which is not part of it.
fn said(address: &str, identity: &Identity) -> Option<String> {
    look(&cluster(address, true), Some(identity), now()).map(|said| said.replace(address, "A"))
}

#[test]
fn nothing_is_said_about_a_cluster_that_believes_and_is_believed() {
    let (a, b) = (authority("a"), authority("b"));
    assert_eq!(said(&coordinator(&a, &b, 3), &client(&b, &a, "")), None);
    assert_eq!(said(&coordinator(&a, &b, 3), &client(&b, &a, "S.CN=cluster")), None);
    // Whoever it is.
    assert_eq!(said(&coordinator(&a, &b, 3), &client(&b, &b, "Check.Valid=0")), None);
}

#[test]
fn a_cluster_that_is_not_believed_is_told_with_the_reason() {
    let (a, b) = (authority("a"), authority("b"));
    let shown = "the certificate that A shows (\"CN=cluster\", signed by \"CN=a\")";
    let words = said(&coordinator(&a, &b, 3), &client(&b, &b, "")).unwrap();
    assert!(
        words.starts_with(&format!(
            "{shown} is not believed: none of the authorities has signed it; --fdb-tls-ca"
        )),
        "{words}"
    );
    let words = said(&coordinator(&a, &b, 0), &client(&b, &a, "")).unwrap();
    assert!(words.starts_with(&format!("{shown} is not believed: it has expired; ")), "{words}");
    let words = said(&coordinator(&a, &b, 3), &client(&b, &a, "S.CN=other")).unwrap();
    assert_eq!(
        words,
        format!(
            "{shown} does not say what --fdb-tls-verify-peers (or FDB_TLS_VERIFY_PEERS) wants: \"S.CN=other\""
        )
    );
}

#[test]
fn a_cluster_that_does_not_believe_is_told_with_its_answer() {
    let (a, b) = (authority("a"), authority("b"));
    let words = said(&coordinator(&a, &a, 3), &client(&b, &a, "")).unwrap();
    let start =
        "A does not believe the certificate of this client (\"CN=client\", signed by \"CN=b\"): it answers ";
    assert!(words.starts_with(start) && words.contains("verify-peers"), "{words}");
}

#[test]
fn a_cluster_file_that_says_otherwise_is_told() {
    let (a, b) = (authority("a"), authority("b"));
    let identity = client(&b, &a, "");
    // An answer that is no TLS, and none.
    let clear = served(|mut stream| _ = stream.write_all(b"\0\0\0\x10 something else entirely"));
    assert_eq!(
        said(&clear, &identity).unwrap(),
        "A does not speak TLS, and the cluster file /etc/a.cluster says that it does: take `:tls` from the address, or start the cluster with TLS"
    );
    let words = said(&served(drop), &identity).unwrap();
    assert!(words.starts_with("A gives no answer to TLS") && words.contains("take `:tls`"), "{words}");
    for identity in [None, Some(&identity)] {
        let address = coordinator(&a, &b, 3);
        let words = look(&cluster(&address, false), identity, now()).unwrap();
        assert_eq!(
            words,
            format!(
                "{address} speaks TLS, and the cluster file /etc/a.cluster has it without: write `:tls` behind the address"
            )
        );
    }
    assert_eq!(look(&cluster(&served(drop), false), None, now()), None, "a cluster in clear that is away");
}

#[test]
fn what_certificates_say_comes_before_a_host_that_is_away() {
    let (a, b) = (authority("a"), authority("b"));
    let away = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().to_string();
    let identity = client(&b, &b, "");
    let words = said(&away, &identity).unwrap();
    assert_eq!(words, "A cannot be reached: Connection refused (os error 111)");
    let mut both = cluster(&away, true);
    both.addresses.extend(cluster(&coordinator(&a, &b, 3), true).addresses);
    let words = look(&both, Some(&identity), now()).unwrap();
    assert!(words.contains("is not believed"), "{words}");
}
