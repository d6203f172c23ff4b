//! The space that clients are shown is the space that there is.

use std::time::Duration;

use sluice_xdr::nfs4::*;

use crate::client::{Client, RW};
use crate::stage::{World, simulate};
use crate::{NEW, pattern};

/// What each data server gets.
const SIZE: u64 = 8 << 20;
const WRITE: u64 = 1 << 20;
/// Journals, and whatever else data servers write for themselves.
const OWN: u64 = 256 << 10;

/// Free bytes, and how long the answer took.
async fn free(world: &World, client: &Client) -> (u64, Duration) {
    let asked = GETATTR4args { attr_request: bitmap4::of(&[FATTR4_SPACE_FREE]) };
    let began = world.env.clock.now();
    let results = client.ok(vec![nfs_argop4::OP_PUTROOTFH, nfs_argop4::OP_GETATTR(asked)]).await;
    let Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(got))) = results.last() else { panic!() };
    let free = Attributes::decode(&got.obj_attributes).unwrap().space_free.unwrap();
    (free, world.env.clock.now().since(began))
}

/// A file with data at all data servers.
async fn filled(client: &Client, name: &str) {
    let (file, mut layout) = client.open_with_layout(name).await;
    for at in (0..4 * SIZE).step_by(WRITE as usize) {
        if at == layout.bytes.end {
            layout = client.layout(&file, layout.stateid, RW, at).await;
        }
        client.write(&layout, at, &pattern(at, WRITE as usize)).await.unwrap();
    }
    client.layout_commit(&file, layout.stateid, Some(4 * SIZE - 1)).await.unwrap();
    client.return_and_close(&file, layout.stateid).await;
}

fn story(seed: u64) -> [u8; 32] {
    simulate(seed, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let empty = free(world, &client).await.0;
        filled(&client, "f").await;
        let full = free(world, &client).await.0;
        assert!(empty - full >= 3 * SIZE, "{} of {}", empty - full, 4 * SIZE);
        client.remove("f").await;
        let (again, took) = free(world, &client).await;
        assert!(again + OWN >= empty, "{} bytes are missing", empty - again);
        assert!(took < Duration::from_millis(500), "{took:?}");
    })
}

#[test]
fn what_is_removed_is_space_again_at_once() {
    story(70);
}

/// By its name left out on a cluster, whose versions no seed decides.
#[test]
fn told_of_space_one_seed_is_one_world() {
    assert_eq!(story(70), story(70));
}

#[test]
fn a_mute_data_server_is_waited_for_for_a_moment_and_once() {
    simulate(74, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        filled(&client, "f").await;
        let full = free(world, &client).await.0;
        world.mute(2, true);
        client.remove("f").await;
        let (some, took) = free(world, &client).await;
        assert!(took < Duration::from_millis(850), "{took:?}");
        assert!(some > full, "the others have removed their parts");
        let mut slow = 0;
        for _ in 0..20 {
            let (_, took) = free(world, &client).await;
            assert!(took < Duration::from_millis(850), "{took:?}");
            slow += u32::from(took > Duration::from_millis(100));
            world.sleep(Duration::from_millis(100)).await;
        }
        assert!(slow <= 1, "{slow} waited");
        // It is lost, and comes back.
        world.sleep(Duration::from_secs(20)).await;
        assert!(free(world, &client).await.1 < Duration::from_millis(100));
        world.mute(2, false);
        world.until_serving(2).await;
        world.sleep(Duration::from_secs(20)).await;
        assert!(free(world, &client).await.0 >= full + 3 * SIZE);
    });
}
