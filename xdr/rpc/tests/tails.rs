//! Ends of large calls that stay in the kernel.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::*;
use sluice_env::BoxFuture;
use sluice_rpc::{Call, CallError, ClusterKey, Connection, Credential, Limits, Program, Reply, Server};
use tokio::io::AsyncWriteExt;

const MIB: usize = 1 << 20;

fn content(length: usize, seed: usize) -> Bytes {
    (0..length).map(|i| (i * 7 + (i >> 8) + seed) as u8).collect::<Vec<_>>().into()
}

/// Wants all of a call but so many bytes, rounded up to what has arrived, outside of memory, and answers with a digest of
/// all its bytes.
#[derive(Debug, Default)]
struct Digest {
    in_memory: usize,
    /// Whether it leaves what it finds in the pipe.
    careless: bool,
    tails: AtomicUsize,
    bytes: AtomicUsize,
}

impl Program for Digest {
    fn number(&self) -> u32 {
        CONTROL
    }

    fn versions(&self) -> RangeInclusive<u32> {
        3..=3
    }

    fn leave(&self, version: u32, procedure: u32, args: &[u8], length: usize) -> Option<usize> {
        assert!(version == 3 && procedure == 1 && args.len() < length);
        Some(args.len().max(self.in_memory).next_multiple_of(4096))
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        let mut all = call.args.to_vec();
        if let Some(tail) = call.tail {
            assert_eq!(all.len() % 4096, 0, "what is in memory ends where it was asked to");
            self.tails.fetch_add(1, Ordering::SeqCst);
            self.bytes.fetch_add(tail.length(), Ordering::SeqCst);
            let mut left = vec![0; if self.careless { 10 } else { tail.length() + 1 }];
            while !left.is_empty() {
                match rustix::io::read(tail.as_fd(), &mut left) {
                    Ok(n) => {
                        all.extend_from_slice(&left[..n]);
                        left.drain(..n);
                    }
                    Err(error) => {
                        assert_eq!((error, left.len()), (rustix::io::Errno::AGAIN, 1), "all of it, no more");
                        break;
                    }
                }
            }
        }
        let digest = Bytes::copy_from_slice(digest_of(&all).as_slice());
        Box::pin(std::future::ready(Reply::Success(digest.into())))
    }
}

/// Not a digest for anything but tests.
fn digest_of(data: &[u8]) -> [u8; 8] {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    data.iter().fold(data.len() as u64, step).to_be_bytes()
}

async fn put(c: &Connection, data: &Bytes) -> Result<Bytes, CallError> {
    c.call(CONTROL, 3, 1, &Credential::None, data.clone().into(), LONG).await
}

fn limits() -> Limits {
    Limits { max_record: 4 * MIB, connection_budget: 16 * MIB, ..Limits::default() }
}

async fn digests(w: &World, program: &Arc<Digest>) -> Arc<Connection> {
    let (_server, addr) =
        w.serve(limits(), vec![Echo::new(&w.env, ECHO), Arc::clone(program) as Arc<dyn Program>]).await;
    w.client().dial(addr).await.unwrap()
}

/// Of many sizes, several under way at once, between calls of other kinds, in order. Returns how many had a tail.
async fn all_sizes(w: World) -> usize {
    let program = Arc::new(Digest::default());
    let c = digests(&w, &program).await;
    let sizes = [0, 1, 4096, 65_535, 65_536, 70_000, 131_072, 139_272, 300_001, MIB, MIB + 8192];
    for (round, sizes) in [sizes; 3].iter().enumerate() {
        for (i, pair) in sizes.windows(2).enumerate() {
            let (first, second) = (content(pair[0], round), content(pair[1], i));
            let between =
                async { assert_eq!(call(&c, procedure::ECHO, "between").await.unwrap(), "between") };
            let put = |data: Bytes| {
                let c = &c;
                async move { assert_eq!(put(c, &data).await.unwrap()[..], digest_of(&data), "{}", data.len()) }
            };
            tokio::join!(put(first), between, put(second));
        }
    }
    program.tails.load(Ordering::SeqCst)
}

#[test]
fn a_call_with_a_tail_is_the_same_call() {
    on_tcp("127.0.0.1:0", async |w| assert!(all_sizes(w).await >= 6));
    // A connection has no more tails once a pipe was full of small pieces: how many came before, is its network's luck.
    let mut tails = 0;
    (0..4).for_each(|seed| simulate(seed, async |w| tails += all_sizes(w).await));
    assert!(tails >= 4 * 6, "{tails}");
}

/// The tail is nearly all of a large call: what is in memory is copied.
#[test]
fn little_is_in_memory_once_large_calls_are_usual() {
    on_tcp("127.0.0.1:0", async |w| {
        let program = Arc::new(Digest::default());
        let c = digests(&w, &program).await;
        let data = content(MIB, 1);
        put(&c, &data).await.unwrap();
        for calls in 1..20 {
            program.bytes.store(0, Ordering::SeqCst);
            assert_eq!(put(&c, &data).await.unwrap()[..], digest_of(&data));
            assert_eq!(program.bytes.load(Ordering::SeqCst), MIB - 4096, "call {calls}");
        }
    });
}

/// Small calls that follow a large one are read together again: one record without a tail is enough.
#[test]
fn a_small_call_ends_the_expectation() {
    on_tcp("127.0.0.1:0", async |w| {
        let program = Arc::new(Digest::default());
        let c = digests(&w, &program).await;
        let data = content(MIB, 1);
        for (procedure, what) in [(procedure::NOW, "answered at once"), (procedure::GATE, "later")] {
            for _ in 0..3 {
                put(&c, &data).await.unwrap();
            }
            program.bytes.store(0, Ordering::SeqCst);
            let _ = w.env.clock.timeout(SECOND / 50, call(&c, procedure, "small")).await;
            let mut least = MIB;
            for _ in 0..20 {
                // What is in the buffer beside the head is what was read with it.
                put(&c, &data).await.unwrap();
                least = least.min(program.bytes.swap(0, Ordering::SeqCst));
                let _ = w.env.clock.timeout(SECOND / 50, call(&c, procedure, "small")).await;
            }
            assert!(least < MIB - 4096, "{what}: {least} bytes of a tail, as if the head was read alone");
        }
    });
}

/// A pipe has a limited number of pages, whatever they hold. Those of the simulated network are of 4 KiB.
#[test]
fn what_does_not_fit_into_a_pipe_comes_into_memory() {
    simulate(1, async |w| {
        let program = Arc::new(Digest::default());
        let c = digests(&w, &program).await;
        let (large, larger) = (content(MIB, 1), content(3 * MIB, 2));
        assert_eq!(put(&c, &larger).await.unwrap()[..], digest_of(&larger));
        assert_eq!(program.tails.load(Ordering::SeqCst), 0);
        assert_eq!(put(&c, &large).await.unwrap()[..], digest_of(&large));
        assert_eq!(program.tails.load(Ordering::SeqCst), 0, "and so do all that follow");
        assert_eq!(call(&c, procedure::ECHO, "after").await.unwrap(), "after");
    });
}

/// What a program leaves in its pipe belongs to nobody's next call.
#[test]
fn a_pipe_that_is_not_empty_is_not_used_again() {
    on_tcp("127.0.0.1:0", async |w| {
        let program = Arc::new(Digest { careless: true, ..Digest::default() });
        let c = digests(&w, &program).await;
        for i in 0..40 {
            let data = content(MIB, i);
            let tails = program.bytes.swap(0, Ordering::SeqCst);
            let digest = put(&c, &data).await.unwrap();
            let here = MIB - program.bytes.load(Ordering::SeqCst);
            assert_eq!(digest[..], digest_of(&data[..here + 10]), "call {i}, after a tail of {tails} bytes");
        }
    });
}

/// Neither bytes nor memory remain of a call that ends early.
#[test]
fn a_call_that_is_not_sent_whole_is_none() {
    on_tcp("127.0.0.1:0", async |w| {
        let program = Arc::new(Digest::default());
        let (server, addr) = w.serve(limits(), vec![Arc::clone(&program) as Arc<dyn Program>]).await;
        let whole = record(MIB);
        for sent in [50, 2000, 5000, 100_000, whole.len() - 1] {
            let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
            stream.write_all(&whole[..sent]).await.unwrap();
            stream.shutdown().await.unwrap();
            w.until("the connection ends", || server.connections().is_empty()).await;
        }
        assert_eq!(program.tails.load(Ordering::SeqCst), 0);
        assert_eq!(server.bytes_held(), 0);
    });
}

/// A call of the digest as it goes over the wire.
fn record(length: usize) -> Vec<u8> {
    let mut record = Vec::new();
    for word in [0x8000_0000 | (40 + length as u32), 7, 0, 2, CONTROL, 3, 1, 0, 0, 0, 0] {
        record.extend_from_slice(&word.to_be_bytes());
    }
    record.extend_from_slice(&content(length, 0));
    record
}

/// In small pieces, with pauses, and in records of several fragments.
#[test]
fn the_pieces_do_not_matter() {
    on_tcp("127.0.0.1:0", async |w| {
        let program = Arc::new(Digest::default());
        let (server, addr) = w.serve(limits(), vec![Arc::clone(&program) as Arc<dyn Program>]).await;
        for piece in [1000, 4096, 50_000, 300_000] {
            let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
            stream.set_nodelay(true).unwrap();
            for piece in record(MIB).chunks(piece) {
                stream.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            let mut reply = [0; 36];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut reply).await.unwrap();
            assert_eq!(reply[28..], digest_of(&content(MIB, 0)), "{piece}");
        }
        assert!(program.tails.load(Ordering::SeqCst) > 0);
        let before = program.tails.load(Ordering::SeqCst);
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let whole = record(MIB);
        let (first, second) = whole[4..].split_at(500_000);
        for (fragment, last) in [(first, 0), (second, 0x8000_0000)] {
            stream.write_all(&(fragment.len() as u32 | last).to_be_bytes()).await.unwrap();
            stream.write_all(fragment).await.unwrap();
        }
        let mut reply = [0; 36];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut reply).await.unwrap();
        assert_eq!(reply[28..], digest_of(&content(MIB, 0)));
        assert_eq!(program.tails.load(Ordering::SeqCst), before, "fragments are put together in memory");
        drop(server);
    });
}

#[test]
fn nothing_bypasses_the_encryption() {
    on_tcp("127.0.0.1:0", async |w| {
        let (key, program) = (ClusterKey::from_bytes([1; 32]), Arc::new(Digest::default()));
        let server = Server::new(w.env.clone(), w.at_server.clone(), limits(), vec![]);
        let programs: Vec<Arc<dyn Program>> = vec![Arc::clone(&program) as Arc<dyn Program>];
        let (_server, addr) = w.run(server.with_secure(key.clone(), programs)).await;
        let c = w.client().with_key(key).dial(addr).await.unwrap();
        let data = content(MIB, 1);
        assert_eq!(put(&c, &data).await.unwrap()[..], digest_of(&data));
        assert_eq!(program.tails.load(Ordering::SeqCst), 0);
    });
}
