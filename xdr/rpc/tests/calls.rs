//! Calls in both directions, over TCP (IPv4, IPv6) and over the simulated network.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use sluice_rpc::{
    Admission, CallError, ConnectError, Credential, Frame, Limits, Program, ReconnectingClient, Server,
    Share, auth_stat,
};

macro_rules! everywhere {
    ($($name:ident),* $(,)?) => {
        mod tcp4 { $(#[test] fn $name() { super::on_tcp("127.0.0.1:0", super::$name); })* }
        mod tcp6 { $(#[test] fn $name() { super::on_tcp("[::1]:0", super::$name); })* }
        mod sim { $(#[test] fn $name() { (0..8).for_each(|seed| super::simulate(seed, super::$name)); })* }
    };
}

everywhere!(
    results_and_errors,
    replies_overtake,
    the_back_channel_works,
    large_records_both_ways,
    large_records_end_with_a_page,
    a_large_reply_passes_those_who_wait,
    timeouts_and_late_replies,
    closing_fails_calls,
    drain_answers_what_is_in_flight,
    drain_has_a_deadline,
    connection_limit,
    a_panic_costs_one_answer,
    what_was_begun_ends_without_its_connection,
    what_waits_is_not_begun_when_its_peer_has_gone,
    what_was_aborted_is_not_begun,
    who_left_before_he_was_accepted_waits_for_nothing,
    who_left_while_his_record_had_no_room_waits_for_nothing,
    unused_connections_end,
    metrics_count,
    some_are_answered_at_once,
    some_are_answered_from_elsewhere,
);

async fn results_and_errors(w: World) {
    let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let c = w.client().dial(addr).await.unwrap();
    assert_eq!(call(&c, procedure::NULL, "").await.unwrap(), "");
    assert_eq!(call(&c, procedure::ECHO, "abcd").await.unwrap(), "abcd");
    assert_eq!(call(&c, procedure::GARBAGE, "").await, Err(CallError::GarbageArgs));
    assert_eq!(call(&c, procedure::SYSTEM_ERR, "").await, Err(CallError::SystemErr));
    assert_eq!(call(&c, procedure::UNKNOWN, "").await, Err(CallError::ProcUnavail));
    let weak = auth_stat::AUTH_TOOWEAK;
    assert_eq!(call(&c, procedure::TOO_WEAK, "").await, Err(CallError::Auth(weak)));

    let to = |program, version| {
        let c = c.clone();
        async move { c.call(program, version, 0, &Credential::None, Frame::empty(), LONG).await }
    };
    // What a Linux client asks a data server for and must be told plainly: MOUNT, NLM, LOCALIO.
    for program in [100_005, 100_021, 400_122] {
        assert_eq!(to(program, 3).await, Err(CallError::ProgUnavail { program }));
    }
    let mismatch = CallError::ProgMismatch { program: ECHO, version: 4, low: 2, high: 3 };
    assert_eq!(to(ECHO, 4).await, Err(mismatch));

    let alice = Credential::Sys(sluice_rpc::AuthSys { uid: 1000, ..sluice_rpc::AuthSys::root("a") });
    let who = c.call(ECHO, 3, procedure::WHO, &alice, Frame::empty(), LONG).await.unwrap();
    assert_eq!(word(&who), 1000);
    assert!(!c.is_secure());
    assert_eq!(c.peer(), addr);
}

async fn replies_overtake(w: World) {
    let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let c = w.client().dial(addr).await.unwrap();
    let slow = call(&c, procedure::SLEEP, words(&[200]));
    let fast = call(&c, procedure::ECHO, "fast");
    tokio::pin!(slow);
    tokio::select! {
        biased;
        _ = &mut slow => panic!("the slow call came first"),
        fast = fast => assert_eq!(fast.unwrap(), "fast"),
    }
    assert_eq!(word(&slow.await.unwrap()), 200);
}

async fn the_back_channel_works(w: World) {
    // One call in flight is the limit: the server must reach the reply behind it nevertheless.
    let limits = Limits { max_in_flight: 1, ..Limits::default() };
    let (_server, addr) = w.serve(limits, vec![Echo::new(&w.env, ECHO)]).await;
    let c = w.client().with_programs(vec![Echo::new(&w.env, BACK)]).dial(addr).await.unwrap();
    let calls = ["one ", "two ", "tri ", "four"].map(|text| {
        let c = c.clone();
        async move { assert_eq!(call(&c, procedure::CALL_BACK, text).await.unwrap(), text) }
    });
    let [a, b, c3, d] = calls;
    tokio::join!(a, b, c3, d);
    let plain = w.client().dial(addr).await.unwrap();
    let refused = call(&plain, procedure::CALL_BACK, "").await;
    assert_eq!(refused, Err(CallError::SystemErr), "nothing is served to the peer");
}

async fn large_records_both_ways(w: World) {
    let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let c = w.client().dial(addr).await.unwrap();
    let data: Vec<u8> = (0..1_u32 << 20).map(|i| (i * 7 + (i >> 8)) as u8).collect();
    let data = bytes::Bytes::from(data);
    for size in [1 << 20, 4096, 12, 1 << 20, (1 << 20) - 4, 65_536] {
        let part = data.slice(..size);
        assert_eq!(call(&c, procedure::ECHO, part.clone()).await.unwrap(), part);
    }
}

async fn large_records_end_with_a_page(w: World) {
    let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let c = w.client().dial(addr).await.unwrap();
    let data = bytes::Bytes::from(vec![1; 1 << 20]);
    for size in [1 << 20, (1 << 20) - 8192, 1 << 20] {
        let beyond = || async { word(&call(&c, procedure::BEYOND, data.slice(..size)).await.unwrap()) };
        // Others are behind it in the stream.
        let all = tokio::join!(beyond(), beyond(), beyond());
        assert_eq!(all, (0, 0, 0), "{size} bytes");
    }
}

/// A handler waits for a large reply of its peer, and a large call waits, with all the room there is, for the handler.
async fn a_large_reply_passes_those_who_wait(w: World) {
    let (server_budget, arriving) = (Share::fixed(600 << 10), Share::fixed(200 << 10));
    let limits = Limits { server_budget, arriving, ..Limits::default() };
    let (server, addr) = w.serve(limits, vec![Echo::new(&w.env, ECHO)]).await;
    let mut first = w.at_client.connect(addr).await.unwrap();
    first.write_all(&raw_call(7, ECHO, procedure::CALL_BACK, &vec![5; 25 << 10])).await.unwrap();
    let back = raw_read(&mut first).await;

    let mut second = w.at_client.connect(addr).await.unwrap();
    second.write_all(&raw_call(8, ECHO, procedure::WRITE, &vec![1; 60 << 10])).await.unwrap();
    w.env.clock.sleep(SECOND / 10).await;
    assert!(server.bytes_held() < 300 << 10, "the second is not let in");

    let answer = [&back[..4], &words(&[1, 0, 0, 0, 0]), &words(&vec![5; 100 << 10])].concat();
    first.write_all(&raw_record(&answer)).await.unwrap();
    for (peer, xid) in [(&mut first, 7), (&mut second, 8)] {
        tokio::select! {
            reply = raw_read(peer) => assert_eq!(word(&reply), xid),
            () = w.env.clock.sleep(5 * SECOND) => panic!("no answer to {xid}"),
        }
    }
    w.until("everything is given back", || server.bytes_held() == 0).await;
}

/// The next record of a stream.
async fn raw_read(stream: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mark = stream.read_u32().await.unwrap();
    let mut record = vec![0; (mark & 0x7fff_ffff) as usize];
    stream.read_exact(&mut record).await.unwrap();
    record
}

async fn timeouts_and_late_replies(w: World) {
    let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let c = w.client().dial(addr).await.unwrap();
    let brief = Duration::from_millis(30);
    // Long enough that a busy machine does not look at the clock only when the reply is there.
    let args = words(&[2000]);
    let late = c.call(ECHO, 3, procedure::SLEEP, &Credential::None, args.into(), brief).await;
    assert_eq!(late, Err(CallError::Timeout(brief)));
    w.env.clock.sleep(Duration::from_millis(2500)).await;
    assert_eq!(call(&c, procedure::ECHO, "next").await.unwrap(), "next");
    let nothing = c.call(ECHO, 3, procedure::DROP, &Credential::None, Frame::empty(), brief).await;
    assert_eq!(nothing, Err(CallError::Timeout(brief)));
}

async fn closing_fails_calls(w: World) {
    let (server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let c = w.client().dial(addr).await.unwrap();
    let closer = async {
        w.until("the call is in flight", || server.connections().iter().any(|c| c.calls_in_flight() > 0))
            .await;
        server.connections().iter().for_each(|c| c.close());
    };
    let (result, ()) = tokio::join!(call(&c, procedure::GATE, ""), closer);
    assert_eq!(result, Err(CallError::Closed));
    c.closed().await;
    assert!(c.is_closed());
    assert_eq!(call(&c, procedure::NULL, "").await, Err(CallError::Closed));
    w.until("the server has forgotten it", || server.connections().is_empty()).await;
}

async fn drain_answers_what_is_in_flight(w: World) {
    let program = Echo::new(&w.env, ECHO);
    let (server, addr) = w.serve(Limits::default(), vec![program.clone()]).await;
    let c = w.client().dial(addr).await.unwrap();
    let calls = (0..5).map(|_| {
        let c = c.clone();
        let (done, result) = tokio::sync::oneshot::channel();
        w.env.spawn.spawn(Box::pin(async move {
            let _ = done.send(call(&c, procedure::SLEEP, words(&[100])).await);
        }));
        result
    });
    let calls: Vec<_> = calls.collect();
    w.until("all started", || program.started.load(Ordering::SeqCst) == 5).await;
    let began = w.env.clock.now();
    server.shutdown(LONG).await;
    assert!(w.env.clock.now().since(began) < LONG / 2, "it does not wait for its deadline");
    for call in calls {
        assert_eq!(word(&call.await.unwrap().unwrap()), 100);
    }
    c.closed().await;
    assert!(w.client().dial(addr).await.is_err(), "nobody listens any more");
}

async fn drain_has_a_deadline(w: World) {
    let program = Echo::new(&w.env, ECHO);
    let (server, addr) = w.serve(Limits::default(), vec![program.clone()]).await;
    let c = w.client().dial(addr).await.unwrap();
    let stop = async {
        w.until("started", || program.started.load(Ordering::SeqCst) == 1).await;
        let began = w.env.clock.now();
        server.shutdown(Duration::from_millis(200)).await;
        let took = w.env.clock.now().since(began);
        assert!((200..1500).contains(&took.as_millis()), "{took:?}");
    };
    let (result, ()) = tokio::join!(call(&c, procedure::GATE, ""), stop);
    assert_eq!(result, Err(CallError::Closed));
}

async fn connection_limit(w: World) {
    let limits = Limits { max_connections: 2, ..Limits::default() };
    let (server, addr) = w.serve(limits, vec![Echo::new(&w.env, ECHO)]).await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let c = w.client().dial(addr).await.unwrap();
        call(&c, procedure::NULL, "").await.unwrap();
        kept.push(c);
    }
    if let Ok(third) = w.client().dial(addr).await {
        assert!(call(&third, procedure::NULL, "").await.is_err());
    }
    assert_eq!(server.admission(), Admission { open: 2, tls: 0, refused: 1 });
    kept.pop().unwrap().close();
    w.until("there is room again", || server.connections().len() == 1).await;
    // The place is given back just after the connection leaves the list.
    w.env.clock.sleep(Duration::from_millis(20)).await;
    let c = w.client().dial(addr).await.unwrap();
    call(&c, procedure::NULL, "").await.unwrap();
}

async fn a_panic_costs_one_answer(w: World) {
    let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let c = w.client().dial(addr).await.unwrap();
    assert_eq!(call(&c, procedure::PANIC_LATER, "").await, Err(CallError::SystemErr));
    assert_eq!(call(&c, procedure::NULL, "").await.unwrap(), "");
    // On the connection's own task it costs the connection, and only that.
    assert!(call(&c, procedure::PANIC, "").await.is_err());
    let c = w.client().dial(addr).await.unwrap();
    assert_eq!(call(&c, procedure::NULL, "").await.unwrap(), "");
}

/// A session remembers what came of it.
async fn what_was_begun_ends_without_its_connection(w: World) {
    let echo = Echo::new(&w.env, ECHO);
    let (server, addr) = w.serve(Limits::default(), vec![echo.clone()]).await;
    for calls in 1..4 {
        let before = echo.started.load(Ordering::SeqCst);
        let c = w.client().dial(addr).await.unwrap();
        let waiting = async { futures(&c, calls).await };
        let end = async {
            w.until("all were begun", || echo.started.load(Ordering::SeqCst) == before + calls).await;
            server.connections().iter().for_each(|c| c.close());
            w.until("the connection ended", || server.connections().is_empty()).await;
            echo.gate.add_permits(calls);
            w.until("all went on", || echo.gate.available_permits() == 0).await;
        };
        tokio::join!(waiting, end);
    }
}

/// What it asked for it may have asked for again, and something else after that: an old WRITE would come last.
async fn what_waits_is_not_begun_when_its_peer_has_gone(w: World) {
    let echo = Echo::new(&w.env, ECHO);
    let limits = Limits { max_in_flight: 2, ..Limits::default() };
    let (server, addr) = w.serve(limits, vec![echo.clone()]).await;
    let mut s = w.at_client.connect(addr).await.unwrap();
    // All of it arrives, read or not.
    for xid in 0..20 {
        s.write_all(&raw_call(xid, ECHO, procedure::GATED_WRITE, &[7; 100])).await.unwrap();
    }
    w.until("as many as may be", || echo.started.load(Ordering::SeqCst) == 2).await;
    drop(s);
    w.env.clock.sleep(Duration::from_millis(50)).await;
    echo.gate.add_permits(200);
    w.until("the connection ended", || server.connections().is_empty()).await;
    w.env.clock.sleep(Duration::from_millis(50)).await;
    assert_eq!(echo.started.load(Ordering::SeqCst), 2);
    assert_eq!(server.bytes_held(), 0);
}

/// However much of it waits at the server, on the way there and here: what is asked again elsewhere is not overtaken.
async fn what_was_aborted_is_not_begun(w: World) {
    let echo = Echo::new(&w.env, ECHO);
    let limits = Limits { max_in_flight: 2, ..Limits::default() };
    let key = sluice_rpc::ClusterKey::generate(&w.env);
    let server = Server::new(w.env.clone(), w.at_server.clone(), limits, vec![echo.clone()]);
    let (server, addr) = w.run(server.with_secure(key.clone(), vec![echo.clone()])).await;
    for (client, is_secure) in [(w.client(), false), (w.client().with_key(key), true)] {
        let before = echo.started.load(Ordering::SeqCst);
        let c = client.dial(addr).await.unwrap();
        let data = bytes::Bytes::from(vec![7; 100 << 10]);
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..400 {
            let (c, data) = (c.clone(), data.clone());
            calls.spawn(async move { call(&c, procedure::GATED_WRITE, data).await });
        }
        w.until("as many as may be", || echo.started.load(Ordering::SeqCst) == before + 2).await;
        w.env.clock.sleep(SECOND / 4).await;
        c.abort();
        c.closed().await;
        while let Some(result) = calls.join_next().await {
            assert_eq!(result.unwrap(), Err(CallError::Closed));
        }
        assert_eq!(call(&c, procedure::NULL, "").await, Err(CallError::Closed));
        w.env.clock.sleep(SECOND / 20).await;
        echo.gate.add_permits(if is_secure { 400 } else { 2 });
        w.until("the connection ended", || server.connections().is_empty()).await;
        w.env.clock.sleep(SECOND / 20).await;
        let began = echo.started.load(Ordering::SeqCst) - before;
        // Behind the encryption nobody sees that the peer has gone before all that it sent is read.
        assert!(began == 2 || is_secure && began < 200, "{began}");
        w.until("everything is given back", || server.bytes_held() == 0).await;
    }
}

async fn who_left_before_he_was_accepted_waits_for_nothing(w: World) {
    let echo = Echo::new(&w.env, ECHO);
    let server = Server::new(w.env.clone(), w.at_server.clone(), Limits::default(), vec![echo.clone()]);
    let server = Arc::new(server);
    let listener = server.listen(w.listen).await.unwrap();
    let addr = listener.local_addr();
    let mut gone = w.at_client.connect(addr).await.unwrap();
    gone.write_all(&raw_call(1, ECHO, procedure::WRITE, &[1; 2000])).await.unwrap();
    drop(gone);
    w.env.clock.sleep(Duration::from_millis(50)).await;
    w.env.spawn.spawn(Box::pin(server.clone().serve(listener)));
    let here = w.client().dial(addr).await.unwrap();
    assert_eq!(call(&here, procedure::NOW, "").await.unwrap(), "");
    w.until("it ended", || server.connections().len() == 1).await;
    assert_eq!(echo.started.load(Ordering::SeqCst), 0);
}

async fn who_left_while_his_record_had_no_room_waits_for_nothing(w: World) {
    let echo = Echo::new(&w.env, ECHO);
    let limits = Limits { arriving: Share::fixed(150_000), ..Limits::default() };
    let (server, addr) = w.serve(limits, vec![echo.clone()]).await;
    let large = raw_call(1, ECHO, procedure::WRITE, &vec![1; 25_000]);
    let (begun, rest) = large.split_at(30_000);
    let mut first = w.at_client.connect(addr).await.unwrap();
    first.write_all(begun).await.unwrap();
    w.env.clock.sleep(Duration::from_millis(50)).await;
    let mut second = w.at_client.connect(addr).await.unwrap();
    second.write_all(&large).await.unwrap();
    w.env.clock.sleep(Duration::from_millis(50)).await;
    drop(second);
    w.env.clock.sleep(Duration::from_millis(50)).await;
    assert_eq!(server.connections().len(), 2, "it waits");
    first.write_all(rest).await.unwrap();
    first.read_exact(&mut [0; 28]).await.unwrap();
    w.until("the connection ended", || server.connections().len() == 1).await;
    assert_eq!(echo.started.load(Ordering::SeqCst), 1);
}

/// What wakes us says that the peer has gone; in time, as the calls that came before that are not carried out.
#[test]
fn who_left_while_we_slept_waits_for_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let w = World::tcp("127.0.0.1:0");
        let echo = Echo::new(&w.env, ECHO);
        let (server, addr) = w.serve(Limits::default(), vec![echo.clone()]).await;
        let mut s = w.at_client.connect(addr).await.unwrap();
        s.write_all(&raw_call(1, ECHO, procedure::WRITE, &[1; 2000])).await.unwrap();
        w.until("it is served", || echo.started.load(Ordering::SeqCst) == 1).await;
        s.read_exact(&mut [0; 28]).await.unwrap();
        w.env.clock.sleep(Duration::from_millis(50)).await;
        // Neither waits for anything: nobody else has the thread in between.
        for xid in 2..5 {
            s.write_all(&raw_call(xid, ECHO, procedure::WRITE, &[1; 2000])).await.unwrap();
        }
        drop(s);
        w.until("the connection ended", || server.connections().is_empty()).await;
        assert_eq!(echo.started.load(Ordering::SeqCst), 1);
    });
}

/// Calls of the gate, all of which fail.
async fn futures(c: &sluice_rpc::Connection, calls: usize) {
    let gate = || async { assert!(call(c, procedure::GATE, "").await.is_err()) };
    match calls {
        1 => gate().await,
        2 => drop(tokio::join!(gate(), gate())),
        _ => drop(tokio::join!(gate(), gate(), gate())),
    }
}

async fn reconnects(mut w: World) {
    if w.net.is_none() && w.listen.is_ipv4() {
        // The port is given up and taken again: nobody else may get it meanwhile.
        w.listen.set_ip([127, 83, 1, 7].into());
    }
    let (server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let client = ReconnectingClient::new(w.client(), addr);
    let none = Credential::None;
    let null = (ECHO, 3, procedure::NULL);
    client.call(null, &none, Frame::empty(), LONG).await.unwrap();
    let first = client.connection().await.unwrap();
    server.connections().iter().for_each(|c| c.close());
    first.closed().await;
    client.call(null, &none, Frame::empty(), LONG).await.unwrap();

    server.shutdown(SECOND).await;
    drop(server);
    let refused = client.call(null, &none, Frame::empty(), LONG).await;
    assert!(matches!(refused, Err(CallError::NotConnected(_) | CallError::Closed)), "{refused:?}");
    let again = async {
        w.env.clock.sleep(Duration::from_millis(300)).await;
        let again = World {
            listen: addr,
            env: w.env.clone(),
            at_server: w.at_server.clone(),
            at_client: w.at_client.clone(),
            net: None,
        };
        again.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await
    };
    let (result, _server) = tokio::join!(client.call_idempotent(null, &none, Frame::empty(), LONG), again);
    result.unwrap();
}

async fn unused_connections_end(w: World) {
    // Only to have it looked at often: it does not bind the side that dialled.
    let limits = Limits { first_record: Duration::from_millis(400), ..Limits::default() };
    let (server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let c = w.client().with_limits(limits).dial(addr).await.unwrap();
    call(&c, procedure::NULL, "").await.unwrap();
    let kept = c.clone();
    drop(c);
    assert!(!kept.is_closed());
    drop(kept);
    w.until("the connection ended", || server.connections().is_empty()).await;
}

async fn metrics_count(w: World) {
    let (server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO) as Arc<dyn Program>]).await;
    let c = w.client().dial(addr).await.unwrap();
    for _ in 0..3 {
        call(&c, procedure::ECHO, "12345678").await.unwrap();
    }
    let _ = call(&c, procedure::GARBAGE, "").await;
    let all = server.metrics();
    let echo = all.iter().find(|p| p.procedure == procedure::ECHO).unwrap();
    assert_eq!((echo.program, echo.calls, echo.failed, echo.bytes_in, echo.bytes_out), (ECHO, 3, 0, 24, 24));
    let garbage = all.iter().find(|p| p.procedure == procedure::GARBAGE).unwrap();
    assert_eq!((garbage.calls, garbage.failed), (1, 1));
}

#[test]
fn a_lost_connection_is_made_again() {
    on_tcp("127.0.0.1:0", reconnects);
    (0..8).for_each(|seed| simulate(seed, reconnects));
}

#[test]
fn ipv4_peers_of_an_ipv6_listener_look_like_ipv4() {
    on_tcp("[::]:0", |w| async move {
        let (server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
        let c = w.client().dial(([127, 0, 0, 1], addr.port()).into()).await.unwrap();
        call(&c, procedure::NULL, "").await.unwrap();
        assert!(server.connections()[0].peer().is_ipv4());
    });
}

#[test]
fn a_port_that_is_taken_is_an_error() {
    // An address of its own: of 127.0.0.1 another test would be given the port as soon as it is free.
    on_tcp("127.0.0.9:0", |w| async move {
        let (server, addr) = w.serve(Limits::default(), vec![]).await;
        let error = server.listen(addr).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        server.shutdown(SECOND).await;
        // Nobody else may be given it: another test listens at all addresses.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind(addr).unwrap();
        let nobody = w.client().dial(addr).await;
        assert!(matches!(nobody, Err(ConnectError::Io { .. })), "{nobody:?}");
    });
}

/// Whoever shuts a server down right after its start may come before it has begun to accept.
#[test]
fn an_address_is_free_after_a_shutdown_that_came_early() {
    on_tcp("127.0.0.10:0", |w| async move {
        let server = Arc::new(Server::new(w.env.clone(), w.at_server.clone(), Limits::default(), vec![]));
        let listener = server.listen(w.listen).await.unwrap();
        let addr = listener.local_addr();
        let (serving, clock) = (server.clone().serve(listener), w.env.clock.clone());
        w.env.spawn.spawn(Box::pin(async move {
            clock.sleep(SECOND / 10).await;
            serving.await;
        }));
        server.shutdown(SECOND).await;
        tokio::net::TcpSocket::new_v4().unwrap().bind(addr).unwrap();
    });
}

async fn some_are_answered_at_once(w: World) {
    let program = Echo::new(&w.env, ECHO);
    let (server, addr) = w.serve(Limits::default(), vec![program.clone()]).await;
    let mut s = w.at_client.connect(addr).await.unwrap();
    let mut calls = raw_call(5000, ECHO, procedure::GATE, &[77]);
    let long = vec![9; 5000];
    for xid in 0..200 {
        // Short, long, longer than is answered at once, and others.
        calls.extend(match xid % 5 {
            0 => raw_call(xid, ECHO, procedure::NOW, &long[..5000]),
            1 => raw_call(xid, ECHO, procedure::ECHO, &[xid]),
            2 => raw_call(xid, ECHO, procedure::NOW, &long[..3000]),
            _ => raw_call(xid, ECHO, procedure::NOW, &[xid, 1]),
        });
    }
    let (mut reader, mut writer) = (s.reader, s.writer);
    let all = calls.len();
    let reading = async {
        let mut seen = std::collections::BTreeMap::new();
        while seen.len() < 201 {
            if seen.len() == 200 {
                program.gate.add_permits(1);
            }
            let mark = reader.read_u32().await.unwrap();
            let mut record = vec![0; (mark & 0x7fff_ffff) as usize];
            reader.read_exact(&mut record).await.unwrap();
            assert_eq!(record[4..24], words(&[1, 0, 0, 0, 0])[..]);
            assert!(seen.insert(word(&record), record.len() - 24).is_none(), "answered twice");
        }
        seen
    };
    let (sent, seen) = tokio::join!(writer.write_all(&calls), reading);
    sent.unwrap();
    let length = |xid: u32| match xid % 5 {
        0 => 20_000,
        1 => 4,
        2 => 12_000,
        _ => 8,
    };
    assert!(all > 1 << 20 && seen.iter().all(|(xid, bytes)| *xid == 5000 || *bytes == length(*xid)));
    w.until("everything is given back", || server.bytes_held() == 0).await;
    let counted: u64 = server.metrics().iter().map(|procedure| procedure.calls).sum();
    assert_eq!(counted, 201);
    s = w.at_client.connect(addr).await.unwrap();
    s.write_all(&raw_call(1, ECHO + 1, procedure::NOW, &[])).await.unwrap();
    assert_eq!(s.read_u32().await.unwrap(), 0x8000_0018, "no such program");
}

async fn some_are_answered_from_elsewhere(w: World) {
    let program = Echo::new(&w.env, ECHO);
    let (server, addr) = w.serve(Limits::default(), vec![program.clone()]).await;
    let c = w.client().dial(addr).await.unwrap();
    // Nobody has tried a procedure that is never answered at once.
    for (procedure, tried) in [(procedure::SOON, 0), (procedure::TRIED, 1)] {
        let call = |argument: u32| {
            let argument = words(&[argument, 5]);
            c.call(ECHO, 3, procedure, &Credential::None, argument.into(), LONG)
        };
        let (a, b, bad, d) = tokio::join!(call(1), call(2), call(13), call(4));
        for (got, argument) in [(a, 1), (b, 2), (d, 4)] {
            assert_eq!(got.unwrap(), words(&[tried, argument, 5]));
        }
        // Whoever lets it go owes it all the same.
        assert_eq!(bad, Err(CallError::SystemErr));
    }
    assert_eq!(program.started.load(Ordering::SeqCst), 0, "a future was made");
    w.until("everything is given back", || server.bytes_held() == 0).await;
    let counted: u64 = server.metrics().iter().map(|procedure| procedure.calls).sum();
    assert_eq!(counted, 6);
}
