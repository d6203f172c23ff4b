//! Peers that lie, stall or talk nonsense.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::*;
use sluice_rpc::{Limits, Server, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

macro_rules! everywhere {
    ($($name:ident),* $(,)?) => {
        mod tcp { $(#[test] fn $name() { super::on_tcp("127.0.0.1:0", super::$name); })* }
        mod sim { $(#[test] fn $name() { (0..8).for_each(|seed| super::simulate(seed, super::$name)); })* }
    };
}

everywhere!(
    a_mark_of_a_gibibyte,
    endless_fragments,
    two_to_the_32_groups,
    nonsense,
    refusals_word_by_word,
    silence_and_half_records,
    half_a_first_record,
    a_silent_crowd_fills_no_more_than_its_places,
    idle_is_not_silence,
    idle_has_an_end,
    refusals_are_charged,
    a_peer_that_takes_nothing,
);

fn brief() -> Limits {
    Limits {
        first_record: Duration::from_millis(200),
        partial_record: Duration::from_millis(200),
        write_stall: Duration::from_millis(200),
        ..Limits::default()
    }
}

async fn raw(w: &World, limits: Limits) -> (std::sync::Arc<Server>, Stream) {
    let (server, addr) = w.serve(limits, vec![Echo::new(&w.env, ECHO)]).await;
    (server, w.at_client.connect(addr).await.unwrap())
}

/// Reads to the end, which must come within `limit`.
async fn ends(w: &World, stream: &mut Stream, limit: Duration) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = w.env.clock.timeout(limit, stream.read_to_end(&mut rest)).await.expect("the connection ends");
    rest
}

async fn reply(stream: &mut Stream) -> Vec<u32> {
    let mark = stream.read_u32().await.unwrap();
    let mut body = vec![0; (mark & 0x7fff_ffff) as usize];
    stream.read_exact(&mut body).await.unwrap();
    body.chunks(4).map(word).collect()
}

async fn a_mark_of_a_gibibyte(w: World) {
    for mark in [0xc000_0000_u32, 0x4000_0000, 0xffff_ffff, 0x8000_0000 | ((1 << 20) + (64 << 10) + 1)] {
        let (_server, mut s) = raw(&w, Limits::default()).await;
        s.write_all(&mark.to_be_bytes()).await.unwrap();
        assert_eq!(ends(&w, &mut s, SECOND).await, []);
        drop(s);
        _server.shutdown(SECOND).await;
    }
}

async fn endless_fragments(w: World) {
    for fragment in [&[0, 0, 0, 0][..], &[0, 0, 0, 1, 9]] {
        let (server, mut s) = raw(&w, Limits::default()).await;
        // The peer may well close before all is sent.
        let _ = s.write_all(&fragment.repeat(10_000)).await;
        assert_eq!(ends(&w, &mut s, SECOND).await, []);
        server.shutdown(SECOND).await;
    }
}

async fn two_to_the_32_groups(w: World) {
    let (_server, mut s) = raw(&w, Limits::default()).await;
    let body = [5, 0, 2, ECHO, 3, 0, 1, 20, 0, 0, 0, 0, u32::MAX, 0, 0];
    s.write_all(&raw_record(&words(&body))).await.unwrap();
    assert_eq!(reply(&mut s).await, [5, 1, 1, 1, 1], "MSG_DENIED, AUTH_ERROR, AUTH_BADCRED");
    s.write_all(&raw_call(6, ECHO, 0, &[])).await.unwrap();
    assert_eq!(reply(&mut s).await, [6, 1, 0, 0, 0, 0], "the connection is none the worse");
}

/// Whose connections are gone before they are accepted, and then one who stays.
#[test]
fn a_crowd_that_is_gone_keeps_nobody_waiting() {
    on_tcp("127.0.0.1:0", async |w| {
        let server = Server::new(w.env.clone(), w.at_server.clone(), brief(), vec![Echo::new(&w.env, ECHO)]);
        let server = std::sync::Arc::new(server);
        let listener = server.listen(w.listen).await.unwrap();
        let addr = listener.local_addr();
        for _ in 0..300 {
            let gone = std::net::TcpStream::connect(addr).unwrap();
            rustix::net::sockopt::set_socket_linger(&gone, Some(Duration::ZERO)).unwrap();
        }
        w.env.spawn.spawn(Box::pin(server.clone().serve(listener)));
        let c = w.client().dial(addr).await.unwrap();
        let answered = w.env.clock.timeout(3 * SECOND, call(&c, procedure::ECHO, "here")).await;
        assert_eq!(answered.expect("it is accepted").unwrap(), "here");
    });
}

async fn nonsense(w: World) {
    for body in [&[1, 7][..], &[1], &[1, 0, 2, ECHO]] {
        let (server, mut s) = raw(&w, Limits::default()).await;
        s.write_all(&raw_record(&words(body))).await.unwrap();
        assert_eq!(ends(&w, &mut s, SECOND).await, [], "{body:?}");
        server.shutdown(SECOND).await;
    }
    let (_server, mut s) = raw(&w, Limits::default()).await;
    s.write_all(b"GET / HTTP/1.1\r\nHost: sluice\r\n\r\n").await.unwrap();
    assert_eq!(ends(&w, &mut s, SECOND).await, []);
}

async fn refusals_word_by_word(w: World) {
    let (_server, mut s) = raw(&w, Limits::default()).await;
    let mut ask = async |body: &[u32]| {
        s.write_all(&raw_record(&words(body))).await.unwrap();
        reply(&mut s).await
    };
    let none = [0, 0, 0, 0];
    assert_eq!(ask(&[&[1, 0, 3, ECHO, 3, 0], &none[..]].concat()).await, [1, 1, 1, 0, 2, 2], "RPC_MISMATCH");
    assert_eq!(ask(&[&[2, 0, 2, 7, 3, 0], &none[..]].concat()).await, [2, 1, 0, 0, 0, 1], "PROG_UNAVAIL");
    let mismatch = [3, 1, 0, 0, 0, 2, 2, 3];
    assert_eq!(ask(&[&[3, 0, 2, ECHO, 1, 0], &none[..]].concat()).await, mismatch, "PROG_MISMATCH");
    let unavail = [4, 1, 0, 0, 0, 3];
    assert_eq!(ask(&[&[4, 0, 2, ECHO, 3, 99], &none[..]].concat()).await, unavail, "PROC_UNAVAIL");
    let probe = [5, 0, 2, ECHO, 3, 0, 7, 0, 0, 0];
    assert_eq!(ask(&probe).await, [5, 1, 1, 1, 2], "AUTH_TLS probe");
    let gss = [6, 0, 2, ECHO, 3, 0, 6, 4, 1, 0, 0];
    assert_eq!(ask(&gss).await, [6, 1, 1, 1, 2], "RPCSEC_GSS");
}

async fn silence_and_half_records(w: World) {
    let (server, mut s) = raw(&w, brief()).await;
    assert_eq!(ends(&w, &mut s, SECOND).await, []);
    server.shutdown(SECOND).await;

    let (server, mut s) = raw(&w, Limits { first_record: LONG, ..brief() }).await;
    s.write_all(&raw_call(1, ECHO, 0, &[])).await.unwrap();
    reply(&mut s).await;
    // One byte at a time is progress of a kind, and not the kind that counts.
    let record = raw_call(2, ECHO, 1, &[0; 64]);
    let began = w.env.clock.now();
    for byte in &record {
        if s.write_all(&[*byte]).await.is_err() {
            break;
        }
        w.env.clock.sleep(Duration::from_millis(20)).await;
        if w.env.clock.now().since(began) > 2 * SECOND {
            break;
        }
    }
    assert_eq!(ends(&w, &mut s, SECOND).await, []);
    assert!(w.env.clock.now().since(began) < 3 * SECOND);
    w.until("the server has forgotten it", || server.connections().is_empty()).await;
}

async fn half_a_first_record(w: World) {
    let limits = Limits { first_record: Duration::from_millis(200), ..Limits::default() };
    let (_server, mut s) = raw(&w, limits).await;
    s.write_all(&[0x80, 0]).await.unwrap();
    assert_eq!(ends(&w, &mut s, 2 * SECOND).await, []);
}

async fn a_silent_crowd_fills_no_more_than_its_places(w: World) {
    let limits = Limits { max_connections: 2, first_record: LONG, ..Limits::default() };
    let (server, first) = raw(&w, limits).await;
    let mut addr = w.listen;
    addr.set_port(first.peer.port());
    let _second = w.at_client.connect(addr).await.unwrap();
    // Those two say nothing, and hold their places until they must have spoken.
    let mut third = w.at_client.connect(addr).await.unwrap();
    assert_eq!(ends(&w, &mut third, SECOND).await, []);
    server.shutdown(SECOND).await;
}

async fn idle_has_an_end(w: World) {
    let limits = Limits { idle: Duration::from_millis(200), ..Limits::default() };
    let (_server, mut s) = raw(&w, limits).await;
    s.write_all(&raw_call(1, ECHO, 0, &[])).await.unwrap();
    reply(&mut s).await;
    assert_eq!(ends(&w, &mut s, 2 * SECOND).await, []);
}

async fn idle_is_not_silence(w: World) {
    let (_server, mut s) = raw(&w, brief()).await;
    for xid in 0..2 {
        s.write_all(&raw_call(xid, ECHO, 0, &[])).await.unwrap();
        assert_eq!(reply(&mut s).await, [xid, 1, 0, 0, 0, 0]);
        w.env.clock.sleep(SECOND).await;
    }
}

async fn refusals_are_charged(w: World) {
    let limits = Limits { connection_budget: 64 << 10, ..Limits::default() };
    let (server, mut s) = raw(&w, limits).await;
    let flood = raw_call(1, 7, 0, &[]).repeat(1000);
    let mut held = 0;
    for _ in 0..2000 {
        // It never reads; sooner or later nothing more can be written.
        let wrote = w.env.clock.timeout(SECOND, s.write_all(&flood)).await;
        held = held.max(server.bytes_held());
        if wrote.is_err() || held > 48 << 10 {
            break;
        }
    }
    assert!(held <= 64 << 10, "{held}");
    assert!(held > 32 << 10, "the flood reached the budget: {held}");
}

async fn a_peer_that_takes_nothing(w: World) {
    let (server, mut s) = raw(&w, brief()).await;
    for xid in 0..32 {
        s.write_all(&raw_call(xid, ECHO, procedure::READ, &[1 << 20])).await.unwrap();
    }
    w.env.clock.sleep(SECOND).await;
    w.until("it is given up", || server.connections().is_empty()).await;
    assert_eq!(server.bytes_held(), 0);
}
