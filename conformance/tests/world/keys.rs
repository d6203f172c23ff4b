//! The key that handles of data files are sealed with is replaced while clients work; whoever takes part may die on the
//! way.

use std::cell::Cell;
use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::{ADMIN_KEYS, ADMIN_KEYS_args, ADMIN_KEYS_res, ADMIN_KEYS_resok, ctl_key_state};
use sluice_xdr::nfs3::nfsstat3;

use crate::client::{Client, RW};
use crate::mirrors::{Writer, home};
use crate::pattern;
use crate::stage::{World, simulate_with};
use crate::storage::Segment;

const SMALL: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };

pub(crate) async fn ask(world: &World, rotate: bool) -> ADMIN_KEYS_resok {
    match world.admin(ADMIN_KEYS, &ADMIN_KEYS_args { rotate }).await {
        ADMIN_KEYS_res::CTL_OK(keys) => keys,
        other => panic!("{other:?}"),
    }
}

fn waits_for(keys: &ADMIN_KEYS_resok) -> String {
    String::from_utf8(keys.waits_for.to_vec()).unwrap()
}

/// Waits until it says something like this.
async fn until_it_waits_for(world: &World, what: &str) {
    for _ in 0..600 {
        if waits_for(&ask(world, false).await).contains(what) {
            return;
        }
        world.sleep(Duration::from_millis(100)).await;
    }
    panic!("it does not wait for {what}: {}", waits_for(&ask(world, false).await));
}

/// Waits until handles of older keys are over; the key that is left.
pub(crate) async fn ended(world: &World) -> u32 {
    for _ in 0..600 {
        let keys = ask(world, false).await;
        if keys.waits_for.is_empty() {
            assert_eq!(keys.keys.len(), 1, "{keys:?}");
            assert_eq!(keys.keys[0].state, ctl_key_state::KEY_SEALS);
            assert!(keys.keys[0].epoch <= keys.oldest_epoch);
            return keys.keys[0].id;
        }
        world.sleep(Duration::from_secs(1)).await;
    }
    panic!("it does not end: {}", waits_for(&ask(world, false).await));
}

async fn key(world: &World) -> u32 {
    ask(world, false).await.keys[0].id
}

/// The id of the key that the handles of a segment are sealed with.
fn seal(segment: &Segment) -> u32 {
    segment.mirror(0).data_server(0).ffds_fh_vers[0].0[1].into()
}

/// A file with its data, and the segment it was written through.
async fn written(world: &World, host: &str, name: &str) -> (Writer, Segment) {
    let mut writer = Writer::mount(world, host, name).await;
    writer.write(world, 0, &pattern(0, 10_000)).await;
    let held = writer.held.clone().unwrap();
    (writer, held)
}

/// A handle of a key that is forgotten, not only of an epoch that is over.
async fn is_over(client: &Client, segment: &Segment) {
    assert_eq!(client.write(segment, 0, b"late").await, Err(nfsstat3::NFS3ERR_STALE));
    assert_eq!(client.read(segment, 0..4).await, Err(nfsstat3::NFS3ERR_STALE));
}

#[test]
fn clients_work_while_the_key_is_replaced() {
    for (seed, policy) in
        [(1, SMALL), (2, LayoutPolicy { mirrors: 2, ..SMALL }), (3, LayoutPolicy::default())]
    {
        simulate_with(900 + seed, policy, async |world| {
            let (mut first, old) = written(world, "a", "f").await;
            let mut second = Writer::mount(world, "b", "g").await;
            let before = key(world).await;
            let over = Cell::new(false);
            let world = &*world;
            let works = async |writer: &mut Writer, seed: u64| {
                let mut rounds = 0;
                while !over.get() {
                    writer.write(world, rounds % 7 * 1000, &pattern(seed + rounds, 1000)).await;
                    rounds += 1;
                }
                rounds
            };
            let opens = async {
                let mut made = 0;
                while !over.get() {
                    let (mut new, segment) = written(world, &format!("n{made}"), &format!("new{made}")).await;
                    let read = new.client.read(&segment, 0..10_000).await;
                    // What was recalled between is asked for again.
                    assert!(read.is_err() || read.unwrap()[..] == pattern(0, 10_000)[..]);
                    new.give_back().await;
                    new.client.close(&new.file).await;
                    made += 1;
                }
                made
            };
            let rotates = async {
                world.sleep(Duration::from_millis(200)).await;
                assert!(!ask(world, true).await.joined);
                let after = ended(world).await;
                over.set(true);
                after
            };
            let (after, a, b, made) =
                tokio::join!(rotates, works(&mut first, 0), works(&mut second, 1 << 20), opens);
            assert_ne!(before, after);
            assert!(a > 10 && b > 10 && made > 1, "{a} and {b} writes, {made} files");
            // As on Linux: no error that a program sees, and nothing that went another way.
            assert_eq!((first.proxied, second.proxied), (0, 0));
            is_over(&first.client, &old.mirror(0)).await;
            for (writer, rounds, seed) in [(&first, a, 0), (&second, b, 1 << 20)] {
                for place in 0..7 {
                    let last = (0..rounds).rev().find(|round| round % 7 == place).unwrap();
                    let read = writer.client.proxied_read(&writer.file, place * 1000, 1000).await;
                    assert!(read[..] == pattern(seed + last, 1000)[..], "place {place}");
                }
            }
            world.check().await;
        });
    }
}

#[test]
fn a_metadata_server_that_dies_goes_on_where_it_was() {
    // Announced.
    simulate_with(911, SMALL, async |world| {
        let (writer, old) = written(world, "a", "f").await;
        let before = key(world).await;
        world.mute(2, true);
        ask(world, true).await;
        until_it_waits_for(world, "data server 3").await;
        assert_eq!(ask(world, false).await.keys.len(), 2);
        world.restart_metadata_server().await;
        assert_eq!(ask(world, false).await.keys[1].state, ctl_key_state::KEY_ANNOUNCED);
        // Nobody but the announced key's own rotation may use it.
        assert_eq!(ask(world, false).await.keys[0].state, ctl_key_state::KEY_SEALS);
        world.mute(2, false);
        assert_ne!(ended(world).await, before);
        is_over(&writer.client, &old).await;
    });
    // In use, while somebody has not given back what was made with the older one.
    simulate_with(912, SMALL, async |world| {
        let (writer, old) = written(world, "a", "f").await;
        let before = key(world).await;
        ask(world, true).await;
        until_it_waits_for(world, "layouts of older handles").await;
        writer.client.write(&old, 0, b"good until the end").await.unwrap();
        world.restart_metadata_server().await;
        let keys = ask(world, false).await;
        assert_eq!(
            keys.keys.iter().map(|key| key.state).collect::<Vec<_>>(),
            [ctl_key_state::KEY_OPENS, ctl_key_state::KEY_SEALS]
        );
        // It may be reclaimed until grace ends.
        writer.client.write(&old, 0, b"good until the end").await.unwrap();
        assert_ne!(ended(world).await, before);
        is_over(&writer.client, &old).await;
    });
    // Forgotten by the metadata server, but not everywhere.
    simulate_with(913, SMALL, async |world| {
        let (mut writer, old) = written(world, "a", "f").await;
        let there = home(world, &writer.client, &old, 0).await;
        let other = (there + 1) % 4;
        ask(world, true).await;
        until_it_waits_for(world, "layouts of older handles").await;
        world.mute(other, true);
        writer.give_back().await;
        until_it_waits_for(world, &format!("data server {} to forget", other + 1)).await;
        is_over(&writer.client, &old).await;
        world.restart_metadata_server().await;
        world.mute(other, false);
        ended(world).await;
        is_over(&writer.client, &old).await;
    });
}

#[test]
fn who_was_away_serves_with_the_new_key_alone() {
    simulate_with(921, SMALL, async |world| {
        let (mut writer, old) = written(world, "a", "f").await;
        let there = home(world, &writer.client, &old, 0).await;
        let host = format!("ds{}", there + 1);
        world.net.partition(&host, "mds");
        ask(world, true).await;
        until_it_waits_for(world, &format!("data server {}", there + 1)).await;
        writer.give_back().await;
        // It has been alone for so long that it serves nobody: it is not waited for.
        ended(world).await;
        let late = writer.client.write(&old, 0, b"late");
        let answer = world.env.clock.timeout(Duration::from_secs(5), late).await;
        assert!(!matches!(answer, Ok(Ok(()))), "{answer:?}");
        world.net.heal(&host, "mds");
        world.until_serving(there).await;
        is_over(&writer.client, &old).await;
        writer.write(world, 0, &pattern(7, 10_000)).await;
        assert_eq!(writer.proxied, 0);
        assert!(writer.client.proxied_read(&writer.file, 0, 10_000).await[..] == pattern(7, 10_000)[..]);
    });
    // One that starts again meanwhile is told all keys that are good.
    simulate_with(922, SMALL, async |world| {
        let (mut writer, old) = written(world, "a", "f").await;
        let there = home(world, &writer.client, &old, 0).await;
        ask(world, true).await;
        until_it_waits_for(world, "layouts of older handles").await;
        world.crash_data_server(there).await;
        world.start_data_server(there).await;
        let read = writer.client.read(&old, 0..10_000).await.unwrap();
        assert!(read[..] == pattern(0, 10_000)[..]);
        writer.give_back().await;
        ended(world).await;
        is_over(&writer.client, &old).await;
        writer.write(world, 0, &pattern(7, 10_000)).await;
    });
}

#[test]
fn a_second_rotation_joins_the_first_or_follows_it() {
    simulate_with(931, SMALL, async |world| {
        let (mut writer, old) = written(world, "a", "f").await;
        let before = key(world).await;
        world.mute(3, true);
        assert!(!ask(world, true).await.joined);
        assert!(ask(world, true).await.joined);
        // A data server that does not know the new key could get its handles.
        let (_, new) = written(world, "b", "g").await;
        assert_eq!((seal(&old), seal(&new)), (before, before));
        world.mute(3, false);
        until_it_waits_for(world, "layouts of older handles").await;
        // The first is in use already: this is another one.
        let keys = ask(world, true).await;
        assert!(!keys.joined);
        assert_eq!(keys.keys.len(), 3);
        let last = keys.keys[2].id;
        writer.client.write(&old, 0, b"good until the end").await.unwrap();
        writer.give_back().await;
        assert_eq!(ended(world).await, last);
        assert_ne!(last, before);
        is_over(&writer.client, &old).await;
        let again = writer.client.layout(&writer.file, writer.file.stateid, RW, 0).await;
        assert_eq!(seal(&again), last);
        writer.client.write(&again, 0, b"new").await.unwrap();
    });
}
