//! Data that rots at rest: found by a scrub, shown to nobody, and healed from the other mirror.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::{
    ADMIN_SCRUB, ADMIN_SCRUB_args, ADMIN_SCRUB_res, ADMIN_STATUS, ADMIN_STATUS_res, ctl_scrub_action,
    ctl_scrub_of,
};

use crate::mirrors::Writer;
use crate::pattern;
use crate::stage::{World, simulate_with};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };
const ONCE: LayoutPolicy = LayoutPolicy { mirrors: 1, ..TWICE };
const SIZE: u64 = 300_000;

pub(crate) async fn with_checksums(world: &mut World) {
    world.checksums = true;
    for n in 0..4 {
        world.crash_data_server(n).await;
        world.start_data_server(n).await;
    }
}

async fn ask(world: &World, action: ctl_scrub_action) -> Vec<ctl_scrub_of> {
    match world.admin(ADMIN_SCRUB, &ADMIN_SCRUB_args { id: 0, action }).await {
        ADMIN_SCRUB_res::CTL_OK(found) => found.servers,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn scrub(world: &World) -> Vec<ctl_scrub_of> {
    ask(world, ctl_scrub_action::SCRUB_START).await;
    loop {
        world.sleep(Duration::from_secs(5)).await;
        let servers = ask(world, ctl_scrub_action::SCRUB_LOOK).await;
        if servers.iter().all(|server| !server.scrub[0].running) {
            return servers;
        }
    }
}

/// The states that `sluice status` shows.
async fn states(world: &World) -> String {
    match world.admin(ADMIN_STATUS, &()).await {
        ADMIN_STATUS_res::CTL_OK(status) => {
            let states =
                status.data_servers.iter().map(|server| String::from_utf8_lossy(&server.state).into_owned());
            states.collect::<Vec<_>>().join("|")
        }
        other => panic!("{other:?}"),
    }
}

/// The data server of a file of which a range is damaged, as everybody knows.
async fn rotten(world: &mut World) -> usize {
    let (_, holders) = at_rest(world).await;
    scrub(world).await;
    let n = holders[0];
    world.device(n).rot(&world.data_file_of(n, SIZE), 5);
    scrub(world).await;
    world.sleep(Duration::from_secs(30)).await;
    assert!(states(world).await.contains("1 range is damaged"), "{}", states(world).await);
    n
}

#[test]
fn damage_is_told_of_a_data_server_that_is_full_or_away() {
    simulate_with(76, ONCE, async |world| {
        let n = rotten(world).await;
        world.device(n).set_capacity(1);
        world.sleep(Duration::from_secs(60)).await;
        let full = states(world).await;
        assert!(full.contains("no space") && full.contains("1 range is damaged"), "{full}");
        world.crash_data_server(n).await;
        world.sleep(Duration::from_secs(60)).await;
        let away = states(world).await;
        assert!(away.contains("unreachable for") && away.contains("1 range is damaged"), "{away}");
    });
}

#[test]
fn damage_is_not_told_of_a_data_server_that_keeps_no_checksums_any_more() {
    simulate_with(77, ONCE, async |world| {
        let n = rotten(world).await;
        world.checksums = false;
        world.crash_data_server(n).await;
        world.start_data_server(n).await;
        world.sleep(Duration::from_secs(30)).await;
        assert!(!states(world).await.contains("damaged"), "{}", states(world).await);
        let look = ask(world, ctl_scrub_action::SCRUB_LOOK).await;
        assert!(look.iter().all(|server| server.damaged == 0), "{look:?}");
    });
}

/// A file of `SIZE` bytes at rest; the data servers that hold it.
async fn at_rest(world: &mut World) -> (Vec<u8>, Vec<usize>) {
    with_checksums(world).await;
    let data = pattern(3, usize::try_from(SIZE).unwrap());
    let mut writer = Writer::mount(world, "c1", "f").await;
    writer.write(world, 0, &data).await;
    writer.give_back().await;
    world.sleep(Duration::from_secs(60)).await;
    let holders = (0..4).filter(|n| world.data_files(*n) > 0).collect();
    (data, holders)
}

/// Told with the next heartbeat, left behind, copied anew.
async fn whole_again(world: &World, n: usize, path: &str, data: &[u8]) {
    for _ in 0..600 {
        world.sleep(Duration::from_secs(1)).await;
        let look = ask(world, ctl_scrub_action::SCRUB_LOOK).await;
        if look.iter().all(|server| server.damaged == 0 && server.scrub[0].quarantined == 0)
            && world.check().await == 0
        {
            break;
        }
    }
    assert_eq!(world.check().await, 0);
    let mut held = vec![0; data.len()];
    let file = sluice_store::device::Device::open(world.device(n), path).unwrap();
    file.read_at(&mut held, 0).unwrap();
    assert!(held == data, "the medium holds what was written again");
}

#[test]
fn a_mirror_that_rots_is_healed_from_the_other() {
    simulate_with(71, TWICE, async |world| {
        let (data, holders) = at_rest(world).await;
        let [first, second] = holders[..] else { panic!("{holders:?}") };
        for n in [first, second] {
            let clean = scrub(world).await;
            assert!(clean.iter().all(|server| server.damaged == 0 && server.scrub[0].on), "{clean:?}");
            let path = world.data_file_of(n, SIZE);
            world.device(n).rot(&path, 123_456);
            world.device(n).rot(&path, SIZE - 1);
            let found = scrub(world).await;
            assert_eq!(
                found.iter().map(|server| server.scrub[0].bad).sum::<u64>(),
                if n == first { 2 } else { 4 }
            );
            whole_again(world, n, &path, &data).await;
            world.sleep(Duration::from_secs(60)).await;
        }
        assert!(scrub(world).await.iter().all(|server| server.damaged == 0));
    });
}

/// When it is told nobody has the other copy; it is not told again when that is back.
#[test]
fn a_mirror_that_rots_while_the_other_is_away_is_healed_when_that_is_back() {
    for restarted in [false, true] {
        simulate_with(73, TWICE, async |world| {
            let (data, holders) = at_rest(world).await;
            let [away, rots] = holders[..] else { panic!("{holders:?}") };
            world.crash_data_server(away).await;
            world.sleep(Duration::from_secs(30)).await;
            let path = world.data_file_of(rots, SIZE);
            world.device(rots).rot(&path, 123_456);
            ask(world, ctl_scrub_action::SCRUB_START).await;
            world.sleep(Duration::from_secs(30)).await;
            if restarted {
                world.restart_metadata_server().await;
                world.sleep(Duration::from_secs(30)).await;
            }
            assert!(states(world).await.contains("1 range is damaged"), "{}", states(world).await);
            assert_eq!(world.check().await, 0, "nobody can do without it");
            world.start_data_server(away).await;
            whole_again(world, rots, &path, &data).await;
            assert!(scrub(world).await.iter().all(|server| server.damaged == 0));
        });
    }
}

#[test]
fn the_only_copy_that_rots_is_named_and_shown_to_nobody_until_it_is_rewritten() {
    simulate_with(72, ONCE, async |world| {
        let (data, holders) = at_rest(world).await;
        let [n] = holders[..] else { panic!("{holders:?}") };
        world.device(n).rot(&world.data_file_of(n, SIZE), 4096);
        scrub(world).await;
        world.sleep(Duration::from_secs(5)).await;
        for _ in 0..2 {
            let found = ask(world, ctl_scrub_action::SCRUB_LOOK).await;
            let damaged: Vec<_> = found.iter().flat_map(|server| &server.examples).collect();
            let [one] = damaged[..] else { panic!("{damaged:?}") };
            assert_eq!((one.damage.offset, one.damage.length, &one.name[..]), (4096, 4096, &b"f"[..]));
            assert!(states(world).await.contains("1 range is damaged"), "{}", states(world).await);
            // It is durable there, and told again to whoever begins anew.
            world.crash_data_server(n).await;
            world.restart_metadata_server().await;
            world.start_data_server(n).await;
            world.sleep(Duration::from_secs(90)).await;
        }
        let mut writer = Writer::mount(world, "c2", "f").await;
        writer.write(world, 4096, &data[4096..8192]).await;
        writer.give_back().await;
        world.sleep(Duration::from_secs(60)).await;
        assert!(scrub(world).await.iter().all(|server| server.damaged == 0));
        assert!(!states(world).await.contains("damaged"));
    });
}
