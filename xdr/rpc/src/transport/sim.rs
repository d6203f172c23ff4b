//! A network in memory, for simulations: deterministic on a single-threaded runtime, with latency drawn
//! from the environment's randomness, bounded buffers, partitions, resets, and hosts that fall mute.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::{BoxFuture, Env};
use tokio::sync::Notify;

use super::{Listener, Stream, Transport};
use crate::transport::sim::pipe::{Pipe, PipeReader, PipeWriter};

mod pipe;

/// How the simulated network behaves.
#[derive(Clone, Copy, Debug)]
pub struct SimConfig {
    /// Bytes one direction of a connection holds before its writer has to wait.
    pub buffer: usize,
    /// Least one-way latency. (The simulated clock counts in milliseconds.)
    pub latency_min: Duration,
    /// Greatest one-way latency.
    pub latency_max: Duration,
    /// Cut writes at random places, so that records arrive in pieces.
    pub short_writes: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            buffer: 256 << 10,
            latency_min: Duration::ZERO,
            latency_max: Duration::from_millis(2),
            short_writes: true,
        }
    }
}

/// One simulated network. Hosts are made with [`SimNet::host`]; each is a [`Transport`].
#[derive(Clone, Debug)]
pub struct SimNet(Arc<Net>);

#[derive(Debug)]
pub(super) struct Net {
    pub(super) env: Env,
    pub(super) config: SimConfig,
    state: Mutex<State>,
    /// Something that a waiting connect depends on has changed.
    changed: Notify,
    pub(super) trace: Mutex<Trace>,
}

#[derive(Debug, Default)]
struct State {
    hosts: BTreeMap<String, IpAddr>,
    listeners: BTreeMap<SocketAddr, Queue>,
    /// Listeners so far.
    listened: u64,
    next_port: u16,
    links: Vec<Link>,
    partitions: BTreeSet<(IpAddr, IpAddr)>,
    frozen: BTreeSet<IpAddr>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Which of the listeners this is: that of a process that died may be dropped after the next one began.
    number: u64,
    streams: VecDeque<Stream>,
    waker: Option<Waker>,
}

/// One connection: its ends and its two directions.
#[derive(Debug)]
struct Link {
    ends: (IpAddr, IpAddr),
    pipes: [Weak<Pipe>; 2],
}

/// What has happened on the network, in order.
#[derive(Default)]
pub(super) struct Trace {
    hasher: blake3::Hasher,
    events: u64,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({} events)", self.events)
    }
}

impl Trace {
    pub(super) fn add(&mut self, env: &Env, kind: &str, from: SocketAddr, to: SocketAddr, data: &[u8]) {
        self.events += 1;
        let line = format!("{} {kind} {from} {to} {}\n", env.clock.now().0, data.len());
        self.hasher.update(line.as_bytes());
        self.hasher.update(data);
        tracing::trace!(target: "sluice_rpc::sim", "{}", line.trim_end());
    }
}

fn pair(a: IpAddr, b: IpAddr) -> (IpAddr, IpAddr) {
    (a.min(b), a.max(b))
}

impl State {
    fn blocked(&self, ends: (IpAddr, IpAddr)) -> bool {
        self.partitions.contains(&pair(ends.0, ends.1))
            || self.frozen.contains(&ends.0)
            || self.frozen.contains(&ends.1)
    }

    /// Brings every connection in line with partitions and frozen hosts.
    fn apply(&mut self) {
        self.links.retain(|link| link.pipes.iter().any(|pipe| pipe.strong_count() > 0));
        for link in &self.links {
            let held = self.blocked(link.ends);
            link.pipes.iter().filter_map(Weak::upgrade).for_each(|pipe| pipe.hold(held));
        }
    }
}

impl SimNet {
    /// An empty network; latency and cuts are drawn from `env`.
    pub fn new(env: Env, config: SimConfig) -> Self {
        Self(Arc::new(Net {
            env,
            config,
            state: Mutex::default(),
            changed: Notify::new(),
            trace: Mutex::default(),
        }))
    }

    /// The transport of the host `name`, which is made when first named.
    pub fn host(&self, name: &str) -> Arc<dyn Transport> {
        Arc::new(Host { net: Arc::clone(&self.0), ip: self.ip(name) })
    }

    /// The address of the host `name`.
    pub fn ip(&self, name: &str) -> IpAddr {
        let hosts = &mut self.0.state.lock().hosts;
        let next = u32::try_from(hosts.len()).unwrap_or(u32::MAX).saturating_add(1);
        *hosts
            .entry(name.to_owned())
            .or_insert_with(|| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | (next & 0x00ff_ffff))))
    }

    /// Holds back everything between two hosts, as a network does that loses all their packets, until
    /// [`SimNet::heal`].
    pub fn partition(&self, a: &str, b: &str) {
        let ends = pair(self.ip(a), self.ip(b));
        self.change(|state| state.partitions.insert(ends));
    }

    /// Ends a partition; what was held back arrives.
    pub fn heal(&self, a: &str, b: &str) {
        let ends = pair(self.ip(a), self.ip(b));
        self.change(|state| state.partitions.remove(&ends));
    }

    /// Makes a host mute: connecting to it succeeds, and nothing is ever heard from it, until
    /// [`SimNet::thaw`].
    pub fn freeze(&self, name: &str) {
        let ip = self.ip(name);
        self.change(|state| state.frozen.insert(ip));
    }

    /// Ends [`SimNet::freeze`].
    pub fn thaw(&self, name: &str) {
        let ip = self.ip(name);
        self.change(|state| state.frozen.remove(&ip));
    }

    /// Resets every connection between two hosts, once.
    pub fn reset(&self, a: &str, b: &str) {
        let ends = pair(self.ip(a), self.ip(b));
        self.reset_where(|link| pair(link.ends.0, link.ends.1) == ends);
    }

    /// Resets every connection of a host and closes its listeners, as the death of its process does.
    pub fn crash(&self, name: &str) {
        let ip = self.ip(name);
        self.0.state.lock().listeners.retain(|addr, _| addr.ip() != ip);
        self.reset_where(|link| link.ends.0 == ip || link.ends.1 == ip);
    }

    fn reset_where(&self, which: impl Fn(&Link) -> bool) {
        let hit: Vec<_> = {
            let state = self.0.state.lock();
            let links = state.links.iter().filter(|link| which(link));
            links.flat_map(|link| link.pipes.iter().filter_map(Weak::upgrade)).collect()
        };
        hit.iter().for_each(|pipe| pipe.reset());
    }

    fn change(&self, edit: impl FnOnce(&mut State) -> bool) {
        let mut state = self.0.state.lock();
        edit(&mut state);
        state.apply();
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// A digest of every byte sent so far, by whom, to whom and when: two runs of one seed agree.
    pub fn digest(&self) -> [u8; 32] {
        *self.0.trace.lock().hasher.finalize().as_bytes()
    }

    /// The number of events the digest covers.
    pub fn events(&self) -> u64 {
        self.0.trace.lock().events
    }
}

impl Net {
    /// A one-way latency.
    pub(super) fn latency(&self) -> Duration {
        let (min, max) = (self.config.latency_min, self.config.latency_max);
        let span = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
        match span {
            0 => min,
            span => min + Duration::from_nanos(self.env.random.u64() % (span + 1)),
        }
    }

    /// Two ends of a new connection, the dialling one first.
    fn link(self: &Arc<Self>, client: SocketAddr, server: SocketAddr) -> (Stream, Stream) {
        let there = Pipe::new(self, client, server);
        let back = Pipe::new(self, server, client);
        let mut state = self.state.lock();
        let pipes = [Arc::downgrade(&there), Arc::downgrade(&back)];
        state.links.push(Link { ends: (client.ip(), server.ip()), pipes });
        state.apply();
        drop(state);
        let end = |read: &Arc<Pipe>, write: &Arc<Pipe>, peer, local| Stream {
            reader: Box::new(PipeReader::new(Arc::clone(read))),
            writer: Box::new(PipeWriter::new(Arc::clone(write))),
            peer,
            local,
        };
        (end(&back, &there, server, client), end(&there, &back, client, server))
    }

    fn port(&self) -> u16 {
        let mut state = self.state.lock();
        state.next_port = state.next_port.wrapping_add(1);
        // The ephemeral range, so that no simulated server's port is met.
        32_768 + state.next_port % 28_232
    }

    async fn connect(self: Arc<Self>, from: IpAddr, addr: SocketAddr) -> io::Result<Stream> {
        let ends = pair(from, addr.ip());
        loop {
            let changed = self.changed.notified();
            if !self.state.lock().partitions.contains(&ends) {
                break;
            }
            changed.await;
        }
        self.env.clock.sleep(self.latency() + self.latency()).await;
        let local = SocketAddr::new(from, self.port());
        if !self.state.lock().listeners.contains_key(&addr) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = self.link(local, addr);
        self.trace.lock().add(&self.env, "connect", local, addr, &[]);
        let mut state = self.state.lock();
        let Some(queue) = state.listeners.get_mut(&addr) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        queue.streams.push_back(theirs);
        let waker = queue.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(ours)
    }
}

#[derive(Debug)]
struct Host {
    net: Arc<Net>,
    ip: IpAddr,
}

impl Transport for Host {
    fn connect(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(Arc::clone(&self.net).connect(self.ip, addr))
    }

    /// The port counts; the address is this host's, whatever it says.
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let port = if addr.port() == 0 { self.net.port() } else { addr.port() };
            let local = SocketAddr::new(self.ip, port);
            let mut state = self.net.state.lock();
            if state.listeners.contains_key(&local) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            state.listened += 1;
            let number = state.listened;
            state.listeners.insert(local, Queue { number, ..Queue::default() });
            let net = Arc::clone(&self.net);
            Ok(Box::new(Listening { net, local, number }) as Box<dyn Listener>)
        })
    }
}

#[derive(Debug)]
struct Listening {
    net: Arc<Net>,
    local: SocketAddr,
    number: u64,
}

impl State {
    /// The queue of a listener, unless its host crashed since.
    fn queue(&mut self, of: &Listening) -> Option<&mut Queue> {
        self.listeners.get_mut(&of.local).filter(|queue| queue.number == of.number)
    }
}

impl Listener for Listening {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(std::future::poll_fn(|cx| {
            let mut state = self.net.state.lock();
            let Some(queue) = state.queue(self) else {
                // The host crashed; its process would not be here to see it.
                return Poll::Pending;
            };
            match queue.streams.pop_front() {
                Some(stream) => Poll::Ready(Ok(stream)),
                None => {
                    queue.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut state = self.net.state.lock();
        let gone = state.queue(self).is_some().then(|| state.listeners.remove(&self.local));
        drop(state);
        // Outside the lock: streams nobody accepted reset their peers when they go.
        drop(gone);
    }
}
