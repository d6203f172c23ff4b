//! A data server is emptied under its clients: nothing acknowledged is lost, nothing is left on it, and whoever takes
//! part may die on the way.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_rpc::SimConfig;
use sluice_xdr::control::*;
use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::{ALLOCATE4args, nfs_argop4, nfsstat4};

use crate::client::{Client, RO, RW, later, putfh};
use crate::mirrors::{Writer, home, put};
use crate::stage::{UNIT, World, simulate, simulate_on, simulate_tuned, simulate_with};
use crate::{NEW, OLD, pattern};

/// Registered one after the other: the number of the n-th is n + 1.
pub(crate) fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap() + 1
}

pub(crate) async fn server(world: &World, n: usize) -> Option<ctl_server> {
    match world.admin(ADMIN_SERVERS, &()).await {
        ADMIN_SERVERS_res::CTL_OK(ok) => ok.servers.into_iter().find(|s| s.status.id == number(n)),
        other => panic!("{other:?}"),
    }
}

/// Asks until there is a verdict.
pub(crate) async fn drain(world: &World, n: usize, limit: u64) -> Result<(), String> {
    let args = ADMIN_DRAIN_args { id: number(n), cancel: false, limit };
    loop {
        match world.admin(ADMIN_DRAIN, &args).await {
            ADMIN_DRAIN_res::CTL_OK => return Ok(()),
            ADMIN_DRAIN_res::Default(ctl_status::CTL_ERR_AGAIN, _) => {}
            ADMIN_DRAIN_res::Default(_, why) => return Err(String::from_utf8(why.to_vec()).unwrap()),
        }
        world.sleep(Duration::from_millis(200)).await;
    }
}

pub(crate) async fn cancel(world: &World, n: usize) {
    let args = ADMIN_DRAIN_args { id: number(n), cancel: true, limit: 0 };
    assert_eq!(world.admin::<_, ADMIN_DRAIN_res>(ADMIN_DRAIN, &args).await, ADMIN_DRAIN_res::CTL_OK);
}

pub(crate) async fn remove(
    world: &World,
    n: usize,
    lost: bool,
    agreed: &[u64],
) -> Result<ADMIN_REMOVE_resok, String> {
    let args = ADMIN_REMOVE_args { id: number(n), lost, agreed: agreed.to_vec() };
    loop {
        match world.admin(ADMIN_REMOVE, &args).await {
            ADMIN_REMOVE_res::CTL_OK(ok) => return Ok(ok),
            ADMIN_REMOVE_res::Default(ctl_status::CTL_ERR_AGAIN, _) => {}
            ADMIN_REMOVE_res::Default(_, why) => return Err(String::from_utf8(why.to_vec()).unwrap()),
        }
        world.sleep(Duration::from_millis(200)).await;
    }
}

async fn is_drained(world: &World, n: usize) -> bool {
    server(world, n).await.is_some_and(|s| s.intent == ctl_intent::INTENT_DRAINED)
}

pub(crate) async fn drained(world: &World, n: usize) {
    for _ in 0..600 {
        if is_drained(world, n).await {
            assert_eq!(world.data_files(n), 0, "it is said to hold nothing");
            world.check().await;
            return;
        }
        world.sleep(Duration::from_secs(1)).await;
    }
    panic!("not drained: {:?}", server(world, n).await);
}

/// Read at once.
const WINDOW: usize = 64 << 10;

/// Every byte is what was written, from the data servers and through the metadata server; nothing comes from `gone`.
pub(crate) async fn right(world: &World, name: &str, expected: &[u8], gone: usize) {
    let client = Client::mount(world, &format!("witness{}", world.env.random.u64()), OLD).await;
    let file = client.open(name).await;
    let length = u64::try_from(expected.len()).unwrap();
    assert_eq!(client.stat(&file).await.0, length, "{name}");
    let (mut at, mut stateid) = (0, file.stateid);
    while at < length {
        let segment = client.layout(&file, stateid, RO, at).await;
        stateid = segment.stateid;
        let end = segment.bytes.end.min(length);
        let (from, to) = (usize::try_from(at).unwrap(), usize::try_from(end).unwrap());
        for mirror in 0..segment.body.ffl_mirrors.len() {
            assert_ne!(home(world, &client, &segment, mirror).await, gone, "{name} at {at}");
            for (n, window) in expected[from..to].chunks(WINDOW).enumerate() {
                // Of long holes some parts will do.
                if n % 8 != 0 && window.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let start = at + u64::try_from(n * WINDOW).unwrap();
                let bytes = start..start + u64::try_from(window.len()).unwrap();
                let mut read = client.read(&segment.mirror(mirror), bytes).await.unwrap().to_vec();
                // Of a file that was extended and not written to its end: Linux puts zeros there.
                read.resize(window.len(), 0);
                assert!(read == window, "{name}: mirror {mirror} differs at {start} or after");
            }
        }
        at = end;
    }
    let through = client.proxied_read(&file, 0, 1 << 20).await;
    assert!(through[..] == expected[..through.len()], "{name} through the metadata server");
    client.close(&file).await;
}

#[test]
fn a_drained_data_server_holds_nothing_and_is_not_missed() {
    for (seed, shape) in [(1, Shape::Default), (2, Shape::Wide)] {
        simulate_with(seed, LayoutPolicy { shape, mirrors: 1, inline: 0, class: None }, async |world| {
            let gone = 1;
            let mut files = BTreeMap::new();
            for n in 0..4_u64 {
                let name = format!("f{n}");
                let mut writer = Writer::mount(world, &format!("c{n}"), &name).await;
                let mut model = Vec::new();
                for at in [0, UNIT - 3000, UNIT + 100_000 + n * 1000] {
                    let data = pattern(at + n, 90_000);
                    writer.write(world, at, &data).await;
                    put(&mut model, at, &data);
                }
                files.insert(name, (writer, model));
            }
            assert!(world.data_files(gone) > 0);
            let before = server(world, gone).await.unwrap();
            assert_eq!((before.intent, before.drain.len()), (ctl_intent::INTENT_ACTIVE, 0));
            drain(world, gone, 0).await.unwrap();
            // Everybody goes on, with layouts that were handed out before.
            for round in 0..12_u64 {
                for (writer, model) in files.values_mut() {
                    let (at, data) = (round * 150_000, pattern(round, 20_000));
                    writer.write(world, at, &data).await;
                    put(model, at, &data);
                }
                world.sleep(Duration::from_millis(100)).await;
            }
            for (writer, _) in files.values_mut() {
                writer.obey().await;
            }
            drained(world, gone).await;
            for (name, (writer, model)) in &mut files {
                writer.obey().await;
                writer.give_back().await;
                right(world, name, model, gone).await;
            }
            assert_eq!(remove(world, gone, false, &[]).await.unwrap().files, 0);
            assert!(server(world, gone).await.is_none(), "gone from the list");
            world.crash_data_server(gone).await;
            world.sleep(Duration::from_secs(30)).await;
            for (name, (writer, model)) in &mut files {
                let proxied = writer.proxied;
                let data = pattern(77, 300_000);
                writer.write(world, UNIT - 100_000, &data).await;
                put(model, UNIT - 100_000, &data);
                assert_eq!(writer.proxied, proxied, "straight to the data servers");
                writer.give_back().await;
                right(world, name, model, gone).await;
            }
            assert_eq!(world.check().await, 0);
            // Neither a restart nor the data server itself brings it back.
            world.restart_metadata_server().await;
            assert!(server(world, gone).await.is_none());
            world.start_refused(gone).await;
            assert!(server(world, gone).await.is_none());
        });
    }
}

/// A device that takes nothing any more is what drains are for.
#[test]
fn a_data_server_whose_device_takes_nothing_any_more_is_drained() {
    for (seed, restart) in [(41, false), (42, true)] {
        let policy = LayoutPolicy { shape: Shape::Default, mirrors: 1, inline: 0, class: None };
        simulate_with(seed, policy, async |world| {
            let mut writer = Writer::mount(world, "c", "f").await;
            let mut model = Vec::new();
            for at in [0, UNIT - 3000, UNIT + 100_000] {
                let data = pattern(at, 90_000);
                writer.write(world, at, &data).await;
                put(&mut model, at, &data);
            }
            writer.give_back().await;
            let gone = (0..4).find(|n| world.data_files(*n) > 0).unwrap();
            world.device(gone).set_read_only(true);
            if restart {
                world.restart_metadata_server().await;
                world.sleep(Duration::from_secs(200)).await;
            }
            drain(world, gone, 0).await.unwrap();
            for _ in 0..30 {
                if is_drained(world, gone).await {
                    break;
                }
                world.sleep(Duration::from_secs(2)).await;
            }
            let status = server(world, gone).await.unwrap();
            assert_eq!(status.intent, ctl_intent::INTENT_DRAINED, "{status:?}");
            right(world, "f", &model, gone).await;
            assert_eq!(remove(world, gone, false, &[]).await.unwrap().files, 0);
            world.crash_data_server(gone).await;
            right(world, "f", &model, gone).await;
        });
    }
}

#[test]
fn new_files_stay_away_at_once_and_come_back_when_it_is_cancelled() {
    simulate_with(
        4,
        LayoutPolicy { shape: Shape::Wide, mirrors: 1, inline: 0, class: None },
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            // One that is never written: there is nothing to copy, and still it must not name what goes.
            let (empty, held) = client.open_with_layout("empty").await;
            drain(world, 2, 0).await.unwrap();
            let (_, new) = client.open_with_layout("new").await;
            for mirror in 0..new.body.ffl_mirrors.len() {
                for server in &new.body.ffl_mirrors[mirror].ffm_data_servers {
                    assert_ne!(client.device(server.ffds_deviceid).await, world.data_server(2));
                }
            }
            let (stateid, _) = client.recalled(1).await;
            assert_eq!(stateid.other, held.stateid.other);
            client.layout_return(&empty, stateid).await;
            drained(world, 2).await;
            cancel(world, 2).await;
            assert_eq!(server(world, 2).await.unwrap().intent, ctl_intent::INTENT_ACTIVE);
            let (_, again) = client.open_with_layout("again").await;
            let mut homes = Vec::new();
            for server in &again.body.ffl_mirrors[0].ffm_data_servers {
                homes.push(client.device(server.ffds_deviceid).await);
            }
            assert!(homes.contains(&world.data_server(2)));
            assert!(remove(world, 2, false, &[]).await.unwrap_err().contains("drain it first"));
        },
    );
}

#[test]
fn who_does_not_let_go_is_fenced_and_writes_nothing_that_counts() {
    simulate_with(
        5,
        LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None },
        async |world| {
            let mut writer = Writer::mount(world, "a", "f").await;
            writer.write(world, 0, &pattern(1, 400_000)).await;
            let held = writer.held.clone().unwrap();
            let gone = home(world, &writer.client, &held, 0).await;
            // It goes on reaching the data server, and hears nothing of the metadata server.
            world.net.partition("a", "mds");
            drain(world, gone, 0).await.unwrap();
            drained(world, gone).await;
            let late = writer.client.write(&held, 0, &[9; 1000]).await;
            assert!(late.is_err(), "{late:?}");
            let read = writer.client.read(&held, 0..1000).await;
            assert!(matches!(read, Err(nfsstat3::NFS3ERR_STALE | nfsstat3::NFS3ERR_ACCES)), "{read:?}");
            right(world, "f", &pattern(1, 400_000), gone).await;
            assert_eq!(world.data_files(gone), 0);
        },
    );
}

#[test]
fn mirrors_stay_on_distinct_data_servers_and_too_few_are_refused() {
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 3, inline: 0, class: None };
    simulate_with(6, policy, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        let model = pattern(1, 700_000);
        writer.write(world, 0, &model).await;
        writer.give_back().await;
        drain(world, 0, 0).await.unwrap();
        drained(world, 0).await;
        right(world, "f", &model, 0).await;
        let segment = writer.client.layout(&writer.file, writer.file.stateid, RO, 0).await;
        let mut homes = Vec::new();
        for mirror in 0..3 {
            homes.push(home(world, &writer.client, &segment, mirror).await);
        }
        homes.sort_unstable();
        assert_eq!(homes, [1, 2, 3]);
        let why = drain(world, 1, 0).await.unwrap_err();
        assert!(why.contains("3 mirrors") && why.contains("only 2"), "{why}");
        assert_eq!(server(world, 1).await.unwrap().intent, ctl_intent::INTENT_ACTIVE);
        let nobody = drain(world, 8, 0).await.unwrap_err();
        assert!(nobody.contains("no data server 9"), "{nobody}");
    });
}

#[test]
fn what_is_lost_with_a_data_server_is_said_and_agreed_to_first() {
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
    simulate_tuned(
        7,
        |config| (config.policy, config.rebuild_after) = (policy, Duration::ZERO),
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            for n in 0..8_u64 {
                client.put_whole(&format!("f{n}"), &pattern(n, 5000)).await;
            }
            let lost = 3;
            let here = world.data_files(lost);
            world.sleep(Duration::from_secs(3)).await;
            assert!(remove(world, lost, true, &[]).await.unwrap_err().contains("a moment ago"));
            world.crash_data_server(lost).await;
            world.sleep(Duration::from_secs(60)).await;
            assert!(remove(world, lost, true, &[]).await.unwrap_err().contains("drain it first"));
            drain(world, lost, 0).await.unwrap();
            world.sleep(Duration::from_secs(60)).await;
            let progress = server(world, lost).await.unwrap().drain.remove(0);
            assert_eq!(progress.held, u64::try_from(here).unwrap());
            assert!(
                String::from_utf8_lossy(&progress.examples[0].reason).contains("data server 4 is not there")
            );
            assert!(progress.examples[0].name.starts_with(b"f"));
            let told = remove(world, lost, true, &[]).await.unwrap();
            assert_eq!((told.removed, told.files), (false, u64::try_from(here).unwrap()));
            assert!(told.examples[0].name.starts_with(b"f"));
            let wrong = remove(world, lost, true, &[told.files + 1]).await.unwrap();
            assert!(!wrong.removed, "agreed to something else");
            assert!(remove(world, lost, true, &[told.files]).await.unwrap().removed);
            assert!(server(world, lost).await.is_none());
            // What is lost is an error at once, not a wait; it can be removed, and be written anew.
            let client = Client::mount(world, "b", NEW).await;
            let (mut errors, mut good) = (0, 0);
            for n in 0..8_u64 {
                let file = client.open(&format!("f{n}")).await;
                match client.try_read(&file, 0, 5000).await {
                    Ok(read) => {
                        assert!(read[..] == pattern(n, 5000)[..]);
                        good += 1;
                    }
                    Err(nfsstat4::NFS4ERR_IO) => {
                        errors += 1;
                        client.truncate(&file, 0).await;
                        let segment = client.layout(&file, file.stateid, RW, 0).await;
                        client.write(&segment, 0, b"anew").await.unwrap();
                        client.layout_return(&file, segment.stateid).await;
                    }
                    Err(other) => panic!("{other:?}"),
                }
                client.close(&file).await;
                client.remove(&format!("f{n}")).await;
            }
            assert_eq!((errors, good), (here, 8 - here));
            world.sleep(Duration::from_secs(30)).await;
            assert_eq!(world.check().await, 0);
            world.start_refused(lost).await;
        },
    );
}

/// Whoever agrees to it may have gone to ask somebody, and other clients do not wait for that.
#[test]
fn what_was_said_to_be_lost_may_be_agreed_to_later_though_some_of_it_was_removed() {
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
    let tune = |config: &mut sluice_mds::Config| {
        (config.policy, config.rebuild_after) = (policy, Duration::ZERO);
    };
    simulate_tuned(8, tune, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        for n in 0..16_u64 {
            client.put_whole(&format!("f{n}"), &pattern(n, 5000)).await;
        }
        let lost = 3;
        world.sleep(Duration::from_secs(3)).await;
        world.crash_data_server(lost).await;
        world.sleep(Duration::from_secs(60)).await;
        drain(world, lost, 0).await.unwrap();
        world.sleep(Duration::from_secs(60)).await;
        let told = remove(world, lost, true, &[]).await.unwrap();
        assert!(!told.removed && told.files > 2, "{told:?}");
        let client = Client::mount(world, "b", NEW).await;
        client.remove(std::str::from_utf8(&told.examples[0].name).unwrap()).await;
        // Others are made, and are nowhere near it.
        for n in 16..20_u64 {
            client.put_whole(&format!("f{n}"), &pattern(n, 5000)).await;
        }
        world.sleep(Duration::from_secs(300)).await;
        assert!(!remove(world, lost, true, &[told.files + 1]).await.unwrap().removed, "not what was said");
        let fewer = remove(world, lost, true, &[]).await.unwrap();
        assert_eq!(fewer.files, told.files - 1);
        let client = Client::mount(world, "c", NEW).await;
        client.remove(std::str::from_utf8(&fewer.examples[0].name).unwrap()).await;
        world.sleep(Duration::from_secs(300)).await;
        assert!(remove(world, lost, true, &[fewer.files]).await.unwrap().removed);
        assert!(server(world, lost).await.is_none());
    });
}

/// What happens next.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Write { file: usize, at: u64, length: usize, seed: u64 },
    Truncate { file: usize, size: u64 },
    Remove { file: usize },
    RestartMds,
    CrashDs { n: usize, millis: u64 },
    Cancel,
    Sleep { millis: u64 },
}

const FILES: usize = 3;
/// Where the last write begins.
const LONGEST: u64 = UNIT + (2 << 20);

pub(crate) fn event() -> impl Strategy<Value = Event> {
    let write = (0..FILES, 0..LONGEST, 1usize..200_000, any::<u64>());
    prop_oneof![
        8 => write.prop_map(|(file, at, length, seed)| Event::Write { file, at, length, seed }),
        1 => (0..FILES, 0..LONGEST).prop_map(|(file, size)| Event::Truncate { file, size }),
        1 => (0..FILES).prop_map(|file| Event::Remove { file }),
        2 => Just(Event::RestartMds),
        3 => (0usize..4, 0u64..6000).prop_map(|(n, millis)| Event::CrashDs { n, millis }),
        1 => Just(Event::Cancel),
        5 => (0u64..4000).prop_map(|millis| Event::Sleep { millis }),
    ]
}

/// One of the files, and a client of its own that uses it.
pub(crate) struct Used {
    pub(crate) name: String,
    host: String,
    writer: Writer,
    pub(crate) model: Vec<u8>,
}

impl Used {
    async fn new(world: &World, file: usize, clients: &mut usize) -> Self {
        *clients += 1;
        let (name, host) = (format!("f{file}"), format!("client{clients}"));
        let writer = Writer::mount(world, &host, &name).await;
        Self { name, host, writer, model: Vec::new() }
    }
}

/// Some files, with something in them.
pub(crate) async fn used(world: &World, clients: &mut usize) -> Vec<Used> {
    let mut files = Vec::new();
    for file in 0..FILES {
        let mut used = Used::new(world, file, clients).await;
        let data = pattern(u64::try_from(file).unwrap(), 700_000);
        used.writer.write(world, 0, &data).await;
        put(&mut used.model, 0, &data);
        files.push(used);
    }
    files
}

/// What happens to them, and who was about to move something is `cancelled` now and then; in the end nobody uses them.
pub(crate) async fn happen(
    world: &mut World,
    files: &mut [Used],
    clients: &mut usize,
    events: &[Event],
    cancelled: impl AsyncFn(&World),
) {
    for event in events {
        match event {
            Event::Write { file, at, length, seed } => {
                let (data, used) = (pattern(*seed, *length), &mut files[*file]);
                used.writer.write(world, *at, &data).await;
                put(&mut used.model, *at, &data);
            }
            Event::Truncate { file, size } => {
                let used = &mut files[*file];
                used.writer.give_back().await;
                used.writer.client.truncate(&used.writer.file, *size).await;
                used.model.resize(usize::try_from(*size).unwrap(), 0);
            }
            Event::Remove { file } => {
                let used = &mut files[*file];
                used.writer.give_back().await;
                used.writer.client.close(&used.writer.file).await;
                used.writer.client.remove(&used.name).await;
                *used = Used::new(world, *file, clients).await;
            }
            Event::RestartMds => {
                world.restart_metadata_server().await;
                for (file, used) in files.iter_mut().enumerate() {
                    world.net.crash(&used.host);
                    let model = std::mem::take(&mut used.model);
                    *used = Used { model, ..Used::new(world, file, clients).await };
                }
            }
            Event::CrashDs { n, millis } => {
                world.crash_data_server(*n).await;
                world.sleep(Duration::from_millis(*millis)).await;
                world.start_data_server(*n).await;
            }
            Event::Cancel => cancelled(world).await,
            Event::Sleep { millis } => world.sleep(Duration::from_millis(*millis)).await,
        }
        for used in files.iter_mut() {
            used.writer.obey().await;
        }
    }
    for n in 0..4 {
        world.until_serving(n).await;
    }
    for used in files {
        used.writer.obey().await;
        used.writer.give_back().await;
        used.writer.client.close(&used.writer.file).await;
    }
}

async fn live(world: &mut World, gone: usize, events: &[Event]) {
    let mut clients = 0;
    let mut files = used(world, &mut clients).await;
    // Slow enough that something happens meanwhile.
    drain(world, gone, 512 << 10).await.unwrap();
    happen(world, &mut files, &mut clients, events, async |world| {
        cancel(world, gone).await;
        world.sleep(Duration::from_millis(300)).await;
        drain(world, gone, 1 << 20).await.unwrap();
    })
    .await;
    drained(world, gone).await;
    for used in &files {
        right(world, &used.name, &used.model, gone).await;
    }
    remove(world, gone, false, &[]).await.unwrap();
    world.crash_data_server(gone).await;
    for used in &files {
        right(world, &used.name, &used.model, gone).await;
    }
    world.check().await;
}

#[test]
fn whatever_happens_a_drain_loses_nothing_and_leaves_nothing() {
    let cases = std::env::var("SLUICE_WORLD_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let config = Config { cases, max_shrink_iters: 50, failure_persistence: None, ..Config::default() };
    let input = (any::<u64>(), 0usize..3, 1u8..3, 0usize..4, prop::collection::vec(event(), 1..25));
    TestRunner::new(config)
        .run(&input, |(seed, shape, mirrors, gone, events)| {
            let shape = [Shape::Small, Shape::Default, Shape::Wide][shape];
            let policy = LayoutPolicy { shape, mirrors, inline: 0, class: None };
            simulate_with(seed, policy, async |world| live(world, gone, &events).await);
            Ok(())
        })
        .unwrap();
}

/// Pieces so long that a limit has to be waited for after each, and a file of one.
fn in_one_piece(seed: u64, test: impl AsyncFnOnce(&mut World)) {
    simulate_tuned(seed, |config| config.heal_piece = 16 << 20, test);
}

#[test]
fn what_is_on_its_way_is_sent_elsewhere_and_filled_there_before_it_counts() {
    in_one_piece(10, async |world| {
        let data = pattern(5, 3 << 20);
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, &data).await;
        let first = home(world, &writer.client, &writer.held.clone().unwrap(), 0).await;
        writer.give_back().await;
        writer.client.close(&writer.file).await;
        world.sleep(Duration::from_secs(5)).await;
        drain(world, first, 256 << 10).await.unwrap();
        let fills = |world: &World| (0..4).find(|n| *n != first && world.data_files(*n) > 0);
        world.until(|world| fills(world).is_some()).await;
        let second = fills(world).unwrap();
        // All of it is there, and the limit is waited for.
        world.sleep(Duration::from_secs(1)).await;
        drain(world, second, 0).await.unwrap();
        drained(world, first).await;
        drained(world, second).await;
        right(world, "f", &data, first).await;
        right(world, "f", &data, second).await;
    });
}

#[test]
fn nobody_waits_for_the_limit_of_a_drain() {
    in_one_piece(11, async |world| {
        let data = pattern(6, 3 << 20);
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, &data).await;
        let gone = home(world, &writer.client, &writer.held.clone().unwrap(), 0).await;
        writer.give_back().await;
        world.sleep(Duration::from_secs(5)).await;
        drain(world, gone, 256 << 10).await.unwrap();
        world.until(|world| (0..4).any(|n| n != gone && world.data_files(n) > 0)).await;
        world.sleep(Duration::from_secs(1)).await;
        let before = world.env.clock.now();
        writer.client.truncate(&writer.file, 1 << 20).await;
        let waited = world.env.clock.now().since(before);
        assert!(waited < Duration::from_secs(3), "{waited:?}");
        assert!(!is_drained(world, gone).await);
        drained(world, gone).await;
        right(world, "f", &data[..1 << 20], gone).await;
    });
}

#[test]
fn what_is_set_aside_for_a_file_is_where_the_file_says() {
    simulate_with(
        12,
        LayoutPolicy { shape: Shape::Wide, mirrors: 1, inline: 0, class: None },
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            // Nobody has seen this part of it, and not all of those who are to have it are here.
            world.crash_data_server(3).await;
            let args = ALLOCATE4args { aa_stateid: file.stateid, aa_offset: UNIT, aa_length: 4 * UNIT };
            client.once(vec![putfh(&file.handle), nfs_argop4::OP_ALLOCATE(args)]).await;
            let gone = (0..3).find(|n| world.data_files(*n) > 0).unwrap();
            drain(world, gone, 0).await.unwrap();
            world.start_data_server(3).await;
            drained(world, gone).await;
            let data = pattern(9, 100_000);
            for at in [UNIT, 2 * UNIT, 3 * UNIT, 4 * UNIT] {
                assert_eq!(client.proxied_write(&file, at, &data).await, nfsstat4::NFS4_OK);
                assert!(client.proxied_read(&file, at, 100_000).await[..] == data[..]);
            }
        },
    );
}

#[test]
fn a_drain_under_a_limit_takes_its_time() {
    simulate(9, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, &pattern(3, 3 << 20)).await;
        let gone = home(world, &writer.client, &writer.held.clone().unwrap(), 0).await;
        writer.give_back().await;
        writer.client.close(&writer.file).await;
        world.sleep(Duration::from_secs(5)).await;
        drain(world, gone, 256 << 10).await.unwrap();
        world.sleep(Duration::from_secs(6)).await;
        let now = server(world, gone).await.unwrap().drain.remove(0);
        assert!(!is_drained(world, gone).await, "3 MiB at 256 KiB/s take 12 s");
        assert_eq!((now.all.data_files, now.all.bytes), (1, 3 << 20));
        assert!(now.rate.bytes > 128 << 10 && now.rate.bytes < 512 << 10, "{}", now.rate.bytes);
        drained(world, gone).await;
        right(world, "f", &pattern(3, 3 << 20), gone).await;
    });
}

/// What was moved is refused to who held it. That is no good as long as it has not been moved.
#[test]
fn who_cancels_a_drain_at_its_very_end_has_every_file_as_it_was() {
    simulate_with(
        14,
        LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None },
        async |world| {
            let mut client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            assert_eq!(client.proxied_write(&file, 0, &pattern(0, 5000)).await, nfsstat4::NFS4_OK);
            let holders = |world: &World| (0..4).filter(|n| world.holds(*n, 5000)).collect::<Vec<_>>();
            let before = holders(world);
            let (gone, fences) = (before[1], world.fences(before[1]));
            drain(world, gone, 0).await.unwrap();
            while world.fences(gone) == fences {
                world.sleep(Duration::from_micros(100)).await;
            }
            let target = holders(world).into_iter().find(|n| !before.contains(n)).unwrap();
            world.mute(target, true);
            world.restart_metadata_server().await;
            cancel(world, gone).await;
            client.reconnect(world).await;
            let file = client.reclaim(&file).await;
            for _ in 0..100 {
                match client.proxied_write(&file, 100, b"new").await {
                    nfsstat4::NFS4_OK => break,
                    status => assert!(later(status), "{status}"),
                }
                world.sleep(Duration::from_millis(200)).await;
            }
            world.mute(target, false);
            assert_eq!(client.proxied_write(&file, 200, b"new").await, nfsstat4::NFS4_OK);
            let mut all = pattern(0, 5000).to_vec();
            put(&mut all, 100, b"new");
            put(&mut all, 200, b"new");
            client.close(&file).await;
            while world.check().await > 0 {
                world.sleep(Duration::from_secs(1)).await;
            }
            right(world, "f", &all, 9).await;
        },
    );
}

/// A mirror is replaced, and its data server does not hear of it: whoever kept a handle reads there what was, until that
/// data server must have stopped serving. So long nobody writes.
#[test]
fn nobody_writes_before_what_was_replaced_is_refused() {
    replaced(Faults::NONE);
}

/// The store does not say that it is replaced.
#[test]
fn nobody_writes_before_what_was_replaced_is_refused_though_that_is_not_known() {
    replaced(Faults { unknown_applied: 1.0, ..Faults::NONE });
}

/// `faults`: of the store while it is replaced.
fn replaced(faults: Faults) {
    // Whole milliseconds between the transaction and the data server.
    let network = SimConfig { latency_max: Duration::from_millis(40), ..SimConfig::default() };
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };
    simulate_on(
        15,
        network,
        |config| config.policy = policy,
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            assert_eq!(client.proxied_write(&file, 0, &pattern(0, 5000)).await, nfsstat4::NFS4_OK);
            // Made from the other copy, which is read first.
            let gone = (0..4).rfind(|n| world.holds(*n, 5000)).unwrap();
            let reader = Client::mount(world, "b", NEW).await;
            let same = reader.open("f").await;
            let held = reader.layout(&same, same.stateid, RO, 0).await;
            let first = home(world, &reader, &held, 0).await == gone;
            let kept = held.mirror(usize::from(!first));
            assert_eq!(home(world, &reader, &kept, 0).await, gone);
            // Before, so that numbers for fences are there.
            for n in 0..6 {
                let other = client.open(&format!("g{n}")).await;
                assert_eq!(client.proxied_write(&other, 0, &pattern(0, 9)).await, nfsstat4::NFS4_OK);
            }
            drain(world, gone, 0).await.unwrap();
            let (stateid, _) = reader.recalled(1).await;
            while world.holds(gone, 9) || world.untold(gone).await > 0 {
                world.sleep(Duration::from_millis(10)).await;
            }
            world.set_faults(faults);
            assert_eq!(reader.layout_return(&same, stateid).await, nfsstat4::NFS4_OK);
            while world.untold(gone).await == 0 {
                world.sleep(Duration::from_millis(1)).await;
            }
            world.set_faults(Faults::NONE);
            let data_server = format!("ds{}", gone + 1);
            world.net.partition("mds", &data_server);
            assert_eq!(&reader.read(&kept, 0..3).await.unwrap()[..], &pattern(0, 3)[..], "refused already");
            while later(client.proxied_write(&file, 0, b"new").await) {
                world.sleep(Duration::from_millis(100)).await;
            }
            let late = reader.read(&kept, 0..3).await;
            assert!(late.is_err(), "{late:?} after a newer WRITE was acknowledged");
            world.net.heal("mds", &data_server);
            assert_eq!(&client.proxied_read(&file, 0, 3).await[..], b"new");
        },
    );
}
