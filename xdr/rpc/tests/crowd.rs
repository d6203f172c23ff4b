//! All places are taken, by one host or by many.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use sluice_env::BoxFuture;
use sluice_rpc::{Admission, Client, ClusterKey, Connection, Limits, Listener, Server, Stream};
use tokio::io::AsyncWriteExt;

const PLACES: usize = 8;

fn few() -> Limits {
    Limits { max_connections: PLACES, part_of_address: PLACES / 2, ..Limits::default() }
}

/// Nobody is sent away who has been silent for less than ten seconds.
async fn a_while(w: &World) {
    w.env.clock.sleep(Duration::from_secs(13)).await;
}

/// A client on a host of its own that is served, or not.
async fn served(w: &World, host: &str, at: SocketAddr) -> Option<Arc<Connection>> {
    let client = Client::new(w.env.clone(), w.net.as_ref().unwrap().host(host));
    let connection = client.dial(at).await.ok()?;
    call(&connection, procedure::ECHO, "here").await.ok().map(|_| connection)
}

/// Connections of one host, each of which sends this and nothing more.
async fn crowd(w: &World, at: SocketAddr, sends: &[u8]) -> Vec<Stream> {
    let mut all = Vec::new();
    for _ in 0..PLACES {
        let mut one = w.at_client.connect(at).await.unwrap();
        one.write_all(sends).await.unwrap();
        all.push(one);
    }
    all
}

#[test]
fn who_says_nothing_keeps_nobody_out() {
    // Nothing, half a record, one call.
    for sends in [&[][..], &[0x80, 0], &raw_call(1, ECHO, 0, &[])] {
        simulate(1, |w| async move {
            let (server, at) = w.serve(few(), vec![Echo::new(&w.env, ECHO)]).await;
            let _silent = crowd(&w, at, sends).await;
            w.env.clock.sleep(SECOND).await;
            assert!(served(&w, "early", at).await.is_none(), "they may be about to speak");
            a_while(&w).await;
            let mut others = Vec::new();
            for n in 0..PLACES / 2 {
                others.push(served(&w, &format!("h{n}"), at).await.expect("it finds a place"));
            }
            for other in &others {
                call(other, procedure::ECHO, "again").await.unwrap();
            }
            w.env.clock.sleep(SECOND).await;
            assert!(server.admission().open <= PLACES as u64, "{:?}", server.admission());
        });
    }
}

/// Accepts while the process has descriptors for it.
#[derive(Debug)]
struct Short(Box<dyn Listener>, Arc<Server>);

impl Listener for Short {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Stream>> {
        match usize::try_from(self.1.admission().open) {
            Ok(open) if open < PLACES => self.0.accept(),
            _ => Box::pin(async { Err(io::Error::from_raw_os_error(24)) }),
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }
}

/// The limit is far away, and nothing more can be accepted: EMFILE.
#[test]
fn where_descriptors_run_out_the_silent_make_room() {
    for sends in [&[][..], &raw_call(1, ECHO, 0, &[])] {
        simulate(5, |w| async move {
            let limits = Limits { part_of_address: PLACES / 2, ..Limits::default() };
            let echo = vec![Echo::new(&w.env, ECHO) as Arc<dyn sluice_rpc::Program>];
            let server = Arc::new(Server::new(w.env.clone(), w.at_server.clone(), limits, echo));
            let listener = Short(server.listen(w.listen).await.unwrap(), Arc::clone(&server));
            let at = listener.local_addr();
            w.env.spawn.spawn(Box::pin(Arc::clone(&server).serve(Box::new(listener))));
            let _silent = crowd(&w, at, sends).await;
            a_while(&w).await;
            for n in 0..PLACES / 2 {
                assert!(served(&w, &format!("h{n}"), at).await.is_some(), "it finds a place");
            }
        });
    }
}

#[test]
fn one_address_has_what_nobody_else_wants() {
    simulate(2, |w| async move {
        let (server, at) = w.serve(few(), vec![Echo::new(&w.env, ECHO)]).await;
        let mut many = Vec::new();
        for _ in 0..PLACES {
            many.push(served(&w, "nat", at).await.unwrap());
        }
        a_while(&w).await;
        assert_eq!(server.admission(), Admission { open: PLACES as u64, tls: 0, refused: 0 });
        // Who is at work keeps its place; who has been idle for longest goes, as long as its address has more than its part.
        call(&many[0], procedure::ECHO, "at work").await.unwrap();
        w.env.clock.sleep(SECOND * 3).await;
        let mut others = Vec::new();
        for n in 0..PLACES / 2 {
            others.push(served(&w, &format!("h{n}"), at).await.expect("it finds a place"));
            w.env.clock.sleep(SECOND).await;
        }
        assert!(served(&w, "late", at).await.is_none(), "all have their part, or are at work");
        let open = |c: &&Arc<Connection>| !c.is_closed();
        assert_eq!(many.iter().filter(open).count(), PLACES / 2);
        assert!(!many[0].is_closed());
        assert!(others.iter().all(|c| !c.is_closed()));
    });
}

#[test]
fn many_small_ones_are_not_sent_away() {
    simulate(3, |w| async move {
        let (_server, at) = w.serve(few(), vec![Echo::new(&w.env, ECHO)]).await;
        let mut all = Vec::new();
        for n in 0..PLACES {
            all.push(served(&w, &format!("h{}", n / 2), at).await.unwrap());
        }
        a_while(&w).await;
        assert!(served(&w, "late", at).await.is_none());
        assert!(all.iter().all(|c| !c.is_closed()));
    });
}

#[test]
fn who_holds_the_key_stays() {
    simulate(4, |w| async move {
        let key = ClusterKey::generate(&w.env);
        let echo = |number| vec![Echo::new(&w.env, number) as Arc<dyn sluice_rpc::Program>];
        let limits = Limits { part_of_address: 1, ..few() };
        let server = Server::new(w.env.clone(), w.at_server.clone(), limits, echo(ECHO));
        let (_server, at) = w.run(server.with_secure(key.clone(), echo(CONTROL))).await;
        let mut all = Vec::new();
        for _ in 0..PLACES {
            all.push(w.client().with_key(key.clone()).dial(at).await.unwrap());
        }
        a_while(&w).await;
        assert!(served(&w, "late", at).await.is_none());
        assert!(all.iter().all(|c| !c.is_closed()));
    });
}
