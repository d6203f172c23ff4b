//! Many recalls at once: what waits for a client is little, and what has come back is not asked for. RFC 8881 §12.5.5, §20.3.

use std::time::Duration;

use sluice_mds::Config;
use sluice_xdr::nfs4::*;

use crate::callback::with_slots;
use crate::callbacks::Answer;
use crate::exports;
use crate::harness::*;

/// Layouts of a client that has frozen.
const MANY: usize = 2000;
/// Of one that is well.
const SOME: usize = 100;
/// Tasks that may be about all of these at a time.
const TASKS: usize = 200;

struct Held {
    fh: nfs_fh4,
    layout: stateid4,
}

async fn hold(client: &Client, prefix: &str, count: usize) -> Vec<Held> {
    let mut held = Vec::new();
    for n in 0..count {
        let access = BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
        let (fh, open) = client.open(&format!("{prefix}{n}"), access, 0).await;
        let got = client.last(vec![putfh(&fh), layoutget(open, layoutiomode4::LAYOUTIOMODE4_RW)]).await;
        let nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok)) = got else { panic!("{got:?}") };
        held.push(Held { fh, layout: ok.logr_stateid });
    }
    held
}

async fn give_back(client: &Client, held: &[Held]) {
    for held in held {
        let stateid = stateid4 { seqid: 0, ..held.layout };
        client.ok(vec![putfh(&held.fh), layoutreturn(stateid, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
    }
}

/// How many of these the server still knows.
async fn left(client: &Client, held: &[Held]) -> usize {
    let stateids: Vec<stateid4> = held.iter().map(|held| stateid4 { seqid: 0, ..held.layout }).collect();
    client.tested(&stateids).await.into_iter().filter(|status| *status == nfsstat4::NFS4_OK).count()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// An export narrows, or a data server is lost, while clients hold layouts of very many files.
#[test]
fn recalls_that_wait_for_a_client_are_no_tasks() {
    let config = Config { recall_timeout: Duration::from_secs(20), ..at_data_servers() };
    simulate_with(1, config, async |world: World| {
        let (frozen, well) = (world.client("frozen").await, world.client("well").await);
        let (lost, kept) = (hold(&frozen, "f", MANY).await, hold(&well, "w", SOME).await);
        assert_eq!((left(&frozen, &lost).await, left(&well, &kept).await), (MANY, SOME));
        frozen.callbacks().script(&[Answer::Silence; MANY]);
        let (before, mut most) = (tasks(), 0);
        let start = world.env.clock.now();
        let recalled = exports::set(&world, "/", &[exports::read_only("any")]).await;
        assert_eq!(recalled, u32::try_from(MANY + SOME).unwrap());
        until(&world.env, || {
            most = most.max(tasks().saturating_sub(before));
            (well.callbacks().count() == SOME).then_some(())
        })
        .await;
        let took = world.env.clock.now().since(start);
        assert!(took < Duration::from_secs(1), "{took:?}");
        give_back(&well, &kept).await;
        let took = world.env.clock.now().since(start);
        assert!(took < Duration::from_secs(19), "{took:?}");
        // Its connection counts as lost by then: it is asked again and again.
        while world.env.clock.now().since(start) < Duration::from_secs(19) {
            world.sleep(Duration::from_millis(10)).await;
            most = most.max(tasks().saturating_sub(before));
        }
        assert!(most < TASKS, "{most} tasks");
        assert_eq!(left(&frozen, &lost).await, MANY, "it has its time");
        world.sleep(Duration::from_secs(3)).await;
        assert_eq!(left(&frozen, &lost).await, 0);
        assert_eq!(well.callbacks().count(), SOME);
        assert_eq!(well.flags().await, 0);
    });
}

#[test]
fn what_came_back_before_its_turn_is_not_asked_for() {
    simulate(2, async |world: World| {
        let client = with_slots(&world, "a", 1).await;
        let held = hold(&client, "f", 50).await;
        client.callbacks().script(&[Answer::Late(Duration::from_secs(3), nfsstat4::NFS4_OK)]);
        let start = world.env.clock.now();
        exports::set(&world, "/", &[exports::read_only("any")]).await;
        until(&world.env, || (client.callbacks().count() > 0).then_some(())).await;
        give_back(&client, &held).await;
        assert!(world.env.clock.now().since(start) < Duration::from_secs(3));
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(client.callbacks().count(), 1);
    });
}
