//! Files that exist get more mirrors, or fewer.

use crate::common::*;
use crate::heal::{files, heal, mirrored, queue, spares};
use crate::refused;
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;
const ID: DataFileId = DataFileId(1);

fn stores(all: &[&[u16]]) -> Vec<Vec<StoreId>> {
    all.iter().map(|column| column.iter().map(|n| StoreId(*n)).collect()).collect()
}

async fn add(w: &World, key: InodeKey, mirrors: u16, places: &[&[u16]]) -> Result<(), FsError> {
    let places = stores(places);
    w.txn(async |t| w.ns.add_mirrors(t, &key, ID, mirrors, &places).await).await.map(drop)
}

async fn give_up(w: &World, key: InodeKey, slots: &[u16]) -> Result<(), FsError> {
    w.txn(async |t| w.ns.drop_mirrors(t, &key, ID, slots).await).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn what_is_added_is_filled_before_it_counts() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    w.txn(async |t| {
        let need = LayoutNeed { hand_out: Some(0..1), ..LayoutNeed::default() };
        w.ns.prepare_layout(t, &f, &need).await
    })
    .await
    .unwrap();
    refused!(add(&w, f, 3, &[&[5]]).await, FsError::Invalid);
    refused!(add(&w, f, 3, &[&[5], &[6], &[7]]).await, FsError::Invalid);
    refused!(add(&w, f, 3, &[&[5], &[4]]).await, FsError::Invalid);
    refused!(add(&w, f, 4, &[&[5, 5], &[6, 7]]).await, FsError::Invalid);
    refused!(add(&w, f, 2, &[&[5], &[6]]).await, FsError::Invalid);
    add(&w, f, 3, &[&[5], &[6]]).await.unwrap();
    let now: Vec<_> = files(&w, f).await.iter().map(|s| (s.slot, s.store.0, s.stale)).collect();
    let all = [(0, 1, false), (1, 2, false), (4, 5, true), (2, 3, false), (3, 4, false), (5, 6, true)];
    assert_eq!(now, all);
    assert_eq!((queue(&w).await.len(), w.clean().await.degraded), (1, 1));
    // One thing after the other.
    refused!(add(&w, f, 4, &[&[7], &[8]]).await, FsError::Busy);
    refused!(give_up(&w, f, &[0, 2]).await, FsError::Busy);
    heal(&w, f, 1, &[(4, 1), (5, 1)], true).await.unwrap();
    assert!(files(&w, f).await.iter().all(|s| !s.stale));
    assert_eq!((queue(&w).await.len(), w.clean().await.degraded), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_is_removed_and_its_number_is_never_used_again() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    refused!(give_up(&w, f, &[0]).await, FsError::Invalid);
    refused!(give_up(&w, f, &[0, 1]).await, FsError::Invalid);
    refused!(give_up(&w, f, &[0, 3]).await, FsError::Invalid);
    refused!(give_up(&w, f, &[0, 9]).await, FsError::Invalid);
    give_up(&w, f, &[1, 2]).await.unwrap();
    let now: Vec<_> = files(&w, f).await.iter().map(|s| (s.slot, s.store.0)).collect();
    assert_eq!(now, [(0, 1), (3, 4)]);
    let gone: Vec<_> = spares(&w).await.iter().map(|s| (s.slot, s.store.0, s.generation)).collect();
    assert_eq!(gone, [(1, 2, 1), (2, 3, 1)]);
    for spare in &spares(&w).await {
        assert!(w.read(async |t| w.ns.spare_may_go(t, spare).await).await.unwrap());
        w.txn(async |t| {
            w.ns.spare_done(t, spare);
            Ok(())
        })
        .await
        .unwrap();
    }
    w.clean().await;
    add(&w, f, 2, &[&[2], &[3]]).await.unwrap();
    let now: Vec<_> = files(&w, f).await.iter().map(|s| (s.slot, s.store.0)).collect();
    assert_eq!(now, [(0, 1), (4, 2), (3, 4), (5, 3)]);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_has_not_been_behind_its_first_part_is_one_segment() {
    let w = World::new().await;
    let mut two = layout(1, 3);
    let mut first = two.components[0].clone();
    (first.end, first.width, first.handed_out) = (100, 1, true);
    first.slots.truncate(1);
    two.components[0].start = 100;
    (two.components[0].width, two.components[0].slots) = (2, two.components[0].slots[1..].to_vec());
    two.components.insert(0, first);
    assert!(two.is_valid());
    let node = |size| NewNode::File { layout: Some(two.clone()), read_write_layout: false, size };
    let f = w.node(ROOT, "f", node(100)).await.unwrap().inode.key;
    refused!(add(&w, f, 2, &[&[9], &[9], &[9]]).await, FsError::Invalid);
    add(&w, f, 2, &[&[9]]).await.unwrap();
    let inode = w.stat(f).await.unwrap();
    let [whole] = &inode.layout().unwrap().components[..] else { panic!() };
    assert_eq!((whole.start, whole.end, whole.width, whole.mirrors), (0, u64::MAX, 1, 2));
    assert_eq!(whole.slots.iter().map(|s| (s.slot, s.stale)).collect::<Vec<_>>(), [(0, false), (3, true)]);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_part_that_nobody_has_seen_has_nothing_to_be_filled() {
    let w = World::new().await;
    let node = NewNode::File { layout: Some(layout(1, 2)), read_write_layout: false, size: 0 };
    let f = w.node(ROOT, "f", node).await.unwrap().inode.key;
    add(&w, f, 2, &[&[5], &[6]]).await.unwrap();
    assert!(files(&w, f).await.iter().all(|s| !s.stale));
    assert_eq!((queue(&w).await.len(), w.clean().await.degraded), (0, 0));
}

/// What was chosen for so many mirrors is not taken once there are to be more.
#[tokio::test(start_paused = true)]
async fn what_was_chosen_before_there_were_to_be_more_is_chosen_anew() {
    let w = World::new().await;
    let inline = Inline { limit: 100, shape: Shape::Small, mirrors: 1, class: None };
    let set = async |key| w.txn(async |t| w.ns.set_inline_mirrors(t, &key, 2).await).await.unwrap();
    for size in [0, 5] {
        let name = format!("f{size}");
        let made = w.node(ROOT, &name, NewNode::InlineFile { inline, size: 0 }).await.unwrap();
        let f = made.inode.key;
        if size > 0 {
            let bytes = (0, &b"bytes"[..]);
            w.txn(async |t| w.ns.write_inline(t, &f, bytes, &w.request(&Credential::ROOT)).await)
                .await
                .unwrap();
        }
        let take = async |seen: &Inode| {
            let fresh = layout(w.id(), 1);
            w.txn(async |t| {
                if size > 0 {
                    return w.ns.promote(t, &f, seen, &fresh).await.map(drop);
                }
                let (propose, inline) = (Some(fresh.clone()), seen.inline());
                let need = LayoutNeed { propose, inline, ..LayoutNeed::default() };
                w.ns.prepare_layout(t, &f, &need).await.map(drop)
            })
            .await
        };
        let seen = w.stat(f).await.unwrap();
        set(f).await;
        refused!(take(&seen).await, FsError::Busy);
        take(&w.stat(f).await.unwrap()).await.unwrap();
        w.clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn so_is_what_takes_the_place_of_data_files_that_got_more() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    let seen = w.stat(f).await.unwrap();
    let before = seen.layout().cloned();
    add(&w, f, 3, &[&[5], &[6]]).await.unwrap();
    let clone = async |old: Option<Layout>| {
        let (fresh, source) = (layout(w.id(), 1), FileId(99));
        let set = SetClone { fresh, old, end: 10, space_used: 0, source };
        w.act(async |t| w.ns.set_clone(t, &f, &set, &w.request(&Credential::ROOT)).await).await.map(drop)
    };
    let empty = async |old: Option<Layout>| {
        let fresh = Some(layout(w.id(), 1));
        let set = SetSize { size: 0, fresh, old, writable_open: true };
        w.act(async |t| w.ns.truncate(t, &f, &set, &w.request(&Credential::ROOT)).await).await.map(drop)
    };
    refused!(clone(before.clone()).await, FsError::Busy);
    refused!(empty(before).await, FsError::Busy);
    let now = w.stat(f).await.unwrap().layout().cloned();
    empty(now.clone()).await.unwrap();
    refused!(clone(now).await, FsError::Busy);
    clone(w.stat(f).await.unwrap().layout().cloned()).await.unwrap();
    w.clean().await;
}
