//! Data files on their way to a data server that has no room for them: they go elsewhere, or wait, and what is there of
//! them is in nobody's way.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_store::device::Device;

use crate::drain::{drain, drained, right, server};
use crate::mirrors::{Writer, healed, home};
use crate::pattern;
use crate::stage::{World, simulate_tuned};

const ALL: usize = 3 << 20;
const LITTLE: u64 = 1 << 20;
/// More than a data server needs for itself.
const SOME: u64 = 768 << 10;
const PLENTY: u64 = 1 << 40;

fn small(mirrors: u8) -> LayoutPolicy {
    LayoutPolicy { shape: Shape::Small, mirrors, inline: 0, class: None }
}

/// A file of a client that has gone, and its data servers.
async fn at_rest(world: &World) -> (Vec<u8>, Vec<usize>) {
    let data = pattern(5, ALL);
    let mut writer = Writer::mount(world, "a", "f").await;
    writer.write(world, 0, &data).await;
    let held = writer.held.clone().unwrap();
    let mut homes = Vec::new();
    for mirror in 0..held.body.ffl_mirrors.len() {
        homes.push(home(world, &writer.client, &held, mirror).await);
    }
    writer.give_back().await;
    writer.client.close(&writer.file).await;
    world.sleep(Duration::from_secs(5)).await;
    (data, homes)
}

/// Those that something is being filled at, beside these. To look for files would take long.
fn filled(world: &World, homes: &[usize]) -> Vec<usize> {
    (0..4).filter(|n| !homes.contains(n) && used(world, *n) >= SOME).collect()
}

/// The first of them, as soon as something is there.
async fn first_filled(world: &World, homes: &[usize]) -> usize {
    world.until(|world| !filled(world, homes).is_empty()).await;
    filled(world, homes)[0]
}

fn is_free(world: &World, n: usize) -> bool {
    world.data_files(n) == 0 && world.device(n).space().unwrap().free > 0
}

async fn reason(world: &World, n: usize) -> String {
    let drain = server(world, n).await.unwrap().drain.remove(0);
    drain.examples.first().map(|one| String::from_utf8_lossy(&one.reason).into_owned()).unwrap_or_default()
}

#[test]
fn a_move_goes_elsewhere_when_its_data_server_becomes_full() {
    simulate_tuned(
        1,
        |config| config.policy = small(1),
        async |world| {
            let (data, homes) = at_rest(world).await;
            drain(world, homes[0], 256 << 10).await.unwrap();
            let full = first_filled(world, &homes).await;
            world.device(full).set_capacity(LITTLE);
            drained(world, homes[0]).await;
            right(world, "f", &data, full).await;
            assert!(is_free(world, full), "what was filled of it is gone");
        },
    );
}

#[test]
fn a_lost_mirror_is_made_anew_elsewhere_when_the_data_server_becomes_full() {
    let tune = |config: &mut sluice_mds::Config| {
        (config.policy, config.heal_piece) = (small(2), 128 << 10);
        config.rebuild_after = Duration::from_secs(30);
    };
    simulate_tuned(2, tune, async |world| {
        let (data, homes) = at_rest(world).await;
        world.crash_data_server(homes[0]).await;
        let full = first_filled(world, &homes).await;
        world.device(full).set_capacity(LITTLE);
        healed(world, "f", &data).await;
        world.sleep(Duration::from_secs(10)).await;
        assert!(is_free(world, full), "what was filled of it is gone");
    });
}

fn used(world: &World, n: usize) -> u64 {
    let space = world.device(n).space().unwrap();
    space.total.saturating_sub(space.free)
}

/// A file in two copies, of which the second missed two thirds of what was written: its data server has died. Its writer goes on.
async fn missed_most(world: &mut World) -> (Writer, Vec<u8>, Vec<usize>) {
    let data = pattern(5, ALL);
    let mut writer = Writer::mount(world, "a", "f").await;
    writer.write(world, 0, &data[..ALL / 3]).await;
    let held = writer.held.clone().unwrap();
    let homes =
        vec![home(world, &writer.client, &held, 0).await, home(world, &writer.client, &held, 1).await];
    world.crash_data_server(homes[1]).await;
    writer.write(world, ALL as u64 / 3, &data[ALL / 3..]).await;
    (writer, data, homes)
}

#[test]
fn a_mirror_that_missed_writes_goes_elsewhere_when_its_data_server_has_no_room() {
    for (seed, knows) in [(11, true), (12, false)] {
        let tune = |config: &mut sluice_mds::Config| {
            (config.policy, config.heal_piece) = (small(2), 128 << 10);
        };
        simulate_tuned(seed, tune, async |world| {
            let (writer, data, homes) = missed_most(world).await;
            let before = used(world, homes[1]);
            if knows {
                world.device(homes[1]).set_capacity(before + LITTLE);
            }
            world.start_data_server(homes[1]).await;
            if !knows {
                world.until(|world| used(world, homes[1]) > before + SOME / 3).await;
                world.device(homes[1]).set_capacity(used(world, homes[1]));
            }
            healed(world, "f", &data).await;
            right(world, "f", &data, homes[1]).await;
            world.sleep(Duration::from_secs(20)).await;
            assert_eq!(world.data_files(homes[1]), 0, "what it had of it is gone");
            drop(writer);
        });
    }
}

/// No other data server has room either: nobody is disturbed for it again and again.
#[test]
fn a_mirror_that_missed_writes_waits_for_room_in_nobodys_way() {
    let tune = |config: &mut sluice_mds::Config| {
        (config.policy, config.heal_piece) = (small(2), 128 << 10);
    };
    simulate_tuned(13, tune, async |world| {
        let (mut writer, mut data, homes) = missed_most(world).await;
        let others: Vec<usize> = (0..4).filter(|n| !homes.contains(n)).collect();
        others.iter().for_each(|n| world.device(*n).set_capacity(LITTLE));
        world.device(homes[1]).set_capacity(used(world, homes[1]) + LITTLE);
        world.start_data_server(homes[1]).await;
        world.sleep(Duration::from_secs(30)).await;
        writer.obey().await;
        let (recalls, proxied) = (writer.client.recalls().len(), writer.proxied);
        for n in 0..60 {
            world.sleep(Duration::from_secs(1)).await;
            data[n * 1000] ^= 1;
            writer.write(world, n as u64 * 1000, &data[n * 1000..n * 1000 + 1]).await;
        }
        assert_eq!((writer.client.recalls().len(), writer.proxied), (recalls, proxied));
        // Somebody makes room where it is.
        world.device(homes[1]).set_capacity(PLENTY);
        writer.give_back().await;
        healed(world, "f", &data).await;
        assert!(world.data_files(homes[1]) > 0);
    });
}

#[test]
fn who_has_no_room_is_not_chosen() {
    for seed in 3..9 {
        simulate_tuned(
            seed,
            |config| config.policy = small(1),
            async |world| {
                let (data, homes) = at_rest(world).await;
                let others: Vec<usize> = (0..4).filter(|n| *n != homes[0]).collect();
                // About as free as the one that has room.
                world.device(others[0]).set_capacity(2 * LITTLE + LITTLE / 2);
                world.device(others[1]).set_capacity(2 * LITTLE + LITTLE / 2);
                world.device(others[2]).set_capacity(4 * LITTLE);
                // So that the verdict finds enough together.
                world.sleep(Duration::from_secs(5)).await;
                drain(world, homes[0], 0).await.unwrap();
                assert_eq!(first_filled(world, &homes).await, others[2]);
                drained(world, homes[0]).await;
                right(world, "f", &data, homes[0]).await;
            },
        );
    }
}

#[test]
fn what_nobody_has_room_for_is_said_and_fills_nobody() {
    simulate_tuned(
        9,
        |config| config.policy = small(1),
        async |world| {
            let (data, homes) = at_rest(world).await;
            let others: Vec<usize> = (0..4).filter(|n| *n != homes[0]).collect();
            drain(world, homes[0], 256 << 10).await.unwrap();
            first_filled(world, &homes).await;
            others.iter().for_each(|n| world.device(*n).set_capacity(LITTLE));
            world.sleep(Duration::from_secs(60)).await;
            let why = reason(world, homes[0]).await;
            assert!(why.contains("no other data server has room for 3 MiB"), "{why}");
            assert!(others.iter().all(|n| is_free(world, *n)), "{:?}", filled(world, &homes));
            // Somebody adds a device.
            world.device(others[1]).set_capacity(PLENTY);
            drained(world, homes[0]).await;
            right(world, "f", &data, homes[0]).await;
        },
    );
}

/// Others are always faster: each data server says that it has room, and has none when it is filled.
#[test]
fn full_data_servers_do_not_take_turns() {
    simulate_tuned(
        10,
        |config| config.policy = small(1),
        async |world| {
            let (data, homes) = at_rest(world).await;
            let others: Vec<usize> = (0..4).filter(|n| *n != homes[0]).collect();
            drain(world, homes[0], 256 << 10).await.unwrap();
            let (mut attempts, mut before) = (0, Vec::new());
            for _ in 0..5 * 60 * 10 {
                let now = filled(world, &homes);
                attempts += now.iter().filter(|n| !before.contains(*n)).count();
                others.iter().for_each(|n| {
                    world.device(*n).set_capacity(if now.contains(n) { LITTLE } else { PLENTY });
                });
                before = now;
                world.sleep(Duration::from_millis(100)).await;
            }
            assert_eq!(attempts, 3, "each was tried once");
            let why = reason(world, homes[0]).await;
            assert!(why.contains("no other data server has room"), "{why}");
            // After a while they are tried again.
            others.iter().for_each(|n| world.device(*n).set_capacity(PLENTY));
            drained(world, homes[0]).await;
            right(world, "f", &data, homes[0]).await;
        },
    );
}
