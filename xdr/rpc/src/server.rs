//! Accepting connections: the limit at the door, plain, under TLS or secure, and a graceful end.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use sluice_env::{Env, Monotonic};
use sluice_xdr::RecordDecoder;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;

use crate::budget::ServerBudget;
use crate::connection::{Connection, Setup};
use crate::crowd::Crowd;
use crate::gss::Gss;
use crate::keyring::{Keyring, Role, Shown};
use crate::limits::{LEAVING, Limits, RESERVED};
use crate::metrics::ProcedureSnapshot;
use crate::program::{Program, Registry};
use crate::recycle::Recycler;
use crate::said::{Ends, Said};
use crate::secure::{self, MAGIC, SecureError};
use crate::tls::probe::{self, Beginning, Probe};
use crate::tls::{Demand, Encrypted, Tls, TlsError};
use crate::transport::{Listener, Stream, Transport};

/// Least time between two log lines about refused connections.
const REFUSAL_LOG: Duration = Duration::from_secs(10);

/// And between two about those that cannot be accepted.
const FAILURE_LOG: Duration = Duration::from_secs(60);

/// A set of programs served on any number of listeners.
#[derive(Debug)]
pub struct Server {
    env: Env,
    transport: Arc<dyn Transport>,
    limits: Arc<Limits>,
    plain: Arc<Registry>,
    secure: Option<Secure>,
    tls: Option<Tls>,
    gss: Option<Arc<Gss>>,
    budget: Arc<ServerBudget>,
    recycler: Arc<Recycler>,
    next_id: AtomicU64,
    open: AtomicUsize,
    listening: AtomicUsize,
    connections: Mutex<BTreeMap<u64, Weak<Connection>>>,
    crowd: Crowd,
    refused: Mutex<Refused>,
    displaced: Mutex<Refused>,
    ends: Arc<Ends>,
    /// Why secure connections were refused, and those under TLS.
    said: Mutex<Said>,
    stopping: watch::Sender<bool>,
}

/// What holders of keys reach.
#[derive(Debug)]
struct Secure {
    keys: Keyring,
    programs: Arc<Registry>,
    /// Of holders of a monitoring key.
    looking: Arc<Registry>,
}

/// Who is in, and who was not let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Connections that are open.
    pub open: u64,
    /// Those of them that are under TLS.
    pub tls: u64,
    /// Connections refused since the start: there were [`Limits::max_connections`].
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Refused {
    count: u64,
    logged: Option<Monotonic>,
}

impl Refused {
    /// Counts one; how many there were, if that is to be said now. A flood of connections must not become a flood of lines.
    fn another(&mut self, now: Monotonic) -> Option<u64> {
        self.count += 1;
        let news = self.logged.is_none_or(|at| now.since(at) >= REFUSAL_LOG);
        if news {
            self.logged = Some(now);
        }
        news.then_some(self.count)
    }
}

/// Counted as long as a listener is held.
#[derive(Debug)]
struct Listening(Arc<Server>);

impl Listening {
    fn begin(server: &Arc<Server>) -> Self {
        server.listening.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(server))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.listening.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    /// A server of `programs` to everybody.
    pub fn new(
        env: Env,
        transport: Arc<dyn Transport>,
        limits: Limits,
        programs: Vec<Arc<dyn Program>>,
    ) -> Self {
        Self {
            recycler: Recycler::new(env.clone()),
            env,
            transport,
            plain: Arc::new(Registry::new(programs)),
            secure: None,
            tls: None,
            gss: None,
            budget: ServerBudget::new(&limits),
            limits: Arc::new(limits),
            next_id: 1.into(),
            open: 0.into(),
            listening: 0.into(),
            connections: Mutex::default(),
            crowd: Crowd::default(),
            refused: Mutex::default(),
            displaced: Mutex::default(),
            ends: Arc::default(),
            said: Mutex::default(),
            stopping: watch::Sender::new(false),
        }
    }

    /// Serves, on the same listeners, `programs` to peers that hold one of `keys`. Those peers reach only these
    /// programs, and nobody else does: to others they are PROG_UNAVAIL.
    #[must_use]
    pub fn with_secure(mut self, keys: impl Into<Keyring>, programs: Vec<Arc<dyn Program>>) -> Self {
        let programs = Arc::new(Registry::new(programs));
        self.secure =
            Some(Secure { keys: keys.into(), programs, looking: Arc::new(Registry::new(Vec::new())) });
        self
    }

    /// Serves the programs that everybody reaches to peers that hold one of `keys`, too, who have what is said encrypted so.
    #[must_use]
    pub fn with_keys(mut self, keys: impl Into<Keyring>) -> Self {
        let (keys, programs) = (keys.into(), Arc::clone(&self.plain));
        self.secure = Some(Secure { keys, programs, looking: Arc::new(Registry::new(Vec::new())) });
        self
    }

    /// Speaks TLS, on the same listeners, with clients that ask for it (RFC 9289). If that is demanded of all, nothing but NULL is
    /// answered in clear: to everything else the authentication is too weak.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Knows clients by their Kerberos tickets, who come so (RFC 2203). Who has a key of ours needs none.
    #[must_use]
    pub fn with_gss(mut self, gss: Option<Arc<Gss>>) -> Self {
        self.gss = gss;
        self
    }

    /// And `programs`, which change nothing, to peers that hold a monitoring key of one of those keys.
    #[must_use]
    pub fn with_monitors(mut self, programs: Vec<Arc<dyn Program>>) -> Self {
        if let Some(secure) = &mut self.secure {
            secure.looking = Arc::new(Registry::new(programs));
        }
        self
    }

    /// Starts listening at `addr`; pass the result to [`Server::serve`].
    pub async fn listen(&self, addr: SocketAddr) -> io::Result<Box<dyn Listener>> {
        self.transport.listen(addr).await
    }

    /// Accepts on `listener` until [`Server::shutdown`]. May run for several listeners at once. A shutdown waits for it from this
    /// call on, not only once somebody has polled what it returns.
    pub fn serve(self: Arc<Self>, listener: Box<dyn Listener>) -> impl Future<Output = ()> + Send {
        let listening = Listening::begin(&self);
        async move {
            self.accept_on(listener).await;
            drop(listening);
        }
    }

    async fn accept_on(self: &Arc<Self>, mut listener: Box<dyn Listener>) {
        let mut stopping = self.stopping.subscribe();
        // When it was said that none can be accepted, and how often that was so since.
        let (mut told, mut failed) = (None, 0u64);
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(stream) => self.admit(stream),
                Err(error) => {
                    // Out of descriptors, most likely: as if all places were taken. A pause keeps us from spinning; the backlog
                    // holds those who wait.
                    let now = self.env.clock.now();
                    self.sends_away(now);
                    failed += 1;
                    if told.is_none_or(|told| now.since(told) >= FAILURE_LOG) {
                        let listener = listener.local_addr();
                        tracing::warn!(%listener, failed, "cannot accept connections, which wait: {error}");
                        (told, failed) = (Some(now), 0);
                    }
                    self.env.clock.sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// The connections that are open.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        self.connections.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Who is in, and who was not let in.
    pub fn admission(&self) -> Admission {
        let count = |all: usize| u64::try_from(all).unwrap_or(u64::MAX);
        let tls = self.connections().iter().filter(|connection| connection.encrypted().is_some()).count();
        let open = count(self.open.load(Ordering::SeqCst));
        Admission { open, tls: count(tls), refused: self.refused.lock().count }
    }

    /// Bytes held for all connections together: calls in flight and replies not yet sent.
    pub fn bytes_held(&self) -> usize {
        self.budget.used()
    }

    /// The counters of every procedure called so far, plain programs first.
    pub fn metrics(&self) -> Vec<ProcedureSnapshot> {
        let mut all = self.plain.metrics.snapshot();
        if let Some(secure) =
            self.secure.as_ref().filter(|secure| !Arc::ptr_eq(&secure.programs, &self.plain))
        {
            all.extend(secure.programs.metrics.snapshot());
        }
        all
    }

    /// Stops accepting, lets calls in flight finish and their replies leave for at most `grace`, then
    /// closes what is left. When it returns, the listening addresses are free again.
    pub async fn shutdown(&self, grace: Duration) {
        self.stopping.send_replace(true);
        for connection in self.connections() {
            connection.drain();
        }
        if self.env.clock.timeout(grace, self.emptied()).await.is_err() {
            for connection in self.connections() {
                tracing::info!(
                    peer = %connection.peer(),
                    calls = connection.calls_in_flight(),
                    "closing a connection that did not drain in time"
                );
                connection.close();
            }
            let _ = self.env.clock.timeout(Duration::from_secs(1), self.emptied()).await;
        }
    }

    /// Ends every connection there is, whatever is under way on it; others may come at once.
    pub fn close_connections(&self) {
        for connection in self.connections() {
            connection.close();
        }
    }

    /// Ends the connections whose key is not accepted any more: who has a newer one comes back with it.
    pub fn close_strangers(&self) {
        for connection in self.connections() {
            if !connection.is_accepted() {
                tracing::info!(peer = %connection.peer(), "closing a connection: its key is accepted no more");
                connection.close();
            }
        }
    }

    async fn emptied(&self) {
        const LOOK: Duration = Duration::from_millis(5);
        while self.open.load(Ordering::SeqCst) + self.listening.load(Ordering::SeqCst) > 0 {
            self.env.clock.sleep(LOOK).await;
        }
    }

    /// Lets a new connection in if there is room for it.
    fn admit(self: &Arc<Self>, stream: Stream) {
        let limit = self.limits.max_connections;
        let reserved = if self.secure.is_some() { RESERVED } else { 0 };
        let before = self.open.fetch_add(1, Ordering::SeqCst);
        let full = limit.saturating_add(reserved);
        // Who was sent away leaves in a moment: until then there are more, but not many.
        if before >= full && (before >= full.saturating_add(LEAVING) || !self.makes_room(stream.peer)) {
            self.open.fetch_sub(1, Ordering::SeqCst);
            self.log_refusal(stream.peer);
            return;
        }
        self.budget.connections(self.open.load(Ordering::SeqCst));
        let place = Place { server: Arc::clone(self), id: self.next_id.fetch_add(1, Ordering::SeqCst) };
        let server = Arc::clone(self);
        self.env.spawn.spawn(Box::pin(server.welcome(stream, place)));
    }

    /// Sends somebody away who has been silent; false if there is nobody.
    fn sends_away(&self, now: Monotonic) -> bool {
        self.crowd.makes_room(now, self.limits.part_of_address, || self.connections())
    }

    /// The same for a peer that there is no place for.
    fn makes_room(&self, peer: SocketAddr) -> bool {
        let now = self.env.clock.now();
        let made = self.sends_away(now);
        if made && let Some(count) = self.displaced.lock().another(now) {
            let limit = self.limits.max_connections;
            tracing::warn!(%peer, sent_away = count, "the limit of {limit} connections is reached: silent ones make room");
        }
        made
    }

    fn log_refusal(&self, peer: SocketAddr) {
        if let Some(count) = self.refused.lock().another(self.env.clock.now()) {
            let limit = self.limits.max_connections;
            tracing::warn!(%peer, refused = count, "connection refused: the limit of {limit} is reached");
        }
    }

    /// A data server with another key goes on trying, every few seconds.
    fn log_stranger(&self, peer: SocketAddr, error: &SecureError) {
        if self.said.lock().is_news(peer.ip(), &error.to_string(), self.env.clock.now()) {
            tracing::warn!(%peer, "secure connection refused: {error}");
        }
    }

    /// A client whose authorities do not know this server's goes on trying, too, and so does one without a certificate.
    fn log_disagreement(&self, peer: SocketAddr, error: &TlsError) {
        if self.said.lock().is_news(peer.ip(), &error.to_string(), self.env.clock.now()) {
            tracing::warn!(%peer, "connection under TLS refused: {error}");
        }
    }

    /// Finds out what the peer speaks and starts the connection.
    async fn welcome(self: Arc<Self>, stream: Stream, place: Place) {
        let peer = stream.peer;
        let mut stopping = self.stopping.subscribe();
        let arriving = self.crowd.arrives(place.id, self.env.clock.now());
        let greeted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = arriving.sent_away.notified() => return,
            greeted = self.env.clock.timeout(self.limits.first_record, self.greet(stream)) => greeted,
        };
        drop(arriving);
        let full = self.open.load(Ordering::SeqCst) > self.limits.max_connections;
        match greeted {
            Ok(Ok(greeted)) if greeted.shown.is_none() && full && !self.makes_room(peer) => {
                self.log_refusal(peer);
            }
            Ok(Ok(greeted)) => self.start(greeted, place),
            Ok(Err(Unwelcome::Secure(SecureError::Io(error)) | Unwelcome::Tls(TlsError::Io(error)))) => {
                tracing::debug!(%peer, "connection lost: {error}");
            }
            Ok(Err(Unwelcome::Secure(error))) => self.log_stranger(peer, &error),
            Ok(Err(Unwelcome::Tls(error))) => self.log_disagreement(peer, &error),
            Err(_) => match self.ends.slow.says(self.env.clock.now()) {
                Some(unsaid) => tracing::info!(%peer, unsaid, "connection closed: it sent nothing in time"),
                None => tracing::debug!(%peer, "connection closed: it sent nothing in time"),
            },
        }
    }

    fn start(self: &Arc<Self>, greeted: Greeted, place: Place) {
        let Greeted { stream, decoder, shown, encrypted } = greeted;
        let demands = self.tls.as_ref().is_some_and(|tls| tls.demand() >= Demand::Require);
        let registry = match (&self.secure, shown.as_ref().map(|shown| shown.role)) {
            (Some(secure), Some(Role::Server)) => &secure.programs,
            (Some(secure), Some(Role::Monitor)) => &secure.looking,
            _ => &self.plain,
        };
        let setup = Setup {
            id: place.id,
            too_weak: demands && shown.is_none() && encrypted.is_none(),
            keys: self.secure.as_ref().map(|secure| secure.keys.clone()),
            gss: if shown.is_none() { self.gss.clone() } else { None },
            shown,
            encrypted,
            accepted: true,
            env: self.env.clone(),
            limits: Arc::clone(&self.limits),
            registry: Arc::clone(registry),
            server_budget: Arc::clone(&self.budget),
            recycler: Arc::clone(&self.recycler),
            ends: Arc::clone(&self.ends),
        };
        let mut connections = self.connections.lock();
        let id = place.id;
        let connection = Connection::start(setup, stream, decoder, place);
        connections.insert(id, Arc::downgrade(&connection));
        drop(connections);
        // Shutdown may have looked at the list just before, and so may who takes a key away.
        if *self.stopping.borrow() {
            connection.drain();
        }
        if !connection.is_accepted() {
            connection.close();
        }
    }

    /// Reads as much as tells a plain peer from others, and completes the handshake of those.
    async fn greet(&self, mut stream: Stream) -> Result<Greeted, Unwelcome> {
        let mut first = BytesMut::with_capacity(4096);
        let beginning = loop {
            match self.look(&first) {
                Look::Unknown if stream.read_buf(&mut first).await? == 0 => {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Look::Unknown => {}
                known => break known,
            }
        };
        let mut decoder = RecordDecoder::new(self.limits.record());
        match (beginning, &self.secure, &self.tls) {
            (Look::Secure, Some(secure), _) => {
                first.advance(MAGIC.len());
                let keys = secure.keys.keys();
                let (stream, shown) = secure::accept(stream, first, &self.env, &keys).await?;
                Ok(Greeted { stream, decoder, shown: Some(shown), encrypted: None })
            }
            (Look::Secure, None, _) => Err(SecureError::Refused.into()),
            (Look::Tls(_), _, Some(_)) if first.len() > Probe::LENGTH => Err(TlsError::Clear.into()),
            (Look::Tls(probe), _, Some(tls)) => {
                let (stream, encrypted) = tls.accept(stream, probe).await?;
                Ok(Greeted { stream, decoder, shown: None, encrypted: Some(encrypted) })
            }
            _ => {
                decoder.feed(&first);
                Ok(Greeted { stream, decoder, shown: None, encrypted: None })
            }
        }
    }

    /// What a connection that begins so speaks.
    fn look(&self, first: &[u8]) -> Look {
        // A record mark that begins like the magic exceeds the record limit: no plain peer starts so.
        if first.starts_with(&MAGIC) {
            return Look::Secure;
        }
        if first.is_empty() || (first.first() == MAGIC.first() && first.len() < MAGIC.len()) {
            return Look::Unknown;
        }
        match probe::look(first) {
            Beginning::Unknown if self.tls.is_some() => Look::Unknown,
            // Who asks for what there is none of is answered as anybody else.
            Beginning::Probe(probe) if self.plain.find(probe.program, probe.version).is_ok() => {
                Look::Tls(probe)
            }
            _ => Look::Plain,
        }
    }
}

/// What a peer speaks.
#[derive(Clone, Copy, Debug)]
enum Look {
    /// More must come.
    Unknown,
    Plain,
    Secure,
    Tls(Probe),
}

/// A peer whose language is known.
struct Greeted {
    stream: Stream,
    /// With what was read of it.
    decoder: RecordDecoder,
    shown: Option<Shown>,
    encrypted: Option<Encrypted>,
}

/// Why a connection is not let in.
#[derive(Debug)]
enum Unwelcome {
    Secure(SecureError),
    Tls(TlsError),
}

impl From<io::Error> for Unwelcome {
    fn from(error: io::Error) -> Self {
        Self::Secure(SecureError::Io(error))
    }
}

impl From<SecureError> for Unwelcome {
    fn from(error: SecureError) -> Self {
        Self::Secure(error)
    }
}

impl From<TlsError> for Unwelcome {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

/// A connection's place among those that are open.
#[derive(Debug)]
struct Place {
    server: Arc<Server>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.server.connections.lock().remove(&self.id);
        let before = self.server.open.fetch_sub(1, Ordering::SeqCst);
        self.server.budget.connections(before.saturating_sub(1));
    }
}
