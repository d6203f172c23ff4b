//! What a greedy peer costs in memory, measured. One test at a time: it looks at the whole process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::*;
use sluice_rpc::{Credential, Limits, Share, program};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MIB: usize = 1 << 20;
const BUDGET: usize = 16 * MIB;

#[test]
fn greed_has_a_bound() {
    for seed in 0..4 {
        simulate(seed, |w| async move { who_reads_slowly_keeps_no_large_call_waiting(&w).await });
        simulate(seed, |w| async move { who_takes_next_to_nothing_is_not_waited_for(&w).await });
        simulate(
            seed,
            |w| async move { who_went_away_inside_a_large_record_is_not_waited_for_long(&w).await },
        );
    }
    simulate(0, |w| async move { small_replies_that_wait_keep_no_large_buffers(&w).await });
    on_tcp("127.0.0.1:0", |w| async move {
        announcements_cost_nothing(&w).await;
        the_beginning_of_a_record_keeps_no_large_buffer(&w).await;
        large_records_arrive_by_turns(&w).await;
        large_calls_wait_at_their_peers(&w).await;
        who_does_not_read_takes_no_more_than_is_left(&w).await;
        who_reads_slowly_keeps_no_large_call_waiting(&w).await;
        fragments_arrive_by_turns(&w).await;
        for bound in [None, Some(program::DEFAULT_REPLY_BOUND)] {
            undrained_reads(&w, bound).await;
        }
    });
}

/// 1,024 READs of 1 MiB, none of whose replies is read for a while.
async fn undrained_reads(w: &World, bound: Option<usize>) {
    let limits = Limits { connection_budget: BUDGET, ..Limits::default() };
    let program = Arc::new(Echo { bound, ..Echo::plain(&w.env, ECHO) });
    let (server, addr) = w.serve(limits, vec![program.clone()]).await;
    let mut s = w.at_client.connect(addr).await.unwrap();
    let before = resident();
    for xid in 0..1024 {
        let call = raw_call(xid, ECHO, procedure::READ_FRESH, &[1 << 20]);
        s.write_all(&call).await.unwrap();
    }
    let mut most = 0;
    for _ in 0..50 {
        most = most.max(server.bytes_held());
        w.env.clock.sleep(Duration::from_millis(10)).await;
    }
    let grown = resident().saturating_sub(before);
    let ran = program.started.load(Ordering::SeqCst);
    println!("held {} KiB, resident grew {} KiB, {ran} of 1024 calls ran", most >> 10, grown >> 10);
    assert!(most <= BUDGET, "{most}");
    assert!(most > BUDGET / 2, "the budget is used: {most}");
    assert!(grown < BUDGET + 8 * MIB, "{grown}");
    // What the kernel buffers is with the kernel; everything else waits for its turn.
    assert!(ran < 64, "{ran}");

    // Nothing was lost: reading now yields every reply.
    let mut reply = vec![0; 4 + 24 + MIB];
    for xid in 0..1024_u32 {
        s.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply[4..8], xid.to_be_bytes());
    }
    w.until("everything is given back", || server.bytes_held() == 0).await;
}

/// 200 peers that announce a large record, and 200 that send fragments without end.
async fn announcements_cost_nothing(w: &World) {
    let (server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let before = resident();
    let mut peers = Vec::new();
    for _ in 0..200 {
        let mut s = w.at_client.connect(addr).await.unwrap();
        s.write_all(&(0x8000_0000 | (1_u32 << 20)).to_be_bytes()).await.unwrap();
        s.write_all(&[0; 100]).await.unwrap();
        peers.push(s);
        let mut s = w.at_client.connect(addr).await.unwrap();
        let _ = s.write_all(&[0, 0, 0, 1, 1].repeat(100)).await;
        peers.push(s);
    }
    w.until("all are connected", || server.connections().len() == 400).await;
    let grown = resident().saturating_sub(before);
    println!("400 half records: resident grew {} KiB", grown >> 10);
    assert!(grown < 32 * MIB, "{grown}");
}

/// 100 peers that send a WRITE of 1 MiB, and a byte of what would come next.
async fn the_beginning_of_a_record_keeps_no_large_buffer(w: &World) {
    let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let mut sent = raw_call(1, ECHO, procedure::WRITE, &vec![3; MIB / 4]);
    sent.push(0x80);
    let before = resident();
    let mut peers = Vec::new();
    for _ in 0..100 {
        let mut s = w.at_client.connect(addr).await.unwrap();
        s.write_all(&sent).await.unwrap();
        s.read_exact(&mut [0; 28]).await.unwrap();
        peers.push(s);
    }
    w.env.clock.sleep(Duration::from_millis(100)).await;
    let grown = resident().saturating_sub(before);
    println!("100 x 1 MiB and a byte: resident grew {} KiB", grown >> 10);
    assert!(grown < 32 * MIB, "{grown}");
    for mut s in peers {
        // The rest of it.
        s.write_all(&raw_call(2, ECHO, procedure::NULL, &[])[1..]).await.unwrap();
        s.read_exact(&mut [0; 28]).await.unwrap();
    }
}

/// 20,000 small calls, one at a time, of a peer that reads none of their replies for a while.
async fn small_replies_that_wait_keep_no_large_buffers(w: &World) {
    const CALLS: u32 = 20_000;
    let (server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
    let mut s = w.at_client.connect(addr).await.unwrap();
    let mut large = 0;
    while server.bytes_held() == 0 {
        s.write_all(&raw_call(0, ECHO, procedure::READ_FRESH, &[256 << 10])).await.unwrap();
        large += 1;
        w.env.clock.sleep(Duration::from_millis(20)).await;
    }
    let (before, held_before) = (resident(), server.bytes_held());
    for xid in 1..=CALLS {
        s.write_all(&raw_call(xid, ECHO, procedure::NOW, &[xid])).await.unwrap();
        // The next one comes alone, too.
        w.env.clock.sleep(Duration::from_millis(5)).await;
    }
    let (grown, held) = (resident().saturating_sub(before), server.bytes_held() - held_before);
    println!("{CALLS} small replies that wait: held {} KiB, resident grew {} KiB", held >> 10, grown >> 10);
    assert!(held > CALLS as usize * 256, "they wait");
    assert!(grown < 2 * held + 8 * MIB, "{grown}");
    for _ in 0..large {
        s.read_exact(&mut vec![0; 28 + (256 << 10)]).await.unwrap();
    }
    for xid in 1..=CALLS {
        let mut reply = [0; 32];
        s.read_exact(&mut reply).await.unwrap();
        assert_eq!((&reply[4..8], &reply[28..]), (&xid.to_be_bytes()[..], &xid.to_be_bytes()[..]));
    }
    w.until("everything is given back", || server.bytes_held() == 0).await;
}

/// 100 peers that send all but the last fragment of a large record, in fragments none of which is large.
async fn fragments_arrive_by_turns(w: &World) {
    let arriving = Share { base: 4 * MIB, per_connection: 16 << 10 };
    let (_server, addr) =
        w.serve(Limits { arriving, ..Limits::default() }, vec![Echo::new(&w.env, ECHO)]).await;
    let fragment: Vec<u8> = [&(60_u32 << 10).to_be_bytes()[..], &[1; 60 << 10]].concat();
    let fragments: Arc<[u8]> = fragment.repeat(17).into();
    let before = resident();
    let mut peers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (mut s, fragments) = (w.at_client.connect(addr).await.unwrap(), Arc::clone(&fragments));
        let clock = Arc::clone(&w.env.clock);
        peers.spawn(async move {
            let _ = clock.timeout(Duration::from_secs(1), s.write_all(&fragments)).await;
            s
        });
    }
    let mut all = Vec::new();
    while let Some(peer) = peers.join_next().await {
        all.push(peer.unwrap());
    }
    let grown = resident().saturating_sub(before);
    println!("100 x 1 MiB in fragments: resident grew {} KiB", grown >> 10);
    assert!(grown < 32 * MIB, "{grown}");
}

/// One peer that reads none of what it asks for, and then others that do.
async fn who_does_not_read_takes_no_more_than_is_left(w: &World) {
    let limits =
        Limits { connection_budget: 16 * MIB, server_budget: Share::fixed(12 * MIB), ..Limits::default() };
    let (server, addr) = w.serve(limits, vec![Echo::new(&w.env, ECHO)]).await;
    let mut greedy = Vec::new();
    for _ in 0..3 {
        let mut s = w.at_client.connect(addr).await.unwrap();
        for xid in 0..64 {
            s.write_all(&raw_call(xid, ECHO, procedure::READ_FRESH, &[1 << 20])).await.unwrap();
        }
        greedy.push(s);
    }
    // What the kernel takes of the replies is not held.
    w.env.clock.sleep(Duration::from_millis(500)).await;
    println!("three that do not read: {} KiB held", server.bytes_held() >> 10);
    assert!(server.bytes_held() > 6 * MIB);
    let c = w.client().dial(addr).await.unwrap();
    for _ in 0..10 {
        let read = call(&c, procedure::READ_FRESH, words(&[1 << 20]));
        let read = w.env.clock.timeout(Duration::from_secs(3), read).await;
        assert_eq!(read.expect("there is room for it").unwrap().len(), MIB);
    }
}

/// 16 peers that ask for much in small pieces and take it slowly, and one that asks for little in large ones.
async fn who_reads_slowly_keeps_no_large_call_waiting(w: &World) {
    let server_budget = Share { base: 12 * MIB, per_connection: 64 << 10 };
    let limits = Limits { connection_budget: 16 * MIB, server_budget, ..Limits::default() };
    let (server, addr) = w.serve(limits, vec![Echo::new(&w.env, ECHO)]).await;
    let mut greedy = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (mut reader, mut writer) = {
            let s = w.at_client.connect(addr).await.unwrap();
            (s.reader, s.writer)
        };
        greedy.spawn(async move {
            let calls = raw_call(1, ECHO, procedure::READ_FRESH, &[60 << 10]).repeat(100);
            while writer.write_all(&calls).await.is_ok() {}
        });
        let clock = Arc::clone(&w.env.clock);
        greedy.spawn(async move {
            let mut taken = vec![0; 60 << 10];
            while reader.read_exact(&mut taken).await.is_ok() {
                clock.sleep(Duration::from_millis(25)).await;
            }
        });
    }
    w.until("they take all they can", || server.bytes_held() > 12 * MIB).await;
    let c = w.client().dial(addr).await.unwrap();
    let (begun, mut longest) = (w.env.clock.now(), Duration::ZERO);
    let write = bytes::Bytes::from(vec![1; MIB]);
    for round in 0..6 {
        let asked = w.env.clock.now();
        let answer = match round % 2 {
            0 => call(&c, procedure::READ_FRESH, words(&[1 << 20])).await,
            _ => call(&c, procedure::WRITE, write.clone()).await,
        };
        longest = longest.max(w.env.clock.now().since(asked));
        answer.expect("it has its turn");
    }
    println!("beside 16 slow ones: six calls of 1 MiB in {:?}", w.env.clock.now().since(begun));
    assert!(longest < Duration::from_secs(3), "{longest:?}");
    assert!(server.bytes_held() > 10 * MIB, "the others go on: {}", server.bytes_held());
}

/// Four peers that ask for much and take a hundred bytes of it now and then, and one that asks for something large.
async fn who_takes_next_to_nothing_is_not_waited_for(w: &World) {
    let limits =
        Limits { connection_budget: 16 * MIB, server_budget: Share::fixed(12 * MIB), ..Limits::default() };
    let (server, addr) = w.serve(limits, vec![Echo::new(&w.env, ECHO)]).await;
    let mut greedy = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (mut reader, mut writer) = {
            let s = w.at_client.connect(addr).await.unwrap();
            (s.reader, s.writer)
        };
        greedy.spawn(async move {
            let calls = raw_call(1, ECHO, procedure::READ_FRESH, &[60 << 10]).repeat(100);
            while writer.write_all(&calls).await.is_ok() {}
        });
        let clock = Arc::clone(&w.env.clock);
        greedy.spawn(async move {
            let mut taken = [0; 100];
            while reader.read_exact(&mut taken).await.is_ok() {
                clock.sleep(Duration::from_secs(3)).await;
            }
        });
    }
    w.until("they take all they can", || server.bytes_held() > 11 * MIB).await;
    let c = w.client().dial(addr).await.unwrap();
    let asked = w.env.clock.now();
    for _ in 0..3 {
        let read =
            c.call(ECHO, 3, procedure::READ_FRESH, &Credential::None, words(&[1 << 20]).into(), 6 * LONG);
        assert_eq!(read.await.expect("it has its turn").len(), MIB);
    }
    let took = w.env.clock.now().since(asked);
    assert!(took < Duration::from_secs(30), "{took:?}");
}

/// Twelve hosts that lost their network, with room for four records, and one that is there. A thirteenth is slow.
async fn who_went_away_inside_a_large_record_is_not_waited_for_long(w: &World) {
    let arriving = Share::fixed(4 * MIB + (64 << 10));
    let (_, addr) = w.serve(Limits { arriving, ..Limits::default() }, vec![Echo::new(&w.env, ECHO)]).await;
    let call: Arc<[u8]> = raw_call(1, ECHO, procedure::WRITE, &vec![3; MIB / 4]).into();
    let slow = Arc::clone(&call);
    let mut s = w.at_client.connect(addr).await.unwrap();
    let clock = Arc::clone(&w.env.clock);
    let mut slow_one = tokio::task::JoinSet::new();
    slow_one.spawn(async move {
        for part in slow.chunks(MIB / 8) {
            s.write_all(part).await.unwrap();
            clock.sleep(Duration::from_secs(1)).await;
        }
        s.read_exact(&mut [0; 28]).await.unwrap();
    });
    let mut gone = Vec::new();
    for _ in 0..12 {
        let mut s = w.at_client.connect(addr).await.unwrap();
        s.write_all(&call[..32 << 10]).await.unwrap();
        gone.push(s);
    }
    w.env.clock.sleep(Duration::from_millis(100)).await;
    let asked = w.env.clock.now();
    let mut s = w.at_client.connect(addr).await.unwrap();
    s.write_all(&call).await.unwrap();
    s.read_exact(&mut [0; 28]).await.unwrap();
    let took = w.env.clock.now().since(asked);
    assert!(took < Duration::from_secs(20), "{took:?}");
    slow_one.join_next().await.unwrap().unwrap();
}

/// 100 peers that send a WRITE of 1 MiB at the same time.
async fn large_records_arrive_by_turns(w: &World) {
    let arriving = Share { base: 4 * MIB, per_connection: 16 << 10 };
    let (server, addr) =
        w.serve(Limits { arriving, ..Limits::default() }, vec![Echo::new(&w.env, ECHO)]).await;
    let call: Arc<[u8]> = raw_call(1, ECHO, procedure::WRITE, &vec![3; MIB / 4]).into();
    let before = resident();
    let mut peers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (mut s, call) = (w.at_client.connect(addr).await.unwrap(), Arc::clone(&call));
        peers.spawn(async move {
            for _ in 0..3 {
                s.write_all(&call).await.unwrap();
                s.read_exact(&mut [0; 28]).await.unwrap();
            }
            s
        });
    }
    let (mut most, mut done) = (0, Vec::new());
    while let Some(peer) = peers.join_next().await {
        done.push(peer.unwrap());
        most = most.max(resident().saturating_sub(before));
    }
    println!("100 x 3 WRITEs of 1 MiB: resident grew {} KiB", most >> 10);
    assert!(most < 32 * MIB, "{most}");
    w.until("everything is given back", || server.bytes_held() == 0).await;
}

/// 100 peers that send a WRITE of 1 MiB to handlers that stand still: what the budget does not let in is not read.
async fn large_calls_wait_at_their_peers(w: &World) {
    let (server_budget, arriving) = (Share::fixed(8 * MIB), Share::fixed(4 * MIB));
    let program = Arc::new(Echo { bound: Some(4096), ..Echo::plain(&w.env, ECHO) });
    let limits = Limits { server_budget, arriving, ..Limits::default() };
    let (server, addr) = w.serve(limits, vec![program.clone()]).await;
    let call: Arc<[u8]> = raw_call(1, ECHO, procedure::GATED_WRITE, &vec![3; MIB / 4]).into();
    let before = resident();
    let mut peers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (mut s, call) = (w.at_client.connect(addr).await.unwrap(), Arc::clone(&call));
        peers.spawn(async move {
            s.write_all(&call).await.unwrap();
            s.read_exact(&mut [0; 28]).await.unwrap();
        });
    }
    w.until("the budget is used", || program.started.load(Ordering::SeqCst) == 7).await;
    w.env.clock.sleep(Duration::from_millis(300)).await;
    let grown = resident().saturating_sub(before);
    println!("100 WRITEs of 1 MiB that stand still: resident grew {} KiB", grown >> 10);
    assert!(grown < 32 * MIB, "{grown}");
    program.gate.add_permits(100);
    while let Some(peer) = peers.join_next().await {
        peer.unwrap();
    }
    w.until("everything is given back", || server.bytes_held() == 0).await;
}
