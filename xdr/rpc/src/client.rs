//! Dialling out: plain connections, secure ones, and a client that reconnects.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sluice_env::{Env, Monotonic};
use sluice_xdr::{Frame, RecordDecoder};
use thiserror::Error;
use tokio::sync::Mutex;

use crate::budget::ServerBudget;
use crate::connection::{Connection, Setup};
use crate::credential::Credential;
use crate::keyring::{Keyring, Role, Shown};
use crate::limits::Limits;
use crate::message::CallError;
use crate::program::{Program, Registry};
use crate::recycle::Recycler;
use crate::secure::{self, SecureError};
use crate::tls::{TlsClient, TlsError};
use crate::transport::{Stream, Transport};

/// Set in the ids of dialled connections, so that they never meet those of accepted ones.
const DIALLED: u64 = 1 << 63;

/// Why a connection could not be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("cannot connect to {addr}: {error}")]
    Io { addr: SocketAddr, error: io::Error },
    #[error("cannot connect to {addr}: {error}")]
    Secure { addr: SocketAddr, error: SecureError },
    #[error("cannot connect to {addr}: {error}")]
    Tls { addr: SocketAddr, error: TlsError },
    #[error("cannot connect to {addr}: no answer within {timeout:?}")]
    Timeout { addr: SocketAddr, timeout: Duration },
}

/// How to make connections.
#[derive(Clone, Debug)]
pub struct Client {
    env: Env,
    transport: Arc<dyn Transport>,
    limits: Arc<Limits>,
    registry: Arc<Registry>,
    keys: Option<Keyring>,
    tls: Option<(TlsClient, (u32, u32))>,
    timeout: Duration,
    next_id: Arc<AtomicU64>,
    recycler: Arc<Recycler>,
}

impl Client {
    /// Plain connections that serve nothing to their peers.
    pub fn new(env: Env, transport: Arc<dyn Transport>) -> Self {
        Self {
            recycler: Recycler::new(env.clone()),
            env,
            transport,
            limits: Arc::default(),
            registry: Arc::new(Registry::new(Vec::new())),
            keys: None,
            tls: None,
            timeout: Duration::from_secs(10),
            next_id: Arc::new(1.into()),
        }
    }

    /// Serves `programs` to the peers of its connections: the other direction of the same connection.
    #[must_use]
    pub fn with_programs(mut self, programs: Vec<Arc<dyn Program>>) -> Self {
        self.registry = Arc::new(Registry::new(programs));
        self
    }

    /// Makes secure connections: they reach the peer's secure programs, if the peer has the same key. The first of several
    /// is shown; the others in turn to who does not know it.
    #[must_use]
    pub fn with_key(mut self, keys: impl Into<Keyring>) -> Self {
        self.keys = Some(keys.into());
        self
    }

    /// Speaks TLS, as a client that will call `program` in `version` does. Not with a key.
    #[must_use]
    pub fn with_tls(mut self, tls: TlsClient, (program, version): (u32, u32)) -> Self {
        self.tls = Some((tls, (program, version)));
        self
    }

    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = Arc::new(limits);
        self
    }

    /// How long a connection may take to be made; 10 s unless told.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// One plain connection to `addr` that serves `programs` to its peer.
    pub async fn connect(
        env: Env,
        transport: Arc<dyn Transport>,
        addr: SocketAddr,
        programs: Vec<Arc<dyn Program>>,
    ) -> Result<Arc<Connection>, ConnectError> {
        Self::new(env, transport).with_programs(programs).dial(addr).await
    }

    /// A new connection to `addr`. It lives until either side closes it, or until a few seconds after the
    /// last handle to it is gone.
    pub async fn dial(&self, addr: SocketAddr) -> Result<Arc<Connection>, ConnectError> {
        match self.env.clock.timeout(self.timeout, self.open(addr)).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::Timeout { addr, timeout: self.timeout }),
        }
    }

    async fn open(&self, addr: SocketAddr) -> Result<Arc<Connection>, ConnectError> {
        let (stream, shown) = match (&self.keys, &self.tls) {
            (Some(keys), _) => self.secured(addr, keys).await?,
            (None, Some((tls, program))) => {
                let connected = tls.connect(self.reach(addr).await?, *program).await;
                (connected.map_err(|error| ConnectError::Tls { addr, error })?.0, None)
            }
            (None, None) => (self.reach(addr).await?, None),
        };
        let setup = Setup {
            id: DIALLED | self.next_id.fetch_add(1, Ordering::Relaxed),
            shown,
            encrypted: None,
            too_weak: false,
            keys: self.keys.clone(),
            accepted: false,
            gss: None,
            env: self.env.clone(),
            limits: Arc::clone(&self.limits),
            registry: Arc::clone(&self.registry),
            server_budget: ServerBudget::new(&self.limits),
            recycler: Arc::clone(&self.recycler),
            ends: Arc::default(),
        };
        Ok(Connection::start(setup, stream, RecordDecoder::new(self.limits.record()), ()))
    }
}

impl Client {
    /// Whether who listens at `addr` accepts the key that is shown first. Whatever else is wrong there is a no.
    pub async fn is_known(&self, addr: SocketAddr) -> bool {
        let Some(keys) = &self.keys else { return false };
        let first = Self { keys: Some(keys.keys().first().clone().into()), ..self.clone() };
        match first.dial(addr).await {
            Ok(connection) => {
                connection.close();
                true
            }
            Err(_) => false,
        }
    }

    async fn reach(&self, addr: SocketAddr) -> Result<Stream, ConnectError> {
        self.transport.connect(addr).await.map_err(|error| ConnectError::Io { addr, error })
    }

    /// A server that has yet to hear of a new key knows the one before.
    async fn secured(
        &self,
        addr: SocketAddr,
        keys: &Keyring,
    ) -> Result<(Stream, Option<Shown>), ConnectError> {
        let mut refused = SecureError::KeyDiffers;
        for key in keys.keys().iter() {
            let stream = self.reach(addr).await?;
            match secure::connect(stream, &self.env, key).await {
                Ok(stream) => return Ok((stream, Some(Shown { key: key.clone(), role: Role::Server }))),
                Err(error @ SecureError::KeyDiffers) => refused = error,
                Err(error) => return Err(ConnectError::Secure { addr, error }),
            }
        }
        Err(ConnectError::Secure { addr, error: refused })
    }
}

/// First and longest pause between attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Calls to one peer over a connection that is made when needed and made again when lost. Attempts are
/// spaced by a growing, jittered pause; callers that arrive meanwhile share one attempt.
#[derive(Debug)]
pub struct ReconnectingClient {
    client: Client,
    addr: SocketAddr,
    link: Mutex<Link>,
}

#[derive(Debug, Default)]
struct Link {
    connection: Option<Arc<Connection>>,
    failures: u32,
    next_attempt: Monotonic,
}

impl ReconnectingClient {
    /// Connects on first use.
    pub fn new(client: Client, addr: SocketAddr) -> Self {
        Self { client, addr, link: Mutex::default() }
    }

    /// The peer.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The live connection, made if necessary. Waits out the pause after a failed attempt, then makes one
    /// attempt.
    pub async fn connection(&self) -> Result<Arc<Connection>, ConnectError> {
        let mut link = self.link.lock().await;
        if let Some(connection) = link.connection.as_ref().filter(|c| !c.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        link.connection = None;
        let env = &self.client.env;
        if link.next_attempt > env.clock.now() {
            env.clock.sleep_until(link.next_attempt).await;
        }
        // Set beforehand: a caller who gives up in the middle of the attempt leaves the pause in force.
        link.next_attempt = env.clock.now() + self.pause(link.failures);
        link.failures = link.failures.saturating_add(1);
        let connection = self.client.dial(self.addr).await?;
        link.failures = 0;
        link.connection = Some(Arc::clone(&connection));
        Ok(connection)
    }

    fn pause(&self, failures: u32) -> Duration {
        let (first, longest) = BACKOFF;
        let pause = first.saturating_mul(1 << failures.min(16)).min(longest);
        let jitter = self.client.env.random.u64() % 512;
        pause.mul_f64(1.0 + jitter as f64 / 1024.0)
    }

    /// One attempt at a call, everything within `timeout`. After an error other than
    /// [`CallError::NotConnected`] the call may have been executed.
    pub async fn call(
        &self,
        target: (u32, u32, u32),
        credential: &Credential,
        args: Frame,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let deadline = self.client.env.clock.now() + timeout;
        self.attempt(target, credential, args, timeout, deadline).await
    }

    /// Repeats the call, over new connections, until it is answered or `timeout` has passed. Only for
    /// calls that may be executed twice.
    pub async fn call_idempotent(
        &self,
        target: (u32, u32, u32),
        credential: &Credential,
        args: Frame,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let clock = &self.client.env.clock;
        let deadline = clock.now() + timeout;
        loop {
            let result = self.attempt(target, credential, args.clone(), timeout, deadline).await;
            match result {
                Err(CallError::Closed | CallError::NotConnected(_)) if clock.now() < deadline => {}
                result => return result,
            }
        }
    }

    async fn attempt(
        &self,
        (program, version, procedure): (u32, u32, u32),
        credential: &Credential,
        args: Frame,
        timeout: Duration,
        deadline: Monotonic,
    ) -> Result<Bytes, CallError> {
        let clock = &self.client.env.clock;
        let connecting = clock.timeout(deadline.since(clock.now()), self.connection()).await;
        let connection = match connecting {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(CallError::NotConnected(error.to_string())),
            Err(_) => {
                return Err(CallError::NotConnected(format!(
                    "cannot connect to {} within {timeout:?}",
                    self.addr
                )));
            }
        };
        let heard = connection.records.load(Ordering::Relaxed);
        let left = deadline.since(clock.now());
        let result = connection.call(program, version, procedure, credential, args, left).await;
        if matches!(result, Err(CallError::Timeout(_))) && heard == connection.records.load(Ordering::Relaxed)
        {
            // Connected and mute: the next call shall not be lost the same way.
            connection.close();
        }
        result.map_err(|error| match error {
            CallError::Timeout(_) => CallError::Timeout(timeout),
            error => error,
        })
    }
}
