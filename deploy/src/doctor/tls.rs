//! Whether all servers speak TLS with clients, or none does, and whether clients will believe what they show.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sluice_rpc::tls::{Looked, TlsClient};
use sluice_rpc::{Tcp, Transport};
use sluice_xdr::nfs3::{NFS_V3, NFS3_PROGRAM};
use sluice_xdr::nfs4::{NFS_V4, NFS4_PROGRAM};

use super::Finding;

/// For one server.
const PATIENCE: Duration = Duration::from_secs(3);
/// Certificates are renewed before by whoever renews them in time.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// What one server has shown, if it speaks TLS.
#[derive(Debug)]
struct Shown {
    /// In words, with its address.
    who: String,
    is_mds: bool,
    certificate: Option<Looked>,
}

/// Asks each of them for TLS, as a client does.
pub(super) async fn of_all(mds: SocketAddr, data_servers: &[(u32, SocketAddr)]) -> Vec<Finding> {
    let who = |id: &u32, address| format!("data server {id} at {address}");
    let all = std::iter::once((format!("the metadata server at {mds}"), mds, true))
        .chain(data_servers.iter().map(|(id, address)| (who(id, address), *address, false)));
    let Ok(client) = TlsClient::looking() else { return Vec::new() };
    // At the same time: each that this host does not reach takes as long as one is waited for.
    let asked = all.map(|(who, address, is_mds)| {
        let client = client.clone();
        let program = if is_mds { (NFS4_PROGRAM, NFS_V4) } else { (NFS3_PROGRAM, NFS_V3) };
        let looked = tokio::spawn(tokio::time::timeout(PATIENCE, look(client, address, program)));
        (who, is_mds, looked)
    });
    let mut shown = Vec::new();
    for (who, is_mds, looked) in asked.collect::<Vec<_>>() {
        // Who does not answer at all is told of elsewhere.
        if let Ok(Ok(Ok(certificate))) = looked.await {
            shown.push(Shown { who, is_mds, certificate });
        }
    }
    judge(&shown, SystemTime::now())
}

async fn look(
    client: TlsClient,
    address: SocketAddr,
    program: (u32, u32),
) -> std::io::Result<Option<Looked>> {
    let transport: Arc<dyn Transport> = Arc::new(Tcp);
    let stream = transport.connect(address).await?;
    Ok(client.connect(stream, program).await.ok().map(|(_, looked)| looked))
}

fn judge(all: &[Shown], now: SystemTime) -> Vec<Finding> {
    let mut findings = Vec::new();
    if all.iter().all(|one| one.certificate.is_none()) {
        return findings;
    }
    let mds_offers = all.iter().any(|one| one.is_mds && one.certificate.is_some());
    for one in all {
        let who = &one.who;
        let Some(certificate) = &one.certificate else {
            findings.push(Finding::problem(if one.is_mds {
                format!("{who} does not speak TLS, and some data servers do: no client mounts with xprtsec=tls; give it --tls-certificate (key `tls-certificate`), or none of them")
            } else if mds_offers {
                format!("{who} does not speak TLS, and the metadata server does: clients mounted with xprtsec=tls get its data through the metadata server, or in clear; give it --tls-certificate (key `tls-certificate`)")
            } else {
                continue;
            }));
            continue;
        };
        if certificate.is_outside_its_time(now) {
            findings.push(Finding::problem(format!(
                "the certificate of {who} has expired, or is not good yet: clients refuse it; replace its files"
            )));
        } else if certificate.is_outside_its_time(now + SOON) {
            findings.push(Finding::note(format!(
                "the certificate of {who} expires within two weeks: replace its files"
            )));
        }
        // The metadata server is mounted by a name, perhaps; of data servers clients know nothing but the address.
        if !one.is_mds && !certificate.is_for_its_address() {
            findings.push(Finding::problem(format!(
                "the certificate of {who} is not for this address (subjectAltName IP): clients compare, and refuse it"
            )));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};
    use sluice_env::Env;
    use sluice_rpc::tls::Files;
    use sluice_rpc::{Demand, Limits, Server, Tls};

    use super::*;

    /// A certificate of its own for an address, good for so many days, at a server that serves nobody but a looker.
    async fn serve(days: Option<u32>, address: &str) -> SocketAddr {
        let dir = tempfile::tempdir().unwrap();
        let tls = days.map(|days| {
            let mut params = CertificateParams::default();
            params.subject_alt_names = vec![SanType::IpAddress(address.parse().unwrap())];
            let day = Duration::from_secs(24 * 3600);
            params.not_before = (SystemTime::now() - 9 * day).into();
            params.not_after = (SystemTime::now() - day + days * day).into();
            let key = KeyPair::generate().unwrap();
            let [certificate, own] = ["pem", "key"].map(|name| dir.path().join(name));
            std::fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
            std::fs::write(&own, key.serialize_pem()).unwrap();
            let identity = Files { certificate, key: own, clients: None }.read().unwrap();
            Tls::new(Demand::Require, &identity).unwrap()
        });
        let env = Env::system();
        let program = Arc::new(Nothing);
        let other = Arc::new(Nothing4);
        let server = Server::new(env.clone(), Arc::new(Tcp), Limits::default(), vec![program, other]);
        let server = Arc::new(server.with_tls(tls));
        let listener = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let at = listener.local_addr();
        env.spawn.spawn(Box::pin(server.serve(listener)));
        at
    }

    macro_rules! nothing {
        ($name:ident, $program:expr, $version:expr) => {
            #[derive(Debug)]
            struct $name;
            impl sluice_rpc::Program for $name {
                fn number(&self) -> u32 {
                    $program
                }
                fn versions(&self) -> std::ops::RangeInclusive<u32> {
                    $version..=$version
                }
                fn call<'a>(&'a self, _: sluice_rpc::Call) -> sluice_env::BoxFuture<'a, sluice_rpc::Reply> {
                    Box::pin(async { sluice_rpc::Reply::ProcUnavail })
                }
            }
        };
    }
    nothing!(Nothing, NFS3_PROGRAM, NFS_V3);
    nothing!(Nothing4, NFS4_PROGRAM, NFS_V4);

    async fn said(mds: SocketAddr, data_server: SocketAddr) -> Vec<String> {
        of_all(mds, &[(7, data_server)]).await.into_iter().map(|finding| finding.what).collect()
    }

    #[tokio::test]
    async fn what_clients_would_stumble_over_is_named() {
        let (plain, good) = (serve(None, "127.0.0.1").await, serve(Some(60), "127.0.0.1").await);
        assert_eq!(said(plain, plain).await, [""; 0]);
        assert_eq!(said(good, good).await, [""; 0]);
        let [other, old, soon] = [(60, "192.0.2.1"), (0, "127.0.0.1"), (3, "127.0.0.1")];
        let of = async |(days, address)| serve(Some(days), address).await;
        let (other, old, soon) = (of(other).await, of(old).await, of(soon).await);
        for (mds, data_server, words) in [
            (good, plain, "data server 7"),
            (plain, good, "no client mounts with xprtsec=tls"),
            (good, other, "is not for this address"),
            (good, old, "has expired"),
            (good, soon, "expires within two weeks"),
        ] {
            let lines = said(mds, data_server).await;
            assert!(lines.len() == 1 && lines[0].contains(words), "{words}: {lines:?}");
        }
        assert_eq!(said(other, good).await, [""; 0], "it may be mounted by a name");
    }
}
