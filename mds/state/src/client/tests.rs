use super::*;
use crate::grace::Claim;
use crate::ids::ConnectionId;
use crate::lease::seq4_status;
use crate::recovery::ServerRow;
use crate::session::{BindDirection, CbSecurity, ChannelAttrs, Completion, SequenceArgs, Sequenced, Session};
use crate::slot::Slot;

const LEASE: u64 = 1_000;
const CONN: ConnectionId = ConnectionId(1);
const UPDATE: u32 = exchange_flags::UPD_CONFIRMED_REC_A;
const STATELESS: &dyn Fn(ClientId) -> bool = &|_| false;
const STATEFUL: &dyn Fn(ClientId) -> bool = &|_| true;

fn config() -> ClientsConfig {
    ClientsConfig { lease_nanos: LEASE, courtesy_nanos: 100 * LEASE, ..ClientsConfig::default() }
}

fn principal(uid: u32) -> Principal {
    Principal::Sys { uid, machine: Bytes::from_static(b"host") }
}

fn gss(name: &'static [u8]) -> Principal {
    Principal::Gss(Bytes::from_static(name))
}

fn eid(owner: &'static str, verifier: u8, uid: u32) -> ExchangeId {
    ExchangeId {
        owner: Bytes::from_static(owner.as_bytes()),
        verifier: Verifier([verifier; 8]),
        caller: caller(principal(uid), false),
        flags: 0,
        protect: StateProtect::None,
        implementation: None,
        minor_version: 2,
        host: None,
    }
}

fn caller(principal: Principal, sealed: bool) -> Caller {
    Caller { principal, sealed }
}

fn update(args: ExchangeId) -> ExchangeId {
    ExchangeId { flags: UPDATE, ..args }
}

fn cs(client: ClientId, seqid: u32) -> CreateSession {
    let attrs = ChannelAttrs {
        max_request: 8192,
        max_response: 8192,
        max_response_cached: 8192,
        max_ops: 128,
        max_requests: 8,
    };
    CreateSession {
        client,
        seqid,
        flags: session_flags::PERSIST | session_flags::CONN_BACK_CHAN,
        fore: attrs,
        back: attrs,
        program: 123,
        security: vec![CbSecurity::None],
        principal: principal(0),
    }
}

/// A table, and the sessions as the caller would hold them.
struct World {
    t: Clients,
    now: Time,
}

impl World {
    fn new() -> Self {
        Self::with(config())
    }

    fn with(config: ClientsConfig) -> Self {
        let mut t = Clients::new(config, Time(0), BootEpoch(1));
        assert!(t.grace().poll(Time(0)).is_some(), "nobody to wait for");
        t.grace().ended();
        Self { t, now: Time(10) }
    }

    fn eid(&mut self, args: ExchangeId) -> Result<ExchangeIdReply, Error> {
        self.eid_with(args, STATELESS).map(|(r, _)| r)
    }

    fn eid_with(
        &mut self,
        args: ExchangeId,
        state: &dyn Fn(ClientId) -> bool,
    ) -> Result<(ExchangeIdReply, Vec<Effect>), Error> {
        let r = self.t.exchange_id(self.now, args, state);
        self.t.check_invariants().unwrap();
        r
    }

    fn start(&mut self, args: &CreateSession) -> Result<CreateStep, Error> {
        let r = self.t.create_session(self.now, CONN, args, 0xabcd);
        self.t.check_invariants().unwrap();
        r
    }

    fn pending(&mut self, args: &CreateSession) -> PendingSession {
        match self.start(args) {
            Ok(CreateStep::Pending(p)) => *p,
            other => panic!("{other:?}"),
        }
    }

    fn create(&mut self, args: &CreateSession) -> Created {
        let p = self.pending(args);
        let r = self.t.finish_create_session(self.now, p, true).unwrap();
        self.t.check_invariants().unwrap();
        r
    }

    fn create_error(&mut self, args: &CreateSession) -> Error {
        self.start(args).unwrap_err()
    }

    /// A confirmed client with one session.
    fn client(&mut self, args: ExchangeId) -> (ClientId, Session) {
        let p = args.caller.principal.clone();
        let r = self.eid(args).unwrap();
        let made = self.create(&CreateSession { principal: p, ..cs(r.client, r.seqid) });
        (r.client, made.session)
    }
}

fn sequence(s: &mut Session, now: Time, seqid: u32) -> Result<Sequenced, Error> {
    let args = SequenceArgs {
        slot: 0,
        seqid,
        highest_slot: 0,
        cache_this: false,
        fingerprint: 0,
        request_size: 200,
        operations: 1,
    };
    s.sequence(now, CONN, &args)
}

fn touch(s: &mut Session, now: Time, seqid: u32) {
    assert!(matches!(sequence(s, now, seqid), Ok(Sequenced::New(_))));
    s.complete(now, 0, Completion::default());
}

fn durable(effects: &[Effect]) -> Vec<Effect> {
    effects.iter().filter(|e| e.is_durable()).cloned().collect()
}

mod create_session;
mod exchange_id;
mod restart;

mod destroy {
    use super::*;

    #[test]
    fn session() {
        let mut w = World::new();
        let (_, s) = w.client(eid("o", 1, 0));
        let id = s.id();
        let effects = w.t.destroy_session(id).unwrap();
        assert_eq!(effects, vec![Effect::ForgetSession(id), Effect::DropSession(id)]);
        assert_eq!(w.t.destroy_session(id), Err(Error::BadSession));
        assert_eq!(w.t.find_session(id), None);
    }

    /// pynfs DESCID1-8.
    #[test]
    fn clientid() {
        let mut w = World::new();
        let (id, s) = w.client(eid("o", 1, 0));
        assert_eq!(w.t.destroy_clientid(id, false), Err(Error::ClientidBusy), "DESCID2");
        w.t.destroy_session(s.id()).unwrap();
        assert_eq!(w.t.destroy_clientid(id, true), Err(Error::ClientidBusy));
        let effects = w.t.destroy_clientid(id, false).unwrap();
        assert_eq!(effects, vec![Effect::ForgetClient(id), Effect::ReleaseState(id)]);
        assert_eq!(w.t.destroy_clientid(id, false), Err(Error::StaleClientid), "DESCID8");
        let r = w.eid(eid("p", 1, 0)).unwrap();
        assert_eq!(w.t.destroy_clientid(r.client, false), Ok(vec![]), "DESCID1: unconfirmed");
        assert!(w.t.is_empty());
        w.t.check_invariants().unwrap();
    }
}

mod expiry {
    use super::*;

    #[test]
    fn courtesy_ends_with_a_conflict_only() {
        let mut w = World::new();
        let (id, mut s) = w.client(eid("o", 1, 0));
        assert_eq!(w.t.expire(w.now, id), Expire::Active);
        w.now = Time(50 * LEASE);
        assert!(w.t.reap(w.now, STATEFUL).is_empty());
        assert_eq!(w.t.info(w.now, id).unwrap().lease, LeaseState::Courtesy);
        touch(&mut s, w.now, 1);
        assert_eq!(w.t.expire(w.now, id), Expire::Active, "revived by SEQUENCE");
        w.now = Time(52 * LEASE);
        let Expire::Gone(effects) = w.t.expire(w.now, id) else { panic!("not gone") };
        assert_eq!(durable(&effects), vec![Effect::ForgetSession(s.id()), Effect::ForgetClient(id)]);
        assert_eq!(effects[2..], [Effect::DropSession(s.id()), Effect::ReleaseState(id)]);
        assert_eq!(sequence(&mut s, w.now, 2), Err(Error::BadSession));
        assert_eq!(w.t.expire(w.now, id), Expire::Gone(vec![]));
    }

    #[test]
    fn reap_by_age_by_cap_and_without_state() {
        let mut w = World::with(ClientsConfig { max_courtesy: 1, ..config() });
        let (a, _a) = w.client(eid("a", 1, 0));
        w.now = Time(20);
        let (b, _b) = w.client(eid("b", 1, 0));
        w.now = Time(21 + LEASE);
        let effects = w.t.reap(w.now, STATEFUL);
        assert!(effects.contains(&Effect::ReleaseState(a)), "the longest silent of two");
        assert_eq!(w.t.next_deadline(w.now), Time(21 + 2 * LEASE), "it may be without state");
        w.now = Time(21 + 2 * LEASE);
        assert!(w.t.reap(w.now, STATEFUL).is_empty());
        assert_eq!(w.t.next_deadline(w.now), Time(21 + 101 * LEASE));
        w.now = Time(21 + 101 * LEASE);
        assert!(w.t.reap(w.now, STATEFUL).contains(&Effect::ReleaseState(b)));
        w.client(eid("c", 1, 0));
        w.now = Time(22 + 102 * LEASE);
        assert!(w.t.reap(w.now, STATELESS).is_empty(), "its session");
        assert_eq!(w.t.next_deadline(w.now), Time(22 + 103 * LEASE));
        w.now = Time(22 + 103 * LEASE);
        assert!(!w.t.reap(w.now, STATELESS).is_empty(), "nothing to keep it for");
        assert!(w.t.is_empty());
        assert_eq!(w.t.next_deadline(w.now), Time::NEVER);
    }

    #[test]
    fn those_without_state_make_room_first() {
        let mut w = World::with(ClientsConfig { max_courtesy: 1, ..config() });
        let (a, _a) = w.client(eid("a", 1, 0));
        w.now = Time(20);
        let (b, _b) = w.client(eid("b", 1, 0));
        w.now = Time(21 + LEASE);
        let effects = w.t.reap(w.now, &|id| id == a);
        assert!(effects.contains(&Effect::ReleaseState(b)) && !effects.contains(&Effect::ReleaseState(a)));
    }

    /// The rows of a round go in one transaction, which may not have more than 10 MB.
    #[test]
    fn many_that_are_gone_together_end_a_few_at_a_time() {
        const CLIENTS: usize = 1000;
        let mut w = World::with(ClientsConfig { max_clients: 2 * CLIENTS, ..config() });
        for n in 0..CLIENTS {
            w.client(eid(format!("o{n}").leak(), 1, 0));
        }
        w.now = Time(200 * LEASE);
        let mut gone = 0;
        while !w.t.is_empty() {
            let effects = w.t.reap(w.now, STATEFUL);
            let ended = effects.iter().filter(|effect| matches!(effect, Effect::ForgetClient(_))).count();
            assert!((1..=500).contains(&ended), "{ended} at once");
            assert!(w.t.is_empty() || w.t.next_deadline(w.now) <= w.now, "the others need not wait");
            gone += ended;
        }
        assert_eq!(gone, CLIENTS);
    }

    #[test]
    fn evicted_clients_drain() {
        let mut w = World::new();
        let (id, mut s) = w.client(eid("o", 1, 0));
        assert!(sequence(&mut s, w.now, 1).is_ok());
        assert_eq!(w.t.evict(id), Err(Error::Delay));
        assert_eq!(w.t.expire(w.now, id), Expire::Draining);
        assert!(w.t.reap(w.now, STATEFUL).is_empty());
        s.complete(w.now, 0, Completion::default());
        assert_eq!(sequence(&mut s, w.now, 2), Err(Error::BadSession));
        assert_eq!(w.create_error(&cs(id, 2)), Error::StaleClientid);
        assert_ne!(w.eid(eid("o", 1, 0)).unwrap().client, id, "it starts over");
        assert!(w.t.reap(w.now, STATEFUL).contains(&Effect::ReleaseState(id)));
        w.t.check_invariants().unwrap();
    }
}

mod reclaim_complete {
    use super::*;

    /// The row of a CREATE_SESSION must not take back what a RECLAIM_COMPLETE wrote a moment before.
    #[test]
    fn a_session_created_meanwhile_keeps_the_mark() {
        let mut w = World::new();
        let (id, _s) = w.client(eid("o", 1, 0));
        w.t.reclaim_complete(id, false).unwrap();
        let p = w.pending(&cs(id, 2));
        assert!(matches!(&p.effects[0], Effect::PersistClient(r) if r.reclaimed_in == BootEpoch(1)));
    }

    /// pynfs RECC1-4.
    #[test]
    fn recc() {
        let mut w = World::new();
        let (id, s) = w.client(eid("o", 1, 0));
        let gate = w.t.grace().gate();
        assert_eq!(gate.admit(s.client(), Claim::New), Err(Error::Grace), "RECC3");
        assert_eq!(w.t.reclaim_complete(id, true), Ok(vec![]));
        assert_eq!(gate.admit(s.client(), Claim::New), Err(Error::Grace), "one file system is not all");
        assert_eq!(w.t.reclaim_complete(id, false).unwrap().len(), 1);
        assert_eq!(w.t.reclaim_complete(id, false).unwrap().len(), 1, "not durable yet: again");
        w.t.finish_reclaim_complete(id);
        assert_eq!(gate.admit(s.client(), Claim::New), Ok(()), "RECC1");
        assert_eq!(gate.admit(s.client(), Claim::Reclaim), Err(Error::NoGrace), "RECC2");
        assert_eq!(w.t.reclaim_complete(id, false), Err(Error::CompleteAlready), "RECC4");
        assert_eq!(w.t.reclaim_complete(ClientId(9), false), Err(Error::StaleClientid));
    }
}
