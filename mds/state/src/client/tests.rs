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

fn eid(owner: &'static str, verifier: u8, uid: u32) -> ExchangeId {
    ExchangeId {
        owner: Bytes::from_static(owner.as_bytes()),
        verifier: Verifier([verifier; 8]),
        principal: principal(uid),
        flags: 0,
        protect: StateProtect::None,
        implementation: None,
        minor_version: 2,
    }
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
        let p = args.principal.clone();
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

mod exchange_id {
    use super::*;

    /// The whole table of §18.35.5: (record, update, same verifier, same principal) to answer.
    #[test]
    fn decision_table() {
        #[derive(Clone, Copy, Debug, PartialEq)]
        enum Record {
            None,
            Unconfirmed,
            Idle,
            Session,
        }
        #[derive(Debug, PartialEq)]
        enum Answer {
            New,
            Same,
            Fail(Error),
        }
        use Answer::{Fail, New, Same};
        use Record::{Idle, None, Session, Unconfirmed};
        let table = [
            (None, false, true, true, New),                         // case 1
            (None, true, true, true, Fail(Error::Noent)),           // case 7, EID6
            (Unconfirmed, false, false, false, New),                // case 4, EID5a
            (Unconfirmed, false, false, true, New),                 // EID5b
            (Unconfirmed, false, true, false, New),                 // EID5c
            (Unconfirmed, false, true, true, New),                  // EID5d
            (Unconfirmed, true, false, false, Fail(Error::Noent)),  // case 7, EID6a
            (Unconfirmed, true, false, true, Fail(Error::Noent)),   // EID6b
            (Unconfirmed, true, true, false, Fail(Error::Noent)),   // EID6c
            (Unconfirmed, true, true, true, Fail(Error::Noent)),    // EID6d
            (Idle, false, false, false, New),                       // case 3, EID5e
            (Idle, false, true, false, New),                        // case 3, EID5g
            (Session, false, false, false, Fail(Error::ClidInuse)), // case 3
            (Session, false, true, false, Fail(Error::ClidInuse)),  // case 3
            (Session, false, false, true, New),                     // case 5, EID5f
            (Session, false, true, true, Same),                     // case 2, EID5h
            (Session, true, false, false, Fail(Error::Perm)),       // case 9, EID6e
            (Session, true, false, true, Fail(Error::NotSame)),     // case 8, EID6f
            (Session, true, true, false, Fail(Error::Perm)),        // case 9, EID6g
            (Session, true, true, true, Same),                      // case 6, EID6h
        ];
        for (record, upd, verifier, uid, answer) in table {
            let mut w = World::new();
            let mut old = ClientId(0);
            if record != None {
                old = w.eid(eid("o", 1, 1)).unwrap().client;
            }
            if matches!(record, Idle | Session) {
                let made = w.create(&CreateSession { principal: principal(1), ..cs(old, 1) });
                if record == Idle {
                    w.t.destroy_session(made.session.id()).unwrap();
                }
            }
            let args = eid("o", if verifier { 1 } else { 2 }, if uid { 1 } else { 2 });
            let got = match w.eid(if upd { update(args) } else { args }) {
                Err(e) => Fail(e),
                Ok(r) if r.client == old => {
                    assert_eq!(r.flags & exchange_flags::CONFIRMED_R, exchange_flags::CONFIRMED_R);
                    assert_eq!(r.seqid, 2, "the next CREATE_SESSION of a confirmed client");
                    Same
                }
                Ok(r) => {
                    assert_eq!((r.flags, r.seqid), (exchange_flags::USE_PNFS_MDS, 1));
                    New
                }
            };
            assert_eq!(got, answer, "{record:?} update={upd} verifier={verifier} principal={uid}");
        }
    }

    /// pynfs EID4, EID7; an owner beyond the protocol's limit.
    #[test]
    fn bad_arguments() {
        let mut w = World::new();
        for flags in [4, exchange_flags::CONFIRMED_R, 0x80_0000] {
            assert_eq!(w.eid(ExchangeId { flags, ..eid("o", 1, 1) }), Err(Error::Inval));
        }
        let owner = Bytes::from(vec![1; MAX_OWNER + 1]);
        assert_eq!(w.eid(ExchangeId { owner, ..eid("o", 1, 1) }), Err(Error::Inval));
        let ssv = ExchangeId { protect: StateProtect::Ssv, ..eid("o", 1, 1) };
        assert_eq!(w.eid(ssv), Err(Error::EncrAlgUnsupp));
        let mach = ExchangeId { protect: StateProtect::MachCred, ..eid("o", 1, 1) };
        assert_eq!(w.eid(mach), Err(Error::Inval));
        assert!(w.t.is_empty());
    }

    /// pynfs EID5e, EID5g: the record of the other principal is gone, with its rows.
    #[test]
    fn case_3_without_state_ends_the_old_client() {
        let mut w = World::new();
        let (old, s) = w.client(eid("o", 1, 1));
        w.t.destroy_session(s.id()).unwrap();
        assert_eq!(w.eid_with(eid("o", 1, 2), STATEFUL), Err(Error::ClidInuse));
        let (r, effects) = w.eid_with(eid("o", 1, 2), STATELESS).unwrap();
        assert_ne!(r.client, old);
        assert_eq!(effects, vec![Effect::ForgetClient(old), Effect::ReleaseState(old)]);
        assert_eq!(w.create_error(&cs(old, 2)), Error::StaleClientid);
    }

    #[test]
    fn case_3_with_an_expired_lease_ends_the_old_client() {
        let mut w = World::new();
        let (old, mut s) = w.client(eid("o", 1, 1));
        w.now = Time(10 + LEASE);
        assert_eq!(w.eid_with(eid("o", 1, 2), STATEFUL), Err(Error::ClidInuse));
        w.now = Time(11 + LEASE);
        let (r, effects) = w.eid_with(eid("o", 1, 2), STATEFUL).unwrap();
        assert_ne!(r.client, old);
        assert!(effects.contains(&Effect::DropSession(s.id())));
        assert_eq!(sequence(&mut s, w.now, 1), Err(Error::BadSession));
    }

    /// pynfs EID5f: the old incarnation works until the new one is confirmed, durably.
    #[test]
    fn case_5_discards_at_confirmation() {
        let mut w = World::new();
        let (old, mut s) = w.client(eid("o", 1, 0));
        let r = w.eid(eid("o", 2, 0)).unwrap();
        assert_ne!(r.client, old);
        touch(&mut s, w.now, 1);
        let p = w.pending(&cs(r.client, r.seqid));
        assert_eq!(p.effects[..2], [Effect::ForgetSession(s.id()), Effect::ForgetClient(old)]);
        assert!(matches!(p.effects[2], Effect::PersistClient(_)));
        assert!(matches!(p.effects[3], Effect::PersistSession(_)));
        assert_eq!(sequence(&mut s, w.now, 2), Err(Error::BadSession));
        let made = w.t.finish_create_session(w.now, p, true).unwrap();
        assert_eq!(made.effects, vec![Effect::DropSession(s.id()), Effect::ReleaseState(old)]);
        assert!(w.t.info(w.now, old).is_none());
        assert_eq!(w.t.find_owner(w.now, b"o").unwrap().id, r.client);
    }

    /// A request of the old incarnation is being served: it must not outlive its state.
    #[test]
    fn case_5_waits_for_requests_in_progress() {
        let mut w = World::new();
        let (_, mut s) = w.client(eid("o", 1, 0));
        let r = w.eid(eid("o", 2, 0)).unwrap();
        assert!(sequence(&mut s, w.now, 1).is_ok());
        assert_eq!(w.create_error(&cs(r.client, 1)), Error::Delay);
        s.complete(w.now, 0, Completion::default());
        w.create(&cs(r.client, 1));
    }

    /// The old incarnation speaks again before the new one is confirmed.
    #[test]
    fn case_2_beside_an_unconfirmed_record() {
        let mut w = World::new();
        let (old, _s) = w.client(eid("o", 1, 0));
        let new = w.eid(eid("o", 2, 0)).unwrap();
        assert_eq!(w.eid(eid("o", 1, 0)).unwrap().client, old);
        w.create(&cs(new.client, 1));
        assert!(w.t.info(w.now, old).is_none());
    }

    #[test]
    fn update_stores_the_implementation() {
        let mut w = World::new();
        let (id, _s) = w.client(eid("o", 1, 0));
        assert!(!w.t.info(w.now, id).unwrap().supports_stripes(), "unknown means old");
        let implementation = Some(ImplementationId::new(b"kernel.org", b"Linux 7.2.0 #1 SMP", (0, 0)));
        let args = ExchangeId { implementation, ..update(eid("o", 1, 0)) };
        let (_, effects) = w.eid_with(args.clone(), STATELESS).unwrap();
        assert!(
            matches!(&effects[..], [Effect::PersistClient(r)] if r.implementation == args.implementation)
        );
        assert!(w.t.info(w.now, id).unwrap().supports_stripes());
        assert!(w.eid_with(args, STATELESS).unwrap().1.is_empty(), "nothing new, nothing written");
    }

    #[test]
    fn unconfirmed_records_are_bounded() {
        let mut w = World::with(ClientsConfig { max_unconfirmed: 3, ..config() });
        let first = w.eid(eid("a", 1, 0)).unwrap().client;
        let p = w.pending(&cs(first, 1));
        for (i, owner) in ["b", "c", "d", "e"].into_iter().enumerate() {
            w.now = Time(20 + i as u64);
            w.eid(eid(owner, 1, 0)).unwrap();
        }
        assert_eq!(w.t.len(), 3);
        w.t.finish_create_session(w.now, p, true).expect("one that is being confirmed stays");
    }

    /// pynfs EID9.
    #[test]
    fn an_unconfirmed_record_lives_one_lease() {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        assert_eq!(w.t.next_deadline(w.now), Time(11 + LEASE));
        w.now = Time(11 + LEASE);
        assert_eq!(w.create_error(&cs(r.client, 1)), Error::StaleClientid);
        w.eid(eid("p", 1, 0)).unwrap();
        w.now = Time(12 + 2 * LEASE);
        assert!(w.t.reap(w.now, STATELESS).is_empty());
        assert!(w.t.is_empty());
    }
}

mod create_session {
    use super::*;

    /// pynfs CSESS1, CSESS24.
    #[test]
    fn csess1() {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        let made = w.create(&cs(r.client, r.seqid));
        assert_eq!(made.reply.seqid, r.seqid);
        assert_eq!(made.reply.flags, session_flags::PERSIST | session_flags::CONN_BACK_CHAN);
        assert_eq!(made.reply.session, made.session.id());
        assert_eq!(w.t.find_session(made.reply.session), Some(r.client));
        assert_eq!(made.effects, vec![]);
        assert!(made.session.is_bound(CONN));
    }

    #[test]
    fn csess2_a_second_session() {
        let mut w = World::new();
        let (id, a) = w.client(eid("o", 1, 0));
        let b = w.create(&cs(id, 2));
        assert_ne!(a.id(), b.session.id());
        assert_eq!(w.t.info(w.now, id).unwrap().sessions.len(), 2);
    }

    #[test]
    fn csess3_no_record() {
        assert_eq!(World::new().create_error(&cs(ClientId(99), 1)), Error::StaleClientid);
    }

    /// The contrived replay, and seqids on either side.
    #[test]
    fn csess4_7_8_misordered() {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        for seqid in [0, 2, u32::MAX] {
            assert_eq!(w.create_error(&cs(r.client, seqid)), Error::SeqMisordered);
        }
        w.create(&cs(r.client, 1));
        for seqid in [0, 3] {
            assert_eq!(w.create_error(&cs(r.client, seqid)), Error::SeqMisordered);
        }
    }

    /// CSESS5; CSESS10 replays with another principal.
    #[test]
    fn csess5_10_replay() {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        let made = w.create(&cs(r.client, 1));
        let again = CreateSession { principal: principal(5), ..cs(r.client, 1) };
        assert!(matches!(w.start(&again), Ok(CreateStep::Replay(r)) if r == made.reply));
    }

    #[test]
    fn csess6_replay_of_an_error() {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        let bad = CreateSession { flags: 0xf, ..cs(r.client, 1) };
        assert_eq!(w.create_error(&bad), Error::Inval, "CSESS15");
        assert_eq!(w.create_error(&cs(r.client, 1)), Error::Inval, "cached");
        w.create(&cs(r.client, 2));
    }

    /// A stranger gets the same answer every time and does not spend the owner's sequence number.
    #[test]
    fn csess9_principal_collision() {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        let bad = CreateSession { principal: principal(5), ..cs(r.client, 1) };
        assert_eq!(w.create_error(&bad), Error::ClidInuse);
        assert_eq!(w.create_error(&bad), Error::ClidInuse);
        w.create(&cs(r.client, 1));
    }

    #[test]
    fn csess25_too_small() {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        let mut args = cs(r.client, 1);
        args.fore.max_response = 0;
        assert_eq!(w.create_error(&args), Error::Toosmall);
    }

    /// A second CREATE_SESSION while the first is being made durable, and an EXCHANGE_ID.
    #[test]
    fn nothing_moves_while_the_rows_are_written() {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        let p = w.pending(&cs(r.client, 1));
        assert_eq!(w.create_error(&cs(r.client, 1)), Error::Delay);
        assert_eq!(w.eid(eid("o", 1, 0)), Err(Error::Delay));
        assert_eq!(w.t.destroy_clientid(r.client, false), Err(Error::Delay));
        assert_eq!(w.t.reclaim_complete(r.client, false), Err(Error::Delay));
        assert_eq!(w.t.evict(r.client), Err(Error::Delay));
        w.now = Time(10 * LEASE);
        assert!(w.t.reap(w.now, STATELESS).is_empty());
        assert!(!w.t.info(w.now, r.client).unwrap().confirmed);
        assert_eq!(w.t.finish_create_session(w.now, p, false).unwrap_err(), Error::Delay);
    }

    #[test]
    fn an_aborted_commit_leaves_the_sequence_number() {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        let p = w.pending(&cs(r.client, 1));
        assert!(w.t.finish_create_session(w.now, p, false).is_err());
        assert_eq!(w.eid(eid("o", 1, 0)).unwrap().seqid, 1);
        let r = w.t.by_owner.get(&b"o"[..]).unwrap().unconfirmed.unwrap();
        w.create(&cs(r, 1));
    }

    #[test]
    fn without_callback_security_there_is_no_back_channel() {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        let args = CreateSession { security: vec![CbSecurity::Gss], ..cs(r.client, 1) };
        let made = w.create(&args);
        assert_eq!(made.reply.flags, session_flags::PERSIST);
        assert_eq!(made.session.back_connection(), None);
        assert_eq!(made.session.status_flags(), 0);
    }

    #[test]
    fn sessions_are_bounded_and_abandoned_ones_make_room() {
        let mut w = World::with(ClientsConfig { max_sessions: 2, ..config() });
        let (id, mut a) = w.client(eid("o", 1, 0));
        let _b = w.create(&cs(id, 2));
        assert_eq!(w.create_error(&cs(id, 3)), Error::Nospc);
        a.unbind(CONN);
        let mut small = cs(id, 4);
        small.fore.max_request = 0;
        assert_eq!(w.create_error(&small), Error::Toosmall);
        touch(&mut a, w.now, 1);
        a.unbind(CONN);
        let p = w.pending(&cs(id, 5));
        assert_eq!(p.effects[0], Effect::ForgetSession(a.id()));
        let made = w.t.finish_create_session(w.now, p, true).unwrap();
        assert_eq!(made.effects, vec![Effect::DropSession(a.id())]);
        w.t.check_invariants().unwrap();
    }

    /// pynfs CSESS29: sessions come and go without a trace.
    #[test]
    fn csess29_no_leak() {
        let mut w = World::new();
        let (id, s) = w.client(eid("o", 1, 0));
        w.t.destroy_session(s.id()).unwrap();
        for i in 2..500 {
            let made = w.create(&cs(id, i));
            w.t.destroy_session(made.session.id()).unwrap();
        }
        assert!(w.t.info(w.now, id).unwrap().sessions.is_empty());
    }

    #[test]
    fn the_cache_of_one_client_is_bounded() {
        let mut w = World::new();
        let (id, _s) = w.client(eid("o", 1, 0));
        let mut granted = 0;
        for i in 2..60 {
            let mut args = cs(id, i);
            args.fore.max_requests = 100;
            match w.start(&args) {
                Ok(CreateStep::Pending(p)) => {
                    w.t.finish_create_session(w.now, *p, true).unwrap();
                    granted += 1;
                }
                other => assert_eq!(other.unwrap_err(), Error::Nospc),
            }
            w.t.check_invariants().unwrap();
        }
        assert_eq!(granted, 11, "8 MiB over 100 slots of 8 KiB, the last with fewer slots");
    }

    #[test]
    fn clients_are_bounded() {
        let mut w = World::with(ClientsConfig { max_clients: 1, ..config() });
        w.client(eid("a", 1, 0));
        let r = w.eid(eid("b", 1, 0)).unwrap();
        assert_eq!(w.create_error(&cs(r.client, 1)), Error::Nospc);
    }
}

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
        assert_eq!(w.t.next_deadline(w.now), Time(21 + 101 * LEASE));
        w.now = Time(21 + 101 * LEASE);
        assert!(w.t.reap(w.now, STATEFUL).contains(&Effect::ReleaseState(b)));
        w.client(eid("c", 1, 0));
        w.now = Time(22 + 102 * LEASE);
        assert!(!w.t.reap(w.now, STATELESS).is_empty(), "nothing to keep it for");
        assert!(w.t.is_empty());
        assert_eq!(w.t.next_deadline(w.now), Time::NEVER);
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

mod restart {
    use super::*;

    fn restored(row: &ClientRow, sessions: Vec<RestoredSession>) -> Vec<RestoredClient> {
        vec![RestoredClient { row: row.clone(), sessions }]
    }

    /// A client with a session and a completed reclaim; its rows as storage would hold them.
    fn rows() -> (ClientRow, SessionRow) {
        let mut w = World::new();
        let r = w.eid(eid("o", 1, 0)).unwrap();
        let p = w.pending(&cs(r.client, 1));
        let Effect::PersistSession(session) = p.effects[1].clone() else { panic!("no session row") };
        w.t.finish_create_session(w.now, p, true).unwrap();
        let effects = w.t.reclaim_complete(r.client, false).unwrap();
        let [Effect::PersistClient(row)] = &effects[..] else { panic!("{effects:?}") };
        (row.clone(), *session)
    }

    fn with_session(row: &ClientRow) -> Vec<RestoredClient> {
        let session = SessionRow { id: SessionId::new(row.id, 0, 0xabcd), ..rows().1 };
        restored(row, vec![RestoredSession { row: session, slots: vec![] }])
    }

    fn boot(epoch: u32, ended: u32, clients: Vec<RestoredClient>) -> (Clients, Vec<Session>) {
        let server = ServerRow { grace_ended_in: BootEpoch(ended) };
        let r = Clients::restore(config(), Time(0), BootEpoch(epoch), server, clients);
        r.0.check_invariants().unwrap();
        r
    }

    #[test]
    fn sessions_go_on_and_the_client_is_told_to_reclaim() {
        let (row, session) = rows();
        let id = row.id;
        let slots = vec![(0, Slot::restore(7, true))];
        let (mut t, mut sessions) = boot(2, 1, restored(&row, vec![RestoredSession { row: session, slots }]));
        let s = &mut sessions[0];
        let Ok(Sequenced::ReplayStored(r)) = sequence(s, Time(1), 7) else { panic!("no replay") };
        let down = seq4_status::CB_PATH_DOWN | seq4_status::BACKCHANNEL_FAULT;
        assert_eq!(r.status_flags, down | seq4_status::RESTART_RECLAIM_NEEDED);
        let gate = t.grace().gate();
        assert_eq!(gate.admit(s.client(), Claim::Reclaim), Ok(()));
        assert_eq!(gate.admit(s.client(), Claim::New), Err(Error::Grace));
        assert!(t.grace().poll(Time(1)).is_none());
        let effects = t.reclaim_complete(id, false).unwrap();
        assert!(matches!(&effects[..], [Effect::PersistClient(r)] if r.reclaimed_in == BootEpoch(2)));
        t.finish_reclaim_complete(id);
        assert_eq!(s.status_flags(), down);
        assert!(t.grace().poll(Time(2)).is_some(), "nobody left: grace ends early");
        t.grace().ended();
        assert_eq!(gate.admit(s.client(), Claim::New), Ok(()));
        let again = t.exchange_id(Time(3), eid("o", 1, 0), STATEFUL).unwrap().0;
        assert_eq!((again.client, again.seqid), (id, 2));
        let fresh = t.exchange_id(Time(3), eid("p", 1, 0), STATEFUL).unwrap().0;
        assert_eq!(fresh.client.epoch(), BootEpoch(2));
        s.bind(CONN, BindDirection::BackOrBoth).unwrap();
    }

    /// A CREATE_SESSION whose reply was lost in the crash; and one whose session had no row.
    #[test]
    fn create_session_is_replayed_across_a_restart() {
        let (row, session) = rows();
        let sid = session.id;
        let (mut t, _s) = boot(2, 1, restored(&row, vec![RestoredSession { row: session, slots: vec![] }]));
        let got = t.create_session(Time(1), CONN, &cs(row.id, 1), 9).unwrap();
        let both = session_flags::PERSIST | session_flags::CONN_BACK_CHAN;
        assert!(matches!(got, CreateStep::Replay(r) if (r.session, r.flags, r.seqid) == (sid, both, 1)));
        let row = ClientRow { create_seqid: 2, next_session: 2, ..row };
        let (mut t, _s) = boot(2, 1, with_session(&row));
        let got = t.create_session(Time(1), CONN, &cs(row.id, 2), 9).unwrap();
        assert!(matches!(got, CreateStep::Pending(p) if p.session() != sid));
    }

    /// §8.4.3, second edge condition: one grace period passed without a reclaim.
    #[test]
    fn edge_condition_a_missed_grace_period() {
        let (row, _) = rows();
        for (ended, may) in [(0, true), (1, true), (2, false)] {
            let (mut t, _) = boot(3, ended, with_session(&row));
            let shared = t.shared(row.id).unwrap().clone();
            let want = if may { Ok(()) } else { Err(Error::ReclaimBad) };
            assert_eq!(t.grace().gate().admit(&shared, Claim::Reclaim), want, "grace ended in {ended}");
        }
        let never = ClientRow { reclaimed_in: BootEpoch(0), ..row };
        let (mut t, _) = boot(3, 0, with_session(&never));
        let shared = t.shared(never.id).unwrap().clone();
        assert_eq!(
            t.grace().gate().admit(&shared, Claim::Reclaim),
            Err(Error::ReclaimBad),
            "it held nothing"
        );
        assert!(t.grace().poll(Time(1)).is_some(), "nor is it waited for");
    }

    /// A crash inside a grace period must not cost anybody the right to reclaim.
    #[test]
    fn a_second_crash_before_grace_ended() {
        let (row, _) = rows();
        let (mut t, _) = boot(2, 1, with_session(&row));
        let done = match &t.reclaim_complete(row.id, false).unwrap()[..] {
            [Effect::PersistClient(r)] => r.clone(),
            other => panic!("{other:?}"),
        };
        for row in [row, done] {
            let (t, _) = boot(3, 1, with_session(&row));
            assert!(t.shared(row.id).unwrap().may_reclaim());
        }
    }

    /// The client itself restarted too: it has nothing to reclaim and is not waited for.
    #[test]
    fn a_rebooted_client_ends_the_wait() {
        let (row, _) = rows();
        let (mut t, _) = boot(2, 1, with_session(&row));
        assert_eq!(t.grace().pending(), 1);
        let r = t.exchange_id(Time(1), eid("o", 2, 0), STATELESS).unwrap().0;
        assert_eq!(t.grace().pending(), 1, "not confirmed yet");
        let CreateStep::Pending(p) = t.create_session(Time(1), CONN, &cs(r.client, 1), 9).unwrap() else {
            panic!("replay")
        };
        t.finish_create_session(Time(1), *p, true).unwrap();
        assert_eq!(t.grace().pending(), 0);
        assert!(!t.shared(r.client).unwrap().may_reclaim());
    }

    #[test]
    fn leases_start_anew() {
        let (row, _) = rows();
        let (mut t, _) = boot(2, 1, with_session(&row));
        assert_eq!(t.expire(Time(LEASE), row.id), Expire::Active);
        assert!(matches!(t.expire(Time(LEASE + 1), row.id), Expire::Gone(_)));
        assert_eq!(t.grace().pending(), 0);
    }

    /// pynfs REBT1, REBT2, REBT3: without a persistent session, BADSESSION and STALE_CLIENTID, then a
    /// reclaim under a new client ID, also when the server goes down once more in between.
    #[test]
    fn rebt_a_client_comes_back_under_a_new_id() {
        let (row, session) = rows();
        let (mut t, _) = boot(2, 1, restored(&row, vec![]));
        assert_eq!(t.find_session(session.id), None);
        assert_eq!(t.create_session(Time(1), CONN, &cs(row.id, 2), 9).unwrap_err(), Error::StaleClientid);
        assert!(t.grace().poll(Time(1)).is_none(), "it is waited for");
        let r = t.exchange_id(Time(1), eid("o", 1, 0), STATEFUL).unwrap().0;
        assert_ne!(r.client, row.id);
        assert_eq!(r.flags & exchange_flags::CONFIRMED_R, 0, "so that Linux reclaims");
        let CreateStep::Pending(p) = t.create_session(Time(1), CONN, &cs(r.client, 1), 9).unwrap() else {
            panic!("replay")
        };
        assert_eq!(p.effects[0], Effect::ForgetClient(row.id));
        let Effect::PersistClient(again) = p.effects[1].clone() else { panic!("{:?}", p.effects) };
        assert_eq!((again.id, again.reclaimed_in), (r.client, row.reclaimed_in));
        t.finish_create_session(Time(1), *p, true).unwrap();
        t.check_invariants().unwrap();
        let shared = t.shared(r.client).unwrap().clone();
        assert_eq!(t.grace().gate().admit(&shared, Claim::Reclaim), Ok(()));
        assert_eq!(t.grace().pending(), 1);
        let (t3, _) = boot(3, 1, restored(&again, vec![]));
        assert_eq!(t3.grace.pending(), 1, "the second crash changes nothing");
        t.reclaim_complete(r.client, false).unwrap();
        t.finish_reclaim_complete(r.client);
        assert!(t.grace().poll(Time(2)).is_some());
        let same = t.exchange_id(Time(3), eid("o", 1, 0), STATEFUL).unwrap().0;
        assert_eq!(same.client, r.client, "REBT4");
        assert_eq!(t.reclaim_complete(r.client, false), Err(Error::CompleteAlready), "REBT4");
    }

    #[test]
    fn an_absent_client_is_neither_impersonated_nor_kept_for_ever() {
        let (row, _) = rows();
        let (mut t, _) = boot(2, 1, restored(&row, vec![]));
        assert_eq!(t.exchange_id(Time(1), eid("o", 1, 5), STATELESS).unwrap_err(), Error::ClidInuse);
        assert!(t.reap(Time(1), STATELESS).is_empty());
        assert!(t.grace().poll(Time(LEASE)).is_some());
        t.grace().ended();
        assert_eq!(t.reap(Time(LEASE), STATELESS), vec![Effect::ForgetClient(row.id)]);
        assert_eq!(t.absent().count(), 0);
        assert!(t.exchange_id(Time(LEASE), eid("o", 1, 5), STATELESS).is_ok());
    }

    /// Another verifier: the client rebooted, nothing is left to reclaim.
    #[test]
    fn an_absent_client_that_rebooted_reclaims_nothing() {
        let (row, _) = rows();
        let (mut t, _) = boot(2, 1, restored(&row, vec![]));
        let r = t.exchange_id(Time(1), eid("o", 2, 0), STATEFUL).unwrap().0;
        let CreateStep::Pending(p) = t.create_session(Time(1), CONN, &cs(r.client, 1), 9).unwrap() else {
            panic!("replay")
        };
        t.finish_create_session(Time(1), *p, true).unwrap();
        assert_eq!(t.grace().pending(), 0);
        assert!(!t.shared(r.client).unwrap().may_reclaim());
    }

    #[test]
    fn two_rows_of_one_owner_keep_the_newer() {
        let (row, _) = rows();
        let newer = ClientRow { id: ClientId(row.id.0 + 1), ..row.clone() };
        let mut both = with_session(&row);
        both.extend(with_session(&newer));
        let (t, _) = boot(2, 1, both);
        assert_eq!((t.len(), t.find_owner(Time(0), b"o").unwrap().id), (1, newer.id));
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
