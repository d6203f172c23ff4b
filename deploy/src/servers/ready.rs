//! `sluice ds ready`: whether a data server serves its clients, as one of them hears it; for probes, which need no key unless
//! it demands TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use sluice_env::Env;
use sluice_rpc::{CallError, Client, Credential, Keys, Tcp, auth_stat};
use sluice_xdr::nfs3::{
    GETATTR3args, GETATTR3res, NFS_V3, NFS3_PROGRAM, NFSPROC3_GETATTR, nfs_fh3, nfsstat3,
};
use sluice_xdr::{from_bytes, to_frame};

/// A probe that takes longer has its answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Asks for the attributes of no file. Who serves says that this is no handle; who does not says to come again (NFS3ERR_JUKEBOX),
/// as to any client.
pub(super) async fn run(address: SocketAddr, key: Option<&Path>) -> Result<()> {
    let mut client = Client::new(Env::system(), Arc::new(Tcp)).with_connect_timeout(PATIENCE);
    if let Some(file) = key {
        client = client.with_key(Keys::read(file)?);
    }
    let connection = client.dial(address).await?;
    let nothing = to_frame(&GETATTR3args { object: nfs_fh3 { data: Bytes::new() } }, 1 << 10)?;
    let reply =
        connection.call(NFS3_PROGRAM, NFS_V3, NFSPROC3_GETATTR, &Credential::None, nothing, PATIENCE).await;
    let reply = match reply {
        Err(CallError::Auth(auth_stat::AUTH_TOOWEAK)) => {
            bail!("{address} answers nobody in clear: give --key, the cluster key")
        }
        reply => reply.with_context(|| format!("{address} is no data server, or does not answer"))?,
    };
    match from_bytes(reply).with_context(|| format!("{address} is no data server"))? {
        GETATTR3res::Default(nfsstat3::NFS3ERR_JUKEBOX) => bail!(
            "the data server at {address} serves nobody: it has not registered, has lost its metadata server, or its device hangs; its log says which"
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sluice_ds::{Config, DataServer};
    use sluice_rpc::tls::Files;
    use sluice_rpc::{ClusterKey, Demand, Limits, Server, Tls};

    use super::*;

    async fn why(address: SocketAddr) -> String {
        format!("{:#}", run(address, None).await.unwrap_err())
    }

    /// That one which serves is ready, see the tests of metrics, which have a metadata server.
    #[tokio::test]
    async fn who_serves_nobody_is_not_ready() {
        let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        // Of its metadata server nothing is heard.
        let silent = std::net::TcpListener::bind(any).unwrap();
        let mds = silent.local_addr().unwrap();
        let mut config = Config::new(any, dir.path().to_path_buf(), mds, ClusterKey::generate(&env));
        config.store.create = true;
        let data_server = DataServer::start(env.clone(), Arc::new(Tcp), config).await.unwrap();
        assert!(why(data_server.local_addr()).await.contains("serves nobody"));

        let other = Arc::new(Server::new(env.clone(), Arc::new(Tcp), Limits::default(), Vec::new()));
        let listener = other.listen(any).await.unwrap();
        let address = listener.local_addr();
        env.spawn.spawn(Box::pin(Arc::clone(&other).serve(listener)));
        assert!(why(address).await.contains("is no data server"));
        assert!(why(silent.local_addr().unwrap()).await.contains("does not answer"));
    }

    #[tokio::test]
    async fn who_demands_tls_answers_who_has_the_key() {
        let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
        let [certificate, key, cluster] = ["pem", "key", "cluster.key"].map(|name| dir.path().join(name));
        let own = rcgen::KeyPair::generate().unwrap();
        let shown = rcgen::CertificateParams::default().self_signed(&own).unwrap();
        std::fs::write(&certificate, shown.pem()).unwrap();
        std::fs::write(&key, own.serialize_pem()).unwrap();
        let files = Files { clients: Some(certificate.clone()), certificate, key };
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let silent = std::net::TcpListener::bind(any).unwrap();
        let secret = ClusterKey::generate(&env);
        secret.write(&cluster).unwrap();
        let mut config = Config::new(any, dir.path().join("store"), silent.local_addr().unwrap(), secret);
        config.store.create = true;
        config.tls = Some(Tls::new(Demand::Mutual, &files.read().unwrap()).unwrap());
        let data_server = DataServer::start(env, Arc::new(Tcp), config).await.unwrap();
        let address = data_server.local_addr();
        assert!(why(address).await.contains("give --key"));
        let answered = run(address, Some(&cluster)).await.unwrap_err();
        assert!(answered.to_string().contains("serves nobody"), "{answered:#}");
    }
}
