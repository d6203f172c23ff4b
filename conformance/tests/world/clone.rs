//! CLONE over several data servers: at once, of one moment, and nothing is left of one that failed.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::*;

use crate::client::{Client, Opened, RW, later, putfh};
use crate::copy::{UNIT, content, holder, spliced, written};
use crate::stage::{World, simulate_tuned};
use crate::{NEW, pattern};

const BLOCK: u64 = 4096;
/// Where the stripes of a file begin, and how long they are.
const STRIPE: u64 = 1 << 20;

impl Client {
    /// CLONE, as often as it takes.
    pub(crate) async fn clone_range(
        &self,
        (from, source): (&Opened, u64),
        (to, target): (&Opened, u64),
        count: u64,
    ) -> nfsstat4 {
        let op = CLONE4args {
            cl_src_stateid: from.stateid,
            cl_dst_stateid: to.stateid,
            cl_src_offset: source,
            cl_dst_offset: target,
            cl_count: count,
        };
        loop {
            match self.clone_once(from, to, op).await {
                status if later(status) => self.env.clock.sleep(Duration::from_millis(100)).await,
                status => return status,
            }
        }
    }

    async fn clone_once(&self, from: &Opened, to: &Opened, op: CLONE4args) -> nfsstat4 {
        let op = nfs_argop4::OP_CLONE(op);
        self.once(vec![putfh(&from.handle), nfs_argop4::OP_SAVEFH, putfh(&to.handle), op]).await.0
    }
}

/// As of a FoundationDB cluster whose answers are lost.
#[test]
fn a_clone_is_made_or_not_whatever_becomes_of_the_answers_of_the_store() {
    simulate(30, Shape::Small, 1, async |world| {
        // No reply is kept that would tell.
        let client = Client::mount_with(world, "a", NEW, 0).await;
        let data = pattern(0, 10 * BLOCK as usize);
        let source = written(&client, "from", &[(0, data.clone())]).await;
        client.stat(&source).await;
        let (mut made, mut failed) = (0, 0);
        for n in 0..40 {
            let target = client.open(&format!("to{n}")).await;
            world.set_faults(Faults { unknown_applied: 0.4, ..Faults::NONE });
            let op = CLONE4args {
                cl_src_stateid: source.stateid,
                cl_dst_stateid: target.stateid,
                cl_src_offset: 0,
                cl_dst_offset: 0,
                cl_count: 0,
            };
            let status = client.clone_once(&source, &target, op).await;
            world.set_faults(Faults::NONE);
            let (size, _) = client.stat(&target).await;
            match status {
                nfsstat4::NFS4_OK => {
                    everywhere(&client, &target, &data, 1).await;
                    made += 1;
                }
                status => {
                    assert_eq!(size, 0, "it was told to have failed: {status:?}");
                    failed += 1;
                }
            }
        }
        assert!(made > 0, "{failed} failed");
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(data_files(world), 1 + made, "nothing is left of those that failed");
    });
}

fn simulate(seed: u64, shape: Shape, mirrors: u8, test: impl AsyncFnOnce(&mut World)) {
    let tune = |config: &mut sluice_mds::Config| {
        config.policy = LayoutPolicy { shape, mirrors, inline: 0, class: None };
        config.first_component = STRIPE;
    };
    simulate_tuned(seed, tune, test);
}

fn data_files(world: &World) -> usize {
    (0..4).map(|n| world.data_files(n)).sum()
}

/// What is in a file, at every mirror.
async fn everywhere(client: &Client, file: &Opened, expected: &[u8], mirrors: usize) {
    assert_eq!(client.stat(file).await.0, expected.len() as u64);
    assert!(content(client, file).await == expected);
    let mut at = 0;
    while at < expected.len() as u64 {
        let layout = client.layout(file, file.stateid, RW, at).await;
        let end = (expected.len() as u64).min((at / UNIT + 1) * UNIT);
        for mirror in 0..mirrors {
            let read = client.read(&layout.mirror(mirror), at..end).await.unwrap();
            assert!(read[..] == expected[at as usize..end as usize], "mirror {mirror} at {at}");
        }
        assert_eq!(client.layout_return(file, layout.stateid).await, nfsstat4::NFS4_OK);
        at = end;
    }
}

/// Returns when all of them are over.
async fn together(mut all: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    poll_fn(|cx| {
        all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
        if all.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// There is always some clone whose data files were made while others were looked at, in a store that takes its time.
#[test]
fn what_was_removed_goes_while_clones_are_made_without_a_pause() {
    const CLIENTS: usize = 256;
    const REMOVED: usize = 77_777;
    simulate(31, Shape::Small, 1, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let removed = written(&client, "removed", &[(0, pattern(0, REMOVED))]).await;
        client.close(&removed).await;
        let source = written(&client, "from", &[(0, pattern(0, BLOCK as usize))]).await;
        let mut clients = Vec::new();
        for n in 0..CLIENTS {
            let client = Client::mount(world, &format!("c{n}"), NEW).await;
            let files = (client.open("from").await, client.open(&format!("to{n}")).await);
            clients.push((client, files));
        }
        client.close(&source).await;
        world.set_faults(Faults { latency: Duration::from_millis(200), ..Faults::NONE });
        let (world, done) = (&*world, &Cell::new(false));
        let mut all: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        for (client, (from, to)) in &clients {
            all.push(Box::pin(async move {
                while !done.get() {
                    assert_eq!(client.clone_range((from, 0), (to, 0), 0).await, nfsstat4::NFS4_OK);
                }
            }));
        }
        all.push(Box::pin(async {
            world.sleep(Duration::from_secs(5)).await;
            client.remove("removed").await;
            world.sleep(Duration::from_secs(15)).await;
            done.set(true);
            assert!((0..4).all(|n| !world.holds(n, REMOVED as u64)));
        }));
        together(all).await;
        world.set_faults(Faults::NONE);
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!((data_files(world), world.garbage().await), (CLIENTS + 1, 0));
    });
}

#[test]
fn a_file_becomes_another_one_and_they_go_their_own_ways() {
    for (seed, shape, mirrors) in [(51, Shape::Default, 1), (52, Shape::Small, 2), (53, Shape::Default, 2)] {
        simulate(seed, shape, mirrors, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let length = (3 * STRIPE + 5000) as usize;
            let source = written(&client, "from", &[(0, pattern(0, length))]).await;
            // One that is longer than nothing loses all of it.
            let target = written(&client, "to", &[(0, pattern(9, 7000))]).await;
            let changed = client.stat(&target).await.1;
            assert_eq!(client.clone_range((&source, 0), (&target, 0), 0).await, nfsstat4::NFS4_OK);
            assert!(client.stat(&target).await.1 > changed);
            everywhere(&client, &target, &pattern(0, length), mirrors.into()).await;
            let layout = client.layout(&source, source.stateid, RW, 0).await;
            for mirror in 0..mirrors {
                client.write(&layout.mirror(mirror.into()), 0, &[1; 5000]).await.unwrap();
            }
            assert_eq!(client.layout_return(&source, layout.stateid).await, nfsstat4::NFS4_OK);
            everywhere(&client, &target, &pattern(0, length), mirrors.into()).await;
            everywhere(&client, &source, &spliced(&pattern(0, length), 0, &[1; 5000]), mirrors.into()).await;
            // What the target had is removed, and nothing else.
            let expected = data_files(world);
            world.sleep(Duration::from_secs(30)).await;
            assert!(data_files(world) <= expected);
            everywhere(&client, &target, &pattern(0, length), mirrors.into()).await;
            assert_eq!(world.check().await, 0);
        });
    }
}

#[test]
fn any_range_is_cloned_or_refused_and_nothing_else_changes() {
    simulate(54, Shape::Small, 1, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("file").await;
        let mut model = pattern(0, (6 * BLOCK + 100) as usize);
        assert_eq!(client.proxied_write(&file, 0, &model).await, nfsstat4::NFS4_OK);
        let twin = client.open("twin").await;
        assert_eq!(client.clone_range((&file, 0), (&twin, 0), 0).await, nfsstat4::NFS4_OK);
        let mut other = model.clone();
        for n in 0..60 {
            // Both lie at one data server, so that every range can be shared.
            let below = |most: u64| world.env.random.u64() % most;
            let (from, at) = (below(7) * BLOCK, below(12) * BLOCK);
            let size = model.len() as u64;
            let count = match below(3) {
                _ if from >= size => continue,
                0 => size - from,
                _ => (1 + below(4)) * BLOCK,
            };
            if from + count > size {
                let refused = client.clone_range((&file, from), (&twin, at), count).await;
                assert_eq!(refused, nfsstat4::NFS4ERR_INVAL);
                continue;
            }
            let part = model[from as usize..(from + count) as usize].to_vec();
            let cuts = |target: &[u8]| !count.is_multiple_of(BLOCK) && at + count < target.len() as u64;
            if below(2) == 0 {
                let done = client.clone_range((&file, from), (&twin, at), count).await;
                if cuts(&other) {
                    assert_eq!(done, nfsstat4::NFS4ERR_INVAL, "{n}: {from} {at} {count}");
                    continue;
                }
                assert_eq!(done, nfsstat4::NFS4_OK, "{n}: {from} {at} {count}");
                other = spliced(&other, at as usize, &part);
            } else {
                let done = client.clone_range((&file, from), (&file, at), count).await;
                if from.abs_diff(at) < count || cuts(&model) {
                    assert_eq!(done, nfsstat4::NFS4ERR_INVAL);
                } else {
                    assert_eq!(done, nfsstat4::NFS4_OK, "{n}: {from} {at} {count}");
                    model = spliced(&model, at as usize, &part);
                }
            }
            assert!(content(&client, &file).await == model, "{n}: {from} {at} {count}");
            assert!(content(&client, &twin).await == other, "{n}: {from} {at} {count}");
            if model.len() > 20 * BLOCK as usize {
                client.truncate(&file, 6 * BLOCK + 100).await;
                model.truncate((6 * BLOCK + 100) as usize);
            }
        }
        world.sleep(Duration::from_secs(30)).await;
        assert_eq!(data_files(world), 2, "what came before is gone");
        world.check().await;
    });
}

#[test]
fn stripes_are_shared_where_they_lie_at_the_same_data_servers() {
    simulate(55, Shape::Default, 1, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let length = (9 * STRIPE) as usize;
        let source = written(&client, "from", &[(0, pattern(0, length))]).await;
        let target = client.open("to").await;
        assert_eq!(client.clone_range((&source, 0), (&target, 0), 0).await, nfsstat4::NFS4_OK);
        let mut model = pattern(0, length);
        // A turn of four stripe units further, and one that is not.
        let part = model[(2 * STRIPE) as usize..][..(3 * STRIPE) as usize].to_vec();
        let done = client.clone_range((&source, 2 * STRIPE), (&target, 6 * STRIPE), 3 * STRIPE).await;
        assert_eq!(done, nfsstat4::NFS4_OK);
        model = spliced(&model, (6 * STRIPE) as usize, &part);
        everywhere(&client, &target, &model, 1).await;
        assert_eq!(world.check().await, 0);
    });
}

/// Neither the data servers nor the stripes need be the same; what is at the wrong place is copied.
#[test]
fn what_lies_elsewhere_is_cloned_all_the_same() {
    for (seed, shape, mirrors) in
        [(61, Shape::Default, 1), (62, Shape::Small, 1), (63, Shape::Default, 2), (64, Shape::Wide, 1)]
    {
        simulate(seed, shape, mirrors, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let length = (2 * STRIPE + 5000) as usize;
            // With a hole in the middle.
            let tail = STRIPE + 300_070;
            let ends = [(0, pattern(0, 5000)), (tail, pattern(1, length - tail as usize))];
            let mut models = [vec![0; length], pattern(9, (STRIPE + 100) as usize)];
            ends.iter().for_each(|(at, data)| models[0][*at as usize..][..data.len()].copy_from_slice(data));
            let files = [
                written(&client, "from", &ends).await,
                written(&client, "to", &[(0, models[1].clone())]).await,
            ];
            for n in 0..8 {
                let below = |most: u64| world.env.random.u64() % most;
                let (one, two) = (below(2) as usize, below(2) as usize);
                let (source, size) = (&files[one], models[one].len() as u64);
                let (from, at) = (below(2 * 256) * BLOCK, below(3 * 256) * BLOCK);
                if from >= size {
                    continue;
                }
                let count = if below(3) == 0 { size - from } else { (1 + below(300)) * BLOCK };
                if from + count > size || (one == two && from.abs_diff(at) < count) {
                    continue;
                }
                let part = models[one][from as usize..(from + count) as usize].to_vec();
                let what = format!("{n}: {one} {from} -> {two} {at}, {count}");
                let done = client.clone_range((source, from), (&files[two], at), count).await;
                // The last, partial block of a source cannot go into the middle of the target.
                if !count.is_multiple_of(BLOCK) && at + count < models[two].len() as u64 {
                    assert_eq!(done, nfsstat4::NFS4ERR_INVAL, "{what}");
                    continue;
                }
                assert_eq!(done, nfsstat4::NFS4_OK, "{what}");
                models[two] = spliced(&models[two], at as usize, &part);
                assert!(content(&client, &files[two]).await == models[two], "{what}");
            }
            for (file, model) in files.iter().zip(&models) {
                everywhere(&client, file, model, mirrors.into()).await;
            }
            world.sleep(Duration::from_secs(30)).await;
            assert!(data_files(world) <= 10 * usize::from(mirrors), "what came before is gone");
            assert_eq!(world.check().await, 0);
        });
    }
}

#[test]
fn too_much_that_lies_elsewhere_is_refused() {
    let tune = |config: &mut sluice_mds::Config| {
        config.policy = LayoutPolicy { shape: Shape::Default, mirrors: 1, inline: 0, class: None };
        (config.first_component, config.copy_step) = (STRIPE, STRIPE);
    };
    simulate_tuned(65, tune, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let file = written(&client, "file", &[(0, pattern(0, (4 * STRIPE) as usize))]).await;
        client.truncate(&file, 1 << 50).await;
        let before = data_files(world);
        let refused = client.clone_range((&file, 0), (&file, 5 * STRIPE), STRIPE + BLOCK).await;
        assert_eq!(refused, nfsstat4::NFS4ERR_XDEV);
        assert_eq!(data_files(world), before, "nothing was begun");
        // Holes do not count.
        let done = client.clone_range((&file, 3 * STRIPE), (&file, (1 << 50) + STRIPE), 1 << 49).await;
        assert_eq!(done, nfsstat4::NFS4_OK);
        let at = (1 << 50) + STRIPE;
        assert!(
            client.proxied_read(&file, at, 5000).await[..]
                == pattern(0, 4 * STRIPE as usize)[3 * STRIPE as usize..][..5000]
        );
        assert_eq!(world.check().await, 0);
    });
}

#[test]
fn what_cannot_be_is_refused_by_its_name() {
    simulate(56, Shape::Small, 1, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let source = written(&client, "from", &[(0, pattern(0, 10_000))]).await;
        let target = client.open("to").await;
        let invalid = nfsstat4::NFS4ERR_INVAL;
        assert_eq!(client.clone_range((&source, 1), (&target, 0), 0).await, invalid);
        assert_eq!(client.clone_range((&source, 0), (&target, 1), 0).await, invalid);
        assert_eq!(client.clone_range((&source, 0), (&target, 0), 5000).await, invalid);
        assert_eq!(client.clone_range((&source, 12_288), (&target, 0), 0).await, invalid);
        assert_eq!(client.clone_range((&source, 0), (&target, 0), 12_288).await, invalid);
        let large =
            client.clone_range((&source, 0), (&target, (i64::MAX as u64 / BLOCK) * BLOCK), 8192).await;
        assert_eq!(large, nfsstat4::NFS4ERR_FBIG);
        // Its length is that of the source.
        let longer_than_files = client.clone_range((&source, 0), (&target, (1 << 63) - BLOCK), 0);
        let told = world.env.clock.timeout(Duration::from_secs(60), longer_than_files).await;
        assert_eq!(told.expect("it is asked to wait for ever"), nfsstat4::NFS4ERR_FBIG);
        // The last, partial block of a source ends the target, too: what that has behind it would be lost.
        let longer = written(&client, "longer", &[(0, pattern(2, 20_000))]).await;
        assert_eq!(client.clone_range((&source, 0), (&longer, 0), 0).await, invalid);
        assert_eq!(client.clone_range((&source, 8192), (&longer, 8192), 1808).await, invalid);
        assert!(content(&client, &longer).await == pattern(2, 20_000));
        assert_eq!(client.clone_range((&source, 8192), (&longer, 20_480), 1808).await, nfsstat4::NFS4_OK);
        let empty = client.open("empty").await;
        assert_eq!(client.clone_range((&empty, 0), (&target, 0), 0).await, nfsstat4::NFS4_OK);
        assert_eq!(client.stat(&target).await.0, 0);
        let other = written(&client, "other", &[(0, pattern(1, 20_000))]).await;
        (0..4).for_each(|n| world.set_reflinks(n, false));
        let before = data_files(world);
        let cannot = client.clone_range((&source, 0), (&target, 0), 0).await;
        assert_eq!(cannot, nfsstat4::NFS4ERR_NOTSUPP);
        assert_eq!(client.stat(&target).await.0, 0);
        // Nor is it copied what could be shared by nobody.
        for (from, at) in [(0, BLOCK), (BLOCK, 0)] {
            for to in [&target, &other] {
                let cannot = client.clone_range((&source, from), (to, at), BLOCK).await;
                assert_eq!(cannot, nfsstat4::NFS4ERR_NOTSUPP, "{from} {at}");
            }
        }
        assert!(content(&client, &other).await == pattern(1, 20_000));
        world.sleep(Duration::from_secs(30)).await;
        assert_eq!(data_files(world), before, "nothing is left of it");
        (0..4).for_each(|n| world.set_reflinks(n, true));
        assert_eq!(client.clone_range((&source, 0), (&target, 0), 0).await, nfsstat4::NFS4_OK);
        world.check().await;
    });
}

#[test]
fn it_is_of_one_moment_also_while_somebody_writes() {
    simulate(57, Shape::Small, 1, async |world| {
        let writer = Client::mount(world, "writer", NEW).await;
        let (file, layout) = writer.open_with_layout("from").await;
        writer.write(&layout, 0, &pattern(0, 50_000)).await.unwrap();
        let copier = Client::mount(world, "copier", NEW).await;
        let (source, target) = (copier.open("from").await, copier.open("to").await);
        let cloned = copier.clone_range((&source, 0), (&target, 0), 0);
        let returned = async {
            let (stateid, _) = writer.recalled(1).await;
            // What is on its way is written before the layout is returned.
            writer.write(&layout, 20_000, &[5; 50_000]).await.unwrap();
            writer.layout_commit(&file, stateid, Some(69_999)).await.unwrap();
            assert_eq!(writer.layout_return(&file, stateid).await, nfsstat4::NFS4_OK);
        };
        let both = async { tokio::join!(cloned, returned) };
        let (done, ()) = world.env.clock.timeout(Duration::from_secs(60), both).await.expect("a recall");
        assert_eq!(done, nfsstat4::NFS4_OK);
        let expected = spliced(&pattern(0, 50_000), 20_000, &[5; 50_000]);
        assert!(content(&copier, &target).await == expected);
    });
}

#[test]
fn one_that_a_server_does_not_survive_leaves_nothing_behind() {
    // Of a whole file, and of one that begins where another data server has it.
    for (seed, of_mds, at) in [(58, true, 0), (59, false, 0), (66, true, STRIPE), (67, false, STRIPE)] {
        simulate(seed, Shape::Default, 1, async |world| {
            let mut client = Client::mount(world, "a", NEW).await;
            let length = (6 * STRIPE) as usize;
            let source = written(&client, "from", &[(0, pattern(0, length))]).await;
            let target = written(&client, "to", &[(0, pattern(7, 9000))]).await;
            let (before, n) = (data_files(world), holder(world, &client, &source, 2 * STRIPE).await);
            let cut_off = client.clone_range((&source, at), (&target, 0), 0);
            // It does not answer, so that the others have been made when the server goes.
            let falls_silent = async {
                while at > 0 && data_files(world) == before {
                    world.sleep(Duration::from_micros(100)).await;
                }
                world.mute(n, true);
            };
            let both = async { tokio::join!(falls_silent, cut_off) };
            assert!(world.env.clock.timeout(Duration::from_secs(3), both).await.is_err());
            assert!(data_files(world) > before);
            if of_mds {
                world.mute(n, false);
                world.restart_metadata_server().await;
                client.reconnect(world).await;
                let reclaim = RECLAIM_COMPLETE4args { rca_one_fs: false };
                client.ok(vec![nfs_argop4::OP_RECLAIM_COMPLETE(reclaim)]).await;
            } else {
                world.crash_data_server(n).await;
                world.mute(n, false);
                world.start_data_server(n).await;
            }
            for _ in 0..12 {
                world.sleep(Duration::from_secs(10)).await;
                client.compound(Vec::new()).await;
            }
            let (source, target) = (client.open("from").await, client.open("to").await);
            everywhere(&client, &target, &pattern(7, 9000), 1).await;
            assert_eq!(data_files(world), before);
            assert_eq!(client.clone_range((&source, at), (&target, 0), 0).await, nfsstat4::NFS4_OK);
            everywhere(&client, &target, &pattern(0, length)[at as usize..], 1).await;
            world.check().await;
        });
    }
}

#[test]
fn what_is_being_made_is_not_taken_for_garbage() {
    simulate(60, Shape::Default, 1, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let length = (6 * STRIPE) as usize;
        let source = written(&client, "from", &[(0, pattern(0, length))]).await;
        let (target, other) = (client.open("to").await, written(&client, "other", &[(0, vec![1; 10])]).await);
        client.close(&other).await;
        let n = holder(world, &client, &source, STRIPE).await;
        world.mute(n, true);
        let colleague = Client::mount(world, "b", NEW).await;
        let collected = async {
            world.sleep(Duration::from_secs(1)).await;
            // Which has the queue worked through.
            colleague.remove("other").await;
            world.sleep(Duration::from_secs(5)).await;
            world.mute(n, false);
        };
        let all = CLONE4args {
            cl_src_stateid: source.stateid,
            cl_dst_stateid: target.stateid,
            cl_src_offset: 0,
            cl_dst_offset: 0,
            cl_count: 0,
        };
        let (done, ()) = tokio::join!(client.clone_once(&source, &target, all), collected);
        assert_eq!(done, nfsstat4::NFS4_OK);
        world.sleep(Duration::from_secs(30)).await;
        everywhere(&client, &target, &pattern(0, length), 1).await;
    });
}

/// As `cp --reflink` of what is only read: nobody has seen yet that a mirror is missed.
#[test]
fn a_clone_of_what_is_away_ends_and_leaves_nothing_behind() {
    for mirrors in [2, 1] {
        simulate(68, Shape::Small, mirrors, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let data = pattern(0, 10_000);
            let source = written(&client, "from", &[(0, data.clone())]).await;
            let target = written(&client, "to", &[(0, pattern(1, 9000))]).await;
            world.sleep(Duration::from_secs(60)).await;
            let (n, before) = (holder(world, &client, &source, 0).await, data_files(world));
            world.crash_data_server(n).await;
            let cloned = client.clone_range((&source, 0), (&target, 0), 0);
            let done = world.env.clock.timeout(Duration::from_secs(120), cloned).await;
            // Linux copies then.
            assert_eq!(done.ok(), Some(nfsstat4::NFS4ERR_XDEV), "{mirrors}");
            assert_eq!((world.garbage().await, data_files(world)), (0, before));
            world.start_data_server(n).await;
            while world.check().await > 0 {
                world.sleep(Duration::from_secs(1)).await;
            }
            everywhere(&client, &target, &pattern(1, 9000), mirrors.into()).await;
            assert_eq!(client.clone_range((&source, 0), (&target, 0), 0).await, nfsstat4::NFS4_OK);
            everywhere(&client, &target, &data, mirrors.into()).await;
        });
    }
}

#[test]
fn a_data_server_that_restarts_is_waited_for_by_a_clone() {
    for mirrors in [2, 1] {
        simulate(69, Shape::Small, mirrors, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let source = written(&client, "from", &[(0, pattern(0, 10_000))]).await;
            let target = client.open("to").await;
            world.sleep(Duration::from_secs(60)).await;
            let n = holder(world, &client, &source, 0).await;
            world.crash_data_server(n).await;
            let restarts = async {
                world.sleep(Duration::from_secs(3)).await;
                assert_eq!(world.garbage().await, 0, "nothing is begun meanwhile");
                world.start_data_server(n).await;
            };
            let (done, ()) = tokio::join!(client.clone_range((&source, 0), (&target, 0), 0), restarts);
            assert_eq!(done, nfsstat4::NFS4_OK);
            assert_eq!(world.check().await, 0, "no mirror is left behind");
            everywhere(&client, &target, &pattern(0, 10_000), mirrors.into()).await;
        });
    }
}
