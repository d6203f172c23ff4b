//! Two classes of data servers: what dies, is emptied, evened out or copied stays in its class, and leaves it only for want of
//! any other place. docs/adr/0041.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::nfsstat4;

use crate::client::Client;
use crate::drain::{drain, drained, number, right};
use crate::mirrors::{Writer, healed};
use crate::stage::{World, simulate_tuned};
use crate::{NEW, balance, more_mirrors, pattern};

const ONCE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
const TWICE: LayoutPolicy = LayoutPolicy { mirrors: 2, ..ONCE };
const SIZE: usize = 300_000;
/// Until a data server is lost for good.
const PATIENCE: Duration = Duration::from_secs(12);
/// No data server.
const NONE: usize = 9;

fn simulate(seed: u64, policy: LayoutPolicy, test: impl AsyncFnOnce(&mut World)) {
    simulate_tuned(seed, |config| (config.policy, config.rebuild_after) = (policy, PATIENCE), test);
}

async fn class(world: &World, n: usize, class: &'static str) {
    let args = ADMIN_CLASS_args { id: number(n), class: class.into() };
    let set: ADMIN_CLASS_res = world.admin(ADMIN_CLASS, &args).await;
    assert!(matches!(set, ADMIN_CLASS_res::CTL_OK(_)), "{set:?}");
}

/// Of the root: what is made from now on.
async fn policy(world: &World, policy: &'static str) {
    let args = ADMIN_POLICY_args { path: "/".into(), policy: policy.into() };
    let set: ADMIN_POLICY_res = world.admin(ADMIN_POLICY, &args).await;
    assert!(matches!(set, ADMIN_POLICY_res::CTL_OK(_)), "{set:?}");
}

/// The data servers of a file, by mirror.
async fn homes(world: &World, name: &str) -> BTreeSet<usize> {
    let args = ADMIN_WHY_args { path: format!("/{name}").into(), client: 0 };
    let ADMIN_WHY_res::CTL_OK(found) = world.admin(ADMIN_WHY, &args).await else { panic!("{name}") };
    let slots = found.components.iter().flat_map(|component| &component.slots);
    slots.map(|slot| usize::try_from(slot.data_server).unwrap() - 1).collect()
}

type Files = BTreeMap<String, Vec<u8>>;

async fn written(world: &mut World, prefix: &str, files: u64) -> Files {
    let mut all = Files::new();
    for n in 0..files {
        let (name, data) = (format!("{prefix}{n}"), pattern(n << 20, SIZE));
        let mut writer = Writer::mount(world, &format!("w-{name}"), &name).await;
        writer.write(world, 0, &data).await;
        writer.give_back().await;
        writer.client.close(&writer.file).await;
        all.insert(name, data);
    }
    // Until it is known that nobody writes any more.
    world.sleep(Duration::from_secs(5)).await;
    all
}

/// All files are at these and no others, whole.
async fn are_at(world: &mut World, files: &Files, wanted: &[usize]) {
    let wanted: BTreeSet<usize> = wanted.iter().copied().collect();
    for round in 0.. {
        let mut there = BTreeSet::new();
        for name in files.keys() {
            there.extend(homes(world, name).await);
        }
        if there == wanted && world.check().await == 0 {
            return;
        }
        assert!(round < 300, "they are at {there:?} and not at {wanted:?}");
        world.sleep(Duration::from_secs(1)).await;
    }
}

/// The third of three takes the place of the first; then there is none of the class any more.
#[test]
fn what_dies_is_rebuilt_in_its_class_and_elsewhere_where_that_has_nobody_left() {
    simulate(1, TWICE, async |world| {
        for n in 0..3 {
            class(world, n, "archive").await;
        }
        policy(world, "small,mirrors=2,class=archive").await;
        let files = written(world, "f", 6).await;
        are_at(world, &files, &[0, 1, 2]).await;
        world.crash_data_server(0).await;
        world.sleep(PATIENCE).await;
        are_at(world, &files, &[1, 2]).await;
        assert_eq!(world.data_files(3), 0, "another class");
        for (name, data) in &files {
            right(world, name, data, 0).await;
        }
        world.restart_metadata_server().await;
        world.crash_data_server(1).await;
        world.sleep(PATIENCE).await;
        are_at(world, &files, &[2, 3]).await;
        for (name, data) in &files {
            healed(world, name, data).await;
            right(world, name, data, 1).await;
        }
    });
}

#[test]
fn a_data_server_is_emptied_into_its_class_and_not_where_that_has_nobody_else() {
    simulate(2, ONCE, async |world| {
        let plain = written(world, "p", 4).await;
        are_at(world, &plain, &[0, 1, 2, 3]).await;
        // To be an archive from now on: what is there goes first.
        for n in [2, 3] {
            drain(world, n, 0).await.unwrap();
        }
        for n in [2, 3] {
            drained(world, n).await;
            class(world, n, "archive").await;
            crate::drain::cancel(world, n).await;
        }
        are_at(world, &plain, &[0, 1]).await;
        policy(world, "small,mirrors=1,class=archive").await;
        let cold = written(world, "c", 4).await;
        are_at(world, &cold, &[2, 3]).await;
        drain(world, 0, 0).await.unwrap();
        drained(world, 0).await;
        are_at(world, &plain, &[1]).await;
        let why = drain(world, 1, 0).await.unwrap_err();
        assert!(why.contains("no other data server without a class takes new files"), "{why}");
        drain(world, 2, 0).await.unwrap();
        drained(world, 2).await;
        are_at(world, &cold, &[3]).await;
        for (name, data) in plain.iter().chain(&cold) {
            right(world, name, data, NONE).await;
        }
    });
}

#[test]
fn data_servers_are_evened_out_within_their_class() {
    simulate(3, ONCE, async |world| {
        class(world, 0, "archive").await;
        policy(world, "small,mirrors=1,class=archive").await;
        let files = balance::written(world, 16).await;
        are_at(world, &files, &[0]).await;
        let args = ADMIN_BALANCE_args { what: ctl_balance_what::BALANCE_PLAN, tolerance: 30, limit: 0 };
        world.sleep(Duration::from_secs(10)).await;
        let ADMIN_BALANCE_res::CTL_OK(told) = world.admin(ADMIN_BALANCE, &args).await else { panic!() };
        assert!(told.flows.is_empty(), "it has nobody to give to: {told:?}");
        class(world, 1, "archive").await;
        let ADMIN_BALANCE_res::CTL_OK(told) = world.admin(ADMIN_BALANCE, &args).await else { panic!() };
        let flows: Vec<_> = told.flows.iter().map(|flow| (flow.from, flow.to)).collect();
        assert_eq!(flows, [(number(0), number(1))]);
        balance::begin(world, 0).await;
        let how = balance::ended(world).await;
        assert_eq!(how.state, ctl_balance_state::BALANCE_EVEN, "{how:?}");
        assert_eq!(&how.words[..], b"each is within 3% of the mean of its class");
        are_at(world, &files, &[0, 1]).await;
        assert_eq!([2, 3].map(|n| world.data_files(n)), [0, 0]);
        balance::all_right(world, &files).await;
    });
}

#[test]
fn a_further_copy_is_in_the_class_of_the_file() {
    simulate(4, ONCE, async |world| {
        for n in [1, 3] {
            class(world, n, "archive").await;
        }
        policy(world, "small,mirrors=1,class=archive").await;
        let files = written(world, "f", 4).await;
        for name in files.keys() {
            more_mirrors::set(world, name, 2).await;
            assert_eq!(homes(world, name).await, BTreeSet::from([1, 3]));
        }
        assert_eq!([0, 2].map(|n| world.data_files(n)), [0, 0]);
        for (name, data) in &files {
            healed(world, name, data).await;
        }
    });
}

/// `cp` from one tier to another puts it there: it may not share what it copies.
#[test]
fn a_clone_is_no_way_into_another_class() {
    simulate(5, ONCE, async |world| {
        for n in [2, 3] {
            class(world, n, "archive").await;
        }
        let data = written(world, "hot", 1).await.remove("hot0").unwrap();
        policy(world, "small,mirrors=1,class=archive").await;
        let client = Client::mount(world, "a", NEW).await;
        let (from, to) = (client.open("hot0").await, client.open("cold").await);
        assert_eq!(client.clone_range((&from, 0), (&to, 0), 0).await, nfsstat4::NFS4ERR_XDEV);
        policy(world, "small,mirrors=1,class=none").await;
        let beside = client.open("warm").await;
        assert_eq!(client.clone_range((&from, 0), (&beside, 0), 0).await, nfsstat4::NFS4_OK);
        right(world, "warm", &data, NONE).await;
        assert!(homes(world, "warm").await.is_subset(&BTreeSet::from([0, 1])));
    });
}
