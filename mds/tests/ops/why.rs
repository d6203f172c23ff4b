//! What `sluice why` and `sluice status` say of clients whose data goes through the server. xdr/spec/control.x.

use std::time::Duration;

use sluice_mds::{Config, Network, Rule};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::admin::ask;
use crate::harness::*;
use crate::mirrors::{RW, devices, get};

async fn why(world: &World, path: &'static str) -> ADMIN_WHY_resok {
    match ask(world, ADMIN_WHY, &ADMIN_WHY_args { path: path.into(), client: 0 }).await {
        ADMIN_WHY_res::CTL_OK(found) => found,
        ADMIN_WHY_res::Default(_, reason) => panic!("{reason:?}"),
    }
}

fn way<'a>(found: &'a ADMIN_WHY_resok, client: &Client) -> &'a ctl_way {
    found.clients.iter().find(|way| way.client.client == client.id).unwrap()
}

fn codes(reasons: &[ctl_reason]) -> Vec<&str> {
    reasons.iter().map(|reason| std::str::from_utf8(&reason.code).unwrap()).collect()
}

fn words(reason: &ctl_reason) -> &str {
    std::str::from_utf8(&reason.words).unwrap()
}

async fn set_policy(world: &World, path: &'static str, policy: &'static str) {
    let args = ADMIN_POLICY_args { path: path.into(), policy: policy.into() };
    let set: ADMIN_POLICY_res = ask(world, ADMIN_POLICY, &args).await;
    assert!(matches!(set, ADMIN_POLICY_res::CTL_OK(_)));
}

#[test]
fn a_data_server_that_one_client_cannot_reach_is_named_for_it_alone() {
    simulate(2, async |world: World| {
        let (client, other) = (world.client("a").await, world.client("b").await);
        let (fh, open) = client.open("f", BOTH, 0).await;
        for _ in 0..2 {
            let (layout, body) = get(&client, &fh, open, RW).await.unwrap();
            client.ok(vec![putfh(&fh), layouterror(layout, devices(&body)[0], nfsstat4::NFS4ERR_NXIO)]).await;
            client.ok(vec![putfh(&fh), layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        }
        let found = why(&world, "/f").await;
        let unable = way(&found, &client);
        for verdict in [&unable.read, &unable.write] {
            assert_eq!(codes(verdict), ["unreachable-from-client"]);
            assert!(words(&verdict[0]).contains("data server 1 (10.0."), "{}", words(&verdict[0]));
            assert!(words(&verdict[0]).contains("firewall"));
        }
        let able = way(&found, &other);
        assert!(able.read.is_empty() && able.write.is_empty());
        world.sleep(Duration::from_secs(31)).await;
        client.ok(Vec::new()).await;
        assert!(way(&why(&world, "/f").await, &client).write.is_empty());
    });
}

#[test]
fn data_servers_that_do_not_serve_are_named() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        let (layout, _) = get(&client, &fh, open, RW).await.unwrap();
        let found = why(&world, "/f").await;
        assert_eq!(&way(&found, &client).holds[..], b"read-write");
        assert!(found.components.iter().all(|component| component.slots[0].data_server == 1));
        client.ok(vec![putfh(&fh), layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        world.net.partition("mds", "ds1");
        world.sleep(Duration::from_secs(20)).await;
        client.ok(Vec::new()).await;
        let found = why(&world, "/f").await;
        let way = way(&found, &client);
        assert_eq!(codes(&way.read), ["data-server-away"]);
        assert!(words(&way.write[0]).starts_with("data server 1 "), "{}", words(&way.write[0]));
    });
}

#[test]
fn exports_decide_who_may() {
    let root = Rule { read_only: true, ..Rule::new("10.0.0.3".parse::<Network>().unwrap()) };
    simulate_with(4, Config { root_export: vec![root], ..at_data_servers() }, async |world: World| {
        let (admin, stranger) = (world.client("admin").await, world.client("b").await);
        let found = why(&world, "/").await;
        assert!(found.directory);
        let way = |client| way(&found, client);
        assert_eq!((&way(&admin).export[..], way(&admin).rules.len()), (&b"/"[..], 1));
        assert_eq!(codes(&way(&admin).write), ["read-only-export"]);
        assert!(way(&admin).read.is_empty());
        assert_eq!((way(&stranger).export.len(), way(&stranger).rules.len()), (0, 0));
    });
}

#[test]
fn an_old_kernel_in_a_wide_directory_is_told_what_it_misses() {
    simulate(5, async |mut world: World| {
        world.add_data_server("ds2").await;
        let new = world.client("new").await;
        let old = world.old_client("old").await;
        new.mkdir("/", "w").await;
        for (policy, slow) in
            [("wide", "which is slow: stripes take a kernel of 6.18"), ("wide-any", "coarse enough")]
        {
            set_policy(&world, "/w", policy).await;
            let found = why(&world, "/w").await;
            assert_eq!(&found.policy[..], policy.as_bytes());
            assert_eq!(&way(&found, &new).shape[..], b"all stripes at once");
            let shape = String::from_utf8(way(&found, &old).shape.to_vec()).unwrap();
            assert!(shape.contains(slow), "{shape}");
        }
        // With mirrors it makes others, and those of new kernels it writes through the server.
        for policy in ["wide,mirrors=2", "wide-any,mirrors=2"] {
            set_policy(&world, "/w", policy).await;
            let found = why(&world, "/w").await;
            assert_eq!(&way(&found, &new).shape[..], b"all stripes at once");
            let shape = String::from_utf8(way(&found, &old).shape.to_vec()).unwrap();
            assert!(shape.contains("of files that it makes") && shape.contains("(segments)"), "{shape}");
        }
        set_policy(&world, "/w", "default,mirrors=2").await;
        let found = why(&world, "/w").await;
        assert_eq!(&way(&found, &old).shape[..], &way(&found, &new).shape[..], "one column for everybody");
    });
}

#[test]
fn a_path_that_is_not_there_is_said_so() {
    simulate(6, async |world: World| {
        let refused: ADMIN_WHY_res =
            ask(&world, ADMIN_WHY, &ADMIN_WHY_args { path: "/no".into(), client: 0 }).await;
        assert!(matches!(refused, ADMIN_WHY_res::Default(ctl_status::CTL_ERR_INVAL, _)));
    });
}

#[test]
fn the_doctor_hears_of_clocks_descriptors_refusals_and_reports() {
    simulate(7, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        let (layout, body) = get(&client, &fh, open, RW).await.unwrap();
        client.ok(vec![putfh(&fh), layouterror(layout, devices(&body)[0], nfsstat4::NFS4ERR_NOSPC)]).await;
        // A second data server with the first one's store.
        let dialler =
            sluice_rpc::Client::new(world.env.clone(), world.net.host("twin")).with_key(world.key.clone());
        let link = dialler.dial(world.addr).await.unwrap();
        let mut uuid = [1; 16];
        uuid[..4].copy_from_slice(&[10, 0, 0, 2]);
        let address = ctl_address { host: "10.9.9.9".into(), port: 2050 };
        let args = REGISTER_args {
            protocol: CTL_PROTOCOL,
            store: ctl_uuid(uuid),
            cluster: ctl_uuid::default(),
            incarnation: ctl_uuid::default(),
            addresses: vec![address],
            capacity: ctl_capacity::default(),
            version: "test".into(),
            newest_epoch: 0,
        };
        let answer: Option<REGISTER_res> = crate::data_server::call(&link, CONTROL_REGISTER, &args).await;
        assert!(
            matches!(answer, Some(REGISTER_res::Default(ctl_status::CTL_ERR_DUPLICATE, _))),
            "{answer:?}"
        );
        world.sleep(Duration::from_secs(2)).await;
        let ADMIN_DOCTOR_res::CTL_OK(found) = ask(&world, ADMIN_DOCTOR, &()).await else { panic!() };
        assert_eq!((found.machine.descriptors, found.machine.descriptors_most), (10, 1 << 20));
        let [machine] = &found.machines[..] else { panic!("{:?}", found.machines) };
        let behind = (found.machine.seconds - 1_000_000_000) * 1_000_000_000;
        assert!((machine.ahead_nanos + behind).abs() < 2_000_000_000, "{machine:?}");
        assert_eq!((machine.data_server, machine.machine.descriptors_most), (1, 1024));
        let [refused] = &found.refused[..] else { panic!("{:?}", found.refused) };
        assert_eq!(refused.address, world.net.ip("twin").to_string());
        assert!(refused.reason.starts_with(b"its store is registered from another live data server"));
        assert_eq!(refused.last_seconds, 2);
        assert_eq!(found.avoided, [ctl_avoided { client: client.id, data_server: 1, full: true }]);
    });
}
