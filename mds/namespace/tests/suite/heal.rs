//! Mirrors that missed writes: the queue of what is to be healed, and what takes the place of what is lost.

use crate::common::*;
use crate::refused;
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;

/// A file with two columns of two mirrors, on stores 1 and 2, 3 and 4.
pub(crate) async fn mirrored(w: &World, name: &str, id: u64) -> InodeKey {
    let mut layout = layout(id, 4);
    (layout.components[0].width, layout.components[0].mirrors) = (2, 2);
    let node = NewNode::File { layout: Some(layout), read_write_layout: false, size: 10 };
    w.node(ROOT, name, node).await.unwrap().inode.key
}

pub(crate) async fn files(w: &World, key: InodeKey) -> Vec<DataFile> {
    w.stat(key).await.unwrap().layout().unwrap().data_files().copied().collect()
}

pub(crate) async fn queue(w: &World) -> Vec<Heal> {
    w.read(async |t| w.ns.heals(t, None, 10).await).await.unwrap()
}

pub(crate) async fn spares(w: &World) -> Vec<Spare> {
    w.read(async |t| w.ns.spares(t, None, 10).await).await.unwrap()
}

async fn leave(w: &World, key: InodeKey, slots: &[u16]) -> Result<(), FsError> {
    w.txn(async |t| w.ns.leave_behind(t, &key, slots).await).await.map(drop)
}

async fn is_dirty(w: &World, key: InodeKey) -> bool {
    w.stat(key).await.unwrap().layout().unwrap().mirrors_dirty
}

async fn suspect(w: &World, key: InodeKey) {
    w.txn(async |t| w.ns.set_mirrors_dirty(t, &key, true).await).await.unwrap();
}

fn at(file: &DataFile) -> (StoreId, u16) {
    (file.store, file.slot)
}

/// These slots, with their generations, are made equal where they are.
pub(crate) async fn heal(
    w: &World,
    key: InodeKey,
    id: u64,
    slots: &[(u16, u16)],
    equal: bool,
) -> Result<(), FsError> {
    let here = files(w, key).await;
    let place = |slot: u16| here.iter().find(|file| file.slot == slot).map_or((StoreId(0), slot), at);
    let slots = slots.iter().map(|(slot, generation)| (*slot, *generation, place(*slot))).collect::<Vec<_>>();
    fill(w, key, id, &slots, equal).await
}

/// The same; each slot with what was filled for it.
async fn fill(
    w: &World,
    key: InodeKey,
    id: u64,
    slots: &[(u16, u16, (StoreId, u16))],
    equal: bool,
) -> Result<(), FsError> {
    let slots = slots.iter().map(|(slot, generation, filled)| HealedSlot {
        slot: *slot,
        generation: *generation,
        filled: *filled,
        exists: true,
    });
    let healed = Healed { id: DataFileId(id), slots: slots.collect(), dirty: is_dirty(w, key).await, equal };
    w.txn(async |t| w.ns.healed(t, &key, &healed).await).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn what_is_left_behind_is_queued_until_all_of_it_is_healed() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    assert_eq!(w.clean().await.degraded, 0);
    leave(&w, f, &[0, 3]).await.unwrap();
    leave(&w, f, &[0]).await.unwrap();
    assert_eq!(queue(&w).await, [Heal::of(f)]);
    assert_eq!(w.clean().await.degraded, 1);
    refused!(leave(&w, f, &[1]).await, FsError::Invalid);
    let left = files(&w, f).await;
    assert_eq!(
        left.iter().map(|s| (s.stale, s.generation)).collect::<Vec<_>>(),
        [(true, 2), (false, 1), (false, 1), (true, 2)]
    );
    // Of a layout, or a generation, that is over.
    refused!(heal(&w, f, 2, &[(0, 2)], false).await, FsError::Invalid);
    refused!(heal(&w, f, 1, &[(0, 1)], false).await, FsError::Invalid);
    heal(&w, f, 1, &[(0, 2)], false).await.unwrap();
    assert_eq!((queue(&w).await.len(), w.clean().await.degraded), (1, 1));
    heal(&w, f, 1, &[(3, 2)], false).await.unwrap();
    assert_eq!((queue(&w).await.len(), w.clean().await.degraded), (0, 0));
    assert!(files(&w, f).await.iter().all(|s| !s.stale));
    refused!(heal(&w, f, 1, &[], false).await, FsError::Invalid);
}

#[tokio::test(start_paused = true)]
async fn mirrors_that_may_differ_are_queued_and_a_file_that_goes_leaves_the_queue() {
    let w = World::new().await;
    for (name, id) in [("f", 1), ("g", 2), ("h", 3)] {
        let key = mirrored(&w, name, id).await;
        let dirty = CommitSize { settled: true, mirrors_dirty: true, ..CommitSize::default() };
        w.act(async |t| w.ns.commit_size(t, &key, &dirty, &w.request(&Credential::ROOT)).await)
            .await
            .unwrap();
    }
    assert_eq!(w.clean().await.degraded, 3);
    let f = queue(&w).await[0].inode;
    heal(&w, f, 1, &[], true).await.unwrap();
    w.remove(ROOT, "g").await.unwrap();
    let h = queue(&w).await[0].inode;
    let empty = SetSize { size: 0, fresh: Some(layout(9, 4)), old: None, writable_open: true };
    w.act(async |t| w.ns.truncate(t, &h, &empty, &w.request(&Credential::ROOT)).await).await.unwrap();
    assert_eq!((queue(&w).await.len(), w.clean().await.degraded), (0, 0));
}

/// A heal that looked before has not compared them.
#[tokio::test(start_paused = true)]
async fn mirrors_that_came_to_differ_meanwhile_are_not_said_to_be_equal() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    leave(&w, f, &[0]).await.unwrap();
    let filled = at(&files(&w, f).await[0]);
    let slots = vec![HealedSlot { slot: 0, generation: 2, filled, exists: true }];
    let before = Healed { id: DataFileId(1), slots, dirty: false, equal: true };
    suspect(&w, f).await;
    let heal = async |healed: &Healed| w.txn(async |t| w.ns.healed(t, &f, healed).await).await.map(drop);
    refused!(heal(&before).await, FsError::Invalid);
    assert!(is_dirty(&w, f).await && files(&w, f).await[0].stale);
    heal(&Healed { dirty: true, ..before }).await.unwrap();
    assert!(!is_dirty(&w, f).await && !files(&w, f).await[0].stale);
    assert_eq!(w.clean().await.degraded, 0);
}

/// It was known already, and a heal that has compared them is about to end.
#[tokio::test(start_paused = true)]
async fn who_suspects_mirrors_again_is_seen_by_the_heal_that_ends() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    suspect(&w, f).await;
    let healed = Healed { id: DataFileId(1), slots: Vec::new(), dirty: true, equal: true };
    let ends = w.txn(async |t| {
        w.ns.healed(t, &f, &healed).await?;
        suspect(&w, f).await;
        Ok(())
    });
    let ended = ends.await;
    assert!(matches!(ended, Err(FsError::Kv(_))), "{ended:?}");
    assert!(is_dirty(&w, f).await);
}

#[tokio::test(start_paused = true)]
async fn a_replacement_takes_its_place_when_it_is_whole() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    let plan = async |slot, store| {
        w.txn(async |t| w.ns.plan_replacement(t, &f, slot, StoreId(store)).await).await.map(|done| done.0)
    };
    refused!(plan(0, 2).await, FsError::Invalid);
    refused!(plan(9, 5).await, FsError::Invalid);
    let first = plan(0, 5).await.unwrap();
    assert_eq!((first.store, first.slot), (StoreId(5), 4));
    // The file is as before, but for its place in the queue.
    let now = files(&w, f).await;
    assert!((now[0].store, now[0].moving, now[0].stale) == (StoreId(1), true, false));
    // That one is lost, too: its number is never used again.
    let second = plan(0, 6).await.unwrap();
    assert_eq!((second.store, second.slot), (StoreId(6), 5));
    assert_eq!(w.clean().await.degraded, 1);
    let wanted = async |spare: &Spare| !w.read(async |t| w.ns.spare_may_go(t, spare).await).await.unwrap();
    let all = spares(&w).await;
    assert_eq!(all.iter().map(|s| (s.slot, s.store.0)).collect::<Vec<_>>(), [(4, 5), (5, 6)]);
    assert!(!wanted(&all[0]).await && wanted(&all[1]).await);
    let seen = all[1];
    // Only what is planned now may take the place.
    refused!(heal(&w, f, 1, &[(0, 1)], true).await, FsError::Invalid);
    refused!(fill(&w, f, 1, &[(0, 1, at(&first))], true).await, FsError::Invalid);
    assert_eq!(files(&w, f).await[0].store, StoreId(1));
    fill(&w, f, 1, &[(0, 1, at(&second))], true).await.unwrap();
    // Whoever saw it as a spare before must not remove it any more.
    assert!(wanted(&seen).await);
    let now = files(&w, f).await;
    assert_eq!((now[0].store, now[0].slot, now[0].materialised, now[0].moving), (StoreId(6), 5, true, false));
    assert_eq!((queue(&w).await.len(), w.clean().await.degraded), (0, 0));
    // What is left is to be removed: the one given up, and the one replaced.
    let all = spares(&w).await;
    assert_eq!(all.iter().map(|s| (s.slot, s.store.0)).collect::<Vec<_>>(), [(0, 1), (4, 5)]);
    for spare in &all {
        assert!(!wanted(spare).await);
        assert!(wanted(&Spare { generation: 9, ..*spare }).await, "another one than was seen");
        w.txn(async |t| {
            w.ns.spare_done(t, spare);
            Ok(())
        })
        .await
        .unwrap();
    }
    assert_eq!(spares(&w).await, []);
    let owners = w.read(async |t| w.ns.data_file_owners(t, None, 10).await).await.unwrap();
    assert_eq!(owners, [(DataFileId(1), f)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_filled_in_its_place_counts_for_nothing_once_it_is_to_go_elsewhere() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    leave(&w, f, &[0]).await.unwrap();
    let stale = files(&w, f).await[0];
    let (new, _) = w.txn(async |t| w.ns.plan_replacement(t, &f, 0, StoreId(5)).await).await.unwrap();
    refused!(fill(&w, f, 1, &[(0, 2, at(&stale))], true).await, FsError::Invalid);
    assert_eq!(files(&w, f).await[0], DataFile { moving: true, ..stale });
    fill(&w, f, 1, &[(0, 2, at(&new))], true).await.unwrap();
    assert_eq!(files(&w, f).await[0].store, StoreId(5));
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn mirrors_that_move_together_go_to_distinct_data_servers() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    let plan = async |slot, store| {
        w.txn(async |t| w.ns.plan_replacement(t, &f, slot, StoreId(store)).await).await.map(|done| done.0)
    };
    plan(0, 5).await.unwrap();
    refused!(plan(1, 5).await, FsError::Invalid);
    // Another column may.
    plan(2, 5).await.unwrap();
    plan(1, 6).await.unwrap();
    // What it was to be is given up with that.
    plan(0, 7).await.unwrap();
    plan(1, 5).await.unwrap();
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_withdrawn_stays_and_its_number_is_nobody_elses_before_it_is_gone() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    let before = files(&w, f).await;
    let plan = async |slot, store| {
        w.txn(async |t| w.ns.plan_replacement(t, &f, slot, StoreId(store)).await).await.unwrap().0
    };
    let withdraw = async |slot, store| {
        w.txn(async |t| w.ns.withdraw_replacement(t, &f, slot, StoreId(store)).await).await.unwrap().0
    };
    let first = plan(0, 5).await;
    assert!(!withdraw(0, 6).await && !withdraw(1, 5).await, "that was not planned");
    assert!(withdraw(0, 5).await && !withdraw(0, 5).await);
    // The greatest of them says which names are taken (docs/adr/0008).
    let now = files(&w, f).await;
    let generations: Vec<_> = now.iter().map(|file| file.generation).collect();
    assert_eq!(generations, [1, 1, 1, 2]);
    assert!(now.iter().zip(&before).all(|(now, then)| DataFile { generation: 1, ..*now } == *then));
    assert_eq!((queue(&w).await.len(), w.clean().await.degraded), (0, 0));
    let spare = spares(&w).await.remove(0);
    assert_eq!((spare.slot, spare.store), (first.slot, StoreId(5)));
    assert!(w.read(async |t| w.ns.spare_may_go(t, &spare).await).await.unwrap());
    // It is still to be removed there.
    let second = plan(0, 6).await;
    assert_eq!(second.slot, first.slot + 1);
    let other = plan(1, 7).await;
    assert!(withdraw(0, 6).await);
    let row = queue(&w).await.remove(0);
    assert_eq!((row.replacement(0), row.replacement(1)), (None, Some(other)));
    fill(&w, f, 1, &[(1, 1, at(&other))], true).await.unwrap();
    assert_eq!(files(&w, f).await[1].store, StoreId(7));
    assert_eq!(w.clean().await.degraded, 0);
}

/// Where it was removed nothing is taken any more that is named like it.
#[tokio::test(start_paused = true)]
async fn what_is_planned_after_one_was_withdrawn_and_is_gone_has_another_name() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    let plan = async |slot, store| {
        w.txn(async |t| w.ns.plan_replacement(t, &f, slot, StoreId(store)).await).await.unwrap().0
    };
    let withdraw = async |slot, store| {
        w.txn(async |t| w.ns.withdraw_replacement(t, &f, slot, StoreId(store)).await).await.unwrap().0
    };
    let sweep = async || {
        for spare in spares(&w).await {
            assert!(w.read(async |t| w.ns.spare_may_go(t, &spare).await).await.unwrap());
            w.txn(async |t| {
                w.ns.spare_done(t, &spare);
                Ok(())
            })
            .await
            .unwrap();
        }
    };
    let mut gone = Vec::new();
    for _ in 0..3 {
        let planned = plan(0, 5).await;
        let taken =
            |before: &DataFile| before.slot == planned.slot && before.generation >= planned.generation;
        assert!(!gone.iter().any(taken), "{planned:?} after {gone:?}");
        assert!(withdraw(0, 5).await);
        sweep().await;
        gone.push(planned);
    }
    // Nor has a mirror that is added.
    let more = [vec![StoreId(5)], vec![StoreId(5)]];
    w.txn(async |t| w.ns.add_mirrors(t, &f, DataFileId(1), 3, &more).await).await.unwrap();
    for file in files(&w, f).await.iter().filter(|file| file.store == StoreId(5)) {
        let taken = |before: &DataFile| before.slot == file.slot && before.generation >= file.generation;
        assert!(!gone.iter().any(taken), "{file:?} after {gone:?}");
    }
    w.clean().await;
}

/// Writers go on with the handles that they have.
#[tokio::test(start_paused = true)]
async fn what_comes_into_being_after_another_was_withdrawn_is_known_to_be_there() {
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    let before = files(&w, f).await;
    w.txn(async |t| w.ns.plan_replacement(t, &f, 0, StoreId(5)).await).await.unwrap();
    assert!(w.txn(async |t| w.ns.withdraw_replacement(t, &f, 0, StoreId(5)).await).await.unwrap().0);
    for file in &before {
        let report = [(file.slot, file.generation)];
        w.txn(async |t| w.ns.materialised(t, (file.store, DataFileId(1)), &report).await).await.unwrap();
    }
    assert!(files(&w, f).await.iter().all(|file| file.materialised));
}

#[tokio::test(start_paused = true)]
async fn a_drained_data_server_is_named_by_nobody() {
    use sluice_namespace::stable_storage::*;
    let w = World::new().await;
    let f = mirrored(&w, "f", 1).await;
    let ids = (1..=5_u8).map(|n| [n; 16]);
    for uuid in ids {
        w.txn(async |t| store_by_uuid(t, &uuid).await.map(drop)).await.unwrap();
    }
    let drained = async |done| {
        let row = Drain { store: StoreId(1), since: 7, rate: 0, data_files: 1, bytes: 10, done };
        w.txn(async |t| {
            let store = store(t, StoreId(1)).await?.unwrap();
            put_drain(t, &store, &row);
            Ok(())
        })
        .await
        .unwrap();
        let state = w.read(async |t| store(t, StoreId(1)).await).await.unwrap().unwrap().state;
        assert_eq!(state, StoreState::Draining);
        assert_eq!(w.read(async |t| drains(t).await).await.unwrap(), [row]);
    };
    drained(false).await;
    w.clean().await;
    drained(true).await;
    let problems = async || check(&w.db.snapshot().await.unwrap()).await.unwrap().problems;
    assert_eq!(problems().await, [Problem::NotDrained { store: StoreId(1) }]);
    // What is being filled there counts, too.
    drained(false).await;
    let (new, _) = w.txn(async |t| w.ns.plan_replacement(t, &f, 0, StoreId(5)).await).await.unwrap();
    fill(&w, f, 1, &[(0, 1, at(&new))], true).await.unwrap();
    drained(true).await;
    w.clean().await;
    w.txn(async |t| w.ns.plan_replacement(t, &f, 1, StoreId(1)).await.map(drop)).await.unwrap();
    assert_eq!(problems().await, [Problem::NotDrained { store: StoreId(1) }]);
}

#[tokio::test(start_paused = true)]
async fn a_removed_data_server_keeps_its_number_and_nothing_else() {
    use sluice_namespace::stable_storage::*;
    let w = World::new().await;
    let one = w.txn(async |t| store_by_uuid(t, &[1; 16]).await).await.unwrap().0;
    let fence = Fence::Holder { holder: 9 };
    w.txn(async |t| {
        for store in [one.id, StoreId(2)] {
            put_fence(t, &PendingFence { store, id: 1, fence, epoch: 1 });
        }
        let row = Drain { store: one.id, since: -1, rate: 5, data_files: 0, bytes: 0, done: true };
        put_drain(t, &one, &row);
        Ok(())
    })
    .await
    .unwrap();
    w.txn(async |t| {
        remove_store(t, &one);
        Ok(())
    })
    .await
    .unwrap();
    let left = async |id| w.read(async |t| fences(t, id, None, 9).await).await.unwrap().len();
    assert_eq!((left(one.id).await, left(StoreId(2)).await), (0, 1));
    assert_eq!(w.read(async |t| drain(t, one.id).await).await.unwrap(), None);
    let (again, _) = w.txn(async |t| store_by_uuid(t, &[1; 16]).await).await.unwrap();
    assert_eq!((again.id, again.state), (one.id, StoreState::Removed));
    let (other, _) = w.txn(async |t| store_by_uuid(t, &[2; 16]).await).await.unwrap();
    assert_ne!(other.id, one.id);
}
