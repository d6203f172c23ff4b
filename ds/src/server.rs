//! Start, status, shutdown.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sluice_env::Env;
use sluice_rpc::{Admission, Client, Keyring, Limits, ProcedureSnapshot, Server, Share, Tls, Transport};
use sluice_store::device::{Device, FileDevice};
use sluice_store::{Options, Store, Uuid};
use sluice_xdr::control::ctl_address;
use tokio::sync::watch;

use crate::control::{self, Identity};
use crate::counters::Snapshot;
use crate::error::StartError;
use crate::nfs3::Nfs3;
use crate::shared::Shared;
use crate::whereabouts::Whereabouts;

/// How a data server is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect; port 0 picks one.
    pub listen: SocketAddr,
    /// What clients are told, first the preferred one; port 0 stands for the port listened on. Empty:
    /// the listening address, which must then be a particular one.
    pub advertise: Vec<SocketAddr>,
    /// The directory of the store; [`DataServer::start_on`] does not look at it.
    pub data_dir: PathBuf,
    /// Where the metadata server may be.
    pub mds: Arc<dyn Whereabouts>,
    /// Shown to the metadata server; those behind the first to one that does not know that yet.
    pub cluster_keys: Keyring,
    /// Without contact to the metadata server for so long, clients are told to wait. The metadata
    /// server may ask for less.
    pub isolation: Duration,
    /// The store: whether a new one may be made, caches, reserve.
    pub store: Options,
    pub limits: Limits,
    /// TLS for clients. With it what data servers say to each other is encrypted, too.
    pub tls: Option<Tls>,
    /// Of the software, for people.
    pub version: String,
}

impl Config {
    /// Defaults for everything that has one.
    pub fn new(
        listen: SocketAddr,
        data_dir: PathBuf,
        mds: SocketAddr,
        cluster_keys: impl Into<Keyring>,
    ) -> Self {
        Self {
            listen,
            advertise: Vec::new(),
            data_dir,
            mds: Arc::new(vec![mds]),
            cluster_keys: cluster_keys.into(),
            isolation: Duration::from_secs(30),
            store: Options::default(),
            limits: limits(),
            tls: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Descriptors for what is neither a connection of a client's nor a data file: copies on their way, the journal, metrics.
const DESCRIPTORS: u64 = 256;

/// A data server's memory is for its page cache: what is on the way grows with the processors, which move it, and with the
/// number of clients; on two of them a hundred clients fit into 64 MiB, a thousand into 256.
fn limits() -> Limits {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Limits {
        connection_budget: 16 << 20,
        server_budget: Share { base: (6 + 3 * processors) << 20, per_connection: 64 << 10 },
        arriving: Share { base: (3 + processors) << 20, per_connection: 16 << 10 },
        ..Limits::default()
    }
}

/// A data server at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    pub store: Uuid,
    /// As in filehandles; 0 before the first registration.
    pub store_id: u16,
    /// A control connection stands.
    pub connected: bool,
    /// Clients are served, not told to wait.
    pub serving: bool,
    pub counters: Snapshot,
    /// Rows in the fence table.
    pub fences: usize,
    /// Connections of clients.
    pub admission: Admission,
    /// Calls, bytes and latencies per procedure.
    pub procedures: Vec<ProcedureSnapshot>,
}

/// A running data server. Dropping it stops its control connection; [`Self::shutdown`] drains first.
pub struct DataServer {
    shared: Arc<Shared>,
    server: Arc<Server>,
    addr: SocketAddr,
    stop: watch::Sender<bool>,
}

impl fmt::Debug for DataServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataServer({} {})", self.addr, self.shared.store.place())
    }
}

impl DataServer {
    /// Opens the store in `config.data_dir`, listens, and starts to look for the metadata server.
    /// Clients are told to wait until it is found.
    ///
    /// # Errors
    /// One line for an operator: the directory is foreign, empty, locked or newer; the address is
    /// taken.
    pub async fn start(env: Env, transport: Arc<dyn Transport>, config: Config) -> Result<Self, StartError> {
        let place = config.data_dir.display().to_string();
        let device =
            FileDevice::new(&config.data_dir).map_err(|error| StartError::Directory(place, error))?;
        Self::start_on(env, transport, Arc::new(device), config).await
    }

    /// The same on any device.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_on(
        env: Env,
        transport: Arc<dyn Transport>,
        device: Arc<dyn Device>,
        config: Config,
    ) -> Result<Self, StartError> {
        let store = Store::open(&env, device, config.store.clone()).await?;
        let sealed = config.tls.as_ref().map(|_| config.cluster_keys.clone());
        let protection = control::protection::of(config.tls.as_ref());
        let shared = Arc::new(Shared::new(env.clone(), Arc::clone(&transport), store, (sealed, protection)));
        let nfs = Arc::new(Nfs3::new(Arc::clone(&shared)));
        // Data files take half of them (`sluice_store::Options::open_files`).
        let most = env.process.descriptors().most;
        let limits = config.limits.clone().within(most, most / 2 + DESCRIPTORS.min(most / 4));
        let server = Server::new(env.clone(), Arc::clone(&transport), limits, vec![nfs]);
        let server = Arc::new(server.with_keys(config.cluster_keys.clone()).with_tls(config.tls.clone()));
        shared.server.get_or_init(|| Arc::downgrade(&server));
        let listener = server.listen(config.listen).await;
        let listener = listener.map_err(|error| StartError::Listen(config.listen, error))?;
        let addr = listener.local_addr();
        let identity = Identity {
            incarnation: env.random.array(),
            addresses: advertised(&config, addr)?,
            version: config.version,
            isolation: config.isolation,
        };
        env.spawn.spawn(Box::pin(Arc::clone(&server).serve(listener)));
        let client = Client::new(env.clone(), transport).with_key(config.cluster_keys);
        let (stop, stopped) = watch::channel(false);
        let contact = control::run(Arc::clone(&shared), client, config.mds, identity, stopped);
        env.spawn.spawn(Box::pin(contact));
        env.spawn.spawn(Box::pin(keep(Arc::clone(&shared.store), stop.subscribe())));
        tracing::info!(%addr, store = %shared.store.place(), "data server listening");
        Ok(Self { shared, server, addr, stop })
    }

    /// Where it listens, with the port that was picked.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    pub fn status(&self) -> Status {
        let shared = &self.shared;
        Status {
            store: shared.store.uuid(),
            store_id: shared.seals.store(),
            connected: shared.mds.is_up(),
            serving: shared.contact.may_serve(shared.env.clock.now()),
            counters: shared.counters.snapshot(),
            fences: shared.store.rows(),
            admission: self.server.admission(),
            procedures: self.server.metrics(),
        }
    }

    /// Ends the connections of servers whose cluster key is accepted no more.
    pub fn close_strangers(&self) {
        self.server.close_strangers();
    }

    /// Stops accepting, answers calls in flight for at most `grace`, then closes everything.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.mds.make_last();
        self.server.shutdown(grace).await;
        self.stop.send_replace(true);
    }
}

/// Until the server stops: the store can be opened again then.
async fn keep(store: Arc<Store>, mut stop: watch::Receiver<bool>) {
    let work = async {
        tokio::join!(
            Arc::clone(&store).make_folders(),
            Arc::clone(&store).keep_sums(),
            Arc::clone(&store).close_idle()
        )
    };
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => {}
        _ = work => {}
    }
}

fn advertised(config: &Config, listening: SocketAddr) -> Result<Vec<ctl_address>, StartError> {
    let mut addresses = config.advertise.clone();
    if addresses.is_empty() {
        if listening.ip().is_unspecified() {
            return Err(StartError::NoAddress(listening));
        }
        addresses.push(listening);
    }
    let wire = addresses.iter().map(|address| ctl_address {
        host: address.ip().to_string().into(),
        port: u32::from(if address.port() == 0 { listening.port() } else { address.port() }),
    });
    Ok(wire.collect())
}
