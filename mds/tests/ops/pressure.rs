//! Clients that hold too much are asked for some of it (CB_RECALL_ANY), and recalled if that does not help.
//! RFC 8881 §20.6.

use std::time::Duration;

use sluice_mds::{Config, Limits};
use sluice_state::pressure::Bound;
use sluice_xdr::nfs4::*;

use crate::harness::*;

const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;

fn few() -> Config {
    let bound = Bound { per_client: 16, in_all: 40 };
    Config { limits: Limits { layouts: bound, delegations: bound, ..Limits::default() }, ..at_data_servers() }
}

struct Held {
    fh: nfs_fh4,
    open: stateid4,
    layout: stateid4,
}

async fn layout(client: &Client, name: &str) -> Result<Held, nfsstat4> {
    let (fh, open) = client.open(name, BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
    let mut reply = client.compound(vec![putfh(&fh), layoutget(open, RW)]).await;
    match reply.resarray.pop() {
        Some(nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok))) => {
            Ok(Held { fh, open, layout: ok.logr_stateid })
        }
        _ => Err(reply.status),
    }
}

async fn layouts(client: &Client, host: &str, count: usize) -> Vec<Held> {
    let mut held = Vec::new();
    for n in 0..count {
        held.push(layout(client, &format!("{host}{n}")).await.unwrap());
    }
    held
}

async fn give_back(client: &Client, held: &Held, stateid: stateid4) {
    let any = layoutiomode4::LAYOUTIOMODE4_ANY;
    client.ok(vec![putfh(&held.fh), layoutreturn(stateid, any)]).await;
}

/// Lets time pass for clients that keep their leases.
async fn pass(world: &World, clients: &[&Client], seconds: u64) {
    for _ in 0..seconds {
        world.sleep(Duration::from_secs(1)).await;
        for client in clients {
            client.compound(Vec::new()).await;
        }
    }
}

/// What the client was asked for: how many it may keep, of what.
fn asked(client: &Client) -> Vec<(u32, bitmap4)> {
    let received = client.callbacks().received().into_iter();
    received
        .filter_map(|callback| match callback.operation {
            nfs_cb_argop4::OP_CB_RECALL_ANY(args) => Some((args.craa_objects_to_keep, args.craa_type_mask)),
            _ => None,
        })
        .collect()
}

#[test]
fn near_its_bound_a_client_is_asked_once() {
    simulate_with(1, few(), async |world: World| {
        let client = world.client("a").await;
        let mut held = layouts(&client, "f", 13).await;
        pass(&world, &[&client], 10).await;
        assert_eq!(asked(&client), []);
        held.push(layout(&client, "one more").await.unwrap());
        pass(&world, &[&client], 50).await;
        let layouts = bitmap4::of(&[RCA4_TYPE_MASK_FF_LAYOUT_MIN, RCA4_TYPE_MASK_FF_LAYOUT_MAX]);
        assert_eq!(asked(&client), [(12, layouts)]);
        for held in held.drain(..2) {
            give_back(&client, &held, held.layout).await;
        }
        pass(&world, &[&client], 120).await;
        assert_eq!(client.callbacks().count(), 1, "it has done what it was asked for");
    });
}

#[test]
fn who_does_not_listen_is_recalled_and_what_does_not_come_is_revoked() {
    simulate_with(2, few(), async |world: World| {
        let client = world.client("a").await;
        let held = layouts(&client, "f", 16).await;
        // Linux would try again for two leases before each read and write, after LAYOUTTRYLATER.
        let beyond = layout(&client, "beyond").await.err();
        assert_eq!(beyond, Some(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE), "it goes through this server");
        pass(&world, &[&client], 70).await;
        assert_eq!(asked(&client).len(), 1);
        let mut recalled: Vec<CB_LAYOUTRECALL4args> = Vec::new();
        for asked in client.callbacks().layout_recalls() {
            if !recalled.contains(&asked) {
                recalled.push(asked);
            }
        }
        assert_eq!(recalled.len(), 4, "those of the oldest files, again and again");
        // One is given back; the others are taken.
        let layoutrecall4::LAYOUTRECALL4_FILE(first) = &recalled[0].clora_recall else { panic!() };
        let of = held.iter().find(|held| held.fh == first.lor_fh).unwrap();
        give_back(&client, of, first.lor_stateid).await;
        pass(&world, &[&client], 30).await;
        let taken = |held: &&Held| recalled[1..].iter().any(|recall| names(recall, &held.fh));
        for held in held.iter().filter(taken) {
            let any = layoutiomode4::LAYOUTIOMODE4_ANY;
            let status = client.status(vec![putfh(&held.fh), layoutreturn(held.layout, any)]).await;
            assert_ne!(status, nfsstat4::NFS4_OK);
        }
        assert_eq!(held.iter().filter(taken).count(), 3);
        layout(&client, "room again").await.unwrap();
    });
}

fn names(recall: &CB_LAYOUTRECALL4args, fh: &nfs_fh4) -> bool {
    matches!(&recall.clora_recall, layoutrecall4::LAYOUTRECALL4_FILE(file) if file.lor_fh == *fh)
}

#[test]
fn near_the_bound_of_all_those_with_the_most_are_asked() {
    simulate_with(3, few(), async |world: World| {
        let (a, b, c) = (world.client("a").await, world.client("b").await, world.client("c").await);
        for (client, host, count) in [(&a, "a", 13), (&b, "b", 13), (&c, "c", 9)] {
            layouts(client, host, count).await;
        }
        pass(&world, &[&a, &b, &c], 10).await;
        // 30 are to be left.
        assert_eq!([&a, &b].map(|client| asked(client)[0].0), [10, 10]);
        assert_eq!(asked(&c), []);
    });
}

#[test]
fn a_client_whose_lease_is_over_is_not_asked() {
    simulate_with(4, few(), async |world: World| {
        let (gone, here) = (world.client("gone").await, world.client("here").await);
        layouts(&gone, "g", 13).await;
        pass(&world, &[&here], 100).await;
        layouts(&here, "h", 13).await;
        // Its state is kept until it is in the way; with nine more it is.
        let third = world.client("c").await;
        layouts(&third, "c", 9).await;
        pass(&world, &[&here, &third], 10).await;
        assert_eq!(gone.callbacks().count(), 0);
        assert_eq!(layout(&third, "room").await.err(), None);
        assert_eq!(gone.compound(Vec::new()).await.status, nfsstat4::NFS4ERR_BADSESSION);
    });
}

#[test]
fn delegations_are_asked_for_by_their_own_types() {
    simulate_with(5, few(), async |world: World| {
        let client = world.client("a").await;
        let want = BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG;
        let mut given = Vec::new();
        for n in 0..14 {
            let (name, owner) = (format!("f{n}"), format!("o{n}"));
            let ops = vec![putrootfh(), open_create(&name, owner.as_bytes(), want, 0), getfh()];
            let results = client.ok(ops).await;
            let (fh, _) = opened(&results);
            let nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)) = &results[1] else { panic!() };
            let open_delegation4::OPEN_DELEGATE_WRITE(delegation) = &open.delegation else {
                panic!("{:?}", open.delegation)
            };
            given.push((fh, delegation.stateid));
        }
        pass(&world, &[&client], 10).await;
        let files = bitmap4::of(&[RCA4_TYPE_MASK_RDATA_DLG, RCA4_TYPE_MASK_WDATA_DLG]);
        assert_eq!(asked(&client), [(12, files)]);
        let (fh, stateid) = given.remove(5);
        client.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
        pass(&world, &[&client], 60).await;
        let received = client.callbacks().received();
        let recalls = received.iter().filter(|callback| {
            matches!(&callback.operation, nfs_cb_argop4::OP_CB_RECALL(args) if args.stateid == given[0].1)
        });
        assert_eq!(recalls.count(), 1);
        assert_eq!(received.len(), 2, "one too many, one recalled");
    });
}
