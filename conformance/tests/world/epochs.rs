//! Capability epochs: who is let in again, and when handles are over for good.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::{ADMIN_EVICT, ADMIN_EVICT_args, ADMIN_EVICT_res, ADMIN_STATUS, ADMIN_STATUS_res};
use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::{OPEN4_SHARE_ACCESS_BOTH, RECLAIM_COMPLETE4args, nfs_argop4, nfsstat4};

use crate::client::{Client, RO, RW, later, layoutget, putfh};
use crate::mirrors::{Writer, healed, home};
use crate::stage::{World, simulate, simulate_tuned, simulate_with};
use crate::{NEW, keys, pattern};

#[test]
fn who_was_fenced_is_let_in_again() {
    simulate(21, async |world| {
        let stubborn = Client::mount(world, "stubborn", NEW).await;
        let (file, layout) = stubborn.open_with_layout("f").await;
        stubborn.write(&layout, 0, &pattern(0, 3000)).await.unwrap();
        let other = Client::mount(world, "other", NEW).await;
        let same = other.open("f").await;
        for round in 1..=3 {
            // Its lease goes on; only the recall is ignored.
            let keeps_its_lease = async {
                for _ in 0..8 {
                    world.sleep(Duration::from_secs(5)).await;
                    stubborn.compound(Vec::new()).await;
                }
            };
            tokio::join!(other.truncate(&same, 100), keeps_its_lease);
            assert_eq!(stubborn.write(&layout, 0, b"late").await, Err(nfsstat3::NFS3ERR_ACCES));
            let again = stubborn.layout(&file, file.stateid, RW, 0).await;
            stubborn.write(&again, 100, &pattern(round, 1000)).await.unwrap();
            assert_eq!(
                stubborn.write(&layout, 0, b"late").await,
                Err(nfsstat3::NFS3ERR_ACCES),
                "the fence of the old handle holds"
            );
            assert_eq!(other.stat(&same).await.0, 1100);
        }
    });
}

/// While one data server is waited for, another one with a mirror goes: it is left behind before anything is written without it.
#[test]
fn a_mirror_that_goes_while_a_layout_is_made_is_not_left_out_in_silence() {
    let twice = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };
    simulate_with(49, twice, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("f").await;
        let reads = client.layout(&file, file.stateid, RO, 0).await;
        let (first, second) = (home(world, &client, &reads, 0).await, home(world, &client, &reads, 1).await);
        assert_eq!(client.layout_return(&file, reads.stateid).await, nfsstat4::NFS4_OK);
        // Before its first heartbeat it is asked whether anything of before is on its way there, and does not answer for a while.
        world.mute(first, true);
        let asked = client.once(vec![putfh(&file.handle), layoutget(file.stateid, RW, 0, u64::MAX)]);
        let goes = async {
            world.sleep(Duration::from_secs(1)).await;
            world.stop_data_server(second).await;
            world.sleep(Duration::from_secs(1)).await;
            world.mute(first, false);
        };
        let ((status, _), ()) = tokio::join!(asked, goes);
        assert_eq!(status, nfsstat4::NFS4ERR_DELAY);
        let model = pattern(0, 3000);
        let mut writer = Writer::mount(world, "b", "f").await;
        writer.write(world, 0, &model).await;
        writer.give_back().await;
        world.start_data_server(second).await;
        healed(world, "f", &model).await;
    });
}

/// A host that starts anew leaves layouts of many files behind, and all of them are fenced at once.
#[test]
fn many_fences_do_not_stand_in_each_others_way() {
    const FILES: usize = 48;
    simulate(26, async |world| {
        let dies = Client::mount(world, "dies", NEW).await;
        for file in 0..FILES {
            let (_, layout) = dies.open_with_layout(&format!("f{file}")).await;
            dies.write(&layout, 0, &pattern(0, 100)).await.unwrap();
        }
        drop(dies);
        world.net.crash("dies");
        let latency = Duration::from_millis(20);
        world.set_faults(sluice_kv::Faults { latency, ..sluice_kv::Faults::NONE });
        let before = world.conflicts();
        let anew = Client::mount(world, "dies", NEW).await;
        world.until(|world| (0..4).map(|n| world.fences(n)).sum::<usize>() >= FILES).await;
        world.set_faults(sluice_kv::Faults::NONE);
        assert!(world.conflicts() - before < 4, "{} conflicts", world.conflicts() - before);
        assert_eq!(anew.stat(&anew.open("f0").await).await.0, 100);
    });
}

/// fdatasync needs no LAYOUTCOMMIT: what a client wrote under a layout of before a restart, and after somebody
/// looked at the file, is not lost with the client.
#[test]
fn a_layout_of_before_a_restart_is_good_until_grace_ends() {
    simulate(22, async |world| {
        let dies = Client::mount(world, "dies", NEW).await;
        let mut looks = Client::mount(world, "looks", NEW).await;
        let (_, layout) = dies.open_with_layout("f").await;
        dies.write(&layout, 0, &pattern(0, 1000)).await.unwrap();
        let same = looks.open("f").await;
        world.restart_metadata_server().await;
        looks.reconnect(world).await;
        assert_eq!(looks.stat(&same).await.0, 1000);
        dies.write(&layout, 1000, &pattern(1000, 1000)).await.unwrap();
        assert_eq!(looks.stat(&same).await.0, 2000, "it is looked at again");
        dies.write(&layout, 2000, &pattern(2000, 1000)).await.unwrap();
        // Nobody looks, and grace ends.
        world.sleep(Duration::from_secs(200)).await;
        assert_eq!(dies.write(&layout, 3000, b"late").await, Err(nfsstat3::NFS3ERR_ACCES));
        drop(dies);
        world.net.crash("dies");
        let mut reader = Client::mount(world, "reader", NEW).await;
        let file = reader.open("f").await;
        assert_eq!(reader.stat(&file).await.0, 3000);
        world.restart_metadata_server().await;
        reader.reconnect(world).await;
        assert_eq!(reader.stat(&file).await.0, 3000);
    });
}

/// It can reach data servers and not the metadata server, which gives what it held to others.
#[test]
fn who_did_not_reclaim_writes_nothing_once_others_are_served() {
    for seed in 40..48 {
        simulate(seed, async |world| {
            let cut_off = Client::mount(world, "cut off", NEW).await;
            let (_, layout) = cut_off.open_with_layout("f").await;
            cut_off.write(&layout, 0, &pattern(0, 1000)).await.unwrap();
            world.restart_metadata_server().await;
            let other = Client::mount(world, "other", NEW).await;
            let mut writes = 0;
            while other.once(Client::open_ops("f", OPEN4_SHARE_ACCESS_BOTH)).await.0 != nfsstat4::NFS4_OK {
                writes += u32::from(cut_off.write(&layout, 1000, b"in grace").await.is_ok());
                world.sleep(Duration::from_millis(7)).await;
            }
            assert!(writes > 1000, "until then it may come back: {writes}");
            assert_eq!(cut_off.write(&layout, 1000, b"late").await, Err(nfsstat3::NFS3ERR_ACCES));
        });
    }
}

/// Nobody can tell it that handles of before are over; it serves nobody after a while, and is waited for no longer.
#[test]
fn grace_ends_beside_a_data_server_that_is_away() {
    for (seed, away) in [(48, true), (49, false)] {
        simulate(seed, async |world| {
            let mut client = Client::mount(world, "client", NEW).await;
            let (_, layout) = client.open_with_layout("f").await;
            client.write(&layout, 0, &pattern(0, 1000)).await.unwrap();
            let n = home(world, &client, &layout, 0).await;
            if away {
                world.stop_data_server((n + 1) % 4).await;
            }
            world.restart_metadata_server().await;
            client.reconnect(world).await;
            let nothing = RECLAIM_COMPLETE4args { rca_one_fs: false };
            client.ok(vec![nfs_argop4::OP_RECLAIM_COMPLETE(nothing)]).await;
            let begun = world.env.clock.now();
            client.open("g").await;
            let took = (world.env.clock.now() - begun).as_millis();
            let expected = if away { 15_000..20_000 } else { 0..200 };
            assert!(expected.contains(&took), "{took} ms");
            assert_eq!(client.write(&layout, 1000, b"late").await, Err(nfsstat3::NFS3ERR_ACCES));
        });
    }
}

/// What it cannot write down it does from memory: nobody waits for it in vain.
#[test]
fn a_data_server_that_writes_nothing_down_follows_a_new_metadata_server() {
    simulate(27, async |world| writes_nothing_down(world, true).await);
}

#[test]
fn a_data_server_that_can_write_nothing_down_any_more_follows_its_metadata_server() {
    simulate(28, async |world| writes_nothing_down(world, false).await);
}

/// Its device fails before it registers with another one, or after that.
async fn writes_nothing_down(world: &mut World, early: bool) {
    let first = Client::mount(world, "first", NEW).await;
    let (file, layout) = first.open_with_layout("f").await;
    first.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
    first.layout_commit(&file, layout.stateid, Some(4999)).await.unwrap();
    assert_eq!(first.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
    let n = home(world, &first, &layout, 0).await;
    world.device(n).set_read_only(early);
    world.restart_metadata_server().await;
    world.device(n).set_read_only(true);
    drop(first);
    world.net.crash("first");
    world.sleep(Duration::from_secs(200)).await;
    let second = Client::mount(world, "second", NEW).await;
    let same = second.open("f").await;
    let asked = second.layout(&same, same.stateid, RO, 0);
    let again =
        world.env.clock.timeout(Duration::from_secs(60), asked).await.expect("not told to wait for ever");
    assert!(second.read(&again, 0..5000).await.unwrap()[..] == pattern(0, 5000)[..]);
    assert_eq!(second.layout_return(&same, again.stateid).await, nfsstat4::NFS4_OK);
    assert_eq!(second.read(&layout, 0..1).await, Err(nfsstat3::NFS3ERR_ACCES), "it is over");
    // Nor is it in the way of a new key.
    keys::ask(world, true).await;
    keys::ended(world).await;
}

/// Data servers do not forget which epochs the metadata server retired after the dump.
#[test]
fn a_dump_of_several_restarts_ago_is_served() {
    simulate(23, async |world| {
        let first = Client::mount(world, "a", NEW).await;
        let (file, layout) = first.open_with_layout("f").await;
        first.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
        first.layout_commit(&file, layout.stateid, Some(4999)).await.unwrap();
        assert_eq!(first.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
        let dump = world.dump().await;
        for _ in 0..3 {
            world.restart_metadata_server().await;
            world.sleep(Duration::from_secs(200)).await;
        }
        world.load(&dump).await;
        world.sleep(Duration::from_secs(200)).await;
        let second = Client::mount(world, "b", NEW).await;
        let same = second.open("f").await;
        let layout = second.layout(&same, same.stateid, RW, 0).await;
        assert!(second.read(&layout, 0..5000).await.unwrap()[..] == pattern(0, 5000)[..]);
        second.write(&layout, 5000, &pattern(5000, 1000)).await.unwrap();
        assert!(second.proxied_read(&same, 0, 6000).await[..] == pattern(0, 6000)[..]);
        assert_eq!(second.proxied_write(&same, 0, &pattern(0, 100)).await, nfsstat4::NFS4_OK);
    });
}

/// Whoever looks at the data servers while a file is cut does not bring back what was cut off.
#[test]
fn a_look_beside_a_truncation_does_not_undo_it() {
    for seed in 100..130 {
        simulate(seed, async |world| {
            let writer = Client::mount(world, "writer", NEW).await;
            let (file, layout) = writer.open_with_layout("f").await;
            writer.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
            let others = ["a", "b", "c"];
            let looks = others.map(async |host| {
                let other = Client::mount(world, host, NEW).await;
                let same = other.open("f").await;
                for _ in 0..10 {
                    other.stat(&same).await;
                }
                (other, same)
            });
            let cuts = async {
                for n in 0..10 {
                    writer.write(&layout, 0, &pattern(n, 5000)).await.unwrap();
                    writer.truncate(&file, 100 + n).await;
                    assert_eq!(writer.stat(&file).await.0, 100 + n, "seed {seed}");
                }
            };
            let [a, b, c] = looks;
            tokio::join!(cuts, a, b, c);
            assert_eq!(writer.stat(&file).await.0, 109, "seed {seed}");
        });
    }
}

#[test]
fn tombstones_do_not_gather_for_ever() {
    simulate_tuned(
        23,
        |config| config.capability_rows = 5,
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let (kept, layout) = client.open_with_layout("kept").await;
            client.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
            for n in 0..30 {
                let name = format!("f{n}");
                let (file, layout) = client.open_with_layout(&name).await;
                client.write(&layout, 0, b"short-lived").await.unwrap();
                assert_eq!(client.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
                client.close(&file).await;
                client.remove(&name).await;
            }
            // Only a layout of an older epoch comes back.
            let (recalled, changed) = client.recalled(1).await;
            assert!(!changed);
            client.write(&layout, 5000, &pattern(5000, 5000)).await.unwrap();
            assert_eq!(client.layout_return(&kept, recalled).await, nfsstat4::NFS4_OK);
            world.until(|world| (0..4).all(|n| world.fences(n) == 0)).await;
            assert_eq!(client.write(&layout, 0, b"late").await, Err(nfsstat3::NFS3ERR_ACCES));
            let again = client.layout(&kept, kept.stateid, RW, 0).await;
            assert!(client.read(&again, 0..10_000).await.unwrap()[..] == pattern(0, 10_000)[..]);
            client.write(&again, 0, &pattern(1, 10)).await.unwrap();
            assert_eq!(client.recalls().len(), 1);
        },
    );
}

/// As after many files were given other mirrors in its place. Of what it had before nothing is forgotten.
#[test]
fn a_data_server_with_more_fences_than_it_has_room_for_is_let_in() {
    simulate(27, async |world| {
        world.most_fences = 6000;
        let client = Client::mount(world, "a", NEW).await;
        let (file, layout) = client.open_with_layout("f").await;
        client.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
        let held = home(world, &client, &layout, 0).await;
        assert_eq!(client.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
        world.stop_data_server(held).await;
        // Of data files that nobody has.
        world.part(held, 1 << 32..(1 << 32) + 9000).await;
        world.start_data_server(held).await;
        assert_eq!(world.untold(held).await, 0);
        let again = client.layout(&file, file.stateid, RW, 0).await;
        assert!(client.read(&again, 0..5000).await.unwrap()[..] == pattern(0, 5000)[..]);
        world.until(|world| world.fences(held) == 0).await;
    });
}

/// What is removed while a data server is away is removed once at the others, and not again and again until all that they
/// keep of it calls back every layout there is.
#[test]
fn what_one_data_server_cannot_remove_yet_is_removed_once_at_the_others() {
    simulate_tuned(
        24,
        |config| config.capability_rows = 12,
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            files_everywhere(&client, 5).await;
            world.crash_data_server(3).await;
            world.sleep(Duration::from_secs(12)).await;
            // Its other data servers are those that are left.
            removed_without_recalls(world, &client, 5).await;
            world.start_data_server(3).await;
            world.sleep(Duration::from_secs(20)).await;
            assert_eq!(world.garbage().await, 0);
        },
    );
}

/// So many files with a data file at each data server, at rest.
async fn files_everywhere(client: &Client, files: usize) {
    for n in 0..files {
        let (file, layout) = client.open_with_layout(&format!("f{n}")).await;
        client.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
        assert_eq!(client.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
        client.close(&file).await;
    }
}

/// Files are removed that some data server cannot remove yet, and after two minutes a layout is as good as before.
async fn removed_without_recalls(world: &World, client: &Client, files: usize) {
    let (_, layout) = client.open_with_layout("kept").await;
    client.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
    let recalls = client.recalls().len();
    for n in 0..files {
        client.remove(&format!("f{n}")).await;
    }
    world.sleep(Duration::from_secs(120)).await;
    client.write(&layout, 5000, &pattern(5000, 5000)).await.unwrap();
    assert_eq!(client.recalls().len(), recalls);
}

/// Each of four keeps a part of them.
#[test]
fn what_all_data_servers_keep_together_is_not_too_much_for_one() {
    simulate_tuned(
        32,
        |config| config.capability_rows = 40,
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            files_everywhere(&client, 24).await;
            removed_without_recalls(world, &client, 24).await;
            let kept: Vec<usize> = (0..4).map(|n| world.fences(n)).collect();
            assert!(kept.iter().sum::<usize>() > 40 && kept.iter().all(|rows| *rows < 40), "{kept:?}");
            // Four times as many.
            files_everywhere(&client, 72).await;
            for n in 0..72 {
                client.remove(&format!("f{n}")).await;
            }
            client.recalled(1).await;
        },
    );
}

/// Nor is it asked again and again, and what it answers counted as if it kept something.
#[test]
fn what_a_data_server_that_is_read_only_cannot_remove_calls_no_layout_back() {
    simulate_tuned(
        30,
        |config| config.capability_rows = 12,
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            files_everywhere(&client, 5).await;
            world.device(3).set_read_only(true);
            world.sleep(Duration::from_secs(12)).await;
            removed_without_recalls(world, &client, 5).await;
            assert_eq!(world.garbage().await, 5);
            world.device(3).set_read_only(false);
            world.sleep(Duration::from_secs(20)).await;
            assert_eq!(world.garbage().await, 0);
        },
    );
}

/// It would be removed again and again at the others.
#[test]
fn what_is_removed_and_cannot_be_remembered_waits_for_the_data_server_that_is_away() {
    simulate_tuned(
        31,
        |config| (config.capability_rows, config.removals_remembered) = (12, 2),
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            files_everywhere(&client, 5).await;
            let everywhere = (0..3).map(|n| world.data_files(n)).sum::<usize>();
            world.crash_data_server(3).await;
            world.sleep(Duration::from_secs(12)).await;
            removed_without_recalls(world, &client, 5).await;
            let left = (0..3).map(|n| world.data_files(n)).sum::<usize>();
            assert!((1..everywhere).contains(&left), "{left} of {everywhere}: some are remembered");
            world.start_data_server(3).await;
            world.sleep(Duration::from_secs(20)).await;
            assert_eq!(world.garbage().await, 0);
        },
    );
}

/// What it gave back was good for as long as its epoch.
#[test]
fn an_evicted_client_writes_no_more_under_what_it_gave_back() {
    simulate(29, async |world| {
        let evicted = Client::mount(world, "evicted", NEW).await;
        let (file, layout) = evicted.open_with_layout("f").await;
        evicted.write(&layout, 0, &pattern(0, 3000)).await.unwrap();
        evicted.layout_commit(&file, layout.stateid, Some(2999)).await.unwrap();
        assert_eq!(evicted.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
        evicted.write(&layout, 0, b"late").await.expect("until then it is trusted");
        let ADMIN_STATUS_res::CTL_OK(status) = world.admin(ADMIN_STATUS, &()).await else { panic!() };
        let evict = ADMIN_EVICT_args { client: status.clients[0].client };
        let done: ADMIN_EVICT_res = world.admin(ADMIN_EVICT, &evict).await;
        assert!(matches!(done, ADMIN_EVICT_res::CTL_OK(_)), "{done:?}");
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(evicted.write(&layout, 0, b"late").await, Err(nfsstat3::NFS3ERR_ACCES));
        // As another client it begins anew.
        let anew = Client::mount(world, "evicted", NEW).await;
        let (_, layout) = anew.open_with_layout("f").await;
        anew.write(&layout, 0, &pattern(0, 3000)).await.unwrap();
    });
}

/// A data server that is given up, and does not hear of anything, takes the reader's handle for good until it has been alone
/// for too long.
#[test]
fn who_reads_under_a_layout_of_before_a_restart_reads_nothing_that_was_overwritten_in_grace() {
    let twice = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };
    for heard in [false, true] {
        simulate_with(50, twice, async |world| {
            let mut writer = Writer::mount(world, "a", "f").await;
            writer.write(world, 0, b"old data").await;
            writer.give_back().await;
            let reader = Client::mount(world, "b", NEW).await;
            let file = reader.open("f").await;
            let reads = reader.layout(&file, file.stateid, RO, 0).await;
            let old = reads.mirror(0);
            assert!(reader.read(&old, 0..8).await.unwrap()[..] == b"old data"[..]);
            let given_up = home(world, &reader, &reads, 0).await;
            let cut_off = |world: &World| world.net.partition(&format!("ds{}", given_up + 1), "mds");
            world.net.partition("b", "mds");
            if heard {
                world.restart_metadata_server().await;
                // It says so with its next heartbeat.
                world.device(given_up).set_read_only(true);
                world.sleep(Duration::from_secs(3)).await;
                cut_off(world);
            } else {
                cut_off(world);
                world.restart_metadata_server().await;
            }
            writer.client.reconnect(world).await;
            let file = writer.client.reclaim(&writer.file).await;
            for round in 0.. {
                match writer.client.proxied_write(&file, 0, b"new data").await {
                    nfsstat4::NFS4_OK => break,
                    status => assert!(later(status) && round < 600, "{status}"),
                }
                world.sleep(Duration::from_millis(100)).await;
            }
            let answer = world.env.clock.timeout(Duration::from_secs(1), reader.read(&old, 0..8)).await;
            assert!(!matches!(answer, Ok(Ok(_))), "what was overwritten is read: {answer:?}");
        });
    }
}

/// It has room for what it is to keep, and only cannot carry that out now: nobody is asked for what he holds over that.
#[test]
fn a_data_server_that_is_short_of_descriptors_has_no_layouts_called_back() {
    simulate(133, async |world| {
        let holder = Client::mount(world, "holder", NEW).await;
        let (file, layout) = holder.open_with_layout("f").await;
        holder.write(&layout, 0, &pattern(0, 3000)).await.unwrap();
        let mut writer = Writer::mount(world, "other", "g").await;
        writer.write(world, 0, &pattern(0, 100_000)).await;
        writer.give_back().await;
        world.sleep(Duration::from_secs(30)).await;
        (0..4).for_each(|n| world.device(n).set_no_folders(true));
        writer.client.close(&writer.file).await;
        writer.client.remove("g").await;
        for _ in 0..40 {
            world.sleep(Duration::from_secs(5)).await;
            holder.compound(Vec::new()).await;
            writer.client.compound(Vec::new()).await;
        }
        assert_eq!((holder.recalls().len(), world.garbage().await), (0, 1));
        holder.write(&layout, 0, &pattern(0, 3000)).await.unwrap();
        (0..4).for_each(|n| world.device(n).set_no_folders(false));
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(world.garbage().await, 0);
        assert_eq!(holder.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
    });
}
