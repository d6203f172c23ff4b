//! The asking side of RPC with TLS.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use super::files::{self, FilesError};
use super::probe::Probe;
use super::{ALPN, TlsError, gather, stream};
use crate::transport::Stream;

/// Who speaks TLS to servers.
#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsClient")
    }
}

/// What a server has shown.
#[derive(Clone, Debug)]
pub struct Looked {
    certificate: CertificateDer<'static>,
    name: ServerName<'static>,
}

impl Looked {
    /// Whether the certificate is for the address that was dialled. Clients compare.
    pub fn is_for_its_address(&self) -> bool {
        ParsedCertificate::try_from(&self.certificate)
            .is_ok_and(|certificate| verify_server_name(&certificate, &self.name).is_ok())
    }

    /// Whether it is not yet good, or no longer, at `time`.
    pub fn is_outside_its_time(&self, time: SystemTime) -> bool {
        files::is_outside_its_time(&self.certificate, time)
    }
}

impl TlsClient {
    /// One that believes servers whose certificate leads to one of those in `authorities`, and shows one of its own if asked.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be.
    pub fn trusting(authorities: &Path, own: Option<(&Path, &Path)>) -> Result<Self, FilesError> {
        let roots = files::authorities(authorities)?;
        let own = own
            .map(|(certificate, key)| Ok((files::certificates(certificate)?, files::key(key)?)))
            .transpose()?;
        Self::made(own, |builder| builder.with_root_certificates(roots))
    }

    /// One that looks at what servers show, whatever it is. What it is told is not to be believed.
    ///
    /// # Errors
    /// The library has none of what it should have.
    pub fn looking() -> Result<Self, FilesError> {
        let verifier = Arc::new(Anybody(provider()));
        Self::made(None, |builder| builder.dangerous().with_custom_certificate_verifier(verifier))
    }

    fn made(
        own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
        believing: impl FnOnce(
            rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>,
        ) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>,
    ) -> Result<Self, FilesError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(FilesError::Useless)?;
        let builder = believing(builder);
        let mut config = match own {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(FilesError::Useless)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// Asks the peer of `stream` for TLS, and speaks it from then on. `program` and `version` are what will be called.
    ///
    /// # Errors
    /// The peer does not offer it, or its certificate is not believed. Bounded by the caller's timeout.
    pub async fn connect(
        &self,
        mut stream: Stream,
        (program, version): (u32, u32),
    ) -> Result<(Stream, Looked), TlsError> {
        let probe = Probe { xid: 1, program, version };
        stream.write_all(&probe.call()).await?;
        stream.flush().await?;
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).await?;
        let length = u32::from_be_bytes(mark) & 0x7fff_ffff;
        // A refusal is a short record, too.
        if length > 256 {
            return Err(TlsError::NotOffered);
        }
        let mut answer = vec![0; length as usize];
        stream.read_exact(&mut answer).await?;
        let granted = probe.answer();
        if granted.get(4..) != Some(&answer[..]) {
            return Err(TlsError::NotOffered);
        }
        let name = ServerName::IpAddress(stream.peer.ip().to_canonical().into());
        let stream = gather::gathering(stream);
        let connected = TlsConnector::from(Arc::clone(&self.0)).connect(name.clone(), stream).await;
        let stream = connected.map_err(TlsError::Handshake)?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
        let certificate = certificate.ok_or(TlsError::NotOffered)?.into_owned();
        let (stream, _) = stream::halves(stream.into());
        Ok((stream, Looked { certificate, name }))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Believes every certificate whose key the server has.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
