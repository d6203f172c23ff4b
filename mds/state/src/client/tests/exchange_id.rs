//! EXCHANGE_ID: RFC 8881 §18.35.

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
    // Nobody can prove that what came is what was said.
    let protect = StateProtect::MachCred(Protection::default());
    let mach = ExchangeId { protect, caller: caller(gss(b"host/a@TEST"), false), ..eid("o", 1, 1) };
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
    assert!(w.t.info(w.now, id).unwrap().supports_stripes());
    assert!(effects.is_empty(), "a row of now could be written after a later one");
    let durable = |effect: &Effect| matches!(effect, Effect::PersistClient(row) if row.implementation == args.implementation);
    assert!(w.pending(&cs(id, 2)).effects.iter().any(durable));
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

/// Case 3 while case 5 is under way: the refusal must not lose the effects of ending the old client.
#[test]
fn case_3_waits_for_a_confirmation() {
    let mut w = World::new();
    let (old, s) = w.client(eid("o", 1, 0));
    let r = w.eid(eid("o", 2, 0)).unwrap();
    let p = w.pending(&cs(r.client, 1));
    assert_eq!(w.eid(eid("o", 1, 5)), Err(Error::Delay));
    let made = w.t.finish_create_session(w.now, p, true).unwrap();
    assert_eq!(made.effects, vec![Effect::DropSession(s.id()), Effect::ReleaseState(old)]);
}

/// What Linux asks for.
fn asked() -> Protection {
    Protection { enforced: Protection::ENFORCEABLE, allowed: Operations::of(&[4, 38]) }
}

fn protected(verifier: u8) -> ExchangeId {
    let caller = caller(gss(b"host/a@TEST"), true);
    ExchangeId { protect: StateProtect::MachCred(asked()), caller, ..eid("o", verifier, 0) }
}

/// §18.35.3: of what is asked for, what is done.
#[test]
fn protection_is_what_was_asked_for_and_is_done() {
    let mut w = World::with(ClientsConfig { allowable: Operations::of(&[4, 21]), ..config() });
    let granted = w.eid(protected(1)).unwrap().protection.unwrap();
    assert_eq!(granted, Protection { allowed: Operations::of(&[4]), ..asked() });
    let odd = Protection { enforced: Operations::of(&[25, 41]), allowed: Operations::default() };
    let args = ExchangeId { protect: StateProtect::MachCred(odd), ..protected(2) };
    let granted = w.eid(args).unwrap().protection.unwrap();
    assert_eq!(granted.enforced, Operations::of(&[41]));
    assert_eq!(w.eid(ExchangeId { protect: StateProtect::None, ..protected(3) }).unwrap().protection, None);
}

/// It stays what it was, and an EXCHANGE_ID that anybody may have changed is nobody's.
#[test]
fn a_protected_client_is_known_by_its_principal_with_integrity() {
    let mut w = World::new();
    let (id, _session) = w.client(protected(1));
    let stranger = caller(gss(b"host/b@TEST"), true);
    let unsealed = caller(gss(b"host/a@TEST"), false);
    for other in [stranger, unsealed] {
        for state in [STATELESS, STATEFUL] {
            for verifier in [1, 2] {
                let none = StateProtect::None;
                let args = ExchangeId { caller: other.clone(), protect: none, ..protected(verifier) };
                assert_eq!(w.eid_with(update(args.clone()), state).unwrap_err(), Error::Perm);
                assert_eq!(w.eid_with(args, state).unwrap_err(), Error::ClidInuse);
            }
        }
    }
    for args in [protected(1), ExchangeId { protect: StateProtect::None, ..protected(1) }] {
        let known = w.eid(args.clone()).unwrap();
        assert_eq!((known.client, known.protection), (id, Some(asked())));
        assert_eq!(w.eid(update(args)).unwrap().protection, Some(asked()));
    }
    let restarted = w.eid(protected(2)).unwrap();
    assert_ne!(restarted.client, id);
}

/// Between DESTROY_SESSION and CREATE_SESSION it has nothing, and its name is not for others.
#[test]
fn a_protected_client_without_a_session_keeps_its_name_for_a_lease() {
    let mut w = World::new();
    let (id, session) = w.client(protected(1));
    w.t.destroy_session(session.id()).unwrap();
    let other = ExchangeId { caller: caller(gss(b"host/b@TEST"), true), ..protected(1) };
    assert_eq!(w.eid(other.clone()), Err(Error::ClidInuse));
    w.now = w.now.plus_nanos(LEASE + 1);
    assert_ne!(w.eid(other).unwrap().client, id);
}

/// §2.10.3.1. What was done is told who asks for it again, over whatever connection.
#[test]
fn a_session_of_a_protected_client_is_used_over_bound_connections() {
    let mut w = World::new();
    let (_, mut session) = w.client(protected(1));
    let other = ConnectionId(2);
    let (args, now) = (SequenceArgs { slot: 0, seqid: 1, ..wanted() }, w.now);
    assert_eq!(session.sequence(now, other, &args), Err(Error::ConnNotBoundToSession));
    assert!(matches!(session.sequence(now, CONN, &args), Ok(Sequenced::New(_))));
    assert_eq!(session.sequence(now, other, &args), Err(Error::Delay));
    let reply = Some(Bytes::from_static(b"done"));
    session.complete(now, 0, Completion { reply: reply.clone(), cache_this: true });
    session.unbind(CONN);
    assert_eq!(session.sequence(now, other, &args).ok(), reply.map(Sequenced::Replay));
    assert!(!session.is_bound(other));
    let false_retry = SequenceArgs { fingerprint: 1, ..args };
    assert_eq!(session.sequence(now, other, &false_retry), Err(Error::ConnNotBoundToSession));
    let next = SequenceArgs { seqid: 2, ..args };
    assert_eq!(session.sequence(now, other, &next), Err(Error::ConnNotBoundToSession));
    session.bind(other, BindDirection::Fore).unwrap();
    assert!(matches!(session.sequence(now, other, &next), Ok(Sequenced::New(_))));
}

fn wanted() -> SequenceArgs {
    SequenceArgs {
        slot: 0,
        seqid: 1,
        highest_slot: 0,
        cache_this: true,
        fingerprint: 0,
        request_size: 100,
        operations: 1,
    }
}
