//! Data servers of other releases (docs/control-protocol.md, Compatibility).

use std::time::Duration;

use sluice_xdr::control::*;

use crate::admin::ask;
use crate::data_server::call;
use crate::failed_store::Log;
use crate::harness::*;

/// A data server of a store of its own that speaks this version and no other.
async fn register(world: &World, host: &str, protocol: u32) -> REGISTER_res {
    register_as(world, host, protocol, 0).await
}

/// One that refuses handles of capability epochs before this one.
async fn register_as(world: &World, host: &str, protocol: u32, newest_epoch: u32) -> REGISTER_res {
    let dialler =
        sluice_rpc::Client::new(world.env.clone(), world.net.host(host)).with_key(world.key.clone());
    let link = dialler.dial(world.addr).await.unwrap();
    let args = REGISTER_args { protocol, newest_epoch, ..arguments(protocol as u8 + 100) };
    call(&link, CONTROL_REGISTER, &args).await.unwrap()
}

/// Of a data server of this store, at the address that all of them have here.
fn arguments(store: u8) -> REGISTER_args {
    REGISTER_args {
        protocol: CTL_PROTOCOL,
        store: ctl_uuid([store; 16]),
        cluster: ctl_uuid::default(),
        incarnation: ctl_uuid::default(),
        addresses: vec![ctl_address { host: "10.9.9.9".into(), port: 2050 }],
        capacity: ctl_capacity::default(),
        version: "other".into(),
        newest_epoch: 0,
    }
}

#[test]
fn data_servers_of_every_version_that_is_spoken_are_let_in() {
    simulate(1, async |world: World| {
        for protocol in CTL_PROTOCOL_OLDEST..=CTL_PROTOCOL {
            let answer = register(&world, &format!("v{protocol}"), protocol).await;
            assert!(matches!(answer, REGISTER_res::CTL_OK(_)), "{protocol}: {answer:?}");
        }
        let ADMIN_STATUS_res::CTL_OK(status) = ask(&world, ADMIN_STATUS, &()).await else { panic!() };
        assert_eq!(status.data_servers.iter().filter(|ds| ds.version == "other").count(), 2);
    });
}

#[test]
fn one_that_is_too_old_or_too_new_is_told_which_is_the_older() {
    simulate(2, async |world: World| {
        for (protocol, host) in [(CTL_PROTOCOL_OLDEST - 1, "old"), (CTL_PROTOCOL + 1, "new")] {
            let REGISTER_res::Default(ctl_status::CTL_ERR_VERSION, why) =
                register(&world, host, protocol).await
            else {
                panic!("version {protocol} was let in")
            };
            let wanted = format!(
                "it speaks version {protocol} of the control protocol, the metadata server \
                 {CTL_PROTOCOL_OLDEST} to {CTL_PROTOCOL}: upgrade the older one"
            );
            assert_eq!(why, wanted);
        }
        // `sluice doctor` hears of both.
        let ADMIN_DOCTOR_res::CTL_OK(told) = ask(&world, ADMIN_DOCTOR, &()).await else { panic!() };
        assert_eq!(told.refused.len(), 2);
    });
}

/// It served metadata that these are an older copy of. What it is given then, it does not refuse.
#[test]
fn one_that_has_retired_later_epochs_is_given_one_behind_them() {
    simulate(4, async |world: World| {
        let at = async |newest| match register_as(&world, "ds9", CTL_PROTOCOL, newest).await {
            REGISTER_res::CTL_OK(granted) => (granted.capability_epoch, granted.oldest_epoch),
            REGISTER_res::Default(status, why) => panic!("{status:?} {why:?}"),
        };
        let (current, oldest) = at(0).await;
        assert_eq!(at(current).await, (current, oldest), "as it is after each retirement");
        let later = current + 5000;
        assert_eq!(at(later).await, (later + 1, oldest));
        assert_eq!(at(current).await, (later + 1, oldest));
        // 16 bits, as serial numbers: that one is older.
        assert_eq!(at((current + 0xd000) & 0xffff).await, (later + 1, oldest));
    });
}

#[test]
fn one_that_has_retired_far_later_epochs_is_told_so() {
    simulate(5, async |world: World| {
        let REGISTER_res::Default(ctl_status::CTL_ERR_INVAL, why) =
            register_as(&world, "ds9", CTL_PROTOCOL, 0x5000).await
        else {
            panic!("it was let in")
        };
        assert_eq!(why, "it knows of far newer metadata than these: were they loaded from a very old dump?");
    });
}

#[test]
fn one_that_goes_on_asking_is_logged_once() {
    simulate(4, async |world: World| {
        let (log, _logged) = Log::of_this_thread();
        let refused = || log.lines().iter().filter(|line| line.contains("a data server was refused")).count();
        for _ in 0..50 {
            register(&world, "old", CTL_PROTOCOL_OLDEST - 1).await;
            world.sleep(Duration::from_secs(5)).await;
        }
        assert_eq!(refused(), 1);
        // Another reason, another host, and one that had been quiet.
        register(&world, "old", CTL_PROTOCOL + 1).await;
        register(&world, "new", CTL_PROTOCOL + 1).await;
        assert_eq!(refused(), 3);
        world.sleep(Duration::from_secs(601)).await;
        register(&world, "new", CTL_PROTOCOL + 1).await;
        assert_eq!(refused(), 4);
    });
}

#[test]
fn two_at_one_address_are_warned_of() {
    simulate(6, async |world: World| {
        let (log, _logged) = Log::of_this_thread();
        let warned = || log.lines().iter().filter(|line| line.contains("the same address")).count();
        let dialler =
            sluice_rpc::Client::new(world.env.clone(), world.net.host("ds9")).with_key(world.key.clone());
        let mut links = Vec::new();
        for (store, elsewhere, wanted) in [(1, false, 0), (2, true, 0), (3, false, 1)] {
            let link = dialler.dial(world.addr).await.unwrap();
            let mut args = arguments(store);
            args.addresses[0].port += u32::from(elsewhere);
            let answer: REGISTER_res = call(&link, CONTROL_REGISTER, &args).await.unwrap();
            assert!(matches!(answer, REGISTER_res::CTL_OK(_)), "{answer:?}");
            assert_eq!(warned(), wanted);
            links.push(link);
        }
    });
}

#[test]
fn who_asks_first_hears_what_is_spoken() {
    simulate(3, async |world: World| {
        let dialler =
            sluice_rpc::Client::new(world.env.clone(), world.net.host("ds9")).with_key(world.key.clone());
        let link = dialler.dial(world.addr).await.unwrap();
        // Whatever it speaks itself.
        let theirs = ctl_versions { oldest: 9, newest: 12 };
        let ours: ctl_versions = call(&link, CONTROL_VERSIONS, &theirs).await.unwrap();
        assert_eq!(ours, ctl_versions { oldest: CTL_PROTOCOL_OLDEST, newest: CTL_PROTOCOL });
    });
}

/// And one that tells no marks, as one of the release before, is let in whatever was known of its store.
#[test]
fn one_whose_store_had_come_further_is_refused_and_not_after_it_was_accepted() {
    simulate(7, async |mut world: World| {
        let link = async |world: &World| {
            let dialler =
                sluice_rpc::Client::new(world.env.clone(), world.net.host("ds9")).with_key(world.key.clone());
            dialler.dial(world.addr).await.unwrap()
        };
        let first = link(&world).await;
        let new: REGISTER_res = call(&first, CONTROL_REGISTER, &arguments(9)).await.unwrap();
        let REGISTER_res::CTL_OK(REGISTER_resok { cluster, store_id, .. }) = new else { panic!("{new:?}") };
        let store = ctl_uuid([9; 16]);
        let tell = async |link: &sluice_rpc::Connection, mark| -> TIDE_res {
            call(link, CONTROL_TIDE, &TIDE_args { store, cluster, mark }).await.unwrap()
        };
        for mark in [0, 811, 812, 815, 815] {
            assert_eq!(tell(&first, mark).await, TIDE_res::CTL_OK(mark));
        }
        // Beside the one that is here.
        let other = link(&world).await;
        assert!(matches!(tell(&other, 812).await, TIDE_res::Default(ctl_status::CTL_ERR_INVAL, _)));
        assert_eq!(tell(&first, 816).await, TIDE_res::CTL_OK(816));
        first.close();
        other.close();

        let arguments = REGISTER_args { cluster, ..arguments(9) };
        world.restart().await;
        let second = link(&world).await;
        let TIDE_res::Default(ctl_status::CTL_ERR_INVAL, why) = tell(&second, 812).await else {
            panic!("it is let in")
        };
        let why = String::from_utf8(why.to_vec()).unwrap();
        assert!(why.contains("(mark 812 where 816 was confirmed at "), "{why}");
        let answer: REGISTER_res = call(&second, CONTROL_REGISTER, &arguments).await.unwrap();
        assert!(matches!(answer, REGISTER_res::Default(ctl_status::CTL_ERR_INVAL, _)), "{answer:?}");
        let accepted = async |world: &World| loop {
            let args = ADMIN_ACCEPT_OLDER_args { id: store_id };
            match ask(world, ADMIN_ACCEPT_OLDER, &args).await {
                ADMIN_ACCEPT_OLDER_res::CTL_OK(done) => return (done.mark, done.files),
                ADMIN_ACCEPT_OLDER_res::Default(ctl_status::CTL_ERR_AGAIN, _) => {
                    world.sleep(Duration::from_secs(1)).await;
                }
                ADMIN_ACCEPT_OLDER_res::Default(status, why) => panic!("{status:?} {why:?}"),
            }
        };
        assert_eq!(accepted(&world).await, (812, 0));
        // Nobody else's.
        assert!(matches!(tell(&second, 811).await, TIDE_res::Default(..)));
        assert_eq!(tell(&second, 812).await, TIDE_res::CTL_OK(816));
        assert_eq!(tell(&second, 817).await, TIDE_res::CTL_OK(817));
        let REGISTER_res::CTL_OK(granted) = call(&second, CONTROL_REGISTER, &arguments).await.unwrap() else {
            panic!("it is refused still")
        };
        assert_eq!(granted.oldest_epoch, granted.capability_epoch, "whom it refused it does not know");
        second.close();
        // Not twice.
        let third = link(&world).await;
        assert!(matches!(tell(&third, 812).await, TIDE_res::Default(..)));
        third.close();

        world.restart().await;
        let older = link(&world).await;
        let answer: REGISTER_res = call(&older, CONTROL_REGISTER, &arguments).await.unwrap();
        assert!(matches!(answer, REGISTER_res::CTL_OK(_)), "{answer:?}");
    });
}
