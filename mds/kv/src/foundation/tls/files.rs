//! Certificates and keys as they lie in files, in PEM, judged as the client library will judge them. What is beyond what is
//! known here (a kind of key, an old certificate) counts as good: the library knows more kinds.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pkcs8::{EncryptedPrivateKeyInfo, PrivateKeyInfo, SecretDocument};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::time::Validity;

use super::named;
use super::pattern::Pattern;

const ENCRYPTED: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
const ENCRYPTED_END: &str = "-----END ENCRYPTED PRIVATE KEY-----";
/// In a key that is encrypted as it was before PKCS #8.
const ENCRYPTED_OF_OLD: &str = "Proc-Type: 4,ENCRYPTED";

/// Where they are.
#[derive(Clone, Default)]
pub(super) struct Files {
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) authorities: Option<PathBuf>,
    pub(super) verify_peers: Option<String>,
    pub(super) password: Option<String>,
}

/// What was in them.
pub(crate) struct Identity {
    pub(super) files: Files,
    /// The client's own first, then those that lead to its authority.
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: Option<PrivateKeyDer<'static>>,
    pub(super) authorities: Vec<CertificateDer<'static>>,
    pub(super) pattern: Pattern,
}

// Nothing of it is to be seen: there is a key in it, and a password.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Whether something is good at a time.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum When {
    Good,
    /// What, and when it ended.
    Over(String, String),
    /// What, and when it begins.
    Early(String, String),
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => write!(f, "good"),
            Self::Over(what, end) => write!(f, "{what}, is good until {end}"),
            Self::Early(what, begin) => write!(f, "{what}, is not good before {begin}"),
        }
    }
}

impl Files {
    /// Reads all of them. `asks`: the cluster file that asks for TLS, if it does.
    pub(super) fn read(self, asks: Option<&Path>, now: Duration) -> Result<Identity, String> {
        let pattern = match &self.verify_peers {
            None => Pattern::default(),
            Some(text) => Pattern::read(text)
                .map_err(|why| format!("--fdb-tls-verify-peers (or FDB_TLS_VERIFY_PEERS): {why}"))?,
        };
        if let Some(cluster) = asks {
            self.check_given(&pattern, cluster)?;
        }
        let chain = self.certificate.as_deref().map(|file| certificates(file, "certificate"));
        let key = self.key.as_deref().map(|file| key(file, self.password.as_deref()));
        let authorities = self.authorities.as_deref().map(|file| certificates(file, "authorities"));
        let identity = Identity {
            chain: chain.transpose()?.unwrap_or_default(),
            key: key.transpose()?,
            authorities: authorities.transpose()?.unwrap_or_default(),
            pattern,
            files: self,
        };
        identity.check_pair()?;
        match identity.when(now) {
            When::Good => Ok(identity),
            When::Over(what, end) => Err(format!("{what}, has expired ({end}): replace it")),
            When::Early(what, begin) => {
                Err(format!("{what}, is not good before {begin}: replace it, or set this host's clock right"))
            }
        }
    }

    /// That nothing is missing.
    fn check_given(&self, pattern: &Pattern, cluster: &Path) -> Result<(), String> {
        let authorities = self.authorities.is_some() || pattern.takes_anybody();
        let missing: Vec<_> = [
            ("--fdb-tls-certificate", self.certificate.is_some()),
            ("--fdb-tls-key", self.key.is_some()),
            ("--fdb-tls-ca", authorities),
        ]
        .into_iter()
        .filter_map(|(option, is_given)| (!is_given).then_some(option))
        .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(format!(
            "the FoundationDB cluster speaks TLS (`:tls` in {}), and both sides show certificates: give {}, or set FDB_TLS_CERTIFICATE_FILE, FDB_TLS_KEY_FILE and FDB_TLS_CA_FILE",
            cluster.display(),
            missing.join(", ")
        ))
    }
}

impl Identity {
    fn check_pair(&self) -> Result<(), String> {
        let (certificate, key) = match (&self.files.certificate, &self.files.key) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) => return Ok(()),
            (Some(certificate), None) => {
                let certificate = named("certificate", certificate);
                return Err(format!("{certificate}, is given without its key: give --fdb-tls-key"));
            }
            (None, Some(key)) => {
                let key = named("key", key);
                return Err(format!("{key}, is given without its certificate: give --fdb-tls-certificate"));
            }
        };
        let Some(Ok(signing)) = self.key.as_ref().map(any_supported_type) else { return Ok(()) };
        match CertifiedKey::new(self.chain.clone(), signing).keys_match() {
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(format!(
                "the key for FoundationDB, {}, is not that of the certificate {}: give the two that were made together",
                key.display(),
                certificate.display()
            )),
            _ => Ok(()),
        }
    }

    /// Whether all that have an end are good at `time`.
    pub(super) fn when(&self, time: Duration) -> When {
        let own = self.chain.first().zip(self.files.certificate.as_deref());
        let own = own.map_or(When::Good, |(own, file)| when(own, &named("certificate", file), time));
        // Who believes anybody asks no authority.
        if own != When::Good || self.pattern.takes_anybody() {
            return own;
        }
        let file = self.files.authorities.as_deref().unwrap_or(Path::new(""));
        let what = named("authority", file);
        // One of several is enough: others may have been left there.
        let mut all = self.authorities.iter().map(|authority| when(authority, &what, time));
        let Some(first) = all.next() else { return When::Good };
        if all.any(|other| other == When::Good) { When::Good } else { first }
    }

    /// Whom this client shows itself as.
    pub(super) fn subject(&self) -> String {
        self.chain.first().and_then(parsed).map_or_else(|| "nobody".to_owned(), |own| subject(&own))
    }
}

pub(super) fn parsed(certificate: &CertificateDer<'_>) -> Option<Certificate> {
    Certificate::from_der(certificate).ok()
}

/// What people know it by.
pub(super) fn subject(certificate: &Certificate) -> String {
    let inside = &certificate.tbs_certificate;
    format!("{:?}, signed by {:?}", inside.subject.to_string(), inside.issuer.to_string())
}

fn when(certificate: &CertificateDer<'_>, what: &str, time: Duration) -> When {
    let Some(certificate) = parsed(certificate) else { return When::Good };
    let Validity { not_before, not_after } = certificate.tbs_certificate.validity;
    if time > not_after.to_unix_duration() {
        When::Over(what.to_owned(), not_after.to_string())
    } else if time < not_before.to_unix_duration() {
        When::Early(what.to_owned(), not_before.to_string())
    } else {
        When::Good
    }
}

fn contents(file: &Path, what: &str) -> Result<String, String> {
    let failed = |why: String| format!("cannot read {}: {why}", named(what, file));
    let bytes = std::fs::read(file).map_err(|error| failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| failed("it is not in PEM, which is text".to_owned()))
}

fn certificates(file: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = contents(file, what)?;
    let failed = |why: String| format!("a certificate in {} cannot be read: {why}", file.display());
    let all: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| failed(error.to_string()))?;
    if all.is_empty() {
        let file = file.display();
        return Err(format!(
            "there is no certificate in {file}: it has to begin with -----BEGIN CERTIFICATE-----"
        ));
    }
    for certificate in &all {
        Certificate::from_der(certificate).map_err(|error| failed(error.to_string()))?;
    }
    Ok(all)
}

fn key(file: &Path, password: Option<&str>) -> Result<PrivateKeyDer<'static>, String> {
    let text = contents(file, "key")?;
    if let Some(begin) = text.find(ENCRYPTED) {
        let rest = &text[begin..];
        let end = rest.find(ENCRYPTED_END).map_or(rest.len(), |end| end + ENCRYPTED_END.len());
        return decrypted(file, &rest[..end], password);
    }
    if text.contains(ENCRYPTED_OF_OLD) {
        return Err(strange(file, "as OpenSSL did of old"));
    }
    let failed = |why: String| format!("the key in {} cannot be read: {why}", file.display());
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            format!("there is no key in {}: it has to begin with -----BEGIN PRIVATE KEY-----", file.display())
        }
        other => failed(other.to_string()),
    })?;
    if let PrivateKeyDer::Pkcs8(key) = &key {
        PrivateKeyInfo::try_from(key.secret_pkcs8_der()).map_err(|error| failed(error.to_string()))?;
    }
    Ok(key)
}

fn strange(file: &Path, how: &str) -> String {
    let file = file.display();
    format!(
        "the key in {file} is encrypted {how}, and nobody can tell beforehand whether FDB_TLS_PASSWORD is its password: openssl pkcs8 -topk8 -in {file} -out NEW makes one of which it can be told"
    )
}

fn decrypted(file: &Path, text: &str, password: Option<&str>) -> Result<PrivateKeyDer<'static>, String> {
    let failed = |why: String| format!("the key in {} cannot be read: {why}", file.display());
    let Some(password) = password else {
        return Err(format!(
            "the key in {} has a password, and FDB_TLS_PASSWORD is not set: put the password there",
            file.display()
        ));
    };
    let (_, document) = SecretDocument::from_pem(text).map_err(|error| failed(error.to_string()))?;
    let encrypted =
        EncryptedPrivateKeyInfo::try_from(document.as_bytes()).map_err(|error| failed(error.to_string()))?;
    match encrypted.decrypt(password) {
        Ok(key) => Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into()),
        Err(pkcs8::Error::EncryptedPrivateKey(
            pkcs8::pkcs5::Error::UnsupportedAlgorithm { .. } | pkcs8::pkcs5::Error::NoPbes1CryptSupport,
        )) => Err(strange(file, "in a way that is not known here")),
        // A wrong one leaves noise.
        Err(_) => Err(format!("FDB_TLS_PASSWORD is not the password of the key in {}", file.display())),
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
