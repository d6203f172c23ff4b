//! Limits hold, and trees do not nest, whatever happens at the same time.

use std::time::Duration;

use bytes::Bytes;
use sluice_kv::Faults;
use sluice_mds::Config;
use sluice_xdr::control::{ctl_quota_action, ctl_quota_kind};
use sluice_xdr::nfs4::*;

use crate::harness::*;
use crate::quota::*;

/// Of one read or commit of the store, at most.
const SLOW: Duration = Duration::from_millis(20);
const ROUNDS: u64 = 40;

fn slow(world: &World, slow: bool) {
    world.db.set_faults(Faults { latency: if slow { SLOW } else { Duration::ZERO }, ..Faults::NONE });
}

/// Another client of the user's.
async fn another(world: &World, host: &str) -> Client {
    let mut user = world.client(host).await;
    user.raw = user.raw.clone().with_user(USER, GROUP, &[OTHER_GROUP]);
    user
}

/// The status, once it is none that asks for patience.
async fn in_the_end(client: &Client, ops: &[nfs_argop4]) -> nfsstat4 {
    loop {
        match client.status(ops.to_vec()).await {
            nfsstat4::NFS4ERR_DELAY => client.raw.env.clock.sleep(Duration::from_millis(1)).await,
            status => return status,
        }
    }
}

/// One client empties a file, another writes what it had over again, a third takes the room that became free.
#[test]
fn a_write_waits_for_a_truncation_and_is_judged_by_what_that_left() {
    simulate_with(1, Config::default(), async |world: World| {
        let (_, user) = clients(&world).await;
        let (writer, taker) = (another(&world, "v").await, another(&world, "w").await);
        set(&world, OF_USER, (0, 1_000), NONE).await;
        for round in 0..ROUNDS {
            let (fh, open) = user.open(&format!("f{round}"), BOTH, 0).await;
            user.ok(vec![putfh(&fh), setattr(open, &size(900))]).await;
            let (_, opened) = writer.open(&format!("f{round}"), BOTH, 0).await;
            let (other, taken) = taker.open(&format!("g{round}"), BOTH, 0).await;
            slow(&world, true);
            let cut = [putfh(&fh), setattr(open, &size(0))];
            let data = Bytes::from_static(&[7; 900]);
            let write = WRITE4args { stateid: opened, offset: 0, stable: stable_how4::FILE_SYNC4, data };
            let write = [putfh(&fh), nfs_argop4::OP_WRITE(write)];
            let writing = async {
                world.sleep(Duration::from_millis(round)).await;
                in_the_end(&writer, &write).await
            };
            let take = [putfh(&other), setattr(taken, &size(950))];
            let taking = async {
                for _ in 0..20 {
                    if in_the_end(&taker, &take).await == OK {
                        break;
                    }
                    world.sleep(Duration::from_millis(1)).await;
                }
            };
            let (cut, written, ()) = tokio::join!(in_the_end(&user, &cut), writing, taking);
            slow(&world, false);
            assert_eq!(cut, OK, "{round}");
            let used = used(&world, OF_USER).await.1;
            assert!(used <= 1_000, "{round}: {used} bytes used, and the write was {written:?}");
            user.ok(vec![putfh(&fh), setattr(open, &size(0))]).await;
            taker.ok(vec![putfh(&other), setattr(taken, &size(0))]).await;
        }
    });
}

#[test]
fn a_file_that_grows_while_it_is_renamed_needs_room_for_all_of_it() {
    simulate(2, async |world: World| {
        let (root, _) = clients(&world).await;
        let mover = world.client("m").await;
        root.mkdir("/", "t").await;
        set(&world, of_tree("/t"), (0, 50), NONE).await;
        until_whole(&world, "/t").await;
        for round in 0..ROUNDS {
            let (fh, open) = root.open("f", BOTH, 0).await;
            root.ok(vec![putfh(&fh), setattr(open, &size(10))]).await;
            slow(&world, true);
            let grow = [putfh(&fh), setattr(open, &size(100))];
            let rename = [walk("/"), vec![savefh()], walk("/t"), vec![rename("f", "f")]].concat();
            let moving = async {
                world.sleep(Duration::from_millis(round)).await;
                in_the_end(&mover, &rename).await
            };
            let (grown, moved) = both(in_the_end(&root, &grow), moving).await;
            slow(&world, false);
            let used = used(&world, of_tree("/t")).await.1;
            assert!(used <= 50, "{round}: {used} bytes used; grown: {grown:?}, moved: {moved:?}");
            let directory = if moved == OK { "/t" } else { "/" };
            root.ok(vec![putfh(&fh), setattr(open, &size(0))]).await;
            root.ok(vec![putfh(&fh), close(open)]).await;
            mover.patient(at(directory, remove("f"))).await;
        }
    });
}

async fn is_tree(world: &World, path: &str) -> bool {
    let trees = quotas(world, all(ctl_quota_kind::QUOTA_TREE)).await.unwrap().quotas;
    trees.iter().any(|tree| tree.path[..] == *path.as_bytes())
}

/// A client moves the directory of a tree into one that an administrator makes a tree.
#[test]
fn trees_do_not_nest_whatever_is_renamed_meanwhile() {
    simulate(3, async |world: World| {
        let (root, _) = clients(&world).await;
        for round in 0..ROUNDS {
            let (inner, outer) = (format!("i{round}"), format!("o{round}"));
            root.mkdir("/", &inner).await;
            root.mkdir("/", &outer).await;
            set(&world, of_tree(&format!("/{inner}")), NONE, (0, 10)).await;
            until_whole(&world, &format!("/{inner}")).await;
            slow(&world, true);
            let path = format!("/{outer}");
            let making = change(&world, ctl_quota_action::QUOTA_SET, of_tree(&path), (NONE, (0, 10)), WEEK);
            let rename = [walk("/"), vec![savefh()], walk(&path), vec![rename(&inner, &inner)]].concat();
            let moving = async {
                world.sleep(Duration::from_millis(round * 2)).await;
                in_the_end(&root, &rename).await
            };
            let (made, moved) = both(making, moving).await;
            slow(&world, false);
            let nested = made.is_ok() && moved == OK;
            assert!(!nested, "{round}: a tree is in another one");
            match made {
                Ok(()) => assert_eq!(moved, nfsstat4::NFS4ERR_XDEV),
                Err(why) => {
                    assert!(why.contains("below"), "{why}");
                    // It is a directory as before.
                    while is_tree(&world, &path).await {
                        world.sleep(Duration::from_millis(10)).await;
                    }
                    root.mkdir(&path, "d").await;
                    assert_eq!(used(&world, of_tree(&format!("/{outer}/{inner}"))).await, (1, 0));
                }
            }
        }
        let report = sluice_namespace::check(&world.db.snapshot().await.unwrap()).await.unwrap();
        assert_eq!(report.problems, []);
    });
}
