//! Data that goes from where it is to the socket.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use sluice_env::BoxFuture;
use sluice_rpc::{Call, CallError, ClusterKey, Credential, Limits, Payload, Program, Reply, Sent, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

const DATA: usize = 1 << 20;

fn content() -> Bytes {
    (0..DATA as u32).map(|i| (i * 7 + (i >> 8)) as u8).collect::<Vec<_>>().into()
}

/// Replies are a word and the content. The argument says how many bytes are at hand, and how many are there at all.
#[derive(Debug)]
struct Store {
    content: Bytes,
    sent: Arc<AtomicUsize>,
    loaded: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Part {
    content: Bytes,
    at_hand: usize,
    sent: Arc<AtomicUsize>,
    loaded: Arc<AtomicUsize>,
}

impl Payload for Part {
    fn length(&self) -> usize {
        DATA
    }

    fn send(&self, from: usize, socket: BorrowedFd<'_>) -> io::Result<Sent> {
        if from >= self.at_hand {
            return Ok(Sent::Absent);
        }
        let mut socket = std::fs::File::from(socket.try_clone_to_owned()?);
        let n = socket.write(&self.content[from..self.at_hand.min(from + 100_000)])?;
        self.sent.fetch_add(n, Ordering::SeqCst);
        Ok(Sent::Bytes(n))
    }

    fn load(self: Arc<Self>, from: usize, most: usize) -> BoxFuture<'static, io::Result<Bytes>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let rest = self.content.slice(from..self.content.len().min(from + most));
            self.loaded.fetch_add(rest.len(), Ordering::SeqCst);
            Ok(rest)
        })
    }
}

impl Program for Store {
    fn number(&self) -> u32 {
        CONTROL
    }

    fn versions(&self) -> RangeInclusive<u32> {
        3..=3
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        let (at_hand, there) = (word(&call.args) as usize, word(&call.args[4..]) as usize);
        let content = self.content.slice(..there);
        let (sent, loaded) = (Arc::clone(&self.sent), Arc::clone(&self.loaded));
        let part = Part { content, at_hand, sent, loaded };
        Box::pin(std::future::ready(Reply::Data(words(&[call.xid]).into(), Arc::new(part))))
    }
}

fn store() -> Arc<Store> {
    Arc::new(Store { content: content(), sent: Arc::default(), loaded: Arc::default() })
}

async fn get(c: &sluice_rpc::Connection, at_hand: usize, there: usize) -> Result<Bytes, CallError> {
    let args = words(&[at_hand as u32, there as u32]);
    c.call(CONTROL, 3, 1, &Credential::None, args.into(), LONG).await
}

/// Whatever part of it is at hand, all of it arrives, between replies of other kinds, in order.
async fn all_of_it(w: &World, c: &sluice_rpc::Connection, store: &Store, at_hand: usize) -> (usize, usize) {
    store.sent.store(0, Ordering::SeqCst);
    store.loaded.store(0, Ordering::SeqCst);
    let small = async {
        for _ in 0..20 {
            assert_eq!(call(c, procedure::ECHO, "between").await.unwrap(), "between");
            w.env.clock.sleep(Duration::from_micros(100)).await;
        }
    };
    let large = || async { assert_eq!(get(c, at_hand, DATA).await.unwrap()[4..], content()) };
    tokio::join!(large(), small, large(), large());
    (store.sent.load(Ordering::SeqCst), store.loaded.load(Ordering::SeqCst))
}

#[test]
fn a_socket_gets_what_is_at_hand_and_the_rest_is_loaded() {
    on_tcp("127.0.0.1:0", async |w| {
        let store = store();
        let (_server, addr) =
            w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO), Arc::clone(&store) as _]).await;
        let c = w.client().dial(addr).await.unwrap();
        for at_hand in [DATA, DATA - 1, 4096, 0] {
            let moved = all_of_it(&w, &c, &store, at_hand).await;
            assert_eq!(moved, (3 * at_hand, 3 * (DATA - at_hand)));
        }
    });
}

#[test]
fn other_streams_get_all_of_it_from_memory() {
    simulate(3, async |w| {
        let store = store();
        let (_server, addr) =
            w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO), Arc::clone(&store) as _]).await;
        let c = w.client().dial(addr).await.unwrap();
        assert_eq!(all_of_it(&w, &c, &store, DATA).await, (0, 3 * DATA));
    });
    on_tcp("127.0.0.1:0", async |w| {
        let (key, store) = (ClusterKey::from_bytes([1; 32]), store());
        let server = Server::new(w.env.clone(), w.at_server.clone(), Limits::default(), vec![]);
        let programs: Vec<Arc<dyn Program>> = vec![Echo::new(&w.env, ECHO), Arc::clone(&store) as _];
        let (_server, addr) = w.run(server.with_secure(key.clone(), programs)).await;
        let c = w.client().with_key(key).dial(addr).await.unwrap();
        assert_eq!(all_of_it(&w, &c, &store, DATA).await, (0, 3 * DATA), "never past the encryption");
    });
}

/// Data that is nowhere but where it always is takes no room from others, however slowly it is taken.
#[test]
fn what_waits_in_its_place_takes_no_memory() {
    on_tcp("127.0.0.1:0", async |w| {
        let (server, addr) = w.serve(Limits::default(), vec![store() as _]).await;
        for at_hand in [DATA, 4096] {
            let mut slow = w.at_client.connect(addr).await.unwrap();
            for xid in 0..40 {
                slow.write_all(&raw_call(xid, CONTROL, 1, &[at_hand as u32, DATA as u32])).await.unwrap();
            }
            w.env.clock.sleep(Duration::from_millis(300)).await;
            let held = server.bytes_held();
            assert!((20_000..8 * DATA).contains(&held), "{held}");
            let mut reply = vec![0; 4 + 24 + 4 + DATA];
            for xid in 0..40_u32 {
                slow.read_exact(&mut reply).await.unwrap();
                assert_eq!((&reply[4..8], &reply[32..]), (&xid.to_be_bytes()[..], &content()[..]));
            }
            w.until("everything is given back", || server.bytes_held() == 0).await;
        }
    });
}

/// The head of the reply has left: nothing but the end of the connection can take it back.
#[test]
fn a_promise_that_cannot_be_kept_ends_the_connection() {
    on_tcp("127.0.0.1:0", async |w| {
        let (_server, addr) = w.serve(Limits::default(), vec![store() as _]).await;
        let c = w.client().dial(addr).await.unwrap();
        assert_eq!(get(&c, 4096, DATA - 4).await, Err(CallError::Closed));
        let c = w.client().dial(addr).await.unwrap();
        assert_eq!(get(&c, 4096, DATA).await.unwrap().len(), 4 + DATA);
    });
}

/// Takes long to say how long it is, which its connection asks last when the reply is about to be queued.
#[derive(Debug)]
struct Slow;

impl Payload for Slow {
    #[allow(clippy::disallowed_methods, reason = "a thread that is kept busy is what is tested")]
    fn length(&self) -> usize {
        std::thread::sleep(Duration::from_millis(50));
        4
    }

    fn send(&self, _: usize, _: BorrowedFd<'_>) -> io::Result<Sent> {
        Ok(Sent::Absent)
    }

    fn load(self: Arc<Self>, from: usize, most: usize) -> BoxFuture<'static, io::Result<Bytes>> {
        Box::pin(std::future::ready(Ok(words(&[77]).slice(from..most.min(4)))))
    }
}

/// Answers when the gate is opened.
#[derive(Debug)]
struct Gated(Semaphore);

impl Program for Gated {
    fn number(&self) -> u32 {
        CONTROL
    }

    fn versions(&self) -> RangeInclusive<u32> {
        3..=3
    }

    fn call<'a>(&'a self, _: Call) -> BoxFuture<'a, Reply> {
        Box::pin(async {
            drop(self.0.acquire().await);
            Reply::Data(Bytes::new().into(), Arc::new(Slow))
        })
    }
}

/// A call that has ended and whose reply is not in the queue yet is not over.
#[test]
fn a_drain_waits_for_a_reply_on_its_way_to_the_queue() {
    on_tcp("127.0.0.1:0", |w| async move {
        let program = Arc::new(Gated(Semaphore::new(0)));
        let (server, addr) = w.serve(Limits::default(), vec![Arc::clone(&program) as _]).await;
        let c = w.client().dial(addr).await.unwrap();
        let (done, result) = tokio::sync::oneshot::channel();
        w.env.spawn.spawn(Box::pin(async move {
            let _ = done.send(c.call(CONTROL, 3, 1, &Credential::None, Bytes::new().into(), LONG).await);
        }));
        w.until("begun", || server.bytes_held() > 0).await;
        let drained = server.shutdown(LONG);
        let opened = async {
            w.env.clock.sleep(Duration::from_millis(20)).await;
            program.0.add_permits(1);
        };
        tokio::join!(drained, opened);
        assert_eq!(word(&result.await.unwrap().unwrap()), 77);
    });
}
