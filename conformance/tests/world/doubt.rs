//! Data servers are emptied and taken out while the metadata store does not say what became of a transaction: what it has
//! holds.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::nfsstat4;

use crate::balance;
use crate::client::{Client, RO, RW};
use crate::drain::{drain, drained, number, remove, server};
use crate::mirrors::home;
use crate::stage::{World, simulate_tuned, simulate_with};
use crate::{NEW, pattern};

const ONCE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
const UNKNOWN: Faults = Faults { unknown_applied: 1.0, ..Faults::NONE };
const AWAY: Faults = Faults { unavailable: 1.0, ..Faults::NONE };

/// Asked once, while the store is so.
async fn ask(world: &World, faults: Faults, n: usize, cancel: bool, limit: u64) -> ADMIN_DRAIN_res {
    world.set_faults(faults);
    let answer = world.admin(ADMIN_DRAIN, &ADMIN_DRAIN_args { id: number(n), cancel, limit }).await;
    world.set_faults(Faults::NONE);
    answer
}

fn is_not_known(answer: &ADMIN_DRAIN_res) -> bool {
    matches!(answer, ADMIN_DRAIN_res::Default(ctl_status::CTL_ERR_AGAIN, _))
}

/// Files of which the n-th data server has one at least.
async fn filled(world: &World, n: usize) -> Client {
    let client = Client::mount(world, "a", NEW).await;
    for file in 0.. {
        client.put_whole(&format!("f{file}"), &pattern(file, 5000)).await;
        if world.data_files(n) > 0 {
            break;
        }
    }
    // Its files are counted.
    server(world, n).await;
    world.sleep(Duration::from_secs(1)).await;
    client
}

#[test]
fn a_drain_goes_on_that_could_not_be_cancelled() {
    simulate_with(1, ONCE, async |world| {
        let gone = 1;
        filled(world, gone).await;
        drain(world, gone, 100).await.unwrap();
        assert!(is_not_known(&ask(world, AWAY, gone, true, 0).await));
        // Nobody asks for anything meanwhile.
        drained(world, gone).await;
        assert!(remove(world, gone, false, &[]).await.unwrap().removed);
    });
}

#[test]
fn a_data_server_takes_new_files_again_though_nobody_was_told_that_its_drain_was_cancelled() {
    simulate_with(2, ONCE, async |world| {
        let gone = 1;
        filled(world, gone).await;
        drain(world, gone, 1).await.unwrap();
        assert!(is_not_known(&ask(world, UNKNOWN, gone, true, 0).await));
        world.sleep(Duration::from_secs(20)).await;
        let row = server(world, gone).await.unwrap();
        assert_eq!((row.intent, row.drain.len()), (ctl_intent::INTENT_ACTIVE, 0));
        world.restart_metadata_server().await;
        assert_eq!(server(world, gone).await.unwrap().intent, ctl_intent::INTENT_ACTIVE);
    });
}

#[test]
fn a_drain_is_carried_out_though_nobody_was_told_that_it_began() {
    simulate_with(3, ONCE, async |world| {
        let gone = 1;
        filled(world, gone).await;
        assert!(is_not_known(&ask(world, UNKNOWN, gone, false, 0).await));
        drained(world, gone).await;
    });
}

#[test]
fn a_balance_is_carried_out_though_nobody_was_told_that_it_began() {
    simulate_with(4, ONCE, async |world| {
        filled(world, 1).await;
        world.set_faults(UNKNOWN);
        let why = balance::ask(world, ctl_balance_what::BALANCE_BEGIN, 0, 0).await.unwrap_err();
        world.set_faults(Faults::NONE);
        assert!(why.contains("does not answer"), "{why}");
        balance::ended(world).await;
    });
}

/// A data server that is removed with what it holds comes back before anybody was told that it is removed.
#[test]
fn what_was_removed_is_not_let_in_though_nobody_was_told_so() {
    let tune = |config: &mut sluice_mds::Config| {
        (config.policy, config.rebuild_after) = (ONCE, Duration::ZERO);
    };
    for by_others in [false, true] {
        simulate_tuned(5, tune, async |world| {
            let gone = 3;
            filled(world, gone).await;
            world.crash_data_server(gone).await;
            world.sleep(Duration::from_secs(40)).await;
            drain(world, gone, 0).await.unwrap();
            world.sleep(Duration::from_secs(60)).await;
            let files = remove(world, gone, true, &[]).await.unwrap().files;
            assert_eq!(files, 1);
            if by_others {
                world.strike_out(gone).await;
            } else {
                let args = ADMIN_REMOVE_args { id: number(gone), lost: true, agreed: vec![files] };
                world.set_faults(UNKNOWN);
                let _: ADMIN_REMOVE_res = world.admin(ADMIN_REMOVE, &args).await;
                world.set_faults(Faults::NONE);
            }
            world.start_refused(gone).await;
            assert!(server(world, gone).await.is_none());
            world.restart_metadata_server().await;
            assert!(server(world, gone).await.is_none());
        });
    }
}

/// Who aborted it would do so in the middle of a transaction, too.
#[test]
fn files_stay_on_their_way_when_the_others_cannot_be_looked_for() {
    const LONG: usize = 600_000;
    simulate_with(7, ONCE, async |world| {
        let (client, gone) = (Client::mount(world, "a", NEW).await, 1);
        let mut there = Vec::new();
        for n in 0..80_u64 {
            let name = format!("f{n}");
            client.put_whole(&name, &pattern(n, LONG)).await;
            let file = client.open(&name).await;
            let held = client.layout(&file, file.stateid, RO, 0).await;
            if home(world, &client, &held, 0).await == gone {
                there.push((n, file.clone()));
            }
            client.layout_return(&file, held.stateid).await;
            // One more than are moved at once.
            if there.len() == 9 {
                break;
            }
        }
        server(world, gone).await;
        world.sleep(Duration::from_secs(20)).await;
        // A piece of 256 KiB of one file after the other, each 32 s: the first to go on finds no store, and gives up.
        drain(world, gone, 8 << 10).await.unwrap();
        world.sleep(Duration::from_secs(5)).await;
        world.set_faults(AWAY);
        world.sleep(Duration::from_secs(73)).await;
        world.set_faults(Faults::NONE);
        let mut on_their_way = 0;
        for (_, file) in &there {
            match client.try_layout(file, file.stateid, RW, 0).await {
                Ok(held) => assert_eq!(client.layout_return(file, held.stateid).await, nfsstat4::NFS4_OK),
                Err(_) => on_their_way += 1,
            }
        }
        assert!(on_their_way > 4, "{on_their_way}");
        drain(world, gone, 0).await.unwrap();
        drained(world, gone).await;
        for (n, file) in &there {
            assert!(client.proxied_read(file, 0, 100_000).await[..] == pattern(*n, 100_000)[..]);
        }
    });
}
