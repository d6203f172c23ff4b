//! What is removed goes at its data servers, however many of them there are.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

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
