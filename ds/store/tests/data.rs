//! Reads, writes, stability, space: what a store promises for data.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use common::watched::{Watch, WatchedDevice};
use common::{access, bytes, key, open, open_on, options, simulate};
use sluice_env::{BoxFuture, Descriptors, Env, Process};
use sluice_store::device::{Device, FileDevice, MemDevice};
use sluice_store::{Access, Sought, Stability, Store, StoreError};

/// The same story on memory and on a real directory.
async fn story(env: &Env, store: &Arc<Store>) {
    let _ = env;
    assert!(matches!(store.read_at(key(1), 0, 10).await, Err(StoreError::Missing)));
    assert!(matches!(store.commit(key(1)).await, Err(StoreError::Missing)));
    assert_eq!(store.stat(key(1)).await.unwrap(), None);
    store.write_at(&access(1), 100_000, bytes(7, 50_000), Stability::Unstable).await.unwrap();
    let read = store.read_at(key(1), 99_990, 20).await.unwrap();
    assert_eq!((&read.data[..], read.end), (&[[0u8; 10], [7; 10]].concat()[..], false));
    let read = store.read_at(key(1), 149_000, 4096).await.unwrap();
    assert_eq!((read.data.len(), read.end), (1000, true));
    let read = store.read_at(key(1), 1 << 40, 4096).await.unwrap();
    assert_eq!((read.data.len(), read.end), (0, true));
    let large = store.read_at(key(1), 0, 1 << 20).await.unwrap();
    assert_eq!((large.data.len(), large.end), (150_000, true));
    assert_eq!(store.stat(key(1)).await.unwrap().unwrap().size, 150_000);

    assert_eq!(store.seek(key(1), 0, true).await.unwrap().unwrap() / 4096, 100_000 / 4096);
    assert_eq!(store.seek(key(1), 0, false).await.unwrap(), Some(0));
    assert_eq!(store.seek(key(1), 120_000, false).await.unwrap(), Some(150_000));
    assert_eq!(store.seek(key(1), 150_000, true).await.unwrap(), None);
    store.deallocate(key(1), 120_000, 8192).await.unwrap();
    let read = store.read_at(key(1), 119_999, 8194).await.unwrap();
    assert_eq!((read.data[0], read.data[1], read.data[8192], read.data[8193]), (7, 0, 0, 7));
    store.truncate(key(1), 110_000).await.unwrap();
    store.truncate(key(1), 120_000).await.unwrap();
    let read = store.read_at(key(1), 109_999, 100_000).await.unwrap();
    assert_eq!((read.data.len(), read.data[0], read.data[1], read.end), (10_001, 7, 0, true));
    store.truncate(key(2), 55).await.unwrap();
    assert_eq!(store.stat(key(2)).await.unwrap(), None, "an absent file stays absent");
    store.allocate(key(2), 0, 0, 4096).await.unwrap();
    assert_eq!(store.stat(key(2)).await.unwrap().unwrap().size, 4096);
}

/// What lies between ranges is left alone, and takes no space.
#[tokio::test]
async fn space_is_set_aside_in_the_ranges_that_are_asked_for() {
    const UNIT: u64 = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
    let ranges = |from: u64| (from..50).map(|n| 3 * n * UNIT..(3 * n + 1) * UNIT);
    assert_eq!(store.allocate_all(key(1), 0, ranges(0)).await.unwrap(), None);
    let stat = store.stat(key(1)).await.unwrap().unwrap();
    assert_eq!(stat.size, 148 * UNIT);
    assert!(stat.allocated < 60 * UNIT, "{}", stat.allocated);
    for n in 0..50 {
        store.write_at(&access(1), 3 * n * UNIT, bytes(1, UNIT as usize), Stability::Unstable).await.unwrap();
    }
    assert_eq!(store.hole_in(key(1), ranges(0)).await.unwrap(), Sought::None);
    store.deallocate(key(1), 99 * UNIT + 4096, 4096).await.unwrap();
    assert_eq!(store.hole_in(key(1), ranges(0)).await.unwrap(), Sought::Hole(99 * UNIT + 4096));
    assert_eq!(store.hole_in(key(1), ranges(34)).await.unwrap(), Sought::None);
    assert!(matches!(store.hole_in(key(2), ranges(0)).await, Err(StoreError::Missing)));
}

#[test]
fn in_memory() {
    simulate(async |env| story(&env, &open(&env, &MemDevice::new()).await.unwrap()).await);
}

#[tokio::test]
async fn in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    story(&env, &open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap()).await;
}

#[test]
fn unstable_is_lost_and_the_verifier_says_so() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.write_at(&access(1), 0, bytes(1, 4096), Stability::FileSync).await.unwrap();
        let wrote = store.write_at(&access(1), 4096, bytes(2, 4096), Stability::Unstable).await.unwrap();
        assert_eq!(store.verifier(key(1)), wrote);
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_ne!(store.commit(key(1)).await.unwrap(), wrote);
        assert_eq!(store.stat(key(1)).await.unwrap().unwrap().size, 4096);
    });
}

#[test]
fn what_was_promised_survives() {
    for stability in [Stability::DataSync, Stability::FileSync, Stability::Unstable] {
        simulate(async |env| {
            let device = MemDevice::new();
            let store = open(&env, &device).await.unwrap();
            let wrote = store.write_at(&access(1), 0, bytes(9, 10_000), stability).await.unwrap();
            if stability == Stability::Unstable {
                assert_eq!(store.commit(key(1)).await.unwrap(), wrote);
            }
            device.crash();
            drop(store);
            let store = open(&env, &device).await.unwrap();
            assert_eq!(store.read_at(key(1), 0, 10_000).await.unwrap().data, bytes(9, 10_000));
        });
    }
}

#[test]
fn a_device_that_lies_about_flushes_is_caught_by_the_same_check() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        device.lie(true);
        store.write_at(&access(1), 0, bytes(9, 10_000), Stability::FileSync).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert!(matches!(store.read_at(key(1), 0, 10_000).await, Err(StoreError::Missing)));
    });
}

#[test]
fn a_failed_flush_is_told_and_changes_the_verifier_of_that_file() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        let one = store.write_at(&access(1), 0, bytes(1, 10), Stability::Unstable).await.unwrap();
        let two = store.write_at(&access(2), 0, bytes(1, 10), Stability::Unstable).await.unwrap();
        device.fail_syncs(1);
        assert!(matches!(store.commit(key(1)).await, Err(StoreError::Io(_))));
        assert_ne!(store.commit(key(1)).await.unwrap(), one, "or the lost write passes as committed");
        assert_eq!(store.commit(key(2)).await.unwrap(), two);
        assert_eq!(store.flush_failures(), 1);
        device.fail_syncs(1);
        assert!(store.write_at(&access(2), 0, bytes(1, 10), Stability::DataSync).await.is_err());
        assert_ne!(store.verifier(key(2)), two);
    });
}

/// Linux would show it from memory as if it had been written, until that is needed for something else.
#[test]
fn what_a_flush_failed_to_write_is_not_read() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.write_at(&access(1), 0, bytes(1, 10_000), Stability::FileSync).await.unwrap();
        store.write_at(&access(1), 4096, bytes(2, 10), Stability::Unstable).await.unwrap();
        assert_eq!(
            store.read_medium(key(1), 4096, 10).await.unwrap().data,
            bytes(2, 10),
            "it is written first"
        );
        device.fail_syncs(1);
        store.commit(key(1)).await.unwrap_err();
        let was = bytes(1, 10_000).slice(4096..4106);
        assert_eq!(store.read_at(key(1), 4096, 10).await.unwrap().data, was);
        // Nor does the medium show what cannot be let go of.
        device.keep_failed(true);
        store.write_at(&access(1), 4096, bytes(2, 10), Stability::Unstable).await.unwrap();
        device.fail_syncs(1);
        store.commit(key(1)).await.unwrap_err();
        assert_eq!(store.read_medium(key(1), 4096, 10).await.unwrap().data, was);
        store.commit(key(1)).await.unwrap();
        assert_eq!(store.read_medium(key(1), 4096, 10).await.unwrap().data, was, "nothing was left to flush");
    });
}

/// A file system that went read-only writes nothing, and so reads nothing past what it has in memory: what is there is read all the
/// same, for whoever copies it away.
#[test]
fn what_cannot_be_flushed_any_more_is_read_from_memory() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.write_at(&access(1), 0, bytes(1, 10_000), Stability::FileSync).await.unwrap();
        store.write_at(&access(1), 4096, bytes(2, 10), Stability::Unstable).await.unwrap();
        device.set_read_only(true);
        assert_eq!(store.read_medium(key(1), 4096, 10).await.unwrap().data, bytes(2, 10));
        assert_eq!(store.read_medium(key(1), 0, 10).await.unwrap().data, bytes(1, 10));
    });
}

/// The device tells a failed flush once, to whoever asks first.
#[test]
fn a_flush_that_failed_for_somebody_else_is_told_to_who_wrote_before_it() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        let since = store.verifier(key(1));
        store.fill(key(1), 0, 0, bytes(1, 10)).await.unwrap();
        store.commit_since(key(1), since).await.unwrap();
        store.fill(key(1), 0, 0, bytes(2, 10)).await.unwrap();
        device.fail_syncs(1);
        store.commit(key(1)).await.unwrap_err();
        assert!(matches!(store.commit_since(key(1), since).await, Err(StoreError::Io(_))));
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.read_at(key(1), 0, 10).await.unwrap().data, bytes(1, 10), "it is lost");
        // Written again, it is durable.
        let since = store.verifier(key(1));
        store.fill(key(1), 0, 0, bytes(2, 10)).await.unwrap();
        store.commit_since(key(1), since).await.unwrap();
    });
}

type Work = BoxFuture<'static, Result<(), StoreError>>;

/// Work that begins when a flush has begun.
#[derive(Default)]
struct Beside {
    next: Mutex<Option<Work>>,
    begun: Mutex<Option<Work>>,
}

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Beside")
    }
}

impl Watch for Beside {
    fn writing(&self, _direct: bool) {}
    fn flushes(&self) {
        let next = self.next.lock().unwrap().take();
        if let Some(mut work) = next {
            let waits = work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
            assert!(waits, "for the next flush");
            *self.begun.lock().unwrap() = Some(work);
        }
    }
}

/// What comes to be in memory while a flush is on its way is lost with it, and the flush after that one says yes.
#[test]
fn what_was_to_be_durable_is_not_lost_with_somebody_elses_flush() {
    let works: [fn(Arc<Store>) -> Work; 5] = [
        // By the calling thread, and by another one.
        |store| Box::pin(async move { write(&store, 4096, 4096).await }),
        |store| Box::pin(async move { write(&store, 1, 20_000).await }),
        |store| Box::pin(async move { store.truncate(key(1), 100).await }),
        |store| Box::pin(async move { store.allocate(key(1), 0, 0, 1 << 16).await }),
        |store| Box::pin(async move { store.deallocate(key(1), 0, 4096).await }),
    ];
    async fn write(store: &Arc<Store>, offset: u64, length: usize) -> Result<(), StoreError> {
        store.write_at(&access(1), offset, bytes(3, length), Stability::FileSync).await.map(drop)
    }
    for work in works {
        simulate(async move |env| {
            let (device, watch) = (MemDevice::new(), Arc::new(Beside::default()));
            let (inner, watching) = (Box::new(device.clone()), Arc::clone(&watch));
            let store = open_on(&env, Arc::new(WatchedDevice(inner, watching))).await.unwrap();
            store.write_at(&access(1), 0, bytes(1, 30_000), Stability::FileSync).await.unwrap();
            store.write_at(&access(1), 0, bytes(2, 10), Stability::Unstable).await.unwrap();
            *watch.next.lock().unwrap() = Some(work(Arc::clone(&store)));
            device.fail_syncs(1);
            store.commit(key(1)).await.unwrap_err();
            let begun = watch.begun.lock().unwrap().take().unwrap();
            let told = begun.await;
            assert!(matches!(told, Err(StoreError::Io(_))), "{told:?}");
            // And again there is nothing to be told.
            work(Arc::clone(&store)).await.unwrap();
        });
    }
}

/// Its data and its entry are durable then, but nothing says that they must be there.
#[test]
fn a_file_that_could_not_be_recorded_is_recorded_with_the_next_commit() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.write_at(&access(1), 0, bytes(1, 10), Stability::Unstable).await.unwrap();
        device.fail_syncs_after(2, 9);
        assert!(matches!(store.commit(key(1)).await, Err(StoreError::Io(_))));
        device.fail_syncs(0);
        assert_eq!(store.flush_failures(), 0, "the file's own flushes went well");
        store.commit(key(1)).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.unreported(9), [(key(1), 0)]);
    });
}

/// Its writer's process died with the page cache alive, so the file is there; or it was closed for want of room.
#[test]
fn a_file_that_is_opened_again_is_recorded_with_the_generation_that_writes() {
    simulate(async |env| {
        let device = MemDevice::new();
        let access = Access { generation: 1, ..access(1) };
        let store = open(&env, &device).await.unwrap();
        store.write_at(&access, 0, bytes(1, 10), Stability::Unstable).await.unwrap();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert!(store.unreported(9).is_empty());
        store.write_at(&access, 0, bytes(1, 10), Stability::FileSync).await.unwrap();
        assert_eq!(store.unreported(9), [(key(1), 1)]);
    });
}

/// A commit, or a read before the write, says no generation.
#[test]
fn a_file_is_recorded_with_the_generation_of_its_writer_if_there_was_one() {
    simulate(async |env| {
        let device = MemDevice::new();
        let access = |file| Access { generation: 1, ..access(file) };
        let store = open(&env, &device).await.unwrap();
        for file in 1..=2 {
            store.write_at(&access(file), 0, bytes(1, 10), Stability::Unstable).await.unwrap();
        }
        drop(store);
        let store = open(&env, &device).await.unwrap();
        store.commit(key(1)).await.unwrap();
        store.read_at(key(2), 0, 10).await.unwrap();
        store.write_at(&access(2), 0, bytes(1, 10), Stability::FileSync).await.unwrap();
        assert_eq!(store.unreported(9), [(key(1), 0), (key(2), 1)]);
    });
}

#[test]
fn a_file_is_recorded_once() {
    simulate(async |env| {
        let device = MemDevice::new();
        for incarnation in 0..2 {
            let store = open(&env, &device).await.unwrap();
            store.write_at(&access(1), 0, bytes(1, 10), Stability::FileSync).await.unwrap();
            assert_eq!(store.unreported(9).len(), 1 - incarnation);
            store.reported(&[key(1)]);
            // The journal's next row takes that along.
            store.admit_caller(1).await.unwrap();
        }
    });
}

#[test]
fn commits_without_new_writes_cost_nothing() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.write_at(&access(1), 0, bytes(1, 10), Stability::Unstable).await.unwrap();
        store.commit(key(1)).await.unwrap();
        let before = device.syncs();
        store.commit(key(1)).await.unwrap();
        assert_eq!(device.syncs(), before);
        store.write_at(&access(1), 0, bytes(1, 10), Stability::Unstable).await.unwrap();
        store.commit(key(1)).await.unwrap();
        assert_eq!(device.syncs(), before + 1, "one flush: entry and existence are durable already");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_commits_share_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
    let tasks: Vec<_> = (0..64u64)
        .map(|i| {
            let store = Arc::clone(&store);
            async move {
                store
                    .write_at(&access(1), i * 4096, bytes(i as u8, 4096), Stability::FileSync)
                    .await
                    .unwrap();
            }
        })
        .collect();
    let mut set = tokio::task::JoinSet::new();
    tasks.into_iter().for_each(|task| {
        set.spawn(task);
    });
    while let Some(done) = set.join_next().await {
        done.unwrap();
    }
    for i in 0..64u64 {
        assert_eq!(store.read_at(key(1), i * 4096, 4096).await.unwrap().data, bytes(i as u8, 4096));
    }
}

/// Of each it is said once that it is there, for several who wait for that, and with the last answer nobody uses the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_files_come_into_being_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    for round in 0..4_u64 {
        let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
        let mut set = tokio::task::JoinSet::new();
        for (file, place) in (0..32).flat_map(|file| (0..3).map(move |place| (round * 32 + file, place))) {
            let store = Arc::clone(&store);
            set.spawn(async move {
                let data = bytes(file as u8, 20_000);
                store.write_at(&access(file), place * 20_000, data, Stability::FileSync).await.unwrap();
            });
        }
        while let Some(done) = set.join_next().await {
            done.unwrap();
        }
        assert_eq!(store.unreported(1000).len() as u64, (round + 1) * 32);
    }
}

/// How long a file is, the metadata server knows; a data file may not be able to be so long.
#[test]
fn a_truncation_beyond_what_a_file_can_hold_has_nothing_to_cut() {
    simulate(async |env| {
        for checksums in [false, true] {
            let device = MemDevice::new();
            device.set_longest(1 << 20);
            let options = sluice_store::Options { checksums: Some(checksums), ..options() };
            let store = Store::open(&env, Arc::new(device.clone()), options).await.unwrap();
            store.write_at(&access(1), 0, bytes(1, 5000), Stability::Unstable).await.unwrap();
            for _ in 0..2 {
                store.truncate(key(1), 1 << 44).await.unwrap();
                assert_eq!(store.stat(key(1)).await.unwrap().unwrap().size, 5000);
            }
            assert_eq!(store.read_at(key(1), 0, 9000).await.unwrap().data, bytes(1, 5000));
            // Nor has a hole to there.
            store.deallocate(key(1), 5000, 1 << 44).await.unwrap();
            store.deallocate(key(1), 1 << 43, 1 << 43).await.unwrap();
            assert_eq!(store.read_at(key(1), 0, 9000).await.unwrap().data, bytes(1, 5000));
            store.truncate(key(1), 1 << 20).await.unwrap();
            assert_eq!(store.stat(key(1)).await.unwrap().unwrap().size, 1 << 20);
            // It ends behind what the device has come to refuse: that has to be cut, and is not.
            device.set_longest(1 << 10);
            let refused = store.truncate(key(1), 1 << 12).await;
            assert!(matches!(refused, Err(StoreError::TooBig)), "{refused:?}");
            // What was written before is durable with it.
            device.set_longest(1 << 20);
            store.write_at(&access(1), 4096, bytes(2, 904), Stability::Unstable).await.unwrap();
            store.truncate(key(1), 1 << 44).await.unwrap();
            device.crash();
            drop(store);
            let store = open(&env, &device).await.unwrap();
            assert_eq!(store.read_at(key(1), 4096, 904).await.unwrap().data, bytes(2, 904));
        }
    });
}

#[test]
fn a_lost_file_is_not_written_into_being_again() {
    simulate(async |env| {
        let store = open(&env, &MemDevice::new()).await.unwrap();
        let lost = Access { must_exist: true, ..access(1) };
        let write = store.write_at(&lost, 0, bytes(1, 1), Stability::Unstable).await;
        assert!(matches!(write, Err(StoreError::Missing)), "{write:?}");
        store.write_at(&access(1), 0, bytes(1, 1), Stability::Unstable).await.unwrap();
        store.write_at(&lost, 0, bytes(1, 1), Stability::Unstable).await.unwrap();
    });
}

#[test]
fn many_files_through_a_small_cache() {
    simulate(async |env| {
        let device = MemDevice::new();
        let options = sluice_store::Options { open_files: 16, ..options() };
        let store = Store::open(&env, Arc::new(device.clone()), options).await.unwrap();
        for file in 0..300 {
            store.write_at(&access(file), 0, bytes(file as u8, 100), Stability::Unstable).await.unwrap();
        }
        for file in 0..300 {
            assert_eq!(store.read_at(key(file), 0, 100).await.unwrap().data, bytes(file as u8, 100));
        }
        let mut seen = Vec::new();
        loop {
            let page = store.inventory(seen.last().copied(), 7).await.unwrap();
            if page.is_empty() {
                break;
            }
            seen.extend(page.iter().map(|entry| entry.key));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..300).map(key).collect::<Vec<_>>());
        // Unflushed files that had to make room were flushed first, and still tell their news.
        for file in 0..300 {
            store.commit(key(file)).await.unwrap();
        }
        assert_eq!(store.unreported(1000).len(), 300);
    });
}

/// Of a process that may have so many descriptors.
#[derive(Debug)]
struct Limited(u64);

impl Process for Limited {
    fn descriptors(&self) -> Descriptors {
        Descriptors { open: 0, most: self.0 }
    }
    fn processors(&self) -> usize {
        1
    }
    fn kept_waiting(&self) -> Option<(std::thread::ThreadId, Duration)> {
        None
    }
}

/// Connections need descriptors, too.
#[test]
fn open_files_leave_half_of_the_descriptors_to_others() {
    for (checksums, most) in [(false, 512), (true, 256)] {
        simulate(async |mut env| {
            env.process = Arc::new(Limited(1024));
            let device = MemDevice::new();
            let options = sluice_store::Options { checksums: Some(checksums), ..options() };
            let store = Store::open(&env, Arc::new(device.clone()), options).await.unwrap();
            let before = device.all_opened();
            for file in 0..1500 {
                store.write_at(&access(file), 0, bytes(1, 100), Stability::FileSync).await.unwrap();
            }
            let open = device.all_opened() - before;
            assert!((most / 2..=most).contains(&open), "{open} with checksums {checksums}");
        });
    }
}

#[test]
fn where_descriptors_run_out_idle_files_are_closed() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = Store::open(&env, Arc::new(device.clone()), options()).await.unwrap();
        let others = device.all_opened();
        device.set_descriptors(others + 100);
        for file in 0..300 {
            store.write_at(&access(file), 0, bytes(file as u8, 100), Stability::FileSync).await.unwrap();
        }
        for file in 0..300 {
            assert_eq!(store.read_at(key(file), 0, 100).await.unwrap().data, bytes(file as u8, 100));
        }
        // What was written is not flushed yet: it is, before its file is closed.
        for file in 300..600 {
            store.write_at(&access(file), 0, bytes(file as u8, 100), Stability::Unstable).await.unwrap();
        }
        for file in 300..600 {
            assert_eq!(store.read_at(key(file), 0, 100).await.unwrap().data, bytes(file as u8, 100));
        }
        // Somebody else has taken all.
        device.set_descriptors(0);
        let refused = store.read_at(key(0), 0, 100).await;
        assert!(matches!(refused, Err(StoreError::NoDescriptors)), "{refused:?}");
        device.set_descriptors(others + 100);
        assert_eq!(store.read_at(key(0), 0, 100).await.unwrap().data, bytes(0, 100));
    });
}

/// What the metadata server relies on: nothing that was written after a look goes unnoticed.
#[test]
fn a_write_after_a_look_is_noticed_whatever_the_cache_does() {
    simulate(async |env| {
        let device = MemDevice::new();
        let options = sluice_store::Options { open_files: 16, ..options() };
        let store = Store::open(&env, Arc::new(device.clone()), options).await.unwrap();
        let write = async |file| {
            store.write_at(&access(file), 0, bytes(1, 10), Stability::FileSync).await.unwrap();
        };
        write(1).await;
        let look = store.writes(key(1)).newest;
        assert!(store.writes(key(1)).last <= look);
        write(2).await;
        assert!(store.writes(key(1)).last <= look, "others do not count");
        write(1).await;
        assert!(store.writes(key(1)).last > look);
        // Written, and closed to make room.
        let look = store.writes(key(1)).newest;
        write(1).await;
        for file in 10..300 {
            write(file).await;
        }
        assert!(store.writes(key(1)).last > look);
        let look = store.writes(key(1)).newest;
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert!(store.writes(key(1)).last > look, "before a restart there may have been more");
        let look = store.writes(key(1)).newest;
        assert!(store.writes(key(1)).last <= look);
    });
}

/// On a real file system: a read beside truncations sees data, zeros or an end, and never an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn reads_beside_truncations() {
    const SIZE: u64 = 64 << 10;
    // Where the build is, as that is a disk: tmpfs does not say whether it would wait, so it never answers at once.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let env = Env::system();
    let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
    store.write_at(&access(1), 0, bytes(7, SIZE as usize), Stability::Unstable).await.unwrap();
    let cutter = Arc::clone(&store);
    #[allow(clippy::disallowed_methods, reason = "a test on a real machine")]
    let cutting = tokio::spawn(async move {
        for round in 0..300_u64 {
            cutter.truncate(key(1), round * 977 % SIZE).await.unwrap();
            let all = bytes(7, SIZE as usize);
            cutter.write_at(&access(1), 0, all, Stability::Unstable).await.unwrap();
        }
    });
    let (mut at_once, mut round) = (0, 0);
    while !cutting.is_finished() || round < 1000 {
        round += 1;
        let (offset, mut buffer) = (round * 4099 % SIZE, [1; 4096]);
        let whole = store.read_now(key(1), offset, &mut buffer);
        at_once += u32::from(whole);
        assert!(!whole || buffer.iter().all(|byte| [0, 7].contains(byte)));
        let read = store.read_at(key(1), offset, 4096).await.unwrap();
        assert!(read.data.iter().all(|byte| [0, 7].contains(byte)));
        assert_eq!(read.end, read.data.len() < 4096);
        tokio::task::yield_now().await;
    }
    cutting.await.unwrap();
    assert!(at_once > 0, "nothing was answered at once");
}

#[tokio::test]
async fn small_writes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
    assert!(store.write_now(&access(1), 0, &[1; 4096]).is_none(), "making the file may block");
    store.write_at(&access(1), 0, bytes(1, 300_000), Stability::Unstable).await.unwrap();
    assert!(store.takes_now(4096, 4096) && !store.takes_now(1, 4096) && !store.takes_now(4096, 100));
    assert!(!store.takes_now(0, 1 << 20));
    let verifier = store.write_now(&access(1), 4096, &[2; 4096]).unwrap().unwrap();
    assert_eq!(store.commit(key(1)).await.unwrap(), verifier);
    let read = store.read_at(key(1), 4000, 5000).await.unwrap().data;
    assert_eq!(read[..], [vec![1; 96], vec![2; 4096], vec![1; 808]].concat());
    store.remove(&[(key(1), 0)], sluice_store::Epoch(1)).await.unwrap();
    let late = store.write_now(&access(1), 4096, &[3; 4096]);
    assert!(late.is_none() || late.unwrap().is_err(), "a removed file takes nothing");
}
