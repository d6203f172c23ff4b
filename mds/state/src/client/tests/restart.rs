//! Restart, grace and reclaim: RFC 8881 §8.4.2, §8.4.3.

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
    ((**row).clone(), *session)
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
    let slots = vec![(0, Slot::restore(7, 0))];
    let (mut t, mut sessions) = boot(2, 1, restored(&row, vec![RestoredSession { row: session, slots }]));
    let s = &mut sessions[0];
    let Ok(Sequenced::Resume(r)) = sequence(s, Time(1), 7) else { panic!("no replay") };
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

/// The server dies while a client reclaims, and again takes up its session: the RECLAIM_COMPLETE of the first reclaim
/// must not be taken for that of a second, which the client does not know it owes.
#[test]
fn a_reclaim_that_a_second_restart_cut_short_is_made_again() {
    let (row, _) = rows();
    let (mut t, sessions) = boot(3, 1, with_session(&row));
    let needed = |s: &Session| s.status_flags() & seq4_status::RESTART_RECLAIM_NEEDED != 0;
    assert_eq!(t.reclaim_complete(row.id, false), Ok(vec![]));
    assert!(needed(&sessions[0]));
    assert!(t.grace().poll(Time(1)).is_none(), "it is waited for");
    assert_eq!(t.grace().gate().admit(sessions[0].client(), Claim::Reclaim), Ok(()));
    assert_eq!(t.reclaim_complete(row.id, false).unwrap().len(), 1);
    t.finish_reclaim_complete(row.id);
    assert!(!needed(&sessions[0]));
    // Whoever makes a session has noticed.
    let (mut t, _s) = boot(3, 1, with_session(&row));
    let CreateStep::Pending(p) = t.create_session(Time(1), CONN, &cs(row.id, 2), 9).unwrap() else {
        panic!()
    };
    t.finish_create_session(Time(1), *p, true).unwrap();
    assert_eq!(t.reclaim_complete(row.id, false).unwrap().len(), 1);
}

/// FreeBSD over a session that goes on.
#[test]
fn who_does_not_look_at_the_flag_is_ended_after_grace() {
    let (row, _) = rows();
    let (mut t, mut sessions) = boot(2, 1, with_session(&row));
    let s = &mut sessions[0];
    touch(s, Time(1), 1);
    assert_eq!(t.reap(Time(2), STATELESS), vec![]);
    touch(s, Time(LEASE), 2);
    assert_eq!(t.reap(Time(2 * LEASE), STATELESS), vec![], "in grace it may reclaim");
    assert!(t.grace().poll(Time(2 * LEASE)).is_some());
    t.grace().ended();
    let gone = t.reap(Time(2 * LEASE), STATELESS);
    assert_eq!(durable(&gone), vec![Effect::ForgetSession(s.id()), Effect::ForgetClient(row.id)]);
    t.check_invariants().unwrap();
    assert_eq!(sequence(s, Time(2 * LEASE), 3), Err(Error::BadSession));
    let again = t.create_session(Time(2 * LEASE), CONN, &cs(row.id, 2), 9);
    assert_eq!(again.unwrap_err(), Error::StaleClientid);
}

#[test]
fn who_reclaims_or_was_silent_has_a_lease_after_grace() {
    let (row, _) = rows();
    for reclaims in [true, false] {
        let (mut t, mut sessions) = boot(2, 1, with_session(&row));
        let (s, state) = (&mut sessions[0], if reclaims { STATEFUL } else { STATELESS });
        if reclaims {
            touch(s, Time(1), 1);
            assert_eq!(t.reap(Time(2), state), vec![]);
        }
        assert!(t.grace().poll(Time(LEASE)).is_some());
        t.grace().ended();
        touch(s, Time(LEASE + 10), 2);
        assert_eq!(t.reap(Time(LEASE + 10), state), vec![]);
        touch(s, Time(2 * LEASE), 3);
        assert_eq!(t.reap(Time(2 * LEASE + 10), state), vec![]);
        assert_ne!(t.reap(Time(2 * LEASE + 11), state), vec![]);
    }
    let (mut t, mut sessions) = boot(2, 1, with_session(&row));
    touch(&mut sessions[0], Time(1), 1);
    assert_eq!(t.reap(Time(2), STATELESS), vec![]);
    assert_eq!(t.reclaim_complete(row.id, false).unwrap().len(), 1);
    t.finish_reclaim_complete(row.id);
    assert!(t.grace().poll(Time(3)).is_some());
    t.grace().ended();
    touch(&mut sessions[0], Time(2 * LEASE), 2);
    assert_eq!(t.reap(Time(3 * LEASE), STATELESS), vec![], "it has heard");
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
    assert_eq!(t.grace().gate().admit(&shared, Claim::Reclaim), Err(Error::ReclaimBad), "it held nothing");
    assert!(t.grace().poll(Time(1)).is_some(), "nor is it waited for");
}

/// A crash inside a grace period must not cost anybody the right to reclaim.
#[test]
fn a_second_crash_before_grace_ended() {
    let (row, _) = rows();
    let (mut t, _) = boot(2, 1, with_session(&row));
    let done = match &t.reclaim_complete(row.id, false).unwrap()[..] {
        [Effect::PersistClient(r)] => (**r).clone(),
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
