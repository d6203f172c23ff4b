use std::fs;

use pkcs8::LineEnding;
use pkcs8::pkcs5::pbes2::Parameters;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn now() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "certificates are made for today")]
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap()
}

/// A folder with what an operator has: a certificate, its key, and the authority of the cluster.
struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let this = Self { dir: tempfile::tempdir().unwrap() };
        this.certificate("own", 1, 1);
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        this.put("ca.pem", &authority.pem());
        this
    }

    /// One that is good from so many days ago until in so many.
    fn certificate(&self, name: &str, since: u32, until: u32) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let today = std::time::UNIX_EPOCH + now();
        params.not_before = (today - DAY * since).into();
        params.not_after = (today + DAY * until).into();
        self.put(&format!("{name}.pem"), &params.self_signed(&key).unwrap().pem());
        self.put(&format!("{name}.key"), &key.serialize_pem());
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn files(&self) -> Files {
        Files {
            certificate: Some(self.path("own.pem")),
            key: Some(self.path("own.key")),
            authorities: Some(self.path("ca.pem")),
            ..Files::default()
        }
    }

    /// What an operator reads who has given `files` for a cluster with TLS.
    fn said(&self, files: Files) -> String {
        self.said_at(files, now())
    }

    fn said_at(&self, files: Files, time: Duration) -> String {
        let said = files.read(Some("/etc/a.cluster".as_ref()), time).unwrap_err();
        assert!(!said.contains('\n'), "one line: {said}");
        said.replace(self.dir.path().to_str().unwrap(), "DIR")
    }
}

#[test]
fn what_belongs_together_is_taken() {
    let folder = Folder::new();
    let identity = folder.files().read(Some("/etc/a.cluster".as_ref()), now()).unwrap();
    assert_eq!((identity.chain.len(), identity.authorities.len()), (1, 1));
    assert_eq!(identity.when(now()), When::Good);
    assert!(identity.when(now() + 2 * DAY).to_string().contains("is good until"));
    // A chain, with the words that openssl writes around it.
    let text = |name: &str| fs::read_to_string(folder.path(name)).unwrap();
    folder
        .put("own.pem", &format!("Certificate:\n    Data\n{}subject=x\n{}", text("own.pem"), text("ca.pem")));
    let identity = folder.files().read(None, now()).unwrap();
    assert_eq!(identity.chain.len(), 2);
    assert!(!format!("{identity:?}").contains("key"));
}

#[test]
fn a_cluster_with_tls_wants_all_three() {
    let folder = Folder::new();
    let said = folder.said(Files::default());
    let (start, end) = (
        "the FoundationDB cluster speaks TLS (`:tls` in /etc/a.cluster)",
        "give --fdb-tls-certificate, --fdb-tls-key, --fdb-tls-ca, or set FDB_TLS_CERTIFICATE_FILE, FDB_TLS_KEY_FILE and FDB_TLS_CA_FILE",
    );
    assert!(said.starts_with(start) && said.ends_with(end), "{said}");
    let said = folder.said(Files { authorities: None, ..folder.files() });
    assert!(said.contains("give --fdb-tls-ca, or"), "{said}");
    let anybody = Files { verify_peers: Some("Check.Valid=0".to_owned()), ..folder.files() };
    Files { authorities: None, ..anybody }.read(Some("/c".as_ref()), now()).unwrap();
    for (files, option) in [
        (Files { key: None, ..folder.files() }, "give --fdb-tls-key"),
        (Files { certificate: None, ..folder.files() }, "give --fdb-tls-certificate"),
    ] {
        // Without `:tls` as well.
        let said = files.read(None, now()).unwrap_err();
        assert!(said.ends_with(option), "{said}");
    }
}

#[test]
fn a_file_that_is_not_what_it_should_be_is_named() {
    let folder = Folder::new();
    folder.put("text", "hello");
    folder.put("torn", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    folder.put("torn.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    fs::write(folder.path("binary"), [0x30, 0x82, 0xff]).unwrap();
    let certificate = |name: &str| Files { certificate: Some(folder.path(name)), ..folder.files() };
    let key = |name: &str| Files { key: Some(folder.path(name)), ..folder.files() };
    let ca = |name: &str| Files { authorities: Some(folder.path(name)), ..folder.files() };
    for (files, wanted) in [
        (
            certificate("none"),
            "cannot read the certificate for FoundationDB, DIR/none: No such file or directory (os error 2)",
        ),
        (
            key("none"),
            "cannot read the key for FoundationDB, DIR/none: No such file or directory (os error 2)",
        ),
        (
            ca("none"),
            "cannot read the authorities for FoundationDB, DIR/none: No such file or directory (os error 2)",
        ),
        (ca(""), "cannot read the authorities for FoundationDB, DIR/: Is a directory (os error 21)"),
        (
            certificate("binary"),
            "cannot read the certificate for FoundationDB, DIR/binary: it is not in PEM, which is text",
        ),
        (
            certificate("text"),
            "there is no certificate in DIR/text: it has to begin with -----BEGIN CERTIFICATE-----",
        ),
        (
            ca("own.key"),
            "there is no certificate in DIR/own.key: it has to begin with -----BEGIN CERTIFICATE-----",
        ),
        (key("own.pem"), "there is no key in DIR/own.pem: it has to begin with -----BEGIN PRIVATE KEY-----"),
    ] {
        assert_eq!(folder.said(files), wanted);
    }
    for (files, wanted) in [
        (certificate("torn"), "a certificate in DIR/torn cannot be read: "),
        (ca("torn"), "a certificate in DIR/torn cannot be read: "),
        (key("torn.key"), "the key in DIR/torn.key cannot be read: "),
    ] {
        let said = folder.said(files);
        assert!(said.starts_with(wanted), "{said}");
    }
}

#[test]
fn a_key_and_a_certificate_of_two_pairs_are_told_apart() {
    let folder = Folder::new();
    folder.certificate("other", 1, 1);
    let said = folder.said(Files { key: Some(folder.path("other.key")), ..folder.files() });
    assert_eq!(
        said,
        "the key for FoundationDB, DIR/other.key, is not that of the certificate DIR/own.pem: give the two that were made together"
    );
}

#[test]
fn a_certificate_outside_its_time_is_refused() {
    let folder = Folder::new();
    let said = folder.said_at(folder.files(), now() + 2 * DAY);
    assert!(said.starts_with("the certificate for FoundationDB, DIR/own.pem, has expired (2"), "{said}");
    assert!(said.ends_with("Z): replace it"), "{said}");
    let said = folder.said_at(folder.files(), now() - 2 * DAY);
    assert!(said.contains("is not good before 2") && said.contains("clock"), "{said}");
    // An authority that is over, alone and beside one that is not.
    folder.certificate("over", 3, 0);
    let over = fs::read_to_string(folder.path("over.pem")).unwrap();
    let later = now() + Duration::from_secs(60);
    let good = fs::read_to_string(folder.path("ca.pem")).unwrap();
    folder.put("ca.pem", &over);
    let said = folder.said_at(folder.files(), later);
    assert!(said.starts_with("the authority for FoundationDB, DIR/ca.pem, has expired (2"), "{said}");
    // To who asks none it is the same.
    let anybody = Files { verify_peers: Some("Check.Valid=0".to_owned()), ..folder.files() };
    anybody.read(None, later).unwrap();
    folder.put("ca.pem", &format!("{over}{good}"));
    folder.files().read(None, later).unwrap();
}

/// A key with a password, as `openssl genpkey -aes256` makes it.
fn locked_by(password: &str) -> String {
    let key = KeyPair::generate().unwrap().serialize_der();
    let parameters = Parameters::pbkdf2_sha256_aes256cbc(2048, &[7; 8], &[9; 16]).unwrap();
    let locked =
        PrivateKeyInfo::try_from(&key[..]).unwrap().encrypt_with_params(parameters, password).unwrap();
    locked.to_pem("ENCRYPTED PRIVATE KEY", LineEnding::LF).unwrap().to_string()
}

#[test]
fn the_password_of_a_key_is_tried() {
    let folder = Folder::new();
    folder.put("locked.key", &locked_by("sesame"));
    let locked = |password: Option<&str>| Files {
        key: Some(folder.path("locked.key")),
        password: password.map(str::to_owned),
        ..folder.files()
    };
    assert_eq!(
        folder.said(locked(None)),
        "the key in DIR/locked.key has a password, and FDB_TLS_PASSWORD is not set: put the password there"
    );
    assert_eq!(
        folder.said(locked(Some("open"))),
        "FDB_TLS_PASSWORD is not the password of the key in DIR/locked.key"
    );
    // Open, it is seen to be another certificate's.
    let said = folder.said(locked(Some("sesame")));
    assert!(said.contains("is not that of the certificate"), "{said}");
    folder.put(
        "locked.key",
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n",
    );
    let said = folder.said(locked(Some("sesame")));
    assert!(said.contains("openssl pkcs8 -topk8 -in DIR/locked.key -out NEW"), "{said}");
}

#[test]
fn a_pattern_that_cannot_be_read_is_refused() {
    let folder = Folder::new();
    let said = folder.said(Files { verify_peers: Some("S.O=a,b".to_owned()), ..folder.files() });
    assert_eq!(said, "--fdb-tls-verify-peers (or FDB_TLS_VERIFY_PEERS): \"b\" has no \"=\"");
}
