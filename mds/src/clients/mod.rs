//! Clients and sessions of this server: the state machines with their locks, and what follows a step.
//! RFC 8881 §2.4, §2.10, §8.
//!
//! Lock order: the client table, then one session. SEQUENCE takes its session's lock alone.

pub(crate) mod effects;
pub(crate) mod guards;
pub(crate) mod notices;
pub(crate) mod records;
pub(crate) mod strangers;
mod unfreed;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use dashmap::{DashMap, Entry};
use foldhash::fast::FixedState;
use parking_lot::{Mutex, MutexGuard};
use sluice_env::Env;
use sluice_kv::Database;
use sluice_namespace::FsError;
use sluice_rpc::Connection;
use sluice_state::client::{ClientInfo, Clients, ClientsConfig, Guard, exchange_flags};
use sluice_state::file::{FileId, Grace};
use sluice_state::grace::{Claim, GraceGate};
use sluice_state::lease::ClientShared;
use sluice_state::session::Session;
use sluice_state::{BootEpoch, ClientId, ConnectionId, SessionId, Time};
use sluice_xdr::nfs4::nfsstat4;

use crate::config::Config;
use crate::error::client_status;
use crate::server::Mds;

/// The session of a COMPOUND under way, as SEQUENCE found it.
#[derive(Clone, Debug)]
pub(crate) struct SessionRef {
    pub(crate) entry: Arc<SessionEntry>,
    pub(crate) client: ClientId,
    pub(crate) id: SessionId,
    pub(crate) slot: u32,
    pub(crate) sequence: u32,
    /// sa_cachethis.
    pub(crate) cache_this: bool,
}

/// One session.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    // Constant.
    pub(crate) id: SessionId,
    pub(crate) shared: Arc<ClientShared>,
    /// The host that made it, or after a restart its client, if that is known.
    pub(super) made_from: Option<IpAddr>,
    /// How its client is protected, if it is.
    pub(crate) guard: Option<Box<Guard>>,
    /// The client understands striped layouts.
    pub(crate) stripes: bool,
    /// The client speaks in clear with data servers.
    pub(crate) in_clear: bool,
    /// The client asks for the layout of a file when it opens it for writing.
    pub(crate) wants_layouts: AtomicBool,
    /// It asked for a layout of any kind.
    pub(crate) asks_layouts: AtomicBool,
    /// COMPOUNDs that it sent.
    pub(crate) calls: AtomicU64,
    /// Of callbacks that wait for a slot, the first has this, and looks.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    /// Told when a slot for callbacks is free again.
    pub(crate) freed: tokio::sync::Notify,
    // Guarded by its own lock.
    session: Mutex<Session>,
}

impl SessionEntry {
    /// Whether it may have been made from an address: not if it was from another one.
    pub(crate) fn may_be_from(&self, address: IpAddr) -> bool {
        self.made_from.is_none_or(|from| from == address.to_canonical())
    }

    /// It asks for a layout.
    pub(crate) fn asked(&self, write: bool) {
        // Many processors have these in their caches.
        for flag in [Some(&self.asks_layouts), write.then_some(&self.wants_layouts)].into_iter().flatten() {
            if !flag.load(Ordering::Relaxed) {
                flag.store(true, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock()
    }
}

/// All clients and sessions.
#[derive(Debug)]
pub(crate) struct ClientTable {
    table: Mutex<Clients>,
    gate: GraceGate,
    sessions: DashMap<SessionId, Arc<SessionEntry>, FixedState>,
    /// Connections bound to some session, to call back over.
    connections: DashMap<ConnectionId, Watched, FixedState>,
}

/// A connection that is open, and watched by one task.
#[derive(Debug)]
struct Watched {
    connection: Weak<Connection>,
    /// Those that it was bound to. Some of them may be gone, or may have dropped it for another.
    sessions: BTreeSet<SessionId>,
}

/// So many sessions of a connection are looked through for those that are gone; so are twice as many, and so on.
const SESSIONS: usize = 64;

impl ClientTable {
    /// The clients and sessions of earlier incarnations, who may reclaim. `guard`: this incarnation's epoch.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn load(
        env: &Env,
        db: &Database,
        config: &Config,
        epoch: BootEpoch,
        guard: &(Bytes, Bytes),
    ) -> Result<Self, FsError> {
        let (server, mut clients) = records::load(db, guard).await?;
        if !config.kerberos {
            // Nobody could come with a ticket.
            clients.iter_mut().for_each(|client| client.row.protection = None);
        }
        let found = clients.len();
        let now = Time(env.clock.now().0);
        let (mut table, sessions) = Clients::restore(clients_config(config), now, epoch, server, clients);
        let gate = table.grace().gate();
        if found > 0 {
            tracing::info!(
                clients = found,
                waiting_for = table.grace().pending(),
                "clients known from before may reclaim their state"
            );
        }
        let all = Self {
            gate,
            sessions: DashMap::with_hasher(FixedState::default()),
            connections: DashMap::with_hasher(FixedState::default()),
            table: Mutex::new(table),
        };
        for session in sessions {
            let info = all.lock().info(now, session.client().id());
            let made_from = info.as_ref().and_then(strangers::maker);
            all.insert(session, made_from, info.as_ref());
        }
        Ok(all)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Clients> {
        self.table.lock()
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<Arc<SessionEntry>> {
        self.sessions.get(&id).map(|entry| Arc::clone(&entry))
    }

    /// Puts a session into the map, from where SEQUENCE finds it, unless it has ended by now: who ended it looked for it here in
    /// vain, and nobody would again.
    pub(crate) fn insert(
        &self,
        session: Session,
        made_from: Option<IpAddr>,
        client: Option<&ClientInfo>,
    ) -> Arc<SessionEntry> {
        let entry = Arc::new(SessionEntry {
            id: session.id(),
            shared: Arc::clone(session.client()),
            made_from: made_from.map(|host| host.to_canonical()),
            guard: guards::of(client),
            stripes: client.is_some_and(ClientInfo::supports_stripes),
            in_clear: client.is_some_and(ClientInfo::is_in_clear),
            wants_layouts: AtomicBool::new(false),
            asks_layouts: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            turn: Arc::default(),
            freed: tokio::sync::Notify::new(),
            session: Mutex::new(session),
        });
        self.sessions.insert(entry.id, Arc::clone(&entry));
        if self.lock().find_session(entry.id).is_none() {
            self.drop_session(entry.id);
        }
        entry
    }

    /// Takes a session out of the map and ends it.
    pub(crate) fn drop_session(&self, id: SessionId) {
        if let Some((_, entry)) = self.sessions.remove(&id) {
            entry.lock().kill();
        }
    }

    pub(crate) fn connection(&self, id: ConnectionId) -> Option<Arc<Connection>> {
        self.connections.get(&id).and_then(|watched| watched.connection.upgrade())
    }

    /// The connection serves the session. True when nothing watches it yet.
    fn watch(&self, connection: &Arc<Connection>, session: SessionId) -> bool {
        match self.connections.entry(ConnectionId(connection.id())) {
            Entry::Occupied(mut watched) => {
                let sessions = &mut watched.get_mut().sessions;
                sessions.insert(session);
                if sessions.len() >= SESSIONS && sessions.len().is_power_of_two() {
                    sessions.retain(|id| self.sessions.contains_key(id));
                }
                false
            }
            Entry::Vacant(place) => {
                let sessions = BTreeSet::from([session]);
                place.insert(Watched { connection: Arc::downgrade(connection), sessions });
                true
            }
        }
    }

    /// The connection is closed: it serves nobody any more.
    fn closed(&self, id: ConnectionId) {
        let Some((_, watched)) = self.connections.remove(&id) else { return };
        for session in watched.sessions.into_iter().filter_map(|session| self.session(session)) {
            session.lock().unbind(id);
        }
    }

    /// The client has not gone, whether or not its lease is over.
    pub(crate) fn is_alive(&self, client: ClientId) -> bool {
        self.lock().shared(client).is_some_and(|shared| !shared.is_dead())
    }

    /// Sessions of a client that may carry a callback.
    pub(crate) fn sessions_of(&self, client: ClientId) -> Vec<Arc<SessionEntry>> {
        let ids = self.lock().info(Time::ZERO, client).map(|info| info.sessions).unwrap_or_default();
        ids.into_iter().filter_map(|id| self.session(id)).collect()
    }
}

impl Mds {
    /// Where this server stands in its grace period, for a client (`None`: for the server's own work).
    pub(crate) fn grace(&self, client: Option<ClientId>) -> Grace {
        if !self.clients.gate.in_grace() {
            return Grace::Over;
        }
        let may_reclaim = client
            .and_then(|client| self.clients.lock().shared(client).map(|shared| shared.may_reclaim()))
            .unwrap_or(false);
        Grace::Active { may_reclaim }
    }

    /// Grace has not ended.
    pub(crate) fn in_grace(&self) -> bool {
        self.clients.gate.in_grace()
    }

    /// May the client take new state, or reclaim old, now?
    ///
    /// # Errors
    /// GRACE, NO_GRACE, RECLAIM_BAD, DELAY as RFC 8881 §8.4.2.1 and §18.51.3 have it.
    pub(crate) fn admit(&self, session: &SessionRef, claim: Claim) -> Result<(), nfsstat4> {
        self.clients.gate.admit(&session.entry.shared, claim).map_err(client_status)
    }

    /// Under its ticket, a file is about to lose a name.
    pub(crate) fn note_moved(&self, file: FileId) {
        if self.in_grace() {
            self.clients.lock().grace().note_moved(file);
        }
    }

    /// Whether a client gets no delegation of a file back that it says it had. RFC 8881 §8.4.3: others may have changed since
    /// what its holder believes to be as it left it.
    pub(crate) fn forfeits(&self, client: ClientId, file: FileId) -> bool {
        let mut clients = self.clients.lock();
        clients.forfeits(client) || clients.grace().may_have_moved(file)
    }

    /// A reclaim succeeded: grace goes on a little longer for a client that is at work.
    pub(crate) fn note_reclaim(&self) {
        self.clients.lock().grace().note_reclaim(self.now());
    }

    /// Every client, for the administrator.
    pub(crate) fn client_infos(&self) -> Vec<ClientInfo> {
        self.clients.lock().iter(self.now()).collect()
    }

    /// Where a client with these sessions calls from, if it is connected now.
    pub(crate) fn address_of(&self, sessions: &[Arc<SessionEntry>]) -> Option<IpAddr> {
        sessions.iter().find_map(|session| {
            let id = session.lock().any_connection()?;
            Some(self.clients.connection(id)?.peer().ip())
        })
    }

    /// What the client holds counts as held at this address, too.
    pub(crate) fn is_made_at(&self, client: ClientId, address: IpAddr) {
        self.files.index().is_at(client, address);
        // Who ended it meanwhile had it forgotten before.
        if self.clients.lock().shared(client).is_none() {
            self.files.index().is_nowhere(client);
        }
    }

    /// The same of all who are known from before.
    pub(crate) fn place_clients(&self) {
        for info in self.client_infos() {
            if let Some(host) = strangers::maker(&info) {
                self.files.index().is_at(info.id, host);
            }
        }
    }

    /// Remembers that `connection` serves `session`, until it closes.
    pub(crate) fn watch_connection(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        session: &Arc<SessionEntry>,
    ) {
        if !self.clients.watch(connection, session.id) {
            return;
        }
        let (mds, id, closed) = (Arc::clone(self), ConnectionId(connection.id()), connection.closed());
        self.spawn(async move {
            closed.await;
            mds.clients.closed(id);
        });
    }
}

/// Bytes of memory for which there may be one slot.
const SLOT: u64 = 1 << 10;

fn clients_config(config: &Config) -> ClientsConfig {
    ClientsConfig {
        lease_nanos: u64::try_from(config.lease.as_nanos()).unwrap_or(u64::MAX),
        role: if config.layouts { exchange_flags::USE_PNFS_MDS } else { exchange_flags::USE_NON_PNFS },
        max_cache: config.limits.replies,
        max_slots: config.limits.replies / SLOT,
        max_strangers: config.limits.strangers,
        allowable: guards::ALLOWABLE,
        is_stranger: |owner| strangers::host_of(owner).is_some(),
        ..ClientsConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_state::Verifier;
    use sluice_state::client::{Caller, CreateSession, CreateStep, ExchangeId, Principal, StateProtect};
    use sluice_state::session::ChannelAttrs;

    fn table() -> ClientTable {
        let mut table = Clients::new(ClientsConfig::default(), Time(0), BootEpoch(1));
        ClientTable {
            gate: table.grace().gate(),
            sessions: DashMap::with_hasher(FixedState::default()),
            connections: DashMap::with_hasher(FixedState::default()),
            table: Mutex::new(table),
        }
    }

    /// A session that is in the client table, and not in the map yet.
    fn session(table: &mut Clients) -> Session {
        let principal = Principal::None;
        let exchange = ExchangeId {
            owner: Bytes::from_static(b"a"),
            verifier: Verifier([1; 8]),
            caller: Caller { principal: principal.clone(), sealed: false },
            flags: 0,
            protect: StateProtect::None,
            implementation: None,
            minor_version: 2,
            host: None,
        };
        let (known, _) = table.exchange_id(Time(0), exchange, &|_| false).unwrap();
        let attrs = ChannelAttrs {
            max_request: 8192,
            max_response: 8192,
            max_response_cached: 8192,
            max_ops: 8,
            max_requests: 8,
        };
        let create = CreateSession {
            client: known.client,
            seqid: known.seqid,
            flags: 0,
            fore: attrs,
            back: attrs,
            program: 1,
            security: Vec::new(),
            principal,
        };
        let step = table.create_session(Time(0), ConnectionId(1), &create, 0).unwrap();
        let CreateStep::Pending(pending) = step else { panic!("{step:?}") };
        table.finish_create_session(Time(0), *pending, true).unwrap().session
    }

    #[test]
    fn a_session_whose_client_was_ended_meanwhile_does_not_stay() {
        let all = table();
        let session = session(&mut all.lock());
        let (client, id) = (session.client().id(), session.id());
        let effects = all.lock().evict(client).unwrap();
        assert!(effects.contains(&sluice_state::recovery::Effect::DropSession(id)));
        all.drop_session(id);
        all.insert(session, None, None);
        assert!(all.session(id).is_none());
    }

    #[test]
    fn a_session_whose_client_lives_is_found() {
        let all = table();
        let session = session(&mut all.lock());
        let entry = all.insert(session, None, None);
        assert!(all.session(entry.id).is_some());
    }
}
