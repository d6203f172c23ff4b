//! A data file that was to go to a data server, and then was not, is removed there, and the data server takes nothing more that
//! is named like it. Whatever is to go there later has another name, and so comes to an end.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::*;

use crate::balance::{Files, all_right, ask, begin, ended, written};
use crate::drain::{drain, drained};
use crate::more_mirrors::set;
use crate::stage::{World, simulate_with};

const POLICY: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };

/// The first data server has all files, and the second is new; the others are away for good.
async fn two(world: &mut World, files: usize) -> Files {
    for n in [1, 2, 3] {
        world.crash_data_server(n).await;
    }
    world.sleep(Duration::from_secs(400)).await;
    let all = written(world, files).await;
    world.start_data_server(1).await;
    // Until it has told how full it is.
    world.sleep(Duration::from_secs(10)).await;
    all
}

/// Every file was to go to the second data server, which could not read it at the first one, and is to stay again.
async fn withdrawn(world: &mut World) -> Files {
    let files = two(world, 8).await;
    world.net.partition("ds1", "ds2");
    begin(world, 0).await;
    let how = ended(world).await;
    assert_eq!(how.state, ctl_balance_state::BALANCE_NO_PROGRESS, "{how:?}");
    assert_eq!((how.moved.data_files, how.held, world.data_files(1)), (0, 8, 0));
    world.net.heal("ds1", "ds2");
    // Until what there was of them is removed.
    world.sleep(Duration::from_secs(30)).await;
    files
}

async fn balanced(world: &World, files: &Files) {
    begin(world, 0).await;
    let how = ended(world).await;
    assert_eq!(how.state, ctl_balance_state::BALANCE_EVEN, "{how:?}");
    assert!(how.moved.data_files > 0 && world.data_files(1) > 0);
    all_right(world, files).await;
}

#[test]
fn the_next_balance_moves_what_the_last_one_could_not() {
    simulate_with(1, POLICY, async |world| {
        let files = withdrawn(world).await;
        balanced(world, &files).await;
    });
}

#[test]
fn a_drain_moves_what_a_balance_could_not() {
    simulate_with(4, POLICY, async |world| {
        let files = withdrawn(world).await;
        drain(world, 0, 0).await.unwrap();
        drained(world, 0).await;
        assert_eq!(world.data_files(1), files.len());
        all_right(world, &files).await;
    });
}

#[test]
fn a_file_gets_a_copy_where_it_could_not_be_moved_to() {
    simulate_with(5, POLICY, async |world| {
        let files = withdrawn(world).await;
        let how = set(world, "", 2).await;
        assert_eq!((how.more, how.filling), (8, 0), "{how:?}");
        assert_eq!((world.check().await, world.data_files(1)), (0, files.len()));
        all_right(world, &files).await;
    });
}

/// What was withdrawn is removed only later, by a metadata server that knows nothing but what is in its store.
async fn removed_later(world: &mut World, between: impl AsyncFnOnce(&mut World)) {
    let files = two(world, 8).await;
    world.net.partition("ds1", "ds2");
    begin(world, 0).await;
    while world.check().await == 0 {
        world.sleep(Duration::from_millis(100)).await;
    }
    world.net.partition("mds", "ds2");
    while world.check().await > 0 {
        world.sleep(Duration::from_secs(1)).await;
    }
    ask(world, ctl_balance_what::BALANCE_STOP, 0, 0).await.unwrap();
    between(world).await;
    world.net.heal("mds", "ds2");
    world.net.heal("ds1", "ds2");
    world.sleep(Duration::from_secs(120)).await;
    drain(world, 0, 0).await.unwrap();
    drained(world, 0).await;
    assert_eq!(world.data_files(1), files.len());
    all_right(world, &files).await;
}

#[test]
fn a_metadata_server_that_starts_anew_knows_which_names_were_withdrawn() {
    simulate_with(8, POLICY, async |world| {
        removed_later(world, async |world| world.restart_metadata_server().await).await;
    });
}

#[test]
fn metadata_that_were_dumped_and_loaded_say_which_names_were_withdrawn() {
    simulate_with(9, POLICY, async |world| {
        removed_later(world, async |world| {
            let dump = world.dump().await;
            world.load(&dump).await;
        })
        .await;
    });
}

/// Two files, and a data server that has removed what could be named like something else of them: releases until November 2026
/// gave such names again, and a copy of the metadata from before does not know of them.
async fn refused(world: &mut World) -> Files {
    let files = two(world, 2).await;
    for slot in 1..=3 {
        world.leave_to_remove(1, slot).await;
    }
    world.sleep(Duration::from_secs(30)).await;
    files
}

#[test]
fn what_is_moved_gets_another_name_where_one_is_refused() {
    simulate_with(6, POLICY, async |world| {
        let files = refused(world).await;
        drain(world, 0, 0).await.unwrap();
        drained(world, 0).await;
        assert_eq!((world.check().await, world.data_files(1)), (0, files.len()));
        all_right(world, &files).await;
    });
}

#[test]
fn a_copy_gets_another_name_where_one_is_refused() {
    simulate_with(7, POLICY, async |world| {
        let files = refused(world).await;
        let how = set(world, "", 2).await;
        assert_eq!((how.more, how.filling), (2, 0), "{how:?}");
        assert_eq!((world.check().await, world.data_files(1)), (0, files.len()));
        all_right(world, &files).await;
    });
}
