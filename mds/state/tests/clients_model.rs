//! Random histories of clients, sessions, expiry and restarts against a reference store.
//!
//! The test plays the caller: it holds the sessions, writes the rows and applies the effects. After every
//! step the table's own invariants hold and the stable rows say what the table says.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;
use sluice_state::client::{
    Caller, Clients, ClientsConfig, CreateSession, CreateStep, Error, ExchangeId, Expire, PendingSession,
    Principal, RestoredClient, RestoredSession, StateProtect, exchange_flags, session_flags,
};
use sluice_state::recovery::{ClientRow, Effect, ServerRow, SessionRow};
use sluice_state::session::{CbSecurity, ChannelAttrs, Completion, SequenceArgs, Sequenced, Session};
use sluice_state::slot::Slot;
use sluice_state::{BootEpoch, ClientId, ConnectionId, SessionId, Time, Verifier};

const LEASE: u64 = 100;

#[derive(Clone, Debug)]
enum Step {
    ExchangeId {
        owner: u8,
        verifier: u8,
        uid: u32,
        update: bool,
    },
    /// Of the `n`-th known client; `off` shifts the sequence number.
    Create {
        n: usize,
        off: i8,
        persist: bool,
    },
    Finish {
        n: usize,
        committed: bool,
    },
    DestroySession {
        n: usize,
    },
    DestroyClient {
        n: usize,
    },
    Sequence {
        n: usize,
        slot: u32,
    },
    Complete {
        n: usize,
    },
    Disconnect {
        n: usize,
    },
    Expire {
        n: usize,
    },
    Evict {
        n: usize,
    },
    Reap,
    ReclaimComplete {
        n: usize,
    },
    PollGrace,
    Advance {
        nanos: u64,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0usize..8;
    prop_oneof![
        6 => (0u8..3, 0u8..2, 0u32..2, proptest::bool::weighted(0.1))
            .prop_map(|(owner, verifier, uid, update)| Step::ExchangeId { owner, verifier, uid, update }),
        8 => (n.clone(), prop_oneof![8 => Just(0i8), 1 => -2i8..3], any::<bool>())
            .prop_map(|(n, off, persist)| Step::Create { n, off, persist }),
        8 => (n.clone(), proptest::bool::weighted(0.8))
            .prop_map(|(n, committed)| Step::Finish { n, committed }),
        2 => n.clone().prop_map(|n| Step::DestroySession { n }),
        2 => n.clone().prop_map(|n| Step::DestroyClient { n }),
        8 => (n.clone(), 0u32..2).prop_map(|(n, slot)| Step::Sequence { n, slot }),
        6 => n.clone().prop_map(|n| Step::Complete { n }),
        1 => n.clone().prop_map(|n| Step::Disconnect { n }),
        2 => n.clone().prop_map(|n| Step::Expire { n }),
        1 => n.clone().prop_map(|n| Step::Evict { n }),
        2 => Just(Step::Reap),
        3 => n.prop_map(|n| Step::ReclaimComplete { n }),
        3 => Just(Step::PollGrace),
        4 => (1u64..80).prop_map(|nanos| Step::Advance { nanos }),
        1 => Just(Step::Restart),
    ]
}

fn config() -> ClientsConfig {
    ClientsConfig {
        lease_nanos: LEASE,
        courtesy_nanos: 3 * LEASE,
        max_courtesy: 2,
        max_strangers: 1,
        is_stranger: |owner| owner < [2].as_slice(),
        max_unconfirmed: 3,
        max_sessions: 3,
        ..ClientsConfig::default()
    }
}

/// What survives a restart.
#[derive(Default)]
struct Store {
    clients: BTreeMap<ClientId, ClientRow>,
    sessions: BTreeMap<SessionId, SessionRow>,
    server: ServerRow,
}

struct World {
    table: Clients,
    now: Time,
    epoch: u32,
    random: u32,
    store: Store,
    sessions: BTreeMap<SessionId, Session>,
    /// Sessions between the two halves of CREATE_SESSION.
    pending: Vec<PendingSession>,
    in_flight: Vec<(SessionId, u32)>,
    /// Clients whose state the table told us to release in this incarnation.
    released: BTreeSet<ClientId>,
    /// Next seqid per session and slot, as the client counts.
    seqids: BTreeMap<(SessionId, u32), u32>,
    /// Every client that ever held a confirmed record: name by ID, never reused.
    known: BTreeMap<ClientId, Bytes>,
}

impl World {
    fn new() -> Self {
        Self {
            table: Clients::new(config(), Time(0), BootEpoch(1)),
            now: Time(0),
            epoch: 1,
            random: 0,
            store: Store::default(),
            sessions: BTreeMap::new(),
            pending: Vec::new(),
            in_flight: Vec::new(),
            released: BTreeSet::new(),
            seqids: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// §8.4.3: at a restart, exactly the clients whose record is as young as the last grace period that
    /// ended may reclaim.
    fn check_rights(&self) -> Result<(), TestCaseError> {
        let ended = self.store.server.grace_ended_in;
        let may = self.store.clients.values().filter(|r| r.reclaimed_in >= ended.max(BootEpoch(1)));
        for row in may {
            let live = self.table.shared(row.id).is_some_and(|s| s.may_reclaim());
            prop_assert!(live || self.table.absent().any(|id| id == row.id), "lost the right");
        }
        Ok(())
    }

    fn pick_client(&self, n: usize) -> Option<ClientId> {
        let ids: Vec<_> = self.table.iter(self.now).map(|c| c.id).collect();
        ids.get(n % ids.len().max(1)).copied()
    }

    fn pick_session(&self, n: usize) -> Option<SessionId> {
        self.sessions.keys().nth(n % self.sessions.len().max(1)).copied()
    }

    fn apply(&mut self, effects: Vec<Effect>) -> Result<(), TestCaseError> {
        let mut memory = false;
        for effect in effects {
            prop_assert!(!(memory && effect.is_durable()), "durable effects come first");
            memory |= !effect.is_durable();
            match effect {
                Effect::PersistClient(row) => {
                    self.store.clients.insert(row.id, *row);
                }
                Effect::ForgetClient(id) => {
                    self.store.clients.remove(&id);
                    prop_assert!(!self.store.sessions.keys().any(|s| s.client() == id), "orphan session row");
                }
                Effect::PersistSession(row) => {
                    prop_assert!(self.store.sessions.insert(row.id, *row).is_none(), "session id reused");
                }
                Effect::ForgetSession(id) => {
                    self.store.sessions.remove(&id);
                }
                Effect::PersistServer(row) => self.store.server = row,
                Effect::DropSession(id) => {
                    let session = self.sessions.remove(&id);
                    prop_assert!(session.is_some(), "dropped {id:?} twice");
                    if let Some(mut s) = session {
                        s.kill();
                        prop_assert!(!self.in_flight.iter().any(|(f, _)| *f == id), "dropped in use");
                    }
                }
                Effect::ReleaseState(id) => {
                    prop_assert!(self.released.insert(id), "released {id:?} twice");
                    prop_assert!(!self.store.clients.contains_key(&id), "released before it was forgotten");
                    prop_assert!(!self.in_flight.iter().any(|(s, _)| s.client() == id));
                }
            }
        }
        Ok(())
    }

    fn exchange_id(&mut self, owner: u8, verifier: u8, uid: u32, update: bool) -> Result<(), TestCaseError> {
        let args = ExchangeId {
            owner: Bytes::from(vec![owner]),
            verifier: Verifier([verifier; 8]),
            caller: Caller { principal: Principal::Sys { uid, machine: Bytes::new() }, sealed: false },
            flags: if update { exchange_flags::UPD_CONFIRMED_REC_A } else { 0 },
            protect: StateProtect::None,
            implementation: None,
            minor_version: 2,
            host: None,
        };
        let Ok((reply, effects)) = self.table.exchange_id(self.now, args, &|_| true) else { return Ok(()) };
        prop_assert!(!self.released.contains(&reply.client), "answered with a dead client");
        self.apply(effects)
    }

    fn create(&mut self, n: usize, off: i8, persist: bool) -> Result<(), TestCaseError> {
        let Some(client) = self.pick_client(n) else { return Ok(()) };
        let Some(info) = self.table.info(self.now, client) else { return Ok(()) };
        let row = self.store.clients.get(&client);
        let next = row.map_or(1, |r| r.create_seqid.wrapping_add(1));
        let args = CreateSession {
            client,
            seqid: next.wrapping_add_signed(i32::from(off)),
            flags: if persist { session_flags::PERSIST } else { 0 },
            fore: ChannelAttrs {
                max_request: 4096,
                max_response: 4096,
                max_response_cached: 1024,
                max_ops: 8,
                max_requests: 2,
            },
            back: ChannelAttrs::default(),
            program: 1,
            security: vec![CbSecurity::None],
            principal: info.principal,
        };
        self.random += 1;
        let connection = ConnectionId(u64::from(self.random));
        match self.table.create_session(self.now, connection, &args, self.random) {
            Ok(CreateStep::Pending(p)) => self.pending.push(*p),
            Ok(CreateStep::Replay(r)) => prop_assert_eq!(r.seqid, args.seqid),
            Ok(CreateStep::MakeWay(effects)) => self.apply(effects)?,
            Err(_) => {}
        }
        Ok(())
    }

    fn finish(&mut self, n: usize, committed: bool) -> Result<(), TestCaseError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut p = self.pending.remove(n % self.pending.len());
        if committed {
            let effects = std::mem::take(&mut p.effects);
            prop_assert!(effects.iter().all(Effect::is_durable));
            self.apply(effects)?;
        }
        let made = self.table.finish_create_session(self.now, p, committed);
        prop_assert_eq!(made.is_ok(), committed);
        if let Ok(made) = made {
            let client = made.reply.session.client();
            let owner = self.table.info(self.now, client).map(|c| c.owner).unwrap_or_default();
            let before = self.known.insert(client, owner.clone());
            prop_assert!(before.is_none_or(|o| o == owner), "client id reused");
            prop_assert!(self.sessions.insert(made.reply.session, made.session).is_none());
            self.apply(made.effects)?;
        }
        Ok(())
    }

    fn sequence(&mut self, n: usize, slot: u32) -> Result<(), TestCaseError> {
        let Some(id) = self.pick_session(n) else { return Ok(()) };
        let seqid = self.seqids.get(&(id, slot)).copied().unwrap_or(0).wrapping_add(1);
        let args = SequenceArgs {
            slot,
            seqid,
            highest_slot: slot,
            cache_this: true,
            fingerprint: u64::from(seqid),
            request_size: 100,
            operations: 1,
        };
        let Some(s) = self.sessions.get_mut(&id) else { return Ok(()) };
        let got = s.sequence(self.now, ConnectionId(7), &args);
        match got {
            Ok(Sequenced::New(_)) => {
                prop_assert!(!self.released.contains(&id.client()), "a released client is served");
                self.seqids.insert((id, slot), seqid);
                self.in_flight.push((id, slot));
                prop_assert!(matches!(self.table.expire(self.now, id.client()), Expire::Active));
            }
            Err(Error::BadSession) => {}
            // The slot is in use and the client's model sent the next one too early.
            Err(Error::SeqMisordered) => prop_assert!(self.in_flight.contains(&(id, slot))),
            other => prop_assert!(false, "{other:?}"),
        }
        Ok(())
    }

    fn complete(&mut self, n: usize) {
        if self.in_flight.is_empty() {
            return;
        }
        let (id, slot) = self.in_flight.remove(n % self.in_flight.len());
        if let Some(s) = self.sessions.get_mut(&id) {
            s.complete(self.now, slot, Completion::default());
        }
    }

    fn destroy_session(&mut self, n: usize) -> Result<(), TestCaseError> {
        let Some(id) = self.pick_session(n) else { return Ok(()) };
        let Some(s) = self.sessions.get_mut(&id) else { return Ok(()) };
        let busy = self.in_flight.iter().any(|(f, _)| *f == id);
        if !s.is_bound(ConnectionId(7)) || s.destroy(ConnectionId(7), None).is_err() {
            return Ok(());
        }
        prop_assert!(!busy, "destroyed in use");
        let effects = self.table.destroy_session(id);
        self.apply(effects.unwrap_or_default())
    }

    fn restart(&mut self) {
        self.epoch += 1;
        let mut clients = Vec::new();
        for (id, row) in &self.store.clients {
            let of_client = self.store.sessions.values().filter(|s| s.id.client() == *id);
            let restore = |row: &SessionRow| {
                let last = self.seqids.get(&(row.id, 0)).copied();
                // A row now and then, as if only some requests had modified anything.
                let slots = last.filter(|s| s % 2 == 0).map(|s| (0, Slot::restore(s, u64::from(s))));
                RestoredSession { row: row.clone(), slots: slots.into_iter().collect() }
            };
            clients.push(RestoredClient { row: row.clone(), sessions: of_client.map(restore).collect() });
        }
        let epoch = BootEpoch(self.epoch);
        let (table, sessions) = Clients::restore(config(), self.now, epoch, self.store.server, clients);
        self.table = table;
        self.sessions = sessions.into_iter().map(|s| (s.id(), s)).collect();
        self.pending.clear();
        self.in_flight.clear();
        self.released.clear();
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::ExchangeId { owner, verifier, uid, update } => {
                self.exchange_id(owner, verifier, uid, update)?;
            }
            Step::Create { n, off, persist } => self.create(n, off, persist)?,
            Step::Finish { n, committed } => self.finish(n, committed)?,
            Step::DestroySession { n } => self.destroy_session(n)?,
            Step::DestroyClient { n } => {
                if let Some(id) = self.pick_client(n)
                    && let Ok(effects) = self.table.destroy_clientid(id, false)
                {
                    self.apply(effects)?;
                }
            }
            Step::Sequence { n, slot } => self.sequence(n, slot)?,
            Step::Complete { n } => self.complete(n),
            Step::Disconnect { n } => {
                if let Some(s) = self.pick_session(n).and_then(|id| self.sessions.get_mut(&id)) {
                    s.unbind(ConnectionId(7));
                }
            }
            Step::Expire { n } => {
                if let Some(id) = self.pick_client(n)
                    && let Expire::Gone(effects) = self.table.expire(self.now, id)
                {
                    self.apply(effects)?;
                }
            }
            Step::Evict { n } => {
                if let Some(id) = self.pick_client(n)
                    && let Ok(effects) = self.table.evict(id)
                {
                    self.apply(effects)?;
                }
            }
            Step::Reap => {
                let effects = self.table.reap(self.now, &|_| true);
                self.apply(effects)?;
            }
            Step::ReclaimComplete { n } => {
                if let Some(id) = self.pick_client(n).filter(|id| self.store.clients.contains_key(id))
                    && let Ok(effects) = self.table.reclaim_complete(id, false)
                    // Without any it is not believed: a second restart may have cut the reclaim short.
                    && !effects.is_empty()
                {
                    self.apply(effects)?;
                    self.table.finish_reclaim_complete(id);
                }
            }
            Step::PollGrace => {
                if let Some(effect) = self.table.grace().poll(self.now) {
                    self.apply(vec![effect])?;
                    self.table.grace().ended();
                }
            }
            Step::Advance { nanos } => self.now = self.now.plus_nanos(nanos),
            Step::Restart => {
                self.restart();
                self.check_rights()?;
            }
        }
        self.check()
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let broken = self.table.check_invariants();
        prop_assert_eq!(broken, Ok(()));
        let confirmed: BTreeMap<_, _> =
            self.table.iter(self.now).filter(|c| c.confirmed).map(|c| (c.id, c)).collect();
        let owners: BTreeSet<_> = confirmed.values().map(|c| c.owner.clone()).collect();
        prop_assert_eq!(owners.len(), confirmed.len(), "two confirmed records of one owner");
        for (id, s) in &self.sessions {
            let Some(c) = confirmed.get(&id.client()) else {
                return Err(TestCaseError::fail(format!("{id:?} has no confirmed client")));
            };
            prop_assert!(c.sessions.contains(id), "the table does not know {:?}", id);
            let busy = self.in_flight.iter().filter(|(f, _)| f == id).count();
            prop_assert_eq!(s.slots().busy() as usize, busy);
        }
        let listed: usize = confirmed.values().map(|c| c.sessions.len()).sum();
        prop_assert_eq!(listed, self.sessions.len());
        for (id, c) in &confirmed {
            let running = self.in_flight.iter().filter(|(s, _)| s.client() == *id).count();
            prop_assert_eq!(c.shared.in_flight() as usize, running);
        }
        // Between the two halves of a CREATE_SESSION the rows are nobody's to judge.
        if self.pending.is_empty() {
            let rows: BTreeSet<_> = self.store.clients.keys().copied().collect();
            let mut records: BTreeSet<_> = confirmed.keys().copied().collect();
            records.extend(self.table.absent());
            prop_assert_eq!(rows, records, "rows and records differ");
            for (id, c) in &confirmed {
                let row = self.store.clients.get(id).map(|r| r.reclaimed_in);
                let epoch = BootEpoch(self.epoch);
                prop_assert!(!c.shared.reclaim_complete() || row == Some(epoch), "not durable");
                prop_assert!(!c.shared.may_reclaim() || row > Some(BootEpoch(0)), "a right from nowhere");
            }
            for id in self.store.sessions.keys() {
                prop_assert!(self.sessions.contains_key(id), "a row without a session: {:?}", id);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_histories(steps in proptest::collection::vec(step(), 1..150)) {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
    }
}
