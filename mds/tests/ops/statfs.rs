//! GETATTR of space and numbers of files: statfs.

use std::sync::Arc;
use std::time::Duration;

use sluice_xdr::nfs4::*;

use crate::data_server::{DATA_FILE, DEVICE, Tells};
use crate::harness::*;
use crate::remove::{made, unlink};

/// Going to the server and back, in these worlds.
const WAY: Duration = Duration::from_millis(50);

/// Data files that there must be, by the space that is left; and how long the answer took.
async fn used(world: &World, client: &Client) -> (u64, Duration) {
    let asked =
        [FATTR4_SPACE_FREE, FATTR4_SPACE_AVAIL, FATTR4_SPACE_TOTAL, FATTR4_FILES_FREE, FATTR4_FILES_TOTAL];
    let began = world.env.clock.now();
    let got = client.attributes("/", &asked).await;
    let took = world.env.clock.now().since(began);
    let (free, files) = (got.space_free.unwrap(), got.files_free.unwrap());
    assert_eq!((got.space_total, got.space_avail), (Some(DEVICE), Some(free)));
    assert_eq!(got.files_total, Some(1 << 30));
    let count = (DEVICE - free) / DATA_FILE;
    assert_eq!(files, (1 << 30) - count);
    (count, took)
}

#[test]
fn what_is_told_is_so_now_and_not_as_of_the_last_heartbeat() {
    simulate(1, async |mut world: World| {
        let client = world.client("a").await;
        let data_server = world.data_server();
        for count in [7, 900, 0] {
            data_server.set_data_files(count);
            assert_eq!(used(&world, &client).await.0, count);
            world.sleep(Duration::from_millis(250)).await;
        }
    });
}

/// With the entries of a directory nobody is asked for it, however many there are.
#[test]
fn entries_have_what_was_heard_last() {
    simulate(2, async |mut world: World| {
        let client = world.client("a").await;
        let data_server = world.data_server();
        for name in ["d", "e"] {
            client.mkdir("/", name).await;
        }
        data_server.set_data_files(7);
        let list = readdir(0, verifier4::default(), 4096, &[FATTR4_SPACE_FREE]);
        let last = client.last(vec![putrootfh(), list]).await;
        let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(found)) = last else { panic!() };
        assert_eq!(found.reply.entries.len(), 2);
        for entry in found.reply.entries {
            assert_eq!(Attributes::decode(&entry.attrs).unwrap().space_free, Some(DEVICE));
        }
        // Who asks for something else has nothing to wait for.
        client.attributes("/d", &[FATTR4_SIZE, FATTR4_QUOTA_AVAIL_HARD, FATTR4_SPACE_USED]).await;
        assert_eq!(data_server.asked(), 0);
    });
}

#[test]
fn what_was_removed_before_is_gone() {
    simulate(3, async |mut world: World| {
        let client = world.client("a").await;
        let data_server = world.data_server();
        for number in 0..9 {
            made(&client, &format!("f{number}")).await;
        }
        data_server.set_data_files(100);
        let mut before = used(&world, &client).await.0;
        assert_eq!(before, 100);
        // One after the other, each looked at less than a moment after the last.
        for number in 0..9 {
            unlink(&client, &format!("f{number}")).await;
            let (after, took) = used(&world, &client).await;
            assert!(after < before, "{after} of {before}");
            assert!(took < Duration::from_millis(200), "{took:?}");
            before = after;
        }
    });
}

#[test]
fn many_who_ask_at_once_cost_one_question() {
    simulate(4, async |mut world: World| {
        let data_server = world.data_server();
        data_server.set_data_files(5);
        let world = Arc::new(world);
        let mut clients = Vec::new();
        for number in 0..50 {
            clients.push(world.client(&format!("c{number}")).await);
        }
        let mut tasks = tokio::task::JoinSet::new();
        for client in clients {
            let world = Arc::clone(&world);
            tasks.spawn(async move { used(&world, &client).await.0 });
        }
        while let Some(count) = tasks.join_next().await {
            assert_eq!(count.unwrap(), 5);
        }
        assert_eq!(data_server.asked(), 1);
        // What is new is seen a moment later.
        data_server.set_data_files(6);
        world.sleep(Duration::from_millis(250)).await;
        assert_eq!(used(&world, &world.client("late").await).await.0, 6);
        assert_eq!(data_server.asked(), 2);
    });
}

#[test]
fn who_does_not_answer_is_waited_for_once() {
    simulate(5, async |mut world: World| {
        let client = world.client("a").await;
        let data_server = world.data_server();
        made(&client, "f").await;
        data_server.set_data_files(100);
        assert_eq!(used(&world, &client).await.0, 100);
        data_server.set_tells(Tells::Never);
        unlink(&client, "f").await;
        let (count, took) = used(&world, &client).await;
        assert!(took > Duration::from_millis(600) && took < Duration::from_millis(750) + WAY, "{took:?}");
        let asked = data_server.asked();
        // A heartbeat, which comes from it meanwhile, says that it is there, and that it is empty.
        assert!(count == 100 || count == 0);
        for _ in 0..5 {
            assert!(used(&world, &client).await.1 < WAY);
        }
        assert_eq!(data_server.asked(), asked, "it was waited for, and not heard of since");
        world.sleep(Duration::from_millis(2100)).await;
        let (count, took) = used(&world, &client).await;
        assert!(took > Duration::from_millis(200) && took < Duration::from_millis(250) + WAY, "{took:?}");
        assert_eq!((count, data_server.asked()), (0, asked + 1), "heard of");
        data_server.set_tells(Tells::Now);
        world.sleep(Duration::from_millis(2100)).await;
        assert_eq!(used(&world, &client).await.0, 100);
        // What it was told to remove is tried again.
        world.sleep(Duration::from_secs(20)).await;
        assert!(used(&world, &client).await.0 < 100);
    });
}

#[test]
fn who_does_not_know_the_question_is_taken_by_its_heartbeats() {
    simulate(6, async |mut world: World| {
        let client = world.client("a").await;
        let data_server = world.data_server();
        data_server.set_data_files(5);
        data_server.set_tells(Tells::Unknown);
        let (count, took) = used(&world, &client).await;
        assert_eq!(count, 0);
        assert!(took < WAY);
        assert_eq!(data_server.asked(), 1);
        // What cannot be removed now delays nobody either.
        data_server.set_keeps(true);
        made(&client, "f").await;
        unlink(&client, "f").await;
        assert!(used(&world, &client).await.1 < 2 * WAY);
    });
}
