//! A second metadata server takes over while the first one lives: data servers go where the store is.

use std::time::Duration;

use sluice_xdr::control::{ADMIN_STATUS, ADMIN_STATUS_res};
use sluice_xdr::nfs4::nfsstat4;

use crate::client::{Client, RW, later};
use crate::stage::{World, simulate};
use crate::{NEW, pattern};

/// It has lost its store and not its data servers: those answer it, and it could answer them for ever.
#[test]
fn data_servers_leave_a_metadata_server_that_has_lost_its_store() {
    simulate(91, async |world| {
        world.standby = true;
        for n in 0..4 {
            world.stop_data_server(n).await;
            world.start_data_server(n).await;
        }
        let first = Client::mount(world, "a", NEW).await;
        let (file, layout) = first.open_with_layout("f").await;
        first.write(&layout, 0, &pattern(0, 5000)).await.unwrap();
        first.layout_commit(&file, layout.stateid, Some(4999)).await.unwrap();
        world.take_over().await;
        drop(first);
        world.net.crash("a");
        world.sleep(Duration::from_secs(200)).await;
        let ADMIN_STATUS_res::CTL_OK(status) = world.admin(ADMIN_STATUS, &()).await else { panic!() };
        let connected = status.data_servers.iter().filter(|server| server.connected).count();
        assert_eq!(connected, 4);
        let second = Client::mount(world, "b", NEW).await;
        let same = second.open("f").await;
        let layout = second.layout(&same, same.stateid, RW, 0).await;
        assert!(second.read(&layout, 0..5000).await.unwrap()[..] == pattern(0, 5000)[..]);
        second.write(&layout, 5000, &pattern(5000, 1000)).await.unwrap();
    });
}

/// A WRITE that went through the metadata server is sent again to its successor, if it was not answered. What the first
/// one had on its way to a data server arrives when what was written since is acknowledged.
#[test]
fn what_a_replaced_metadata_server_had_on_its_way_does_not_undo_what_came_after() {
    // Before the data servers have found the successor, and after that.
    for (seed, wait) in [(92, 0), (93, 20)] {
        simulate(seed, async |world| {
            world.standby = true;
            for n in 0..4 {
                world.stop_data_server(n).await;
                world.start_data_server(n).await;
            }
            // Grace is not over while this one may come back.
            let idle = Client::mount(world, "idle", NEW).await;
            idle.open("other").await;
            let mut client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            assert_eq!(client.proxied_write(&file, 0, &pattern(0, 1000)).await, nfsstat4::NFS4_OK);
            between(world, |world, data_server| world.net.partition("mds", data_server));
            let lost = client.proxied_write(&file, 0, b"old");
            world.env.clock.timeout(Duration::from_secs(1), lost).await.unwrap_err();
            world.take_over().await;
            world.sleep(Duration::from_secs(wait)).await;
            client.reconnect(world).await;
            client.was_not_answered();
            let file = client.reclaim(&file).await;
            for data in [b"old", b"new"] {
                while later(client.proxied_write(&file, 0, data).await) {
                    world.sleep(Duration::from_millis(100)).await;
                }
            }
            between(world, |world, data_server| world.net.heal("mds", data_server));
            world.sleep(Duration::from_secs(1)).await;
            assert_eq!(&client.proxied_read(&file, 0, 3).await[..], b"new", "after {wait} s");
        });
    }
}

fn between(world: &World, change: impl Fn(&World, &str)) {
    (1..=4).for_each(|n| change(world, &format!("ds{n}")));
}
