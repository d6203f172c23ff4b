//! What is known of usage without asking the store is never less than what is used, however it came to be used.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_xdr::control::ctl_stat;
use sluice_xdr::nfs4::*;

use crate::harness::*;
use crate::layout_recall::get;
use crate::quota::{DQUOT, NONE, OF_USER, OK, USER, at, clients, set, used};

const LIMIT: u64 = 1_000;

/// A user with a limit, whose file "f" has 100 bytes, so that what it uses is known.
async fn known(world: &World) -> (Client, Client, nfs_fh4, stateid4) {
    let (root, user) = clients(world).await;
    let (fh, open) = user.open("f", BOTH, 0).await;
    set(world, OF_USER, (0, LIMIT), NONE).await;
    user.ok(vec![putfh(&fh), setattr(open, &size(100))]).await;
    (root, user, fh, open)
}

/// By more than there is room for with what came since.
async fn grows(user: &Client, (fh, open): (&nfs_fh4, stateid4)) -> nfsstat4 {
    user.status(vec![putfh(fh), setattr(open, &size(200))]).await
}

/// Another file of the user, which somebody writes to at data servers.
async fn written(world: &mut World, user: &Client, bytes: u64) -> (nfs_fh4, stateid4) {
    let (fh, open) = user.open("g", BOTH, 0).await;
    let layout = get(user, &fh, open).await;
    let stat = ctl_stat { exists: true, size: bytes, allocated_bytes: bytes, ..ctl_stat::default() };
    world.data_server().set_stat(stat);
    (fh, layout)
}

/// `cp -p`.
#[test]
fn what_a_setattr_of_times_finds_written_counts() {
    simulate(1, async |mut world: World| {
        let (_, user, fh, open) = known(&world).await;
        let (written, _) = written(&mut world, &user, 950).await;
        let at = settime4::SET_TO_CLIENT_TIME4(nfstime4 { seconds: 5, nseconds: 0 });
        let times = Attributes { time_modify_set: Some(at), ..Attributes::default() };
        user.ok(vec![putfh(&written), setattr(ANONYMOUS, &times)]).await;
        assert_eq!(grows(&user, (&fh, open)).await, DQUOT);
        assert_eq!(used(&world, OF_USER).await, (2, 1_050));
    });
}

/// Whom the limit does not bind.
#[test]
fn what_root_gives_and_lets_grow_counts() {
    simulate(2, async |world: World| {
        let (root, user, fh, open) = known(&world).await;
        let (given, by_root) = root.open("r", BOTH, 0).await;
        root.ok(vec![putfh(&given), setattr(by_root, &size(500))]).await;
        let owner = Attributes { owner: Some(USER.to_string().into()), ..Attributes::default() };
        root.ok(at("/r", setattr(ANONYMOUS, &owner))).await;
        root.ok(vec![putfh(&given), setattr(by_root, &size(950))]).await;
        assert_eq!(grows(&user, (&fh, open)).await, DQUOT);
        assert_eq!(used(&world, OF_USER).await, (2, 1_050));
        root.ok(vec![putfh(&given), setattr(by_root, &size(0))]).await;
        assert_eq!(grows(&user, (&fh, open)).await, OK);
    });
}

/// The store does not say whether the file has grown.
#[test]
fn what_may_be_used_is_looked_up() {
    for said in [true, false] {
        simulate(3, async |mut world: World| {
            let (root, user, fh, open) = known(&world).await;
            let (written, layout) = written(&mut world, &user, 950).await;
            world.db.set_faults(Faults { unknown_applied: 1.0, ..Faults::NONE });
            if said {
                user.status(vec![putfh(&written), layoutcommit(layout, 949)]).await;
            } else {
                root.status(at("/g", getattr(&[FATTR4_SIZE]))).await;
            }
            world.db.set_faults(Faults::NONE);
            assert_eq!(root.attributes("g", &[FATTR4_SIZE]).await.size, Some(950));
            world.sleep(Duration::from_millis(1)).await;
            assert_eq!(grows(&user, (&fh, open)).await, DQUOT, "{said}");
        });
    }
}
