//! Goes to where a cluster's coordinators are said to be, and tells what keeps this client from them. The client library knows,
//! and does not say: its error is that time ran out.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage};

use super::files::{self, Identity};
use crate::foundation::cluster_file::{Address, ClusterFile};

/// For a connection, and for each word of the other side.
const PATIENCE: Duration = Duration::from_secs(2);
/// Whoever does not believe a certificate says so at once, behind the handshake.
const OBJECTION: Duration = Duration::from_millis(500);
/// A cluster has few coordinators; the first ones tell enough.
const MOST: usize = 3;
/// More than anybody says behind a handshake without being asked.
const WORDS: usize = 8;

/// What is known of one address.
#[derive(Debug)]
enum Found {
    /// Nobody listens, or nobody can get there.
    Away(io::Error),
    /// The address speaks no TLS.
    Clear,
    /// It speaks TLS, and the two did not come to terms.
    Broken(String),
    /// It said nothing, or closed the connection.
    Mute,
    /// It speaks TLS, and believes this client as far as it says.
    Open(Vec<CertificateDer<'static>>),
    /// It does not believe this client.
    Refuses(String),
}

/// What keeps this client from the cluster, in words. `None`: nothing that can be seen. It blocks, for some seconds at most.
pub(crate) fn look(cluster: &ClusterFile, identity: Option<&Identity>, now: Duration) -> Option<String> {
    let words = |address| in_words(address, cluster, identity, now);
    let mut said: Vec<_> = thread::scope(|scope| {
        let all = cluster.addresses.iter().take(MOST);
        let looking: Vec<_> = all.map(|address| scope.spawn(move || words(address))).collect();
        looking.into_iter().filter_map(|one| one.join().ok().flatten()).collect()
    });
    // A word about certificates before one about a host that is away: it is the same for all of them.
    said.sort_by_key(|(weight, _)| *weight);
    said.into_iter().next().map(|(_, words)| words)
}

/// With its weight: the least is said.
fn in_words(
    address: &Address,
    cluster: &ClusterFile,
    identity: Option<&Identity>,
    now: Duration,
) -> Option<(u8, String)> {
    let (at, file) = (&address.socket, cluster.path.display());
    let found = ask(address, identity);
    let says = match (found, address.tls) {
        (Found::Away(error), _) => return Some((2, format!("{at} cannot be reached: {error}"))),
        (Found::Open(_) | Found::Refuses(_) | Found::Broken(_), false) => {
            format!(
                "{at} speaks TLS, and the cluster file {file} has it without: write `:tls` behind the address"
            )
        }
        (Found::Clear | Found::Mute, false) => return None,
        (Found::Clear, true) => format!(
            "{at} does not speak TLS, and the cluster file {file} says that it does: take `:tls` from the address, or start the cluster with TLS"
        ),
        (Found::Mute, true) => {
            let words = format!(
                "{at} gives no answer to TLS, and the cluster file {file} says that it speaks it: take `:tls` from the address if the cluster speaks in clear. If it does not, it has refused this client just before, and is silent for some seconds then: an earlier line here says why, and TLSPolicyFailure in its own log"
            );
            return Some((1, words));
        }
        (Found::Broken(why), true) => format!("{at} and this client come to no terms about TLS: {why}"),
        (Found::Refuses(why), true) => {
            let subject = identity.map_or_else(|| "nobody".to_owned(), Identity::subject);
            format!(
                "{at} does not believe the certificate of this client ({subject}): it answers {why:?}; the authority has to be in the cluster's own file of authorities, and its verify-peers has to fit"
            )
        }
        (Found::Open(chain), true) => identity.and_then(|identity| objection(at, &chain, identity, now))?,
    };
    Some((0, says))
}

/// Why this client does not believe the cluster.
fn objection(
    at: &str,
    chain: &[CertificateDer<'static>],
    identity: &Identity,
    now: Duration,
) -> Option<String> {
    if identity.pattern.takes_anybody() {
        return None;
    }
    let own = files::parsed(chain.first()?)?;
    let subject = files::subject(&own);
    if let Some(why) = verdict(chain, &identity.authorities, now) {
        let authorities = identity.files.authorities.as_deref().unwrap_or_else(|| "".as_ref()).display();
        return Some(format!(
            "the certificate that {at} shows ({subject}) is not believed: {why}; --fdb-tls-ca (or FDB_TLS_CA_FILE) has to name the cluster's authorities, and it names {authorities}"
        ));
    }
    if !identity.pattern.fits(&own) {
        let pattern = identity.files.verify_peers.as_deref().unwrap_or_default();
        return Some(format!(
            "the certificate that {at} shows ({subject}) does not say what --fdb-tls-verify-peers (or FDB_TLS_VERIFY_PEERS) wants: {pattern:?}"
        ));
    }
    None
}

/// What is wrong with a cluster's certificate; whatever is strange to the verifier here may be known to the library.
fn verdict(
    chain: &[CertificateDer<'static>],
    authorities: &[CertificateDer<'static>],
    now: Duration,
) -> Option<String> {
    let own = EndEntityCert::try_from(chain.first()?).ok()?;
    let mut store = RootCertStore::empty();
    for authority in authorities {
        if store.add(authority.clone()).is_err() {
            return None;
        }
    }
    let (all, time) = (webpki::ALL_VERIFICATION_ALGS, UnixTime::since_unix_epoch(now));
    let roots: &[TrustAnchor<'_>] = &store.roots;
    let between = chain.get(1..).unwrap_or_default();
    match own.verify_for_usage(all, roots, between, time, KeyUsage::server_auth(), None, None) {
        Ok(_) => None,
        Err(webpki::Error::CertExpired { .. }) => Some("it has expired".to_owned()),
        Err(webpki::Error::CertNotValidYet { .. }) => Some("it is not good yet".to_owned()),
        Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey) => {
            Some("none of the authorities has signed it".to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}

fn ask(address: &Address, identity: Option<&Identity>) -> Found {
    let sockets = match address.socket.to_socket_addrs() {
        Ok(sockets) => sockets,
        Err(error) => return Found::Away(error),
    };
    let mut last = ErrorKind::NotFound.into();
    for socket in sockets {
        match TcpStream::connect_timeout(&socket, PATIENCE) {
            Ok(stream) => return shake(stream, socket, identity).unwrap_or_else(Found::Away),
            Err(error) => last = error,
        }
    }
    Found::Away(last)
}

/// A handshake, and nothing behind it.
fn shake(mut stream: TcpStream, socket: SocketAddr, identity: Option<&Identity>) -> io::Result<Found> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut connection = match config(identity)
        .and_then(|config| ClientConnection::new(Arc::new(config), ServerName::IpAddress(socket.ip().into())))
    {
        Ok(connection) => connection,
        Err(error) => return Ok(Found::Broken(error.to_string())),
    };
    while connection.is_handshaking() {
        if let Err(error) = connection.complete_io(&mut stream) {
            return Ok(ended(&error, connection.peer_certificates().is_some()));
        }
    }
    let chain: Vec<_> = connection.peer_certificates().unwrap_or_default().to_vec();
    let chain = chain.into_iter().map(CertificateDer::into_owned).collect();
    stream.set_read_timeout(Some(OBJECTION))?;
    for _ in 0..WORDS {
        let said = connection
            .read_tls(&mut stream)
            .and_then(|length| connection.process_new_packets().map_err(io::Error::other).map(|_| length));
        match said {
            Ok(0) => return Ok(Found::Refuses("end of the connection".to_owned())),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => return Ok(ended(&error, true)),
        }
    }
    connection.send_close_notify();
    // Whoever has gone meanwhile need not hear it.
    _ = connection.write_tls(&mut stream);
    Ok(Found::Open(chain))
}

/// How a handshake ended that did not succeed.
fn ended(error: &io::Error, has_certificate: bool) -> Found {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::AlertReceived(alert)) if has_certificate => {
            Found::Refuses(alert.as_str().map_or_else(|| format!("{alert:?}"), str::to_owned))
        }
        Some(Error::AlertReceived(alert)) => Found::Broken(format!("it answers {alert:?}")),
        Some(Error::InvalidMessage(_) | Error::InappropriateMessage { .. }) if !has_certificate => {
            Found::Clear
        }
        Some(error) => Found::Broken(error.to_string()),
        // Closed, or nothing came.
        None if has_certificate => Found::Refuses(error.to_string()),
        None => Found::Mute,
    }
}

/// TLS with whoever is there: what it shows is judged afterwards, and nothing is said to it.
fn config(identity: Option<&Identity>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody));
    match identity.and_then(|identity| Some((identity, identity.key.as_ref()?))) {
        Some((identity, key)) => {
            let shown = builder.clone().with_client_auth_cert(identity.chain.clone(), key.clone_key());
            // A kind of key that only the library knows.
            Ok(shown.unwrap_or_else(|_| builder.with_no_client_auth()))
        }
        None => Ok(builder.with_no_client_auth()),
    }
}

#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[path = "look_tests.rs"]
mod tests;
