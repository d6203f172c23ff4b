//! What data servers held that are lost for good is made anew, though there are many files to look at, and the store is slow.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};

use crate::client::Client;
use crate::drain::{drain, drained, remove};
use crate::stage::{World, simulate_tuned};
use crate::{NEW, pattern};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };
/// To look at a thousand files one by one takes minutes.
const SLOW: Faults = Faults { latency: Duration::from_millis(360), ..Faults::NONE };

/// The table of data files outside of layouts: docs/metadata-schema.md.
const SPARE: u8 = 0x26;

fn simulate(seed: u64, test: impl AsyncFnOnce(&mut World)) {
    let patience = Duration::from_secs(12);
    simulate_tuned(seed, |config| (config.policy, config.rebuild_after) = (TWICE, patience), test);
}

async fn files(world: &World, count: u64) {
    let client = Client::mount(world, "a", NEW).await;
    for n in 0..count {
        let (file, held) = client.open_with_layout(&format!("f{n}")).await;
        for mirror in 0..held.body.ffl_mirrors.len() {
            client.write(&held.mirror(mirror), 0, &pattern(n, 100)).await.unwrap();
        }
        client.layout_commit(&file, held.stateid, Some(99)).await.unwrap();
        client.layout_return(&file, held.stateid).await;
        client.close(&file).await;
    }
    world.sleep(Duration::from_secs(10)).await;
}

/// Mirrors that are to be elsewhere, or are already, and whose data server is not there to remove them.
async fn planned(world: &World) -> usize {
    world.rows().await.iter().filter(|(key, _)| key.first() == Some(&SPARE)).count()
}

#[test]
fn what_is_lost_does_not_wait_for_what_was_removed_long_ago() {
    simulate(61, async |world| {
        files(world, 1_000).await;
        drain(world, 3, 0).await.unwrap();
        drained(world, 3).await;
        assert!(remove(world, 3, false, &[]).await.unwrap().removed);
        assert_eq!(planned(world).await, 0);
        world.restart_metadata_server().await;
        world.crash_data_server(2).await;
        for second in 0.. {
            world.set_faults(SLOW);
            world.sleep(Duration::from_secs(1)).await;
            world.set_faults(Faults::NONE);
            if planned(world).await > 0 {
                return;
            }
            assert!(second < 30, "nothing is made anew");
        }
    });
}

/// It takes longer than the store ever answers in a row.
#[test]
fn the_walk_goes_on_where_it_was_when_the_store_failed() {
    simulate(62, async |world| {
        files(world, 600).await;
        let lost = world.data_files(2);
        world.crash_data_server(2).await;
        world.sleep(Duration::from_secs(15)).await;
        let mut found = 0;
        for _ in 0..80 {
            world.set_faults(SLOW);
            world.sleep(Duration::from_secs(6)).await;
            world.set_faults(Faults::NONE);
            found = planned(world).await;
            if found >= lost {
                return;
            }
            world.set_faults(Faults { unavailable: 1.0, ..SLOW });
            // Longer than any transaction is tried.
            world.sleep(Duration::from_secs(12)).await;
        }
        panic!("{found} of {lost} were found");
    });
}
