//! CREATE_SESSION: RFC 8881 §18.36.4, in its four phases.
//!
//! ```text
//!  1 record        none, or dead, or of another GSS principal   STALE_CLIENTID
//!  2 sequence      csa_sequence = last                          the last result again
//!                  csa_sequence = last + 1                      phase 3
//!                  anything else                                SEQ_MISORDERED, slot unchanged
//!  3 confirmation  unconfirmed, other principal                 CLID_INUSE
//!                  unconfirmed, same principal                  confirmed; an older incarnation ends
//!  4 creation      attributes, limits                           a session, or an error that is cached
//! ```
//!
//! It runs in two steps, because its rows must be durable before anybody sees the session: between
//! [`Clients::create_session`] and [`Clients::finish_create_session`] the record is marked, and nothing
//! else removes or confirms it.

use super::{Client, Clients, Error, Principal, Promised, removal, session_entry};
use crate::ids::{BootEpoch, ClientId, ConnectionId, SessionId, Time};
use crate::lease::UseGauge;
use crate::recovery::{ClientRow, Effect, Forfeit, SessionRow};
use crate::session::{
    BackChannelParams, CbSecurity, ChannelAttrs, Session, negotiate_back, negotiate_fore, promised_cache,
};

/// `CREATE_SESSION4_FLAG_*`
pub mod session_flags {
    /// `CREATE_SESSION4_FLAG_PERSIST`
    pub const PERSIST: u32 = 0x1;
    /// `CREATE_SESSION4_FLAG_CONN_BACK_CHAN`
    pub const CONN_BACK_CHAN: u32 = 0x2;
    /// `CREATE_SESSION4_FLAG_CONN_RDMA`: accepted, never granted.
    pub const CONN_RDMA: u32 = 0x4;
    /// Every bit a client may send.
    pub const MASK: u32 = PERSIST | CONN_BACK_CHAN | CONN_RDMA;
}

/// Arguments of CREATE_SESSION.
#[derive(Clone, Debug)]
pub struct CreateSession {
    /// `csa_clientid`
    pub client: ClientId,
    /// `csa_sequence`
    pub seqid: u32,
    /// `csa_flags`
    pub flags: u32,
    /// `csa_fore_chan_attrs`
    pub fore: ChannelAttrs,
    /// `csa_back_chan_attrs`
    pub back: ChannelAttrs,
    /// `csa_cb_program`
    pub program: u32,
    /// `csa_sec_parms`
    pub security: Vec<CbSecurity>,
    /// Of the RPC call.
    pub principal: Principal,
}

/// Result of CREATE_SESSION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateSessionReply {
    /// `csr_sessionid`
    pub session: SessionId,
    /// `csr_sequence`: that of the request.
    pub seqid: u32,
    /// `csr_flags`
    pub flags: u32,
    /// `csr_fore_chan_attrs`
    pub fore: ChannelAttrs,
    /// `csr_back_chan_attrs`
    pub back: ChannelAttrs,
}

impl CreateSessionReply {
    /// The reply that created the session of this row.
    pub(crate) fn of(row: &SessionRow, seqid: u32) -> Self {
        let persist = if row.persist { session_flags::PERSIST } else { 0 };
        let back = if row.back_wanted { session_flags::CONN_BACK_CHAN } else { 0 };
        Self { session: row.id, seqid, flags: persist | back, fore: row.fore, back: row.back }
    }
}

/// First step's answer.
#[derive(Debug)]
pub enum CreateStep {
    /// A retry: send this.
    Replay(CreateSessionReply),
    /// Others were ended to make room: apply the effects, then call [`Clients::create_session`] again.
    MakeWay(Vec<Effect>),
    /// Make the effects durable, then call [`Clients::finish_create_session`].
    Pending(Box<PendingSession>),
}

/// A session that is being made durable.
#[derive(Debug)]
pub struct PendingSession {
    /// One transaction.
    pub effects: Vec<Effect>,
    client: ClientRow,
    session: SessionRow,
    connection: ConnectionId,
    /// Sessions given up to stay within the limits.
    evicted: Vec<SessionId>,
    /// The incarnation that this one replaces.
    replaced: Option<ClientId>,
}

impl PendingSession {
    /// The session to be.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session.id
    }
}

/// A session that exists.
#[derive(Debug)]
pub struct Created {
    /// What the client gets.
    pub reply: CreateSessionReply,
    /// To be put into the session map before the reply is sent.
    pub session: Session,
    /// Effects in memory: sessions dropped, state of a replaced incarnation released.
    pub effects: Vec<Effect>,
}

/// A new session gets this part of what is left for all clients together, so that something is left for many yet.
const SHARES: u64 = 1024;

/// What a new session may have at most, `least` if there is so much.
fn share(limit: u64, used: u64, least: u64) -> u64 {
    let left = limit.saturating_sub(used);
    (left / SHARES).max(least.min(left))
}

impl Clients {
    /// CREATE_SESSION, first step. `random` goes into the session ID.
    ///
    /// Errors: StaleClientid, SeqMisordered, ClidInuse, Inval, Toosmall, Nospc, Delay.
    pub fn create_session(
        &mut self,
        now: Time,
        connection: ConnectionId,
        args: &CreateSession,
        random: u32,
    ) -> Result<CreateStep, Error> {
        self.drop_if_late(now, args.client);
        let client = self.by_id.get(&args.client).ok_or(Error::StaleClientid)?;
        // Ended, and only waiting for its last requests.
        if client.shared.renewed() == Time::NEVER {
            return Err(Error::StaleClientid);
        }
        if client.creating {
            return Err(Error::Delay);
        }
        // Whoever proved who it is (RPCSEC_GSS) is not spoken for by others who know its number: not even the last result is theirs.
        let proven = client.confirmed && matches!(client.row.principal, Principal::Gss(_));
        if proven && client.row.principal != args.principal {
            return Err(Error::StaleClientid);
        }
        match (args.seqid.wrapping_sub(client.row.create_seqid), client.last_create) {
            (0, Some(Ok(reply))) => return Ok(CreateStep::Replay(reply)),
            // What was refused changed nothing, so that judging a retry gives what a cached result would; and
            // a client that did not count the refused try gets its session (§18.36.4 leaves it stuck).
            (0, Some(Err(_))) => {}
            // The session of the last CREATE_SESSION did not survive the restart: make another.
            (0, None) if client.confirmed => {}
            (1, _) => {}
            _ => return Err(Error::SeqMisordered),
        }
        // Before the slot moves, or a stranger could spend the owner's sequence numbers.
        if !client.confirmed && client.row.principal != args.principal {
            return Err(Error::ClidInuse);
        }
        if self.is_one_too_many(args.client) {
            return self.end_strangers().map(CreateStep::MakeWay).ok_or(Error::Delay);
        }
        let result = self.judge(args, connection, random);
        match result {
            Ok(pending) => {
                if let Some(client) = self.by_id.get_mut(&args.client) {
                    client.creating = true;
                }
                Ok(CreateStep::Pending(Box::new(pending)))
            }
            Err(Error::Delay) => Err(Error::Delay),
            Err(error) => {
                // §18.36.4 phase 2: the slot has moved on, success or not.
                if let Some(client) = self.by_id.get_mut(&args.client) {
                    client.row.create_seqid = args.seqid;
                    client.last_create = Some(Err(error));
                }
                Err(error)
            }
        }
    }

    /// §18.35.4: a record that was not confirmed within a lease period is removed.
    fn drop_if_late(&mut self, now: Time, id: ClientId) {
        let limit = self.config.lease_nanos;
        if self
            .by_id
            .get(&id)
            .is_some_and(|c| !c.confirmed && !c.creating && now > c.created.plus_nanos(limit))
        {
            self.remove(id);
        }
    }

    /// Phases 3 and 4 without changing the record.
    fn judge(
        &mut self,
        args: &CreateSession,
        connection: ConnectionId,
        random: u32,
    ) -> Result<PendingSession, Error> {
        let client = self.by_id.get(&args.client).ok_or(Error::StaleClientid)?;
        if args.flags & !session_flags::MASK != 0 {
            return Err(Error::Inval);
        }
        if !client.confirmed && self.host_is_full(client) {
            return Err(Error::Nospc);
        }
        let wants_back = args.flags & session_flags::CONN_BACK_CHAN != 0;
        let back = negotiate_back(&args.back, &self.config.channel, wants_back)?;
        // Arguments that can never be granted must not cost another session its life.
        let wanted = negotiate_fore(&args.fore, &self.config.channel, u64::MAX)?;
        let (evicted, freed) = self.choose_evictions(client, promised_cache(&wanted))?;
        let fore = self.grant_fore(client, &args.fore, freed)?;
        let back_params = BackChannelParams::choose(args.program, &args.security);
        let session = SessionRow {
            id: SessionId::new(args.client, client.row.next_session, random),
            fore,
            back,
            // Without a usable security the flag is not granted and there are no callbacks.
            back_wanted: wants_back && back_params.security.is_some(),
            back_params,
            persist: self.config.persist && args.flags & session_flags::PERSIST != 0,
        };
        // The client has said so; its own row may be on the way to storage, or have failed to get there.
        let said = if client.reclaiming { self.epoch } else { client.row.reclaimed_in };
        let (reclaimed_in, forfeits) = self.inherited(client).unwrap_or((said, client.row.forfeits));
        let row = ClientRow {
            reclaimed_in,
            forfeits,
            create_seqid: args.seqid,
            next_session: client.row.next_session.wrapping_add(1),
            ..client.row.clone()
        };
        let rows = client.sessions.iter().filter(|s| s.persist && evicted.contains(&s.id));
        let mut effects: Vec<Effect> = rows.map(|s| Effect::ForgetSession(s.id)).collect();
        if !client.confirmed
            && let Some(absent) = self.absent.get(&client.row.owner)
        {
            effects.push(Effect::ForgetClient(absent.row.id));
        }
        let replaced = self.end_older(args.client, &mut effects)?;
        effects.push(Effect::PersistClient(Box::new(row.clone())));
        if session.persist {
            effects.push(Effect::PersistSession(Box::new(session.clone())));
        }
        Ok(PendingSession { effects, client: row, session, connection, evicted, replaced })
    }

    /// A client that comes back after a restart under a new client ID keeps its right to reclaim, through
    /// another crash too. §8.4.2.1: it is the same incarnation if owner, verifier and principal agree.
    /// What was taken from it before is taken.
    fn inherited(&self, client: &Client) -> Option<(BootEpoch, Forfeit)> {
        let absent = self.absent.get(&client.row.owner).filter(|a| a.may_reclaim && !client.confirmed)?;
        let same = absent.row.verifier == client.row.verifier && absent.row.principal == client.row.principal;
        same.then_some((absent.row.reclaimed_in, absent.row.forfeits))
    }

    /// At the limit, and while the replies that a new session wants kept do not fit, the oldest sessions that no
    /// connection uses make room: a client that lost its sessions without DESTROY_SESSION must be able to go on.
    /// Which they are, and what they had.
    fn choose_evictions(&self, client: &Client, wanted: u64) -> Result<(Vec<SessionId>, Promised), Error> {
        let left = self.config.channel.cache_per_client.saturating_sub(client.promised());
        let (mut evicted, mut freed) = (Vec::new(), Promised::default());
        let full = |evicted: &[SessionId]| client.sessions.len() - evicted.len() >= self.config.max_sessions;
        for session in &client.sessions {
            let short = left + freed.cache < wanted && session.promised > 0;
            if (short || full(&evicted)) && session.gauge.evict() {
                evicted.push(session.id);
                freed.add(session);
            }
        }
        if full(&evicted) { Err(Error::Nospc) } else { Ok((evicted, freed)) }
    }

    /// All clients together have as much as they may have: one may be refused for it. That those of its host have is nobody else's
    /// fault.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.promised.slots >= self.config.max_slots
            || self.promised.cache.saturating_add(self.config.channel.fore.max_response_cached.into())
                > self.config.max_cache
            || self.confirmed_count() >= self.config.max_clients
    }

    /// A fore channel within what the client may have, and what all clients may have together; `freed` of both is given
    /// up for it. A client that is known and has no session gets a slot in any case: it can do nothing without, not even
    /// give back what it has, and there may be less memory than there was. Error: Nospc.
    fn grant_fore(
        &self,
        client: &Client,
        ask: &ChannelAttrs,
        freed: Promised,
    ) -> Result<ChannelAttrs, Error> {
        let mut limits = self.config.channel;
        let known = client.confirmed || self.absent.contains_key(&client.row.owner);
        let owed = known && client.sessions.is_empty();
        let slots = share(self.config.max_slots, self.promised.slots - freed.slots, 1).max(owed.into());
        if slots == 0 {
            return Err(Error::Nospc);
        }
        limits.fore.max_requests = limits.fore.max_requests.min(u32::try_from(slots).unwrap_or(u32::MAX));
        let one = u64::from(ask.max_response_cached.min(limits.fore.max_response_cached));
        let of_all = share(self.config.max_cache, self.promised.cache - freed.cache, one);
        let of_all = if owed { of_all.max(one) } else { of_all };
        let of_client = limits.cache_per_client.saturating_sub(client.promised() - freed.cache);
        negotiate_fore(ask, &limits, of_all.min(of_client))
    }

    /// §18.36.4 phase 3: confirming a new incarnation ends the older one, from now on and for good.
    /// Error: Delay while requests of the older one are being served.
    fn end_older(&mut self, id: ClientId, effects: &mut Vec<Effect>) -> Result<Option<ClientId>, Error> {
        let Some(client) = self.by_id.get(&id).filter(|c| !c.confirmed) else { return Ok(None) };
        let Some(older) = self.by_owner.get(&client.row.owner).and_then(|e| e.confirmed) else {
            return Ok(None);
        };
        let Some(old) = self.by_id.get(&older) else { return Ok(None) };
        if old.creating {
            return Err(Error::Delay);
        }
        old.shared.kill();
        if old.shared.in_flight() > 0 {
            return Err(Error::Delay);
        }
        effects.extend(removal(old).into_iter().filter(Effect::is_durable));
        Ok(Some(older))
    }

    /// CREATE_SESSION, second step: the effects are durable (`committed`) or certainly are not.
    ///
    /// Errors: Delay when not committed (the client tries again), StaleClientid when the record is gone.
    pub fn finish_create_session(
        &mut self,
        now: Time,
        pending: PendingSession,
        committed: bool,
    ) -> Result<Created, Error> {
        let id = pending.client.id;
        let client = self.by_id.get_mut(&id).ok_or(Error::StaleClientid)?;
        client.creating = false;
        if !committed {
            return Err(Error::Delay);
        }
        let mut effects = Vec::new();
        if let Some(older) = pending.replaced {
            effects.extend(self.remove(older).into_iter().filter(|e| !e.is_durable()));
        }
        let client = self.by_id.get_mut(&id).ok_or(Error::StaleClientid)?;
        let reply = CreateSessionReply::of(&pending.session, pending.client.create_seqid);
        // The rest of the row may have changed in between (an update, RECLAIM_COMPLETE).
        client.row.create_seqid = pending.client.create_seqid;
        client.row.next_session = pending.client.next_session;
        client.last_create = Some(Ok(reply));
        client.unaware = false;
        client.sessions.retain(|session| {
            let stays = !pending.evicted.contains(&session.id);
            if !stays {
                self.promised.sub(session);
            }
            stays
        });
        effects.extend(pending.evicted.into_iter().map(Effect::DropSession));
        let gauge = UseGauge::default();
        let entry = session_entry(&pending.session, gauge.clone());
        self.promised.add(&entry);
        client.sessions.push(entry);
        let max_slots = self.config.channel.max_slots;
        let shared = client.shared.clone();
        let session = Session::new(pending.session, shared, gauge, pending.connection, max_slots);
        self.confirm(now, id);
        Ok(Created { reply, session, effects })
    }

    fn confirm(&mut self, now: Time, id: ClientId) {
        let inherited = self.by_id.get(&id).and_then(|c| self.inherited(c));
        let Some(client) = self.by_id.get_mut(&id).filter(|c| !c.confirmed) else { return };
        client.confirmed = true;
        if let Some((reclaimed_in, forfeits)) = inherited {
            (client.row.reclaimed_in, client.row.forfeits) = (reclaimed_in, forfeits);
        }
        client.shared.start_lease(now);
        if let Some(absent) = self.absent.remove(&client.row.owner) {
            if inherited.is_some() {
                client.shared.set_reclaim(false, true);
                self.grace.rename(absent.row.id, id);
            } else {
                self.grace.forget(absent.row.id);
            }
        }
        self.unconfirmed.remove(&(client.created, id));
        if (self.config.is_stranger)(&client.row.owner) {
            self.strangers.insert(id);
        }
        let entry = self.by_owner.entry(client.row.owner.clone()).or_default();
        entry.confirmed = Some(id);
        entry.unconfirmed = None;
    }
}
