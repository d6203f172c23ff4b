//! CREATE_SESSION: RFC 8881 §18.36.

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

/// With a ticket, unlike with a number that anybody may call himself.
#[test]
fn who_proved_who_it_is_is_not_spoken_for_by_others() {
    let mut w = World::new();
    let (id, _session) =
        w.client(ExchangeId { caller: caller(gss(b"host/a@TEST"), false), ..eid("o", 1, 0) });
    for other in [principal(0), gss(b"host/b@TEST")] {
        for seqid in [1, 2] {
            let args = CreateSession { principal: other.clone(), ..cs(id, seqid) };
            assert_eq!(w.create_error(&args), Error::StaleClientid, "{seqid}");
        }
    }
    w.create(&CreateSession { principal: gss(b"host/a@TEST"), ..cs(id, 2) });
}

/// A machine calls itself by as many names as it likes.
#[test]
fn clients_of_one_host_are_no_more_than_it_leaves_to_others() {
    let mut w = World::with(ClientsConfig { max_clients: 8, ..config() });
    let at = |host: &str, name: u8, verifier| ExchangeId {
        owner: Bytes::from(format!("{host} {name}")),
        host: Some(host.parse().unwrap()),
        ..eid("o", verifier, 0)
    };
    let refused = |w: &mut World, args| {
        let known = w.eid(args).unwrap();
        let full = w.start(&cs(known.client, known.seqid)).err();
        assert_eq!(full, Some(Error::Nospc));
    };
    for name in 0..4 {
        w.client(at("10.0.0.1", name, 1));
    }
    refused(&mut w, at("10.0.0.1", 4, 1));
    // One that was restarted is no more of them.
    w.client(at("10.0.0.1", 0, 2));
    for name in 0..2 {
        w.client(at("10.0.0.2", name, 1));
    }
    refused(&mut w, at("10.0.0.2", 2, 1));
    w.client(at("2001:db8::1", 0, 1));
    refused(&mut w, at("2001:db8::2", 0, 1));
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
    assert_eq!(w.create_error(&bad), Error::Inval, "retried");
    w.create(&cs(r.client, 2));
}

/// CSESS29: refused many times under one sequence number, which then serves for a sound request.
#[test]
fn csess29_refusal_does_not_stick() {
    let mut w = World::new();
    let r = w.eid(eid("o", 1, 0)).unwrap();
    let mut bad = cs(r.client, 1);
    bad.back.max_request = 10;
    for _ in 0..3 {
        assert_eq!(w.create_error(&bad), Error::Toosmall);
    }
    let made = w.create(&cs(r.client, 1));
    assert!(matches!(w.start(&cs(r.client, 1)), Ok(CreateStep::Replay(r)) if r == made.reply));
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

/// A client that unmounts without reaching the server leaves its sessions, which no connection uses.
#[test]
fn abandoned_sessions_make_room_in_the_cache_too() {
    let linux = ChannelAttrs {
        max_request: 1_049_620,
        max_response: 1_049_480,
        max_response_cached: 7584,
        max_ops: 8,
        max_requests: 64,
    };
    let mut w = World::new();
    let r = w.eid(eid("o", 1, 0)).unwrap();
    let mut first = None;
    for seqid in r.seqid..r.seqid + 25 {
        let mut made = w.create(&CreateSession { fore: linux, ..cs(r.client, seqid) });
        assert_eq!(made.reply.fore.max_requests, 64, "session {seqid}");
        made.session.unbind(CONN);
        first.get_or_insert(made.session);
    }
    assert_eq!(sequence(&mut first.unwrap(), w.now, 1), Err(Error::BadSession), "the oldest was given up");
}

/// Small ones, until there is room for a large one.
#[test]
fn as_many_abandoned_sessions_as_need_be_make_room() {
    let mut config = config();
    config.channel.cache_per_client = 8 * 8192;
    let mut w = World::with(config);
    let (id, mut small) = w.client(eid("o", 1, 0));
    small.unbind(CONN);
    w.t.destroy_session(small.id()).unwrap();
    let one = ChannelAttrs { max_requests: 1, ..cs(id, 2).fore };
    for seqid in 2..10 {
        w.create(&CreateSession { fore: one, ..cs(id, seqid) }).session.unbind(CONN);
    }
    let made = w.create(&cs(id, 10));
    assert_eq!((made.reply.fore.max_requests, made.effects.len()), (8, 8));
    // It is in use: nothing makes room.
    assert_eq!(w.create_error(&cs(id, 11)), Error::Nospc);
}

/// Who comes late gets fewer slots, in the end one, so that many find something yet.
#[test]
fn what_all_clients_have_together_is_bounded() {
    let by_cache = ClientsConfig { max_cache: 2048 * 8192, ..config() };
    let by_slots = ClientsConfig { max_slots: 2048, ..config() };
    for (config, cached) in [(by_cache, 8192), (by_slots, 0)] {
        let mut w = World::with(config);
        let mut made = Vec::new();
        let refused = loop {
            let owner = Bytes::from(format!("client {}", made.len()));
            let (r, _) = w.t.exchange_id(w.now, ExchangeId { owner, ..eid("o", 1, 0) }, STATELESS).unwrap();
            let mut args = cs(r.client, r.seqid);
            args.fore.max_response_cached = cached;
            match w.t.create_session(w.now, CONN, &args, 0) {
                Ok(CreateStep::Pending(p)) => {
                    let created = w.t.finish_create_session(w.now, *p, true).unwrap();
                    made.push((created.session.id(), created.reply.fore.max_requests));
                }
                other => break other.unwrap_err(),
            }
        };
        w.t.check_invariants().unwrap();
        assert_eq!(refused, Error::Nospc);
        let slots: Vec<u32> = made.iter().map(|(_, slots)| *slots).collect();
        assert_eq!((slots[0], slots.last()), (2, Some(&1)));
        assert!(slots.is_sorted_by(|a, b| a >= b), "never more than before: {slots:?}");
        assert_eq!(slots.iter().sum::<u32>(), 2048, "all of it");
        // What one gives back another has.
        w.t.destroy_session(made[0].0).unwrap();
        let r = w.eid(eid("late", 1, 0)).unwrap();
        assert_eq!(w.create(&cs(r.client, r.seqid)).reply.fore.max_requests, 1);
    }
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

/// Whoever may be a client and nothing else takes no room from the others.
#[test]
fn strangers_make_way_for_one_another() {
    let is_stranger: fn(&[u8]) -> bool = |owner| owner.starts_with(b"x");
    let limits = ClientsConfig { max_clients: 4, max_strangers: 2, is_stranger, ..config() };
    let mut w = World::with(limits);
    let (first, mut s) = w.client(eid("x1", 1, 0));
    let (second, _) = w.client(eid("x2", 1, 0));
    touch(&mut s, w.now, 1);
    let next = |w: &mut World, owner, verifier| w.eid(eid(owner, verifier, 0)).unwrap().client;
    let third = next(&mut w, "x3", 1);
    let Ok(CreateStep::MakeWay(effects)) = w.start(&cs(third, 1)) else { panic!("no way was made") };
    assert_eq!(durable(&effects), [Effect::ForgetSession(s.id()), Effect::ForgetClient(first)]);
    assert_eq!(effects[2..], [Effect::DropSession(s.id()), Effect::ReleaseState(first)]);
    assert_eq!(sequence(&mut s, w.now, 2), Err(Error::BadSession), "though it renewed its lease");
    let mut busy = w.create(&cs(third, 1)).session;
    // In its own place.
    let again = next(&mut w, "x2", 2);
    w.create(&cs(again, 1));
    assert!(w.t.info(w.now, second).is_none() && w.t.info(w.now, third).is_some());
    // Not while it is being served.
    assert!(matches!(sequence(&mut busy, w.now, 1), Ok(Sequenced::New(_))));
    let fourth = next(&mut w, "x4", 1);
    let Ok(CreateStep::MakeWay(effects)) = w.start(&cs(fourth, 1)) else { panic!("no way was made") };
    assert!(effects.contains(&Effect::ReleaseState(again)));
    let mut last = w.create(&cs(fourth, 1)).session;
    assert!(matches!(sequence(&mut last, w.now, 1), Ok(Sequenced::New(_))));
    let fifth = next(&mut w, "x5", 1);
    assert_eq!(w.create_error(&cs(fifth, 1)), Error::Delay);
    w.client(eid("a", 1, 0));
    w.client(eid("b", 1, 0));
}

#[test]
fn clients_are_bounded() {
    let mut w = World::with(ClientsConfig { max_clients: 1, ..config() });
    w.client(eid("a", 1, 0));
    let r = w.eid(eid("b", 1, 0)).unwrap();
    assert_eq!(w.create_error(&cs(r.client, 1)), Error::Nospc);
}
