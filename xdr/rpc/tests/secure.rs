//! Control programs are for holders of the cluster key.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::*;
use sluice_rpc::{
    CallError, ClusterKey, ConnectError, Credential, Frame, Keyring, Keys, Limits, Role, Server, SimConfig,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

macro_rules! everywhere {
    ($($name:ident),* $(,)?) => {
        mod tcp { $(#[test] fn $name() { super::on_tcp("127.0.0.1:0", super::$name); })* }
        mod sim { $(#[test] fn $name() { (0..8).for_each(|seed| super::simulate(seed, super::$name)); })* }
    };
}

everywhere!(
    the_key_opens_what_nothing_else_does,
    another_key_is_named_as_the_cause,
    a_server_without_key_refuses,
    tampering_ends_the_connection,
    a_stalled_handshake_ends,
    the_key_finds_a_place_in_a_crowd,
    a_key_is_replaced_under_those_who_use_it,
    a_monitoring_key_reaches_what_is_for_monitors,
);

/// Fewer seeds: encryption is slow in an unoptimised build.
#[test]
fn payloads_survive() {
    on_tcp("127.0.0.1:0", large_records_and_the_back_channel);
    simulate(1, large_records_and_the_back_channel);
}

/// The network holds less than one sealed message, so that of most the last bytes have to wait, and nobody says more.
#[test]
fn the_end_of_a_message_follows_though_nothing_is_said_behind_it() {
    let narrow = SimConfig { buffer: 10_000, ..SimConfig::default() };
    (0..8).for_each(|seed| simulate_with(seed, narrow, one_after_the_other));
}

async fn one_after_the_other(w: World) {
    let (_served, addr) = w.run(server(&w, Limits::default())).await;
    let c = w.client().with_key(key(1)).dial(addr).await.unwrap();
    for size in [10_000, 20_000, 65_519, 70_000, 100_000, 9_000] {
        let frame = bytes::Bytes::from(vec![1; size]).into();
        let echo = c.call(CONTROL, 3, procedure::ECHO, &Credential::None, frame, LONG).await;
        assert_eq!(echo.map(|echo| echo.len()), Ok(size));
    }
}

fn key(byte: u8) -> ClusterKey {
    ClusterKey::from_bytes([byte; 32])
}

fn server(w: &World, limits: Limits) -> Server {
    Server::new(w.env.clone(), w.at_server.clone(), limits, vec![Echo::new(&w.env, ECHO)])
        .with_secure(key(1), vec![Echo::new(&w.env, CONTROL)])
}

async fn null(c: &sluice_rpc::Connection, program: u32) -> Result<bytes::Bytes, CallError> {
    c.call(program, 3, procedure::NULL, &Credential::None, Frame::empty(), LONG).await
}

async fn the_key_opens_what_nothing_else_does(w: World) {
    let (served, addr) = w.run(server(&w, Limits::default())).await;
    let plain = w.client().dial(addr).await.unwrap();
    let secure = w.client().with_key(key(1)).dial(addr).await.unwrap();
    assert!(secure.is_secure() && !plain.is_secure());
    null(&plain, ECHO).await.unwrap();
    null(&secure, CONTROL).await.unwrap();
    assert_eq!(null(&plain, CONTROL).await, Err(CallError::ProgUnavail { program: CONTROL }));
    assert_eq!(null(&secure, ECHO).await, Err(CallError::ProgUnavail { program: ECHO }));
    // Claiming to be root changes nothing.
    let root = Credential::Sys(sluice_rpc::AuthSys::root("mds"));
    let refused = plain.call(CONTROL, 3, 0, &root, Frame::empty(), LONG).await;
    assert_eq!(refused, Err(CallError::ProgUnavail { program: CONTROL }));
    let mut kinds: Vec<_> = served.connections().iter().map(|c| c.is_secure()).collect();
    kinds.sort();
    assert_eq!(kinds, [false, true]);
}

async fn another_key_is_named_as_the_cause(w: World) {
    let (_served, addr) = w.run(server(&w, Limits::default())).await;
    let error = w.client().with_key(key(2)).dial(addr).await.unwrap_err();
    assert!(matches!(error, ConnectError::Secure { .. }));
    assert!(error.to_string().contains("cluster key differs"), "{error}");
}

async fn a_server_without_key_refuses(w: World) {
    let (_served, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let error = w.client().with_key(key(1)).dial(addr).await.unwrap_err();
    assert!(error.to_string().contains("does not accept secure connections"), "{error}");
}

async fn large_records_and_the_back_channel(w: World) {
    let (_served, addr) = w.run(server(&w, Limits::default())).await;
    let c =
        w.client().with_key(key(1)).with_programs(vec![Echo::new(&w.env, BACK)]).dial(addr).await.unwrap();
    let data: Vec<u8> = (0..300_000_u32).map(|i| (i * 13 + (i >> 9)) as u8).collect();
    for size in [300_000, 4, 65_536 - 44, 65_519 - 44, 65_520 - 44, 1000] {
        let part = bytes::Bytes::copy_from_slice(&data[..size]);
        for procedure in [procedure::ECHO, procedure::CALL_BACK] {
            let frame = part.clone().into();
            let echo = c.call(CONTROL, 3, procedure, &Credential::None, frame, LONG).await.unwrap();
            assert_eq!(echo, part);
        }
    }
}

/// Stands between client and server and changes one byte of what the client sends, after `good` bytes.
async fn meddle(w: &World, server: std::net::SocketAddr, good: usize) -> std::net::SocketAddr {
    let mut at = w.listen;
    at.set_port(0);
    let mut listener = w.at_server.listen(at).await.unwrap();
    let at = listener.local_addr();
    let transport = w.at_server.clone();
    w.env.spawn.spawn(Box::pin(async move {
        let client = listener.accept().await.unwrap();
        let server = transport.connect(server).await.unwrap();
        let (mut from_client, mut to_client) = (client.reader, client.writer);
        let (mut from_server, mut to_server) = (server.reader, server.writer);
        let there = async {
            let mut sent = 0;
            let mut byte = [0];
            while matches!(from_client.read(&mut byte).await, Ok(1)) {
                byte[0] ^= u8::from(sent == good);
                sent += 1;
                if to_server.write_all(&byte).await.is_err() {
                    break;
                }
            }
        };
        let back = tokio::io::copy(&mut from_server, &mut to_client);
        tokio::select! { biased; () = there => {}, _ = back => {} }
    }));
    at
}

async fn tampering_ends_the_connection(w: World) {
    let (_served, addr) = w.run(server(&w, Limits::default())).await;
    // 8 + 2 + 48 bytes of handshake, then 2 + 44 + 16 of the call.
    for good in [59, 60, 90, 119] {
        let at = meddle(&w, addr, good).await;
        let c = w.client().with_key(key(1)).dial(at).await.unwrap();
        let result = w.env.clock.timeout(SECOND, null(&c, CONTROL)).await;
        assert!(!matches!(result, Ok(Ok(_))), "byte {good} was changed: {result:?}");
    }
    for good in [0, 10, 30, 57] {
        let at = meddle(&w, addr, good).await;
        let client = w.client().with_key(key(1)).with_connect_timeout(SECOND);
        assert!(client.dial(at).await.is_err(), "byte {good} was changed");
    }
    let at = meddle(&w, addr, usize::MAX).await;
    let c = w.client().with_key(key(1)).dial(at).await.unwrap();
    null(&c, CONTROL).await.unwrap();
}

async fn a_stalled_handshake_ends(w: World) {
    let limits = Limits { first_record: std::time::Duration::from_millis(200), ..Limits::default() };
    let (_served, addr) = w.run(server(&w, limits)).await;
    for start in [&b"S"[..], b"SLUICE1", b"SLUICE1\n", b"SLUICE1\n\0"] {
        let mut s = w.at_client.connect(addr).await.unwrap();
        s.write_all(start).await.unwrap();
        let mut rest = Vec::new();
        let _ = w.env.clock.timeout(SECOND, s.read_to_end(&mut rest)).await.expect("it ends");
        assert_eq!(rest, []);
    }
}

async fn the_key_finds_a_place_in_a_crowd(w: World) {
    let limits = Limits { max_connections: 2, ..Limits::default() };
    let (_served, addr) = w.run(server(&w, limits)).await;
    let mut crowd = Vec::new();
    for _ in 0..2 {
        let c = w.client().dial(addr).await.unwrap();
        null(&c, ECHO).await.unwrap();
        crowd.push(c);
    }
    let late = w.client().dial(addr).await.unwrap();
    assert!(null(&late, ECHO).await.is_err(), "there is no place for one more client");
    let secure = w.client().with_key(key(1)).dial(addr).await.unwrap();
    null(&secure, CONTROL).await.unwrap();
}

async fn a_key_is_replaced_under_those_who_use_it(w: World) {
    let ring = Keyring::from(key(1));
    let server = Server::new(w.env.clone(), w.at_server.clone(), Limits::default(), Vec::new());
    let (served, addr) = w.run(server.with_secure(ring.clone(), vec![Echo::new(&w.env, CONTROL)])).await;
    let shown = |c: &sluice_rpc::Connection| c.shown().unwrap().key.clone();
    let (one, both) = (w.client().with_key(key(1)), w.client().with_key(Keys::from(key(1)).renewed(key(2))));

    // Who has the new key before the server does shows it the older one.
    let early = both.dial(addr).await.unwrap();
    assert_eq!(shown(&early), key(1));
    assert!(!both.is_known(addr).await && one.is_known(addr).await);

    ring.replace(Keys::from(key(1)).renewed(key(2)));
    let (old, new) = (one.dial(addr).await.unwrap(), both.dial(addr).await.unwrap());
    assert_eq!((shown(&old), shown(&new)), (key(1), key(2)));
    assert!(both.is_known(addr).await);
    served.close_strangers();
    for c in [&early, &old, &new] {
        null(c, CONTROL).await.unwrap();
    }

    ring.replace(key(2).into());
    served.close_strangers();
    null(&new, CONTROL).await.unwrap();
    for c in [&early, &old] {
        w.env.clock.timeout(SECOND, c.closed()).await.expect("its key is accepted no more");
    }
    let error = one.dial(addr).await.unwrap_err();
    assert!(error.to_string().contains("cluster key differs"), "{error}");
    assert_eq!(shown(&both.dial(addr).await.unwrap()), key(2));
}

async fn a_monitoring_key_reaches_what_is_for_monitors(w: World) {
    let ring = Keyring::from(key(1));
    let server = Server::new(w.env.clone(), w.at_server.clone(), Limits::default(), Vec::new())
        .with_secure(ring.clone(), vec![Echo::new(&w.env, CONTROL)])
        .with_monitors(vec![Echo::new(&w.env, BACK)]);
    let (served, addr) = w.run(server).await;
    let monitor = w.client().with_key(key(1).monitor());
    let c = monitor.dial(addr).await.unwrap();
    null(&c, BACK).await.unwrap();
    assert_eq!(null(&c, CONTROL).await, Err(CallError::ProgUnavail { program: CONTROL }));
    let whole = w.client().with_key(key(1)).dial(addr).await.unwrap();
    assert_eq!(null(&whole, BACK).await, Err(CallError::ProgUnavail { program: BACK }));
    let mut roles: Vec<_> = served.connections().iter().map(|c| c.shown().unwrap().role).collect();
    roles.sort_by_key(|role| *role == Role::Monitor);
    assert_eq!(roles, [Role::Server, Role::Monitor]);

    // It is good as long as the key that it is made of.
    ring.replace(Keys::from(key(1)).renewed(key(2)));
    served.close_strangers();
    null(&c, BACK).await.unwrap();
    ring.replace(key(2).into());
    served.close_strangers();
    w.env.clock.timeout(SECOND, c.closed()).await.expect("the cluster key has gone");
    assert!(monitor.dial(addr).await.is_err());
}
