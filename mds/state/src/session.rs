//! One session: SEQUENCE, connection bindings, back channel: RFC 8881 §2.10, §18.34, §18.46.
//!
//! ```text
//!   CREATE_SESSION committed        DESTROY_SESSION, client gone
//!   ─────────────────────────► Live ────────────────────────────► Dead (every SEQUENCE: BADSESSION)
//!   restart (stable row) ────► Live, back channel at fault
//! ```
//!
//! A session is locked by itself (one mutex per session at the caller). SEQUENCE needs no other lock:
//! what it shares with its client is in [`ClientShared`].

use std::sync::Arc;

use bytes::Bytes;

use crate::client::Error;
use crate::ids::{ConnectionId, SessionId, Time};
use crate::lease::{ClientShared, UseGauge, seq4_status};
use crate::recovery::SessionRow;
use crate::slot::{Begin, Slot, SlotTable};

mod back;
mod channel;

pub use back::{BackChannel, CbOutcome, CbTicket};
pub use channel::{
    BackChannelParams, CbSecurity, ChannelAttrs, ChannelLimits, MIN_BACK_OPS, MIN_BACK_REQUEST, MIN_REQUEST,
    MIN_RESPONSE, negotiate_back, negotiate_fore, promised_cache,
};

/// Connections that one session keeps bound; the oldest one without a back channel makes room.
pub const MAX_CONNECTIONS: usize = 64;

/// `channel_dir_from_client4`, RFC 8881 §18.34.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindDirection {
    /// `CDFC4_FORE`
    Fore,
    /// `CDFC4_BACK`
    Back,
    /// `CDFC4_FORE_OR_BOTH`
    ForeOrBoth,
    /// `CDFC4_BACK_OR_BOTH`
    BackOrBoth,
}

/// `channel_dir_from_server4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundDirection {
    /// `CDFS4_FORE`
    Fore,
    /// `CDFS4_BACK`
    Back,
    /// `CDFS4_BOTH`
    Both,
}

#[derive(Clone, Copy, Debug)]
struct Binding {
    connection: ConnectionId,
    fore: bool,
    back: bool,
}

/// Arguments of SEQUENCE and what the caller knows of the request around it.
#[derive(Clone, Copy, Debug)]
pub struct SequenceArgs {
    /// `sa_slotid`
    pub slot: u32,
    /// `sa_sequenceid`
    pub seqid: u32,
    /// `sa_highest_slotid`
    pub highest_slot: u32,
    /// `sa_cachethis`
    pub cache_this: bool,
    /// Hash of the whole request and of its principal, to tell a retry from a false retry.
    pub fingerprint: u64,
    /// Bytes of the RPC call, headers included.
    pub request_size: u32,
    /// Operations in the COMPOUND, SEQUENCE included.
    pub operations: u32,
}

/// Result of SEQUENCE (`SEQUENCE4resok`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceReply {
    /// `sr_sessionid`
    pub session: SessionId,
    /// `sr_sequenceid`
    pub seqid: u32,
    /// `sr_slotid`
    pub slot: u32,
    /// `sr_highest_slotid`
    pub highest_slot: u32,
    /// `sr_target_highest_slotid`
    pub target_highest_slot: u32,
    /// `sr_status_flags`
    pub status_flags: u32,
}

/// What to do with the COMPOUND after SEQUENCE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sequenced {
    /// Run it; [`Session::complete`] must follow, whatever happens.
    New(SequenceReply),
    /// Send exactly these bytes (the encoded COMPOUND reply given to [`Session::complete`]).
    Replay(Bytes),
    /// Run it from where the stable row of this session and slot says it got to before the restart;
    /// [`Session::complete`] or [`Session::put_back`] must follow.
    Resume(SequenceReply),
    /// Answer SEQUENCE with this; then, if the COMPOUND has a second operation,
    /// NFS4ERR_RETRY_UNCACHED_REP for that one.
    ReplayUncached(SequenceReply),
}

/// The reply of a COMPOUND, for the cache.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// The encoded COMPOUND reply. `None`: do not cache (it holds data, or exceeds the maximum).
    /// Pass bytes that own no more memory than they show.
    pub reply: Option<Bytes>,
    /// sa_cachethis of the request.
    pub cache_this: bool,
}

/// A session. See the module for its life; all methods are quick and none blocks.
#[derive(Debug)]
pub struct Session {
    // Constant.
    id: SessionId,
    client: Arc<ClientShared>,
    fore: ChannelAttrs,
    persist: bool,
    /// Connections or running requests, for the client table when it must give up a session.
    gauge: UseGauge,
    // Guarded by the session's lock.
    dead: bool,
    /// A SEQUENCE has come over it: its client knows it.
    heard: bool,
    slots: SlotTable,
    bindings: Vec<Binding>,
    back: BackChannel,
    back_wanted: bool,
    /// Counted in the client as a usable back channel.
    back_counted: bool,
    /// Stable row is owed or exists; its static part.
    row: SessionRow,
}

impl Session {
    /// A new session over `connection`, bound to the fore channel, and to the back channel if
    /// `row.back_wanted`.
    #[must_use]
    pub(crate) fn new(
        row: SessionRow,
        client: Arc<ClientShared>,
        gauge: UseGauge,
        connection: ConnectionId,
        max_slots: u32,
    ) -> Self {
        let slots = SlotTable::new(row.fore.max_requests, max_slots);
        let mut s = Self::build(row, client, gauge, slots);
        let back = s.back_wanted && s.back.params.security.is_some();
        s.bindings.push(Binding { connection, fore: true, back });
        s.recount();
        s
    }

    /// A session after a restart, from its row and the rows of its slots `(index, slot)`.
    ///
    /// Its back channel is at fault: the seqids of the callback slots were not kept. The client is told
    /// so if it had asked for one, or once it binds a connection to it.
    #[must_use]
    pub(crate) fn restore(
        row: SessionRow,
        client: Arc<ClientShared>,
        gauge: UseGauge,
        slots: impl IntoIterator<Item = (u32, Slot)>,
        max_slots: u32,
    ) -> Self {
        let mut table = SlotTable::restore(row.fore.max_requests, max_slots);
        for (index, slot) in slots {
            table.restore_slot(index, slot);
        }
        let mut s = Self::build(row, client, gauge, table);
        s.back.set_fault();
        if s.back_wanted {
            s.client.want_back_channel();
        }
        s
    }

    fn build(row: SessionRow, client: Arc<ClientShared>, gauge: UseGauge, slots: SlotTable) -> Self {
        Self {
            id: row.id,
            client,
            fore: row.fore,
            persist: row.persist,
            gauge,
            dead: false,
            heard: false,
            slots,
            bindings: Vec::with_capacity(4),
            back: BackChannel::new(row.back, row.back_params.clone()),
            back_wanted: row.back_wanted,
            back_counted: false,
            row,
        }
    }

    /// The session.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Lease, status and reclaim flags of the client.
    #[must_use]
    pub fn client(&self) -> &Arc<ClientShared> {
        &self.client
    }

    /// Negotiated fore channel.
    #[must_use]
    pub fn fore(&self) -> &ChannelAttrs {
        &self.fore
    }

    /// SESSION4_PERSIST was granted: modifying operations write reply rows.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.persist
    }

    /// Destroyed, or its client is gone.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// The slot table, for inspection.
    #[must_use]
    pub fn slots(&self) -> &SlotTable {
        &self.slots
    }

    /// SEQUENCE. Checks in the order of RFC 8881 §18.46.3; on success the lease is renewed and the
    /// connection is bound to the fore channel, unless that is to be done by BIND_CONN_TO_SESSION.
    ///
    /// Errors (the slot is untouched): BadSession, TooManyOps, ReqTooBig, BadSlot, BadHighSlot,
    /// SeqMisordered, SeqFalseRetry, Delay (the original is still being served), ConnNotBoundToSession.
    pub fn sequence(
        &mut self,
        now: Time,
        connection: ConnectionId,
        args: &SequenceArgs,
    ) -> Result<Sequenced, Error> {
        if self.dead {
            return Err(Error::BadSession);
        }
        if args.operations > self.fore.max_ops {
            return Err(Error::TooManyOps);
        }
        if args.request_size > self.fore.max_request {
            return Err(Error::ReqTooBig);
        }
        let begin = self.slots.check(args.slot, args.seqid, args.highest_slot, args.fingerprint);
        let binds = !self.client.must_bind() || self.is_bound(connection);
        // §2.10.3.1. What was done is told its own caller all the same, and what a restart interrupted is carried to its end: on a new
        // connection Linux asks again before it binds that, and takes this error for "nothing was done, and the slot is free".
        if !binds && !is_retry(&begin) {
            return Err(Error::ConnNotBoundToSession);
        }
        let begin = begin?;
        // The lease is renewed by a SEQUENCE that succeeds, hence not before the slot was judged.
        let used = if binds {
            self.bind_implicitly(connection)
        } else {
            self.gauge.set(self.bindings.len().max(self.slots.busy() as usize + 1))
        };
        if !used || !self.client.begin(now) {
            self.kill();
            return Err(Error::BadSession);
        }
        self.heard = true;
        match begin {
            Begin::New | Begin::Resume => {
                self.slots.start(now, args.slot, args.seqid, args.highest_slot, args.fingerprint);
            }
            Begin::Replay(_) | Begin::ReplayUncached => self.ended(now),
        }
        Ok(match begin {
            Begin::New => Sequenced::New(self.sequence_reply(now, args)),
            Begin::Resume => Sequenced::Resume(self.sequence_reply(now, args)),
            Begin::Replay(bytes) => Sequenced::Replay(bytes),
            Begin::ReplayUncached => Sequenced::ReplayUncached(self.sequence_reply(now, args)),
        })
    }

    fn sequence_reply(&self, now: Time, args: &SequenceArgs) -> SequenceReply {
        SequenceReply {
            session: self.id,
            seqid: args.seqid,
            slot: args.slot,
            highest_slot: self.slots.highest(),
            target_highest_slot: self.slots.target(),
            status_flags: self.with_own_flags(self.client.flags_to_tell(now)),
        }
    }

    /// Ends the COMPOUND that [`Sequenced::New`] or [`Sequenced::Resume`] started on `slot`; its reply can be sent afterwards.
    ///
    /// A slot that is not in use is ignored. Works on a dead session, whose client must still learn
    /// that nothing is in progress any more.
    pub fn complete(&mut self, now: Time, slot: u32, completion: Completion) {
        let Some(began) = self.slots.slot(slot).filter(|slot| slot.is_busy()).map(Slot::began) else {
            return;
        };
        let Completion { reply, cache_this } = completion;
        // Larger replies were refused with REP_TOO_BIG_TO_CACHE; this only keeps memory bounded.
        let limit = self.fore.max_response_cached as usize;
        let keep = cache_this && reply.as_ref().is_some_and(|b| b.len() <= limit);
        self.slots.complete(slot, reply, keep);
        self.ended(now);
        self.client.answered(began);
    }

    /// Ends a COMPOUND that [`Sequenced::Resume`] started and that cannot be run now: the client sends it
    /// again with the same seqid.
    pub fn put_back(&mut self, now: Time, slot: u32) {
        if self.slots.slot(slot).is_some_and(Slot::is_busy) {
            self.slots.put_back(slot);
            self.ended(now);
        }
    }

    fn ended(&mut self, now: Time) {
        if self.bindings.is_empty() {
            self.recount();
        }
        self.client.end(now);
    }

    /// Largest reply in bytes for a request with or without sa_cachethis, and the error for a larger
    /// one (RFC 8881 §2.10.6.4).
    #[must_use]
    pub fn reply_limit(&self, cache_this: bool) -> (u32, Error) {
        if cache_this && self.fore.max_response_cached < self.fore.max_response {
            (self.fore.max_response_cached, Error::RepTooBigToCache)
        } else {
            (self.fore.max_response, Error::RepTooBig)
        }
    }

    /// Asks the client to use `slots` slots from now on, more or fewer.
    pub fn set_target_slots(&mut self, slots: u32) {
        self.slots.set_target(slots);
    }

    /// `sr_status_flags`, whether or not the next reply tells of all.
    #[must_use]
    pub fn status_flags(&self) -> u32 {
        self.with_own_flags(self.client.status_flags())
    }

    fn with_own_flags(&self, mut flags: u32) -> u32 {
        if self.back_wanted && self.back.is_fault() {
            flags |= seq4_status::BACKCHANNEL_FAULT;
        } else if self.back_wanted && !self.back_counted {
            flags |= seq4_status::CB_PATH_DOWN_SESSION;
        }
        flags
    }

    /// §2.10.3.1: under SP4_NONE a SEQUENCE binds its connection to the fore channel. `false`: the
    /// session was given up.
    fn bind_implicitly(&mut self, connection: ConnectionId) -> bool {
        if let Some(b) = self.bindings.iter_mut().find(|b| b.connection == connection) {
            b.fore = true;
            return true;
        }
        self.push_binding(Binding { connection, fore: true, back: false })
    }

    fn push_binding(&mut self, binding: Binding) -> bool {
        if self.bindings.len() >= MAX_CONNECTIONS {
            let victim = self.bindings.iter().position(|b| !b.back).unwrap_or(0);
            self.bindings.remove(victim);
        }
        self.bindings.push(binding);
        self.recount()
    }

    /// BIND_CONN_TO_SESSION, RFC 8881 §18.34. RDMA mode is never granted.
    ///
    /// Errors: BadSession; Inval when the back channel is demanded and no callback security was
    /// acceptable.
    pub fn bind(
        &mut self,
        connection: ConnectionId,
        direction: BindDirection,
    ) -> Result<BoundDirection, Error> {
        if self.dead {
            return Err(Error::BadSession);
        }
        let can_back = self.back.params.security.is_some() && self.back.attrs.max_requests > 0;
        // §18.34.3: with *_OR_BOTH the server chooses; both is what makes recalls survive a lost
        // connection.
        let (fore, back) = match direction {
            BindDirection::Fore => (true, false),
            BindDirection::Back if !can_back => return Err(Error::Inval),
            BindDirection::Back => (false, true),
            BindDirection::ForeOrBoth | BindDirection::BackOrBoth => (true, can_back),
        };
        if let Some(b) = self.bindings.iter_mut().find(|b| b.connection == connection) {
            // §18.34.3: binding again may add a channel; it does not take one away.
            b.fore |= fore;
            b.back |= back;
        } else {
            self.push_binding(Binding { connection, fore, back });
        }
        self.back_wanted |= back;
        if !self.recount() {
            self.kill();
            return Err(Error::BadSession);
        }
        Ok(match (fore, back) {
            (true, true) => BoundDirection::Both,
            (false, true) => BoundDirection::Back,
            _ => BoundDirection::Fore,
        })
    }

    /// The connection is gone. `true`: it carried the back channel, so callbacks in progress on it must
    /// be sent again elsewhere.
    pub fn unbind(&mut self, connection: ConnectionId) -> bool {
        let Some(at) = self.bindings.iter().position(|b| b.connection == connection) else { return false };
        let binding = self.bindings.remove(at);
        self.recount();
        binding.back
    }

    /// A callback over the connection failed (no reply, connection refused to carry it): it no longer
    /// counts as back channel until the client binds it again.
    pub fn back_channel_lost(&mut self, connection: ConnectionId) {
        if let Some(b) = self.bindings.iter_mut().find(|b| b.connection == connection) {
            b.back = false;
        }
        self.bindings.retain(|b| b.fore || b.back);
        self.recount();
    }

    /// The connection is bound to the session, on either channel.
    #[must_use]
    pub fn is_bound(&self, connection: ConnectionId) -> bool {
        self.bindings.iter().any(|b| b.connection == connection)
    }

    /// The connection to send the next callback over: the one bound last.
    #[must_use]
    pub fn back_connection(&self) -> Option<ConnectionId> {
        if self.dead || self.back.is_fault() {
            return None;
        }
        self.bindings.iter().rev().find(|b| b.back).map(|b| b.connection)
    }

    /// Any connection of the session, the one bound last: tells where its client is.
    #[must_use]
    pub fn any_connection(&self) -> Option<ConnectionId> {
        self.bindings.last().map(|b| b.connection)
    }

    /// The back channel: its attributes, security and slots.
    pub fn back(&mut self) -> &mut BackChannel {
        &mut self.back
    }

    /// Takes a callback slot; `None`: no usable back channel, or all its slots are in use, or the client has not used the
    /// session yet. The reply of CREATE_SESSION may be on its way to it, and what it does not know it takes for the
    /// session of another: BADSESSION.
    pub fn acquire_callback(&mut self) -> Option<(ConnectionId, CbTicket)> {
        if !self.heard {
            return None;
        }
        let connection = self.back_connection()?;
        Some((connection, self.back.acquire()?))
    }

    /// Gives a callback slot back.
    pub fn release_callback(&mut self, ticket: CbTicket, outcome: CbOutcome) {
        self.back.release(ticket, outcome);
        self.recount();
    }

    /// BACKCHANNEL_CTL, RFC 8881 §18.33: new program and security for callbacks. Returns the row to
    /// persist, if the session is persistent. Error: Inval when no offer is acceptable, BadSession.
    pub fn backchannel_ctl(
        &mut self,
        program: u32,
        offers: &[CbSecurity],
    ) -> Result<Option<SessionRow>, Error> {
        if self.dead {
            return Err(Error::BadSession);
        }
        let params = BackChannelParams::choose(program, offers);
        if params.security.is_none() {
            return Err(Error::Inval);
        }
        self.back.params = params.clone();
        self.row.back_params = params;
        Ok(self.persist.then(|| self.row.clone()))
    }

    /// First half of DESTROY_SESSION, RFC 8881 §18.37; the second is
    /// [`crate::client::Clients::destroy_session`]. On success the session is dead.
    ///
    /// `own_slot` is the slot of the SEQUENCE in the same COMPOUND, if that was on this session.
    /// Callbacks without a reply do not stop it (§18.37.3 leaves that to the server): they move to
    /// another session. Errors: BadSession, ConnNotBoundToSession, Delay while other requests are being
    /// served.
    pub fn destroy(&mut self, connection: ConnectionId, own_slot: Option<u32>) -> Result<(), Error> {
        if self.dead {
            return Err(Error::BadSession);
        }
        // §18.37.3: only over a connection that is associated with the session.
        if !self.is_bound(connection) {
            return Err(Error::ConnNotBoundToSession);
        }
        if self.slots.busy() > u32::from(own_slot.is_some()) {
            return Err(Error::Delay);
        }
        self.kill();
        Ok(())
    }

    /// Ends the session at once: every later SEQUENCE is BADSESSION, no connection is bound any more.
    pub fn kill(&mut self) {
        self.dead = true;
        self.bindings.clear();
        self.recount();
    }

    /// Brings what others read in line with the bindings; `false`: the session was given up.
    fn recount(&mut self) -> bool {
        let up = !self.dead && !self.back.is_fault() && self.bindings.iter().any(|b| b.back);
        if up && !self.back_counted {
            self.client.back_channel_up();
        } else if !up && self.back_counted {
            self.client.back_channel_down();
        }
        self.back_counted = up;
        // A request whose connection broke still runs.
        self.gauge.set(self.bindings.len().max(self.slots.busy() as usize))
    }
}

/// Whether a request has been here before, word for word and from the same caller; or one with its number still is, and nothing is told
/// until that is done.
fn is_retry(begin: &Result<Begin, Error>) -> bool {
    match begin {
        Ok(begin) => !matches!(begin, Begin::New),
        Err(error) => *error == Error::Delay,
    }
}

#[cfg(test)]
mod tests;
