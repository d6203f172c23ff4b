//! Whether this host reaches everybody.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use sluice_rpc::secure::SecureError;
use sluice_rpc::{ConnectError, KeyFile};
use sluice_xdr::control::ADMIN_STATUS_resok;

use super::Finding;
use crate::status::text;
use crate::{cli, installation, out};

/// For one connection.
const PATIENCE: Duration = Duration::from_secs(3);
/// Addresses tried at a time.
const AT_ONCE: usize = 64;

/// Why the metadata server cannot be asked, and what to do.
pub(super) fn unreachable(error: &anyhow::Error, reach: &cli::Reach) -> String {
    match error.downcast_ref::<ConnectError>() {
        Some(ConnectError::Timeout { addr, .. }) => format!(
            "no answer from {addr}: does a firewall block port {}/tcp, is the address right, is the host up?",
            addr.port()
        ),
        Some(ConnectError::Io { addr, error }) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            format!(
                "nobody listens at {addr}: the metadata server is not running, or listens at another address or port"
            )
        }
        Some(ConnectError::Secure { error: SecureError::KeyDiffers, addr }) => format!(
            "the cluster key{} is not that of the metadata server at {addr}: copy its cluster.key here (`sluice key fingerprint` compares)",
            fingerprint(reach)
        ),
        Some(ConnectError::Secure { error: SecureError::Refused, addr }) => {
            format!("whoever listens at {addr} is no metadata server of Sluice")
        }
        _ => out::in_words(error),
    }
}

fn fingerprint(reach: &cli::Reach) -> String {
    let dir = reach.data_dir.clone().or_else(|| installation::default_dir().ok());
    let file = reach.key.clone().or_else(|| dir.map(|dir| installation::key_file(&dir)));
    let key = file.and_then(|file| KeyFile::read(&file).ok().map(|keys| (file, keys)));
    key.map(|(file, keys)| format!(" in {} ({})", file.display(), keys.first().fingerprint()))
        .unwrap_or_default()
}

/// Connects to each address of each data server, as a client does.
pub(super) async fn to_data_servers(status: &ADMIN_STATUS_resok) -> Vec<Finding> {
    let all = addresses(status);
    let mut findings = twins(&all);
    let mut sizes = Vec::new();
    for some in all.chunks(AT_ONCE) {
        let tries: Vec<_> = some
            .iter()
            .map(|(id, address)| {
                (
                    *id,
                    *address,
                    tokio::task::spawn_blocking({
                        let address = *address;
                        move || probe(address)
                    }),
                )
            })
            .collect();
        for (id, address, found) in tries {
            match found.await {
                Ok(Ok(size)) => sizes.extend(size.map(|size| (size, address))),
                Ok(Err(error)) => findings.push(Finding::problem(format!(
                    "this host does not reach data server {id} at {address}: {error}; if clients do not either, look for a firewall, or its --advertise"
                ))),
                Err(_) => {}
            }
        }
    }
    findings.extend(unlike(&sizes));
    findings
}

/// Of each data server that is connected: what is away is told anyway.
pub(super) fn addresses(status: &ADMIN_STATUS_resok) -> Vec<(u32, SocketAddr)> {
    let connected = status.data_servers.iter().filter(|server| server.connected);
    let all = connected.flat_map(|server| {
        let addresses = server.addresses.iter().filter_map(|address| {
            Some(SocketAddr::new(text(&address.host).parse().ok()?, u16::try_from(address.port).ok()?))
        });
        addresses.map(|address| (server.id, address))
    });
    all.collect()
}

/// Data servers at one address: clients get stuck with the handles of all but one.
fn twins(all: &[(u32, SocketAddr)]) -> Vec<Finding> {
    let mut at: BTreeMap<SocketAddr, BTreeSet<u32>> = BTreeMap::new();
    for (id, address) in all {
        at.entry(*address).or_default().insert(*id);
    }
    at.retain(|_, ids| ids.len() > 1);
    let finding = |(address, ids): (SocketAddr, BTreeSet<u32>)| {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        Finding::problem(format!(
            "data servers {} tell clients the same address {address}: clients reach one of them, and get stuck with files of the others; give each an address or a port of its own (listen, advertise) and restart it",
            ids.join(" and ")
        ))
    };
    at.into_iter().map(finding).collect()
}

/// The largest packet on the way there, where the system tells.
pub(crate) fn probe(address: SocketAddr) -> std::io::Result<Option<u32>> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    let size = getsockopt(&stream, sockopt::IpMtu).ok();
    Ok(size.and_then(|size| u32::try_from(size).ok()))
}

/// Jumbo frames to some and not to others are a mistake somewhere.
fn unlike(sizes: &[(u32, SocketAddr)]) -> Option<Finding> {
    let least = sizes.iter().min()?;
    let most = sizes.iter().max()?;
    // The loopback's is its own.
    (least.0 != most.0 && !least.1.ip().is_loopback() && !most.1.ip().is_loopback()).then(|| {
        Finding::note(format!(
            "packets to {} are at most {} bytes, to {} {}: give all hosts and switches the same MTU",
            least.1, least.0, most.1, most.0
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_env::Env;
    use sluice_rpc::{Limits, Server, Tcp};
    use sluice_xdr::control::{ctl_address, ctl_data_server_status};

    use sluice_rpc::{ClusterKey, Keys};

    use super::*;
    use crate::reach::Admin;

    fn reach(mds: SocketAddr, key: &std::path::Path) -> cli::Reach {
        cli::Reach { data_dir: None, mds: Some(mds.to_string()), key: Some(key.to_owned()) }
    }

    async fn said(reach: &cli::Reach) -> String {
        unreachable(&Admin::reach(reach).await.unwrap_err(), reach)
    }

    #[tokio::test]
    async fn a_wrong_key_and_a_port_without_a_server_are_named() {
        let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
        let [own, other] = ["own.key", "other.key"].map(|name| dir.path().join(name));
        for file in [&own, &other] {
            ClusterKey::generate(&env).write(file).unwrap();
        }
        let server = Server::new(env.clone(), Arc::new(Tcp), Limits::default(), Vec::new())
            .with_secure(Keys::read(&own).unwrap(), Vec::new());
        let server = Arc::new(server);
        let listener = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr();
        env.spawn.spawn(Box::pin(Arc::clone(&server).serve(listener)));
        let line = said(&reach(address, &other)).await;
        assert!(line.starts_with("the cluster key in /") && line.contains("other.key"), "{line}");
        assert!(line.contains(&format!("is not that of the metadata server at {address}")), "{line}");
        server.shutdown(Duration::ZERO).await;
        let line = said(&reach(address, &own)).await;
        assert!(line.starts_with(&format!("nobody listens at {address}")), "{line}");
        // One that accepts and says nothing that a metadata server says.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        std::thread::spawn(move || silent.accept().map(drop));
        let line = said(&reach(address, &own)).await;
        assert!(line.contains(&address.to_string()), "{line}");
    }

    #[test]
    fn a_port_that_is_blocked_is_named() {
        let (addr, timeout) = ("10.0.0.1:2049".parse().unwrap(), PATIENCE);
        let error = anyhow::Error::new(ConnectError::Timeout { addr, timeout }).context("is it running?");
        let line = unreachable(&error, &reach(addr, std::path::Path::new("/no.key")));
        assert!(
            line.starts_with("no answer from 10.0.0.1:2049: does a firewall block port 2049/tcp"),
            "{line}"
        );
    }

    #[tokio::test]
    async fn a_data_server_that_this_host_does_not_reach_is_named() {
        let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = |id, address: SocketAddr| ctl_data_server_status {
            id,
            connected: true,
            addresses: vec![ctl_address {
                host: address.ip().to_string().into(),
                port: address.port().into(),
            }],
            ..ctl_data_server_status::default()
        };
        let data_servers = vec![server(1, here.local_addr().unwrap()), server(2, gone)];
        let status = ADMIN_STATUS_resok { data_servers, ..ADMIN_STATUS_resok::default() };
        let [found] = &to_data_servers(&status).await[..] else { panic!() };
        assert!(
            found.what.starts_with(&format!("this host does not reach data server 2 at {gone}")),
            "{found:?}"
        );
    }

    #[test]
    fn data_servers_at_one_address_are_a_problem() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (a, b) = (at("10.0.0.1:2050"), at("10.0.0.1:2051"));
        assert_eq!(twins(&[(1, a), (2, b), (1, a)]), []);
        let [found] = &twins(&[(1, a), (2, b), (3, a)])[..] else { panic!() };
        assert_eq!(found.level, super::super::Level::Problem);
        let wanted = "data servers 1 and 3 tell clients the same address 10.0.0.1:2050";
        assert!(found.what.starts_with(wanted), "{found:?}");
    }

    #[test]
    fn packets_of_different_sizes_are_noted() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (a, b, own) = (at("10.0.0.1:1"), at("10.0.0.2:1"), at("127.0.0.1:1"));
        assert_eq!(unlike(&[(9000, a), (9000, b)]), None);
        assert_eq!(unlike(&[(1500, a), (65_536, own)]), None);
        let note = unlike(&[(1500, a), (9000, b)]).unwrap().what;
        assert!(
            note.starts_with("packets to 10.0.0.1:1 are at most 1500 bytes, to 10.0.0.2:1 9000"),
            "{note}"
        );
    }
}
