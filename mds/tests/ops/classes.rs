//! Classes of data servers: which of them files are placed on, and what commands are told. docs/adr/0041. The data servers here
//! hold nothing; conformance/tests/world/classes.rs has those that do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_mds::Config;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::admin::ask;
use crate::data_server::DataServer;
use crate::failed_store::Log;
use crate::harness::*;
use crate::mirrors::{RW, get};

const ONCE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };

fn simulate(seed: u64, policy: LayoutPolicy, test: impl AsyncFn(World)) {
    simulate_with(seed, Config { policy, ..Config::default() }, test);
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn class(world: &World, id: u32, class: &'static str) -> Result<(String, u32), String> {
    match ask(world, ADMIN_CLASS, &ADMIN_CLASS_args { id, class: class.into() }).await {
        ADMIN_CLASS_res::CTL_OK(ok) => Ok((words(&ok.before), ok.left)),
        ADMIN_CLASS_res::Default(_, why) => Err(words(&why)),
    }
}

async fn classes(world: &World) -> Vec<(u32, String)> {
    let told: ADMIN_CLASSES_resok = ask(world, ADMIN_CLASSES, &()).await;
    told.servers.iter().map(|server| (server.id, words(&server.class))).collect()
}

async fn policy(world: &World, path: &'static str, set: &'static str) -> Result<String, String> {
    match ask(world, ADMIN_POLICY, &ADMIN_POLICY_args { path: path.into(), policy: set.into() }).await {
        ADMIN_POLICY_res::CTL_OK(policy) => Ok(words(&policy)),
        ADMIN_POLICY_res::Default(_, why) => Err(words(&why)),
    }
}

/// Of all parts of a file.
async fn homes(world: &World, path: &str) -> BTreeSet<u32> {
    let args = ADMIN_WHY_args { path: path.to_owned().into(), client: 0 };
    let ADMIN_WHY_res::CTL_OK(found) = ask(world, ADMIN_WHY, &args).await else { panic!("{path}") };
    found.components.iter().flat_map(|component| &component.slots).map(|slot| slot.data_server).collect()
}

fn making(directory: &str, name: &str) -> Vec<nfs_argop4> {
    let mut ops = walk(directory);
    ops.extend([open_create(name, b"o", BOTH, 0), getfh()]);
    ops
}

/// Where so many new files of a directory are.
async fn placed(world: &World, client: &Client, directory: &str, round: &str) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    for n in 0..6 {
        let name = format!("{round}{n}");
        client.ok(making(directory, &name)).await;
        all.extend(homes(world, &format!("{directory}/{name}")).await);
    }
    all
}

fn ids(ids: &[u32]) -> BTreeSet<u32> {
    ids.iter().copied().collect()
}

/// Data servers 1 and 2 without a class, 3 and 4 of class archive, and a directory for these.
async fn tiers(world: &mut World) -> (Client, Vec<Arc<DataServer>>) {
    let mut servers = vec![world.data_server()];
    for host in ["ds2", "ds3", "ds4"] {
        servers.push(world.add_data_server(host).await);
    }
    for id in [3, 4] {
        class(world, id, "archive").await.unwrap();
    }
    let client = world.client("a").await;
    client.mkdir("", "cold").await;
    assert!(
        policy(world, "/cold", "small,mirrors=1,class=archive").await.unwrap().ends_with(",class=archive")
    );
    (client, servers)
}

async fn drain(world: &World, id: u32) -> Result<(), String> {
    let args = ADMIN_DRAIN_args { id, cancel: false, limit: 0 };
    loop {
        match ask(world, ADMIN_DRAIN, &args).await {
            ADMIN_DRAIN_res::CTL_OK => return Ok(()),
            ADMIN_DRAIN_res::Default(ctl_status::CTL_ERR_AGAIN, _) => {}
            ADMIN_DRAIN_res::Default(_, why) => return Err(words(&why)),
        }
        world.sleep(Duration::from_millis(100)).await;
    }
}

/// Takes out one that is gone with so many files.
async fn remove_lost(world: &World, id: u32, files: u64) {
    let args = ADMIN_REMOVE_args { id, lost: true, agreed: vec![files] };
    loop {
        match ask(world, ADMIN_REMOVE, &args).await {
            ADMIN_REMOVE_res::CTL_OK(done) => {
                assert!(done.removed, "{done:?}");
                return;
            }
            ADMIN_REMOVE_res::Default(ctl_status::CTL_ERR_AGAIN, _) => {}
            ADMIN_REMOVE_res::Default(_, why) => panic!("{}", words(&why)),
        }
        world.sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn new_files_go_where_their_directory_says_and_others_stay_away_from_there() {
    simulate(1, ONCE, async |mut world: World| {
        let (client, _) = tiers(&mut world).await;
        client.mkdir("cold", "below").await;
        for _ in 0..2 {
            let round = world.env.random.u64().to_string();
            assert_eq!(placed(&world, &client, "", &round).await, ids(&[1, 2]));
            assert_eq!(placed(&world, &client, "/cold", &round).await, ids(&[3, 4]));
            assert_eq!(placed(&world, &client, "/cold/below", &round).await, ids(&[3, 4]), "it inherits");
        }
        // What there is stays where it is.
        client.ok(making("/cold", "old")).await;
        let before = homes(&world, "/cold/old").await;
        assert_eq!(policy(&world, "/cold", "small,class=none").await.unwrap(), "small");
        assert_eq!(homes(&world, "/cold/old").await, before);
        assert_eq!(placed(&world, &client, "/cold", "now").await, ids(&[1, 2]));
        assert_eq!(placed(&world, &client, "/cold/below", "still").await, ids(&[3, 4]), "as it was made");
    });
}

#[test]
fn a_file_that_is_emptied_gets_data_files_in_its_class_without_the_data_server_that_is_full() {
    simulate(2, ONCE, async |mut world: World| {
        let (client, servers) = tiers(&mut world).await;
        let (fh, open) = opened(&client.ok(making("/cold", "f")).await);
        client.ok(vec![putfh(&fh), setattr(open, &size(5000))]).await;
        let Some(home) = homes(&world, "/cold/f").await.first().copied() else { panic!() };
        servers[home as usize - 1].set_health(ctl_health::HEALTH_FULL);
        world.sleep(Duration::from_secs(5)).await;
        client.ok(vec![putfh(&fh), setattr(open, &size(0))]).await;
        assert_eq!(homes(&world, "/cold/f").await, ids(&[7 - home]), "the other one of its class");
        // Nor does what is there go to others.
        let why = drain(&world, 7 - home).await.unwrap_err();
        assert!(
            why.starts_with("no other data server of class archive takes new files: add one first"),
            "{why}"
        );
        assert_eq!(drain(&world, 1).await, Ok(()));
        let why = drain(&world, 2).await.unwrap_err();
        assert!(why.starts_with("no other data server without a class takes new files"), "{why}");
    });
}

#[test]
fn where_a_class_is_full_there_is_no_space_though_others_have_some() {
    simulate(3, ONCE, async |mut world: World| {
        let mut all = vec![world.data_server()];
        for host in ["ds2", "ds3"] {
            all.push(world.add_data_server(host).await);
        }
        class(&world, 3, "archive").await.unwrap();
        let client = world.client("a").await;
        client.mkdir("", "cold").await;
        policy(&world, "/cold", "small,class=archive").await.unwrap();
        client.ok(making("/cold", "first")).await;
        let (log, _logged) = Log::of_this_thread();
        all[2].set_health(ctl_health::HEALTH_FULL);
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(client.status(making("/cold", "second")).await, nfsstat4::NFS4ERR_NOSPC);
        let said: Vec<_> = log.lines().iter().map(|line| crate::admin::plain(line)).collect();
        assert!(
            said.iter().any(|line| line.contains("found no place") && line.contains("class=archive")),
            "{said:?}"
        );
        client.ok(making("", "third")).await;
        // And the other way round.
        all[2].set_health(ctl_health::HEALTH_OK);
        all[..2].iter().for_each(|server| server.set_health(ctl_health::HEALTH_FULL));
        world.sleep(Duration::from_secs(5)).await;
        client.ok(Vec::new()).await;
        assert_eq!(client.status(making("", "fourth")).await, nfsstat4::NFS4ERR_NOSPC);
        client.ok(making("/cold", "fifth")).await;
        // Who is away may have room, for its own class.
        all[..2].iter().for_each(|server| server.set_health(ctl_health::HEALTH_OK));
        all[2].set_health(ctl_health::HEALTH_FULL);
        world.net.partition("mds", "ds2");
        world.sleep(Duration::from_secs(15)).await;
        client.ok(Vec::new()).await;
        assert_eq!(client.status(making("/cold", "sixth")).await, nfsstat4::NFS4ERR_NOSPC);
        client.ok(making("", "seventh")).await;
        all[0].set_health(ctl_health::HEALTH_FULL);
        world.sleep(Duration::from_secs(5)).await;
        client.ok(Vec::new()).await;
        assert_eq!(client.status(making("", "eighth")).await, nfsstat4::NFS4ERR_DELAY);
    });
}

/// A second data server, the only one of its class, with data of a file of its.
async fn archived(world: &mut World) -> (Arc<DataServer>, Client, nfs_fh4, stateid4) {
    let archive = world.add_data_server("ds2").await;
    class(world, 2, "archive").await.unwrap();
    let client = world.client("a").await;
    client.mkdir("", "cold").await;
    policy(world, "/cold", "small,class=archive").await.unwrap();
    let (fh, open) = opened(&client.ok(making("/cold", "f")).await);
    client.ok(vec![putfh(&fh), setattr(open, &size(5000))]).await;
    (archive, client, fh, open)
}

#[test]
fn how_many_of_its_class_take_new_files_is_in_the_log_when_a_file_that_is_emptied_finds_no_place() {
    simulate(11, ONCE, async |mut world: World| {
        let (archive, client, fh, open) = archived(&mut world).await;
        let (log, _logged) = Log::of_this_thread();
        archive.set_health(ctl_health::HEALTH_FULL);
        world.sleep(Duration::from_secs(5)).await;
        client.ok(vec![putfh(&fh), setattr(open, &size(0))]).await;
        assert_eq!(homes(&world, "/cold/f").await, ids(&[2]), "it stays where it is");
        let lines: Vec<_> = log.lines().iter().map(|line| crate::admin::plain(line)).collect();
        let said = lines.iter().find(|line| line.contains("found no place"));
        assert!(
            said.is_some_and(|line| line.contains("data_servers=0") && line.contains("class=archive")),
            "{lines:?}"
        );
    });
}

#[test]
fn what_lost_the_last_data_server_of_its_class_finds_a_place_when_it_is_emptied() {
    simulate(10, ONCE, async |mut world: World| {
        let (_, client, fh, open) = archived(&mut world).await;
        assert_eq!(homes(&world, "/cold/f").await, ids(&[2]));
        world.net.partition("mds", "ds2");
        world.sleep(Duration::from_secs(40)).await;
        client.ok(Vec::new()).await;
        drain(&world, 2).await.unwrap();
        remove_lost(&world, 2, 1).await;
        client.ok(vec![putfh(&fh), setattr(open, &size(0))]).await;
        assert_eq!(homes(&world, "/cold/f").await, ids(&[1]), "nobody else is of its class");
        get(&client, &fh, open, RW).await.unwrap();
        // What has a class is not read by older releases, in use or not.
        assert_eq!(class(&world, 2, "nvme").await.unwrap_err(), "data server 2 was removed");
        assert_eq!(class(&world, 2, "").await, Ok(("archive".to_owned(), 0)));
    });
}

/// Nobody meant those without a class where there are none.
#[test]
fn where_every_data_server_has_a_class_a_policy_without_one_takes_all_of_them() {
    simulate(4, ONCE, async |mut world: World| {
        world.add_data_server("ds2").await;
        let client = world.client("a").await;
        assert_eq!(class(&world, 1, "nvme").await, Ok((String::new(), 1)));
        assert_eq!(placed(&world, &client, "", "a").await, ids(&[2]));
        assert_eq!(class(&world, 2, "disk").await, Ok((String::new(), 0)), "the last one without");
        assert_eq!(placed(&world, &client, "", "b").await, ids(&[1, 2]));
        assert_eq!(class(&world, 2, "").await, Ok(("disk".to_owned(), 0)));
        assert_eq!(placed(&world, &client, "", "c").await, ids(&[2]));
    });
}

#[test]
fn small_files_get_their_data_files_in_the_class_that_they_were_made_for() {
    simulate(5, LayoutPolicy { inline: 16 << 10, ..ONCE }, async |mut world: World| {
        let (client, _) = tiers(&mut world).await;
        assert_eq!(policy(&world, "/cold", "").await.unwrap(), "small,mirrors=1,inline=16KiB,class=archive");
        for n in 0..4 {
            client.ok(making("/cold", &format!("f{n}"))).await;
        }
        assert_eq!(homes(&world, "/cold/f0").await, ids(&[]));
        policy(&world, "/cold", "small,class=none").await.unwrap();
        world.restart().await;
        world.sleep(Duration::from_secs(200)).await;
        let client = world.client("b").await;
        for n in 0..4 {
            let mut ops = walk("/cold");
            ops.extend([open_name(&format!("f{n}"), b"p", BOTH, 0), getfh()]);
            let (fh, open) = opened(&client.ok(ops).await);
            let grown = size((16 << 10) + 1);
            client.ok(vec![putfh(&fh), setattr(open, &grown)]).await;
            let at = homes(&world, &format!("/cold/f{n}")).await;
            assert!(!at.is_empty() && at.is_subset(&ids(&[3, 4])), "{at:?}");
        }
    });
}

#[test]
fn a_class_is_kept_over_restarts_by_all_commands_that_do_not_speak_of_it() {
    simulate(6, ONCE, async |mut world: World| {
        tiers(&mut world).await;
        let all =
            [(1, ""), (2, ""), (3, "archive"), (4, "archive")].map(|(id, class)| (id, class.to_owned()));
        assert_eq!(classes(&world).await, all);
        assert_eq!(policy(&world, "/cold", "wide").await.unwrap(), "wide,class=archive");
        assert_eq!(
            policy(&world, "/cold", "default,inline=8KiB").await.unwrap(),
            "default,inline=8KiB,class=archive"
        );
        world.restart().await;
        world.sleep(Duration::from_secs(100)).await;
        assert_eq!(classes(&world).await, all, "it has registered again");
        let client = world.client("b").await;
        client.mkdir("cold", "d").await;
        policy(&world, "/cold/d", "small,inline=off").await.unwrap();
        assert_eq!(placed(&world, &client, "/cold/d", "x").await, ids(&[3, 4]));
    });
}

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    simulate(7, ONCE, async |mut world: World| {
        let (client, _) = tiers(&mut world).await;
        for (id, name, said) in [
            (9, "archive", "there is no data server 9: sluice ds list shows them"),
            (1 << 20, "archive", "there is no data server 1048576"),
            (1, "NVMe", "`NVMe` is no name of a class: 1 to 32 lower-case letters"),
            (1, "none", "`none` is no name"),
        ] {
            let why = class(&world, id, name).await.unwrap_err();
            assert!(why.starts_with(said), "{why}");
        }
        let unknown = policy(&world, "/cold", "small,class=arkive").await.unwrap_err();
        assert!(unknown.starts_with("no data server is of class arkive: `sluice ds list`"), "{unknown}");
        let few = policy(&world, "/cold", "small,mirrors=3").await.unwrap_err();
        assert!(
            few.starts_with("mirrors=3 needs 3 data servers of class archive, and 2 take new files"),
            "{few}"
        );
        assert!(policy(&world, "/", "small,mirrors=3").await.is_err(), "those without a class are two");
        assert!(
            policy(&world, "/cold", "small,class=NVMe").await.unwrap_err().starts_with("no policy is called")
        );
        assert_eq!(policy(&world, "/cold", "").await.unwrap(), "small,mirrors=1,class=archive");
        // Nobody is left of it: there never will be space by waiting.
        assert_eq!(class(&world, 3, "").await, Ok(("archive".to_owned(), 1)));
        assert_eq!(class(&world, 4, "").await, Ok(("archive".to_owned(), 0)));
        assert_eq!(client.status(making("/cold", "f")).await, nfsstat4::NFS4ERR_NOSPC);
        assert_eq!(policy(&world, "/cold", "wide").await.unwrap(), "wide,class=archive", "not spoken of");
        let small = policy(&world, "/cold", "small,mirrors=1").await;
        assert_eq!(small.unwrap(), "small,mirrors=1,class=archive", "nor with so many mirrors");
    });
}

#[test]
fn who_set_a_class_is_in_the_log_and_what_the_store_did_not_take_is_not_shown() {
    simulate(8, ONCE, async |mut world: World| {
        world.add_data_server("ds2").await;
        let (log, _logged) = Log::of_this_thread();
        class(&world, 2, "archive").await.unwrap();
        let from = format!("from={}:", world.net.ip("admin"));
        let lines: Vec<_> = log.lines().iter().map(|line| crate::admin::plain(line)).collect();
        let said = lines.iter().find(|line| line.contains("an administrator set the class of a data server"));
        assert!(said.is_some_and(|line| line.contains(&from) && line.contains("class=archive")), "{lines:?}");
        world.db.set_faults(sluice_kv::Faults { unavailable: 1.0, ..sluice_kv::Faults::NONE });
        assert!(class(&world, 2, "nvme").await.unwrap_err().contains("does not answer"));
        world.db.set_faults(sluice_kv::Faults::NONE);
        world.sleep(Duration::from_secs(5)).await;
        let shown = classes(&world).await;
        world.restart().await;
        assert_eq!(classes(&world).await, shown, "what is stored is what was shown");
        assert_eq!(class(&world, 2, "disk").await.map(drop), Ok(()));
        assert_eq!(classes(&world).await[1].1, "disk");
    });
}

#[test]
fn texts_are_bounded() {
    simulate(9, ONCE, async |world: World| {
        let long: Bytes = vec![b'x'; 33].into();
        let args = ADMIN_CLASS_args { id: 1, class: long };
        let refused: ADMIN_CLASS_res = ask(&world, ADMIN_CLASS, &args).await;
        assert!(matches!(refused, ADMIN_CLASS_res::Default(ctl_status::CTL_ERR_INVAL, _)), "{refused:?}");
    });
}
