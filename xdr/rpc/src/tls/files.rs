//! Certificates and keys as they lie in files, in PEM.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::VerifierBuilderError;
use thiserror::Error;
use webpki::{EndEntityCert, KeyUsage};

/// Why certificates cannot be used.
#[derive(Debug, Error)]
pub enum FilesError {
    #[error("cannot read {file}: {error}", file = .file.display())]
    Read { file: PathBuf, error: pem::Error },
    #[error("there is no certificate in {file}: it has to begin with -----BEGIN CERTIFICATE-----", file = .file.display())]
    Empty { file: PathBuf },
    #[error("a certificate in {file} is no authority's that can be used: {error}", file = .file.display())]
    Authority { file: PathBuf, error: rustls::Error },
    #[error("the certificate and its key cannot be used: {0}")]
    Useless(rustls::Error),
    #[error("the authorities of clients cannot be used: {0}")]
    Clients(VerifierBuilderError),
    #[error("clients are to show certificates, and nobody is trusted who could have signed them")]
    NoClients,
}

/// Where a server's certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The server's own first, then those that lead to its authority.
    pub certificate: PathBuf,
    /// Its key, without a password.
    pub key: PathBuf,
    /// Of authorities that sign clients' certificates.
    pub clients: Option<PathBuf>,
}

/// What was in such files.
#[derive(Debug)]
pub struct Identity {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) clients: Option<Arc<RootCertStore>>,
}

impl Files {
    /// Reads all of them.
    ///
    /// # Errors
    /// One cannot be read, or is not what it should be.
    pub fn read(&self) -> Result<Identity, FilesError> {
        let key = key(&self.key)?;
        let clients = self.clients.as_deref().map(|file| authorities(file).map(Arc::new)).transpose()?;
        Ok(Identity { chain: certificates(&self.certificate)?, key, clients })
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Path> {
        [&self.certificate, &self.key].into_iter().chain(&self.clients).map(PathBuf::as_path)
    }
}

impl Identity {
    /// Whether the certificate is not yet good, or no longer, at `time`.
    pub fn is_outside_its_time(&self, time: SystemTime) -> bool {
        self.chain.first().is_some_and(|certificate| is_outside_its_time(certificate, time))
    }
}

pub(super) fn key(file: &Path) -> Result<PrivateKeyDer<'static>, FilesError> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| FilesError::Read { file: file.to_owned(), error })
}

pub(super) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, FilesError> {
    let failed = |error| FilesError::Read { file: file.to_owned(), error };
    let all: Vec<_> =
        CertificateDer::pem_file_iter(file).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    if all.is_empty() {
        return Err(FilesError::Empty { file: file.to_owned() });
    }
    Ok(all)
}

pub(super) fn authorities(file: &Path) -> Result<RootCertStore, FilesError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(file)? {
        store.add(certificate).map_err(|error| FilesError::Authority { file: file.to_owned(), error })?;
    }
    Ok(store)
}

/// The time of a certificate is judged before who has signed it: with nobody to trust, all else that can be wrong is something
/// else.
pub(super) fn is_outside_its_time(certificate: &CertificateDer<'_>, time: SystemTime) -> bool {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return false };
    let all = webpki::ALL_VERIFICATION_ALGS;
    let time = UnixTime::since_unix_epoch(since);
    let judged = certificate.verify_for_usage(all, &[], &[], time, KeyUsage::server_auth(), None, None);
    matches!(judged, Err(webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. }))
}
