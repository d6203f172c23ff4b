//! TLS towards the cluster. The client library speaks it; but what it cannot use it tells nobody. It tries again for ever, or
//! falls over it and takes the process with it. So everything that can be told from the files is told here, before
//! the library has them; and when the cluster does not answer, [`look`] goes and sees.
//!
//! | module | what |
//! | --- | --- |
//! | `files` | certificates and keys as they lie in files |
//! | `pattern` | what the cluster's certificates must say |
//! | `look` | who answers at the addresses of a cluster, and whether both sides believe each other |

mod files;
mod look;
mod pattern;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cluster_file::ClusterFile;
use crate::KvError;
pub(crate) use files::Identity;
use files::{Files, When};
pub(crate) use look::look;

/// Whoever renews certificates by a program does so earlier.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// Where the client library looks for what is not given; for authorities, nowhere else.
const CERTIFICATE: (&str, Option<&str>) = ("FDB_TLS_CERTIFICATE_FILE", Some("/etc/foundationdb/cert.pem"));
const KEY: (&str, Option<&str>) = ("FDB_TLS_KEY_FILE", Some("/etc/foundationdb/key.pem"));
const AUTHORITIES: (&str, Option<&str>) = ("FDB_TLS_CA_FILE", None);
const VERIFY_PEERS: &str = "FDB_TLS_VERIFY_PEERS";
const PASSWORD: &str = "FDB_TLS_PASSWORD";

/// The files by which the cluster and this client prove who they are. `None`: the library's own default, which is
/// its environment variable `FDB_TLS_…` or a file in /etc/foundationdb. The key's password is in
/// `FDB_TLS_PASSWORD`, and nowhere else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    /// What the peers' certificates must say, in FoundationDB's notation.
    pub verify_peers: Option<String>,
}

impl Tls {
    fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// What the library will take, as it looks for it.
    fn files(&self, variable: impl Fn(&str) -> Option<OsString>) -> Files {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
        let file = |given: &Option<PathBuf>, (name, place): (&str, Option<&str>)| {
            let there = || place.map(PathBuf::from).filter(|place| place.exists());
            given.clone().or_else(|| variable(name).map(PathBuf::from)).or_else(there)
        };
        Files {
            certificate: file(&self.certificate, CERTIFICATE),
            key: file(&self.key, KEY),
            authorities: file(&self.ca, AUTHORITIES),
            verify_peers: self.verify_peers.clone().or_else(|| text(VERIFY_PEERS)),
            password: text(PASSWORD),
        }
    }

    /// Reads what is needed to speak with the cluster. `None`: nothing is, the cluster file asks for no TLS and nobody gave
    /// anything.
    ///
    /// # Errors
    /// [`KvError::NoClient`] about the first thing that would keep the cluster or this client from believing the other.
    pub(crate) fn read(&self, cluster: &ClusterFile, now: Duration) -> Result<Option<Identity>, KvError> {
        let needed = cluster.speaks_tls();
        if !needed && !self.is_given() {
            return Ok(None);
        }
        let files = self.files(|name| std::env::var_os(name));
        files.read(needed.then_some(&cluster.path), now).map(Some).map_err(|what| KvError::NoClient { what })
    }

    /// What somebody should know of them though they can be used.
    pub(crate) fn remark(&self, cluster: &ClusterFile, identity: &Identity, now: Duration) -> Option<String> {
        if !cluster.speaks_tls() && !cluster.addresses.is_empty() {
            let file = cluster.path.display();
            return Some(format!(
                "certificates for FoundationDB are given, and the cluster file {file} has no address that ends with `:tls`: what is said to the cluster is not encrypted"
            ));
        }
        match identity.when(now + SOON) {
            When::Good => None,
            when => Some(format!("{when}: replace it; it is read again within {} s", RELOAD.as_secs())),
        }
    }
}

/// Between two looks of the library at its files. By itself it looks twice a day, which is too late for certificates that live
/// for a day.
pub(crate) const RELOAD: Duration = Duration::from_secs(60);

/// How errors call a file.
fn named(what: &str, file: &Path) -> String {
    format!("the {what} for FoundationDB, {}", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_comes_before_the_librarys_variables() {
        let around = |name: &str| match name {
            "FDB_TLS_CERTIFICATE_FILE" => Some("/around/pem".into()),
            "FDB_TLS_CA_FILE" => Some("".into()),
            "FDB_TLS_VERIFY_PEERS" => Some("S.O=Around".into()),
            "FDB_TLS_PASSWORD" => Some("secret".into()),
            _ => None,
        };
        let given = Tls { key: Some("/given/key".into()), ..Tls::default() };
        let files = given.files(around);
        assert_eq!(files.certificate, Some("/around/pem".into()));
        assert_eq!(files.key, Some("/given/key".into()));
        assert_eq!(files.authorities, None);
        assert_eq!(files.verify_peers.as_deref(), Some("S.O=Around"));
        assert_eq!(files.password.as_deref(), Some("secret"));
        let given = Tls { certificate: Some("/given/pem".into()), ..given };
        assert_eq!(given.files(around).certificate, Some("/given/pem".into()));
    }

    #[test]
    fn certificates_that_nobody_asks_for_are_remarked_upon() {
        let address = |tls| super::super::cluster_file::Address { socket: "127.0.0.1:4500".to_owned(), tls };
        let cluster = |tls| ClusterFile { path: "/c".into(), addresses: vec![address(tls)] };
        let identity = Files::default().read(None, Duration::ZERO).unwrap();
        let remark = |tls| Tls::default().remark(&cluster(tls), &identity, Duration::ZERO);
        assert_eq!(
            remark(false).unwrap(),
            "certificates for FoundationDB are given, and the cluster file /c has no address that ends with `:tls`: what is said to the cluster is not encrypted"
        );
        assert_eq!(remark(true), None);
    }

    #[test]
    fn nothing_is_asked_of_who_speaks_in_clear() {
        let cluster = ClusterFile { path: "/c".into(), addresses: Vec::new() };
        assert!(Tls::default().read(&cluster, Duration::ZERO).unwrap().is_none());
    }
}
