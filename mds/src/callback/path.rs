//! Back channels: which session carries a callback, in which slot, over which connection. RFC 8881
//! §2.10.3.1, §2.10.6, §20.9.
//!
//! ```text
//!            slot free                reply
//!   choose ─────────────▶ sent ─────────────────▶ answered
//!     │ none up             │ connection lost, or no reply in time
//!     ▼                     ▼
//!   unreached ◀─deadline─ waiting for another connection of the session ──bound──▶ sent again, same slot
//! ```
//!
//! Whoever calls may have less patience than a path that works may need: the call is heard out all the same, and holds
//! its slot until then.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_env::{BoxFuture, Elapsed, Monotonic};
use sluice_rpc::{AuthSys, CallError, Credential};
use sluice_state::session::{BackChannelParams, CbOutcome, CbSecurity, CbTicket};
use sluice_state::{ClientId, ConnectionId};
use sluice_xdr::Frame;
use sluice_xdr::nfs4::{CB_COMPOUND, nfs_cb_argop4};

use super::wire::{self, Message, Said, Verdict};
use crate::clients::SessionEntry;
use crate::server::Mds;

/// The callback program has version 1: both RFCs' XDR says so, and clients go by it rather than by the 4 of
/// §18.36.3.
pub(super) const CALLBACK_VERSION: u32 = 1;
/// A connection that carries no reply for so long no longer counts as back channel: the client is told
/// in its next SEQUENCE, and binds one that works.
pub(super) const REPLY: Duration = Duration::from_secs(5);
/// Between two looks for a free slot or a repaired path.
const PAUSE: Duration = Duration::from_millis(50);
/// Slots and sessions tried before a client that finds fault with each is given up for now.
const TRIES: u32 = 8;

/// Sends one operation to a client, over whichever back channel works, for at most `patience`. `None`:
/// the client was not reached, or what it did is not known.
pub(super) async fn call(
    mds: &Arc<Mds>,
    client: ClientId,
    operation: nfs_cb_argop4,
    patience: Duration,
) -> Option<Said> {
    reach(mds, client, operation, patience).await.ok()
}

/// Why a client has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// No back channel worked, or what the client did is not known: later one may.
    Unreached,
    /// It does not take such a callback, and will not.
    Refused,
}

/// As [`call`], and why not.
pub(super) async fn reach(
    mds: &Arc<Mds>,
    client: ClientId,
    operation: nfs_cb_argop4,
    patience: Duration,
) -> Result<Said, Missed> {
    let deadline = mds.env.clock.now() + patience;
    let slot = acquire(mds, client, deadline).await.ok_or(Missed::Unreached)?;
    reach_over(slot, operation.into(), deadline).await
}

/// The same, begun in this slot.
pub(super) async fn reach_over(slot: Slot, message: Message, deadline: Monotonic) -> Result<Said, Missed> {
    let (mds, client) = (Arc::clone(&slot.mds), slot.session.shared.id());
    let mut first = Some(slot);
    for _ in 0..TRIES {
        let slot = match first.take() {
            Some(slot) => slot,
            None => acquire(&mds, client, deadline).await.ok_or(Missed::Unreached)?,
        };
        match slot.carry(&message, deadline).await {
            Carried::Answered(said) => return Ok(said),
            Carried::Again => {}
            Carried::Failed(missed) => return Err(missed),
        }
    }
    Err(Missed::Unreached)
}

/// A slot of some session of the client, waited for while all are in use: who came first has the next one. `None`: no
/// session has a back channel, or it took too long.
pub(super) async fn acquire(mds: &Arc<Mds>, client: ClientId, deadline: Monotonic) -> Option<Slot> {
    let clock = &mds.env.clock;
    let mut turn = None;
    loop {
        let busy = match look(mds, client, turn.is_some()) {
            Look::Found(slot) => return Some(slot),
            Look::Busy(session) => session,
            Look::None => return None,
        };
        let left = deadline.since(clock.now());
        if left.is_zero() {
            return None;
        }
        if turn.is_none() {
            turn = Some(clock.timeout(left, Arc::clone(&busy.turn).lock_owned()).await.ok()?);
        } else {
            // There may be one on another session, too, or a new session.
            _ = clock.timeout(left.min(PAUSE), busy.freed.notified()).await;
        }
    }
}

enum Look {
    Found(Slot),
    /// This session has a back channel, and no slot, or others wait for one, or its client has not used it yet.
    Busy(Arc<SessionEntry>),
    None,
}

/// With a `turn`, or where nobody waits.
fn look(mds: &Arc<Mds>, client: ClientId, turn: bool) -> Look {
    let Some(info) = mds.clients.lock().info(mds.now(), client) else { return Look::None };
    let mut busy = None;
    // The session made last is the one most likely to be in use.
    for session in mds.clients.sessions_of(client).into_iter().rev() {
        let taken = {
            let mut state = session.lock();
            if state.back_connection().is_none() {
                continue;
            }
            // Whoever has a turn lets it go before long.
            let waited_for = !turn && session.turn.try_lock().is_err();
            let taken = if waited_for { None } else { state.acquire_callback() };
            taken.map(|(connection, ticket)| {
                let back = state.back();
                (connection, ticket, back.params.clone(), back.attrs.max_request)
            })
        };
        if let Some((connection, ticket, params, room)) = taken {
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let (mds, ticket, minor) = (Arc::clone(mds), Some(ticket), info.minor_version);
            return Look::Found(Slot { mds, session, ticket, connection, params, minor, room, sent: false });
        }
        busy.get_or_insert(session);
    }
    busy.map_or(Look::None, Look::Busy)
}

/// How carrying a callback in one slot ended.
enum Carried {
    Answered(Said),
    /// Not in this slot; another may do.
    Again,
    Failed(Missed),
}

/// A callback slot in use; given back when dropped.
pub(super) struct Slot {
    mds: Arc<Mds>,
    session: Arc<SessionEntry>,
    /// `None` once given back.
    ticket: Option<CbTicket>,
    connection: ConnectionId,
    params: BackChannelParams,
    minor: u32,
    room: usize,
    /// The client may have run it.
    sent: bool,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let outcome = if self.sent { CbOutcome::Unknown } else { CbOutcome::NotSent };
        self.release(outcome);
    }
}

impl Slot {
    fn release(&mut self, outcome: CbOutcome) {
        if let Some(ticket) = self.ticket.take() {
            self.session.lock().release_callback(ticket, outcome);
            self.session.freed.notify_one();
        }
    }

    /// The connection did not do its service: the client hears of it from SEQUENCE.
    fn path_lost(&self) {
        self.session.lock().back_channel_lost(self.connection);
    }

    async fn carry(mut self, message: &Message, deadline: Monotonic) -> Carried {
        let Some(frame) = self.frame(message) else { return Carried::Failed(Missed::Refused) };
        loop {
            match self.send(frame.clone(), deadline).await {
                Sent::Judged(Verdict::Later) => {
                    // §20.9.3: the slot has not moved; the client wants the same again.
                    self.mds.env.clock.sleep(PAUSE).await;
                }
                Sent::Judged(verdict) => return self.conclude(verdict),
                Sent::Refused => return Carried::Failed(Missed::Unreached),
                Sent::Late(exchange) => {
                    let mds = Arc::clone(&self.mds);
                    mds.spawn(self.hear_out(exchange));
                    return Carried::Failed(Missed::Unreached);
                }
                Sent::Lost => match self.next_connection(deadline).await {
                    Some(connection) => self.connection = connection,
                    // A request that was never sent can go over another session.
                    None if self.session.lock().is_dead() || !self.sent => return Carried::Again,
                    None => return Carried::Failed(Missed::Unreached),
                },
            }
            if self.mds.env.clock.now() >= deadline {
                return Carried::Failed(Missed::Unreached);
            }
        }
    }

    /// Nobody waits for the answer any more. It tells what has become of the slot, and that the path works.
    async fn hear_out(mut self, (before, exchange): (bool, Exchange)) {
        if let Sent::Judged(verdict) = self.heard(before, exchange.await) {
            self.conclude(verdict);
        }
    }

    fn frame(&self, message: &Message) -> Option<Frame> {
        let ticket = self.ticket.as_ref()?;
        match wire::request(self.minor, self.session.id, ticket, message, self.room) {
            Ok(frame) => Some(frame),
            Err(error) => {
                tracing::warn!(session = ?self.session.id, %error, "a callback does not fit the back channel");
                None
            }
        }
    }

    /// One attempt over the connection at hand.
    async fn send(&mut self, frame: Frame, deadline: Monotonic) -> Sent {
        let clock = &self.mds.env.clock;
        let Some(connection) = self.mds.clients.connection(self.connection).filter(|c| !c.is_closed()) else {
            self.path_lost();
            return Sent::Lost;
        };
        let (program, credential) = (self.params.program, credential(&self.params));
        let mut exchange: Exchange = Box::pin(async move {
            connection.call(program, CALLBACK_VERSION, CB_COMPOUND, &credential, frame, REPLY).await
        });
        let before = std::mem::replace(&mut self.sent, true);
        // A path is not lost because somebody has less patience than it may need.
        let left = deadline.since(clock.now());
        let reply = if left < REPLY {
            match clock.timeout(left, &mut exchange).await {
                Ok(reply) => reply,
                Err(Elapsed) => return Sent::Late((before, exchange)),
            }
        } else {
            exchange.await
        };
        self.heard(before, reply)
    }

    /// What a reply says, and whether the client may have run the callback; `before`: it may have when it was sent
    /// before.
    fn heard(&mut self, before: bool, reply: Result<Bytes, CallError>) -> Sent {
        match reply {
            Ok(bytes) => match wire::judge(bytes) {
                Ok(verdict) => {
                    // §20.9.3: a CB_SEQUENCE that fails leaves the slot as it is.
                    if matches!(verdict, Verdict::Later | Verdict::Refused(_)) {
                        self.sent = before;
                    }
                    Sent::Judged(verdict)
                }
                Err(error) => self.refused(&format_args!("its reply cannot be decoded: {error}")),
            },
            Err(CallError::Closed | CallError::Timeout(_)) => {
                self.path_lost();
                Sent::Lost
            }
            // Turned away by the RPC layer: the slot has not been looked at.
            Err(error) => {
                self.sent = before;
                self.refused(&error)
            }
        }
    }

    fn refused(&self, why: &dyn std::fmt::Display) -> Sent {
        let client = self.session.shared.id();
        if let Some(unsaid) = self.mds.unheard.says(self.mds.env.clock.now()) {
            tracing::warn!(?client, unsaid, "a client does not take callbacks: {why}");
        }
        self.path_lost();
        Sent::Refused
    }

    fn conclude(&mut self, verdict: Verdict) -> Carried {
        match verdict {
            Verdict::Answered(said) => {
                self.release(CbOutcome::Replied);
                Carried::Answered(said)
            }
            // The answer is lost, but asking anew is harmless.
            Verdict::Forgotten => {
                self.release(CbOutcome::Replied);
                Carried::Again
            }
            Verdict::BadSlot => {
                self.release(CbOutcome::Unknown);
                Carried::Again
            }
            // §18.46.3, BACKCHANNEL_FAULT: the two sides differ about the session; the client makes another.
            Verdict::NoSession => {
                self.session.lock().back().set_fault();
                self.release(CbOutcome::Unknown);
                Carried::Again
            }
            Verdict::Refused(status) => {
                let client = self.session.shared.id();
                if let Some(unsaid) = self.mds.unheard.says(self.mds.env.clock.now()) {
                    tracing::warn!(?client, ?status, unsaid, "a client refuses a callback");
                }
                Carried::Failed(Missed::Refused)
            }
            // `carry` sends it again.
            Verdict::Later => Carried::Again,
        }
    }

    /// Another connection of the session, waited for: the client binds one when it hears that the path
    /// is down. What may have been seen must be sent again in its own slot (§2.10.6.2).
    async fn next_connection(&self, deadline: Monotonic) -> Option<ConnectionId> {
        loop {
            let found = {
                let session = self.session.lock();
                if session.is_dead() {
                    return None;
                }
                session.back_connection()
            };
            if found.is_some() || !self.sent || self.mds.env.clock.now() >= deadline {
                return found;
            }
            self.mds.env.clock.sleep(PAUSE).await;
        }
    }
}

/// A call under way.
type Exchange = BoxFuture<'static, Result<Bytes, CallError>>;

/// How one attempt went.
enum Sent {
    Judged(Verdict),
    /// No reply: the client may have seen it.
    Lost,
    /// It will not do so over this path.
    Refused,
    /// No reply yet, and no time left to wait for it. Whether it may have been run before, and the call.
    Late((bool, Exchange)),
}

/// §18.36.3: as the client asked for.
pub(super) fn credential(params: &BackChannelParams) -> Credential {
    match &params.security {
        Some(CbSecurity::Sys { stamp, machine, uid, gid, gids }) => Credential::Sys(AuthSys {
            stamp: *stamp,
            machine_name: machine.clone(),
            uid: *uid,
            gid: *gid,
            gids: gids.clone(),
        }),
        Some(CbSecurity::None | CbSecurity::Gss) | None => Credential::None,
    }
}
