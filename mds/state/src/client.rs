//! Client records: RFC 8881 §2.4, §18.35 (EXCHANGE_ID), §18.36 (CREATE_SESSION), §18.50, §18.51.
//!
//! ```text
//!              EXCHANGE_ID            CREATE_SESSION durable
//!   (none) ───────────────► Unconfirmed ───────────────► Confirmed
//!                              │ not confirmed within a     │ lease elapsed: courtesy (see lease.rs)
//!                              │ lease, or replaced         │ conflict, age, cap, new incarnation,
//!                              ▼                            ▼ DESTROY_CLIENTID, administrator
//!                           (none)                       Dead ──nothing in progress──► (none)
//! ```
//!
//! Per client owner there is at most one confirmed record and at most one unconfirmed; a new
//! incarnation of a client waits as the unconfirmed one until its CREATE_SESSION is durable, and only
//! then is the state of the old one discarded.
//!
//! [`Clients`] is the table, under one lock at the caller: none of its operations is on the path of a
//! SEQUENCE.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;

use crate::grace::Grace;
use crate::ids::{BootEpoch, ClientId, SessionId, Time, Verifier};
use crate::lease::{ClientShared, LeaseState, UseGauge};
use crate::recovery::{ClientRow, Effect, Forfeit, SessionRow};
use crate::session::{ChannelLimits, promised_cache};

mod create_session;
mod error;
mod exchange_id;
mod expiry;
mod hosts;
mod implementation;
mod invariants;
mod protection;
mod restore;

pub use create_session::{
    CreateSession, CreateSessionReply, CreateStep, Created, PendingSession, session_flags,
};
pub use error::Error;
pub use exchange_id::{ExchangeId, ExchangeIdReply, StateProtect, exchange_flags};
pub use expiry::Expire;
pub use implementation::{ImplementationId, KernelRelease, MAX_IMPLEMENTATION};
pub use protection::{Caller, Guard, Operations, Protection, operation};
pub use restore::{RestoredClient, RestoredSession};

/// Longest client owner in bytes (`NFS4_OPAQUE_LIMIT`).
pub const MAX_OWNER: usize = 1024;

/// Who sent a request, as far as client records care.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    /// AUTH_NONE
    None,
    /// AUTH_SYS: user on a machine. Groups do not identify anybody.
    Sys {
        /// `uid`
        uid: u32,
        /// `machinename`
        machine: Bytes,
    },
    /// RPCSEC_GSS principal name.
    Gss(Bytes),
}

/// Bounds and times.
#[derive(Clone, Copy, Debug)]
pub struct ClientsConfig {
    /// Lease period, nanoseconds.
    pub lease_nanos: u64,
    /// How long expired state is kept without a conflict, nanoseconds after the lease elapsed.
    pub courtesy_nanos: u64,
    /// Clients in courtesy beyond this number are ended, the longest silent first.
    pub max_courtesy: usize,
    /// Confirmed records; of one host no more than it leaves to others.
    pub max_clients: usize,
    /// Those of them that [`Self::is_stranger`]; the oldest makes room.
    pub max_strangers: usize,
    /// Whether a client owner is of somebody who may be a client, and nothing else.
    pub is_stranger: fn(&[u8]) -> bool,
    /// Unconfirmed records; the oldest makes room.
    pub max_unconfirmed: usize,
    /// Sessions per client; one without a connection makes room.
    pub max_sessions: usize,
    /// Channel limits.
    pub channel: ChannelLimits,
    /// Bytes of cached replies that the sessions of all clients may promise together.
    pub max_cache: u64,
    /// Slots that the sessions of all clients may begin with together.
    pub max_slots: u64,
    /// Grant SESSION4_PERSIST to those that ask.
    pub persist: bool,
    /// Role bits of `eir_flags` ([`exchange_flags`]).
    pub role: u32,
    /// What a client's machine may be allowed under SP4_MACH_CRED.
    pub allowable: Operations,
}

impl Default for ClientsConfig {
    fn default() -> Self {
        Self {
            lease_nanos: 90_000_000_000,
            courtesy_nanos: 24 * 3600 * 1_000_000_000,
            max_courtesy: 4096,
            max_clients: 100_000,
            max_strangers: 1024,
            is_stranger: |_| false,
            max_unconfirmed: 4096,
            max_sessions: 64,
            channel: ChannelLimits::default(),
            max_cache: 4 << 30,
            max_slots: 1 << 22,
            persist: true,
            role: exchange_flags::USE_PNFS_MDS,
            allowable: Operations(u64::MAX),
        }
    }
}

/// Summary of a session in the client's record; the session itself lives with the caller.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    pub(crate) id: SessionId,
    /// Bytes of cached replies promised.
    pub(crate) promised: u64,
    /// Slots it began with.
    pub(crate) slots: u32,
    /// A stable row exists.
    pub(crate) persist: bool,
    /// Whether anybody uses it.
    pub(crate) gauge: UseGauge,
}

/// What sessions have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promised {
    /// Bytes of cached replies.
    pub(crate) cache: u64,
    pub(crate) slots: u64,
}

impl Promised {
    pub(crate) fn add(&mut self, session: &SessionEntry) {
        self.cache += session.promised;
        self.slots += u64::from(session.slots);
    }

    pub(crate) fn sub(&mut self, session: &SessionEntry) {
        self.cache -= session.promised;
        self.slots -= u64::from(session.slots);
    }
}

/// One client record.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) row: ClientRow,
    pub(crate) confirmed: bool,
    pub(crate) created: Time,
    /// Result of the last CREATE_SESSION, for a replay.
    pub(crate) last_create: Option<Result<CreateSessionReply, Error>>,
    /// A CREATE_SESSION is being made durable, or something else that writes the row.
    pub(crate) creating: bool,
    /// A RECLAIM_COMPLETE is being made durable.
    pub(crate) reclaiming: bool,
    /// Things that are being taken from it: the row says so by then.
    pub(crate) revoking: u32,
    /// The row says so for the sake of this incarnation.
    pub(crate) forfeits_now: Forfeit,
    /// The last incarnation ended before the client had completed its reclaim there, and it has made no session
    /// since: it may not have noticed that there was another restart.
    pub(crate) unaware: bool,
    /// Since when at least it has been told that it is to reclaim.
    pub(crate) told_since: Option<Time>,
    pub(crate) sessions: Vec<SessionEntry>,
    pub(crate) shared: Arc<ClientShared>,
}

impl Client {
    pub(crate) fn promised(&self) -> u64 {
        self.sessions.iter().map(|s| s.promised).sum()
    }
}

/// Records of one client owner.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnerEntry {
    pub(crate) confirmed: Option<ClientId>,
    pub(crate) unconfirmed: Option<ClientId>,
}

/// A client of an earlier incarnation that had no persistent session: its client ID is stale, but it may
/// reclaim under a new one.
#[derive(Debug)]
pub(crate) struct Absent {
    pub(crate) row: ClientRow,
    pub(crate) may_reclaim: bool,
}

/// What an administrator sees of a client.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// The client.
    pub id: ClientId,
    /// `co_ownerid`
    pub owner: Bytes,
    /// Who established it.
    pub principal: Principal,
    /// From where, if that is known.
    pub host: Option<IpAddr>,
    /// Under SP4_MACH_CRED; `None`: SP4_NONE.
    pub protection: Option<Protection>,
    /// Implementation, if sent.
    pub implementation: Option<ImplementationId>,
    /// Minor version of its EXCHANGE_ID.
    pub minor_version: u32,
    /// CREATE_SESSION has confirmed it.
    pub confirmed: bool,
    /// The lease now.
    pub lease: LeaseState,
    /// Last renewal.
    pub renewed: Time,
    /// Its sessions.
    pub sessions: Vec<SessionId>,
    /// The state shared with its sessions.
    pub shared: Arc<ClientShared>,
}

impl ClientInfo {
    /// Gets striped layouts: a known kernel that understands them; unknown means old.
    #[must_use]
    pub fn supports_stripes(&self) -> bool {
        let kernel = self.implementation.as_ref().and_then(ImplementationId::kernel);
        kernel.is_some_and(|k| k.supports_stripes(self.minor_version))
    }

    /// Speaks in clear with data servers: a known kernel that does; of others they find out.
    #[must_use]
    pub fn is_in_clear(&self) -> bool {
        self.implementation.as_ref().and_then(ImplementationId::kernel).is_some_and(|k| k.is_in_clear())
    }
}

/// The client table of one incarnation of the metadata server.
#[derive(Debug)]
pub struct Clients {
    pub(crate) config: ClientsConfig,
    pub(crate) epoch: BootEpoch,
    pub(crate) next_counter: u32,
    pub(crate) by_id: BTreeMap<ClientId, Client>,
    pub(crate) by_owner: BTreeMap<Bytes, OwnerEntry>,
    /// Clients that have not come back since the restart, by owner.
    pub(crate) absent: BTreeMap<Bytes, Absent>,
    /// Unconfirmed records by age.
    pub(crate) unconfirmed: BTreeSet<(Time, ClientId)>,
    /// Confirmed records that [`ClientsConfig::is_stranger`]: the oldest have the smallest IDs.
    pub(crate) strangers: BTreeSet<ClientId>,
    /// Of all sessions.
    pub(crate) promised: Promised,
    pub(crate) grace: Grace,
    /// Since when at least it has been over.
    pub(crate) grace_over: Option<Time>,
}

impl Clients {
    /// The grace period, to ask, poll and end.
    pub fn grace(&mut self) -> &mut Grace {
        &mut self.grace
    }

    /// Lease period, nanoseconds.
    #[must_use]
    pub fn lease_nanos(&self) -> u64 {
        self.config.lease_nanos
    }

    /// This incarnation.
    #[must_use]
    pub fn epoch(&self) -> BootEpoch {
        self.epoch
    }

    /// Number of records, confirmed or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// No client is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The state that the client shares with its sessions.
    #[must_use]
    pub fn shared(&self, id: ClientId) -> Option<&Arc<ClientShared>> {
        self.by_id.get(&id).map(|c| &c.shared)
    }

    /// A client by its ID.
    #[must_use]
    pub fn info(&self, now: Time, id: ClientId) -> Option<ClientInfo> {
        self.by_id.get(&id).map(|c| self.describe(now, c))
    }

    /// The confirmed client of an owner.
    #[must_use]
    pub fn find_owner(&self, now: Time, owner: &[u8]) -> Option<ClientInfo> {
        self.info(now, self.by_owner.get(owner)?.confirmed?)
    }

    /// The client of a session that exists.
    #[must_use]
    pub fn find_session(&self, session: SessionId) -> Option<ClientId> {
        let client = self.by_id.get(&session.client())?;
        client.sessions.iter().any(|s| s.id == session).then(|| session.client())
    }

    /// All clients in the order of their IDs.
    pub fn iter(&self, now: Time) -> impl Iterator<Item = ClientInfo> + '_ {
        self.by_id.values().map(move |c| self.describe(now, c))
    }

    /// Clients that have rows but did not come back since the restart.
    pub fn absent(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.absent.values().map(|a| a.row.id)
    }

    fn describe(&self, now: Time, c: &Client) -> ClientInfo {
        ClientInfo {
            id: c.row.id,
            owner: c.row.owner.clone(),
            principal: c.row.principal.clone(),
            host: c.row.host,
            protection: c.row.protection,
            implementation: c.row.implementation.clone(),
            minor_version: c.row.minor_version,
            confirmed: c.confirmed,
            lease: c.shared.lease(now, self.config.lease_nanos),
            renewed: c.shared.renewed(),
            sessions: c.sessions.iter().map(|s| s.id).collect(),
            shared: c.shared.clone(),
        }
    }

    /// Second half of DESTROY_SESSION, after [`crate::session::Session::destroy`] succeeded.
    /// Error: BadSession.
    pub fn destroy_session(&mut self, session: SessionId) -> Result<Vec<Effect>, Error> {
        let client = self.by_id.get_mut(&session.client()).ok_or(Error::BadSession)?;
        let at = client.sessions.iter().position(|s| s.id == session).ok_or(Error::BadSession)?;
        let entry = client.sessions.remove(at);
        self.promised.sub(&entry);
        let mut effects = Vec::new();
        if entry.persist {
            effects.push(Effect::ForgetSession(session));
        }
        effects.push(Effect::DropSession(session));
        Ok(effects)
    }

    /// DESTROY_CLIENTID, RFC 8881 §18.50. `has_state`: the client holds opens, locks, delegations or
    /// layouts. Errors: StaleClientid, ClientidBusy, Delay.
    pub fn destroy_clientid(&mut self, id: ClientId, has_state: bool) -> Result<Vec<Effect>, Error> {
        let client = self.by_id.get(&id).ok_or(Error::StaleClientid)?;
        if client.creating {
            return Err(Error::Delay);
        }
        // §18.50.3: sessions, opens, locks, delegations, layouts and wants must be gone.
        if has_state || !client.sessions.is_empty() {
            return Err(Error::ClientidBusy);
        }
        Ok(self.remove(id))
    }

    /// RECLAIM_COMPLETE of all file systems, RFC 8881 §18.51. When the effects are durable, call
    /// [`Self::finish_reclaim_complete`]; until then a repetition returns them again.
    ///
    /// No effects: accepted, and the client is asked to reclaim again.
    ///
    /// `one_fs` (rca_one_fs) concerns a migrated file system, of which there are none: accepted, no
    /// effect. Errors: StaleClientid, CompleteAlready, Delay while a CREATE_SESSION writes the row.
    pub fn reclaim_complete(&mut self, id: ClientId, one_fs: bool) -> Result<Vec<Effect>, Error> {
        let epoch = self.epoch;
        let client = self.by_id.get_mut(&id).ok_or(Error::StaleClientid)?;
        if one_fs {
            return Ok(Vec::new());
        }
        if client.shared.reclaim_complete() {
            return Err(Error::CompleteAlready);
        }
        // Both write the whole row: the older one must not come last.
        if client.creating {
            return Err(Error::Delay);
        }
        // It may be the end of a reclaim from the incarnation before: on a session that goes on, a client notices a
        // restart by RESTART_RECLAIM_NEEDED alone, and stock clients do not look at it while they recover. Believed,
        // it would have the client go on with stateids of that incarnation for ever. It hears the flag once more.
        if std::mem::take(&mut client.unaware) {
            return Ok(Vec::new());
        }
        client.reclaiming = true;
        // What was taken from it before the restart it has not reclaimed.
        let forfeits = client.forfeits_now;
        Ok(vec![Effect::PersistClient(Box::new(ClientRow {
            reclaimed_in: epoch,
            forfeits,
            ..client.row.clone()
        }))])
    }

    /// The effects of [`Self::reclaim_complete`] are durable: the client may take new state, and grace
    /// does not wait for it any more.
    pub fn finish_reclaim_complete(&mut self, id: ClientId) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.row.reclaimed_in = self.epoch;
            client.row.forfeits = client.forfeits_now;
            client.reclaiming = false;
            client.shared.set_reclaim(true, false);
            client.shared.clear_status(crate::lease::seq4_status::RESTART_RECLAIM_NEEDED);
        }
        self.grace.forget(id);
    }

    /// Something is about to be taken from the client (§8.4.3, second edge condition: it must not be reclaimed after a
    /// restart). Effects, if any, are to be made durable first, which [`Self::revoked_durably`] is told; at the end
    /// comes [`Self::end_revoking`]. Error: Delay while the row is being written.
    pub fn begin_revoking(&mut self, id: ClientId, what: Forfeit) -> Result<Vec<Effect>, Error> {
        let Some(client) = self.by_id.get_mut(&id) else { return Ok(Vec::new()) };
        if client.creating || client.reclaiming {
            return Err(Error::Delay);
        }
        client.revoking += 1;
        if client.forfeits_now >= what {
            return Ok(Vec::new());
        }
        client.creating = true;
        let forfeits = client.row.forfeits.max(client.forfeits_now).max(what);
        Ok(vec![Effect::PersistClient(Box::new(ClientRow { forfeits, ..client.row.clone() }))])
    }

    /// The effects are durable (`committed`), or certainly are not: then it begins anew.
    pub fn revoked_durably(&mut self, id: ClientId, what: Forfeit, committed: bool) {
        let Some(client) = self.by_id.get_mut(&id) else { return };
        client.creating = false;
        if committed {
            client.row.forfeits = client.row.forfeits.max(what);
            client.forfeits_now = client.forfeits_now.max(what);
        } else {
            client.revoking = client.revoking.saturating_sub(1);
        }
    }

    /// It is taken.
    pub fn end_revoking(&mut self, id: ClientId) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.revoking = client.revoking.saturating_sub(1);
        }
    }

    /// The client has freed all that was taken from it. Effects, if any, are to be made durable, which
    /// [`Self::forgot_revoked`] is told.
    pub fn forget_revoked(&mut self, id: ClientId) -> Vec<Effect> {
        let Some(client) = self.by_id.get_mut(&id) else { return Vec::new() };
        let nothing = client.forfeits_now == Forfeit::Nothing;
        if nothing || client.revoking > 0 || client.creating || client.reclaiming {
            return Vec::new();
        }
        client.creating = true;
        // What it has yet to hear of the incarnation before stays.
        let heard = client.shared.reclaim_complete();
        let forfeits = if heard { Forfeit::Nothing } else { client.row.forfeits };
        vec![Effect::PersistClient(Box::new(ClientRow { forfeits, ..client.row.clone() }))]
    }

    /// See [`Self::forget_revoked`]. They may have been made durable (`gone`), or certainly were (`committed`): what is
    /// taken next is written down unless it certainly is.
    pub fn forgot_revoked(&mut self, id: ClientId, gone: bool, committed: bool) {
        let Some(client) = self.by_id.get_mut(&id) else { return };
        client.creating = false;
        if gone {
            client.forfeits_now = Forfeit::Nothing;
        }
        if committed && client.shared.reclaim_complete() {
            client.row.forfeits = Forfeit::Nothing;
        }
    }

    /// Whether the client gets no delegation back that it says it had.
    #[must_use]
    pub fn forfeits(&self, id: ClientId) -> bool {
        self.by_id.get(&id).is_some_and(|client| client.row.forfeits != Forfeit::Nothing)
    }

    /// Takes a client out of the table: the durable effects first, then those in memory.
    pub(crate) fn remove(&mut self, id: ClientId) -> Vec<Effect> {
        let Some(client) = self.by_id.remove(&id) else { return Vec::new() };
        client.shared.kill();
        client.sessions.iter().for_each(|session| self.promised.sub(session));
        self.grace.forget(id);
        self.unconfirmed.remove(&(client.created, id));
        self.strangers.remove(&id);
        if let Some(entry) = self.by_owner.get_mut(&client.row.owner) {
            if entry.confirmed == Some(id) {
                entry.confirmed = None;
            }
            if entry.unconfirmed == Some(id) {
                entry.unconfirmed = None;
            }
            if entry.confirmed.is_none() && entry.unconfirmed.is_none() {
                self.by_owner.remove(&client.row.owner);
            }
        }
        removal(&client)
    }

    pub(crate) fn confirmed_count(&self) -> usize {
        self.by_id.len() - self.unconfirmed.len()
    }

    fn next_id(&mut self) -> ClientId {
        // 2^32 client IDs in one incarnation: skip those still in use after a wrap, and never issue 0.
        loop {
            self.next_counter = self.next_counter.wrapping_add(1).max(1);
            let id = ClientId::new(self.epoch, self.next_counter);
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }
}

/// Effects of a client's removal.
pub(crate) fn removal(client: &Client) -> Vec<Effect> {
    if !client.confirmed {
        // Nothing of an unconfirmed record is durable or holds state.
        return Vec::new();
    }
    let rows = client.sessions.iter().filter(|s| s.persist).map(|s| Effect::ForgetSession(s.id));
    let mut effects: Vec<Effect> = rows.collect();
    effects.push(Effect::ForgetClient(client.row.id));
    effects.extend(client.sessions.iter().map(|s| Effect::DropSession(s.id)));
    effects.push(Effect::ReleaseState(client.row.id));
    effects
}

/// The table's entry for a session.
pub(crate) fn session_entry(row: &SessionRow, gauge: UseGauge) -> SessionEntry {
    SessionEntry {
        id: row.id,
        promised: promised_cache(&row.fore),
        slots: row.fore.max_requests,
        persist: row.persist,
        gauge,
    }
}

pub(crate) fn unconfirmed(
    id: ClientId,
    now: Time,
    owner: Bytes,
    verifier: Verifier,
    principal: Principal,
) -> Client {
    Client {
        row: ClientRow {
            id,
            owner,
            verifier,
            principal,
            implementation: None,
            minor_version: 0,
            create_seqid: 0,
            next_session: 0,
            reclaimed_in: BootEpoch(0),
            forfeits: Forfeit::Nothing,
            host: None,
            protection: None,
        },
        confirmed: false,
        created: now,
        last_create: None,
        creating: false,
        reclaiming: false,
        revoking: 0,
        forfeits_now: Forfeit::Nothing,
        unaware: false,
        told_since: None,
        sessions: Vec::new(),
        shared: Arc::new(ClientShared::new(id, now)),
    }
}

#[cfg(test)]
mod tests;
