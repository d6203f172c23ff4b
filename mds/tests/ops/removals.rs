//! What is removed goes at its data servers, however many of them there are, and whatever else waits to be removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sluice_kv::Faults;
use sluice_mds::Config;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::ctl_stat;

use crate::data_server::DataServer;
use crate::harness::*;
use crate::remove::{made, unlink};

/// Files that somebody had a layout of, many at a time.
async fn made_together(client: &Arc<Client>, count: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for first in 0..TASKS {
        let client = Arc::clone(client);
        tasks.spawn(async move {
            for number in (first..count).step_by(TASKS) {
                made(&client, &format!("f{number}")).await;
            }
        });
    }
    tasks.join_all().await;
}

const TASKS: usize = 12;

async fn unlinked_together(client: &Arc<Client>, count: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for first in 0..TASKS {
        let client = Arc::clone(client);
        tasks.spawn(async move {
            for number in (first..count).step_by(TASKS) {
                unlink(&client, &format!("f{number}")).await;
            }
        });
    }
    tasks.join_all().await;
}

/// Files of which something was removed, by their data files' number.
fn gone(data_servers: &[Arc<DataServer>]) -> usize {
    let removed = data_servers.iter().flat_map(|data_server| data_server.removed()).flatten();
    removed.map(|file| file.file).collect::<BTreeSet<_>>().len()
}

/// How long it takes to remove so many files at so many data servers, each of which takes a while for each order.
fn time_to_remove(seed: u64, data_servers: usize, files: usize) -> Duration {
    let took = parking_lot::Mutex::new(Duration::ZERO);
    simulate(seed, async |mut world: World| {
        let mut all = vec![world.data_server()];
        for number in 1..data_servers {
            all.push(world.add_data_server(&format!("other{number}")).await);
        }
        let client = Arc::new(world.client("a").await);
        made_together(&client, files).await;
        // All of them at once, when somebody looks for what is left.
        all.iter().for_each(|one| one.set_keeps(true));
        unlinked_together(&client, files).await;
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(gone(&all), 0);
        all.iter().for_each(|one| one.set_slow(Duration::from_millis(20)));
        all.iter().for_each(|one| one.set_keeps(false));
        let clock = &world.env.clock;
        until(&world.env, || (gone(&all) > 0).then_some(())).await;
        let began = clock.now();
        let orders =
            || all.iter().map(|one| one.removed().iter().map(Vec::len).sum::<usize>()).sum::<usize>();
        let mut before = 0;
        // Nothing more comes.
        loop {
            let now = orders();
            if now == before && gone(&all) == files {
                break;
            }
            if now != before {
                (before, *took.lock()) = (now, clock.now().since(began));
            }
            world.sleep(Duration::from_millis(500)).await;
        }
    });
    took.into_inner()
}

#[test]
fn many_data_servers_remove_at_the_same_time() {
    let (one, many) = (time_to_remove(1, 1, 2_000), time_to_remove(2, 20, 2_000));
    assert!(many < one + Duration::from_secs(1), "{many:?} at twenty, {one:?} at one");
}

/// Mirrors of many files are to be elsewhere, and nothing is copied there now.
#[test]
fn what_is_removed_does_not_wait_for_what_is_to_be_filled() {
    const FILES: usize = 2_000;
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 3, inline: 0, class: None };
    let config = Config { policy, rebuild_after: Duration::from_secs(30), ..Config::default() };
    simulate_with(3, config, async |mut world: World| {
        let mut all = vec![world.data_server()];
        for host in ["ds2", "ds3"] {
            all.push(world.add_data_server(host).await);
        }
        let client = Arc::new(world.client("a").await);
        made_together(&client, FILES).await;
        made(&client, "short").await;
        let stat = ctl_stat { exists: true, size: 5_000, allocated_bytes: 8_192, ..ctl_stat::default() };
        all.push(world.add_data_server("ds4").await);
        for data_server in &all {
            data_server.set_stat(stat);
            data_server.hold_transfers(true);
        }
        world.net.partition("ds3", MDS);
        // As docs/metadata-schema.md has it: data files outside of layouts.
        let spares = async || {
            let rows = world.db.snapshot().await.unwrap();
            let rows = rows.page(&sluice_namespace::transfer::everything(), usize::MAX).await.unwrap();
            rows.iter().filter(|(key, _)| key[0] == 0x26).count()
        };
        for round in 0.. {
            if spares().await > FILES {
                break;
            }
            assert!(round < 60, "not planned");
            world.sleep(Duration::from_secs(5)).await;
        }
        let before = world.db.work().reads;
        world.sleep(Duration::from_secs(60)).await;
        let reads = world.db.work().reads - before;
        assert!(reads < 40_000, "{reads} reads in a minute");
        world.db.set_faults(Faults { latency: Duration::from_millis(2), ..Faults::NONE });
        world.sleep(Duration::from_secs(20)).await;
        for round in 0..8_u32 {
            world.sleep(Duration::from_millis(2_300)).await;
            let before = [gone(&all[..1]), gone(&all[1..2])];
            let name = if round == 0 { "short".to_owned() } else { format!("f{round}") };
            unlink(&client, &name).await;
            world.sleep(Duration::from_millis(2_500)).await;
            let after = [gone(&all[..1]), gone(&all[1..2])];
            assert_eq!(after, before.map(|count| count + 1), "{name}");
        }
    });
}
