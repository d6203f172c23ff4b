//! A whole metadata server in a simulated network, and clients that speak to it in COMPOUNDs.
//!
//! ```text
//! simulate(seed, async |world| {
//!     let client = world.client("a").await;
//!     let reply = client.compound(vec![putrootfh(), getfh()]).await;
//! });
//! ```

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_env::{BoxFuture, Env};
use sluice_kv::Database;
use sluice_mds::{Config, Mds};
use sluice_namespace::LayoutPolicy;
use sluice_rpc::{
    AuthSys, Call, Client as Dialler, ClusterKey, Connection, Credential, GssCaller, Limits, Program, Reply,
    Server, Service, SimConfig, SimNet, Tls,
};
use sluice_xdr::nfs4::*;
use sluice_xdr::{from_bytes, to_frame};

use crate::callbacks::Callbacks;
use crate::data_server::DataServer;

/// Name of the metadata server's host.
pub const MDS: &str = "mds";
const MINUTE: Duration = Duration::from_secs(60);

/// One metadata server, its store, its network.
pub struct World {
    pub env: Env,
    pub net: SimNet,
    pub config: Config,
    pub db: Database,
    pub key: ClusterKey,
    pub addr: SocketAddr,
    /// What it speaks with clients that ask for TLS, from its next start on.
    pub tls: Option<Tls>,
    /// For what is not told over the network.
    pub mds: Arc<Mds>,
    server: Arc<Server>,
    data_servers: Vec<Arc<DataServer>>,
}

/// As shipped, but that the root's files are at data servers from their first byte on: what these tests look at happens
/// there, and `inline.rs` has what is different.
pub fn at_data_servers() -> Config {
    Config { policy: LayoutPolicy::default(), ..Config::default() }
}

/// Runs a test in a world of its own, with one data server. SLUICE_SEEDS=n runs it in n worlds.
pub fn simulate(seed: u64, test: impl AsyncFn(World)) {
    simulate_with(seed, at_data_servers(), test);
}

pub fn simulate_with(seed: u64, config: Config, test: impl AsyncFn(World)) {
    // What went on, with RUST_LOG set.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let worlds = std::env::var("SLUICE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for seed in (seed..).step_by(1000).take(worlds) {
        tracing::info!(seed, "a new world");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::start(seed, config.clone()).await;
            world.add_data_server("ds1").await;
            test(world).await;
        });
    }
}

impl World {
    pub async fn start(seed: u64, config: Config) -> Self {
        let env = Env::simulated(seed);
        let net = SimNet::new(env.clone(), SimConfig::default());
        let db = Database::fresh(env.clone()).await.unwrap();
        let key = ClusterKey::generate(&env);
        let addr = SocketAddr::new(net.ip(MDS), 2049);
        let (mds, server) = serve(&env, &net, &db, &key, (&config, None), addr).await;
        Self { env, net, config, db, key, addr, tls: None, mds, server, data_servers: Vec::new() }
    }

    /// kill -9 and a new start on what was committed. Connections break.
    pub async fn restart(&mut self) {
        self.server.shutdown(Duration::ZERO).await;
        self.net.crash(MDS);
        self.db = self.db.crash().unwrap();
        let how = (&self.config, self.tls.clone());
        (self.mds, self.server) = serve(&self.env, &self.net, &self.db, &self.key, how, self.addr).await;
        for data_server in &self.data_servers {
            data_server.registered(&self.env).await;
        }
    }

    /// A data server that registers and says yes to everything.
    pub async fn add_data_server(&mut self, host: &str) -> Arc<DataServer> {
        let data_server = DataServer::start(&self.env, &self.net, host, self.addr, &self.key);
        data_server.registered(&self.env).await;
        self.data_servers.push(Arc::clone(&data_server));
        data_server
    }

    /// The first data server.
    pub fn data_server(&mut self) -> Arc<DataServer> {
        Arc::clone(&self.data_servers[0])
    }

    pub async fn sleep(&self, duration: Duration) {
        self.env.clock.sleep(duration).await;
    }

    /// A client of minor version 2 on a host of its own name, ready to work: session, back channel,
    /// reclaim complete.
    pub async fn client(&self, host: &str) -> Client {
        let client = self.new_client(host).await;
        client.ok(vec![reclaim_complete(false)]).await;
        client
    }

    /// One that takes no stripes.
    pub async fn old_client(&self, host: &str) -> Client {
        self.connect(host).await.session_of(host.as_bytes(), "Linux 6.1.0 #1 SMP x86_64").await
    }

    /// As [`World::client`], before RECLAIM_COMPLETE.
    pub async fn new_client(&self, host: &str) -> Client {
        let raw = self.connect(host).await;
        raw.session(&Bytes::copy_from_slice(host.as_bytes()), [1; 8], 1).await
    }

    /// A connection without a session.
    pub async fn connect(&self, host: &str) -> Raw {
        let callbacks = Arc::new(Callbacks::new(&self.env));
        self.connect_as(host, callbacks).await
    }

    pub async fn connect_as(&self, host: &str, callbacks: Arc<Callbacks>) -> Raw {
        let program = Arc::clone(&callbacks) as Arc<dyn Program>;
        let dialler = Dialler::new(self.env.clone(), self.net.host(host)).with_programs(vec![program]);
        let connection = dialler.dial(self.addr).await.unwrap();
        Raw {
            env: self.env.clone(),
            connection,
            callbacks,
            minor: 2,
            credential: Credential::Sys(AuthSys::root(host)),
        }
    }
}

async fn serve(
    env: &Env,
    net: &SimNet,
    db: &Database,
    key: &ClusterKey,
    (config, tls): (&Config, Option<Tls>),
    addr: SocketAddr,
) -> (Arc<Mds>, Arc<Server>) {
    let mds = Mds::start(env.clone(), net.host(MDS), db.clone(), config.clone()).await.unwrap();
    let programs = mds.plain_programs().into_iter().map(Ticketed::around).collect();
    let server = Server::new(env.clone(), net.host(MDS), Limits::default(), programs)
        .with_secure(key.clone(), mds.secure_programs())
        .with_monitors(mds.monitor_programs())
        .with_tls(tls);
    let server = Arc::new(server);
    let listener = server.listen(addr).await.unwrap();
    let serving = Arc::clone(&server).serve(listener);
    env.spawn.spawn(Box::pin(serving));
    (mds, server)
}

/// Takes for a ticket what [`Raw::with_ticket`] says is one: what it is opened with is the connection's business.
#[derive(Debug)]
struct Ticketed(Arc<dyn Program>);

/// Before the service and the principal, in the name of a machine.
const TICKET: &[u8] = b"ticket ";

impl Ticketed {
    fn around(program: Arc<dyn Program>) -> Arc<dyn Program> {
        Arc::new(Self(program))
    }
}

impl Program for Ticketed {
    fn number(&self) -> u32 {
        self.0.number()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        self.0.versions()
    }

    fn reply_bound(&self, version: u32, procedure: u32, args: &Bytes) -> usize {
        self.0.reply_bound(version, procedure, args)
    }

    fn call<'a>(&'a self, mut call: Call) -> BoxFuture<'a, Reply> {
        if let Credential::Sys(sys) = &call.credential
            && let Some([service, principal @ ..]) = sys.machine_name.strip_prefix(TICKET)
        {
            let service = match service {
                b'i' => Service::Integrity,
                b'p' => Service::Privacy,
                _ => Service::None,
            };
            let principal = std::str::from_utf8(principal).unwrap().into();
            let user = Some(sys.clone()).filter(|sys| sys.uid != u32::MAX);
            call.credential = Credential::Gss(Box::new(GssCaller { principal, service, user }));
        }
        self.0.call(call)
    }
}

/// A connection to the server.
#[derive(Clone)]
pub struct Raw {
    pub env: Env,
    pub connection: Arc<Connection>,
    pub callbacks: Arc<Callbacks>,
    pub minor: u32,
    pub credential: Credential,
}

impl Raw {
    pub fn with_minor(mut self, minor: u32) -> Self {
        self.minor = minor;
        self
    }

    pub fn with_user(mut self, uid: u32, gid: u32, gids: &[u32]) -> Self {
        let machine_name = Bytes::from_static(b"host");
        self.credential = Credential::Sys(AuthSys { stamp: 0, machine_name, uid, gid, gids: gids.to_vec() });
        self
    }

    /// With a Kerberos ticket; `uid`: of the user that he is, if he is one.
    pub fn with_ticket(mut self, principal: &str, service: Service, uid: Option<u32>) -> Self {
        let service = match service {
            Service::None => "-",
            Service::Integrity => "i",
            Service::Privacy => "p",
        };
        let machine_name = [TICKET, service.as_bytes(), principal.as_bytes()].concat().into();
        let (uid, gid) = (uid.unwrap_or(u32::MAX), uid.unwrap_or(u32::MAX));
        self.credential = Credential::Sys(AuthSys { stamp: 0, machine_name, uid, gid, gids: Vec::new() });
        self
    }

    /// Sends exactly these operations.
    pub async fn compound(&self, ops: Vec<nfs_argop4>) -> COMPOUND4res {
        self.try_compound(ops).await.unwrap()
    }

    pub async fn try_compound(&self, ops: Vec<nfs_argop4>) -> Result<COMPOUND4res, sluice_rpc::CallError> {
        let args = COMPOUND4args { tag: Bytes::new(), minorversion: self.minor, argarray: ops };
        let reply = self.bytes(&args).await?;
        Ok(from_bytes(reply).unwrap())
    }

    pub async fn bytes(&self, args: &COMPOUND4args) -> Result<Bytes, sluice_rpc::CallError> {
        let frame = to_frame(args, 2 << 20).unwrap();
        let (program, version) = (NFS4_PROGRAM, 4);
        self.connection.call(program, version, 1, &self.credential, frame, MINUTE).await
    }

    pub async fn exchange_id(&self, owner: &[u8], verifier: [u8; 8]) -> EXCHANGE_ID4resok {
        match self.one(exchange_id(owner, verifier, 0)).await {
            nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(ok)) => ok,
            other => panic!("{other:?}"),
        }
    }

    /// One operation outside a session.
    pub async fn one(&self, op: nfs_argop4) -> nfs_resop4 {
        let mut reply = self.compound(vec![op]).await;
        assert_eq!(reply.resarray.len(), 1);
        reply.resarray.remove(0)
    }

    pub async fn create_session(&self, client: u64, sequence: u32) -> CREATE_SESSION4res {
        match self.one(create_session(client, sequence)).await {
            nfs_resop4::OP_CREATE_SESSION(result) => result,
            other => panic!("{other:?}"),
        }
    }

    /// A client of this kernel, ready to work.
    pub async fn session_of(&self, owner: &[u8], kernel: &'static str) -> Client {
        let mut exchange = exchange_id(owner, [1; 8], 0);
        if let nfs_argop4::OP_EXCHANGE_ID(args) = &mut exchange {
            args.eia_client_impl_id[0].nii_name = kernel.into();
        }
        let nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(known)) = self.one(exchange).await else {
            panic!()
        };
        let made = self.create_session(known.eir_clientid, known.eir_sequenceid).await;
        let CREATE_SESSION4res::NFS4_OK(made) = made else { panic!() };
        let client = Client::new(self.clone(), known.eir_clientid, made.csr_sessionid);
        client.ok(vec![reclaim_complete(false)]).await;
        client
    }

    /// A client with one session over this connection.
    pub async fn session(&self, owner: &[u8], verifier: [u8; 8], _flags: u32) -> Client {
        let known = self.exchange_id(owner, verifier).await;
        let CREATE_SESSION4res::NFS4_OK(made) =
            self.create_session(known.eir_clientid, known.eir_sequenceid).await
        else {
            panic!("no session");
        };
        Client::new(self.clone(), known.eir_clientid, made.csr_sessionid)
    }
}

/// A client with a session.
pub struct Client {
    pub raw: Raw,
    pub id: u64,
    pub session: sessionid4,
    /// Sequence id of the last request per slot; `None` while it is in use.
    slots: Mutex<Vec<Option<u32>>>,
}

impl Client {
    pub fn new(raw: Raw, id: u64, session: sessionid4) -> Self {
        Self { raw, id, session, slots: Mutex::new(vec![Some(0); 16]) }
    }

    /// The same session over another connection, or as another user. Slots from 8 on are its own.
    pub fn over(&self, raw: Raw) -> Self {
        let mut slots = vec![None; 8];
        slots.extend([Some(0); 8]);
        Self { raw, id: self.id, session: self.session, slots: Mutex::new(slots) }
    }

    /// The same session over another connection, with the slots as they are.
    pub fn over_slots(&self, raw: Raw) -> Self {
        Self { raw, id: self.id, session: self.session, slots: Mutex::new(self.slots.lock().clone()) }
    }

    pub fn callbacks(&self) -> &Arc<Callbacks> {
        &self.raw.callbacks
    }

    /// A SEQUENCE for the lowest free slot, and the slot.
    fn sequence(&self) -> (usize, u32) {
        let mut slots = self.slots.lock();
        let slot = slots.iter().position(Option::is_some).expect("a free slot");
        let seqid = slots[slot].take().unwrap() + 1;
        (slot, seqid)
    }

    /// SEQUENCE and these operations; the reply with SEQUENCE's result first.
    pub async fn compound(&self, ops: Vec<nfs_argop4>) -> COMPOUND4res {
        let (slot, seqid) = self.sequence();
        let mut all = vec![sequence(self.session, u32::try_from(slot).unwrap(), seqid, false)];
        all.extend(ops);
        let reply = self.raw.compound(all).await;
        let began = matches!(reply.resarray.first(), Some(nfs_resop4::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(_))));
        self.slots.lock()[slot] = Some(if began { seqid } else { seqid - 1 });
        reply
    }

    /// These operations, which must all succeed; their results without SEQUENCE's.
    pub async fn ok(&self, ops: Vec<nfs_argop4>) -> Vec<nfs_resop4> {
        let mut reply = self.compound(ops).await;
        assert_eq!(reply.status, nfsstat4::NFS4_OK, "{:?}", reply.resarray.last());
        reply.resarray.remove(0);
        reply.resarray
    }

    /// The status of the whole.
    pub async fn status(&self, ops: Vec<nfs_argop4>) -> nfsstat4 {
        self.compound(ops).await.status
    }

    /// As [`Client::ok`], repeated while the answer is DELAY, for two simulated minutes.
    pub async fn patient(&self, ops: Vec<nfs_argop4>) -> Vec<nfs_resop4> {
        let clock = &self.raw.env.clock;
        let end = clock.now() + 2 * MINUTE;
        loop {
            let mut reply = self.compound(ops.clone()).await;
            if reply.status != nfsstat4::NFS4ERR_DELAY || clock.now() > end {
                assert_eq!(reply.status, nfsstat4::NFS4_OK, "{:?}", reply.resarray.last());
                reply.resarray.remove(0);
                return reply.resarray;
            }
            clock.sleep(Duration::from_millis(100)).await;
        }
    }

    /// The last result of operations that must all succeed.
    pub async fn last(&self, ops: Vec<nfs_argop4>) -> nfs_resop4 {
        self.ok(ops).await.pop().unwrap()
    }

    /// sr_status_flags of an empty COMPOUND.
    pub async fn flags(&self) -> u32 {
        match self.compound(Vec::new()).await.resarray.first() {
            Some(nfs_resop4::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(ok))) => ok.sr_status_flags,
            other => panic!("{other:?}"),
        }
    }

    /// What TEST_STATEID says of each.
    pub async fn tested(&self, stateids: &[stateid4]) -> Vec<nfsstat4> {
        match self.last(vec![test_stateid(stateids)]).await {
            nfs_resop4::OP_TEST_STATEID(TEST_STATEID4res::NFS4_OK(ok)) => ok.tsr_status_codes,
            other => panic!("{other:?}"),
        }
    }

    /// The filehandle of a path from the root.
    pub async fn handle(&self, path: &str) -> nfs_fh4 {
        let mut ops = walk(path);
        ops.push(getfh());
        match self.last(ops).await {
            nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(ok)) => ok.object,
            other => panic!("{other:?}"),
        }
    }

    pub async fn attributes(&self, path: &str, numbers: &[u32]) -> Attributes {
        let mut ops = walk(path);
        ops.push(getattr(numbers));
        looked(&self.last(ops).await)
    }

    pub async fn mkdir(&self, parent: &str, name: &str) {
        let mut ops = walk(parent);
        ops.push(create(createtype4::NF4DIR, name, &mode(0o777)));
        self.ok(ops).await;
    }

    /// Opens (making it, if need be) a file of the root: its handle and the open stateid.
    pub async fn open(&self, name: &str, access: u32, deny: u32) -> (nfs_fh4, stateid4) {
        let ops = vec![putrootfh(), open_create(name, b"owner", access, deny), getfh()];
        opened(&self.ok(ops).await)
    }
}

/// What GETATTR said.
pub fn looked(result: &nfs_resop4) -> Attributes {
    match result {
        nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok)) => Attributes::decode(&ok.obj_attributes).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Handle and stateid from results that end with OPEN, GETFH.
pub fn opened(results: &[nfs_resop4]) -> (nfs_fh4, stateid4) {
    match results {
        [.., nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)), nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(fh))] => {
            (fh.object.clone(), open.stateid)
        }
        other => panic!("{other:?}"),
    }
}

/// Runs two futures at once.
pub async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    tokio::join!(a, b)
}

/// Completes when `found` does not answer `None` any more; panics after a simulated minute.
pub async fn until<T>(env: &Env, mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..60_000 {
        if let Some(value) = found() {
            return value;
        }
        env.clock.sleep(Duration::from_millis(1)).await;
    }
    panic!("it never happened");
}

pub type Boxed<T> = BoxFuture<'static, T>;

pub use crate::calls::*;
