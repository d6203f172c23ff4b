use super::*;
use crate::ids::{BootEpoch, ClientId};

const LEASE: u64 = 90_000_000_000;
const C1: ConnectionId = ConnectionId(1);
const C2: ConnectionId = ConnectionId(2);

fn row(back_wanted: bool) -> SessionRow {
    let limits = ChannelLimits::default();
    SessionRow {
        id: SessionId::new(ClientId::new(BootEpoch(1), 1), 0, 42),
        fore: ChannelAttrs {
            max_requests: 4,
            max_ops: 8,
            max_request: 4096,
            max_response_cached: 1000,
            ..limits.fore
        },
        back: ChannelAttrs { max_requests: 2, ..limits.back },
        back_params: BackChannelParams { program: 7, security: Some(CbSecurity::None) },
        persist: true,
        back_wanted,
    }
}

fn client() -> Arc<ClientShared> {
    Arc::new(ClientShared::new(ClientId::new(BootEpoch(1), 1), Time::ZERO))
}

fn session(back: bool) -> Session {
    Session::new(row(back), client(), UseGauge::default(), C1, 8)
}

fn args(slot: u32, seqid: u32) -> SequenceArgs {
    SequenceArgs {
        slot,
        seqid,
        highest_slot: slot,
        cache_this: true,
        fingerprint: 1,
        request_size: 200,
        operations: 2,
    }
}

fn keep(reply: &'static [u8]) -> Completion {
    Completion { reply: Some(Bytes::from_static(reply)), cache_this: true }
}

fn is_new(s: Result<Sequenced, Error>) -> bool {
    matches!(s, Ok(Sequenced::New(_)))
}

/// pynfs SEQ1, SEQ12: session, slot and seqid come back.
#[test]
fn sequence_echoes_its_arguments() {
    let mut s = session(true);
    let Sequenced::New(r) = s.sequence(Time(1), C1, &args(2, 1)).unwrap() else { panic!("not new") };
    assert_eq!((r.session, r.slot, r.seqid), (s.id(), 2, 1));
    assert_eq!((r.highest_slot, r.target_highest_slot, r.status_flags), (3, 3, 0));
}

/// pynfs SEQ9a-f: the reply comes back byte for byte; SEQ13: a seqid out of order.
#[test]
fn replay_and_misordered() {
    let mut s = session(false);
    assert!(is_new(s.sequence(Time(1), C1, &args(0, 1))));
    assert_eq!(s.sequence(Time(1), C1, &args(0, 1)), Err(Error::Delay));
    s.complete(Time(2), 0, keep(b"reply"));
    assert_eq!(s.sequence(Time(3), C1, &args(0, 1)), Ok(Sequenced::Replay(Bytes::from_static(b"reply"))));
    assert_eq!(s.client().in_flight(), 0);
    assert_eq!(s.sequence(Time(3), C1, &args(0, 3)), Err(Error::SeqMisordered));
    let other = SequenceArgs { fingerprint: 2, ..args(0, 1) };
    assert_eq!(s.sequence(Time(3), C1, &other), Err(Error::SeqFalseRetry));
}

#[test]
fn uncached_retry_answers_sequence_only() {
    let mut s = session(false);
    assert!(is_new(s.sequence(Time(1), C1, &args(0, 1))));
    s.complete(Time(1), 0, Completion::default());
    assert!(matches!(s.sequence(Time(1), C1, &args(0, 1)), Ok(Sequenced::ReplayUncached(_))));
}

/// pynfs SEQ6, SEQ7: the slot stays as it was.
#[test]
fn limits_are_checked_before_the_slot() {
    let mut s = session(false);
    let big = SequenceArgs { request_size: 4097, ..args(0, 1) };
    assert_eq!(s.sequence(Time(1), C1, &big), Err(Error::ReqTooBig));
    let many = SequenceArgs { operations: 9, ..args(0, 1) };
    assert_eq!(s.sequence(Time(1), C1, &many), Err(Error::TooManyOps));
    assert!(is_new(s.sequence(Time(1), C1, &args(0, 1))));
}

/// RFC 8881 §8.3: only a successful SEQUENCE renews the lease.
#[test]
fn failed_sequence_does_not_renew() {
    let mut s = session(false);
    for bad in [args(9, 1), args(0, 5), SequenceArgs { operations: 99, ..args(0, 1) }] {
        assert!(s.sequence(Time(77), C1, &bad).is_err());
    }
    s.bind(C2, BindDirection::Fore).unwrap();
    assert_eq!(s.client().renewed(), Time::ZERO);
    assert!(is_new(s.sequence(Time(78), C1, &args(0, 1))));
    assert_eq!(s.client().renewed(), Time(78));
    s.complete(Time(99), 0, Completion::default());
    assert_eq!(s.client().renewed(), Time(99));
}

/// pynfs SEQ4: SEQUENCE binds its connection to the fore channel, not to the back channel.
#[test]
fn sequence_binds_implicitly() {
    let mut s = session(true);
    assert!(!s.is_bound(C2));
    assert!(is_new(s.sequence(Time(1), C2, &args(0, 1))));
    assert!(s.is_bound(C2));
    assert_eq!(s.back_connection(), Some(C1));
}

/// The back channel's loss and repair as RFC 8881 §18.46.3 shows it to the client.
#[test]
fn back_channel_loss_and_repair() {
    let mut s = session(true);
    assert_eq!(s.status_flags(), 0);
    assert!(s.unbind(C1));
    let down = seq4_status::CB_PATH_DOWN | seq4_status::CB_PATH_DOWN_SESSION;
    assert_eq!(s.status_flags(), down);
    assert!(s.acquire_callback().is_none());
    assert!(is_new(s.sequence(Time(1), C2, &args(0, 1))));
    assert_eq!(s.status_flags(), down, "a SEQUENCE repairs only the fore channel");
    assert_eq!(s.bind(C2, BindDirection::BackOrBoth), Ok(BoundDirection::Both));
    assert_eq!((s.status_flags(), s.back_connection()), (0, Some(C2)));
    s.back_channel_lost(C2);
    assert_eq!(s.status_flags(), down);
    assert!(s.is_bound(C2), "the fore channel stays");
    assert!(!s.unbind(C2));
}

/// Another session's back channel is enough for the client, not for the session.
#[test]
fn down_for_the_session_only() {
    let shared = client();
    let mut a = Session::new(row(true), shared.clone(), UseGauge::default(), C1, 8);
    let _b = Session::new(row(true), shared, UseGauge::default(), C2, 8);
    a.unbind(C1);
    assert_eq!(a.status_flags(), seq4_status::CB_PATH_DOWN_SESSION);
}

#[test]
fn a_client_without_back_channel_is_not_nagged() {
    let mut s = session(false);
    assert_eq!(s.status_flags(), 0);
    assert!(s.acquire_callback().is_none());
    s.bind(C1, BindDirection::Back).unwrap();
    assert!(is_new(s.sequence(Time(1), C1, &args(0, 1))));
    assert!(s.acquire_callback().is_some());
}

#[test]
fn bind_directions() {
    use BindDirection::{Back, BackOrBoth, Fore, ForeOrBoth};
    let table = [
        (Fore, BoundDirection::Fore, false),
        (Back, BoundDirection::Back, true),
        (ForeOrBoth, BoundDirection::Both, true),
        (BackOrBoth, BoundDirection::Both, true),
    ];
    for (ask, got, back) in table {
        let mut s = session(false);
        assert_eq!(s.bind(C2, ask), Ok(got));
        assert_eq!(s.back_connection().is_some(), back);
    }
    let mut gss = row(false);
    gss.back_params.security = None;
    let mut s = Session::new(gss, client(), UseGauge::default(), C1, 8);
    assert_eq!(s.bind(C2, Back), Err(Error::Inval));
    assert_eq!(s.bind(C2, BackOrBoth), Ok(BoundDirection::Fore));
    s.kill();
    assert_eq!(s.bind(C2, Fore), Err(Error::BadSession));
}

#[test]
fn bindings_are_bounded_and_keep_the_back_channel() {
    let mut s = session(true);
    for i in 0..2 * MAX_CONNECTIONS as u64 {
        assert!(is_new(s.sequence(Time(1), ConnectionId(100 + i), &args(0, 1 + i as u32))));
        s.complete(Time(1), 0, Completion::default());
    }
    assert_eq!(s.bindings.len(), MAX_CONNECTIONS);
    assert_eq!(s.back_connection(), Some(C1));
}

/// pynfs CSESS26, CSESS27.
#[test]
fn reply_limits() {
    let s = session(false);
    assert_eq!(s.reply_limit(true), (1000, Error::RepTooBigToCache));
    assert_eq!(s.reply_limit(false), (s.fore().max_response, Error::RepTooBig));
}

#[test]
fn an_oversized_reply_is_never_cached() {
    let mut s = session(false);
    assert!(is_new(s.sequence(Time(1), C1, &args(0, 1))));
    let reply = Some(Bytes::from(vec![0; 1001]));
    s.complete(Time(1), 0, Completion { reply, cache_this: true });
    assert_eq!(s.slots().cached_bytes(), 0);
}

/// pynfs DSESS1, DSESS9001, DSESS9004 at the level of the session.
#[test]
fn destroy() {
    let mut s = session(true);
    assert_eq!(s.destroy(C2, None), Err(Error::ConnNotBoundToSession));
    assert!(is_new(s.sequence(Time(1), C1, &args(0, 1))));
    assert!(is_new(s.sequence(Time(1), C1, &args(1, 1))));
    assert_eq!(s.destroy(C1, Some(0)), Err(Error::Delay), "slot 1 is in use");
    s.complete(Time(1), 1, Completion::default());
    assert_eq!(s.destroy(C1, None), Err(Error::Delay), "slot 0 belongs to somebody else");
    assert_eq!(s.destroy(C1, Some(0)), Ok(()));
    assert_eq!(s.client().back_channels(), 0);
    s.complete(Time(1), 0, Completion::default());
    assert_eq!(s.client().in_flight(), 0);
    assert_eq!(s.sequence(Time(2), C1, &args(0, 2)), Err(Error::BadSession));
    assert_eq!(s.destroy(C1, None), Err(Error::BadSession));
}

#[test]
fn a_dead_client_is_a_bad_session() {
    let mut s = session(true);
    s.client().kill();
    assert_eq!(s.sequence(Time(1), C1, &args(0, 1)), Err(Error::BadSession));
    assert!(s.is_dead());
    assert_eq!(s.client().in_flight(), 0);
}

/// After a restart: stored replies, later seqids, and BACKCHANNEL_FAULT instead of wrong callbacks.
#[test]
fn restored_session() {
    let slots = vec![(1, Slot::restore(9, 1)), (77, Slot::restore(1, 1))];
    let mut s = Session::restore(row(true), client(), UseGauge::default(), slots, 8);
    assert!(!s.is_bound(C1));
    let fault = seq4_status::CB_PATH_DOWN | seq4_status::BACKCHANNEL_FAULT;
    assert!(
        matches!(s.sequence(Time(1), C2, &args(1, 9)), Ok(Sequenced::Resume(r)) if r.status_flags == fault)
    );
    assert_eq!(s.sequence(Time(1), C2, &args(1, 9)), Err(Error::Delay));
    s.put_back(Time(1), 1);
    assert_eq!(s.client().in_flight(), 0);
    let other = SequenceArgs { fingerprint: 2, ..args(1, 9) };
    assert_eq!(s.sequence(Time(1), C2, &other), Err(Error::SeqFalseRetry));
    assert_eq!(s.sequence(Time(1), C2, &args(1, 8)), Err(Error::SeqMisordered));
    assert!(is_new(s.sequence(Time(1), C2, &args(1, 12))));
    assert!(is_new(s.sequence(Time(1), C2, &args(0, 500))));
    s.complete(Time(1), 0, keep(b"x"));
    assert_eq!(s.sequence(Time(1), C2, &args(0, 502)), Err(Error::SeqMisordered), "strict from then on");
    s.bind(C2, BindDirection::BackOrBoth).unwrap();
    assert!(s.acquire_callback().is_none());
    assert_eq!(s.status_flags(), fault);
}

#[test]
fn backchannel_ctl() {
    let mut s = session(true);
    assert_eq!(s.backchannel_ctl(8, &[CbSecurity::Gss]), Err(Error::Inval));
    let row = s.backchannel_ctl(9, &[CbSecurity::None]).unwrap().unwrap();
    assert_eq!((row.back_params.program, s.back().params.program), (9, 9));
}

#[test]
fn callbacks_over_the_session() {
    let mut s = session(true);
    assert!(s.acquire_callback().is_none(), "its client may not know it yet");
    assert!(is_new(s.sequence(Time(1), C1, &args(0, 1))));
    let (connection, t) = s.acquire_callback().unwrap();
    assert_eq!((connection, t.seqid), (C1, 1));
    s.release_callback(t, CbOutcome::Unknown);
    let (_, t) = s.acquire_callback().unwrap();
    assert_eq!(t.slot, 1);
    s.release_callback(t, CbOutcome::Unknown);
    assert_eq!(s.status_flags(), seq4_status::CB_PATH_DOWN | seq4_status::BACKCHANNEL_FAULT);
}

/// RFC 8881 §8.3: a request in progress keeps its client alive however long it takes.
#[test]
fn the_lease_of_a_running_request_holds() {
    let mut s = session(false);
    assert!(is_new(s.sequence(Time(1), C1, &args(0, 1))));
    assert!(!s.client().kill_if_elapsed(Time(5 * LEASE), LEASE));
    s.complete(Time(5 * LEASE), 0, Completion::default());
    assert!(s.client().kill_if_elapsed(Time(6 * LEASE + 1), LEASE));
}

/// What is raised meanwhile is not in a reply, and one that is sent again is as it was.
#[test]
fn a_reply_tells_what_there_was_when_its_request_began() {
    let mut s = session(false);
    assert!(is_new(s.sequence(Time(1), C1, &args(0, 1))));
    assert!(is_new(s.sequence(Time(2), C1, &args(1, 1))));
    assert_eq!(s.client().told(), Time::ZERO);
    for slot in [1, 0] {
        s.complete(Time(9), slot, keep(b"x"));
        assert_eq!(s.client().told(), Time(2));
    }
    assert!(matches!(s.sequence(Time(20), C1, &args(0, 1)), Ok(Sequenced::Replay(_))));
    assert_eq!(s.client().told(), Time(2));
    assert!(is_new(s.sequence(Time(30), C1, &args(0, 2))));
    s.put_back(Time(31), 0);
    assert_eq!(s.client().told(), Time(2), "not answered");
}

/// A session without connections is given up only while nobody uses it, and then for good.
#[test]
fn eviction() {
    let mut s = session(false);
    let gauge = s.gauge.clone();
    assert!(is_new(s.sequence(Time(1), C1, &args(0, 1))));
    assert!(!gauge.evict(), "a connection is bound");
    s.unbind(C1);
    assert!(!gauge.evict(), "a request is running");
    s.complete(Time(1), 0, Completion::default());
    assert!(gauge.evict());
    assert_eq!(s.sequence(Time(2), C2, &args(0, 2)), Err(Error::BadSession));
    assert_eq!((s.client().in_flight(), s.is_dead()), (0, true));
    let mut s = session(false);
    s.unbind(C1);
    assert!(s.gauge.evict());
    assert_eq!(s.bind(C2, BindDirection::Fore), Err(Error::BadSession));
    assert!(s.gauge.evict(), "and stays so");
}
