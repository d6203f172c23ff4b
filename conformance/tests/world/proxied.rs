//! What goes through the metadata server is counted, and why.

use std::time::Duration;

use sluice_xdr::nfs4::{nfsstat4, stateid4};

use crate::client::{Client, Opened, RO, RW, later, putfh, sizes};
use crate::mirrors::home;
use crate::stage::{simulate, simulate_tuned};
use crate::{NEW, pattern};

#[test]
fn bytes_are_counted_by_what_was_in_their_way() {
    simulate(30, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("f").await;
        let data = pattern(0, 5000);
        client.proxied_write(&file, 0, &data).await;
        client.proxied_read(&file, 4000, 3000).await;
        assert_eq!(world.proxied_because().await, [("never-asked", 6000)]);
        let layout = client.layout(&file, file.stateid, RW, 0).await;
        client.proxied_read(&file, 0, 100).await;
        client.return_and_close(&file, layout.stateid).await;
        let file = client.open("f").await;
        client.proxied_read(&file, 0, 10).await;
        // Nothing is there to be read.
        client.proxied_read(&file, 5000, 10).await;
        let all = [("layout-unused", 100), ("never-asked", 6000), ("not-asked", 10)];
        assert_eq!(world.proxied_because().await, all);
    });
}

#[test]
fn a_refused_layout_is_the_reason() {
    simulate_tuned(
        31,
        |config| config.layouts = false,
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            client.proxied_write(&file, 0, &pattern(0, 50)).await;
            for iomode in [RO, RW] {
                client.try_layout(&file, file.stateid, iomode, 0).await.unwrap_err();
            }
            client.proxied_write(&file, 0, &pattern(0, 7)).await;
            assert_eq!(world.proxied_because().await, [("layouts-off", 57)]);
        },
    );
}

#[test]
fn the_data_server_that_a_client_does_without_is_the_reason() {
    simulate(32, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let other = Client::mount(world, "b", NEW).await;
        let file = client.open("f").await;
        client.proxied_write(&file, 0, &pattern(0, 50)).await;
        let layout = client.layout(&file, file.stateid, RW, 0).await;
        // Once is enough for Linux, and it holds a new layout while it does without.
        client
            .layout_return_failed(&file, layout.stateid, &layout.body.ffl_mirrors[0].ffm_data_servers[0])
            .await;
        client.layout(&file, file.stateid, RW, 0).await;
        client.proxied_read(&file, 0, 7).await;
        let unconcerned = other.open("g").await;
        other.layout(&unconcerned, unconcerned.stateid, RW, 0).await;
        other.proxied_write(&unconcerned, 0, &pattern(0, 3)).await;
        let all = [("layout-unused", 3), ("never-asked", 50), ("unreachable-from-client", 7)];
        assert_eq!(world.proxied_because().await, all);
    });
}

impl Client {
    /// WRITE to the beginning of a file, with size and change attribute that come of it.
    async fn proxied_write_and_stat(&self, file: &Opened, data: &[u8]) -> (u64, u64) {
        let ops = vec![putfh(&file.handle), Self::write_op(file, 0, data), Self::getattr()];
        sizes(self.ok(ops).await.last().unwrap())
    }
}

#[test]
fn the_attributes_behind_a_write_are_those_of_after_it() {
    simulate(33, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("f").await;
        client.proxied_write_and_stat(&file, &pattern(0, 10)).await;
        client.close(&file).await;
        // RFC 8881 §8.2.3: without an open.
        let anonymous = Opened { stateid: stateid4::default(), ..file };
        let seen = client.proxied_write_and_stat(&anonymous, &pattern(0, 5000)).await;
        assert_eq!(seen.0, 5000);
        assert_eq!(client.stat(&anonymous).await, seen);
    });
}

#[test]
fn what_is_on_its_way_while_a_data_server_is_started_again_is_no_error() {
    simulate(34, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("f").await;
        let held = client.layout(&file, file.stateid, RW, 0).await;
        let n = home(world, &client, &held, 0).await;
        client.layout_return(&file, held.stateid).await;
        // Nothing was ever written there, and a handle of before may not say so.
        for round in 0..10_u64 {
            world.stop_data_server(n).await;
            let write = client.proxied_write(&file, 0, b"new");
            let start = async {
                world.env.clock.sleep(Duration::from_millis(40 * round)).await;
                world.start_data_server(n).await;
            };
            let (status, ()) = tokio::join!(write, start);
            assert!(later(status) || status == nfsstat4::NFS4_OK, "{status:?} in round {round}");
        }
        assert_eq!(client.proxied_write(&file, 0, b"new").await, nfsstat4::NFS4_OK);
        assert_eq!(client.proxied_read(&file, 0, 9).await[..], b"new"[..]);
    });
}
