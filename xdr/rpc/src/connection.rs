//! One connection, which carries calls in both directions (RFC 5531 §11, RFC 8881 §2.10.3.1).
//!
//! A single task reads and writes it: replies that are ready at once leave in the same turn in which their
//! calls arrived. Handlers that have to wait get tasks of their own.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes};
use parking_lot::Mutex;
use sluice_env::{Elapsed, Env, Monotonic};
use sluice_xdr::{Frame, RecordDecoder};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, watch};

use crate::budget::{Budget, ServerBudget, Ticket};
use crate::credential::Credential;
use crate::gss::Gss;
use crate::keyring::{Keyring, Shown};
use crate::limits::Limits;
use crate::message::{CallError, Verdict, call_head, open_reply, put_reply};
use crate::outbox::{Body, Hold, Outbox, Writing};
use crate::payload::PIECE;
use crate::pending::PendingCalls;
use crate::program::Registry;
use crate::reader::Intake;
use crate::recycle::Recycler;
use crate::said::Ends;
use crate::tls::Encrypted;
use crate::transport::Stream;

/// How far a connection is on its way out; only ever advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    /// Takes no more calls; closes once those in flight are answered.
    Draining,
    Closing,
    Closed,
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The peer, or we, closed it in good order.
    Orderly(&'static str),
    /// The transport failed.
    Io(std::io::Error),
    /// The peer was too slow for a limit.
    Slow(&'static str),
    /// The peer does not speak RPC, or attacks.
    Hostile(String),
}

/// What the accepting or connecting side decides about a new connection.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) id: u64,
    /// The key that opened it, if it is a secure one.
    pub(crate) shown: Option<Shown>,
    /// If it is under TLS.
    pub(crate) encrypted: Option<Encrypted>,
    /// The peer has to speak TLS and does not: it is answered nothing but NULL.
    pub(crate) too_weak: bool,
    /// The keys of this side.
    pub(crate) keys: Option<Keyring>,
    /// We accepted it: the peer must send something soon. Otherwise we dialled it, and it ends when
    /// nobody holds it any more.
    pub(crate) accepted: bool,
    /// Who knows callers by their tickets.
    pub(crate) gss: Option<Arc<Gss>>,
    pub(crate) env: Env,
    pub(crate) limits: Arc<Limits>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) server_budget: Arc<ServerBudget>,
    pub(crate) recycler: Arc<Recycler>,
    pub(crate) ends: Arc<Ends>,
}

/// A live (or closed) connection. Cheap to share; calls may be made from any task.
pub struct Connection {
    id: u64,
    peer: SocketAddr,
    local: SocketAddr,
    shown: Option<Shown>,
    encrypted: Option<Encrypted>,
    pub(crate) too_weak: bool,
    keys: Option<Keyring>,
    accepted: bool,
    pub(crate) gss: Option<Arc<Gss>>,
    pub(crate) env: Env,
    pub(crate) limits: Arc<Limits>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) outbox: Outbox,
    pub(crate) pending: PendingCalls,
    pub(crate) recycler: Arc<Recycler>,
    /// How others of the same server ended.
    ends: Arc<Ends>,
    /// Bytes of outgoing calls that may be queued.
    sending: Arc<Semaphore>,
    phase: watch::Sender<Phase>,
    draining: AtomicBool,
    /// Whole records received: the watchdog looks whether it moves.
    pub(crate) records: AtomicU64,
    /// The peer owes us the rest of a record.
    pub(crate) partial: AtomicBool,
    /// It is a large one, and has room that others may be waiting for.
    pub(crate) has_room: AtomicBool,
    /// How often something came.
    pub(crate) heard: AtomicU64,
    /// When the watchdog last saw something move, nanoseconds.
    active: AtomicU64,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secure = if self.is_secure() { " secure" } else { "" };
        write!(f, "Connection({} {}{secure} {:?})", self.id, self.peer, *self.phase.borrow())
    }
}

impl Connection {
    /// Unique within its server or client.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The peer's address; an IPv4 peer of an IPv6 socket appears as IPv4.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Our address on this connection.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// True if the peer has proved that it holds the cluster key, and all bytes are encrypted under it.
    pub fn is_secure(&self) -> bool {
        self.shown.is_some()
    }

    /// The key that the peer has proved to hold. A connection that was dialled with a monitoring key names that one.
    pub fn shown(&self) -> Option<&Shown> {
        self.shown.as_ref()
    }

    /// What is known of the peer if the connection is under TLS.
    pub fn encrypted(&self) -> Option<&Encrypted> {
        self.encrypted.as_ref()
    }

    /// The keys of this side.
    pub fn keyring(&self) -> Option<&Keyring> {
        self.keys.as_ref()
    }

    /// False once a secure connection's key has been replaced, so that a new one would be refused.
    pub fn is_accepted(&self) -> bool {
        match (&self.shown, &self.keys) {
            (Some(shown), Some(keys)) => keys.accepts(shown),
            _ => true,
        }
    }

    /// True once the connection can no longer carry a call.
    pub fn is_closed(&self) -> bool {
        *self.phase.borrow() >= Phase::Closing
    }

    /// Bytes held on behalf of the peer: its calls in flight and its replies not yet sent.
    pub fn bytes_held(&self) -> usize {
        self.budget.used()
    }

    /// Calls of the peer that are running.
    pub fn calls_in_flight(&self) -> usize {
        self.budget.in_flight()
    }

    /// Nothing is under way in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        self.outbox.is_idle() && self.budget.in_flight() == 0 && self.pending.is_empty()
    }

    /// When something was under way last, to within a look of the watchdog.
    pub(crate) fn active(&self) -> Monotonic {
        Monotonic(self.active.load(Ordering::Relaxed))
    }

    /// Calls the peer and waits at most `timeout` for the result, whose bytes are returned undecoded.
    /// Usable on connections we dialled and on those we accepted. Dropping the future abandons the call;
    /// its reply, should it come, is ignored.
    pub async fn call(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        credential: &Credential,
        args: Frame,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let mut pending = self.pending.enlist().ok_or(CallError::Closed)?;
        let head = call_head(pending.xid, (program, version, procedure), credential, args.len())?;
        let bytes = (head.len() + args.len()).min(self.limits.connection_budget);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let exchange = async {
            let permit = Arc::clone(&self.sending).acquire_many_owned(bytes).await.ok()?;
            let head = |out: &mut bytes::BytesMut| {
                out.put_slice(&head);
                true
            };
            self.outbox.push(head, args.into(), Some(Hold::Call { _permit: permit }));
            // A reader that had stopped over its budget must now look out for the reply.
            self.budget.recheck.notify_one();
            pending.reply().await
        };
        match self.env.clock.timeout(timeout, exchange).await {
            Ok(Some(record)) => open_reply(record, program, version),
            Ok(None) => Err(CallError::Closed),
            Err(Elapsed) => Err(CallError::Timeout(timeout)),
        }
    }

    /// Completes when the connection is gone; at once if it already is.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut phase = self.phase.subscribe();
        async move {
            // An error means that the connection was dropped: it is gone as well.
            let _ = phase.wait_for(|phase| *phase == Phase::Closed).await;
        }
    }

    /// Ends the connection without waiting for anything.
    pub fn close(&self) {
        self.advance(Phase::Closing);
    }

    /// Ends the connection so that of the calls made on it the peer begins none that it has not begun by the time it learns of
    /// it: nothing more is sent, and what waits at the peer to be read is not read. A closed one ends only behind what was
    /// sent before. Done when [`Self::closed`] is.
    pub fn abort(&self) {
        self.outbox.abort();
        self.advance(Phase::Closing);
    }

    /// Takes no more calls, answers those in flight, then closes.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.advance(Phase::Draining);
        self.budget.recheck.notify_one();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let ahead = *phase < to;
            *phase = (*phase).max(to);
            ahead
        });
    }

    /// Queues the reply to call `xid`.
    pub(crate) fn reply(&self, xid: u32, verdict: Verdict, body: impl Into<Body>, ticket: Ticket) {
        self.reply_proved(xid, verdict, body.into(), &[], ticket);
    }

    /// The same with the `proof` that a caller under RPCSEC_GSS wants.
    pub(crate) fn reply_proved(
        &self,
        xid: u32,
        verdict: Verdict,
        mut body: Body,
        proof: &[u8],
        mut ticket: Ticket,
    ) {
        if verdict != Verdict::Success {
            body = Body::default();
        }
        let data = body.data.as_ref().map_or(0, |data| data.length());
        let length = body.frame.len() + data;
        // What is sent from where it is takes memory a piece at a time, if it does.
        ticket.answered(length, data.saturating_sub(PIECE));
        self.outbox.push(
            |out| {
                put_reply(out, xid, verdict, proof, length) || {
                    tracing::error!(peer = %self.peer, length, "a reply is too long for a record");
                    false
                }
            },
            body,
            Some(Hold::Reply { _ticket: ticket }),
        );
    }

    /// Starts the task that serves `stream`; `decoder` may hold bytes already read. `guard` is dropped
    /// when the connection has ended.
    pub(crate) fn start(
        setup: Setup,
        stream: Stream,
        decoder: RecordDecoder,
        guard: impl Send + 'static,
    ) -> Arc<Self> {
        let Setup { id, shown, encrypted, too_weak, keys, accepted, env, limits, .. } = setup;
        let Setup { registry, server_budget, recycler, ends, gss, .. } = setup;
        let xid = u32::from_ne_bytes(env.random.array());
        let connection = Arc::new(Self {
            id,
            peer: stream.peer,
            local: stream.local,
            shown,
            encrypted,
            too_weak,
            keys,
            accepted,
            gss,
            budget: Budget::new(limits.connection_budget, limits.max_in_flight, server_budget),
            outbox: Outbox::default(),
            pending: PendingCalls::new(xid),
            recycler,
            ends,
            sending: Arc::new(Semaphore::new(limits.connection_budget.clamp(1, u32::MAX as usize))),
            phase: watch::Sender::new(Phase::Open),
            draining: false.into(),
            records: 0.into(),
            partial: false.into(),
            has_room: false.into(),
            heard: 0.into(),
            active: env.clock.now().0.into(),
            env,
            limits,
            registry,
        });
        let drive = drive(Arc::clone(&connection), stream, decoder, guard);
        connection.env.spawn.spawn(Box::pin(drive));
        connection
    }

    fn log_end(&self, why: &Ended) {
        let peer = self.peer;
        match why {
            Ended::Orderly(why) => tracing::debug!(%peer, "connection closed: {why}"),
            Ended::Io(error) => tracing::debug!(%peer, "connection lost: {error}"),
            Ended::Slow(why) => match self.ends.slow.says(self.env.clock.now()) {
                Some(unsaid) => tracing::info!(%peer, unsaid, "connection closed: {why}"),
                None => tracing::debug!(%peer, "connection closed: {why}"),
            },
            Ended::Hostile(why) => match self.ends.hostile.says(self.env.clock.now()) {
                Some(unsaid) => tracing::warn!(%peer, unsaid, "connection closed: {why}"),
                None => tracing::debug!(%peer, "connection closed: {why}"),
            },
        }
    }
}

/// Marks the connection closed however its task ends, a panic included.
struct Finish<'a>(&'a Connection);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.advance(Phase::Closing);
        self.0.pending.close();
        self.0.sending.close();
        self.0.outbox.close();
        self.0.advance(Phase::Closed);
    }
}

async fn drive(connection: Arc<Connection>, stream: Stream, decoder: RecordDecoder, guard: impl Send) {
    let finish = Finish(&connection);
    let Stream { mut reader, writer, .. } = stream;
    let writing = Mutex::new(Writing::new(writer));
    let mut phase = connection.phase.subscribe();
    let why = tokio::select! {
        biased;
        why = Intake::new(&connection, decoder, &writing).run(&mut reader) => why,
        // Polled after the reader, in the same turn: replies ready at once need no wake-up.
        Err(error) = connection.outbox.run(&writing) => Ended::Io(error),
        why = watch_over(&connection) => why,
        () = drained(&connection) => Ended::Orderly("drained"),
        _ = phase.wait_for(|phase| *phase >= Phase::Closing) => Ended::Orderly("by us"),
    };
    connection.log_end(&why);
    let mut writer = writing.into_inner().writer;
    if connection.outbox.is_aborted() {
        writer.abort();
    } else {
        // The other side learns of an orderly end at once; it need not outlast a dead peer.
        let _ = connection.env.clock.timeout(Duration::from_secs(1), writer.shutdown()).await;
    }
    // Whoever waits for the end knows then that the peer will hear nothing more.
    drop((reader, writer));
    drop(finish);
    drop(guard);
}

/// Completes when draining was asked for and nothing is left to answer.
async fn drained(connection: &Connection) {
    const LOOK: Duration = Duration::from_millis(5);
    let mut phase = connection.phase.subscribe();
    let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
    drop(phase);
    // A call holds some of the budget until the last byte of its reply has left. Between its end and its reply's place in
    // the outbox it is neither in flight nor there.
    while connection.budget.used() > 0 || !connection.outbox.is_idle() {
        connection.env.clock.sleep(LOOK).await;
    }
}

/// The longest that a peer may hold memory that others wait for, without taking or sending anything whole.
const SHORT: Duration = Duration::from_secs(10);

/// Of what waits in memory for a peer one part in so many has to leave within [`SHORT`] while others wait for that memory: a few
/// bytes now and then would keep it for ever. Of the most that one connection may hold that is 3 Mbit/s.
const PART: usize = 16;

/// The same for room that a record has of which nothing comes any more. All large records wait for those before them: a hundred hosts that
/// went away in the middle of one are got over in as many times this as they fill that room. Packets that were lost are sent again sooner.
const SILENT: Duration = Duration::from_secs(2);

/// What the watchdog saw the last time, and since when nothing has moved.
#[derive(Default)]
struct Watch {
    records: u64,
    written: u64,
    heard: u64,
    partial: Option<Monotonic>,
    /// While others wait for the room of its record.
    silent: Option<Monotonic>,
    stalled: Option<Monotonic>,
    /// While others wait: since when the peer has not taken its part, and what has to be written by then.
    slow: Option<(Monotonic, u64)>,
}

/// Completes when a timeout of [`Limits`] has passed. It samples counters, so that the hot path reads no
/// clock for it.
async fn watch_over(connection: &Arc<Connection>) -> Ended {
    let Connection { limits, env, .. } = &**connection;
    let opened = env.clock.now();
    let mut seen = Watch::default();
    loop {
        env.clock.sleep(limits.tick()).await;
        let now = env.clock.now();
        let records = connection.records.load(Ordering::Relaxed);
        if connection.accepted && records == 0 && now.since(opened) >= limits.first_record {
            return Ended::Slow("no whole record arrived in time");
        }
        // Nobody is left who could call: what we dialled ourselves is ours to end.
        if !connection.accepted && Arc::strong_count(connection) == 1 {
            return Ended::Orderly("no longer used");
        }
        if let Some(why) = seen.look(connection, now) {
            return why;
        }
        if connection.encrypted.as_ref().is_some_and(Encrypted::is_worn) {
            // The peer connects again at once, under another key.
            connection.drain();
        }
    }
}

impl Watch {
    fn look(&mut self, connection: &Connection, now: Monotonic) -> Option<Ended> {
        let limits = &connection.limits;
        // A peer that stands still while others wait for the memory it holds is not waited for long.
        let short = connection.budget.server.is_short();
        let patience = |limit: Duration| if short { limit.min(SHORT) } else { limit };
        let records = connection.records.load(Ordering::Relaxed);
        let written = connection.outbox.written();
        let moved = records != self.records;
        if moved || !connection.partial.load(Ordering::Relaxed) {
            self.partial = None;
        } else if now.since(*self.partial.get_or_insert(now)) >= patience(limits.partial_record) {
            return Some(Ended::Slow("a record was begun and not finished in time"));
        }
        let heard = connection.heard.load(Ordering::Relaxed);
        if heard != self.heard || !short || !connection.has_room.load(Ordering::Relaxed) {
            self.silent = None;
        } else if now.since(*self.silent.get_or_insert(now)) >= SILENT {
            return Some(Ended::Slow("nothing more comes of a large record, and others wait for its room"));
        }
        let busy = !connection.outbox.is_idle();
        if written != self.written || !busy {
            self.stalled = None;
        } else if now.since(*self.stalled.get_or_insert(now)) >= patience(limits.write_stall) {
            return Some(Ended::Slow("the peer takes no replies"));
        }
        if !short || !busy || self.slow.is_some_and(|(_, wanted)| written >= wanted) {
            self.slow = None;
        }
        if short && busy {
            // What is sent from where it is keeps no memory from others.
            let waits = connection.outbox.queued().min(connection.budget.in_memory());
            let (since, _) = *self.slow.get_or_insert((now, written + (waits / PART) as u64));
            if now.since(since) >= SHORT {
                return Some(Ended::Slow(
                    "the peer takes its replies too slowly, and others wait for the room",
                ));
            }
        }
        if moved || !connection.is_idle() {
            connection.active.store(now.0, Ordering::Relaxed);
        } else if now.since(connection.active()) >= limits.idle {
            return Some(Ended::Orderly("idle"));
        }
        (self.records, self.written, self.heard) = (records, written, heard);
        None
    }
}
