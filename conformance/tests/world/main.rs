//! The whole of Sluice in one simulated world: a metadata server, four data servers on devices in memory,
//! clients that do what Linux does. One seed is one world.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may fail")]

mod audit;
mod away;
mod balance;
mod callbacks;
mod chaos;
mod classes;
mod client;
mod clone;
mod compare;
mod copied;
mod copy;
mod crowded;
mod cut;
mod doubt;
mod drain;
mod drain_small;
mod ebb;
mod ends;
mod epochs;
mod forgetful;
mod gone;
mod habits;
mod hanging;
mod inline;
mod keys;
mod lost;
mod mirrors;
mod more_mirrors;
mod paused;
mod proxied;
mod read_plus;
mod rebuilt;
mod refused;
mod reports;
mod restarts;
mod rot;
mod small;
mod space;
mod stage;
mod standby;
mod statfs;
mod storage;
mod undrain;
mod withdrawn;

use std::collections::BTreeSet;
use std::time::Duration;

use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::nfsstat4;

use client::{Client, RO, RW};
use stage::{UNIT, World, simulate};

const NEW: &str = "7.2.13";
const OLD: &str = "6.1.0-38-amd64";

/// Bytes that differ from place to place.
fn pattern(offset: u64, length: usize) -> Vec<u8> {
    (offset..).take(length).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

#[test]
fn a_new_kernel_stripes_and_an_old_one_reads_the_same_bytes_in_segments() {
    simulate(1, async |world| {
        let new = Client::mount(world, "new", NEW).await;
        // LAYOUTGET inside OPEN: the beginning of a new file, on one data server.
        let (file, first) = new.open_with_layout("f").await;
        assert_eq!((first.bytes.clone(), first.body.ffl_stripe_unit), (0..UNIT, 0));
        assert!(first.return_on_close);
        // The rest: one segment, all data servers.
        let rest = new.layout(&file, first.stateid, RW, UNIT + 4096).await;
        assert_eq!((rest.bytes.clone(), rest.body.ffl_stripe_unit), (UNIT..u64::MAX, UNIT));
        let devices: BTreeSet<_> =
            rest.body.ffl_mirrors[0].ffm_data_servers.iter().map(|server| server.ffds_deviceid).collect();
        assert_eq!(devices.len(), 4);
        assert_eq!((rest.stateid.other, rest.stateid.seqid), (first.stateid.other, first.stateid.seqid + 1));
        let end = 6 * UNIT + 12345;
        new.write(&first, 0, &pattern(0, 100_000)).await.unwrap();
        let before = new.stat(&file).await.1;
        for unit in [2, 3, 4, 5] {
            let at = unit * UNIT - 5000;
            new.write(&rest, at, &pattern(at, 10_000)).await.unwrap();
        }
        new.write(&rest, end - 777, &pattern(end - 777, 777)).await.unwrap();
        let (size, change) = new.layout_commit(&file, rest.stateid, Some(end - 1)).await.unwrap();
        assert_eq!(size, end);
        assert!(change > before);
        assert_eq!(new.stat(&file).await, (size, change), "one change, and not a later one");

        let old = Client::mount(world, "old", OLD).await;
        let same = old.open("f").await;
        assert_eq!(old.stat(&same).await.0, end);
        let mut stateid = same.stateid;
        for unit in 0..=6 {
            let segment = old.layout(&same, stateid, RO, unit * UNIT + 8192).await;
            stateid = segment.stateid;
            assert_eq!(
                (segment.bytes.clone(), segment.body.ffl_stripe_unit),
                (unit * UNIT..(unit + 1) * UNIT, 0)
            );
            assert_eq!(segment.body.ffl_mirrors[0].ffm_data_servers.len(), 1, "older kernels refuse more");
            let read = old.read(&segment, segment.bytes.clone()).await.unwrap();
            assert_eq!(
                unit * UNIT + read.len() as u64,
                end.min((unit + 1) * UNIT),
                "zeros in holes, and one end"
            );
            assert!(read[..] == expected(&segment.bytes, end)[..], "unit {unit}");
        }
        // The same through the metadata server.
        let through = old.proxied_read(&same, 3 * UNIT - 6000, 12_000).await;
        assert!(through[..] == expected(&(3 * UNIT - 6000..3 * UNIT + 6000), end)[..]);
    });
}

/// What the file of the test above holds.
fn expected(range: &std::ops::Range<u64>, end: u64) -> Vec<u8> {
    let mut written = vec![0..100_000, end - 777..end];
    written.extend([2, 3, 4, 5].map(|unit| unit * UNIT - 5000..unit * UNIT + 5000));
    let mut bytes = vec![0; usize::try_from(range.end.min(end) - range.start).unwrap()];
    for piece in written {
        let (from, to) = (piece.start.max(range.start), piece.end.min(range.end));
        if from < to {
            let at = usize::try_from(from - range.start).unwrap();
            let length = usize::try_from(to - from).unwrap();
            bytes[at..at + length].copy_from_slice(&pattern(from, length));
        }
    }
    bytes
}

#[test]
fn a_layout_commit_takes_whatever_linux_sends() {
    simulate(2, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (file, layout) = client.open_with_layout("f").await;
        client.write(&layout, 0, b"hello").await.unwrap();
        let (size, first) = client.layout_commit(&file, layout.stateid, Some(4)).await.unwrap();
        assert_eq!(size, 5);
        // No last byte, length 0: all of it was stable at once.
        let (size, second) = client.layout_commit(&file, layout.stateid, None).await.unwrap();
        assert_eq!(size, 5);
        assert!(second > first);
        // An older seqid.
        let later = client.layout(&file, layout.stateid, RW, UNIT).await;
        assert_ne!(later.stateid.seqid, layout.stateid.seqid);
        client.layout_commit(&file, layout.stateid, Some(4)).await.unwrap();
        // The layout is gone: BADLAYOUT, and never BAD_STATEID.
        assert_eq!(client.layout_return(&file, later.stateid).await, nfsstat4::NFS4_OK);
        let gone = client.layout_commit(&file, later.stateid, Some(9)).await;
        assert_eq!(gone, Err(nfsstat4::NFS4ERR_BADLAYOUT));
        assert_eq!(client.stat(&file).await.0, 5);
    });
}

/// `cp -p`: data, times, LAYOUTCOMMIT, CLOSE. What is written after the times were set moves them again.
#[test]
fn times_set_after_the_data_outlive_its_layout_commit() {
    simulate(12, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (file, layout) = client.open_with_layout("f").await;
        client.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
        client.set_mtime(&file, 77).await;
        client.layout_commit(&file, layout.stateid, Some(4999)).await.unwrap();
        assert_eq!((client.mtime(&file).await, client.stat(&file).await.0), (77, 5000));
        // In place, and within the resolution of any clock.
        client.write(&layout, 0, &pattern(7, 100)).await.unwrap();
        client.layout_commit(&file, layout.stateid, Some(99)).await.unwrap();
        let moved = client.mtime(&file).await;
        assert!(moved > 77, "a later write is a later modification");
        client.set_mtime(&file, 78).await;
        assert_eq!(client.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
        assert_eq!(client.mtime(&file).await, 78, "nor does the return move them");
    });
}

/// `echo x >&3; touch f; touch g; exec 3>&-`: make(1) compares the two.
#[test]
fn a_touch_outlives_the_layout_commit_of_what_was_written_before() {
    simulate(13, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (file, layout) = client.open_with_layout("f").await;
        client.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
        client.touch(&file).await;
        let touched = client.mtime(&file).await;
        world.sleep(Duration::from_secs(10)).await;
        client.layout_commit(&file, layout.stateid, Some(4999)).await.unwrap();
        assert_eq!((client.mtime(&file).await, client.stat(&file).await.0), (touched, 5000));
        client.write(&layout, 0, &pattern(7, 100)).await.unwrap();
        client.layout_commit(&file, layout.stateid, Some(99)).await.unwrap();
        assert!(client.mtime(&file).await > touched);
    });
}

#[test]
fn a_truncation_recalls_the_layouts_of_others() {
    simulate(3, async |world| {
        let writer = Client::mount(world, "writer", NEW).await;
        let (file, layout) = writer.open_with_layout("f").await;
        writer.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
        writer.layout_commit(&file, layout.stateid, Some(4999)).await.unwrap();
        let other = Client::mount(world, "other", OLD).await;
        let same = other.open("f").await;
        let returns = async {
            let (recalled, _) = writer.recalled(1).await;
            assert_eq!((recalled.other, recalled.seqid), (layout.stateid.other, layout.stateid.seqid + 1));
            world.sleep(Duration::from_millis(50)).await;
            assert_eq!(writer.layout_return(&file, recalled).await, nfsstat4::NFS4_OK);
        };
        tokio::join!(other.truncate(&same, 100), returns);
        assert_eq!(other.stat(&same).await.0, 100);
        let again = writer.layout(&file, file.stateid, RW, 0).await;
        let read = writer.read(&again, 0..5000).await.unwrap();
        assert!(read[..] == pattern(0, 100)[..], "{} bytes", read.len());
    });
}

#[test]
fn who_ignores_a_recall_is_fenced() {
    simulate(4, async |world| {
        let stubborn = Client::mount(world, "stubborn", NEW).await;
        let (_, layout) = stubborn.open_with_layout("f").await;
        // Written and not committed: only the data server knows.
        stubborn.write(&layout, 0, &pattern(0, 3000)).await.unwrap();
        let other = Client::mount(world, "other", NEW).await;
        let same = other.open("f").await;
        let keeps_its_lease = async {
            for _ in 0..8 {
                world.sleep(Duration::from_secs(5)).await;
                stubborn.compound(Vec::new()).await;
            }
        };
        let (_, ()) = tokio::join!(other.truncate(&same, 2000), keeps_its_lease);
        assert!(!stubborn.recalls().is_empty());
        let late = stubborn.write(&layout, 0, b"too late").await;
        assert!(
            matches!(late, Err(nfsstat3::NFS3ERR_ACCES | nfsstat3::NFS3ERR_STALE)),
            "the old handle is refused, and not with PERM: {late:?}"
        );
        assert!((0..4).any(|n| world.fences(n) > 0));
        assert_eq!(other.stat(&same).await.0, 2000);
        let handed = other.layout(&same, same.stateid, RO, 0).await;
        assert!(other.read(&handed, 0..4000).await.unwrap()[..] == pattern(0, 2000)[..]);
    });
}

#[test]
fn a_size_that_was_never_committed_is_settled() {
    simulate(5, async |world| {
        let dies = Client::mount(world, "dies", NEW).await;
        let (file, _) = dies.open_with_layout("f").await;
        let rest = dies.layout(&file, file.stateid, RW, 2 * UNIT).await;
        dies.write(&rest, 2 * UNIT, &pattern(2 * UNIT, 4321)).await.unwrap();
        drop(dies);
        world.net.crash("dies");
        let other = Client::mount(world, "other", NEW).await;
        let same = other.open("f").await;
        assert_eq!(other.stat(&same).await.0, 2 * UNIT + 4321);
    });
}

/// A client that has not heard of a restart writes on under its layout, after somebody had the file settled.
#[test]
fn what_is_written_under_a_layout_of_before_a_restart_is_counted() {
    simulate(10, async |world| {
        let mut client = Client::mount(world, "a", NEW).await;
        let (file, layout) = client.open_with_layout("f").await;
        client.write(&layout, 0, b"before\n").await.unwrap();
        client.layout_commit(&file, layout.stateid, Some(6)).await.unwrap();
        world.restart_metadata_server().await;
        client.reconnect(world).await;
        assert_eq!(client.stat(&file).await.0, 7);
        client.write(&layout, 7, b"after\n").await.unwrap();
        let told = client.layout_commit(&file, layout.stateid, Some(12)).await;
        assert_eq!(told, Err(nfsstat4::NFS4ERR_BADLAYOUT), "Linux takes it for success");
        assert_eq!(client.stat(&file).await.0, 13);
    });
}

/// Others have it in memory, and ask for the change attribute when they open it.
#[test]
fn what_is_written_over_is_seen_though_its_layout_is_gone() {
    for (seed, restart) in [(14, true), (15, false)] {
        simulate(seed, async |world| {
            let mut client = Client::mount(world, "a", NEW).await;
            let (mut file, layout) = client.open_with_layout("f").await;
            client.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
            client.layout_commit(&file, layout.stateid, Some(4999)).await.unwrap();
            if restart {
                world.restart_metadata_server().await;
                client.reconnect(world).await;
                file = client.reclaim(&file).await;
            }
            let (size, before) = client.stat(&file).await;
            let modified = client.mtime(&file).await;
            world.sleep(Duration::from_secs(2)).await;
            client.write(&layout, 100, &pattern(9, 1000)).await.unwrap();
            if !restart {
                // It overtakes the LAYOUTCOMMIT, as it does with Linux now and then.
                assert_eq!(client.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
            }
            let told = client.layout_commit(&file, layout.stateid, Some(1099)).await;
            assert_eq!(told, Err(nfsstat4::NFS4ERR_BADLAYOUT), "Linux takes it for success");
            let (same, after) = client.stat(&file).await;
            assert_eq!(same, size);
            assert!(after > before, "{restart}: somebody who opens it now looks again");
            assert!(client.mtime(&file).await > modified);
            // Who has not opened it may say what he likes.
            let other = Client::mount(world, "other", NEW).await;
            let told = other.layout_commit(&file, layout.stateid, Some(1099)).await;
            assert!(
                matches!(told, Err(nfsstat4::NFS4ERR_BADLAYOUT | nfsstat4::NFS4ERR_BAD_STATEID)),
                "{told:?}"
            );
            assert_eq!(client.stat(&file).await.1, after);
        });
    }
}

#[test]
fn what_a_client_wrote_over_before_it_died_is_seen() {
    simulate(16, async |world| {
        let dies = Client::mount(world, "dies", NEW).await;
        let (file, layout) = dies.open_with_layout("f").await;
        dies.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
        dies.layout_commit(&file, layout.stateid, Some(4999)).await.unwrap();
        dies.set_mtime(&file, 77).await;
        let (_, before) = dies.stat(&file).await;
        dies.write(&layout, 0, &pattern(9, 1000)).await.unwrap();
        drop(dies);
        world.net.crash("dies");
        world.restart_metadata_server().await;
        // Its layout is over when nobody can reclaim it any more.
        world.sleep(Duration::from_secs(200)).await;
        let other = Client::mount(world, "other", NEW).await;
        let same = other.open("f").await;
        let (size, after) = other.stat(&same).await;
        assert!(size == 5000 && after > before, "{before} {after}");
        assert_eq!(other.mtime(&same).await, 77, "perhaps nothing was written");
        world.sleep(Duration::from_secs(200)).await;
        let late = Client::mount(world, "late", NEW).await;
        assert_eq!(late.stat(&late.open("f").await).await.1, after, "once");
    });
}

#[test]
fn a_data_server_comes_back_with_its_data() {
    simulate(6, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (file, _) = client.open_with_layout("f").await;
        let layout = client.layout(&file, file.stateid, RW, UNIT).await;
        let data = pattern(UNIT, 1000);
        client.write(&layout, UNIT, &data).await.unwrap();
        client.layout_commit(&file, layout.stateid, Some(UNIT + 999)).await.unwrap();
        let address = client.device(layout.data_server(UNIT).ffds_deviceid).await;
        let n = (0..4).find(|n| world.data_server(*n) == address).unwrap();
        world.crash_data_server(n).await;
        world.sleep(Duration::from_secs(1)).await;
        world.start_data_server(n).await;
        // The same handle, the same device.
        assert!(client.read(&layout, UNIT..UNIT + 1000).await.unwrap()[..] == data[..]);
        client.write(&layout, UNIT + 1000, &data).await.unwrap();
        let size = client.layout_commit(&file, layout.stateid, Some(UNIT + 1999)).await.unwrap().0;
        assert_eq!(size, UNIT + 2000);
    });
}

#[test]
fn a_lost_data_server_is_not_handed_out() {
    simulate(7, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (file, first) = client.open_with_layout("f").await;
        client.write(&first, 0, &pattern(0, 1000)).await.unwrap();
        client.layout_commit(&file, first.stateid, Some(999)).await.unwrap();
        let address = client.device(first.data_server(0).ffds_deviceid).await;
        let n = (0..4).find(|n| world.data_server(*n) == address).unwrap();
        world.crash_data_server(n).await;
        // The metadata server notices by itself, and says that things have changed.
        let (recalled, changed) = client.recalled(1).await;
        assert!(changed);
        assert_eq!(client.layout_return(&file, recalled).await, nfsstat4::NFS4_OK);
        assert_eq!(client.layout_status(&file, RW, 0).await, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
        // A part that nobody has seen moves to those that are left.
        let rest = client.layout(&file, file.stateid, RW, UNIT).await;
        for server in &rest.body.ffl_mirrors[0].ffm_data_servers {
            assert_ne!(client.device(server.ffds_deviceid).await, address);
        }
        client.write(&rest, UNIT, &pattern(UNIT, 1000)).await.unwrap();
        // New files, too.
        for name in ["g", "h", "i", "j"] {
            let (_, layout) = client.open_with_layout(name).await;
            assert_ne!(client.device(layout.data_server(0).ffds_deviceid).await, address);
        }
        world.start_data_server(n).await;
        let again = client.layout(&file, file.stateid, RW, 0).await;
        assert!(client.read(&again, 0..1000).await.unwrap()[..] == pattern(0, 1000)[..]);
    });
}

/// A little of everything.
async fn life(world: &mut World) {
    let new = Client::mount(world, "new", NEW).await;
    let old = Client::mount(world, "old", OLD).await;
    let (file, layout) = new.open_with_layout("f").await;
    new.write(&layout, 0, &pattern(0, 200_000)).await.unwrap();
    new.layout_commit(&file, layout.stateid, Some(199_999)).await.unwrap();
    let same = old.open("f").await;
    let returns = async {
        let (recalled, _) = new.recalled(1).await;
        new.layout_return(&file, recalled).await;
    };
    tokio::join!(old.truncate(&same, 1000), returns);
    let segment = old.layout(&same, same.stateid, RW, 3 * UNIT).await;
    old.write(&segment, 3 * UNIT, b"three").await.unwrap();
    old.layout_commit(&same, segment.stateid, Some(3 * UNIT + 4)).await.unwrap();
    new.close(&file).await;
    world.crash_data_server(2).await;
    world.start_data_server(2).await;
    world.sleep(Duration::from_secs(30)).await;
}

#[test]
fn one_seed_is_one_world() {
    let first = simulate(42, life);
    assert_eq!(first, simulate(42, life));
    assert_ne!(first, simulate(43, life));
}
