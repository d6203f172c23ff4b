//! Small files kept in the metadata: what they cost, and that nothing is lost when they outgrow it.

use std::time::Duration;

use proptest::prelude::*;
use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::*;

use crate::client::{CURRENT, Client, Opened, RO, RW, later, layoutget, putfh};
use crate::stage::{World, simulate_with};
use crate::{NEW, pattern};

const LIMIT: u64 = 16 << 10;
const SMALL: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 16 << 10, class: None };
const DEFAULT: LayoutPolicy =
    LayoutPolicy { shape: Shape::Default, mirrors: 1, inline: 16 << 10, class: None };
const OK: nfsstat4 = nfsstat4::NFS4_OK;
const UNAVAILABLE: nfsstat4 = nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE;

impl Client {
    /// OPEN as Linux sends it, with GETATTR and LAYOUTGET in the COMPOUND: the file, what `mdsthreshold` hints at
    /// and how the LAYOUTGET ended.
    async fn open_like_linux(&self, name: &str) -> (Opened, Vec<u64>, nfsstat4) {
        let mut ops = Self::open_ops(name, OPEN4_SHARE_ACCESS_BOTH);
        let attr_request = bitmap4::of(&[FATTR4_SIZE, FATTR4_MDSTHRESHOLD]);
        ops.push(nfs_argop4::OP_GETATTR(GETATTR4args { attr_request }));
        ops.push(layoutget(CURRENT, RW, 0, u64::MAX));
        let (status, results) = self.compound(ops).await;
        let nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(looked)) = &results[3] else { panic!("{results:?}") };
        let found = Attributes::decode(&looked.obj_attributes).unwrap().mdsthreshold.unwrap();
        let hints = found.mth_hints.iter().flat_map(|hint| {
            assert_eq!(hint.thi_layout_type, layouttype4::LAYOUT4_FLEX_FILES);
            assert_eq!(hint.thi_hintset.words(), [0b1011]);
            hint.thi_hintlist.chunks(8).map(|n| u64::from_be_bytes(n.try_into().unwrap()))
        });
        (Self::opened(&results), hints.collect(), status)
    }
}

fn data_files(world: &World) -> usize {
    (0..4).map(|n| world.data_files(n)).sum()
}

#[test]
fn a_small_file_costs_two_transactions_and_no_data_server() {
    simulate_with(90, DEFAULT, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        client.open_like_linux("warm").await;
        // Until data servers have said how far they have come, as they do after a start.
        world.sleep(Duration::from_secs(15)).await;
        let before = world.cost();
        for n in 0..50 {
            let (file, hints, layout) = client.open_like_linux(&format!("f{n}")).await;
            assert_eq!((hints, layout), (vec![LIMIT + 1, LIMIT + 1, 1 << 20], UNAVAILABLE));
            assert_eq!(client.proxied_write(&file, 0, &pattern(n, 4096)).await, OK);
            client.close(&file).await;
        }
        let written = world.cost() - before;
        assert_eq!((written.transactions, written.orders, written.flushes), (100, 0, 0), "{written:?}");
        for n in 0..50 {
            let (file, _, layout) = client.open_like_linux(&format!("f{n}")).await;
            assert_eq!(layout, UNAVAILABLE);
            assert_eq!(client.proxied_read(&file, 0, 1 << 20).await[..], pattern(n, 4096));
            client.close(&file).await;
            client.remove(&format!("f{n}")).await;
        }
        world.sleep(Duration::from_secs(10)).await;
        let all = world.cost() - before;
        assert_eq!((all.transactions, all.orders, all.flushes), (150, 0, 0), "{all:?}");
        assert_eq!((data_files(world), world.proxied_because().await), (0, Vec::new()));
        world.check().await;
    });
}

#[test]
fn a_file_that_outgrows_its_place_is_where_a_layout_says() {
    simulate_with(91, DEFAULT, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (file, ..) = client.open_like_linux("f").await;
        assert_eq!(client.proxied_write(&file, 0, &pattern(0, 5000)).await, OK);
        // Reading needs no data file, however often it is asked for.
        assert_eq!(client.layout_status(&file, RO, 0).await, UNAVAILABLE);
        assert_eq!(data_files(world), 0);
        let seen = client.stat(&file).await;
        let layout = client.layout(&file, file.stateid, RW, 0).await;
        assert_eq!(client.stat(&file).await, seen, "where the bytes are is nobody's business");
        assert_eq!(client.read(&layout, 0..9999).await.unwrap()[..], pattern(0, 5000));
        client.write(&layout, 5000, &pattern(5000, 40_000)).await.unwrap();
        client.layout_commit(&file, layout.stateid, Some(44_999)).await.unwrap();
        client.return_and_close(&file, layout.stateid).await;
        let (file, hints, layout) = client.open_like_linux("f").await;
        assert_eq!((hints, layout), (Vec::new(), OK), "it stays at the data servers");
        assert_eq!(client.proxied_content(&file, 45_000).await, pattern(0, 45_000));
        assert_eq!(data_files(world), 1);
        world.check().await;
    });
}

/// What a large file costs beside one that never was inline: nothing is moved.
#[test]
fn a_large_file_is_promoted_with_the_transaction_of_its_first_layout() {
    simulate_with(92, DEFAULT, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (warm, ..) = client.open_like_linux("warm").await;
        client.layout(&warm, warm.stateid, RW, 0).await;
        world.sleep(Duration::from_secs(3)).await;
        let before = world.cost();
        let (file, ..) = client.open_like_linux("f").await;
        client.layout(&file, file.stateid, RW, 0).await;
        assert_eq!((world.cost() - before).transactions, 2);
    });
}

#[test]
fn wide_files_begin_at_data_servers() {
    let wide = LayoutPolicy { shape: Shape::Wide, mirrors: 1, inline: 16 << 10, class: None };
    simulate_with(93, wide, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (_, hints, layout) = client.open_like_linux("f").await;
        assert_eq!((hints, layout), (Vec::new(), OK));
    });
}

/// Only what is appended, so that all of what was there must be there in any case.
#[test]
fn a_crash_while_a_file_is_promoted_loses_nothing_and_leaves_nothing_behind() {
    for after in [0, 1, 2, 3, 5, 8, 12, 20] {
        simulate_with(100 + after, DEFAULT, async |world| {
            let mut client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            assert_eq!(client.proxied_write(&file, 0, &pattern(0, 10_000)).await, OK);
            let more = pattern(10_000, 10_000);
            let write = client.proxied_write(&file, 10_000, &more);
            let done = tokio::select! {
                status = write => { assert_eq!(status, OK); true }
                () = world.sleep(Duration::from_micros(after * 300)) => false,
            };
            world.restart_metadata_server().await;
            client.reconnect(world).await;
            let whole = RECLAIM_COMPLETE4args { rca_one_fs: false };
            client.once(vec![nfs_argop4::OP_RECLAIM_COMPLETE(whole)]).await;
            let file = client.open("f").await;
            let size = client.stat(&file).await.0;
            assert!(size == 20_000 || (size == 10_000 && !done), "{size} bytes");
            assert_eq!(client.proxied_content(&file, size).await, pattern(0, size as usize));
            world.sleep(Duration::from_secs(40)).await;
            let inline = client.layout_status(&file, RO, 0).await == UNAVAILABLE;
            assert_eq!(data_files(world), usize::from(!inline));
            world.check().await;
        });
    }
}

/// The store does not say whether it took the transaction that promotes a file: it is asked, and data files that no
/// file has taken go.
#[test]
fn a_promotion_of_which_the_store_says_nothing_leaves_nothing_behind() {
    for seed in 120..136 {
        simulate_with(seed, DEFAULT, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            assert_eq!(client.proxied_write(&file, 0, &pattern(0, 10_000)).await, OK);
            world.set_faults(Faults { unknown_lost: 0.4, unknown_applied: 0.2, ..Faults::NONE });
            while client.proxied_write(&file, 10_000, &pattern(10_000, 10_000)).await != OK {
                world.sleep(Duration::from_millis(100)).await;
            }
            world.set_faults(Faults::NONE);
            assert_eq!(client.proxied_content(&file, 20_000).await, pattern(0, 20_000));
            assert_eq!(data_files(world), 1, "seed {seed}");
            client.close(&file).await;
            client.remove("f").await;
            world.sleep(Duration::from_secs(40)).await;
            assert_eq!(data_files(world), 0, "seed {seed}");
            world.check().await;
        });
    }
}

/// Who appends to a small file does as it was told, and outgrows it by the way: that is no data that went astray.
#[test]
fn a_write_that_outgrows_the_limit_is_not_proxied() {
    simulate_with(95, SMALL, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (file, ..) = client.open_like_linux("log").await;
        for n in 0..5 {
            assert_eq!(client.proxied_write(&file, n * 4000, &pattern(n * 4000, 4000)).await, OK);
        }
        assert_eq!((data_files(world), world.proxied_because().await), (1, Vec::new()));
        assert_eq!(client.proxied_content(&file, 20_000).await, pattern(0, 20_000));
        world.check().await;
    });
}

/// Records of many hosts in one new file: it gets data files once, and nothing is thrown away.
#[test]
fn of_many_who_outgrow_a_limit_at_once_one_makes_data_files() {
    simulate_with(96, SMALL, async |world| {
        let mut clients = Vec::new();
        for n in 0..6 {
            clients.push(Client::mount(world, &format!("c{n}"), NEW).await);
        }
        let first = clients[0].open("shared").await;
        assert_eq!(clients[0].proxied_write(&first, 0, &pattern(0, 10_000)).await, OK);
        let mut files = vec![first];
        for client in &clients[1..] {
            files.push(client.open("shared").await);
        }
        let before = world.cost();
        let write = async |n: u64| {
            let (client, file) = (&clients[n as usize], &files[n as usize]);
            let at = 10_000 * (n + 1);
            while client.proxied_write(file, at, &pattern(at, 10_000)).await != OK {
                world.sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::join!(write(0), write(1), write(2), write(3), write(4), write(5));
        assert_eq!(clients[0].proxied_content(&files[0], 70_000).await, pattern(0, 70_000));
        // The file's, and each writer's piece.
        let orders = (world.cost() - before).orders;
        assert!(orders <= 20, "{orders} calls to data servers");
        assert_eq!(data_files(world), 1);
        world.check().await;
    });
}

/// A data server is away when the file has to go there: it stays what it was, and goes elsewhere.
#[test]
fn a_file_is_promoted_to_data_servers_that_are_there() {
    simulate_with(94, SMALL, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        world.crash_data_server(0).await;
        for n in 0..4 {
            let file = client.open(&format!("f{n}")).await;
            assert_eq!(client.proxied_write(&file, 0, &pattern(n, 9000)).await, OK);
            let mut grown = nfsstat4::NFS4ERR_DELAY;
            while grown == nfsstat4::NFS4ERR_DELAY {
                world.sleep(Duration::from_secs(1)).await;
                grown = client.proxied_write(&file, 9000, &pattern(n + 9000, 9000)).await;
            }
            assert_eq!(grown, OK);
            assert_eq!(client.proxied_content(&file, 18_000).await, pattern(n, 18_000));
        }
        world.start_data_server(0).await;
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(data_files(world), 4);
        world.check().await;
    });
}

/// DELAY would stop a client's whole writeback, NOSPC go to an application that writes over what is there. Who outgrows the limit hears
/// of it.
#[test]
fn what_stays_small_is_written_though_there_is_no_place_elsewhere() {
    const TWICE: LayoutPolicy = LayoutPolicy { mirrors: 2, inline: 32 << 10, ..SMALL };
    for full in [false, true] {
        simulate_with(137, TWICE, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let (file, empty) = (client.open("f").await, client.open("empty").await);
            assert_eq!(client.proxied_write(&file, 0, &pattern(0, 4096)).await, OK);
            if full {
                (0..4).for_each(|n| world.device(n).set_capacity(1));
            } else {
                for n in 1..4 {
                    world.crash_data_server(n).await;
                }
            }
            // Until that is known.
            world.sleep(Duration::from_secs(10)).await;
            for _ in 0..40 {
                for file in [&file, &empty] {
                    let asked = client.try_layout(file, file.stateid, RW, 0).await;
                    assert_eq!(asked.map(|held| held.stateid), Err(UNAVAILABLE), "{full}");
                    assert_eq!(client.proxied_write(file, 0, &pattern(7, 4096)).await, OK);
                }
                world.sleep(Duration::from_secs(1)).await;
            }
            let grow = async || client.proxied_write(&file, 4096, &pattern(4103, 40_000)).await;
            let refused = if full { nfsstat4::NFS4ERR_NOSPC } else { nfsstat4::NFS4ERR_DELAY };
            assert_eq!(grow().await, refused);
            assert_eq!(client.proxied_content(&file, 4096).await, pattern(7, 4096));
            for n in 1..4 {
                world.device(n).set_capacity(1 << 40);
                if !full {
                    world.start_data_server(n).await;
                    world.until_serving(n).await;
                }
            }
            world.sleep(Duration::from_secs(10)).await;
            while later(grow().await) {
                world.sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(client.layout_status(&empty, RW, 0).await, OK);
            assert_eq!(client.proxied_content(&file, 44_096).await, pattern(7, 44_096));
        });
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Through the metadata server.
    Write(usize, u64, usize),
    /// With a layout.
    Direct(usize, u64, usize),
    Truncate(usize, u64),
    Copy((usize, u64), (usize, u64), u64),
    Allocate(usize, u64, u64),
    Deallocate(usize, u64, u64),
    /// Gone, and made anew.
    Remove(usize),
    Restart,
}

const FILES: usize = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let file = || 0..FILES;
    // Mostly within the limit, sometimes beyond it.
    let at = || prop_oneof![6 => 0..LIMIT, 1 => 0..3 * LIMIT];
    let length = || prop_oneof![3 => 1usize..300, 2 => 1usize..9000, 1 => 1usize..40_000];
    let step = prop_oneof![
        12 => (file(), at(), length()).prop_map(|(f, at, n)| Step::Write(f, at, n)),
        2 => (file(), at(), length()).prop_map(|(f, at, n)| Step::Direct(f, at, n)),
        5 => (file(), at()).prop_map(|(f, at)| Step::Truncate(f, at)),
        4 => ((file(), at()), (file(), at()), at()).prop_map(|(a, b, n)| Step::Copy(a, b, n)),
        1 => (file(), at(), 1u64..9000).prop_map(|(f, at, n)| Step::Allocate(f, at, n)),
        1 => (file(), at(), 1u64..9000).prop_map(|(f, at, n)| Step::Deallocate(f, at, n)),
        4 => file().prop_map(Step::Remove),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

fn put(model: &mut Vec<u8>, at: u64, data: &[u8]) {
    let (from, to) = (at as usize, at as usize + data.len());
    model.resize(model.len().max(to), 0);
    model[from..to].copy_from_slice(data);
}

/// What an application would see, in whatever way its data went there.
async fn live(world: &mut World, steps: &[Step]) {
    let mut client = Client::mount(world, "a", NEW).await;
    let mut files = Vec::new();
    let mut models = vec![Vec::new(); FILES];
    for n in 0..FILES {
        files.push(client.open(&n.to_string()).await);
    }
    for (number, step) in steps.iter().enumerate() {
        let data = |n: usize| pattern(number as u64 * 7919, n);
        match *step {
            Step::Write(f, at, n) => {
                assert_eq!(client.proxied_write(&files[f], at, &data(n)).await, OK);
                put(&mut models[f], at, &data(n));
            }
            Step::Direct(f, at, n) => {
                let layout = client.layout(&files[f], files[f].stateid, RW, at).await;
                client.write(&layout, at, &data(n)).await.unwrap();
                let last = at + n as u64 - 1;
                client.layout_commit(&files[f], layout.stateid, Some(last)).await.unwrap();
                client.layout_return(&files[f], layout.stateid).await;
                put(&mut models[f], at, &data(n));
            }
            Step::Truncate(f, size) => {
                client.truncate(&files[f], size).await;
                models[f].resize(size as usize, 0);
            }
            Step::Copy((from, source), (to, target), n) => {
                let end = models[from].len() as u64;
                if source < end && from != to {
                    let n = n.min(end - source).max(1);
                    client.copy_all((&files[from], source), (&files[to], target), n).await.unwrap();
                    let bytes = models[from][source as usize..(source + n) as usize].to_vec();
                    put(&mut models[to], target, &bytes);
                }
            }
            Step::Allocate(f, at, n) => {
                let args = ALLOCATE4args { aa_stateid: files[f].stateid, aa_offset: at, aa_length: n };
                client.ok(vec![putfh(&files[f].handle), nfs_argop4::OP_ALLOCATE(args)]).await;
                let size = models[f].len().max((at + n) as usize);
                models[f].resize(size, 0);
            }
            Step::Deallocate(f, at, n) => {
                let args = DEALLOCATE4args { da_stateid: files[f].stateid, da_offset: at, da_length: n };
                client.ok(vec![putfh(&files[f].handle), nfs_argop4::OP_DEALLOCATE(args)]).await;
                let size = models[f].len();
                models[f][size.min(at as usize)..size.min((at + n) as usize)].fill(0);
            }
            Step::Remove(f) => {
                client.close(&files[f]).await;
                client.remove(&f.to_string()).await;
                files[f] = client.open(&f.to_string()).await;
                models[f].clear();
            }
            Step::Restart => {
                world.restart_metadata_server().await;
                client.reconnect(world).await;
                let whole = RECLAIM_COMPLETE4args { rca_one_fs: false };
                client.once(vec![nfs_argop4::OP_RECLAIM_COMPLETE(whole)]).await;
                for (n, file) in files.iter_mut().enumerate() {
                    *file = client.open(&n.to_string()).await;
                }
            }
        }
        for (file, model) in files.iter().zip(&models) {
            let size = model.len() as u64;
            assert_eq!(client.stat(file).await.0, size, "after {number}: {step:?}");
            let found = client.proxied_content(file, size).await;
            assert!(found == *model, "after {number}: {step:?}");
        }
    }
    world.sleep(Duration::from_secs(40)).await;
    let mut at_data_servers = 0;
    for (file, model) in files.iter().zip(&models) {
        if client.layout_status(file, RO, 0).await == UNAVAILABLE {
            assert!(model.len() as u64 <= LIMIT);
        } else {
            at_data_servers += 1;
        }
    }
    assert!(data_files(world) <= at_data_servers, "data files that nobody has");
    world.check().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn an_application_sees_the_same_bytes_wherever_they_are(seed in 1000u64..100_000, steps in steps()) {
        simulate_with(seed, SMALL, async |world| live(world, &steps).await);
    }
}
