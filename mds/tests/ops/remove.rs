//! REMOVE, and what becomes of the data files.

use std::collections::BTreeSet;
use std::time::Duration;

use sluice_kv::Faults;
use sluice_namespace::transfer::{everything, is_counted};
use sluice_xdr::control::ctl_stat;
use sluice_xdr::nfs4::*;

use crate::data_server::DataServer;
use crate::harness::*;

/// A file with data files: somebody had a layout of it.
pub async fn made(client: &Client, name: &str) {
    let (handle, stateid) = client.open(name, OPEN4_SHARE_ACCESS_BOTH, 0).await;
    let get = layoutget(stateid, layoutiomode4::LAYOUTIOMODE4_RW);
    let results = client.ok(vec![putfh(&handle), get]).await;
    let Some(nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(layout))) = results.last() else { panic!() };
    let back = layoutreturn(layout.logr_stateid, layoutiomode4::LAYOUTIOMODE4_ANY);
    client.ok(vec![putfh(&handle), back, close(stateid)]).await;
}

pub async fn unlink(client: &Client, name: &str) {
    client.ok(vec![putrootfh(), remove(name)]).await;
}

/// How many files have lost their data files.
fn files_gone(data_server: &DataServer) -> usize {
    data_server.removed().iter().flatten().map(|file| file.file).collect::<BTreeSet<_>>().len()
}

#[test]
fn data_files_go_at_once_and_those_of_many_files_together() {
    simulate(1, async |mut world: World| {
        let client = world.client("a").await;
        let data_server = world.data_server();
        for number in 0..40 {
            made(&client, &format!("f{number}")).await;
        }
        // Whatever looks through everything now and then has just done so.
        made(&client, "first").await;
        unlink(&client, "first").await;
        world.sleep(Duration::from_millis(5200)).await;
        let before = data_server.removed().len();
        assert_eq!(files_gone(&data_server), 1);
        for number in 0..20 {
            unlink(&client, &format!("f{number}")).await;
        }
        // Replaced, not removed.
        for number in 20..40 {
            let (from, to) = (format!("g{number}"), format!("f{number}"));
            client.open(&from, OPEN4_SHARE_ACCESS_BOTH, 0).await;
            client.ok(vec![putrootfh(), savefh(), rename(&from, &to)]).await;
        }
        world.sleep(Duration::from_millis(200)).await;
        assert_eq!(files_gone(&data_server), 41);
        let orders = data_server.removed().len() - before;
        assert!(orders <= 20, "{orders} orders for 40 files");
    });
}

#[test]
fn what_a_data_server_keeps_is_removed_later_although_other_files_go_all_the_while() {
    simulate(2, async |mut world: World| {
        let client = world.client("a").await;
        let data_server = world.data_server();
        made(&client, "kept").await;
        data_server.set_keeps(true);
        unlink(&client, "kept").await;
        world.sleep(Duration::from_secs(1)).await;
        data_server.set_keeps(false);
        let mut others = 0;
        for _ in 0..70 {
            made(&client, "other").await;
            unlink(&client, "other").await;
            others += 1;
            world.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(files_gone(&data_server), others + 1);
    });
}

/// Those who had them open do not come back, and the store is away now and then while they are looked through.
#[test]
fn unlinked_files_of_before_a_restart_go_though_the_store_fails() {
    simulate(5, async |mut world: World| {
        let client = world.client("a").await;
        for number in 0..30 {
            let name = format!("f{number}");
            client.open(&name, OPEN4_SHARE_ACCESS_BOTH, 0).await;
            unlink(&client, &name).await;
        }
        drop(client);
        world.restart().await;
        let orphans = async || {
            let report = sluice_namespace::check(&world.db.snapshot().await.unwrap()).await.unwrap();
            report.orphans
        };
        world.sleep(Duration::from_secs(50)).await;
        assert_eq!(orphans().await, 30, "they are not touched while they may be reclaimed");
        let slow = Faults { latency: Duration::from_millis(20), ..Faults::NONE };
        for _ in 0..30 {
            // Longer than any transaction is tried.
            world.db.set_faults(Faults { unavailable: 1.0, ..slow });
            world.sleep(Duration::from_secs(12)).await;
            world.db.set_faults(slow);
            world.sleep(Duration::from_millis(300)).await;
        }
        world.db.set_faults(Faults::NONE);
        world.sleep(Duration::from_secs(120)).await;
        assert_eq!(orphans().await, 0);
    });
}

/// One that cannot be read keeps no other.
#[test]
fn unlinked_files_of_before_a_restart_go_though_one_is_damaged() {
    simulate(6, async |mut world: World| {
        let client = world.client("a").await;
        let counted = async || {
            let rows = world.db.snapshot().await.unwrap().page(&everything(), usize::MAX).await.unwrap();
            rows.into_iter().map(|(key, _)| key).filter(|key| is_counted(key)).collect::<BTreeSet<_>>()
        };
        let before = counted().await;
        let mut first = None;
        for number in 0..4 {
            let name = format!("f{number}");
            client.open(&name, OPEN4_SHARE_ACCESS_BOTH, 0).await;
            unlink(&client, &name).await;
            // Its name is gone: that is the inode.
            first = first.or(counted().await.difference(&before).next().cloned());
        }
        let mut txn = world.db.begin();
        txn.set(first.unwrap(), &b"damaged"[..]);
        txn.commit().await.unwrap();
        drop(client);
        world.restart().await;
        world.sleep(Duration::from_secs(200)).await;
        let txn = world.db.begin();
        let left = sluice_namespace::Namespace::load(&txn).await.unwrap().unwrap();
        assert_eq!(left.orphans(&txn, None, 10).await.unwrap().len(), 1);
    });
}

/// How a file loses its last name.
fn unnamings() -> [Vec<nfs_argop4>; 2] {
    [vec![putrootfh(), remove("f")], vec![putrootfh(), savefh(), rename("other", "f")]]
}

/// "f", open and perhaps being written to; beside it "other".
async fn writer(client: &Client) -> nfs_fh4 {
    client.open("other", BOTH, 0).await;
    let (fh, stateid) = client.open("f", BOTH, 0).await;
    client.ok(vec![putfh(&fh), layoutget(stateid, layoutiomode4::LAYOUTIOMODE4_RW)]).await;
    fh
}

/// What a data server says of a data file that was written to.
fn stat(size: u64) -> ctl_stat {
    ctl_stat { exists: true, size, allocated_bytes: 4096, last_write: 1, writes: 1 }
}

async fn reclaims(client: &Client, fh: &nfs_fh4) -> stateid4 {
    opened(&client.ok(vec![putfh(fh), open_previous(b"owner", BOTH, 0), getfh()]).await).1
}

async fn size_of(client: &Client, fh: &nfs_fh4) -> Option<u64> {
    looked(&client.last(vec![putfh(fh), getattr(&[FATTR4_SIZE])]).await).size
}

async fn grace_ends(world: &World, clients: &[&Client]) {
    for client in clients {
        client.ok(vec![reclaim_complete(false)]).await;
    }
    world.sleep(Duration::from_secs(3)).await;
}

async fn is_gone(client: &Client, fh: &nfs_fh4, data_server: &DataServer) {
    let status = client.status(vec![putfh(fh), getattr(&[FATTR4_SIZE])]).await;
    assert_eq!(status, nfsstat4::NFS4ERR_STALE);
    assert_eq!(files_gone(data_server), 1, "its space is given back");
}

/// §18.16.3, OPEN4_RESULT_PRESERVE_UNLINKED: also through the grace period, when nobody knows yet who has it open.
#[test]
fn what_loses_its_name_in_grace_is_kept_for_who_reclaims_it() {
    for (seed, unname) in (10..).zip(unnamings()) {
        simulate(seed, async |mut world: World| {
            let (a, b) = (world.client("a").await, world.client("b").await);
            let data_server = world.data_server();
            let fh = writer(&a).await;
            drop((a, b));
            world.restart().await;
            data_server.set_stat(stat(5));
            let (a, b) = (world.new_client("a").await, world.new_client("b").await);
            b.ok(unname.clone()).await;
            world.sleep(Duration::from_secs(3)).await;
            let open = reclaims(&a, &fh).await;
            assert_eq!((size_of(&a, &fh).await, files_gone(&data_server)), (Some(5), 0));
            a.ok(vec![putfh(&fh), close(open)]).await;
            world.sleep(Duration::from_secs(3)).await;
            assert_eq!(files_gone(&data_server), 0, "not before grace is over");
            grace_ends(&world, &[&a, &b]).await;
            is_gone(&a, &fh, &data_server).await;
        });
    }
}

#[test]
fn what_loses_its_name_in_grace_and_is_not_reclaimed_goes_with_grace() {
    for (seed, unname) in (20..).zip(unnamings()) {
        simulate(seed, async |mut world: World| {
            let a = world.client("a").await;
            let data_server = world.data_server();
            let fh = writer(&a).await;
            drop(a);
            world.restart().await;
            let a = world.new_client("a").await;
            a.ok(unname.clone()).await;
            assert_eq!(size_of(&a, &fh).await, Some(0));
            grace_ends(&world, &[&a]).await;
            is_gone(&a, &fh, &data_server).await;
        });
    }
}

/// The first who closes it in grace takes nothing from the others.
#[test]
fn an_orphan_is_kept_for_all_who_reclaim_it() {
    simulate(30, async |mut world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let data_server = world.data_server();
        let fh = writer(&a).await;
        b.open("f", BOTH, 0).await;
        unlink(&b, "f").await;
        drop((a, b));
        world.restart().await;
        data_server.set_stat(stat(5));
        let (a, b) = (world.new_client("a").await, world.new_client("b").await);
        let open = reclaims(&a, &fh).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        let open = reclaims(&b, &fh).await;
        assert_eq!(size_of(&b, &fh).await, Some(5), "what was written before the restart");
        grace_ends(&world, &[&a, &b]).await;
        assert_eq!((size_of(&b, &fh).await, files_gone(&data_server)), (Some(5), 0));
        b.ok(vec![putfh(&fh), close(open)]).await;
        world.sleep(Duration::from_secs(1)).await;
        is_gone(&b, &fh, &data_server).await;
    });
}

/// Nobody gives back what he holds for a change that is refused: for want of permission, or since it cannot be done.
#[test]
fn what_is_refused_of_names_and_attributes_calls_no_delegation_back() {
    simulate(6, async |world: World| {
        let (holder, root) = (world.client("holder").await, world.client("root").await);
        let (fh, _, held) = crate::delegation::writer(&holder).await;
        root.mkdir("/", "d").await;
        root.ok(vec![putrootfh(), lookup("d"), setattr(stateid4::default(), &mode(0o777))]).await;
        let user = root.over(root.raw.clone().with_user(500, 500, &[]));
        user.ok(vec![putrootfh(), lookup("d"), create(createtype4::NF4DIR, "own", &mode(0o755))]).await;
        let in_d = |mut first: Vec<nfs_argop4>, last| {
            first.extend([putrootfh(), lookup("d"), last]);
            first
        };
        let set = |sxa_option| {
            let (sxa_key, sxa_value) = ("name".into(), "value".into());
            vec![putfh(&fh), nfs_argop4::OP_SETXATTR(SETXATTR4args { sxa_option, sxa_key, sxa_value })]
        };
        let unset = || {
            let remove = REMOVEXATTR4args { rxa_name: "name".into() };
            vec![putfh(&fh), nfs_argop4::OP_REMOVEXATTR(remove)]
        };
        let saved = || vec![putfh(&fh), savefh()];
        let own = || vec![putrootfh(), lookup("d"), savefh(), putrootfh()];
        let (either, replace) = (setxattr_option4::SETXATTR4_EITHER, setxattr_option4::SETXATTR4_REPLACE);
        let denied = nfsstat4::NFS4ERR_ACCESS;
        for (who, ops, refused) in [
            (&user, vec![putrootfh(), remove("f")], denied),
            (&user, vec![putrootfh(), savefh(), rename("f", "g")], denied),
            (&user, in_d(vec![putrootfh(), savefh()], rename("f", "g")), denied),
            (&user, [own(), vec![rename("own", "f")]].concat(), denied),
            (&user, [saved(), vec![putrootfh(), link("g")]].concat(), denied),
            (&user, in_d(saved(), link("own")), nfsstat4::NFS4ERR_EXIST),
            (&user, set(either), denied),
            (&user, unset(), denied),
            (&root, [own(), vec![rename("own", "f")]].concat(), nfsstat4::NFS4ERR_EXIST),
            (&root, set(replace), nfsstat4::NFS4ERR_NOXATTR),
            (&root, unset(), nfsstat4::NFS4ERR_NOXATTR),
        ] {
            assert_eq!(who.status(ops.clone()).await, refused, "{:?}", ops.last());
            world.sleep(Duration::from_millis(10)).await;
            assert_eq!(holder.callbacks().count(), 0, "{:?}", ops.last());
        }
        // What is permitted goes on only without it.
        let returns = async {
            until(&world.env, || (holder.callbacks().count() > 0).then_some(())).await;
            holder.ok(vec![putfh(&fh), delegreturn(held)]).await;
        };
        both(root.patient(vec![putrootfh(), remove("f")]), returns).await;
    });
}
