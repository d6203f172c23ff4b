//! A metadata server that may not have its store any more (a cluster that is away for longer than its tenure): nobody is
//! answered, so nobody has been silent when it is back. RFC 8881 §8.3.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_mds::Config;
use sluice_rpc::CallError;
use sluice_xdr::nfs4::*;

use crate::harness::*;
use crate::layout_recall::get;

const AWAY: Faults = Faults { away: true, ..Faults::NONE };
const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);

fn config() -> Config {
    Config { lease: LEASE, ..at_data_servers() }
}

/// Both ask all the while, as clients do.
async fn away_for(world: &World, seconds: u32, clients: &[&Client]) {
    world.db.set_faults(AWAY);
    let until = world.env.clock.now() + seconds * SECOND;
    while world.env.clock.now() < until {
        for client in clients {
            assert_eq!(client.status(Vec::new()).await, nfsstat4::NFS4ERR_DELAY);
        }
        world.sleep(SECOND).await;
    }
    world.db.set_faults(Faults::NONE);
}

#[test]
fn who_asks_while_it_is_away_is_answered_when_it_is_back() {
    simulate_with(6, config(), async |world: World| {
        let a = world.client("a").await;
        world.db.set_faults(AWAY);
        let back = async {
            world.sleep(SECOND).await;
            world.db.set_faults(Faults::NONE);
        };
        let begun = world.env.clock.now();
        let (status, ()) = both(a.status(vec![putrootfh()]), back).await;
        assert_eq!(status, nfsstat4::NFS4_OK);
        assert!(world.env.clock.now().since(begun) < 2 * SECOND);
    });
}

#[test]
fn a_lock_is_not_lost_to_the_first_who_wants_it_afterwards() {
    simulate_with(1, config(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, mine) = a.open("f", BOTH, 0).await;
        let (_, theirs) = b.open("f", BOTH, 0).await;
        let all = (0, u64::MAX);
        a.ok(vec![putfh(&fh), lock_new(nfs_lock_type4::WRITE_LT, mine, b"la", all)]).await;
        away_for(&world, 30, &[&a, &b]).await;
        let wants = vec![putfh(&fh), lock_new(nfs_lock_type4::WRITE_LT, theirs, b"lb", all)];
        assert_eq!(b.status(wants.clone()).await, nfsstat4::NFS4ERR_DENIED);
        assert_eq!(a.flags().await, 0);
        // Time goes on: who is silent from now on makes room.
        for _ in 0..12 {
            world.sleep(SECOND).await;
            b.ok(Vec::new()).await;
        }
        b.ok(wants).await;
    });
}

/// Its return could not be answered meanwhile.
#[test]
fn a_layout_that_was_asked_back_just_before_is_not_revoked() {
    let config = Config { recall_timeout: 5 * SECOND, ..config() };
    simulate_with(2, config, async |mut world: World| {
        let data_server = world.data_server();
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, mine) = a.open("f", BOTH, 0).await;
        let (_, theirs) = b.open("f", BOTH, 0).await;
        let layout = get(&a, &fh, mine).await;
        let truncate = vec![putfh(&fh), setattr(theirs, &size(10))];
        let gives_back = async {
            until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
            away_for(&world, 30, &[&a]).await;
            a.ok(vec![putfh(&fh), layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        };
        both(b.patient(truncate), gives_back).await;
        assert_eq!(a.flags().await, 0);
        assert_eq!(data_server.fences().len(), 0);
    });
}

#[test]
fn grace_does_not_end_before_anybody_could_reclaim() {
    simulate_with(3, config(), async |mut world: World| {
        let a = world.client("a").await;
        let (fh, _) = a.open("f", BOTH, 0).await;
        world.restart().await;
        world.db.set_faults(AWAY);
        world.sleep(6 * LEASE).await;
        world.db.set_faults(Faults::NONE);
        let a = world.new_client("a").await;
        a.ok(vec![putfh(&fh), open_previous(b"owner", BOTH, 0), getfh()]).await;
    });
}

/// RFC 8881 §2.9.2: a client sends a request again when its connection is lost, and not before.
#[test]
fn who_is_not_answered_because_another_server_is_loses_the_connection() {
    simulate_with(4, config(), async |world: World| {
        let a = world.client("a").await;
        world.db.set_faults(Faults { latency: SECOND, ..Faults::NONE });
        let request = vec![sequence(a.session, 1, 1, false), putrootfh(), lookup("nothing")];
        let replaced = async {
            world.sleep(Duration::from_millis(20)).await;
            world.db.crash().unwrap();
        };
        let (reply, _) = both(a.raw.try_compound(request), replaced).await;
        assert!(matches!(reply, Err(CallError::Closed)), "{reply:?}");
    });
}
