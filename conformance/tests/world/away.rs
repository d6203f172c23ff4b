//! A metadata server that may not have its store any more, for longer than data servers may be silent: whoever could not be
//! heard was not silent.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::nfsstat4;

use crate::client::Client;
use crate::mirrors::{Writer, home};
use crate::stage::{World, simulate_tuned, simulate_with};
use crate::{NEW, pattern};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0 };
const ONCE: LayoutPolicy = LayoutPolicy { mirrors: 1, ..TWICE };
const SIZE: usize = 300_000;

async fn away_for(world: &World, seconds: u64) {
    world.set_faults(Faults { away: true, ..Faults::NONE });
    world.sleep(Duration::from_secs(seconds)).await;
    world.set_faults(Faults::NONE);
}

/// A file at rest, and a data server of it that has just been given up.
async fn given_up(world: &mut World) -> (Writer, usize) {
    let mut writer = Writer::mount(world, "a", "f").await;
    writer.write(world, 0, &pattern(3, SIZE)).await;
    let held = writer.held.clone().unwrap();
    let lost = home(world, &writer.client, &held, 0).await;
    writer.give_back().await;
    world.crash_data_server(lost).await;
    world.sleep(Duration::from_secs(12)).await;
    (writer, lost)
}

#[test]
fn what_only_one_data_server_has_is_waited_for() {
    simulate_with(1, ONCE, async |world| {
        let (writer, lost) = given_up(world).await;
        away_for(world, 60).await;
        let read = async || writer.client.try_read(&writer.file, 0, 4096).await;
        assert_eq!(read().await.unwrap_err(), nfsstat4::NFS4ERR_DELAY);
        world.start_data_server(lost).await;
        assert!(writer.client.proxied_read(&writer.file, 0, 4096).await[..] == pattern(3, 4096)[..]);
        // As ever, where it is really silent.
        world.crash_data_server(lost).await;
        world.sleep(Duration::from_secs(40)).await;
        assert_eq!(read().await.unwrap_err(), nfsstat4::NFS4ERR_IO);
    });
}

#[test]
fn nothing_is_made_anew_of_a_data_server_that_could_not_be_heard() {
    let tune = |config: &mut sluice_mds::Config| {
        (config.policy, config.rebuild_after) = (TWICE, Duration::from_secs(60));
    };
    simulate_tuned(2, tune, async |world| {
        let client = Client::mount(world, "b", NEW).await;
        for n in 0..40 {
            let file = client.open(&format!("g{n}")).await;
            assert_eq!(client.proxied_write(&file, 0, &pattern(0, 9)).await, nfsstat4::NFS4_OK);
        }
        let (_, lost) = given_up(world).await;
        away_for(world, 120).await;
        // Whoever looks at all files comes to the last ones when there are others that could take its place.
        world.set_faults(Faults { latency: Duration::from_millis(400), ..Faults::NONE });
        world.sleep(Duration::from_secs(20)).await;
        world.set_faults(Faults::NONE);
        assert_eq!(world.check().await, 0, "it may come back");
        world.start_data_server(lost).await;
        world.sleep(Duration::from_secs(10)).await;
        let holders = (0..4).filter(|n| world.holds(*n, SIZE as u64)).count();
        assert_eq!((holders, world.check().await), (2, 0));
    });
}
