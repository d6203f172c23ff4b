//! REMOVE, and what becomes of the data files.

use std::collections::BTreeSet;
use std::time::Duration;

use sluice_kv::Faults;
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
