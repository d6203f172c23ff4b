//! Truncations: of what is told of late, those that a restart interrupted, and those that meet who looks for holes.

use std::cell::Cell;
use std::time::Duration;

use sluice_conformance::client::ops;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_rpc::SimConfig;
use sluice_xdr::nfs4::*;

use crate::client::{self, Client, Opened, RW};
use crate::drain::{drain, drained};
use crate::mirrors::home;
use crate::stage::{UNIT, World, simulate, simulate_on, simulate_with};
use crate::{NEW, pattern};

/// Linux flushes what it wrote, truncates, and tells of what it flushed only afterwards, under the same layout.
#[test]
fn what_was_cut_off_is_not_brought_back_by_who_tells_of_it_late() {
    for shape in [Shape::Small, Shape::WideAny] {
        simulate_with(71, LayoutPolicy { shape, mirrors: 1, inline: 0, class: None }, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let (file, layout) = client.open_with_layout("f").await;
            client.write(&layout, 0, &pattern(0, 192 << 10)).await.unwrap();
            client.truncate(&file, 128 << 10).await;
            client.layout_commit(&file, layout.stateid, Some((192 << 10) - 1)).await.unwrap();
            assert_eq!(client.stat(&file).await.0, 128 << 10);
            // What is written after it counts.
            client.write(&layout, 150 << 10, &pattern(0, 100)).await.unwrap();
            client.layout_commit(&file, layout.stateid, Some((150 << 10) + 99)).await.unwrap();
            assert_eq!(client.stat(&file).await.0, (150 << 10) + 100);
            let zeros = client.proxied_read(&file, 128 << 10, 22 << 10).await;
            assert!(zeros.iter().all(|byte| *byte == 0));
            assert_eq!(client.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
            world.sleep(Duration::from_secs(5)).await;
            assert_eq!(client.stat(&file).await.0, (150 << 10) + 100);
        });
    }
}

/// The layout under which it is told of may be a later one: recalled, for instance, between the flush and the truncation.
#[test]
fn what_was_cut_off_is_not_brought_back_under_another_layout() {
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
    simulate_with(91, policy, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (file, layout) = client.open_with_layout("f").await;
        world.sleep(Duration::from_secs(1)).await;
        client.write(&layout, 0, &pattern(0, 3999)).await.unwrap();
        assert_eq!(client.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
        world.sleep(Duration::from_secs(1)).await;
        client.truncate(&file, 0).await;
        world.sleep(Duration::from_secs(1)).await;
        let layout = client.layout(&file, file.stateid, RW, 0).await;
        client.write(&layout, 0, &pattern(7, 72)).await.unwrap();
        client.layout_commit(&file, layout.stateid, Some(3998)).await.unwrap();
        assert_eq!(client.stat(&file).await.0, 72);
    });
}

/// Nor after a restart, which no truncation is remembered over: whoever reclaims the file may have written before it.
#[test]
fn what_was_cut_off_before_a_restart_is_not_brought_back() {
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
    simulate_with(92, policy, async |world| {
        let mut client = Client::mount(world, "a", NEW).await;
        let (file, layout) = client.open_with_layout("f").await;
        client.write(&layout, 0, &pattern(0, 3999)).await.unwrap();
        client.truncate(&file, 0).await;
        world.restart_metadata_server().await;
        client.reconnect(world).await;
        let file = client.reclaim(&file).await;
        client.ok(vec![nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false })]).await;
        let layout = client.layout(&file, file.stateid, RW, 0).await;
        client.write(&layout, 0, &pattern(7, 72)).await.unwrap();
        client.layout_commit(&file, layout.stateid, Some(3998)).await.unwrap();
        assert_eq!(client.stat(&file).await.0, 72);
        // What is written after it counts.
        client.write(&layout, 500, &pattern(0, 100)).await.unwrap();
        client.layout_commit(&file, layout.stateid, Some(599)).await.unwrap();
        assert_eq!(client.stat(&file).await.0, 600);
        // Who has told once has told of all that was before: nobody is waited for any more.
        client.write(&layout, 600, &pattern(0, 300)).await.unwrap();
        let address = client.device(layout.data_server(0).ffds_deviceid).await;
        let n = (0..4).find(|n| world.data_server(*n) == address).unwrap();
        world.crash_data_server(n).await;
        let op = ops::layoutcommit(layout.stateid, Some(899));
        assert_eq!(client.once(vec![client::putfh(&file.handle), op]).await.0, nfsstat4::NFS4_OK);
    });
}

/// A data server that holds none of it has nothing to say of what was cut off. One that may is waited for: what it has is neither lost,
/// nor are there zeros where nothing was written.
#[test]
fn what_was_cut_off_is_not_brought_back_while_a_data_server_is_away() {
    let policy = LayoutPolicy { shape: Shape::Wide, mirrors: 1, inline: 0, class: None };
    for written in [0, 100] {
        simulate_with(90, policy, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let (file, layout) = client.open_with_layout("f").await;
            client.write(&layout, 0, &pattern(0, 3 * 4096)).await.unwrap();
            let unit = layout.body.ffl_stripe_unit;
            let address = client.device(layout.data_server(2 * unit).ffds_deviceid).await;
            let away = (0..4).find(|n| world.data_server(*n) == address).unwrap();
            client.truncate(&file, 0).await;
            client.write(&layout, 0, &pattern(7, 749)).await.unwrap();
            if written > 0 {
                client.write(&layout, 2 * unit, &pattern(0, written)).await.unwrap();
            }
            world.crash_data_server(away).await;

            let commit = async |last| {
                let op = ops::layoutcommit(layout.stateid, Some(last));
                client.once(vec![client::putfh(&file.handle), op]).await.0
            };
            assert_eq!(commit(3 * 4096 - 1).await, nfsstat4::NFS4_OK);
            assert_eq!(commit(3 * unit - 1).await, nfsstat4::NFS4ERR_DELAY);
            world.sleep(Duration::from_secs(3)).await;
            assert_eq!(commit(3 * unit - 1).await, nfsstat4::NFS4ERR_DELAY);

            world.start_data_server(away).await;
            client.layout_commit(&file, layout.stateid, Some(3 * unit - 1)).await.unwrap();
            let end = if written == 0 { 749 } else { 2 * unit + 100 };
            assert_eq!(client.stat(&file).await.0, end);
        });
    }
}

/// A truncation that is not carried out everywhere goes on after its client gave it up, and that client goes on writing. The data server
/// goes at any moment. Asked for its layout the client says first how far it wrote, as Linux does, which may be of what is cut off,
/// and is answered while the truncation waits for it.
#[test]
fn what_its_own_client_writes_while_a_truncation_waits_for_a_data_server_stays() {
    let policy = LayoutPolicy { shape: Shape::Wide, mirrors: 1, inline: 0, class: None };
    let waited = Cell::new(0);
    for after in 0..16 {
        simulate_with(93, policy, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let (file, layout) = client.open_with_layout("f").await;
            let unit = layout.body.ffl_stripe_unit;
            for at in [0, 2 * unit] {
                client.write(&layout, at, &pattern(0, 5000)).await.unwrap();
            }
            client.layout_commit(&file, layout.stateid, Some(2 * unit + 4999)).await.unwrap();
            let address = client.device(layout.data_server(2 * unit).ffds_deviceid).await;
            let away = (0..4).find(|n| world.data_server(*n) == address).unwrap();
            let size = client::attributes(&Attributes { size: Some(0), ..Attributes::default() });
            let cut = nfs_argop4::OP_SETATTR(SETATTR4args { stateid: file.stateid, obj_attributes: size });
            let cut = client.once(vec![client::putfh(&file.handle), cut]);
            let clock = std::sync::Arc::clone(&world.env.clock);
            let goes = async {
                clock.sleep(Duration::from_millis(after)).await;
                world.crash_data_server(away).await;
            };
            let ((status, _), ()) = tokio::join!(cut, goes);
            let (seen, results) = client.once(vec![client::putfh(&file.handle), Client::getattr()]).await;
            let committed = seen == nfsstat4::NFS4_OK && client::sizes(&results[1]).0 == 0;
            if status != nfsstat4::NFS4ERR_DELAY || !committed {
                return;
            }
            waited.set(waited.get() + 1);
            client.write(&layout, 0, &pattern(7, 1000)).await.unwrap();
            let recalled = clock.timeout(Duration::from_secs(2), client.recalled(1)).await;
            if let Ok((stateid, _)) = recalled {
                let last = if after % 2 == 0 { 2 * unit + 4999 } else { 999 };
                let told = client.commit_as_linux(&file, layout.stateid, Some(last));
                let told = clock.timeout(Duration::from_millis(100), told).await;
                assert!(matches!(told, Ok(Ok(_))), "{told:?}");
                assert_eq!(client.layout_return(&file, stateid).await, nfsstat4::NFS4_OK);
            }
            world.start_data_server(away).await;
            let read = client.proxied_read(&file, 0, 5000).await;
            assert!(read[..] == pattern(7, 1000)[..], "{} bytes after {after} ms", read.len());
            assert!(recalled.is_ok(), "what is written where it is still to be cut would be lost");
            assert_eq!(client.proxied_write(&file, 3 * unit, b"end").await, nfsstat4::NFS4_OK);
            let zeros = client.proxied_read(&file, 2 * unit, 5000).await;
            assert!(zeros.len() == 5000 && zeros.iter().all(|byte| *byte == 0), "it is cut there, too");
            assert_eq!(world.check().await, 0);
        });
    }
    assert!(waited.get() > 0);
}

/// A truncation of another client waits for the layout, and keeps nobody from saying how far he wrote: neither before it is carried
/// out nor later, under another layout, does that bring back what is cut off.
#[test]
fn who_is_asked_for_a_layout_says_first_how_far_it_wrote() {
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
    simulate_with(95, policy, async |world| {
        let (client, other) = (Client::mount(world, "a", NEW).await, Client::mount(world, "b", NEW).await);
        let (file, layout) = client.open_with_layout("f").await;
        let same = other.open("f").await;
        client.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
        let clock = std::sync::Arc::clone(&world.env.clock);
        let cut = clock.timeout(Duration::from_millis(500), other.truncate(&same, 100));
        let returns = async {
            let (stateid, _) = client.recalled(1).await;
            let told = client.commit_as_linux(&file, layout.stateid, Some(4999));
            let told = clock.timeout(Duration::from_millis(100), told).await;
            assert!(matches!(told, Ok(Ok(_))), "{told:?}");
            let returned = clock.timeout(Duration::from_millis(100), client.layout_return(&file, stateid));
            assert_eq!(returned.await.unwrap(), nfsstat4::NFS4_OK);
        };
        let (cut, ()) = tokio::join!(cut, returns);
        assert!(cut.is_ok(), "nobody is fenced for it");
        assert_eq!(other.stat(&same).await.0, 100);
        let layout = client.layout(&file, file.stateid, RW, 0).await;
        client.layout_commit(&file, layout.stateid, Some(4999)).await.unwrap();
        assert_eq!(other.stat(&same).await.0, 100);
        client.write(&layout, 100, &pattern(7, 50)).await.unwrap();
        client.layout_commit(&file, layout.stateid, Some(149)).await.unwrap();
        assert_eq!(other.stat(&same).await.0, 150);
    });
}

/// A file with data at 2 * UNIT, the layout of which has just come back, and the data server which that is at.
async fn with_data(world: &World, client: &Client) -> (Opened, usize) {
    let (file, _) = client.open_with_layout("f").await;
    let rest = client.layout(&file, file.stateid, RW, 2 * UNIT).await;
    client.write(&rest, 2 * UNIT, &pattern(0, 5000)).await.unwrap();
    client.layout_commit(&file, rest.stateid, Some(2 * UNIT + 4999)).await.unwrap();
    let address = client.device(rest.data_server(2 * UNIT).ffds_deviceid).await;
    assert_eq!(client.layout_return(&file, rest.stateid).await, nfsstat4::NFS4_OK);
    (file, (0..4).find(|n| world.data_server(*n) == address).unwrap())
}

/// The same file, cut off to a unit when the metadata server dies, while the data server is away: a client that comes then, and the
/// data server.
async fn interrupted(world: &mut World) -> (Client, usize) {
    let first = Client::mount(world, "a", NEW).await;
    let (file, n) = with_data(world, &first).await;
    world.crash_data_server(n).await;
    let cut = world.env.clock.timeout(Duration::from_secs(2), first.truncate(&file, UNIT)).await;
    assert!(cut.is_err(), "a data server cannot be told");
    world.restart_metadata_server().await;
    (Client::mount(world, "b", NEW).await, n)
}

/// A truncation that was committed when the metadata server died is carried out after its restart, and before anybody
/// writes: what is written then stays.
#[test]
fn what_is_written_after_a_truncation_that_a_restart_interrupted_stays() {
    simulate(72, async |world| {
        let (second, n) = interrupted(world).await;
        let same = second.open("f").await;
        assert_eq!(second.stat(&same).await.0, UNIT);
        world.start_data_server(n).await;
        while second.proxied_write(&same, 2 * UNIT, &pattern(7, 1000)).await != nfsstat4::NFS4_OK {
            world.sleep(Duration::from_millis(10)).await;
        }
        world.sleep(Duration::from_secs(10)).await;
        let read = second.proxied_read(&same, 2 * UNIT, 5000).await;
        assert!(read[..] == pattern(7, 1000)[..], "{} bytes", read.len());
    });
}

/// Nor is anything set aside, or shared, where it would be cut off.
#[test]
fn nothing_grows_before_a_truncation_that_a_restart_interrupted_is_carried_out() {
    simulate(89, async |world| {
        let (second, n) = interrupted(world).await;
        let (same, other) = (second.open("f").await, second.open("g").await);
        assert_eq!(second.proxied_write(&other, 0, &pattern(0, 8192)).await, nfsstat4::NFS4_OK);
        // At another data server.
        let (aa_stateid, aa_offset) = (same.stateid, 3 * UNIT);
        let allocate = nfs_argop4::OP_ALLOCATE(ALLOCATE4args { aa_stateid, aa_offset, aa_length: 4096 });
        let allocate = vec![client::putfh(&same.handle), allocate];
        let clone = nfs_argop4::OP_CLONE(CLONE4args {
            cl_src_stateid: other.stateid,
            cl_dst_stateid: same.stateid,
            cl_src_offset: 0,
            cl_dst_offset: 3 * UNIT,
            cl_count: 4096,
        });
        let from = [client::putfh(&other.handle), nfs_argop4::OP_SAVEFH];
        let clone = [&from[..], &[client::putfh(&same.handle), clone]].concat();
        for ops in [clone, allocate.clone()] {
            assert_eq!(second.once(ops).await.0, nfsstat4::NFS4ERR_DELAY);
        }
        world.start_data_server(n).await;
        second.ok(allocate).await;
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(second.stat(&same).await.0, 3 * UNIT + 4096);
    });
}

/// Nor is who asked for it told that it is done, though the store knows: what it writes then, under a layout of before,
/// would be cut off.
#[test]
fn nobody_hears_of_a_truncation_that_a_restart_interrupted_before_data_servers_do() {
    simulate(73, async |world| {
        let first = Client::mount(world, "a", NEW).await;
        let (file, n) = with_data(world, &first).await;
        first.close(&file).await;
        let asks = client::persistent(world, "b", NEW).await;
        world.mute(n, true);
        let size = Attributes { size: Some(UNIT), ..Attributes::default() };
        let cut = ops::setattr(stateid4::default(), &size).unwrap();
        let answer = asks.request(vec![ops::putfh(&file.handle), cut]);
        tokio::pin!(answer);
        let clock = std::sync::Arc::clone(&world.env.clock);
        let soon = clock.timeout(Duration::from_secs(2), &mut answer).await;
        assert!(soon.is_err(), "{soon:?}");
        world.restart_metadata_server().await;
        assert!(
            clock.timeout(Duration::from_secs(20), &mut answer).await.is_err(),
            "it is sent again, meanwhile"
        );
        world.mute(n, false);
        assert_eq!(answer.await.unwrap().status, nfsstat4::NFS4_OK);
    });
}

/// What data servers hold beyond the new end is looked for after a restart, as a read-write layout may be out. It is what is
/// to be cut off, and no growth. The metadata server dies at any moment between the SETATTR and its answer.
#[test]
fn a_truncation_that_a_restart_interrupted_is_not_undone_by_a_look() {
    for tenth in 0..40 {
        simulate(75, async |world| {
            let asks = client::persistent(world, "b", NEW).await;
            let complete = async || {
                let args = RECLAIM_COMPLETE4args { rca_one_fs: false };
                let reply = asks.request(vec![nfs_argop4::OP_RECLAIM_COMPLETE(args)]).await;
                assert_eq!(reply.unwrap().status, nfsstat4::NFS4_OK);
            };
            complete().await;
            let writer = Client::mount(world, "a", NEW).await;
            let (file, n) = with_data(world, &writer).await;
            // The row of the layout that came back is there for a moment yet.
            let size = Attributes { size: Some(UNIT), ..Attributes::default() };
            let cut = ops::setattr(stateid4::default(), &size).unwrap();
            let answer = asks.request(vec![ops::putfh(&file.handle), cut]);
            tokio::pin!(answer);
            let clock = std::sync::Arc::clone(&world.env.clock);
            let early = clock.timeout(Duration::from_micros(100 * tenth), &mut answer).await;
            world.mute(n, true);
            if early.is_ok() || clock.timeout(Duration::from_millis(50), &mut answer).await.is_ok() {
                return;
            }
            world.restart_metadata_server().await;
            // Handles of before are good yet, or over.
            if tenth % 2 == 1 {
                complete().await;
            }
            for _ in 0..10 * (tenth % 2) {
                world.sleep(Duration::from_secs(20)).await;
                asks.request(vec![ops::putrootfh()]).await.unwrap();
            }
            let (looks, other) = (Client::mount(world, "c", NEW).await, Client::mount(world, "d", NEW).await);
            world.mute(n, false);
            let gone = stateid4 { seqid: 1, other: [1; 12] };
            let at = settime4::SET_TO_CLIENT_TIME4(nfstime4 { seconds: 77, nseconds: 0 });
            let times = Attributes { time_modify_set: Some(at), ..Attributes::default() };
            // Setting times looks for itself where the data ends.
            let ops = vec![
                client::putfh(&file.handle),
                ops::setattr(stateid4::default(), &times).unwrap(),
                Client::getattr(),
            ];
            let looks = async {
                loop {
                    looks.once(ops.clone()).await;
                    // Of a layout that is not known: so does that.
                    let told = looks.layout_commit(&file, gone, Some(2 * UNIT + 4999)).await;
                    assert_eq!(told, Err(nfsstat4::NFS4ERR_BADLAYOUT));
                    looks.once(vec![client::putfh(&file.handle), Client::getattr()]).await;
                    world.sleep(Duration::from_millis(20)).await;
                }
            };
            let answer = tokio::select! {
                () = looks => unreachable!(),
                answer = answer => answer.unwrap(),
            };
            assert_eq!(answer.status, nfsstat4::NFS4_OK);
            for _ in 0..20 {
                assert_eq!(other.stat(&file).await.0, UNIT, "{tenth}");
                world.sleep(Duration::from_millis(100)).await;
            }
            let same = other.open("f").await;
            assert!(other.proxied_read(&same, 2 * UNIT, 5000).await.is_empty());
        });
    }
}

/// What takes data files away from a file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Takes {
    Truncate,
    Clone,
    Move,
}

/// Where there is a hole, from the first byte on, and whether that is the end.
async fn first_hole(client: &Client, file: &Opened) -> Result<(bool, u64), nfsstat4> {
    let (sa_stateid, sa_what) = (file.stateid, data_content4::NFS4_CONTENT_HOLE);
    let seek = nfs_argop4::OP_SEEK(SEEK4args { sa_stateid, sa_offset: 0, sa_what });
    let (status, mut results) = client.compound(vec![client::putfh(&file.handle), seek]).await;
    match results.pop() {
        Some(nfs_resop4::OP_SEEK(SEEK4res::NFS4_OK(found))) => Ok((found.sr_eof, found.sr_offset)),
        _ => Err(status),
    }
}

/// One data file after the other is asked, all of which may be removed before the last one is.
#[test]
fn who_looks_for_a_hole_finds_the_file_as_it_was_or_as_it_is() {
    const ALL: u64 = 8 << 20;
    let far = SimConfig {
        latency_min: Duration::from_millis(10),
        latency_max: Duration::from_millis(12),
        ..SimConfig::default()
    };
    let policy = LayoutPolicy { shape: Shape::Wide, mirrors: 1, inline: 0, class: None };
    let cases = [(Takes::Truncate, 16), (Takes::Clone, 1), (Takes::Move, 1)];
    for (takes, after) in cases.into_iter().flat_map(|(takes, most)| (0..most).map(move |n| (takes, n * 10)))
    {
        simulate_on(
            92,
            far,
            |config| config.policy = policy,
            async |world| {
                let (client, other) =
                    (Client::mount(world, "a", NEW).await, Client::mount(world, "b", NEW).await);
                let (source, layout) = client.open_with_layout("source").await;
                client.write(&layout, 0, &pattern(7, 4096)).await.unwrap();
                client.layout_commit(&source, layout.stateid, Some(4095)).await.unwrap();
                client.layout_return(&source, layout.stateid).await;
                let (file, layout) = client.open_with_layout("f").await;
                client.write(&layout, 0, &pattern(0, 8 << 20)).await.unwrap();
                client.layout_commit(&file, layout.stateid, Some(ALL - 1)).await.unwrap();
                let last = home(world, &client, &layout, 0).await;
                client.layout_return(&file, layout.stateid).await;
                world.sleep(Duration::from_secs(5)).await;
                let (same, from) = (other.open("f").await, other.open("source").await);
                let over = Cell::new(false);
                let take = async {
                    world.sleep(Duration::from_millis(after)).await;
                    match takes {
                        Takes::Truncate => other.truncate(&same, 0).await,
                        Takes::Clone => {
                            let clone = nfs_argop4::OP_CLONE(CLONE4args {
                                cl_src_stateid: from.stateid,
                                cl_dst_stateid: same.stateid,
                                cl_src_offset: 0,
                                cl_dst_offset: 0,
                                cl_count: 4096,
                            });
                            let (from, to) = (client::putfh(&from.handle), client::putfh(&same.handle));
                            other.ok(vec![from, nfs_argop4::OP_SAVEFH, to, clone]).await;
                        }
                        Takes::Move => {
                            drain(world, last, 0).await.unwrap();
                            drained(world, last).await;
                        }
                    }
                    over.set(true);
                };
                let look = async {
                    let mut found = vec![first_hole(&client, &file).await];
                    while takes != Takes::Truncate && !over.get() {
                        found.push(first_hole(&client, &file).await);
                    }
                    found
                };
                let (found, ()) = tokio::join!(look, take);
                for found in found {
                    match found {
                        Ok((true, ALL)) => {}
                        // It is empty.
                        Err(nfsstat4::NFS4ERR_NXIO) if takes == Takes::Truncate => {}
                        found => panic!("{takes:?} after {after} ms: {found:?}"),
                    }
                }
                assert_eq!(world.check().await, 0);
            },
        );
    }
}
