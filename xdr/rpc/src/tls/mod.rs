//! RPC with TLS (RFC 9289): a client asks for it in clear with its first call, and speaks TLS 1.3 from then on. The Linux
//! client does with `xprtsec=tls` or `xprtsec=mtls`.
//!
//! | module | what |
//! | --- | --- |
//! | `probe` | the call that asks for it, and the answer |
//! | `files` | certificates and keys as they lie in files |
//! | `stream` | the halves of an encrypted stream |
//! | `gather` | what lies between it and the socket |
//! | [`client`] | the asking side |

pub mod client;
mod files;
mod gather;
pub(crate) mod probe;
mod stream;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;

pub use client::{Looked, TlsClient};
pub use files::{Files, FilesError, Identity};

use crate::transport::Stream;
use probe::Probe;

/// What a client offers and a server takes in ALPN, RFC 9289 §4.
const ALPN: &[u8] = b"sunrpc";

/// TLS records that are sent before the connection is ended in good order. Of AES-GCM no more than 2^24.5 may be made with one
/// key (RFC 8446 §5.5), the library makes 2^24, and the kernel's client does not know the message with which the sender of
/// TLS 1.3 takes another key; it connects again and goes on.
const RECORDS: u64 = (1 << 24) - (1 << 20);

/// What clients of a server have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Demand {
    /// They may encrypt.
    Offer,
    /// They must.
    Require,
    /// They must, and show a certificate.
    Mutual,
}

/// Why an encrypted connection did not come about.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The peer answered that it does not speak TLS, or that it does not to us.
    #[error("the peer does not offer TLS")]
    NotOffered,
    /// More came in clear behind the call that asked for TLS. What was said in clear must not count as said under it.
    #[error("something was sent in clear behind the call that asks for TLS")]
    Clear,
    /// The peers did not agree, or one does not believe the other.
    #[error("TLS handshake: {0}")]
    Handshake(io::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// TLS as a server speaks it. What it shows can be replaced while it serves: clones share it.
#[derive(Clone)]
pub struct Tls {
    demand: Demand,
    /// There are authorities whose clients' certificates are believed.
    believes: bool,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.demand)
    }
}

impl Tls {
    /// # Errors
    /// The key is not that of the certificate, or cannot be used.
    pub fn new(demand: Demand, identity: &Identity) -> Result<Self, FilesError> {
        let config = Arc::new(RwLock::new(Arc::new(config(demand, identity)?)));
        Ok(Self { demand, believes: identity.clients.is_some(), config })
    }

    /// Shows another certificate to who connects from now on. Connections that stand are as they were.
    ///
    /// # Errors
    /// As [`Self::new`]; everything is as before then.
    pub fn replace(&self, identity: &Identity) -> Result<(), FilesError> {
        let config = Arc::new(config(self.demand, identity)?);
        *self.config.write() = config;
        Ok(())
    }

    pub fn demand(&self) -> Demand {
        self.demand
    }

    /// Whether a client can show a certificate that counts.
    pub fn believes_clients(&self) -> bool {
        self.believes
    }

    /// Answers a client that has asked for TLS on `stream` and sent nothing else. Bounded by the caller's timeout.
    pub(crate) async fn accept(
        &self,
        mut stream: Stream,
        probe: Probe,
    ) -> Result<(Stream, Encrypted), TlsError> {
        stream.write_all(&probe.answer()).await?;
        stream.flush().await?;
        let acceptor = TlsAcceptor::from(Arc::clone(&self.config.read()));
        let stream = acceptor.accept(gather::gathering(stream)).await.map_err(TlsError::Handshake)?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
        let (stream, records) = stream::halves(stream.into());
        Ok((stream, Encrypted { certificate: certificate.map(CertificateDer::into_owned), records }))
    }
}

fn config(demand: Demand, identity: &Identity) -> Result<ServerConfig, FilesError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(FilesError::Useless)?;
    let builder = match (&identity.clients, demand) {
        (None, Demand::Mutual) => return Err(FilesError::NoClients),
        (None, _) => builder.with_no_client_auth(),
        (Some(clients), demand) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(clients), provider);
            let verifier = match demand {
                Demand::Mutual => verifier,
                _ => verifier.allow_unauthenticated(),
            };
            builder.with_client_cert_verifier(verifier.build().map_err(FilesError::Clients)?)
        }
    };
    let chain = identity.chain.clone();
    let mut config =
        builder.with_single_cert(chain, identity.key.clone_key()).map_err(FilesError::Useless)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Nobody comes back by one, and in the kernel nobody expects one between records of data.
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// What is known of a connection under TLS.
#[derive(Clone, Debug)]
pub struct Encrypted {
    /// What the peer showed and proved to have the key of, if it did.
    certificate: Option<CertificateDer<'static>>,
    /// TLS records sent.
    records: Arc<AtomicU64>,
}

impl Encrypted {
    /// Whether the peer has shown a certificate, which was signed by one of those that this side trusts.
    pub fn has_certificate(&self) -> bool {
        self.certificate.is_some()
    }

    /// Its key has been used for about as much as it may be.
    pub(crate) fn is_worn(&self) -> bool {
        self.records.load(Ordering::Relaxed) >= RECORDS
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::ops::RangeInclusive;
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair};
    use sluice_env::{BoxFuture, Env};

    use super::*;
    use crate::{Call, Client, Credential, Frame, Limits, Program, Reply, Server, SimConfig, SimNet};

    const NUMBER: u32 = 0x2000_0001;

    #[derive(Debug)]
    struct Nothing;

    impl Program for Nothing {
        fn number(&self) -> u32 {
            NUMBER
        }

        fn versions(&self) -> RangeInclusive<u32> {
            1..=1
        }

        fn call<'a>(&'a self, _: Call) -> BoxFuture<'a, Reply> {
            Box::pin(async { Reply::Success(Frame::empty()) })
        }
    }

    fn identity() -> Identity {
        let (dir, own) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let [certificate, key] = ["pem", "key"].map(|name| dir.path().join(name));
        std::fs::write(&certificate, CertificateParams::default().self_signed(&own).unwrap().pem()).unwrap();
        std::fs::write(&key, own.serialize_pem()).unwrap();
        Files { certificate, key, clients: None }.read().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_key_is_worn_ends_in_good_order() {
        let env = Env::simulated(1);
        let net = SimNet::new(env.clone(), SimConfig::default());
        let tls = Tls::new(Demand::Require, &identity()).unwrap();
        let server = Server::new(env.clone(), net.host("server"), Limits::default(), vec![Arc::new(Nothing)]);
        let server = Arc::new(server.with_tls(Some(tls)));
        let at = SocketAddr::new(net.ip("server"), 2049);
        env.spawn.spawn(Box::pin(Arc::clone(&server).serve(server.listen(at).await.unwrap())));
        let client = Client::new(env.clone(), net.host("client"));
        let client = client.with_tls(TlsClient::looking().unwrap(), (NUMBER, 1));
        let used = client.dial(at).await.unwrap();
        let minute = Duration::from_secs(60);
        let call = async |c: &crate::Connection| {
            c.call(NUMBER, 1, 1, &Credential::None, Frame::empty(), minute).await.map(drop)
        };
        call(&used).await.unwrap();
        env.clock.sleep(minute).await;
        assert!(!used.is_closed());
        let sent = server.connections()[0].encrypted().unwrap().records.load(Ordering::Relaxed);
        assert!(sent > 0);
        server.connections()[0].encrypted().unwrap().records.fetch_add(RECORDS - sent, Ordering::Relaxed);
        env.clock.sleep(minute).await;
        assert!(used.is_closed());
        call(&client.dial(at).await.unwrap()).await.unwrap();
    }
}
