//! A drain that is cancelled has no say in the next one.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::nfsstat4;

use crate::client::Client;
use crate::drain::{cancel, drain, remove};
use crate::stage::{World, simulate_with};
use crate::{NEW, pattern};

const ONCE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };

/// Makes files until the n-th data server holds one.
async fn fill(world: &World, client: &Client, n: usize) -> Vec<String> {
    let mut names = Vec::new();
    while world.data_files(n) == 0 {
        let name = format!("f{}", names.len());
        let file = client.open(&name).await;
        assert_eq!(client.proxied_write(&file, 0, &pattern(0, 5000)).await, nfsstat4::NFS4_OK);
        client.close(&file).await;
        names.push(name);
    }
    names
}

/// The store answers late when the first drain wants to record that it is done.
#[test]
fn a_drain_that_was_cancelled_does_not_end_the_next_one() {
    simulate_with(16, ONCE, async |world| {
        let (client, gone) = (Client::mount(world, "a", NEW).await, 1);
        let late = |latency| Faults { latency, ..Faults::NONE };
        for round in 0..16 {
            // Nothing is there yet: it is done at once.
            world.set_faults(late(Duration::from_millis(20)));
            drain(world, gone, 0).await.unwrap();
            world.sleep(Duration::from_millis(5 * round)).await;
            world.set_faults(late(Duration::from_secs(4)));
            world.sleep(Duration::from_millis(50)).await;
            world.set_faults(Faults::NONE);
            cancel(world, gone).await;
            let names = fill(world, &client, gone).await;
            // So slowly that it stays.
            drain(world, gone, 1).await.unwrap();
            world.sleep(Duration::from_secs(10)).await;
            assert!(world.data_files(gone) > 0);
            let why = remove(world, gone, false, &[]).await.expect_err("with what it holds");
            assert!(why.contains("still holds data files"), "{why}");
            cancel(world, gone).await;
            for name in &names {
                client.remove(name).await;
            }
            world.until(|world| world.data_files(gone) == 0).await;
        }
    });
}
