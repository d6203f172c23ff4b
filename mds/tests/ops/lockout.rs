//! What data servers refuse of clients that are evicted, or may not use an export any more: handles of layouts that they gave
//! back are good until their epoch is over.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::admin::evict;
use crate::exports::{add, read_only, rule, set};
use crate::harness::*;

const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;

/// A layout, given back; only whoever is not trusted keeps its handles.
async fn had_a_layout(client: &Client, name: &str) {
    let (fh, open) = client.open(name, BOTH, 0).await;
    let nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(given)) =
        client.last(vec![putfh(&fh), layoutget(open, RW)]).await
    else {
        panic!()
    };
    let back = layoutreturn(given.logr_stateid, layoutiomode4::LAYOUTIOMODE4_ANY);
    client.ok(vec![putfh(&fh), back, close(open)]).await;
}

/// Holders that a data server refuses everywhere, with the epoch up to which it does.
fn fenced_off(world: &mut World) -> Vec<(u32, u32)> {
    let of_all = |fence: &ctl_fence| fence.kind == ctl_fence_kind::FENCE_HOLDER;
    let fences = world.data_server().fences().into_iter().filter(of_all);
    fences.map(|fence| (fence.holder, fence.epoch)).collect()
}

/// Over some leases, in which these clients go on.
async fn a_while(world: &World, clients: &[&Client]) {
    for _ in 0..9 {
        world.sleep(Duration::from_secs(10)).await;
        for client in clients {
            client.compound(Vec::new()).await;
        }
    }
}

#[test]
fn an_evicted_client_is_fenced_off_what_it_gave_back() {
    simulate(1, async |mut world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        had_a_layout(&a, "f").await;
        had_a_layout(&b, "g").await;
        assert_eq!(evict(&world, a.id).await, ADMIN_EVICT_res::CTL_OK(0));
        a_while(&world, &[&b]).await;
        assert_eq!(fenced_off(&mut world).len(), 1, "of one of them");
        // As another client it begins anew.
        let anew = world.client("a").await;
        had_a_layout(&anew, "f").await;
    });
}

/// Nobody may be told that it is done before it is, nor is it forgotten.
#[test]
fn an_eviction_that_the_store_does_not_take_now_follows() {
    simulate(2, async |mut world: World| {
        let a = world.client("a").await;
        had_a_layout(&a, "f").await;
        world.db.set_faults(Faults { unavailable: 1.0, ..Faults::NONE });
        let refused = evict(&world, a.id).await;
        assert!(matches!(refused, ADMIN_EVICT_res::Default(ctl_status::CTL_ERR_AGAIN, _)), "{refused:?}");
        assert_eq!(fenced_off(&mut world), []);
        world.db.set_faults(Faults::NONE);
        a_while(&world, &[]).await;
        assert_eq!(fenced_off(&mut world).len(), 1);
    });
}

#[test]
fn who_may_do_less_is_fenced_off_what_it_gave_back() {
    let here = |world: &World| world.net.ip("a").to_string();
    let cases: [fn(&str) -> Vec<ctl_rule>; 3] = [
        |a| vec![rule("any"), read_only(a)],
        |a| vec![rule("any"), ctl_rule { sys: false, none: false, ..rule(a) }],
        |a| vec![rule("any"), ctl_rule { squash: ctl_squash::SQUASH_ROOT, ..rule(a) }],
    ];
    for narrow in cases {
        simulate(3, async |mut world: World| {
            let (a, b) = (world.client("a").await, world.client("b").await);
            a.mkdir("/", "d").await;
            add(&world, "/d", &[rule("any")]).await;
            had_a_layout(&a, "f").await;
            let (fh, open) = b.open("g", BOTH, 0).await;
            b.ok(vec![putfh(&fh), layoutget(open, RW)]).await;
            set(&world, "/d", &narrow(&here(&world))).await;
            a_while(&world, &[&a, &b]).await;
            let found = fenced_off(&mut world);
            assert_eq!(found.len(), 1, "of one of them: {found:?}");
            assert_eq!(b.callbacks().count(), 0, "the other one's layout stays");
            // What it is given from then on passes, and disturbs nobody.
            had_a_layout(&a, "f").await;
            a_while(&world, &[&a, &b]).await;
            assert_eq!(fenced_off(&mut world), found);
            // Nor does a change that takes nothing away.
            set(&world, "/d", &[rule("any")]).await;
            a_while(&world, &[&a, &b]).await;
            assert_eq!(fenced_off(&mut world), found);
        });
    }
}

/// It has the time that a recall has for what it holds yet, through whichever export it does.
#[test]
fn who_may_do_less_gives_back_the_rest_first() {
    simulate(4, async |mut world: World| {
        let a = world.client("a").await;
        a.mkdir("/", "d").await;
        add(&world, "/d", &[rule("any")]).await;
        let (fh, open) = a.open("f", BOTH, 0).await;
        let nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(given)) =
            a.last(vec![putfh(&fh), layoutget(open, RW)]).await
        else {
            panic!()
        };
        set(&world, "/d", &[read_only("any")]).await;
        until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(fenced_off(&mut world), []);
        let back = layoutreturn(given.logr_stateid, layoutiomode4::LAYOUTIOMODE4_ANY);
        a.ok(vec![putfh(&fh), back]).await;
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(fenced_off(&mut world).len(), 1);
        let cut = |fence: &ctl_fence| fence.kind == ctl_fence_kind::FENCE_HOLDER_FILE;
        assert!(!world.data_server().fences().iter().any(cut), "it gave it back");
    });
}

/// Of very many there is not a row each.
#[test]
fn when_many_may_do_less_all_older_handles_are_over() {
    simulate(5, async |mut world: World| {
        let a = world.client("a").await;
        a.mkdir("/", "d").await;
        had_a_layout(&a, "f").await;
        let mut many = vec![a];
        for n in 0..64 {
            many.push(world.client(&format!("c{n}")).await);
        }
        add(&world, "/d", &[rule("any")]).await;
        let before = world.data_server().oldest();
        set(&world, "/d", &[read_only("any")]).await;
        a_while(&world, &many.iter().collect::<Vec<_>>()).await;
        assert_eq!(fenced_off(&mut world), []);
        assert!(world.data_server().oldest() > before);
    });
}

/// It is asked for once, and not forgotten whichever of its steps the store refuses.
#[test]
fn a_retirement_that_the_store_does_not_take_now_follows() {
    simulate(6, async |mut world: World| {
        let a = world.client("a").await;
        a.mkdir("/", "d").await;
        let (fh, open) = a.open("f", BOTH, 0).await;
        let nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(given)) =
            a.last(vec![putfh(&fh), layoutget(open, RW)]).await
        else {
            panic!()
        };
        let mut many = Vec::new();
        for n in 0..65 {
            many.push(world.client(&format!("c{n}")).await);
        }
        add(&world, "/d", &[rule("any")]).await;
        let before = world.data_server().oldest();
        set(&world, "/d", &[read_only("any")]).await;
        // The next epoch has begun, and the older ones are waited for.
        until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
        let back = layoutreturn(given.logr_stateid, layoutiomode4::LAYOUTIOMODE4_ANY);
        a.ok(vec![putfh(&fh), back]).await;
        world.db.set_faults(Faults { unavailable: 1.0, ..Faults::NONE });
        world.sleep(Duration::from_secs(7)).await;
        assert_eq!(world.data_server().oldest(), before, "the store has not taken it");
        world.db.set_faults(Faults::NONE);
        many.push(a);
        for _ in 0..2 {
            a_while(&world, &many.iter().collect::<Vec<_>>()).await;
        }
        assert!(world.data_server().oldest() > before);
    });
}
