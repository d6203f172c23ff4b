//! Delegations that were not returned, and whose client does not free them: it does not know of them. RFC 8881 §10.4.5, §18.46.3.

use std::time::Duration;

use sluice_state::lease::seq4_status;
use sluice_xdr::nfs4::*;

use crate::callbacks::Answer;
use crate::delegation::{opens, revoked, writer, writes};
use crate::harness::*;

const WANT_WRITE: u32 = BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG;

async fn is_delegated_again(world: &World, client: &Client) {
    world.sleep(world.config.delegation_quiet).await;
    let (_, _, given) = opens(client, open_create("g", b"o", WANT_WRITE, 0)).await;
    writes(&given);
}

/// Linux takes a DELEGRETURN without a reply for done.
#[test]
fn a_delegation_that_its_holder_does_not_know_is_not_told_of() {
    simulate(1, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (_, _, stateid) = writer(&a).await;
        world.sleep(Duration::from_secs(5)).await;
        a.callbacks().script(&[Answer::Status(nfsstat4::NFS4ERR_BADHANDLE); 1000]);
        let start = world.env.clock.now();
        revoked(&world, &a, &b, "f").await;
        assert!(world.env.clock.now().since(start) >= world.config.lease, "it had time to say otherwise");
        assert_eq!(a.flags().await, 0);
        assert_eq!(a.tested(&[stateid]).await, [nfsstat4::NFS4ERR_BAD_STATEID]);
        is_delegated_again(&world, &a).await;
    });
}

/// One that knows it, and has more to do than to return it in time, is told.
#[test]
fn who_promised_to_return_it_is_told_that_it_is_revoked() {
    simulate(2, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (_, _, stateid) = writer(&a).await;
        world.sleep(Duration::from_secs(5)).await;
        a.callbacks()
            .script(&[Answer::Status(nfsstat4::NFS4ERR_BADHANDLE), Answer::Status(nfsstat4::NFS4_OK)]);
        revoked(&world, &a, &b, "f").await;
        assert_eq!(a.flags().await, seq4_status::RECALLABLE_STATE_REVOKED);
        assert_eq!(a.tested(&[stateid]).await, [nfsstat4::NFS4ERR_DELEG_REVOKED]);
    });
}

#[test]
fn what_a_client_was_told_of_in_vain_for_some_leases_is_forgotten() {
    simulate(3, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (_, _, stateid) = writer(&a).await;
        revoked(&world, &a, &b, "f").await;
        let start = world.env.clock.now();
        while a.flags().await == seq4_status::RECALLABLE_STATE_REVOKED {
            assert!(world.env.clock.now().since(start) < 5 * world.config.lease, "for ever");
            world.sleep(world.config.lease / 3).await;
        }
        assert!(world.env.clock.now().since(start) > 2 * world.config.lease, "it had time to free it");
        assert_eq!(a.flags().await, 0);
        assert_eq!(a.tested(&[stateid]).await, [nfsstat4::NFS4ERR_BAD_STATEID]);
        is_delegated_again(&world, &a).await;
    });
}

/// Of what nobody has heard nothing is forgotten.
#[test]
fn a_client_that_was_silent_meanwhile_is_told() {
    simulate(4, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (_, _, stateid) = writer(&a).await;
        revoked(&world, &a, &b, "f").await;
        for _ in 0..2 {
            world.sleep(4 * world.config.lease).await;
            assert_eq!(a.flags().await, seq4_status::RECALLABLE_STATE_REVOKED);
        }
        a.ok(vec![free_stateid(stateid)]).await;
        assert_eq!(a.flags().await, 0);
    });
}
