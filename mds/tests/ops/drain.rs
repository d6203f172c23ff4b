//! Data servers that are emptied: what clients are given meanwhile, and what is refused. The data servers here copy
//! nothing; conformance/tests/world/drain.rs has those that do.

use std::time::Duration;

use sluice_mds::Config;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::admin::ask;
use crate::harness::*;
use crate::mirrors::{RO, RW, devices, get};

fn small(mirrors: u8) -> Config {
    Config {
        policy: LayoutPolicy { shape: Shape::Small, mirrors, inline: 0, class: None },
        ..Config::default()
    }
}

async fn drain(world: &World, id: u32, cancel: bool) -> Result<(), String> {
    loop {
        match ask(world, ADMIN_DRAIN, &ADMIN_DRAIN_args { id, cancel, limit: 0 }).await {
            ADMIN_DRAIN_res::CTL_OK => return Ok(()),
            ADMIN_DRAIN_res::Default(ctl_status::CTL_ERR_AGAIN, _) => {}
            ADMIN_DRAIN_res::Default(_, why) => return Err(String::from_utf8(why.to_vec()).unwrap()),
        }
        world.sleep(Duration::from_millis(100)).await;
    }
}

async fn intent(world: &World, id: u32) -> ctl_intent {
    match ask(world, ADMIN_SERVERS, &()).await {
        ADMIN_SERVERS_res::CTL_OK(all) => all.servers.iter().find(|s| s.status.id == id).unwrap().intent,
        other => panic!("{other:?}"),
    }
}

async fn drained(world: &World, id: u32) {
    for _ in 0..100 {
        if intent(world, id).await == ctl_intent::INTENT_DRAINED {
            return;
        }
        world.sleep(Duration::from_secs(1)).await;
    }
    panic!("not drained");
}

#[test]
fn new_files_go_elsewhere_from_the_answer_on_and_after_a_restart() {
    simulate_with(1, small(1), async |mut world: World| {
        world.add_data_server("ds2").await;
        let client = world.client("a").await;
        let placed = async |client: &Client, name: &str| {
            let (fh, open) = client.open(name, BOTH, 0).await;
            devices(&get(client, &fh, open, RW).await.unwrap().1).remove(0)
        };
        // They take turns.
        let before = [placed(&client, "a").await, placed(&client, "b").await];
        assert_ne!(before[0], before[1]);
        drain(&world, 1, false).await.unwrap();
        let stays = placed(&client, "c").await;
        for name in ["d", "e", "f"] {
            assert_eq!(placed(&client, name).await, stays);
        }
        world.restart().await;
        // Grace, and the lease of who was there before, are over.
        world.sleep(Duration::from_secs(200)).await;
        let client = world.client("b").await;
        assert_eq!(intent(&world, 1).await, ctl_intent::INTENT_DRAINING);
        let after = placed(&client, "g").await;
        assert_eq!(placed(&client, "h").await, after);
        drain(&world, 1, true).await.unwrap();
        assert_eq!(intent(&world, 1).await, ctl_intent::INTENT_ACTIVE);
        assert_ne!(placed(&client, "i").await, placed(&client, "j").await);
    });
}

/// Nothing is to be copied, so that no data server is asked for more than these can.
#[test]
fn what_nobody_has_seen_is_named_elsewhere_and_then_it_is_drained() {
    simulate_with(2, small(1), async |mut world: World| {
        world.add_data_server("ds2").await;
        let client = world.client("a").await;
        let mut files = Vec::new();
        for name in ["a", "b", "c", "d"] {
            files.push(client.open(name, BOTH, 0).await);
        }
        drain(&world, 1, false).await.unwrap();
        drained(&world, 1).await;
        let mut homes = Vec::new();
        for (fh, open) in &files {
            homes.extend(devices(&get(&client, fh, *open, RO).await.unwrap().1));
        }
        homes.dedup();
        assert_eq!(homes.len(), 1, "all are where they stay");
        let args = ADMIN_REMOVE_args { id: 1, lost: false, agreed: Vec::new() };
        let removed: ADMIN_REMOVE_res = ask(&world, ADMIN_REMOVE, &args).await;
        assert!(matches!(removed, ADMIN_REMOVE_res::CTL_OK(ADMIN_REMOVE_resok { removed: true, .. })));
        let again: ADMIN_REMOVE_res = ask(&world, ADMIN_REMOVE, &args).await;
        let ADMIN_REMOVE_res::Default(ctl_status::CTL_ERR_INVAL, why) = again else { panic!("{again:?}") };
        assert_eq!(&why[..], b"data server 1 was removed");
        // It tries again and again, and is told why not.
        world.sleep(Duration::from_secs(5)).await;
        let ADMIN_DOCTOR_res::CTL_OK(told) = ask(&world, ADMIN_DOCTOR, &()).await else { panic!() };
        let why = String::from_utf8_lossy(&told.refused[0].reason).into_owned();
        assert!(why.contains("removed from this installation"), "{why}");
    });
}

#[test]
fn what_would_lose_data_is_refused_in_words() {
    simulate_with(3, small(2), async |mut world: World| {
        assert!(drain(&world, 1, false).await.unwrap_err().contains("no other data server"));
        world.add_data_server("ds2").await;
        let few = drain(&world, 1, false).await.unwrap_err();
        assert!(few.contains("2 mirrors") && few.contains("only 1"), "{few}");
        assert!(drain(&world, 7, false).await.unwrap_err().contains("no data server 7"));
        assert!(drain(&world, 1 << 20, false).await.unwrap_err().contains("sluice ds list"));
        assert!(drain(&world, 1, true).await.unwrap_err().contains("not being drained"));
        let asked = |lost| ADMIN_REMOVE_args { id: 1, lost, agreed: vec![0] };
        for (lost, want) in [(false, "drain it first"), (true, "a moment ago")] {
            let answer: ADMIN_REMOVE_res = ask(&world, ADMIN_REMOVE, &asked(lost)).await;
            let ADMIN_REMOVE_res::Default(ctl_status::CTL_ERR_INVAL, why) = answer else {
                panic!("{answer:?}")
            };
            assert!(String::from_utf8_lossy(&why).contains(want));
        }
        assert_eq!(intent(&world, 1).await, ctl_intent::INTENT_ACTIVE);
    });
}

/// These data servers never say what they hold: the holder is asked all the same.
#[test]
fn layouts_that_name_it_are_recalled() {
    simulate_with(4, small(1), async |mut world: World| {
        world.add_data_server("ds2").await;
        let client = world.client("a").await;
        let (fh, open) = client.open("a", BOTH, 0).await;
        let (_, there) = get(&client, &fh, open, RW).await.unwrap();
        let (other, opened) = client.open("b", BOTH, 0).await;
        let (_, here) = get(&client, &other, opened, RW).await.unwrap();
        assert_ne!(devices(&there), devices(&here));
        let all = [(devices(&there), fh), (devices(&here), other)];
        // Data server 1 is the one with the smaller device ID.
        let moved = all.iter().min_by_key(|(devices, _)| devices[0].0).unwrap();
        drain(&world, 1, false).await.unwrap();
        until(&world.env, || (client.callbacks().count() >= 1).then_some(())).await;
        world.sleep(Duration::from_secs(3)).await;
        for recall in client.callbacks().layout_recalls() {
            let layoutrecall4::LAYOUTRECALL4_FILE(recalled) = recall.clora_recall else { panic!() };
            assert_eq!(recalled.lor_fh, moved.1, "the other one is left alone");
        }
    });
}
