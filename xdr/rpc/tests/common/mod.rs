//! A program to call, and worlds to call it in.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests; each binary uses a part"
)]

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sluice_env::{BoxFuture, Env};
use sluice_rpc::{
    Call, CallError, Client, Connection, Credential, Frame, Limits, Owed, Program, Reply, Server, SimConfig,
    SimNet, Tcp, Transport, auth_stat,
};
use std::net::SocketAddr;
use tokio::sync::Semaphore;

pub const ECHO: u32 = 0x2000_0001;
pub const BACK: u32 = 0x4000_0000;
pub const CONTROL: u32 = 0x2000_0099;
pub const SECOND: Duration = Duration::from_secs(1);
pub const LONG: Duration = Duration::from_secs(20);

pub mod procedure {
    pub const NULL: u32 = 0;
    pub const ECHO: u32 = 1;
    /// Argument: milliseconds.
    pub const SLEEP: u32 = 2;
    /// Argument: size of the reply.
    pub const READ: u32 = 3;
    /// Calls the caller back and returns what it said.
    pub const CALL_BACK: u32 = 4;
    /// Waits until the test opens the gate.
    pub const GATE: u32 = 5;
    pub const GARBAGE: u32 = 6;
    pub const SYSTEM_ERR: u32 = 7;
    pub const TOO_WEAK: u32 = 8;
    pub const DROP: u32 = 9;
    pub const PANIC: u32 = 10;
    pub const PANIC_LATER: u32 = 11;
    /// The caller's uid.
    pub const WHO: u32 = 12;
    /// As READ, of bytes nobody shares.
    pub const READ_FRESH: u32 = 13;
    /// Takes anything, returns nothing.
    pub const WRITE: u32 = 14;
    pub const UNKNOWN: u32 = 15;
    /// As ECHO, at once, if the argument is of less than 16 KiB.
    pub const NOW: u32 = 16;
    /// By how much the arguments miss the end of a page of memory.
    pub const BEYOND: u32 = 17;
    /// Waits for the gate and returns nothing.
    pub const GATED_WRITE: u32 = 18;
    /// Answered from another thread: whether it was tried before, and the argument. There a first word of 13 is bad luck.
    pub const SOON: u32 = 19;
    /// The same, and it is tried.
    pub const TRIED: u32 = 20;
}

#[derive(Debug)]
pub struct Echo {
    pub number: u32,
    pub env: Env,
    pub gate: Semaphore,
    pub started: AtomicUsize,
    pub bound: Option<usize>,
    pub data: Bytes,
}

impl Echo {
    pub fn new(env: &Env, number: u32) -> Arc<Self> {
        Arc::new(Self::plain(env, number))
    }

    pub fn plain(env: &Env, number: u32) -> Self {
        Self {
            number,
            env: env.clone(),
            gate: Semaphore::new(0),
            started: 0.into(),
            bound: None,
            data: vec![7; 1 << 20].into(),
        }
    }
}

pub fn word(args: &[u8]) -> u32 {
    args.first_chunk().map_or(0, |w| u32::from_be_bytes(*w))
}

pub fn words(w: &[u32]) -> Bytes {
    w.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>().into()
}

impl Program for Echo {
    fn number(&self) -> u32 {
        self.number
    }

    fn versions(&self) -> RangeInclusive<u32> {
        2..=3
    }

    fn reply_bound(&self, _: u32, procedure: u32, args: &Bytes) -> usize {
        match (self.bound, procedure) {
            (Some(bound), _) => bound,
            (None, procedure::READ | procedure::READ_FRESH) => word(args) as usize,
            (None, _) => args.len() + 256,
        }
    }

    fn answers_now(&self, procedure: u32) -> bool {
        matches!(procedure, procedure::NOW | procedure::ECHO | procedure::TRIED)
    }

    fn answer_now(&self, _: &Connection, procedure: u32, args: &[u8], result: &mut BytesMut) -> bool {
        let now = procedure == procedure::NOW && args.len() < 16 << 10;
        // What is left behind by one who then declines is taken away.
        result.extend_from_slice(args);
        now
    }

    fn take(&self, call: Call, owed: Owed) -> Option<(Call, Owed)> {
        if !matches!(call.procedure, procedure::SOON | procedure::TRIED) {
            return Some((call, owed));
        }
        let Call { tried, args, .. } = call;
        drop(self.env.spawn.blocking(Box::new(move || {
            // It may end without an answer.
            let owed = owed;
            if word(&args) != 13 {
                owed.answer(Reply::Success(Bytes::from([words(&[tried.into()]), args].concat()).into()));
            }
        })));
        None
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        self.started.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let args = call.args.clone();
            match call.procedure {
                procedure::NULL | procedure::WRITE => Reply::Success(Frame::empty()),
                procedure::ECHO | procedure::NOW => Reply::Success(args.into()),
                procedure::BEYOND => {
                    let beyond = args.as_ptr_range().end.addr() % 4096;
                    Reply::Success(words(&[u32::try_from(beyond).unwrap()]).into())
                }
                procedure::SLEEP => {
                    self.env.clock.sleep(Duration::from_millis(word(&args).into())).await;
                    Reply::Success(args.into())
                }
                procedure::READ => Reply::Success(self.data.slice(..word(&args) as usize).into()),
                procedure::CALL_BACK => {
                    let root = Credential::Sys(sluice_rpc::AuthSys::root("mds"));
                    let back = call.connection.call(BACK, 2, procedure::ECHO, &root, args.into(), LONG).await;
                    match back {
                        Ok(bytes) => Reply::Success(bytes.into()),
                        Err(_) => Reply::SystemErr,
                    }
                }
                procedure::GATE => match self.gate.acquire().await {
                    Ok(permit) => {
                        permit.forget();
                        Reply::Success(args.into())
                    }
                    Err(_) => Reply::SystemErr,
                },
                procedure::GATED_WRITE => match self.gate.acquire().await {
                    Ok(permit) => {
                        permit.forget();
                        Reply::Success(Frame::empty())
                    }
                    Err(_) => Reply::SystemErr,
                },
                procedure::READ_FRESH => Reply::Success(Bytes::from(vec![1; word(&args) as usize]).into()),
                procedure::GARBAGE => Reply::GarbageArgs,
                procedure::SYSTEM_ERR => Reply::SystemErr,
                procedure::TOO_WEAK => Reply::AuthError(auth_stat::AUTH_TOOWEAK),
                procedure::DROP => Reply::Drop,
                procedure::PANIC => panic!("as asked"),
                procedure::PANIC_LATER => {
                    self.env.clock.sleep(Duration::from_millis(1)).await;
                    panic!("as asked")
                }
                procedure::WHO => Reply::Success(words(&[call.credential.uid().unwrap_or(u32::MAX)]).into()),
                _ => Reply::ProcUnavail,
            }
        })
    }
}

/// Where a test happens.
pub struct World {
    pub env: Env,
    pub at_server: Arc<dyn Transport>,
    pub at_client: Arc<dyn Transport>,
    pub listen: SocketAddr,
    pub net: Option<SimNet>,
}

impl World {
    pub fn tcp(listen: &str) -> Self {
        let tcp: Arc<dyn Transport> = Arc::new(Tcp);
        Self {
            env: Env::system(),
            at_server: tcp.clone(),
            at_client: tcp,
            listen: listen.parse().unwrap(),
            net: None,
        }
    }

    pub fn sim(seed: u64, config: SimConfig) -> Self {
        let env = Env::simulated(seed);
        let net = SimNet::new(env.clone(), config);
        Self {
            at_server: net.host("server"),
            at_client: net.host("client"),
            listen: SocketAddr::new(net.ip("server"), 2049),
            env,
            net: Some(net),
        }
    }

    pub async fn serve(&self, limits: Limits, programs: Vec<Arc<dyn Program>>) -> (Arc<Server>, SocketAddr) {
        self.run(Server::new(self.env.clone(), self.at_server.clone(), limits, programs)).await
    }

    pub async fn run(&self, server: Server) -> (Arc<Server>, SocketAddr) {
        let server = Arc::new(server);
        let listener = server.listen(self.listen).await.unwrap();
        let addr = listener.local_addr();
        self.env.spawn.spawn(Box::pin(server.clone().serve(listener)));
        (server, addr)
    }

    pub fn client(&self) -> Client {
        Client::new(self.env.clone(), self.at_client.clone())
    }

    pub async fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        for _ in 0..2000 {
            if done() {
                return;
            }
            self.env.clock.sleep(Duration::from_millis(5)).await;
        }
        panic!("never happened: {what}");
    }
}

pub async fn call(c: &Connection, procedure: u32, args: impl Into<Bytes>) -> Result<Bytes, CallError> {
    c.call(ECHO, 3, procedure, &Credential::None, args.into().into(), LONG).await
}

pub fn simulate<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(World) -> F) {
    simulate_with(seed, SimConfig::default(), test);
}

pub fn simulate_with<F: Future<Output = ()>>(seed: u64, config: SimConfig, test: impl FnOnce(World) -> F) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { test(World::sim(seed, config)).await });
}

pub fn on_tcp<F: Future<Output = ()>>(listen: &str, test: impl FnOnce(World) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { test(World::tcp(listen)).await });
}

/// A call with AUTH_NONE as it goes over the wire, record mark included.
pub fn raw_call(xid: u32, program: u32, procedure: u32, args: &[u32]) -> Vec<u8> {
    let mut body = vec![xid, 0, 2, program, 3, procedure, 0, 0, 0, 0];
    body.extend(args);
    raw_record(&words(&body))
}

pub fn raw_record(body: &[u8]) -> Vec<u8> {
    let mark = 0x8000_0000 | u32::try_from(body.len()).unwrap();
    [&mark.to_be_bytes(), body].concat()
}

/// Resident memory of this process, in bytes.
pub fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
