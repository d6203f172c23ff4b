//! A second metadata server takes over while the first one lives: data servers go where the store is.

use std::time::Duration;

use sluice_xdr::control::{ADMIN_STATUS, ADMIN_STATUS_res};

use crate::client::{Client, RW};
use crate::stage::simulate;
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
