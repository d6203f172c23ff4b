//! Files that come under a limit after somebody got a layout to write to them with.

use std::sync::Arc;
use std::time::Duration;

use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::harness::*;
use crate::layout_recall::get;
use crate::quota::*;

const LIMIT: (u64, u64) = (0, 1_000);
/// Whom the files are given to.
const ANNA: u32 = 501;
const OF_ANNA: (ctl_quota_kind, u32, &str) = (ctl_quota_kind::QUOTA_USER, ANNA, "");
const OF_OTHERS: (ctl_quota_kind, u32, &str) = (ctl_quota_kind::QUOTA_GROUP, OTHER_GROUP, "");

/// A file that the user writes to directly: its handle, the open stateid and the layout's.
async fn written_to(user: &Client, directory: &str) -> (nfs_fh4, stateid4, stateid4) {
    let (fh, open) = opened(&user.ok([at(directory, make("f")), vec![getfh()]].concat()).await);
    let layout = get(user, &fh, open).await;
    (fh, open, layout)
}

/// Data servers have more than anybody may use, and nobody says so.
async fn grows_until_recalled(world: &mut World, user: &Client) {
    let stat = ctl_stat { exists: true, size: 5_000, allocated_bytes: 8_192, ..ctl_stat::default() };
    world.data_server().set_stat(stat);
    until(&world.env, || (!user.callbacks().layout_recalls().is_empty()).then_some(())).await;
}

/// A user without limits writes to a file, and moves it into a tree that has one.
async fn moved(world: &World) -> Client {
    let (root, user) = clients(world).await;
    for name in ["free", "t"] {
        root.mkdir("/", name).await;
        root.ok(at(name, setattr(ANONYMOUS, &mode(0o777)))).await;
    }
    set(world, of_tree("/t"), LIMIT, NONE).await;
    until_whole(world, "/t").await;
    written_to(&user, "/free").await;
    user.ok([walk("/free"), vec![savefh()], walk("/t"), vec![rename("f", "f")]].concat()).await;
    user
}

#[test]
fn a_file_that_is_moved_into_a_tree_while_it_is_written_to_is_looked_at() {
    simulate(1, async |mut world: World| {
        let user = moved(&world).await;
        grows_until_recalled(&mut world, &user).await;
        assert_eq!(used(&world, of_tree("/t")).await, (2, 5_000));
    });
}

/// Another file of the tree grows.
#[test]
fn a_file_that_was_moved_into_a_tree_loses_its_layout_with_the_others() {
    simulate(2, async |world: World| {
        let user = moved(&world).await;
        let other = at("/t", open_create("g", b"o", BOTH, 0));
        let (fh, open) = opened(&user.ok([other, vec![getfh()]].concat()).await);
        let layout = get(&user, &fh, open).await;
        user.ok(vec![putfh(&fh), layoutcommit(layout, 1_999)]).await;
        until(&world.env, || (user.callbacks().layout_recalls().len() >= 2).then_some(())).await;
    });
}

#[test]
fn files_below_a_directory_that_becomes_a_tree_are_looked_at() {
    simulate(3, async |mut world: World| {
        let (root, user) = clients(&world).await;
        root.mkdir("/", "t").await;
        root.mkdir("/t", "below").await;
        root.ok(at("/t/below", setattr(ANONYMOUS, &mode(0o777)))).await;
        written_to(&user, "/t/below").await;
        set(&world, of_tree("/t"), LIMIT, NONE).await;
        until_whole(&world, "/t").await;
        grows_until_recalled(&mut world, &user).await;
        assert_eq!(used(&world, of_tree("/t")).await, (3, 5_000));
    });
}

fn given(seed: u64, attributes: &Attributes, whose: (ctl_quota_kind, u32, &str)) {
    simulate(seed, async |mut world: World| {
        let (root, user) = clients(&world).await;
        set(&world, whose, LIMIT, NONE).await;
        let (fh, open, _) = written_to(&user, "/").await;
        if attributes.owner.is_some() {
            root.ok(vec![putfh(&fh), setattr(ANONYMOUS, attributes)]).await;
        } else {
            user.ok(vec![putfh(&fh), setattr(open, attributes)]).await;
        }
        assert_eq!(user.callbacks().layout_recalls().len(), 0);
        grows_until_recalled(&mut world, &user).await;
        assert_eq!(used(&world, whose).await, (1, 5_000));
    });
}

#[test]
fn a_file_that_is_given_to_a_user_with_a_limit_is_looked_at() {
    let owner = Some(ANNA.to_string().into());
    given(4, &Attributes { owner, ..Attributes::default() }, OF_ANNA);
}

#[test]
fn a_file_that_is_given_to_a_group_with_a_limit_is_looked_at() {
    let owner_group = Some(OTHER_GROUP.to_string().into());
    given(5, &Attributes { owner_group, ..Attributes::default() }, OF_OTHERS);
}

#[test]
fn a_file_that_is_given_to_a_group_and_cut_at_once_is_looked_at() {
    let owner_group = Some(OTHER_GROUP.to_string().into());
    given(6, &Attributes { owner_group, ..size(10) }, OF_OTHERS);
}

type Opened = (nfs_fh4, stateid4);

async fn layouts(user: &Client, files: [&Opened; 2]) -> [stateid4; 2] {
    let [(first, one), (second, other)] = files;
    [get(user, first, *one).await, get(user, second, *other).await]
}

/// Writes to the first of two files up to this byte, beyond the limit: both layouts are asked for, and given back.
async fn reach(world: &World, user: &Client, files: [&Opened; 2], held: [stateid4; 2], last: u64) {
    let before = user.callbacks().layout_recalls().len();
    user.ok(vec![putfh(&files[0].0), layoutcommit(held[0], last)]).await;
    let both = || (user.callbacks().layout_recalls().len() >= before + 2).then_some(());
    until(&world.env, both).await;
    for ((fh, _), held) in files.into_iter().zip(held) {
        let held = stateid4 { seqid: 0, ..held };
        user.patient(vec![putfh(fh), layoutreturn(held, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
    }
}

#[test]
fn a_limit_that_is_reached_again_takes_the_layouts_of_all_files_again() {
    simulate(7, async |world: World| {
        let (_, user) = clients(&world).await;
        set(&world, OF_USER, LIMIT, NONE).await;
        let (f, g) = (user.open("f", BOTH, 0).await, user.open("g", BOTH, 0).await);
        let held = layouts(&user, [&f, &g]).await;
        reach(&world, &user, [&f, &g], held, 1_999).await;
        user.ok(vec![putfh(&f.0), setattr(f.1, &size(0))]).await;
        let held = layouts(&user, [&g, &f]).await;
        reach(&world, &user, [&g, &f], held, 1_999).await;
    });
}

#[test]
fn a_limit_that_is_set_again_takes_what_was_given_while_there_was_none() {
    simulate(8, async |world: World| {
        let (_, user) = clients(&world).await;
        set(&world, OF_USER, LIMIT, NONE).await;
        let (f, g) = (user.open("f", BOTH, 0).await, user.open("g", BOTH, 0).await);
        let held = layouts(&user, [&f, &g]).await;
        reach(&world, &user, [&f, &g], held, 1_999).await;
        set(&world, OF_USER, NONE, NONE).await;
        let held = layouts(&user, [&f, &g]).await;
        set(&world, OF_USER, LIMIT, NONE).await;
        reach(&world, &user, [&f, &g], held, 3_999).await;
    });
}

/// Files that are written and closed one after the other are in nobody's way.
#[test]
fn who_writes_on_is_looked_at_though_thousands_of_files_were_written_before() {
    const FILES: usize = 4_000;
    const TASKS: usize = 12;
    simulate(9, async |mut world: World| {
        let (_, user) = clients(&world).await;
        let user = Arc::new(user);
        set(&world, OF_USER, LIMIT, NONE).await;
        let mut tasks = tokio::task::JoinSet::new();
        for first in 0..TASKS {
            let user = Arc::clone(&user);
            tasks.spawn(async move {
                for number in (first..FILES).step_by(TASKS) {
                    let (fh, open) = user.open(&format!("f{number}"), BOTH, 0).await;
                    let held = get(&user, &fh, open).await;
                    let back = layoutreturn(held, layoutiomode4::LAYOUTIOMODE4_ANY);
                    // The layout goes first, or last.
                    let last = if number % 2 == 0 { [back, close(open)] } else { [close(open), back] };
                    user.ok([&[putfh(&fh)], &last[..]].concat()).await;
                }
            });
        }
        tasks.join_all().await;
        let (fh, open) = user.open("last", BOTH, 0).await;
        let held = get(&user, &fh, open).await;
        assert_eq!(user.callbacks().layout_recalls().len(), 0);
        let stat = ctl_stat { exists: true, size: 5_000, allocated_bytes: 8_192, ..ctl_stat::default() };
        world.data_server().set_stat(stat);
        world.sleep(Duration::from_secs(7)).await;
        let asked = user.callbacks().layout_recalls();
        assert!(!asked.is_empty() && asked.iter().all(|recall| recall == &asked[0]), "{asked:?}");
        let held = stateid4 { seqid: 0, ..held };
        user.patient(vec![putfh(&fh), layoutreturn(held, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        assert_eq!(world.mds.watched_for_limits(), 0);
    });
}
