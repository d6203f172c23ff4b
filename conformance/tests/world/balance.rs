//! Data servers are filled evenly under their clients: nothing acknowledged is lost, nothing is moved twice, mirrors
//! stay apart, and whoever takes part may die on the way.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_store::device::Device;
use sluice_xdr::control::*;

use crate::client::{Client, RO};
use crate::drain::{Event, drain, drained, event, happen, number, right, server, used};
use crate::mirrors::{Writer, home, put};
use crate::stage::{World, simulate_with};
use crate::{NEW, pattern};

const CAPACITY: u64 = 32 << 20;
const SIZE: usize = 512 << 10;
/// Thousandths.
const TOLERANCE: u32 = 30;

const fn policy(shape: Shape, mirrors: u8) -> LayoutPolicy {
    LayoutPolicy { shape, mirrors, inline: 0, class: None }
}

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

pub(crate) async fn ask(
    world: &World,
    what: ctl_balance_what,
    tolerance: u32,
    limit: u64,
) -> Result<ADMIN_BALANCE_resok, String> {
    match world.admin(ADMIN_BALANCE, &ADMIN_BALANCE_args { what, tolerance, limit }).await {
        ADMIN_BALANCE_res::CTL_OK(ok) => Ok(ok),
        ADMIN_BALANCE_res::Default(_, why) => Err(String::from_utf8(why.to_vec()).unwrap()),
    }
}

pub(crate) async fn begin(world: &World, limit: u64) {
    ask(world, ctl_balance_what::BALANCE_BEGIN, TOLERANCE, limit).await.unwrap();
}

pub(crate) async fn last(world: &World) -> ctl_balance {
    ask(world, ctl_balance_what::BALANCE_LOOK, 0, 0).await.unwrap().last.remove(0)
}

/// How it ended.
pub(crate) async fn ended(world: &World) -> ctl_balance {
    for _ in 0..900 {
        let now = last(world).await;
        if now.state != ctl_balance_state::BALANCE_RUNNING {
            assert!(now.ended > 0);
            assert_eq!(world.check().await, 0, "nothing is left half moved");
            return now;
        }
        world.sleep(Duration::from_secs(1)).await;
    }
    panic!("it does not end: {:?}", last(world).await);
}

/// Files at the data servers that are here, none of which has much room.
pub(crate) async fn written(world: &mut World, files: usize) -> Files {
    (0..4).for_each(|n| world.device(n).set_capacity(CAPACITY));
    let mut all = Files::new();
    for n in 0..files {
        let name = format!("g{n}");
        let data = pattern(u64::try_from(n).unwrap() << 20, SIZE);
        let mut writer = Writer::mount(world, &format!("c{n}"), &name).await;
        writer.write(world, 0, &data).await;
        writer.give_back().await;
        writer.client.close(&writer.file).await;
        all.insert(name, data);
    }
    all
}

/// Two data servers hold all files, and two are new.
async fn filled(world: &mut World, files: usize) -> Files {
    for n in [2, 3] {
        world.crash_data_server(n).await;
    }
    world.sleep(Duration::from_secs(30)).await;
    let all = written(world, files).await;
    for n in [2, 3] {
        world.start_data_server(n).await;
        assert_eq!(world.data_files(n), 0);
    }
    // Until they have told how full they are.
    world.sleep(Duration::from_secs(10)).await;
    all
}

/// Thousandths of the devices that are in use.
fn shares(world: &World, servers: &[usize]) -> Vec<u64> {
    let share = |n: &usize| {
        let space = world.device(*n).space().unwrap();
        (space.total - space.free) * 1000 / space.total
    };
    servers.iter().map(share).collect()
}

/// Each of these is as full as all of them together, about.
fn even(world: &World, servers: &[usize]) {
    let shares = shares(world, servers);
    let mean = shares.iter().sum::<u64>() / u64::try_from(shares.len()).unwrap();
    let near = |share: &u64| share.abs_diff(mean) <= u64::from(TOLERANCE) + 1;
    assert!(shares.iter().all(near), "{shares:?}");
}

fn held(world: &World) -> Vec<usize> {
    (0..4).map(|n| world.data_files(n)).collect()
}

pub(crate) async fn all_right(world: &World, files: &Files) {
    for (name, data) in files {
        right(world, name, data, 9).await;
    }
}

#[test]
fn new_data_servers_take_their_share_while_clients_read_and_write() {
    for (seed, shape) in [(1, Shape::Small), (2, Shape::Wide)] {
        simulate_with(seed, policy(shape, 1), async |world| {
            let mut files = filled(world, 36).await;
            let before = held(world);
            let plan = ask(world, ctl_balance_what::BALANCE_PLAN, TOLERANCE, 0).await.unwrap();
            assert_eq!((plan.devices.len(), plan.last.len()), (4, 0), "nothing has begun");
            let given: u64 = plan.flows.iter().map(|flow| flow.bytes).sum();
            assert!((4 << 20..12 << 20).contains(&given), "{plan:?}");
            assert!(plan.flows.iter().all(|flow| flow.from <= 2 && flow.to > 2), "{plan:?}");
            begin(world, 1 << 20).await;
            // One that is open, and written all the time.
            let mut writer = Writer::mount(world, "busy", "g3").await;
            let reader = Client::mount(world, "reader", NEW).await;
            let file = reader.open("g7").await;
            for round in 0..40_u64 {
                let (at, data) = (round * 9000, pattern(round, 7000));
                writer.write(world, at, &data).await;
                put(files.get_mut("g3").unwrap(), at, &data);
                let read = reader.proxied_read(&file, round * 5000, 5000).await;
                let from = usize::try_from(round * 5000).unwrap();
                assert!(read[..] == files["g7"][from..from + read.len()]);
                world.sleep(Duration::from_millis(100)).await;
            }
            writer.obey().await;
            writer.give_back().await;
            let how = ended(world).await;
            assert_eq!(how.state, ctl_balance_state::BALANCE_EVEN, "{how:?}");
            even(world, &[0, 1, 2, 3]);
            let after = held(world);
            assert_eq!(after.iter().sum::<usize>(), before.iter().sum::<usize>());
            let moved = u64::try_from(after[2] + after[3]).unwrap();
            assert_eq!(how.moved.data_files, moved, "each was moved once: {before:?} {after:?}");
            all_right(world, &files).await;
            // There is nothing to do any more.
            begin(world, 0).await;
            let again = ended(world).await;
            assert_eq!((again.state, again.moved.data_files), (ctl_balance_state::BALANCE_EVEN, 0));
            assert_eq!(held(world), after);
        });
    }
}

#[test]
fn mirrors_stay_on_different_data_servers() {
    simulate_with(3, policy(Shape::Small, 2), async |world| {
        let files = filled(world, 20).await;
        // There is one for both mirrors of each file.
        drain(world, 3, 0).await.unwrap();
        drained(world, 3).await;
        begin(world, 0).await;
        let how = ended(world).await;
        assert_eq!(how.state, ctl_balance_state::BALANCE_EVEN, "{how:?}");
        even(world, &[0, 1, 2]);
        all_right(world, &files).await;
        let client = Client::mount(world, "w", NEW).await;
        for name in files.keys() {
            let file = client.open(name).await;
            let segment = client.layout(&file, file.stateid, RO, 0).await;
            let homes = [home(world, &client, &segment, 0).await, home(world, &client, &segment, 1).await];
            assert_ne!(homes[0], homes[1], "{name}");
        }
    });
}

#[test]
fn it_goes_on_after_a_restart_of_the_metadata_server() {
    simulate_with(4, policy(Shape::Small, 1), async |world| {
        let files = filled(world, 36).await;
        begin(world, 512 << 10).await;
        world.until(|world| world.data_files(2) > 1).await;
        let since = last(world).await.since;
        world.restart_metadata_server().await;
        let now = last(world).await;
        assert_eq!((now.state, now.since), (ctl_balance_state::BALANCE_RUNNING, since));
        assert_eq!((now.tolerance, now.limit), (TOLERANCE, 512 << 10));
        let how = ended(world).await;
        assert_eq!(how.state, ctl_balance_state::BALANCE_EVEN, "{how:?}");
        even(world, &[0, 1, 2, 3]);
        all_right(world, &files).await;
        // How it ended is known after the next one.
        world.restart_metadata_server().await;
        let after = last(world).await;
        assert_eq!((after.state, after.ended), (how.state, how.ended));
        assert_eq!(after.moved, how.moved);
    });
}

#[test]
fn a_data_server_that_dies_is_gone_on_without() {
    // One that takes, and one that gives.
    for (seed, dies) in [(5, 3), (6, 1)] {
        simulate_with(seed, policy(Shape::Small, 1), async |world| {
            let files = filled(world, 36).await;
            begin(world, 256 << 10).await;
            world.until(|world| world.data_files(2) + world.data_files(3) > 2).await;
            world.crash_data_server(dies).await;
            let here: Vec<usize> = (0..4).filter(|n| *n != dies).collect();
            for _ in 0..900 {
                if last(world).await.state != ctl_balance_state::BALANCE_RUNNING {
                    break;
                }
                world.sleep(Duration::from_secs(1)).await;
            }
            let how = last(world).await;
            assert_eq!(how.state, ctl_balance_state::BALANCE_EVEN, "{how:?}");
            even(world, &here);
            world.start_data_server(dies).await;
            while world.check().await > 0 {
                world.sleep(Duration::from_secs(1)).await;
            }
            world.until(|world| held(world).iter().sum::<usize>() == files.len()).await;
            all_right(world, &files).await;
        });
    }
}

#[test]
fn a_drain_comes_first() {
    // Of one that takes, and of one that gives, which has more.
    for (seed, gone) in [(7, 2), (10, 1)] {
        simulate_with(seed, policy(Shape::Small, 1), async |world| {
            let files = filled(world, 36).await;
            begin(world, 256 << 10).await;
            world.until(|world| world.data_files(2) > 0).await;
            drain(world, gone, 128 << 10).await.unwrap();
            let mut waits = last(world).await.words;
            while waits.is_empty() && gone == 1 {
                world.sleep(Duration::from_secs(1)).await;
                waits = last(world).await.words;
            }
            if gone == 1 {
                assert_eq!(String::from_utf8_lossy(&waits), "data server 2 is being drained first");
                assert_eq!(last(world).await.state, ctl_balance_state::BALANCE_RUNNING);
            }
            drained(world, gone).await;
            let how = ended(world).await;
            assert_eq!((how.state, how.held), (ctl_balance_state::BALANCE_EVEN, 0), "{how:?}");
            assert_eq!(world.data_files(gone), 0, "nothing goes to one that is drained");
            let others: Vec<usize> = (0..4).filter(|n| *n != gone).collect();
            even(world, &others);
            all_right(world, &files).await;
            assert_eq!(server(world, gone).await.unwrap().status.id, number(gone));
        });
    }
}

#[test]
fn it_is_stopped_at_once_and_begins_again() {
    simulate_with(8, policy(Shape::Small, 1), async |world| {
        let files = filled(world, 36).await;
        let why = ask(world, ctl_balance_what::BALANCE_STOP, 0, 0).await.unwrap_err();
        assert_eq!(why, "no balance is under way");
        begin(world, 256 << 10).await;
        world.until(|world| world.data_files(2) > 0).await;
        ask(world, ctl_balance_what::BALANCE_STOP, 0, 0).await.unwrap();
        assert_eq!(last(world).await.state, ctl_balance_state::BALANCE_STOPPED);
        // What is on its way comes to an end.
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(world.check().await, 0);
        let there = held(world);
        assert!(there[2] + there[3] < 12, "{there:?}");
        world.sleep(Duration::from_secs(120)).await;
        assert_eq!(held(world), there);
        world.restart_metadata_server().await;
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!((held(world), last(world).await.state), (there, ctl_balance_state::BALANCE_STOPPED));
        begin(world, 0).await;
        let how = ended(world).await;
        assert_eq!(how.state, ctl_balance_state::BALANCE_EVEN, "{how:?}");
        even(world, &[0, 1, 2, 3]);
        all_right(world, &files).await;
    });
}

#[test]
fn what_would_even_nothing_out_is_said_and_stays() {
    simulate_with(9, policy(Shape::Small, 1), async |world| {
        for n in [1, 2, 3] {
            world.crash_data_server(n).await;
        }
        (0..4).for_each(|n| world.device(n).set_capacity(CAPACITY));
        world.sleep(Duration::from_secs(30)).await;
        let why = ask(world, ctl_balance_what::BALANCE_BEGIN, TOLERANCE, 0).await.unwrap_err();
        assert!(why.starts_with("fewer than two devices"), "{why}");
        let data = pattern(1, 12 << 20);
        let mut writer = Writer::mount(world, "c", "f").await;
        writer.write(world, 0, &data).await;
        writer.give_back().await;
        writer.client.close(&writer.file).await;
        for n in [1, 2, 3] {
            world.start_data_server(n).await;
        }
        world.sleep(Duration::from_secs(10)).await;
        // It would only change places.
        begin(world, 0).await;
        let how = ended(world).await;
        assert_eq!((how.state, how.moved.data_files), (ctl_balance_state::BALANCE_NOTHING_MORE, 0));
        assert_eq!(held(world), [1, 0, 0, 0]);
        assert!(String::from_utf8_lossy(&how.words).contains("no data file that is left"), "{how:?}");
    });
}

async fn live(world: &mut World, events: &[Event]) {
    let files = filled(world, 24).await;
    let mut clients = 0;
    let mut some = used(world, &mut clients).await;
    // Slow enough that something happens meanwhile.
    begin(world, 512 << 10).await;
    happen(world, &mut some, &mut clients, events, async |world| {
        // It may be over.
        let _ = ask(world, ctl_balance_what::BALANCE_STOP, 0, 0).await;
        world.sleep(Duration::from_millis(300)).await;
        let _ = ask(world, ctl_balance_what::BALANCE_BEGIN, TOLERANCE, 1 << 20).await;
    })
    .await;
    while last(world).await.state == ctl_balance_state::BALANCE_RUNNING {
        world.sleep(Duration::from_secs(1)).await;
    }
    for round in 0.. {
        if world.check().await == 0 && world.garbage().await == 0 {
            break;
        }
        assert!(round < 600, "something is left half moved");
        world.sleep(Duration::from_secs(1)).await;
    }
    begin(world, 0).await;
    let how = ended(world).await;
    assert_ne!(how.state, ctl_balance_state::BALANCE_NO_PROGRESS, "{how:?}");
    all_right(world, &files).await;
    for used in &some {
        right(world, &used.name, &used.model, 9).await;
    }
}

#[test]
fn whatever_happens_a_balance_loses_nothing_and_comes_to_an_end() {
    let cases = std::env::var("SLUICE_WORLD_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let config = Config { cases, max_shrink_iters: 50, failure_persistence: None, ..Config::default() };
    let input = (any::<u64>(), 0usize..3, 1u8..3, prop::collection::vec(event(), 1..25));
    TestRunner::new(config)
        .run(&input, |(seed, shape, mirrors, events)| {
            let shape = [Shape::Small, Shape::Default, Shape::Wide][shape];
            simulate_with(seed, policy(shape, mirrors), async |world| live(world, &events).await);
            Ok(())
        })
        .unwrap();
}
