//! How a command finds the metadata server and proves that it may ask.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use bytes::Bytes;
use sluice_ds::Whereabouts;
use sluice_env::{BoxFuture, Env};
use sluice_rpc::secure::SecureError;
use sluice_rpc::{CallError, Client, ConnectError, Connection, Credential, KeyFile, Keyring, Tcp, auth_stat};
use sluice_xdr::control::{SLUICE_ADMIN, SLUICE_ADMIN_V2};
use sluice_xdr::{Decode, Encode, Reader, Writer};

use crate::cli;
use crate::installation::{self, Installation};

const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a metadata server's admin program.
#[derive(Debug)]
pub(crate) struct Admin {
    connection: Arc<Connection>,
}

/// `HOST[:PORT]` as it is looked up; 2049 unless given.
fn named(host: &str) -> String {
    if host.parse::<SocketAddr>().is_ok()
        || host.rsplit_once(':').is_some_and(|(h, p)| !h.contains(':') && p.parse::<u16>().is_ok())
    {
        host.to_owned()
    } else if host.contains(':') {
        format!("[{}]:2049", host.trim_matches(['[', ']']))
    } else {
        format!("{host}:2049")
    }
}

/// The addresses of `HOST[:PORT]`, at least one.
pub(crate) fn resolve(host: &str) -> Result<Vec<SocketAddr>> {
    let found = named(host).to_socket_addrs().with_context(|| format!("cannot find the host {host}"))?;
    let all: Vec<SocketAddr> = found.collect();
    if all.is_empty() {
        bail!("the host {host} has no address");
    }
    Ok(all)
}

/// The metadata server by its name, which is looked up whenever a data server looks for it.
#[derive(Debug)]
pub(crate) struct Name(String);

impl Name {
    pub(crate) fn new(host: &str) -> Self {
        Self(named(host))
    }
}

impl Whereabouts for Name {
    fn look(&self) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host(&self.0).await?.collect()) })
    }
}

/// What to look at.
fn hint(error: &ConnectError) -> &'static str {
    match error {
        ConnectError::Secure { error: SecureError::KeyDiffers, .. } => {
            "is --key (or --data-dir) that of this file system? (`sluice key fingerprint` compares it with the server's cluster.key)"
        }
        ConnectError::Secure { .. } => {
            "is that the address of a metadata server? Something else listens there"
        }
        _ => "is the metadata server running?",
    }
}

/// The keys to show, of either kind.
fn keyring(file: &Path) -> Result<Keyring> {
    Ok(match KeyFile::read(file)? {
        KeyFile::Cluster(keys) => keys.into(),
        KeyFile::Monitor(key) => key.into(),
    })
}

/// A procedure of a later release.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the metadata server does not know this command yet: upgrade it")]
pub(crate) struct Unknown;

impl Admin {
    /// Where it is.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.connection.peer()
    }

    /// By a data directory on this host, or an address and a key.
    pub(crate) async fn reach(reach: &cli::Reach) -> Result<Self> {
        if let Some(mds) = &reach.mds {
            let key = reach.key.as_ref().with_context(|| {
                format!(
                    "to ask the metadata server {mds} the cluster key is needed: give --key (or SLUICE_KEY)"
                )
            })?;
            return Self::connect_to_any(&resolve(mds)?, keyring(key)?).await;
        }
        let dir = reach.data_dir.clone().map_or_else(installation::default_dir, Ok)?;
        let Some(installation) = Installation::load(&dir)? else {
            bail!(
                "no installation in {}: give --data-dir, or --mds and --key (or set SLUICE_MDS and SLUICE_KEY)",
                dir.display()
            );
        };
        let key = reach.key.clone().unwrap_or_else(|| installation::key_file(&dir));
        Self::connect_with(installation.mds, &key).await
    }

    /// To the first address that answers; else why the last did not.
    pub(crate) async fn connect_to_any(addresses: &[SocketAddr], keys: impl Into<Keyring>) -> Result<Self> {
        let keys = keys.into();
        let mut why = anyhow!("no address to connect to");
        for address in addresses {
            match Self::connect(*address, keys.clone()).await {
                Ok(admin) => return Ok(admin),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// With what is in a key file now.
    pub(crate) async fn connect_with(address: SocketAddr, key: &Path) -> Result<Self> {
        Self::connect(address, keyring(key)?).await
    }

    pub(crate) async fn connect(address: SocketAddr, keys: impl Into<Keyring>) -> Result<Self> {
        let client = Client::new(Env::system(), Arc::new(Tcp)).with_key(keys);
        let connection = client.dial(address).await.map_err(|error| {
            let hint = hint(&error);
            Error::new(error).context(hint)
        })?;
        Ok(Self { connection })
    }

    /// Calls one procedure.
    pub(crate) async fn call<A: Encode, R: Decode>(&self, procedure: u32, arguments: &A) -> Result<R> {
        self.call_within(PATIENCE, procedure, arguments).await
    }

    /// The same of what the metadata server may know nothing of yet: then there is no answer.
    pub(crate) async fn call_if_known<A: Encode, R: Decode>(
        &self,
        procedure: u32,
        arguments: &A,
    ) -> Result<Option<R>> {
        match self.call(procedure, arguments).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.downcast_ref::<Unknown>().is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same for what takes longer.
    pub(crate) async fn call_within<A: Encode, R: Decode>(
        &self,
        patience: Duration,
        procedure: u32,
        arguments: &A,
    ) -> Result<R> {
        let mut writer = Writer::default();
        arguments.encode(&mut writer);
        let reply: Bytes = self
            .connection
            .call(SLUICE_ADMIN, SLUICE_ADMIN_V2, procedure, &Credential::None, writer.finish()?, patience)
            .await
            .map_err(|error| match error {
                CallError::ProgMismatch { .. } => {
                    anyhow!("{error}: upgrade the older one, command or server")
                }
                CallError::Auth(auth_stat::AUTH_TOOWEAK) => anyhow!(
                    "a monitoring key only lets its holder look: this command needs the cluster key (--key, SLUICE_KEY)"
                ),
                CallError::ProcUnavail => Unknown.into(),
                other => Error::new(other).context("the metadata server does not answer"),
            })?;
        let mut reader = Reader::new(reply);
        R::decode(&mut reader)
            .context("the metadata server answers in another version: upgrade the older one")
    }
}
