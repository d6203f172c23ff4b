//! Data servers that are killed and are back within a moment, one after the other, while clients work.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::*;

use crate::client::{Client, Opened, RO, putfh};
use crate::mirrors::{Writer, healed, home};
use crate::stage::{World, simulate_with};
use crate::{NEW, pattern};

const ONCE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
const TWICE: LayoutPolicy = LayoutPolicy { mirrors: 2, ..ONCE };
/// How long `sluice up` takes to start one again.
const AWAY: Duration = Duration::from_millis(200);

/// Kills the n-th data server under a write, which fails before it is back; how long the write takes from then on.
async fn killed(world: &mut World, writer: &mut Writer, n: usize, data: &[u8]) -> Duration {
    world.crash_data_server(n).await;
    assert!(!writer.attempt(0, data).await, "nobody knows that it has gone");
    world.sleep(AWAY).await;
    world.start_data_server(n).await;
    let began = world.env.clock.now();
    writer.write(world, 0, data).await;
    world.env.clock.now().since(began)
}

/// LAYOUTERROR of a read.
async fn read_failed(
    client: &Client,
    file: &Opened,
    stateid: stateid4,
    (device, status): (deviceid4, nfsstat4),
) {
    let error = device_error4 { de_deviceid: device, de_status: status, de_opnum: nfs_opnum4::OP_READ };
    let op = nfs_argop4::OP_LAYOUTERROR(LAYOUTERROR4args {
        lea_offset: 0,
        lea_length: u64::MAX,
        lea_stateid: stateid,
        lea_errors: vec![error],
    });
    client.ok(vec![putfh(&file.handle), op]).await;
}

/// What is to be made equal waits for the one that has gone, and nobody may have looked while it was away.
#[test]
fn writers_of_mirrors_go_on_at_once_when_a_data_server_is_back() {
    simulate_with(90, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        let mut model = pattern(0, 300_000);
        writer.write(world, 0, &model).await;
        for kill in 1..=12 {
            let held = writer.held.clone().unwrap();
            let n = home(world, &writer.client, &held, usize::try_from(kill % 2).unwrap()).await;
            model = pattern(kill, 300_000);
            let took = killed(world, &mut writer, n, &model).await;
            assert!(took < Duration::from_secs(1), "it stood still for {took:?} after kill {kill}");
            // Other moments between two looks each time.
            world.sleep(Duration::from_millis(2500 + 77 * kill)).await;
        }
        assert_eq!(writer.proxied, 0, "all of it could be written directly");
        writer.give_back().await;
        healed(world, "f", &model).await;
    });
}

/// Linux says so when it gets round to it: of a device that the data server is no more.
#[test]
fn what_is_said_of_a_data_server_before_it_came_back_is_not_held_against_it() {
    simulate_with(91, ONCE, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("f").await;
        let first = client.layout(&file, file.stateid, RO, 0).await;
        let (n, old) = (home(world, &client, &first, 0).await, first.mirror(0).data_server(0).ffds_deviceid);
        world.crash_data_server(n).await;
        world.start_data_server(n).await;
        let mut stateid = first.stateid;
        for status in [nfsstat4::NFS4ERR_NXIO, nfsstat4::NFS4ERR_STALE] {
            for _ in 0..3 {
                read_failed(&client, &file, stateid, (old, status)).await;
                let again = client.try_layout(&file, stateid, RO, 0).await;
                stateid = again.unwrap_or_else(|why| panic!("after {status:?}: {why:?}")).stateid;
            }
        }
        // Of what it is now, a second failure counts as ever: perhaps this client alone does not reach it.
        let now = client.layout(&file, stateid, RO, 0).await.mirror(0).data_server(0).ffds_deviceid;
        assert_ne!(now, old);
        for last in [false, true] {
            read_failed(&client, &file, stateid, (now, nfsstat4::NFS4ERR_NXIO)).await;
            match client.try_layout(&file, stateid, RO, 0).await {
                Ok(again) if !last => stateid = again.stateid,
                Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE) if last => {}
                other => panic!("{other:?}"),
            }
        }
    });
}
