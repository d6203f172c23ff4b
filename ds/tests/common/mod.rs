//! A metadata server of few words, a client that speaks NFSv3, and a simulated world for both.
#![allow(clippy::unwrap_used, reason = "a test may fail")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use sluice_ds::{Config, DataServer};
use sluice_env::{BoxFuture, Env};
use sluice_rpc::{
    Call, Client, ClusterKey, Connection, Credential, Frame, Keyring, Limits, Program, Reply, Server,
    SimConfig, SimNet, Tcp, Transport,
};
use sluice_store::Options;
use sluice_store::device::MemDevice;
use sluice_xdr::capability::{Capability, Rights};
use sluice_xdr::control::*;
use sluice_xdr::nfs3::*;
use sluice_xdr::{Decode, Encode, from_bytes, to_frame};

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const STORE: u16 = 3;
pub(crate) const KEY: [u8; 32] = [0x5a; 32];
pub(crate) const ISOLATION: Duration = Duration::from_secs(30);
pub(crate) const RW: Rights = Rights::READ.or(Rights::WRITE);

/// What the metadata server of the test knows and says.
#[derive(Debug)]
pub(crate) struct Says {
    pub(crate) mds_epoch: u64,
    pub(crate) oldest_epoch: u32,
    pub(crate) fences: Vec<ctl_fence>,
    /// What it says to histories; `None`: of a time when they were not told.
    pub(crate) judges: Option<HISTORY_res>,
    pub(crate) histories: Vec<HISTORY_args>,
    /// What it says to marks of how far a store has come; `None`: of a time when they were not told.
    pub(crate) tides: Option<TIDE_res>,
    pub(crate) marks: Vec<TIDE_args>,
    /// Versions of the control protocol; `None`: of a time when they were not asked for.
    pub(crate) spoken: Option<(u32, u32)>,
    pub(crate) sizes: BTreeMap<u64, u64>,
    pub(crate) size_questions: u32,
    /// How long an answer to those is on its way.
    pub(crate) sizes_take: Duration,
    pub(crate) registrations: Vec<REGISTER_args>,
    pub(crate) heartbeats: Vec<HEARTBEAT_args>,
    /// It cannot say anything about heartbeats now.
    pub(crate) unsure: bool,
    pub(crate) materialised: Vec<ctl_data_file>,
    /// The answer to a report, and how long it takes.
    pub(crate) takes_reports: (ctl_status, Duration),
    /// The connection the data server dialled last.
    pub(crate) back: Option<Arc<Connection>>,
}

#[derive(Debug)]
pub(crate) struct Mds {
    pub(crate) says: Mutex<Says>,
}

impl Mds {
    pub(crate) fn new() -> Arc<Self> {
        let says = Says {
            mds_epoch: 1,
            oldest_epoch: 1,
            fences: Vec::new(),
            judges: Some(HISTORY_res::CTL_OK),
            histories: Vec::new(),
            tides: None,
            marks: Vec::new(),
            spoken: Some((CTL_PROTOCOL_OLDEST, CTL_PROTOCOL)),
            sizes: BTreeMap::new(),
            size_questions: 0,
            sizes_take: Duration::ZERO,
            registrations: Vec::new(),
            heartbeats: Vec::new(),
            unsure: false,
            materialised: Vec::new(),
            takes_reports: (ctl_status::CTL_OK, Duration::ZERO),
            back: None,
        };
        Arc::new(Self { says: Mutex::new(says) })
    }

    fn answer(&self, procedure: u32, args: Bytes, connection: &Arc<Connection>) -> Option<Frame> {
        let mut says = self.says.lock().unwrap();
        Some(match procedure {
            CONTROL_VERSIONS => {
                let (oldest, newest) = says.spoken?;
                frame(&ctl_versions { oldest, newest })
            }
            CONTROL_HISTORY => {
                says.histories.push(from_bytes(args).unwrap());
                frame(says.judges.as_ref()?)
            }
            CONTROL_TIDE => {
                let args: TIDE_args = from_bytes(args).unwrap();
                says.marks.push(args);
                match says.tides.as_ref()? {
                    TIDE_res::CTL_OK(newest) => frame(&TIDE_res::CTL_OK((*newest).max(args.mark))),
                    refused => frame(refused),
                }
            }
            CONTROL_REGISTER => {
                let args: REGISTER_args = from_bytes(args).unwrap();
                let (oldest, newest) = says.spoken.unwrap_or((4, 4));
                let refused = !(oldest..=newest).contains(&args.protocol);
                says.registrations.push(args);
                if refused {
                    let why = Bytes::from_static(b"upgrade the older one");
                    return Some(frame(&REGISTER_res::Default(ctl_status::CTL_ERR_VERSION, why)));
                }
                says.back = Some(Arc::clone(connection));
                frame(&REGISTER_res::CTL_OK(REGISTER_resok {
                    cluster: ctl_uuid([8; 16]),
                    mds_epoch: says.mds_epoch,
                    store_id: STORE.into(),
                    capability_epoch: 1,
                    oldest_epoch: says.oldest_epoch,
                    keys: vec![ctl_capability_key { id: 0, epoch: 1, key: KEY }],
                    fences: says.fences.clone(),
                    heartbeat_ms: 2000,
                    isolation_ms: ISOLATION.as_millis() as u32,
                }))
            }
            CONTROL_HEARTBEAT => {
                let args: HEARTBEAT_args = from_bytes(args).unwrap();
                let known = args.mds_epoch == says.mds_epoch;
                says.heartbeats.push(args);
                let oldest_epoch = says.oldest_epoch;
                frame(&match known {
                    _ if says.unsure => HEARTBEAT_res::Default(ctl_status::CTL_ERR_AGAIN),
                    true => HEARTBEAT_res::CTL_OK(HEARTBEAT_resok { capability_epoch: 1, oldest_epoch }),
                    false => HEARTBEAT_res::Default(ctl_status::CTL_ERR_NOT_REGISTERED),
                })
            }
            CONTROL_MATERIALISED => {
                let (status, _) = says.takes_reports;
                if status == ctl_status::CTL_OK {
                    says.materialised.extend(from_bytes::<MATERIALISED_args>(args).unwrap().files);
                }
                frame(&status)
            }
            CONTROL_LOGICAL_SIZE => {
                says.size_questions += 1;
                let args: LOGICAL_SIZE_args = from_bytes(args).unwrap();
                frame(&match says.sizes.get(&args.file) {
                    Some(size) => LOGICAL_SIZE_res::CTL_OK(*size),
                    None => LOGICAL_SIZE_res::Default(ctl_status::CTL_ERR_AGAIN),
                })
            }
            CONTROL_DAMAGED => frame(&ctl_status::CTL_OK),
            _ => Frame::empty(),
        })
    }

    /// An order to the data server that registered last.
    pub(crate) async fn order<A: Encode, R: Decode>(&self, procedure: u32, args: &A) -> R {
        let back = self.says.lock().unwrap().back.clone().unwrap();
        let none = Credential::None;
        let reply = back.call(SLUICE_DATA_SERVER, SLUICE_DATA_SERVER_V1, procedure, &none, frame(args), LONG);
        from_bytes(reply.await.unwrap()).unwrap()
    }

    pub(crate) fn caller(&self) -> ctl_caller {
        ctl_caller { mds_epoch: self.says.lock().unwrap().mds_epoch, request: 1 }
    }
}

#[derive(Debug)]
pub(crate) struct MdsProgram(pub(crate) Arc<Mds>);

impl Program for MdsProgram {
    fn number(&self) -> u32 {
        SLUICE_CONTROL
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        let answer = self.0.answer(call.procedure, call.args, &call.connection);
        let reply = answer.map_or(Reply::ProcUnavail, Reply::Success);
        let takes = {
            let says = self.0.says.lock().unwrap();
            match call.procedure {
                CONTROL_MATERIALISED | CONTROL_DAMAGED => says.takes_reports.1,
                CONTROL_LOGICAL_SIZE => says.sizes_take,
                _ => Duration::ZERO,
            }
        };
        if takes.is_zero() {
            return Box::pin(std::future::ready(reply));
        }
        let sleep = Env::simulated(1).clock.sleep(takes);
        Box::pin(async move {
            sleep.await;
            reply
        })
    }
}

pub(crate) fn frame<T: Encode>(value: &T) -> Frame {
    to_frame(value, 4 << 20).unwrap()
}

/// One simulated network with a metadata server, a data server and a client.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) env: Env,
    pub(crate) net: SimNet,
    pub(crate) mds: Arc<Mds>,
    pub(crate) mds_addr: SocketAddr,
    /// Where the metadata server listens, and what it accepts.
    pub(crate) mds_server: Arc<Server>,
    pub(crate) mds_keys: Keyring,
    pub(crate) key: ClusterKey,
    pub(crate) device: MemDevice,
}

impl World {
    pub(crate) async fn new(env: Env) -> Self {
        let net = SimNet::new(env.clone(), SimConfig::default());
        let (mds, key) = (Mds::new(), ClusterKey::generate(&env));
        let mds_addr = SocketAddr::new(net.ip("mds"), 2049);
        let server = Server::new(env.clone(), net.host("mds"), Limits::default(), Vec::new());
        let mds_keys = Keyring::from(key.clone());
        let programs: Vec<Arc<dyn Program>> = vec![Arc::new(MdsProgram(Arc::clone(&mds)))];
        let mds_server = Arc::new(server.with_secure(mds_keys.clone(), programs));
        let listener = mds_server.listen(mds_addr).await.unwrap();
        env.spawn.spawn(Box::pin(Arc::clone(&mds_server).serve(listener)));
        Self { env, net, mds, mds_addr, mds_server, mds_keys, key, device: MemDevice::new() }
    }

    pub(crate) fn config(&self, host: &str) -> Config {
        let listen = SocketAddr::new(self.net.ip(host), 2050);
        let mut config = Config::new(listen, PathBuf::new(), self.mds_addr, self.key.clone());
        config.store = Options { create: true, reserve: 0, ..Options::default() };
        config
    }

    /// The data server on this world's device.
    pub(crate) async fn start(&self) -> DataServer {
        self.start_as("ds", &self.device).await
    }

    pub(crate) async fn start_as(&self, host: &str, device: &MemDevice) -> DataServer {
        let (env, transport) = (self.env.clone(), self.net.host(host));
        DataServer::start_on(env, transport, Arc::new(device.clone()), self.config(host)).await.unwrap()
    }

    /// The same, and registered.
    pub(crate) async fn serving(&self) -> DataServer {
        let ds = self.start().await;
        self.until(|| ds.status().serving).await;
        ds
    }

    pub(crate) async fn until(&self, done: impl Fn() -> bool) {
        for _ in 0..10_000 {
            if done() {
                return;
            }
            self.sleep(Duration::from_millis(10)).await;
        }
        panic!("it did not come to pass");
    }

    /// Until it serves under this incarnation of the metadata server.
    pub(crate) async fn until_heard_by(&self, mds_epoch: u64) {
        let heard = |says: &Says| says.heartbeats.last().is_some_and(|last| last.mds_epoch == mds_epoch);
        self.until(|| heard(&self.mds.says.lock().unwrap())).await;
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        self.env.clock.sleep(time).await;
    }

    pub(crate) async fn client(&self, ds: &DataServer) -> Nfs {
        let (env, transport) = (self.env.clone(), self.net.host("client"));
        let connection = Client::connect(env, transport, ds.local_addr(), Vec::new()).await.unwrap();
        // As Linux does: a connection that says nothing at all is closed before long.
        connection.call(NFS3_PROGRAM, 3, 0, &Credential::None, Frame::empty(), LONG).await.unwrap();
        Nfs { connection }
    }
}

/// A handle of the test's epoch 1.
pub(crate) fn capability(file: u64, rights: Rights) -> Capability {
    Capability {
        rights,
        key_id: 0,
        store: STORE,
        data_file: file,
        slot: 0,
        generation: 0,
        holder: 1,
        epoch: 1,
    }
}

pub(crate) fn handle(file: u64, rights: Rights) -> Bytes {
    sealed(&capability(file, rights))
}

pub(crate) fn sealed(capability: &Capability) -> Bytes {
    Bytes::copy_from_slice(&capability.seal(&KEY))
}

pub(crate) fn target(file: u64) -> ctl_data_file {
    ctl_data_file { file, slot: 0, generation: 0 }
}

/// An NFSv3 client: whole call in, whole reply out.
#[derive(Debug)]
pub(crate) struct Nfs {
    pub(crate) connection: Arc<Connection>,
}

/// What a procedure returned, or its failure.
pub(crate) type Answer<T> = Result<T, nfsstat3>;

impl Nfs {
    pub(crate) async fn call<A: Encode, R: Decode>(&self, procedure: u32, args: &A) -> R {
        let none = Credential::None;
        let reply = self.connection.call(NFS3_PROGRAM, NFS_V3, procedure, &none, frame(args), LONG);
        from_bytes(reply.await.unwrap()).unwrap()
    }

    /// The bytes and whether they end the file.
    pub(crate) async fn read(&self, fh: &Bytes, offset: u64, count: u32) -> Answer<(Bytes, bool)> {
        let args = READ3args { file: nfs_fh3 { data: fh.clone() }, offset, count };
        match self.call(NFSPROC3_READ, &args).await {
            READ3res::NFS3_OK(ok) => {
                assert_eq!(ok.count as usize, ok.data.len());
                assert!(matches!(ok.file_attributes, post_op_attr::FALSE));
                assert!(ok.eof || ok.count > 0 || count == 0, "0 bytes without EOF is an EIO for Linux");
                Ok((ok.data, ok.eof))
            }
            READ3res::Default(status, _) => Err(status),
        }
    }

    /// The write verifier.
    pub(crate) async fn write(
        &self,
        fh: &Bytes,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> Answer<[u8; 8]> {
        let (file, count) = (nfs_fh3 { data: fh.clone() }, data.len() as u32);
        let args = WRITE3args { file, offset, count, stable, data: Bytes::copy_from_slice(data) };
        match self.call(NFSPROC3_WRITE, &args).await {
            WRITE3res::NFS3_OK(ok) => {
                assert_eq!((ok.count, ok.committed), (count, stable));
                Ok(ok.verf.0)
            }
            WRITE3res::Default(status, _) => Err(status),
        }
    }

    pub(crate) async fn commit(&self, fh: &Bytes) -> Answer<[u8; 8]> {
        let args = COMMIT3args { file: nfs_fh3 { data: fh.clone() }, offset: 0, count: 0 };
        match self.call(NFSPROC3_COMMIT, &args).await {
            COMMIT3res::NFS3_OK(ok) => Ok(ok.verf.0),
            COMMIT3res::Default(status, _) => Err(status),
        }
    }
}

/// Runs one world on one thread with paused time.
pub(crate) fn simulate<F: Future<Output = ()>>(world: impl FnOnce(World) -> F) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async { world(World::new(Env::simulated(11)).await).await });
}

/// The transport of a host of its own, for attackers.
pub(crate) fn transport(world: &World, host: &str) -> Arc<dyn Transport> {
    world.net.host(host)
}

/// A data server over TCP, its data in a directory, with a metadata server it has found.
pub(crate) async fn on_directory(env: &Env, dir: &std::path::Path, options: Options) -> DataServer {
    let key = ClusterKey::generate(env);
    let tcp: Arc<dyn Transport> = Arc::new(Tcp);
    let mds = Arc::new(MdsProgram(Mds::new()));
    let server = Server::new(env.clone(), Arc::clone(&tcp), Limits::default(), Vec::new());
    let server = Arc::new(server.with_secure(key.clone(), vec![mds]));
    let listener = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr();
    env.spawn.spawn(Box::pin(server.serve(listener)));
    let mut config = Config::new("127.0.0.1:0".parse().unwrap(), dir.to_owned(), addr, key);
    config.store = options;
    let ds = DataServer::start(env.clone(), tcp, config).await.unwrap();
    while !ds.status().serving {
        env.clock.sleep(Duration::from_millis(5)).await;
    }
    ds
}

/// The same, a client of it, and what that has written to data file 1: so many bytes, durable.
pub(crate) async fn written(
    env: &Env,
    dir: &std::path::Path,
    options: Options,
    size: u64,
) -> (DataServer, Arc<Nfs>, Bytes) {
    let ds = on_directory(env, dir, options).await;
    let connection = Client::connect(env.clone(), Arc::new(Tcp), ds.local_addr(), Vec::new()).await.unwrap();
    let nfs = Arc::new(Nfs { connection });
    let content: Bytes = (0..size as u32).map(|i| (i * 7 + (i >> 8)) as u8).collect::<Vec<_>>().into();
    for (number, piece) in content.chunks(1 << 20).enumerate() {
        nfs.write(&handle(1, RW), (number as u64) << 20, piece, stable_how::UNSTABLE).await.unwrap();
    }
    nfs.commit(&handle(1, RW)).await.unwrap();
    (ds, nfs, content)
}
