//! A metadata server and data servers in one simulated network: one thread, one clock, one seed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sluice_ds::{DataServer, StartError};
use sluice_env::Env;
use sluice_kv::{Database, KeyValue, RunLimits};
use sluice_mds::{Config, Mds};
use sluice_namespace::stable_storage::{
    Fence, PendingFence, capability_epochs, fences, put_fence, remove_store, store,
};
use sluice_namespace::transfer::{Load, adopt, everything};
use sluice_namespace::{DataFileId, FsError, LayoutPolicy, StoreId};
use sluice_rpc::{Client as Dialler, ClusterKey, Credential, Limits, Server, SimConfig, SimNet};
use sluice_store::Options;
use sluice_store::device::{Device, MemDevice};
use sluice_xdr::control::{SLUICE_ADMIN, SLUICE_ADMIN_V2};
use sluice_xdr::{Decode, Encode, from_bytes, to_frame};

use crate::hanging::Hangs;

/// Bytes of the first component, and the stripe unit of the rest.
pub(crate) const UNIT: u64 = 4 << 20;
const DATA_SERVERS: usize = 4;
/// Hosts of metadata servers.
const MDS: &str = "mds";
const STANDBY: &str = "standby";

/// A data server, and what it is started on.
struct Node {
    host: String,
    device: MemDevice,
    server: Option<DataServer>,
    hangs: Hangs,
}

pub(crate) struct World {
    pub(crate) env: Env,
    pub(crate) net: SimNet,
    pub(crate) mds: SocketAddr,
    key: ClusterKey,
    nodes: Vec<Node>,
    config: Config,
    /// Data servers keep checksums from their next start on.
    pub(crate) checksums: bool,
    /// They keep at most so many fences from their next start on.
    pub(crate) most_fences: usize,
    db: Database,
    server: Arc<Server>,
    service: Arc<Mds>,
    /// Data servers know of two metadata servers from their next start on.
    pub(crate) standby: bool,
    /// The host of the one that has the store.
    pub(crate) active: &'static str,
    /// Metadata servers that have lost their store and live on.
    former: Vec<Arc<Server>>,
}

/// Every row of the metadata at one moment, and the version of the store then.
pub(crate) struct Dump {
    rows: Vec<KeyValue>,
    version: u64,
}

/// What everything so far has cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Durable transactions of the metadata server.
    pub(crate) transactions: u64,
    /// Flushes of the data servers' devices.
    pub(crate) flushes: u64,
    /// Calls to data servers.
    pub(crate) orders: u64,
}

impl std::ops::Sub for Cost {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self {
            transactions: self.transactions - before.transactions,
            flushes: self.flushes - before.flushes,
            orders: self.orders - before.orders,
        }
    }
}

/// Runs one world with four data servers, all registered; what the network saw. Files are at data servers from their first
/// byte on: that is what nearly all of these worlds are about.
pub(crate) fn simulate(seed: u64, test: impl AsyncFnOnce(&mut World)) -> [u8; 32] {
    simulate_with(seed, LayoutPolicy::default(), test)
}

/// The same with files of another shape.
pub(crate) fn simulate_with(seed: u64, policy: LayoutPolicy, test: impl AsyncFnOnce(&mut World)) -> [u8; 32] {
    simulate_tuned(seed, |config| config.policy = policy, test)
}

/// The same with other settings of the metadata server.
pub(crate) fn simulate_tuned(
    seed: u64,
    tune: impl FnOnce(&mut Config),
    test: impl AsyncFnOnce(&mut World),
) -> [u8; 32] {
    simulate_on(seed, SimConfig::default(), tune, test)
}

/// The same on another network.
pub(crate) fn simulate_on(
    seed: u64,
    network: SimConfig,
    tune: impl FnOnce(&mut Config),
    test: impl AsyncFnOnce(&mut World),
) -> [u8; 32] {
    let policy = LayoutPolicy::default();
    let mut config = Config { policy, first_component: UNIT, heal_piece: 256 << 10, ..Config::default() };
    tune(&mut config);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut world = World::start(seed, network, config).await;
        test(&mut world).await;
        let digest = world.net.digest();
        world.end().await;
        digest
    })
}

impl World {
    async fn start(seed: u64, network: SimConfig, config: Config) -> Self {
        let env = Env::simulated(seed);
        let net = SimNet::new(env.clone(), network);
        let key = ClusterKey::generate(&env);
        let addr = SocketAddr::new(net.ip(MDS), 2049);
        let db = Database::fresh(env.clone()).await.unwrap();
        let (server, service) = serve(&env, &net, MDS, &db, &key, &config, addr).await;
        let nodes = (1..=DATA_SERVERS)
            .map(|n| Node {
                host: format!("ds{n}"),
                device: MemDevice::new(),
                server: None,
                hangs: Hangs::new(&env),
            })
            .collect();
        let mut world = Self {
            env,
            net,
            mds: addr,
            key,
            nodes,
            config,
            checksums: false,
            most_fences: Options::default().max_rows,
            db,
            server,
            service,
            standby: false,
            active: MDS,
            former: Vec::new(),
        };
        for n in 0..DATA_SERVERS {
            world.start_data_server(n).await;
        }
        world
    }

    /// Servers and their connections know each other: a world whose servers run is in memory for as long as this process.
    async fn end(mut self) {
        for n in 0..DATA_SERVERS {
            self.crash_data_server(n).await;
        }
        for server in self.former.iter().chain([&self.server]) {
            server.shutdown(Duration::ZERO).await;
        }
        self.net.crash(MDS);
        self.net.crash(STANDBY);
        self.sleep(Duration::from_secs(2)).await;
    }

    /// kill -9 of the metadata server, and its next start on what was committed.
    pub(crate) async fn restart_metadata_server(&mut self) {
        self.server.shutdown(Duration::ZERO).await;
        self.net.crash(self.active);
        self.db = self.db.crash().unwrap();
        (self.server, self.service) =
            serve(&self.env, &self.net, self.active, &self.db, &self.key, &self.config, self.mds).await;
        // Until the data servers have registered again.
        self.sleep(Duration::from_secs(2)).await;
    }

    /// The metadata server loses its store to the one on the other host, and lives on. That is at [`Self::mds`] then. One
    /// that was there, and had lost it before, ends.
    pub(crate) async fn take_over(&mut self) {
        self.db = self.db.crash().unwrap();
        self.active = if self.active == MDS { STANDBY } else { MDS };
        for ended in self.former.drain(..) {
            ended.shutdown(Duration::ZERO).await;
        }
        self.net.crash(self.active);
        self.mds = SocketAddr::new(self.net.ip(self.active), 2049);
        let (server, service) =
            serve(&self.env, &self.net, self.active, &self.db, &self.key, &self.config, self.mds).await;
        self.former.push(std::mem::replace(&mut self.server, server));
        self.service = service;
    }

    /// `sluice meta dump`.
    pub(crate) async fn dump(&self) -> Dump {
        let snapshot = self.db.snapshot().await.unwrap();
        Dump { rows: snapshot.page(&everything(), usize::MAX).await.unwrap(), version: snapshot.version() }
    }

    /// The metadata server starts on a new store, with what `sluice meta load` made of a dump.
    pub(crate) async fn load(&mut self, dump: &Dump) {
        self.db = Database::fresh(self.env.clone()).await.unwrap();
        let mut load = Load::begin(self.db.clone(), dump.version).await.unwrap();
        for (key, value) in &dump.rows {
            load.row(key.clone(), value.clone()).await.unwrap();
        }
        load.finish().await.unwrap();
        self.restart_metadata_server().await;
    }

    /// The metadata server starts on a copy of its store as it was then: a snapshot of its device. Versions go on from there.
    pub(crate) async fn start_on_copy(&mut self, copy: &Dump) {
        self.db = Database::fresh(self.env.clone()).await.unwrap();
        loop {
            let mut txn = self.db.begin();
            copy.rows.iter().for_each(|(key, value)| txn.set(key.clone(), value.clone()));
            if txn.commit().await.unwrap().version >= copy.version {
                break;
            }
        }
        self.restart_metadata_server().await;
    }

    /// `sluice meta adopt`, and the next start of the metadata server.
    pub(crate) async fn adopt(&mut self) {
        self.server.shutdown(Duration::ZERO).await;
        self.net.crash(self.active);
        self.db = self.db.crash().unwrap();
        adopt(&self.db).await.unwrap().unwrap();
        self.restart_metadata_server().await;
    }

    /// Starts the n-th data server on its device and waits until it serves.
    pub(crate) async fn start_data_server(&mut self, n: usize) {
        self.launch(n).await.unwrap();
        self.until(|world| world.serving(n)).await;
    }

    /// Starts one that is not wanted any more.
    pub(crate) async fn start_refused(&mut self, n: usize) {
        self.launch(n).await.unwrap();
        self.sleep(Duration::from_secs(20)).await;
        assert!(!self.serving(n));
    }

    async fn launch(&mut self, n: usize) -> Result<(), StartError> {
        let node = &self.nodes[n];
        let listen = SocketAddr::new(self.net.ip(&node.host), 2050);
        let mut config = sluice_ds::Config::new(listen, PathBuf::new(), self.mds, self.key.clone());
        config.store = Options {
            create: true,
            reserve: 0,
            checksums: Some(self.checksums),
            max_rows: self.most_fences,
            ..Options::default()
        };
        if self.standby {
            config.mds =
                Arc::new([MDS, STANDBY].map(|host| SocketAddr::new(self.net.ip(host), 2049)).to_vec());
        }
        let (transport, device) = (self.net.host(&node.host), Arc::new(node.device.clone()));
        let env = Env { spawn: Arc::new(node.hangs.clone()), ..self.env.clone() };
        let server = DataServer::start_on(env, transport, device, config).await?;
        self.nodes[n].server = Some(server);
        Ok(())
    }

    /// What a command asks of the metadata server.
    pub(crate) async fn admin<A: Encode, R: Decode>(&self, procedure: u32, arguments: &A) -> R {
        self.try_admin(procedure, arguments, Duration::from_secs(60)).await.unwrap()
    }

    /// The same of one that may not answer.
    pub(crate) async fn try_admin<A: Encode, R: Decode>(
        &self,
        procedure: u32,
        arguments: &A,
        patience: Duration,
    ) -> Option<R> {
        let dialler = Dialler::new(self.env.clone(), self.net.host("admin")).with_key(self.key.clone());
        let connection = self.env.clock.timeout(patience, dialler.dial(self.mds)).await.ok()?.ok()?;
        let arguments = to_frame(arguments, 1 << 20).unwrap();
        let call =
            connection.call(SLUICE_ADMIN, SLUICE_ADMIN_V2, procedure, &Credential::None, arguments, patience);
        Some(from_bytes(call.await.ok()?).unwrap())
    }

    /// Every row of the metadata.
    pub(crate) async fn rows(&self) -> Vec<KeyValue> {
        self.dump().await.rows
    }

    /// What the checker of the namespace finds; files with mirrors to heal.
    pub(crate) async fn check(&self) -> u64 {
        let report = sluice_namespace::check(&self.db.snapshot().await.unwrap()).await.unwrap();
        assert_eq!(report.problems, []);
        report.degraded
    }

    /// Sets of data files that are nobody's and still to be removed.
    pub(crate) async fn garbage(&self) -> u64 {
        sluice_namespace::check(&self.db.snapshot().await.unwrap()).await.unwrap().garbage
    }

    /// Waits until the data server, which runs, serves again.
    pub(crate) async fn until_serving(&self, n: usize) {
        self.until(|world| world.serving(n)).await;
    }

    /// The n-th data server is gone, and was removed with whatever was there.
    pub(crate) async fn forget_data_server(&mut self, n: usize) {
        self.crash_data_server(n).await;
        self.strike_out(n).await;
        self.restart_metadata_server().await;
    }

    /// The n-th data server is removed by a transaction of which the metadata server knows nothing.
    pub(crate) async fn strike_out(&self, n: usize) {
        let id = StoreId(u16::try_from(n + 1).unwrap());
        let removed = self.db.run::<_, FsError, _>(RunLimits::default(), |mut txn| {
            Box::pin(async move {
                let row = store(&txn, id).await?.unwrap();
                remove_store(&mut txn, &row);
                Ok(())
            })
        });
        removed.await.unwrap();
    }

    /// The n-th data server may have data files of this slot of all files, which are to be removed there.
    pub(crate) async fn leave_to_remove(&self, n: usize, slot: u16) {
        let store = u16::try_from(n + 1).unwrap();
        let rows = self.rows().await;
        // As docs/metadata-schema.md has it: DATA_FILE and SPARE.
        for (key, _) in rows.iter().filter(|(key, _)| key[0] == 0x16) {
            let spare = [&[0x26], &key[1..], &slot.to_be_bytes()].concat();
            let value = [&[1], &store.to_be_bytes()[..], &1_u16.to_be_bytes()].concat();
            let put = self.db.run::<_, FsError, _>(RunLimits::default(), |mut txn| {
                let (spare, value) = (spare.clone(), value.clone());
                Box::pin(async move {
                    txn.set(spare, value);
                    Ok(())
                })
            });
            put.await.unwrap();
        }
    }

    /// Fences that the metadata server has still to tell the n-th data server of.
    pub(crate) async fn untold(&self, n: usize) -> usize {
        let id = StoreId(u16::try_from(n + 1).unwrap());
        let rows = self.db.run_read(RunLimits::default(), |txn| {
            Box::pin(async move { fences(&txn, id, None, 1000).await })
        });
        rows.await.unwrap().len()
    }

    /// Data files with these numbers, which the n-th data server may have, are no part of their files any more.
    pub(crate) async fn part(&self, n: usize, files: std::ops::Range<u64>) {
        let store = StoreId(u16::try_from(n + 1).unwrap());
        let put = self.db.run::<_, FsError, _>(RunLimits::default().idempotent(), |mut txn| {
            let files = files.clone();
            Box::pin(async move {
                let epoch = capability_epochs(&txn).await?.unwrap().current;
                for id in files {
                    let fence = Fence::Generation { file: DataFileId(id), slot: 0, generation: 2 };
                    put_fence(&mut txn, &PendingFence { store, id: 1 << 40 | id, fence, epoch });
                }
                Ok(())
            })
        });
        put.await.unwrap();
    }

    /// A data server answers nobody any more, and is none the worse; or does again.
    pub(crate) fn mute(&self, n: usize, mute: bool) {
        let host = &self.nodes[n].host;
        if mute { self.net.freeze(host) } else { self.net.thaw(host) }
    }

    /// The device of the n-th data server answers nothing from now on, and fails nothing.
    pub(crate) fn hang(&self, n: usize) {
        self.nodes[n].hangs.begin(false);
    }

    /// It answers what it is asked, and does nothing else.
    pub(crate) fn hang_writes(&self, n: usize) {
        self.nodes[n].hangs.begin(true);
    }

    pub(crate) fn resume(&self, n: usize) {
        self.nodes[n].hangs.end();
    }

    /// Whether files can share what they hold on the device of the n-th data server.
    pub(crate) fn set_reflinks(&self, n: usize, can: bool) {
        self.nodes[n].device.set_reflinks(can);
    }

    /// Whether the n-th data server has a data file of this length.
    pub(crate) fn holds(&self, n: usize, length: u64) -> bool {
        self.find_data_file(n, length).is_some()
    }

    /// What is durable of the device of the n-th data server, as a snapshot has it.
    pub(crate) fn snapshot_of(&self, n: usize) -> MemDevice {
        self.nodes[n].device.snapshot()
    }

    /// The data server ends, and its device is this one from then on. What it was before.
    pub(crate) async fn put_device(&mut self, n: usize, device: MemDevice) -> MemDevice {
        self.stop_data_server(n).await;
        std::mem::replace(&mut self.nodes[n].device, device)
    }

    /// The data server ends as one does that is told to.
    pub(crate) async fn stop_data_server(&mut self, n: usize) {
        if let Some(server) = self.nodes[n].server.take() {
            server.shutdown(Duration::ZERO).await;
        }
        self.net.crash(&self.nodes[n].host);
        self.nodes[n].device.crash_keeping(|| true);
    }

    /// Where the data file of this length is on the n-th data server.
    pub(crate) fn data_file_of(&self, n: usize, length: u64) -> String {
        self.find_data_file(n, length).unwrap()
    }

    fn find_data_file(&self, n: usize, length: u64) -> Option<String> {
        let device = &self.nodes[n].device;
        let below = |path: &str| -> Vec<String> {
            let names = device.list(path).unwrap_or_default();
            names.into_iter().map(|name| format!("{path}/{name}")).collect()
        };
        let all = below("data").into_iter().flat_map(|path| below(&path)).flat_map(|path| below(&path));
        let mut named =
            all.filter(|path| !path.ends_with(".sums") && device.stat(path).unwrap().size == length);
        named.next()
    }

    /// Data files on the device of the n-th data server.
    pub(crate) fn data_files(&self, n: usize) -> usize {
        self.data_file_names(n).len()
    }

    pub(crate) fn data_file_names(&self, n: usize) -> Vec<String> {
        let below = |path: &str| -> Vec<String> {
            let names = self.nodes[n].device.list(path).unwrap_or_default();
            names.into_iter().map(|name| format!("{path}/{name}")).collect()
        };
        below("data").iter().flat_map(|path| below(path)).flat_map(|path| below(&path)).collect()
    }

    pub(crate) fn serving(&self, n: usize) -> bool {
        self.nodes[n].server.as_ref().is_some_and(|server| server.status().serving)
    }

    /// Power fails at the n-th data server.
    pub(crate) async fn crash_data_server(&mut self, n: usize) {
        if let Some(server) = self.nodes[n].server.take() {
            server.shutdown(Duration::ZERO).await;
        }
        self.net.crash(&self.nodes[n].host);
        self.nodes[n].device.crash();
    }

    /// Its process ends, and another one is started on the same host: what the system has in memory is there still.
    pub(crate) async fn restart_data_server(&mut self, n: usize) {
        if let Some(server) = self.nodes[n].server.take() {
            server.shutdown(Duration::ZERO).await;
        }
        self.net.crash(&self.nodes[n].host);
        self.nodes[n].device.end_process();
        self.start_data_server(n).await;
    }

    /// The same, and part of what was not flushed is there all the same.
    pub(crate) async fn tear_data_server(&mut self, n: usize) {
        if let Some(server) = self.nodes[n].server.take() {
            server.shutdown(Duration::ZERO).await;
        }
        self.net.crash(&self.nodes[n].host);
        let env = self.env.clone();
        self.nodes[n].device.crash_keeping(|| env.random.u64().is_multiple_of(2));
    }

    /// The n-th data server is gone with its device for good, and there is a new one on its host.
    pub(crate) async fn replace_data_server(&mut self, n: usize) {
        self.crash_data_server(n).await;
        self.nodes[n].device = MemDevice::new();
        self.start_in_trouble(n).await;
    }

    pub(crate) fn device(&self, n: usize) -> &MemDevice {
        &self.nodes[n].device
    }

    pub(crate) fn is_up(&self, n: usize) -> bool {
        self.nodes[n].server.is_some()
    }

    /// Starts the n-th data server, which may not be able to serve yet.
    pub(crate) async fn start_in_trouble(&mut self, n: usize) {
        if self.launch(n).await.is_err() {
            // Somebody looks after the device, and starts it again.
            self.nodes[n].device.set_capacity(1 << 40);
            self.nodes[n].device.fail_syncs(0);
            self.nodes[n].device.set_read_only(false);
            self.launch(n).await.unwrap();
        }
    }

    pub(crate) fn set_faults(&self, faults: sluice_kv::Faults) {
        self.db.set_faults(faults);
    }

    /// Where the n-th data server is.
    pub(crate) fn data_server(&self, n: usize) -> SocketAddr {
        SocketAddr::new(self.net.ip(&self.nodes[n].host), 2050)
    }

    /// Rows in the fence table of the n-th data server.
    pub(crate) fn fences(&self, n: usize) -> usize {
        self.nodes[n].server.as_ref().map_or(0, |server| server.status().fences)
    }

    /// Bytes that went through the metadata server, by reason.
    pub(crate) async fn proxied_because(&self) -> Vec<(&'static str, u64)> {
        self.service.statistics().await.unwrap().proxied_because.into_iter().collect()
    }

    /// Files that began at data servers because those before them were large: those that became large, and others.
    pub(crate) async fn foreseen(&self) -> (u64, u64) {
        let all = self.service.statistics().await.unwrap();
        (all.foreseen, all.misjudged)
    }

    /// Since this incarnation of the metadata server began.
    pub(crate) fn cost(&self) -> Cost {
        Cost {
            transactions: self.db.work().transactions,
            flushes: self.nodes.iter().map(|node| node.device.syncs()).sum(),
            orders: self.service.orders(),
        }
    }

    /// Transactions that lost against another one and were tried again.
    pub(crate) fn conflicts(&self) -> u64 {
        self.db.work().conflicts
    }

    /// How many files the metadata server keeps a state machine for.
    pub(crate) fn files_with_state(&self) -> usize {
        self.service.files_with_state()
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        self.env.clock.sleep(time).await;
    }

    pub(crate) async fn until(&self, done: impl Fn(&Self) -> bool) {
        for _ in 0..10_000 {
            if done(self) {
                return;
            }
            self.sleep(Duration::from_millis(10)).await;
        }
        panic!("it did not come to pass");
    }
}

async fn serve(
    env: &Env,
    net: &SimNet,
    host: &str,
    db: &Database,
    key: &ClusterKey,
    config: &Config,
    addr: SocketAddr,
) -> (Arc<Server>, Arc<Mds>) {
    let mds = Mds::start(env.clone(), net.host(host), db.clone(), config.clone()).await.unwrap();
    let server = Server::new(env.clone(), net.host(host), Limits::default(), mds.plain_programs());
    let server = Arc::new(
        server.with_secure(key.clone(), mds.secure_programs()).with_monitors(mds.monitor_programs()),
    );
    let listener = server.listen(addr).await.unwrap();
    env.spawn.spawn(Box::pin(Arc::clone(&server).serve(listener)));
    (server, mds)
}
