//! A metadata server that is started on a copy of its store, as it was some time ago: a snapshot of a machine, a backup that
//! was restored. It would give out again the numbers that it gave out since, and data servers have data under those.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::{
    ADMIN_DOCTOR, ADMIN_DOCTOR_res, ADMIN_STATUS, ADMIN_STATUS_res, ctl_audit_finding, ctl_audit_kind,
};
use sluice_xdr::nfs4::*;

use crate::NEW;
use crate::audit::audit;
use crate::client::{Client, putfh, text};
use crate::stage::{World, simulate_with};

/// Each file has something at each data server.
const EVERYWHERE: LayoutPolicy = LayoutPolicy { shape: Shape::Wide, mirrors: 1, inline: 0, class: None };
/// Each file is at one.
const ONCE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };

/// Small files are in the metadata.
const INLINE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 32 << 10, class: None };

const LENGTH: u64 = 4 << 20;
const SETTLED: Duration = Duration::from_secs(200);

/// A file that holds nothing but this byte.
async fn put(client: &Client, name: &str, fill: u8) {
    let (file, layout) = client.open_with_layout(name).await;
    client.write(&layout, 0, &vec![fill; LENGTH as usize]).await.unwrap();
    client.layout_commit(&file, layout.stateid, Some(LENGTH - 1)).await.unwrap();
    client.return_and_close(&file, layout.stateid).await;
}

/// What is seen of a new file of which only the last byte was written.
async fn seen_of_new(client: &Client, name: &str) -> Vec<u8> {
    let (file, layout) = client.open_with_layout(name).await;
    client.write(&layout, LENGTH - 1, b"n").await.unwrap();
    client.layout_commit(&file, layout.stateid, Some(LENGTH - 1)).await.unwrap();
    let seen = client.read(&layout, 0..LENGTH - 1).await.unwrap();
    client.return_and_close(&file, layout.stateid).await;
    seen.to_vec()
}

async fn holds_only(client: &Client, name: &str, fill: u8) -> bool {
    let file = client.open(name).await;
    let mut all = true;
    for at in (0..LENGTH).step_by(1 << 20) {
        let read = client.proxied_read(&file, at, 1 << 20).await;
        all &= read.len() == 1 << 20 && read.iter().all(|byte| *byte == fill);
    }
    client.close(&file).await;
    all
}

/// Why data servers are refused, one of each.
pub(crate) async fn refused(world: &World) -> Vec<String> {
    let ADMIN_DOCTOR_res::CTL_OK(told) = world.admin(ADMIN_DOCTOR, &()).await else { panic!() };
    told.refused.iter().map(|refused| String::from_utf8(refused.reason.to_vec()).unwrap()).collect()
}

pub(crate) async fn states(world: &World) -> Vec<String> {
    let ADMIN_STATUS_res::CTL_OK(status) = world.admin(ADMIN_STATUS, &()).await else { panic!() };
    status.data_servers.iter().map(|server| String::from_utf8(server.state.to_vec()).unwrap()).collect()
}

pub(crate) fn serving(world: &World) -> Vec<usize> {
    (0..4).filter(|n| world.serving(*n)).collect()
}

async fn is_known_to_be_a_copy(world: &World) -> bool {
    world.rows().await.iter().any(|(key, _)| key[..] == [5])
}

#[test]
fn a_copy_of_before_serves_nothing_until_it_is_adopted() {
    // In these the same number would mean the same places.
    for seed in 401..404 {
        simulate_with(seed, EVERYWHERE, async |world| {
            put(&Client::mount(world, "a", NEW).await, "old", b'o').await;
            let copy = world.dump().await;
            // What it gives out from now on it has leased after the copy.
            world.restart_metadata_server().await;
            world.sleep(SETTLED).await;
            assert_eq!(serving(world), [0, 1, 2, 3], "it knows its own store");
            let client = Client::mount(world, "b", NEW).await;
            for n in 0..4 {
                put(&client, &format!("secret{n}"), b's').await;
            }
            let files = (0..4).map(|n| world.data_files(n)).collect::<Vec<_>>();
            assert_eq!(files, [5; 4]);

            world.start_on_copy(&copy).await;
            world.sleep(SETTLED).await;
            let third = Client::mount(world, "c", NEW).await;
            let seen = world.env.clock.timeout(SETTLED, seen_of_new(&third, "new")).await;
            let secret = |seen: &[u8]| seen.contains(&b's');
            assert!(!seen.as_ref().is_ok_and(|seen| secret(seen)), "a new file shows what others hold");
            assert!(seen.is_err(), "a file was made");
            assert_eq!(serving(world), [0; 0]);
            assert_eq!((0..4).map(|n| world.data_files(n)).collect::<Vec<_>>(), files);
            let why = refused(world).await;
            assert_eq!(why.len(), 4);
            for why in why {
                assert!(why.starts_with("these metadata are an older copy of what was served: "), "{why}");
                assert!(why.contains("had data file 4") && why.contains("was 4097,"), "{why}");
                assert!(why.contains("run `sluice meta adopt`"), "{why}");
            }
            for state in states(world).await {
                assert!(state.starts_with("refused"), "{state}");
            }
            drop(third);
            world.net.crash("c");

            world.adopt().await;
            world.sleep(SETTLED).await;
            assert_eq!(serving(world), [0, 1, 2, 3]);
            let last = Client::mount(world, "d", NEW).await;
            assert!(holds_only(&last, "old", b'o').await);
            for n in 0..4 {
                let seen = seen_of_new(&last, &format!("later{n}")).await;
                assert!(seen.iter().all(|byte| *byte == 0));
            }
            world.sleep(SETTLED).await;
            let nobodys = |found: &ctl_audit_finding| found.kind == ctl_audit_kind::AUDIT_NO_OWNER;
            let found = audit(world).await;
            assert!(found.len() == 16 && found.iter().all(nobodys), "{found:?}");
            world.check().await;
            // It is a store like any other from then on.
            world.restart_metadata_server().await;
            world.sleep(SETTLED).await;
            assert_eq!(serving(world), [0, 1, 2, 3]);
        });
    }
}

/// Others have been given as many numbers meanwhile, so that by its own numbers it is like any other.
#[test]
fn a_data_server_that_comes_late_shows_that_it_is_a_copy() {
    simulate_with(405, ONCE, async |world| {
        put(&Client::mount(world, "a", NEW).await, "old", b'o').await;
        let copy = world.dump().await;
        world.restart_metadata_server().await;
        world.sleep(SETTLED).await;
        let before = (0..4).map(|n| world.data_files(n)).collect::<Vec<_>>();
        put(&Client::mount(world, "b", NEW).await, "secret", b's').await;
        let late = (0..4).find(|n| world.data_files(*n) > before[*n]).unwrap();
        world.stop_data_server(late).await;

        world.start_on_copy(&copy).await;
        world.sleep(SETTLED).await;
        assert_eq!(serving(world).len(), 3, "nobody can tell");
        let client = Client::mount(world, "c", NEW).await;
        for n in 0..4 {
            let seen = seen_of_new(&client, &format!("new{n}")).await;
            assert!(seen.iter().all(|byte| *byte == 0));
        }
        world.start_refused(late).await;
        world.sleep(SETTLED).await;
        assert_eq!(serving(world), [0; 0], "all are refused");
        assert!(is_known_to_be_a_copy(world).await);
        assert_eq!(world.check().await, 0);
        // It is not forgotten.
        world.restart_metadata_server().await;
        world.sleep(SETTLED).await;
        assert_eq!(serving(world), [0; 0]);
        assert_eq!(refused(world).await.len(), 4);

        world.adopt().await;
        world.sleep(SETTLED).await;
        assert_eq!(serving(world), [0, 1, 2, 3]);
        assert!(!is_known_to_be_a_copy(world).await);
        let last = Client::mount(world, "d", NEW).await;
        assert!(holds_only(&last, "old", b'o').await);
        for n in 0..4 {
            let seen = seen_of_new(&last, &format!("later{n}")).await;
            assert!(seen.iter().all(|byte| *byte == 0));
        }
    });
}

/// Nothing was made since the copy, but data servers obey a later incarnation. A server that was replaced, where two share a
/// store, looks the same: nothing is made of it.
#[test]
fn a_copy_of_several_starts_ago_is_refused_for_as_long_as_it_is_older() {
    simulate_with(406, EVERYWHERE, async |world| {
        put(&Client::mount(world, "a", NEW).await, "old", b'o').await;
        let copy = world.dump().await;
        for _ in 0..3 {
            world.restart_metadata_server().await;
            world.sleep(SETTLED).await;
        }
        world.start_on_copy(&copy).await;
        world.sleep(SETTLED).await;
        assert_eq!(serving(world), [0; 0]);
        let why = refused(world).await;
        let words = "it has obeyed epoch 4 of the metadata server, and this one has epoch 2: ";
        assert!(why.len() == 4 && why.iter().all(|why| why.starts_with(words)), "{why:?}");
        assert!(!is_known_to_be_a_copy(world).await);
        world.adopt().await;
        world.sleep(SETTLED).await;
        assert_eq!(serving(world), [0, 1, 2, 3]);
        assert!(holds_only(&Client::mount(world, "b", NEW).await, "old", b'o').await);
    });
}

/// The same epoch that data servers obey, and the same numbers: it is what they have served.
#[test]
fn a_copy_since_which_nothing_was_made_is_served() {
    simulate_with(407, EVERYWHERE, async |world| {
        put(&Client::mount(world, "a", NEW).await, "old", b'o').await;
        let copy = world.dump().await;
        world.start_on_copy(&copy).await;
        world.sleep(SETTLED).await;
        assert_eq!(serving(world), [0, 1, 2, 3]);
        assert!(holds_only(&Client::mount(world, "b", NEW).await, "old", b'o').await);
    });
}

fn remove(name: &str) -> Vec<nfs_argop4> {
    vec![nfs_argop4::OP_PUTROOTFH, nfs_argop4::OP_REMOVE(REMOVE4args { target: text(name) })]
}

fn rename(from: &str, to: &str) -> Vec<nfs_argop4> {
    let rename = nfs_argop4::OP_RENAME(RENAME4args { oldname: text(from), newname: text(to) });
    vec![nfs_argop4::OP_PUTROOTFH, nfs_argop4::OP_SAVEFH, rename]
}

fn look(handle: &nfs_fh4) -> Vec<nfs_argop4> {
    vec![putfh(handle), Client::getattr()]
}

/// What needs no data server would be done on the copy alone, and be gone with it.
#[test]
fn on_a_copy_of_before_clients_wait_with_small_files_too() {
    simulate_with(408, INLINE, async |world| {
        let first = Client::mount(world, "a", NEW).await;
        let old = first.open("old").await;
        assert_eq!(first.proxied_write(&old, 0, b"old").await, nfsstat4::NFS4_OK);
        first.close(&old).await;
        let copy = world.dump().await;
        for _ in 0..3 {
            world.restart_metadata_server().await;
            world.sleep(SETTLED).await;
        }
        world.start_on_copy(&copy).await;
        world.sleep(SETTLED).await;
        assert_eq!(serving(world), [0; 0]);
        // It mounts, and holds its lease.
        let client = Client::mount(world, "b", NEW).await;
        let refused = async |what: &str, ops: Vec<nfs_argop4>| {
            assert_eq!(client.once(ops).await.0, nfsstat4::NFS4ERR_DELAY, "{what}");
        };
        refused("OPEN that creates", Client::open_ops("new", OPEN4_SHARE_ACCESS_BOTH)).await;
        refused("OPEN", Client::open_ops("old", OPEN4_SHARE_ACCESS_READ)).await;
        let stateid = stateid4 { seqid: 0, other: [0; 12] };
        let read = nfs_argop4::OP_READ(READ4args { stateid, offset: 0, count: 100 });
        refused("READ", vec![putfh(&old.handle), read]).await;
        refused("REMOVE", remove("old")).await;
        refused("RENAME", rename("old", "gone")).await;
        refused("GETATTR", look(&old.handle)).await;
        drop(client);
        world.net.crash("b");

        world.adopt().await;
        world.sleep(SETTLED).await;
        let last = Client::mount(world, "c", NEW).await;
        let file = last.open("old").await;
        assert_eq!(&last.proxied_read(&file, 0, 100).await[..], b"old");
        world.check().await;
    });
}

/// Until a data server has come nobody knows what these metadata are.
#[test]
fn nothing_is_changed_after_a_start_before_a_data_server_is_heard() {
    simulate_with(409, INLINE, async |world| {
        let first = Client::mount(world, "a", NEW).await;
        let old = first.open("old").await;
        first.close(&old).await;
        let copy = world.dump().await;
        for _ in 0..3 {
            world.restart_metadata_server().await;
            world.sleep(SETTLED).await;
        }
        for n in 0..4 {
            world.crash_data_server(n).await;
        }
        world.start_on_copy(&copy).await;
        let client = Client::mount(world, "b", NEW).await;
        assert_eq!(client.once(look(&old.handle)).await.0, nfsstat4::NFS4_OK, "it is shown");
        assert_eq!(client.once(rename("old", "renamed")).await.0, nfsstat4::NFS4ERR_DELAY);
        world.start_refused(0).await;
        assert_eq!(client.once(rename("old", "renamed")).await.0, nfsstat4::NFS4ERR_DELAY);
        assert_eq!(client.once(look(&old.handle)).await.0, nfsstat4::NFS4ERR_DELAY);
    });
}

/// On its own store it waits for no data server for longer than one might serve on without having heard of it.
#[test]
fn names_are_changed_while_all_data_servers_are_away() {
    simulate_with(410, INLINE, async |world| {
        let first = Client::mount(world, "a", NEW).await;
        first.open("old").await;
        for n in 0..4 {
            world.crash_data_server(n).await;
        }
        world.restart_metadata_server().await;
        let client = Client::mount(world, "b", NEW).await;
        let began = world.env.clock.now();
        client.ok(rename("old", "renamed")).await;
        let took = world.env.clock.now() - began;
        assert!((15..120).contains(&took.as_secs()), "{took:?}");
        world.start_data_server(0).await;
        world.restart_metadata_server().await;
        let again = Client::mount(world, "c", NEW).await;
        while again.once(rename("renamed", "old")).await.0 == nfsstat4::NFS4ERR_GRACE {
            world.sleep(Duration::from_millis(100)).await;
        }
    });
}
