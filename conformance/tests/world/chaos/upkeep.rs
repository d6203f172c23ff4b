//! What operators do while everything fails, and what a file system that was mended has lost: data servers are drained
//! and are not, or are taken away when they are empty, or filled evenly, the key of handles is replaced, one of two copies is gone,
//! or a whole data server with all of its copies; directories get limits, and everything another number of copies.

use std::time::Duration;

use sluice_namespace::{DataFile, DataFileId, FileNode, InodeRecord, Layout, Node, PREFIXES, StoreId};
use sluice_store::device::Device;
use sluice_xdr::control::*;

use crate::stage::World;

/// A command that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Data servers by where they are: the numbers that the metadata server gave them.
pub(super) type Numbers = [u16; 4];

/// What is on this data server goes elsewhere from now on, or it takes files again. False: nobody has an answer to that now.
pub(super) async fn drain(world: &World, number: u16, cancel: bool) -> bool {
    let args = ADMIN_DRAIN_args { id: number.into(), cancel, limit: 0 };
    for _ in 0..5 {
        match world.try_admin(ADMIN_DRAIN, &args, PATIENCE).await {
            None | Some(ADMIN_DRAIN_res::Default(ctl_status::CTL_ERR_AGAIN, _)) => {
                world.sleep(Duration::from_millis(200)).await;
            }
            // Or it is refused: there would not be enough data servers left, or it is not drained.
            Some(_) => return true,
        }
    }
    false
}

pub(super) async fn replace_key(world: &World) {
    let _: Option<ADMIN_KEYS_res> =
        world.try_admin(ADMIN_KEYS, &ADMIN_KEYS_args { rotate: true }, PATIENCE).await;
}

/// What is thousandths fuller than others gives: as close as a balance may be.
const TOLERANCE: u32 = 5;

async fn ask(world: &World, what: ctl_balance_what, tolerance: u32) -> Option<ADMIN_BALANCE_res> {
    world.try_admin(ADMIN_BALANCE, &ADMIN_BALANCE_args { what, tolerance, limit: 0 }, PATIENCE).await
}

/// Data servers have so much room left, which differs, and are filled evenly from now on. It may be refused, or not heard of.
pub(super) async fn balance(world: &World, room: [u64; 4]) {
    for (n, room) in room.into_iter().enumerate() {
        let space = world.device(n).space().unwrap();
        world.device(n).set_capacity(space.total - space.free + room);
    }
    ask(world, ctl_balance_what::BALANCE_BEGIN, TOLERANCE).await;
}

pub(super) async fn stop_balance(world: &World) {
    ask(world, ctl_balance_what::BALANCE_STOP, 0).await;
}

/// Nothing is in its way any more: it comes to an end.
pub(super) async fn until_balanced(world: &World) {
    for _ in 0..900 {
        match ask(world, ctl_balance_what::BALANCE_LOOK, 0).await {
            Some(ADMIN_BALANCE_res::CTL_OK(now))
                if now.last.iter().all(|last| last.state != ctl_balance_state::BALANCE_RUNNING) =>
            {
                return;
            }
            _ => world.sleep(Duration::from_secs(1)).await,
        }
    }
    panic!("a balance does not end");
}

/// Takes a data server away that is empty, or is on the way to it. Whether it is gone.
pub(super) async fn remove(world: &World, number: u16) -> bool {
    drain(world, number, false).await;
    let args = ADMIN_REMOVE_args { id: number.into(), lost: false, agreed: Vec::new() };
    let removed = world.try_admin(ADMIN_REMOVE, &args, PATIENCE).await;
    match removed {
        Some(ADMIN_REMOVE_res::CTL_OK(ok)) => ok.removed,
        // When it was asked before, and the answer did not arrive.
        Some(ADMIN_REMOVE_res::Default(_, why)) => {
            why == format!("data server {number} was removed").as_bytes()
        }
        None => false,
    }
}

/// The number that the next data server is given which nobody knows.
pub(super) fn next_number(numbers: &Numbers) -> u16 {
    numbers.iter().max().map_or(1, |last| last + 1)
}

/// A directory may hold so many bytes from now on, with all that is below, or as many as it likes. Nobody may hear of it.
pub(super) async fn limit(world: &World, path: &str, hard: Option<u64>) -> bool {
    let action = if hard.is_some() { ctl_quota_action::QUOTA_SET } else { ctl_quota_action::QUOTA_REMOVE };
    quota(world, action, path, hard.unwrap_or(0)).await.is_some()
}

/// All that anybody is charged for is counted anew.
pub(super) async fn recount(world: &World) {
    quota(world, ctl_quota_action::QUOTA_RECOUNT, "", 0).await;
}

async fn quota(world: &World, action: ctl_quota_action, path: &str, hard: u64) -> Option<ADMIN_QUOTA_res> {
    let args = ADMIN_QUOTA_args {
        action,
        kind: ctl_quota_kind::QUOTA_TREE,
        id: 0,
        path: path.to_owned().into(),
        bytes: ctl_limit { soft: 0, hard },
        files: ctl_limit { soft: 0, hard: 0 },
        grace: 0,
    };
    for _ in 0..5 {
        match world.try_admin(ADMIN_QUOTA, &args, PATIENCE).await {
            None | Some(ADMIN_QUOTA_res::Default(ctl_status::CTL_ERR_AGAIN, _)) => {
                world.sleep(Duration::from_millis(200)).await;
            }
            answer => return answer,
        }
    }
    None
}

async fn mirrors(world: &World, what: ctl_mirrors_what, mirrors: u32) -> Option<ADMIN_MIRRORS_res> {
    let args = ADMIN_MIRRORS_args { what, path: "/".to_owned().into(), mirrors, limit: 0 };
    world.try_admin(ADMIN_MIRRORS, &args, PATIENCE).await
}

/// All files get so many copies from now on. It may be refused, or not heard of.
pub(super) async fn set_mirrors(world: &World, count: u32) {
    mirrors(world, ctl_mirrors_what::MIRRORS_BEGIN, count).await;
}

/// Whether nobody makes or gives up copies any more, which takes a while.
pub(super) async fn until_mirrored(world: &World, stop: bool, seconds: u32) -> bool {
    if stop {
        mirrors(world, ctl_mirrors_what::MIRRORS_STOP, 0).await;
    }
    for _ in 0..seconds {
        match mirrors(world, ctl_mirrors_what::MIRRORS_LOOK, 0).await {
            Some(ADMIN_MIRRORS_res::CTL_OK(now))
                if now.last.iter().all(|last| last.state != ctl_compare_state::COMPARE_RUNNING) =>
            {
                return true;
            }
            _ => world.sleep(Duration::from_secs(1)).await,
        }
    }
    false
}

async fn layouts(world: &World) -> Vec<Layout> {
    let (_, inode) = *PREFIXES.iter().find(|(name, _)| *name == "INODE").unwrap();
    let rows = world.rows().await;
    let records = rows.into_iter().filter(|(key, _)| key.first() == Some(&inode));
    let layouts = records.filter_map(|(_, value)| match InodeRecord::decode(value).unwrap().node {
        Node::File(FileNode { layout, .. }) => layout,
        _ => None,
    });
    layouts.collect()
}

/// Whether a part of some file is at the data server of this number.
pub(super) async fn is_named(world: &World, number: u16) -> bool {
    layouts(world).await.iter().any(|layout| layout.data_files().any(|file| file.store == StoreId(number)))
}

/// One of two data files that hold the same, of a file that has lost none before: which data server it is at, and where.
pub(super) async fn spare(
    world: &World,
    numbers: &Numbers,
    lost: &[DataFileId],
) -> Option<(DataFileId, usize, String)> {
    let mut whole = layouts(world).await;
    whole.retain(|layout| is_whole(layout, numbers) && !lost.contains(&layout.id));
    let columns = whole.iter().flat_map(|layout| layout.columns().map(|column| (layout.id, column)));
    let twice = columns
        .filter(|(_, column)| column.len() == 2 && column.iter().all(|file| file.materialised))
        .flat_map(|(id, column)| column.iter().map(move |file| (id, *file)));
    let all: Vec<(DataFileId, DataFile)> = twice.collect();
    if all.is_empty() {
        return None;
    }
    let (id, file) = all[usize::try_from(world.env.random.u64() % all.len() as u64).unwrap()];
    let n = numbers.iter().position(|number| file.store == StoreId(*number))?;
    let name = format!("{:016x}-{:04x}", id.0, file.slot);
    world.data_file_names(n).into_iter().find(|path| path.ends_with(&name)).map(|path| (id, n, path))
}

/// Both copies are where they should be.
fn is_whole(layout: &Layout, numbers: &Numbers) -> bool {
    !layout.is_degraded() && layout.data_files().all(|file| numbers.contains(&file.store.0))
}

/// Whether there are two copies of everything.
pub(super) async fn all_twice(world: &World, numbers: &Numbers) -> bool {
    let twice =
        |layout: &Layout| is_whole(layout, numbers) && layout.columns().all(|column| column.len() == 2);
    let all = layouts(world).await;
    !all.is_empty() && all.iter().all(twice) && world.check().await == 0
}

/// The n-th data server is gone with all that it has, and a new one takes its place: what was there is made anew.
pub(super) async fn replace(world: &mut World, numbers: &mut Numbers, n: usize) {
    let gone = numbers[n];
    world.replace_data_server(n).await;
    numbers[n] = next_number(numbers);
    for _ in 0..600 {
        world.sleep(Duration::from_millis(500)).await;
        if remove(world, gone).await {
            return;
        }
    }
    panic!("what was at data server {gone} has no other place after five minutes");
}

/// The file system of the n-th data server is mended, and this data file is not there any more.
pub(super) async fn lose(world: &mut World, n: usize, path: &str) {
    world.crash_data_server(n).await;
    // Without a flush of its folder it may never have been there.
    if world.device(n).remove(path).is_ok() {
        world.device(n).sync_dir(path.rsplit_once('/').unwrap().0).unwrap();
    }
    world.start_in_trouble(n).await;
}
