//! The simulated network: repeatable, and as unkind as a real one.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use sluice_rpc::transport::Outgoing;
use sluice_rpc::{
    CallError, ClusterKey, Credential, Frame, Limits, ReconnectingClient, Server, SimConfig, Transport,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A busy little world; its digest.
fn run(seed: u64) -> ([u8; 32], u64) {
    let (send, receive) = std::sync::mpsc::channel();
    simulate(seed, |w| async move {
        let key = ClusterKey::generate(&w.env);
        let server =
            Server::new(w.env.clone(), w.at_server.clone(), Limits::default(), vec![Echo::new(&w.env, ECHO)])
                .with_secure(key.clone(), vec![Echo::new(&w.env, CONTROL)]);
        let (server, addr) = w.run(server).await;
        let plain = w.client().with_programs(vec![Echo::new(&w.env, BACK)]).dial(addr).await.unwrap();
        let secure = w.client().with_key(key).dial(addr).await.unwrap();
        let none = Credential::None;
        let calls = (0..20_u32).map(|i| {
            let (plain, secure) = (plain.clone(), secure.clone());
            let (done, result) = tokio::sync::oneshot::channel();
            w.env.spawn.spawn(Box::pin(async move {
                let size = 1 + (i * 7919) % 40_000;
                let result = match i % 4 {
                    0 => call(&plain, procedure::SLEEP, words(&[i])).await,
                    1 => call(&plain, procedure::READ, words(&[size])).await,
                    2 => call(&plain, procedure::CALL_BACK, words(&[i])).await,
                    _ => secure.call(CONTROL, 3, 1, &Credential::None, words(&[i]).into(), LONG).await,
                };
                let _ = done.send(result);
            }));
            result
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap().unwrap();
        }
        let net = w.net.as_ref().unwrap();
        net.reset("client", "server");
        assert!(plain.call(ECHO, 3, 0, &none, Frame::empty(), LONG).await.is_err());
        server.shutdown(SECOND).await;
        send.send((net.digest(), net.events())).unwrap();
    });
    receive.recv().unwrap()
}

#[test]
fn one_seed_is_one_trace() {
    for seed in 0..10 {
        let (digest, events) = run(seed);
        assert!(events > 50, "{events}");
        assert_eq!((digest, events), run(seed), "seed {seed}");
    }
    assert_ne!(run(1).0, run(2).0, "and another seed another");
}

#[test]
fn partitions_hold_and_heal() {
    simulate(3, |w| async move {
        let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
        let net = w.net.clone().unwrap();
        let c = w.client().dial(addr).await.unwrap();
        net.partition("server", "client");
        let lost = c.call(ECHO, 3, 0, &Credential::None, Frame::empty(), SECOND).await;
        assert_eq!(lost, Err(CallError::Timeout(SECOND)));
        let nowhere = w.client().with_connect_timeout(SECOND).dial(addr).await;
        assert!(nowhere.unwrap_err().to_string().contains("no answer within 1s"));
        net.heal("client", "server");
        assert_eq!(call(&c, procedure::ECHO, "back").await.unwrap(), "back");
    });
}

#[test]
fn a_mute_host_accepts_and_says_nothing() {
    simulate(4, |w| async move {
        let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
        let net = w.net.clone().unwrap();
        net.freeze("server");
        let client = ReconnectingClient::new(w.client(), addr);
        let none = Credential::None;
        let first = client.connection().await.unwrap();
        let mute = client.call((ECHO, 3, 0), &none, Frame::empty(), SECOND).await;
        assert_eq!(mute, Err(CallError::Timeout(SECOND)));
        w.env.clock.timeout(SECOND, first.closed()).await.expect("it is given up");
        net.thaw("server");
        client.call((ECHO, 3, 0), &none, Frame::empty(), SECOND).await.unwrap();
    });
}

#[test]
fn a_crash_resets_and_refuses() {
    simulate(5, |w| async move {
        let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
        let c = w.client().dial(addr).await.unwrap();
        call(&c, procedure::NULL, "").await.unwrap();
        w.net.as_ref().unwrap().crash("server");
        assert_eq!(call(&c, procedure::NULL, "").await, Err(CallError::Closed));
        assert!(w.client().dial(addr).await.unwrap_err().to_string().contains("refused"));
    });
}

/// What a process held that died may be dropped when the next one is there.
#[test]
fn a_listener_that_outlives_a_crash_takes_nothing_from_the_next() {
    simulate(9, |w| async move {
        let before = w.at_server.listen(w.listen).await.unwrap();
        let at = before.local_addr();
        w.net.as_ref().unwrap().crash("server");
        let mut next = w.at_server.listen(at).await.unwrap();
        drop(before);
        let (accepted, connected) = tokio::join!(next.accept(), w.at_client.connect(at));
        accepted.unwrap();
        connected.unwrap();
    });
}

#[test]
fn a_full_buffer_makes_the_writer_wait() {
    let config = SimConfig { buffer: 1000, short_writes: false, ..SimConfig::default() };
    simulate_with(6, config, |w| async move {
        let mut listener = w.at_server.listen(w.listen).await.unwrap();
        let mut near = w.at_client.connect(w.listen).await.unwrap();
        let mut far = listener.accept().await.unwrap();
        let write = near.write_all(&[5; 1001]);
        let stuck = w.env.clock.timeout(SECOND, write).await;
        assert!(stuck.is_err(), "one byte too many");
        let mut got = [0; 1000];
        far.read_exact(&mut got).await.unwrap();
        near.write_all(&[5; 1000]).await.unwrap();
        drop(near);
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), 1000, "what was written before the end arrives");
    });
}

#[test]
fn what_was_sent_before_an_abort_is_lost() {
    simulate(10, |w| async move {
        let mut listener = w.at_server.listen(w.listen).await.unwrap();
        let mut near = w.at_client.connect(w.listen).await.unwrap();
        let mut far = listener.accept().await.unwrap();
        near.write_all(&[5; 1000]).await.unwrap();
        w.env.clock.sleep(SECOND).await;
        near.writer.abort();
        drop(near);
        let reset = std::io::ErrorKind::ConnectionReset;
        assert_eq!(far.read(&mut [0; 1000]).await.unwrap_err().kind(), reset);
        assert_eq!(far.write_all(&[1; 1000]).await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn time_passes_on_the_wire() {
    let ten = Duration::from_millis(10);
    let config = SimConfig { latency_min: ten, latency_max: ten, ..SimConfig::default() };
    simulate_with(7, config, |w| async move {
        let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
        let c = w.client().dial(addr).await.unwrap();
        let began = w.env.clock.now();
        call(&c, procedure::NULL, "").await.unwrap();
        let took = w.env.clock.now().since(began);
        assert!((20..=24).contains(&took.as_millis()), "there and back: {took:?}");
    });
}

#[test]
fn names_are_addresses() {
    simulate(8, |w| async move {
        let net = w.net.clone().unwrap();
        assert_eq!(net.ip("ds1"), net.ip("ds1"));
        assert_ne!(net.ip("ds1"), net.ip("ds2"));
        let host: Arc<dyn Transport> = net.host("ds1");
        let listener = host.listen("0.0.0.0:0".parse().unwrap()).await.unwrap();
        assert_eq!(listener.local_addr().ip(), net.ip("ds1"));
    });
}
