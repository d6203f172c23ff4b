//! Fences, tombstones and identity across crashes, torn tails and damage.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::fs;
use std::sync::Arc;

use common::{access, bytes, key, open, open_on, options, simulate};
use proptest::prelude::*;
use sluice_env::Env;
use sluice_store::device::{Device, FileDevice, MemDevice};
use sluice_store::{Access, Epoch, Fence, Options, Refusal, Stability, Store, StoreError, Uuid};

fn fence(holder: u32) -> Fence {
    Fence::Holder { holder, epoch: Epoch(1) }
}

fn by(holder: u32) -> Access {
    Access { holder, ..access(1) }
}

#[test]
fn a_fence_holds_across_power_loss() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.fence(&[fence(1), fence(2)]).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.check(&by(1)), Err(Refusal::Fenced));
        let write = store.write_at(&by(2), 0, bytes(1, 1), Stability::Unstable).await;
        assert!(matches!(write, Err(StoreError::Refused(Refusal::Fenced))), "{write:?}");
        assert_eq!(store.check(&by(3)), Ok(()));
    });
}

/// The second attempt finds no file, and has the folder to flush all the same.
#[test]
fn a_removal_that_could_not_be_made_durable_is_when_it_is_asked_for_again() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        for file in 1..=2 {
            store.write_at(&access(file), 0, bytes(1, 10), Stability::FileSync).await.unwrap();
        }
        let targets = [(key(1), 0), (key(2), 0)];
        // The journal's flush goes well.
        device.fail_syncs_after(1, 1);
        assert!(store.remove(&targets, Epoch(1)).await.is_err());
        store.remove(&targets, Epoch(1)).await.unwrap();
        store.retire(Epoch(2)).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        for file in 1..=2 {
            assert_eq!(store.stat(key(file)).await.unwrap(), None);
        }
    });
}

/// The process dies between the two, and the next one, which is asked again, finds nothing to remove.
#[test]
fn a_removal_that_a_killed_process_did_not_make_durable_is_when_it_is_asked_for_again() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.write_at(&access(1), 0, bytes(1, 10), Stability::FileSync).await.unwrap();
        let target = [(key(1), 0)];
        device.fail_syncs_after(1, 1);
        assert!(store.remove(&target, Epoch(1)).await.is_err());
        drop(store);
        let store = open(&env, &device).await.unwrap();
        store.remove(&target, Epoch(1)).await.unwrap();
        let before = store.flushes();
        store.remove(&target, Epoch(1)).await.unwrap();
        assert_eq!(store.flushes(), before + 1, "the journal's: the folder's is known to be");
        store.retire(Epoch(2)).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.stat(key(1)).await.unwrap(), None);
    });
}

#[test]
fn a_late_write_cannot_resurrect_a_removed_file() {
    simulate(async |env| {
        let device = MemDevice::new();
        let mut store = open(&env, &device).await.unwrap();
        store.write_at(&access(1), 0, bytes(1, 10), Stability::FileSync).await.unwrap();
        store.remove(&[(key(1), 0), (key(2), 0)], Epoch(1)).await.unwrap();
        for _ in 0..2 {
            for file in [1, 2] {
                let write = store.write_at(&access(file), 0, bytes(1, 10), Stability::FileSync).await;
                assert!(matches!(write, Err(StoreError::Refused(Refusal::Removed))), "{write:?}");
                assert_eq!(store.stat(key(file)).await.unwrap(), None);
            }
            device.crash();
            drop(store);
            store = open(&env, &device).await.unwrap();
        }
        // A new generation of the same slot is a new file, and outlives the tombstone.
        let next = Access { generation: 1, ..access(1) };
        store.write_at(&next, 0, bytes(2, 10), Stability::FileSync).await.unwrap();
        store.retire(Epoch(2)).await.unwrap();
        assert_eq!((store.rows(), store.oldest()), (0, Some(Epoch(2))));
        assert_eq!(store.check(&access(1)), Err(Refusal::Expired), "the tombstone died, and its handles");
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.check(&access(1)), Err(Refusal::Expired));
        assert_eq!(store.read_at(key(1), 0, 10).await.unwrap().data, bytes(2, 10));
    });
}

#[test]
fn first_materialisations_are_remembered_until_reported() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.write_at(&access(1), 0, bytes(1, 10), Stability::Unstable).await.unwrap();
        assert!(store.unreported(9).is_empty(), "not before it is durable: a crash may take it back");
        store.commit(key(1)).await.unwrap();
        store.write_at(&access(2), 0, bytes(1, 10), Stability::DataSync).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.unreported(9), [(key(1), 0), (key(2), 0)]);
        store.reported(&[key(1)]);
        store.fence(&[fence(9)]).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.unreported(9), [(key(2), 0)]);
    });
}

#[test]
fn old_callers_stay_refused() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.admit_caller(7).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert!(matches!(store.admit_caller(6).await, Err(StoreError::OldCaller)));
        store.admit_caller(7).await.unwrap();
    });
}

#[test]
fn the_table_is_bounded_and_a_retired_epoch_frees_it() {
    simulate(async |env| {
        let options = Options { max_rows: 100, ..options() };
        let store = Store::open(&env, Arc::new(MemDevice::new()), options).await.unwrap();
        let many: Vec<_> = (0..100).map(fence).collect();
        store.fence(&many).await.unwrap();
        assert!(matches!(store.fence(&[fence(100)]).await, Err(StoreError::FencesFull)));
        store.retire(Epoch(2)).await.unwrap();
        store.fence(&[fence(100)]).await.unwrap();
    });
}

#[test]
fn a_failed_journal_flush_is_not_acknowledged_as_durable() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        // The append fails, the rewrite that follows succeeds: durable after all.
        device.fail_syncs(1);
        store.fence(&[fence(1)]).await.unwrap();
        // Both fail: the caller hears of it.
        device.fail_syncs(2);
        assert!(store.fence(&[fence(2)]).await.is_err());
        store.fence(&[fence(3)]).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        for holder in [1, 3] {
            assert_eq!(store.check(&by(holder)), Err(Refusal::Fenced), "{holder}");
        }
    });
}

/// What is in memory alone is asked for again, and is not durable by that.
#[test]
fn what_could_not_be_made_durable_is_so_before_it_is_acknowledged() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        device.fail_syncs(100);
        for _ in 0..2 {
            assert!(store.retire(Epoch(2)).await.is_err());
            assert!(store.admit_caller(5).await.is_err());
        }
        device.fail_syncs(0);
        store.retire(Epoch(2)).await.unwrap();
        store.admit_caller(5).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!((store.oldest(), store.newest_caller()), (Some(Epoch(2)), 5));
        let before = store.flushes();
        store.retire(Epoch(2)).await.unwrap();
        store.admit_caller(5).await.unwrap();
        assert_eq!(store.flushes(), before, "it is known to be");
        assert!(matches!(store.admit_caller(4).await, Err(StoreError::OldCaller)));
    });
}

#[test]
fn compaction_keeps_what_lives() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        for epoch in 1..=200u16 {
            let fences: Vec<_> =
                (0..100).map(|holder| Fence::Holder { holder, epoch: Epoch(epoch) }).collect();
            store.fence(&fences).await.unwrap();
            store.retire(Epoch(epoch)).await.unwrap();
        }
        assert!(device.stat("journal").unwrap().size < 2 << 20, "20,000 rows, 100 alive");
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.rows(), 100);
        assert_eq!(store.check(&Access { epoch: Epoch(200), ..by(5) }), Err(Refusal::Fenced));
    });
}

/// Fences of the store that [`before_a_rewrite`] returns.
const ALIVE: u32 = 2100;

/// A store the journal of which has so many records more than it may have before it is rewritten.
async fn before_a_rewrite(env: &Env, device: &MemDevice, more: usize) -> Arc<Store> {
    let store = open(env, device).await.unwrap();
    let alive: Vec<_> = (0..ALIVE).map(fence).collect();
    store.fence(&alive).await.unwrap();
    // Head and caller are records, too, and count as alive; less than a quarter is.
    let live = ALIVE as usize + 2;
    store.fence(&vec![fence(0); 3 * live + more]).await.unwrap();
    assert!(device.stat("journal").unwrap().size > 8192 * 64);
    store
}

/// What was acknowledged is in the journal that the next start reads, not in one that has no name any more.
#[test]
fn a_rewrite_that_failed_late_is_made_good_before_a_fence_is_acknowledged() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = before_a_rewrite(&env, &device, 1).await;
        // The new journal is flushed, and its folder is not.
        device.fail_syncs_after(1, 1);
        assert!(store.fence(&[fence(0)]).await.is_err());
        let mut holder = ALIVE;
        while store.fence(&[fence(holder)]).await.is_err() {
            holder += 1;
        }
        // Killed, while the device has power.
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.check(&by(holder)), Err(Refusal::Fenced));
    });
}

#[test]
fn fences_are_taken_where_there_is_no_room_to_rewrite_the_journal() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = before_a_rewrite(&env, &device, 1000).await;
        let used = device.space().unwrap();
        device.set_capacity(used.total - used.free + 8 * 4096);
        store.fence(&[fence(ALIVE)]).await.unwrap();
        device.set_capacity(1 << 40);
        device.set_descriptors(device.all_opened());
        store.fence(&[fence(ALIVE + 1)]).await.unwrap();
        device.set_descriptors(usize::MAX);
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        for holder in [ALIVE, ALIVE + 1] {
            assert_eq!(store.check(&by(holder)), Err(Refusal::Fenced), "{holder}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever of the unflushed pages and names the device happened to write before the power
    /// failed, everything acknowledged is there and the store opens.
    #[test]
    fn any_crash_keeps_what_was_acknowledged(seed in any::<u64>(), steps in 1usize..60) {
        simulate(async move |env| {
            let mut state = seed | 1;
            let mut draw = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            let device = MemDevice::new();
            let mut store = open(&env, &device).await.unwrap();
            let mut fenced = Vec::new();
            let mut files = std::collections::BTreeMap::new();
            let mut removed = std::collections::BTreeSet::new();
            for step in 0..steps {
                let file = draw() % 6;
                let alive = !removed.contains(&file);
                match draw() % 6 {
                    0 => {
                        let holder = 100 + step as u32;
                        store.fence(&[fence(holder)]).await.unwrap();
                        fenced.push(holder);
                    }
                    1 if alive => {
                        store.remove(&[(key(file), 0)], Epoch(1)).await.unwrap();
                        removed.insert(file);
                        files.remove(&file);
                    }
                    2 | 3 if alive => {
                        let data = bytes(draw() as u8, 5000);
                        store.write_at(&access(file), 0, data.clone(), Stability::FileSync).await.unwrap();
                        files.insert(file, data);
                    }
                    4 if alive => {
                        // Unstable, beyond what is checked.
                        let by = access(file);
                        store.write_at(&by, 1 << 20, bytes(1, 9000), Stability::Unstable).await.unwrap();
                    }
                    5 => {
                        let mut coin = draw();
                        device.crash_keeping(|| {
                            coin = coin.rotate_left(1);
                            coin & 1 == 1
                        });
                        drop(store);
                        store = open(&env, &device).await.unwrap();
                    }
                    _ => {}
                }
                for holder in &fenced {
                    let by = Access { holder: *holder, ..access(99) };
                    assert_eq!(store.check(&by), Err(Refusal::Fenced));
                }
                for file in &removed {
                    assert_eq!(store.check(&access(*file)), Err(Refusal::Removed));
                    assert_eq!(store.stat(key(*file)).await.unwrap(), None);
                }
                for (file, data) in &files {
                    assert_eq!(store.read_at(key(*file), 0, 5000).await.unwrap().data, data);
                }
            }
        });
    }
}

/// A directory with three fences in its journal; returns the bytes of the journal in use.
async fn three_fences(env: &Env, dir: &std::path::Path) -> u64 {
    let store = open_on(env, Arc::new(FileDevice::new(dir).unwrap())).await.unwrap();
    for holder in 1..=3 {
        store.fence(&[fence(holder)]).await.unwrap();
    }
    // Header, caller, three fences.
    5 * 64
}

#[tokio::test]
async fn a_torn_tail_is_cut_and_nothing_before_it_is_lost() {
    let env = Env::system();
    for cut in [1usize, 17, 63] {
        let dir = tempfile::tempdir().unwrap();
        let used = three_fences(&env, dir.path()).await as usize;
        let path = dir.path().join("journal");
        let mut journal = fs::read(&path).unwrap();
        // Half a record more, as if power had failed while it was written.
        let (head, tail) = journal.split_at_mut(used);
        tail[..cut].copy_from_slice(&head[used - 64..used - 64 + cut]);
        fs::write(&path, &journal).unwrap();
        let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
        for holder in 1..=3 {
            assert_eq!(store.check(&by(holder)), Err(Refusal::Fenced));
        }
        store.fence(&[fence(4)]).await.unwrap();
        drop(store);
        let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
        assert_eq!(store.check(&by(4)), Err(Refusal::Fenced));
    }
}

#[tokio::test]
async fn damage_to_a_durable_record_is_refused_not_skipped() {
    let env = Env::system();
    let dir = tempfile::tempdir().unwrap();
    three_fences(&env, dir.path()).await;
    let path = dir.path().join("journal");
    let mut journal = fs::read(&path).unwrap();
    journal[3 * 64 + 9] ^= 1;
    fs::write(&path, &journal).unwrap();
    let error = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap_err();
    assert!(error.to_string().contains("journal is damaged: record 3 is bad"), "{error}");
    fs::remove_file(&path).unwrap();
    let error = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap_err();
    assert!(error.to_string().contains("journal is damaged: it is missing"), "{error}");
}

/// A newer program wrote it and may have acknowledged it: to go on without it could let a fenced holder write.
#[tokio::test]
async fn a_record_of_an_unknown_kind_is_refused_and_not_taken_for_a_torn_one() {
    let env = Env::system();
    let dir = tempfile::tempdir().unwrap();
    let used = three_fences(&env, dir.path()).await as usize;
    let path = dir.path().join("journal");
    let whole = fs::read(&path).unwrap();
    let unknown = |journal: u8| {
        let mut bytes = whole.clone();
        let (head, tail) = bytes.split_at_mut(used);
        let record = &mut tail[..64];
        record.copy_from_slice(&head[used - 64..]);
        (record[0], record[40]) = (99, record[40] + journal);
        record[24..32].copy_from_slice(&(used as u64 / 64).to_le_bytes());
        let check = blake3::hash(&record[..56]);
        record[56..].copy_from_slice(&check.as_bytes()[..8]);
        fs::write(&path, &bytes).unwrap();
    };
    unknown(0);
    let error = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap_err();
    assert!(error.to_string().contains("kind 99, which this program does not know: upgrade"), "{error}");
    // Of another journal, in a block used again: nothing.
    unknown(1);
    let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
    assert_eq!(store.check(&by(3)), Err(Refusal::Fenced));
}

#[tokio::test]
async fn directories_that_are_not_ours() {
    let env = Env::system();
    let open = async |dir: &std::path::Path, options: Options| {
        Store::open(&env, Arc::new(FileDevice::new(dir).unwrap()), options).await
    };
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().display().to_string();
    let only_existing = Options { create: false, ..options() };
    let error = open(dir.path(), only_existing.clone()).await.unwrap_err();
    assert!(matches!(error, StoreError::Absent(_)) && error.to_string().starts_with(&place), "{error}");
    fs::write(dir.path().join("diary.txt"), "mine").unwrap();
    let error = open(dir.path(), options()).await.unwrap_err();
    assert!(matches!(error, StoreError::Foreign(_)) && error.to_string().starts_with(&place), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "left as it was found");
    fs::remove_file(dir.path().join("diary.txt")).unwrap();

    let ours = Uuid([1; 16]);
    let store = open(dir.path(), options()).await.unwrap();
    let error = open(dir.path(), options()).await.unwrap_err();
    assert!(matches!(error, StoreError::Locked(_)), "{error}");
    let uuid = store.uuid();
    store.adopt(ours).await.unwrap();
    assert!(matches!(store.adopt(Uuid([2; 16])).await, Err(StoreError::ForeignCluster(..))));
    drop(store);
    let error = open(dir.path(), Options { cluster: Some(Uuid([2; 16])), ..options() }).await.unwrap_err();
    assert!(matches!(error, StoreError::ForeignCluster(..)), "{error}");
    let store = open(dir.path(), Options { cluster: Some(ours), ..only_existing }).await.unwrap();
    assert_eq!((store.uuid(), store.cluster(), store.boot()), (uuid, ours, 2));
}
