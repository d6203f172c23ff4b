//! A data server as the metadata server sees it: it registers, sends heartbeats and obeys. It holds no data, and says
//! that there are data wherever it is asked.

use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_env::{BoxFuture, Env};
use sluice_rpc::{
    Call, Client as Dialler, ClusterKey, Connection, Credential, Frame, Limits, Program, Reply, Server,
    SimNet,
};
use sluice_xdr::control::*;
use sluice_xdr::nfs3::{READ3res, READ3resfail, nfsstat3, post_op_attr};
use sluice_xdr::nfs4::{READ4args, nfs_argop4, nfsstat4};
use sluice_xdr::{Decode, Encode, Reader, from_bytes, to_frame};
use tokio::sync::watch;

use crate::harness::*;

#[derive(Debug, Default)]
pub struct DataServer {
    state: Mutex<State>,
    /// Orders to copy are not carried out now.
    held: watch::Sender<bool>,
    /// DS_STAT is not answered now.
    stats_held: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// Registered over this connection.
    link: Option<Arc<Connection>>,
    fences: Vec<ctl_fence>,
    /// What DS_STAT says of every data file.
    stat: ctl_stat,
    /// The data files that it was asked about with DS_STAT.
    asked_about: Vec<ctl_data_file>,
    /// As heartbeats say, if not OK.
    health: Option<ctl_health>,
    /// Fences are not answered.
    stubborn: bool,
    /// Data files that were cut, by slot, and to which size, order by order.
    cuts: Vec<(u32, u64)>,
    /// Orders to copy.
    transfers: Vec<DS_TRANSFER_args>,
    /// Orders to copy fail.
    fails: bool,
    /// How often its process was started again.
    starts: u8,
    /// Data files are holes.
    hollow: bool,
    /// Data files have these, where a test says so.
    holes: Vec<Range<u64>>,
    /// So many stripe units are done in one order; `None`: it is of the release before, which does one.
    units: Option<usize>,
    /// What was set aside, by slot.
    aside: Vec<(u32, Range<u64>)>,
    /// Orders on space, and questions about it.
    on_space: usize,
    /// Data files removed, order by order.
    removed: Vec<Vec<ctl_data_file>>,
    /// Its device takes nothing now: nothing is removed, and fences hold in memory only.
    keeps: bool,
    /// Of its device, as it says when it is asked; heartbeats always say 0.
    used: u64,
    /// How often it was asked.
    asked: usize,
    tells: Tells,
    /// The oldest capability epoch that is good, as it was told last.
    oldest: u32,
    /// Fences that it keeps: those of epochs that are not over.
    table: Vec<ctl_fence>,
    /// No more of them than so many.
    room: Option<usize>,
    /// How often it had no room.
    crowded: usize,
    /// How long it takes to remove data files.
    slow: Duration,
    /// What clients can have there; `None`: it is of a release that does not know the question.
    protection: Option<ctl_protection>,
    /// So often it does not answer that.
    unsaid: usize,
}

impl State {
    /// False: it has no room for them.
    fn keep(&mut self, fences: &[ctl_fence]) -> bool {
        let room = self.room.is_none_or(|room| self.table.len() + fences.len() <= room);
        self.crowded += usize::from(!room);
        if room {
            self.table.extend_from_slice(fences);
            self.fences.extend_from_slice(fences);
        }
        room
    }

    fn hole(&self, from: u64) -> Option<u64> {
        self.holes.iter().filter(|hole| from < hole.end).map(|hole| from.max(hole.start)).min()
    }

    fn retire(&mut self, oldest: u32) {
        self.table.retain(|fence| fence.epoch >= oldest);
    }
}

/// What is answered to one who asks for the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tells {
    #[default]
    Now,
    /// It is of a release that does not know the question.
    Unknown,
    /// Nothing; to orders to remove neither.
    Never,
}

/// Bytes of its device.
pub const DEVICE: u64 = 1 << 40;
/// What a data file takes.
pub const DATA_FILE: u64 = 1 << 20;

fn capacity(used: u64) -> ctl_capacity {
    ctl_capacity {
        total_bytes: DEVICE,
        free_bytes: DEVICE - used,
        used_bytes: used,
        files: used / DATA_FILE,
        free_inodes: (1 << 30) - used / DATA_FILE,
        device: ctl_uuid([0; 16]),
    }
}

#[derive(Debug)]
struct Orders(Arc<DataServer>, Env);

impl DataServer {
    /// Starts it: it keeps itself registered for as long as the world lasts.
    pub fn start(env: &Env, net: &SimNet, host: &str, mds: SocketAddr, key: &ClusterKey) -> Arc<Self> {
        let this = Arc::new(Self::default());
        let orders = Arc::new(Orders(Arc::clone(&this), env.clone())) as Arc<dyn Program>;
        let dialler =
            Dialler::new(env.clone(), net.host(host)).with_key(key.clone()).with_programs(vec![orders]);
        let (env, address, server) = (env.clone(), SocketAddr::new(net.ip(host), 2050), Arc::clone(&this));
        let spawn = Arc::clone(&env.spawn);
        spawn.spawn(Box::pin(async move { server.run(env, dialler, mds, address).await }));
        this
    }

    pub async fn registered(&self, env: &Env) {
        until(env, || self.state.lock().link.as_ref().filter(|link| !link.is_closed()).map(|_| ())).await;
    }

    /// Fences received, at registration or later.
    pub fn fences(&self) -> Vec<ctl_fence> {
        self.state.lock().fences.clone()
    }

    /// Keeps no more fences than so many.
    pub fn set_room(&self, fences: usize) {
        self.state.lock().room = Some(fences);
    }

    /// How often it had no room for fences.
    pub fn crowded(&self) -> usize {
        self.state.lock().crowded
    }

    pub fn set_stat(&self, stat: ctl_stat) {
        self.state.lock().stat = stat;
    }

    /// Leaves DS_STAT without an answer until it is told otherwise.
    pub fn hold_stats(&self, hold: bool) {
        self.stats_held.send_replace(hold);
    }

    /// The data files that it was asked about with DS_STAT, so far.
    pub fn asked_about(&self) -> Vec<ctl_data_file> {
        self.state.lock().asked_about.clone()
    }

    /// Says that these data files have come into being.
    pub async fn tell_of(&self, files: Vec<ctl_data_file>) {
        let link = self.state.lock().link.clone().unwrap();
        let told: Option<ctl_status> = call(&link, CONTROL_MATERIALISED, &MATERIALISED_args { files }).await;
        assert_eq!(told, Some(ctl_status::CTL_OK));
    }

    /// Says so with each heartbeat from now on.
    pub fn set_health(&self, health: ctl_health) {
        self.state.lock().health = Some(health);
    }

    /// Leaves fences without an answer from now on, or no longer.
    pub fn set_stubborn(&self, stubborn: bool) {
        self.state.lock().stubborn = stubborn;
    }

    /// Data files that were cut, by slot, and to which size, order by order.
    pub fn cuts(&self) -> Vec<(u32, u64)> {
        self.state.lock().cuts.clone()
    }

    /// Leaves orders to copy without an answer until it is told otherwise.
    pub fn hold_transfers(&self, hold: bool) {
        self.held.send_replace(hold);
    }

    /// Answers orders to copy that come from now on with an I/O error, or no longer.
    pub fn set_fails(&self, fails: bool) {
        self.state.lock().fails = fails;
    }

    /// What clients can have there, from its next registration on.
    pub fn set_protection(&self, protection: ctl_protection) {
        self.state.lock().protection = Some(protection);
    }

    /// So often it does not answer that question.
    pub fn set_unsaid(&self, unsaid: usize) {
        self.state.lock().unsaid = unsaid;
    }

    /// Registers as a process that was started again.
    pub async fn restart(&self, env: &Env) {
        let link = {
            let mut state = self.state.lock();
            state.starts += 1;
            state.link.take()
        };
        link.iter().for_each(|link| link.close());
        self.registered(env).await;
    }

    /// Says that there are no data, from now on.
    pub fn set_hollow(&self) {
        self.state.lock().hollow = true;
    }

    /// The oldest capability epoch that is good, as it was told last.
    pub fn oldest(&self) -> u32 {
        self.state.lock().oldest
    }

    /// Orders to copy, received so far.
    pub fn transfers(&self) -> Vec<DS_TRANSFER_args> {
        self.state.lock().transfers.clone()
    }

    /// Data files that were removed, order by order.
    pub fn removed(&self) -> Vec<Vec<ctl_data_file>> {
        self.state.lock().removed.clone()
    }

    /// Fails to remove data files, and to make fences durable, from now on, or no longer.
    pub fn set_keeps(&self, keeps: bool) {
        self.state.lock().keeps = keeps;
    }

    /// Takes so long for each order to remove data files, from now on.
    pub fn set_slow(&self, slow: Duration) {
        self.state.lock().slow = slow;
    }

    /// Holds so many data files from now on.
    pub fn set_data_files(&self, count: u64) {
        self.state.lock().used = count * DATA_FILE;
    }

    /// From now on so many stripe units are done in one order, and data files have these holes.
    pub fn set_units(&self, units: Option<usize>, holes: &[Range<u64>]) {
        let mut state = self.state.lock();
        (state.units, state.holes) = (units, holes.to_vec());
    }

    /// What was set aside since it was asked last, by slot; and how many orders on space there were.
    pub fn take_aside(&self) -> (Vec<(u32, Range<u64>)>, usize) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.aside), std::mem::take(&mut state.on_space))
    }

    /// How often it was asked for its capacity.
    pub fn asked(&self) -> usize {
        self.state.lock().asked
    }

    pub fn set_tells(&self, tells: Tells) {
        self.state.lock().tells = tells;
    }

    async fn run(self: Arc<Self>, env: Env, dialler: Dialler, mds: SocketAddr, address: SocketAddr) {
        loop {
            if let Ok(link) = dialler.dial(mds).await {
                self.serve(&env, &link, address).await;
            }
            self.state.lock().link = None;
            env.clock.sleep(Duration::from_millis(100)).await;
        }
    }

    async fn serve(&self, env: &Env, link: &Arc<Connection>, address: SocketAddr) {
        let [a, b, c, d] = match address.ip() {
            std::net::IpAddr::V4(ip) => ip.octets(),
            std::net::IpAddr::V6(_) => [0; 4],
        };
        let mut uuid = [1; 16];
        uuid[..4].copy_from_slice(&[a, b, c, d]);
        let capacity = capacity(0);
        let args = REGISTER_args {
            protocol: CTL_PROTOCOL,
            store: ctl_uuid(uuid),
            cluster: ctl_uuid([0; 16]),
            incarnation: ctl_uuid([2 + self.state.lock().starts; 16]),
            addresses: vec![ctl_address {
                host: Bytes::from(address.ip().to_string()),
                port: address.port().into(),
            }],
            capacity,
            version: Bytes::from_static(b"test"),
            newest_epoch: 0,
        };
        let Some(REGISTER_res::CTL_OK(granted)) = call(link, CONTROL_REGISTER, &args).await else { return };
        {
            let mut state = self.state.lock();
            state.retire(granted.oldest_epoch);
            if !state.keep(&granted.fences) {
                return;
            }
        }
        let heartbeat = HEARTBEAT_args {
            mds_epoch: granted.mds_epoch,
            capacity,
            counters: ctl_counters::default(),
            health: ctl_health::HEALTH_OK,
            detail: Bytes::new(),
        };
        loop {
            let health = self.state.lock().health.unwrap_or(ctl_health::HEALTH_OK);
            let heartbeat = HEARTBEAT_args { health, ..heartbeat.clone() };
            let answer: Option<HEARTBEAT_res> = call(link, CONTROL_HEARTBEAT, &heartbeat).await;
            if !matches!(answer, Some(HEARTBEAT_res::CTL_OK(_))) {
                return;
            }
            self.state.lock().link = Some(Arc::clone(link));
            env.clock.sleep(Duration::from_millis(granted.heartbeat_ms.into())).await;
        }
    }

    fn obey(&self, call: &Call) -> Reply {
        let args = call.args.clone();
        let mut state = self.state.lock();
        match call.procedure {
            DS_NULL => Reply::Success(Frame::default()),
            DS_FENCE if state.stubborn => Reply::Drop,
            DS_FENCE => {
                let args: DS_FENCE_args = from_bytes(args).unwrap();
                success(&match state.keep(&args.fences) {
                    false => ctl_status::CTL_ERR_AGAIN,
                    true if state.keeps => ctl_status::CTL_ERR_IO,
                    true => ctl_status::CTL_OK,
                })
            }
            DS_FENCED => {
                let args: DS_FENCE_args = from_bytes(args).unwrap();
                let held = args.fences.iter().all(|fence| state.fences.contains(fence));
                success(&if held { ctl_status::CTL_OK } else { ctl_status::CTL_ERR_NOENT })
            }
            DS_EPOCH => {
                let oldest = from_bytes::<DS_EPOCH_args>(args).unwrap().oldest_epoch;
                state.oldest = oldest;
                state.retire(oldest);
                success(&ctl_status::CTL_OK)
            }
            DS_TRUNCATE => {
                let args: DS_TRUNCATE_args = from_bytes(args).unwrap();
                state.cuts.push((args.target.slot, args.size));
                success(&ctl_status::CTL_OK)
            }
            DS_STAT => {
                let args: DS_STAT_args = from_bytes(args).unwrap();
                let stats = vec![state.stat; args.files.len()];
                state.asked_about.extend(args.files);
                success(&DS_STAT_res::CTL_OK(stats))
            }
            DS_REMOVE if state.tells == Tells::Never => Reply::Drop,
            DS_REMOVE => {
                let args: DS_REMOVE_args = from_bytes(args).unwrap();
                let status = if state.keeps { ctl_status::CTL_ERR_IO } else { ctl_status::CTL_OK };
                let results = vec![status; args.files.len()];
                if !state.keeps {
                    state.used = state.used.saturating_sub(DATA_FILE * args.files.len() as u64);
                    state.removed.push(args.files);
                }
                success(&DS_REMOVE_res { results })
            }
            DS_CAPACITY => {
                state.asked += 1;
                match state.tells {
                    Tells::Now => success(&capacity(state.used)),
                    Tells::Unknown => Reply::ProcUnavail,
                    Tells::Never => Reply::Drop,
                }
            }
            DS_PROTECTION if state.unsaid > 0 => {
                state.unsaid -= 1;
                Reply::Drop
            }
            DS_PROTECTION => match state.protection {
                Some(protection) => success(&protection),
                None => Reply::ProcUnavail,
            },
            // It is of the release before.
            DS_DIGEST => Reply::ProcUnavail,
            DS_MACHINE => {
                // Noon of some day in 2001.
                success(&ctl_machine {
                    seconds: 1_000_000_000,
                    nanos: 0,
                    descriptors: 9,
                    descriptors_most: 1024,
                })
            }
            DS_ALLOCATE | DS_HOLE if state.units.is_none() => Reply::ProcUnavail,
            DS_ALLOCATE => {
                state.on_space += 1;
                let DS_ALLOCATE_args { target, units, .. } = from_bytes(args).unwrap();
                let mut pieces = units.pieces();
                let done: Vec<_> = pieces.by_ref().take(state.units.unwrap()).collect();
                state.aside.extend(done.into_iter().map(|piece| (target.slot, piece)));
                success(&DS_ALLOCATE_res::CTL_OK(pieces.next().map_or(units.end, |piece| piece.start)))
            }
            DS_HOLE => {
                state.on_space += 1;
                let units = from_bytes::<DS_HOLE_args>(args).unwrap().units;
                let mut pieces = units.pieces();
                let mut some = pieces.by_ref().take(state.units.unwrap());
                let hole = some.find_map(|piece| state.hole(piece.start).filter(|hole| *hole < piece.end));
                let next = pieces.next().map_or(units.end, |piece| piece.start);
                let (found, offset) = (hole.is_some(), hole.unwrap_or(next));
                success(&DS_HOLE_res::CTL_OK(DS_HOLE_resok { found, offset }))
            }
            DS_SPACE => {
                state.on_space += 1;
                let DS_SPACE_args { target, operation, offset, length, .. } = from_bytes(args).unwrap();
                if operation == ctl_space_operation::SPACE_ALLOCATE {
                    state.aside.push((target.slot, offset..offset + length));
                }
                success(&ctl_status::CTL_OK)
            }
            DS_SEEK if !state.holes.is_empty() => {
                state.on_space += 1;
                let args: DS_SEEK_args = from_bytes(args).unwrap();
                assert!(!args.data);
                let offset = state.hole(args.offset).unwrap_or(u64::MAX);
                success(&DS_SEEK_res::CTL_OK(DS_SEEK_resok { found: true, offset }))
            }
            DS_SEEK => {
                let args: DS_SEEK_args = from_bytes(args).unwrap();
                let found = !state.hollow;
                success(&DS_SEEK_res::CTL_OK(DS_SEEK_resok { found, offset: args.offset }))
            }
            DS_COPY => success(&DS_COPY_res::CTL_OK(0)),
            DS_TRANSFER => {
                state.transfers.push(from_bytes(args).unwrap());
                success(&if state.fails { ctl_status::CTL_ERR_IO } else { ctl_status::CTL_OK })
            }
            _ => success(&ctl_status::CTL_OK),
        }
    }
}

fn success(result: &impl Encode) -> Reply {
    Reply::Success(to_frame(result, 1 << 20).unwrap())
}

pub async fn call<A: Encode, R: Decode>(link: &Connection, procedure: u32, args: &A) -> Option<R> {
    let frame = to_frame(args, 1 << 20).unwrap();
    let patience = Duration::from_secs(10);
    let reply =
        link.call(SLUICE_CONTROL, SLUICE_CONTROL_V1, procedure, &Credential::None, frame, patience).await;
    R::decode(&mut Reader::new(reply.ok()?)).ok()
}

impl Program for Orders {
    fn number(&self) -> u32 {
        SLUICE_DATA_SERVER
    }

    fn versions(&self) -> RangeInclusive<u32> {
        SLUICE_DATA_SERVER_V1..=SLUICE_DATA_SERVER_V1
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let reply = self.0.obey(&call);
            // They take turns.
            if matches!(call.procedure, DS_TRANSFER | DS_COPY) {
                self.0.held.subscribe().wait_for(|held| !held).await.unwrap();
            }
            if call.procedure == DS_REMOVE {
                let slow = self.0.state.lock().slow;
                self.1.clock.sleep(slow).await;
            }
            if call.procedure == DS_STAT {
                self.0.stats_held.subscribe().wait_for(|held| !held).await.unwrap();
            }
            reply
        })
    }
}

/// What a data server answers to READs: that their handles are not good.
#[derive(Debug, Default)]
struct Refuses {
    held: watch::Sender<bool>,
    asked: Mutex<usize>,
}

impl Program for Refuses {
    fn number(&self) -> u32 {
        100_003
    }

    fn versions(&self) -> RangeInclusive<u32> {
        3..=3
    }

    fn call<'a>(&'a self, _: Call) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            *self.asked.lock() += 1;
            self.held.subscribe().wait_for(|held| !held).await.unwrap();
            let failed = READ3resfail { file_attributes: post_op_attr::FALSE };
            success(&READ3res::Default(nfsstat3::NFS3ERR_ACCES, failed))
        })
    }
}

/// A handle may be of an epoch that is over when it arrives: the epoch turns when a data server is started again.
#[test]
fn what_is_refused_under_a_handle_of_an_older_epoch_is_asked_again() {
    for (turns, expected) in [(false, nfsstat4::NFS4ERR_IO), (true, nfsstat4::NFS4ERR_DELAY)] {
        simulate(71, async |mut world: World| {
            let refuses = Arc::new(Refuses::default());
            let programs = vec![Arc::clone(&refuses) as Arc<dyn Program>];
            let server = Server::new(world.env.clone(), world.net.host("ds1"), Limits::default(), programs);
            let server = Arc::new(server);
            let listener = server.listen(SocketAddr::new(world.net.ip("ds1"), 2050)).await.unwrap();
            world.env.spawn.spawn(Box::pin(Arc::clone(&server).serve(listener)));
            let client = world.client("a").await;
            let (fh, open) = client.open("f", BOTH, 0).await;
            client.ok(vec![putfh(&fh), setattr(open, &size(5))]).await;
            let other = world.add_data_server("ds2").await;
            refuses.held.send_replace(true);
            let looks = nfs_argop4::OP_READ(READ4args { stateid: open, offset: 0, count: 5 });
            let asks = client.status(vec![putfh(&fh), looks]);
            let meanwhile = async {
                until(&world.env, || (*refuses.asked.lock() > 0).then_some(())).await;
                if turns {
                    other.restart(&world.env).await;
                }
                refuses.held.send_replace(false);
            };
            assert_eq!(both(asks, meanwhile).await.0, expected);
            server.shutdown(Duration::ZERO).await;
        });
    }
}
