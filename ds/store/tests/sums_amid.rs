//! Checksums where the device fails, or somebody writes, in the middle of something.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::summed::*;
use common::watched::{Watch, WatchedDevice};
use common::{access, bytes, key, simulate};
use parking_lot::{Condvar, Mutex};
use sluice_env::Env;
use sluice_store::device::{Device, MemDevice};
use sluice_store::{Access, Epoch, Options, Stability, Store, StoreError, SumOptions};

/// The list of what is in quarantine cannot be saved, for one reason and another.
#[test]
fn a_list_that_cannot_be_saved_fails_those_whose_bytes_it_is_about() {
    simulate(async |env| {
        for full in [false, true] {
            let device = MemDevice::new();
            let store = open(&env, &device).await;
            for file in 1..=3 {
                put(&store, file, 0, 7, 2 * BLOCK as usize).await;
            }
            rest(&env, &store, 30).await;
            device.rot(&path(&device, key(1), ""), 17);
            device.rot(&path(&device, key(3), ""), 17);
            scrub(&env, &store).await;
            assert_eq!(store.damaged().1, [damage(1, 0, 1), damage(3, 0, 1)]);
            for file in [1, 2] {
                let data = bytes(9, BLOCK as usize);
                store.write_at(&access(file), 0, data, Stability::Unstable).await.unwrap();
            }
            // So there is something to be saved that is nobody's.
            store.remove(&[(key(3), 0)], Epoch(1)).await.unwrap();
            let other = store.verifier(key(2));
            if full {
                device.set_capacity(0);
            } else {
                device.set_descriptors(device.all_opened());
            }
            store.commit(key(2)).await.unwrap();
            assert_eq!((store.flush_failures(), store.verifier(key(2))), (0, other));
            // Asked again, too: it still is bad after a crash.
            for _ in 0..2 {
                let own = store.commit(key(1)).await;
                match full {
                    true => assert!(matches!(own, Err(StoreError::NoSpace)), "{own:?}"),
                    false => assert!(matches!(own, Err(StoreError::NoDescriptors)), "{own:?}"),
                }
            }
            device.set_capacity(1 << 40);
            device.set_descriptors(usize::MAX);
            store.commit(key(1)).await.unwrap();
            device.crash();
            drop(store);
            let store = open(&env, &device).await;
            assert_eq!(store.damaged().1, []);
            assert_eq!(store.read_at(key(1), 0, 1).await.unwrap().data, bytes(9, 1));
        }
    });
}

/// Reads of single blocks fail, and say nothing about the medium.
#[derive(Debug, Default)]
struct SecondLooks(AtomicBool);

impl Watch for SecondLooks {
    fn writing(&self, _direct: bool) {}
    fn reading(&self, length: usize) -> io::Result<()> {
        let fails = length as u64 == BLOCK && self.0.load(Ordering::Relaxed);
        if fails { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
    }
}

#[test]
fn a_second_look_that_fails_for_another_reason_says_nothing_about_the_block() {
    simulate(async |env| {
        let (device, looks) = (MemDevice::new(), Arc::new(SecondLooks::default()));
        let watched = WatchedDevice(Box::new(device.clone()), Arc::clone(&looks) as Arc<dyn Watch>);
        let store = open_on(&env, Arc::new(watched)).await;
        for file in [1, 2] {
            put(&store, file, 0, 7, 1 << 20).await;
        }
        rest(&env, &store, 30).await;
        for file in [1, 2] {
            device.rot(&path(&device, key(file), ""), 70 * BLOCK);
        }
        // One is looked at by a scrub, the other when it has come to rest again.
        put(&store, 2, 20 * BLOCK, 8, BLOCK as usize).await;
        looks.0.store(true, Ordering::Relaxed);
        scrub(&env, &store).await;
        rest(&env, &store, 30).await;
        assert_eq!((store.damaged().1, store.scrubbed().bad), (vec![], 0));
        looks.0.store(false, Ordering::Relaxed);
        scrub(&env, &store).await;
        rest(&env, &store, 30).await;
        assert_eq!(store.damaged().1, [damage(1, 70 * BLOCK, 1), damage(2, 70 * BLOCK, 1)]);
    });
}

/// A part of it may be there.
#[test]
fn what_a_failed_write_touched_gets_sums_again_and_is_closed() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 10 * BLOCK as usize).await;
        rest(&env, &store, 30).await;
        let look = store.writes(key(1)).newest;
        device.set_longest(50 * BLOCK);
        let write = store.write_at(&access(1), 49 * BLOCK, bytes(8, 8192), Stability::Unstable).await;
        assert!(matches!(write, Err(StoreError::TooBig)), "{write:?}");
        let idle = env.clock.timeout(Duration::from_secs(40), Arc::clone(&store).close_idle());
        let _ = tokio::join!(rest(&env, &store, 40), idle);
        assert_eq!(store.scrubbed().sealed, 20 * BLOCK);
        assert_eq!(device.opened(&path(&device, key(1), "")), 0);
        assert!(store.writes(key(1)).last > look);
    });
}

/// Somebody does something, once, when a list of what is in quarantine begins to be written.
struct Amid(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for Amid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Amid")
    }
}

impl Watch for Amid {
    fn writing(&self, _direct: bool) {}
    fn creating(&self, path: &str) {
        if path.starts_with("quarantine") {
            let what = self.0.lock().take();
            what.into_iter().for_each(|what| what());
        }
    }
}

/// In real time: who writes stands still for a moment.
#[allow(clippy::disallowed_methods, reason = "in real time")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_rewritten_while_it_is_found_bad_is_good() {
    let (env, device, amid) = (Env::system(), MemDevice::new(), Arc::new(Amid(Mutex::default())));
    let watched = WatchedDevice(Box::new(device.clone()), Arc::clone(&amid) as Arc<dyn Watch>);
    let sums = SumOptions { quiet: Duration::ZERO, rate: 0, interval: Duration::ZERO };
    let store = Store::open(&env, Arc::new(watched), Options { sums, ..summed() }).await.unwrap();
    put(&store, 1, 0, 7, 10 * BLOCK as usize).await;
    let keeper = tokio::spawn(Arc::clone(&store).keep_sums());
    let scrubbed = async || {
        store.scrub();
        while store.scrubbed().running {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    while store.scrubbed().sealed < 10 * BLOCK {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let data = path(&device, key(1), "");
    device.rot(&data, 17);
    scrubbed().await;
    assert_eq!(store.damaged().1, [damage(1, 0, 1)]);
    // The first block is good again, which is noted, and the second has become bad.
    device.rot(&data, 17);
    device.rot(&data, BLOCK + 17);
    let (writes, runtime) = (Arc::clone(&store), tokio::runtime::Handle::current());
    let (done, wait) = std::sync::mpsc::channel();
    let (ended, has_ended) = tokio::sync::oneshot::channel();
    *amid.0.lock() = Some(Box::new(move || {
        runtime.spawn(async move {
            put(&writes, 1, BLOCK, 9, BLOCK as usize).await;
            let _ = done.send(());
            let _ = ended.send(());
        });
        // It may have to wait for us.
        let _ = wait.recv_timeout(Duration::from_millis(500));
    }));
    scrubbed().await;
    has_ended.await.unwrap();
    assert_eq!(store.read_at(key(1), BLOCK, 1).await.unwrap().data, bytes(9, 1));
    assert_eq!(store.damaged().1, []);
    keeper.abort();
}

/// Nobody looks into folders of data files before he may.
#[derive(Debug, Default)]
struct Held {
    asked: AtomicBool,
    may: Mutex<bool>,
    changed: Condvar,
}

impl Held {
    fn let_go(&self) {
        *self.may.lock() = true;
        self.changed.notify_all();
    }
}

impl Watch for Held {
    fn writing(&self, _direct: bool) {}
    fn listing(&self, folder: &str) -> io::Result<()> {
        if folder.starts_with("data/") {
            self.asked.store(true, Ordering::Release);
            let mut may = self.may.lock();
            while !*may && !self.changed.wait_for(&mut may, Duration::from_secs(60)).timed_out() {}
        }
        Ok(())
    }
}

fn has_sums(device: &MemDevice, file: u64) -> bool {
    let (folder, name) = (path(device, key(file), ""), format!("{}.sums", key(file)));
    let folder = folder.rsplit_once('/').unwrap().0;
    device.list(folder).unwrap().contains(&name)
}

/// In real time: of very many data files it takes minutes.
#[allow(clippy::disallowed_methods, reason = "in real time")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checksums_that_are_switched_off_are_removed_while_clients_are_served() {
    let (env, device) = (Env::system(), MemDevice::new());
    let sums = SumOptions { quiet: Duration::ZERO, rate: 0, interval: Duration::ZERO };
    let store = Store::open(&env, Arc::new(device.clone()), Options { sums, ..summed() }).await.unwrap();
    for file in 1..=3 {
        put(&store, file, 0, 7, BLOCK as usize).await;
    }
    let keeper = tokio::spawn(Arc::clone(&store).keep_sums());
    while store.scrubbed().sealed < 3 * BLOCK {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    keeper.abort();
    drop(keeper.await);
    device.crash_keeping(|| true);
    drop(store);

    let held = Arc::new(Held::default());
    let watched = WatchedDevice(Box::new(device.clone()), Arc::clone(&held) as Arc<dyn Watch>);
    let off = Options { checksums: Some(false), ..summed() };
    let opening = Store::open(&env, Arc::new(watched), off);
    let Ok(opened) = tokio::time::timeout(Duration::from_secs(10), opening).await else {
        held.let_go();
        panic!("it waits");
    };
    let store = opened.unwrap();
    let keeper = tokio::spawn(Arc::clone(&store).keep_sums());
    while !held.asked.load(Ordering::Acquire) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    put(&store, 1, 0, 9, 100).await;
    assert_eq!(store.read_at(key(1), 0, 1).await.unwrap().data, bytes(9, 1));
    assert!((1..=3).all(|file| has_sums(&device, file)));
    held.let_go();
    keeper.await.unwrap();
    assert!((1..=3).all(|file| !has_sums(&device, file)));
    assert_eq!(store.read_at(key(2), 0, 1).await.unwrap().data, bytes(7, 1));
}

#[test]
fn what_a_removal_of_checksums_left_the_next_start_removes_and_nobody_believes() {
    simulate(async |env| {
        let device = MemDevice::new();
        let start = async |checksums| {
            Store::open(&env, Arc::new(device.clone()), Options { checksums, ..summed() }).await.unwrap()
        };
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        put(&store, 2, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        device.crash_keeping(|| true);
        drop(store);
        let store = start(Some(false)).await;
        put(&store, 1, 0, 8, 100).await;
        device.crash();
        drop(store);
        assert!(has_sums(&device, 1) && has_sums(&device, 2), "nobody came to it");
        // Nothing can be removed now. And it is not told again that there are to be none.
        let store = start(None).await;
        assert!(!store.scrubbed().on);
        device.set_read_only(true);
        rest(&env, &store, 5).await;
        device.set_read_only(false);
        assert!(has_sums(&device, 1) && device.stat("sums.left").is_ok());
        device.crash();
        drop(store);
        // Switched on in between, those of before say nothing, and those of now stay.
        let store = open(&env, &device).await;
        scrub(&env, &store).await;
        rest(&env, &store, 30).await;
        assert_eq!((store.damaged().1, store.scrubbed().sealed), (vec![], 2 << 20));
        scrub(&env, &store).await;
        assert_eq!((store.damaged().1, store.scrubbed().compared), (vec![], 2 << 20));
        device.crash_keeping(|| true);
        drop(store);
        drop(start(Some(false)).await);
        let store = start(None).await;
        rest(&env, &store, 5).await;
        assert!(!has_sums(&device, 1) && !has_sums(&device, 2));
        assert!(device.stat("sums.left").is_err(), "no start looks for any again");
    });
}

/// As a crash in the middle of a removal leaves it.
#[test]
fn sums_left_behind_say_nothing_about_a_file_that_comes_again() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        let side = path(&device, key(1), ".sums");
        let mut old = vec![0; 5000];
        let length = device.open(&side).unwrap().read_at(&mut old, 0).unwrap();
        store.remove(&[(key(1), 0)], Epoch(1)).await.unwrap();
        device.create(&side).unwrap().write_at(&old[..length], 0).unwrap();
        let again = Access { generation: 1, ..access(1) };
        store.write_at(&again, 0, bytes(8, 9000), Stability::FileSync).await.unwrap();
        device.crash_keeping(|| true);
        drop(store);
        let store = open(&env, &device).await;
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, []);
        rest(&env, &store, 30).await;
        scrub(&env, &store).await;
        assert_eq!((store.damaged().1, store.scrubbed().compared), (vec![], 9000));
        // It is there, and may be closed: what it has stays.
        drop(store);
        device.crash_keeping(|| true);
        let store = open(&env, &device).await;
        store.write_at(&again, 8 * BLOCK, bytes(8, 10), Stability::FileSync).await.unwrap();
        assert_eq!(store.scrubbed().unsealed, 1);
    });
}

/// The same of the list of what is in quarantine, which a removal does not wait for.
#[test]
fn quarantine_left_behind_says_nothing_about_a_file_that_comes_again() {
    simulate(async |env| {
        let device = MemDevice::new();
        let mut store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        device.rot(&path(&device, key(1), ""), 17);
        scrub(&env, &store).await;
        store.remove(&[(key(1), 0)], Epoch(1)).await.unwrap();
        let again = Access { generation: 1, ..access(1) };
        for _ in 0..2 {
            device.crash();
            drop(store);
            store = open(&env, &device).await;
            // A part of a block.
            store.write_at(&again, 50, bytes(8, 100), Stability::FileSync).await.unwrap();
            assert_eq!(store.damaged().1, []);
        }
    });
}

/// Somebody pulls a cable, or the device has given up a sector, before there are any sums.
#[test]
fn what_could_not_be_read_when_sums_were_first_made_is_good_when_it_can_be_and_is_not_zeros() {
    simulate(async |env| {
        // What a crash does not lose, and whether zeros are what comes back.
        for (crash, zeros) in [(false, false), (true, false), (false, true), (true, true)] {
            let device = MemDevice::new();
            let unsummed = Options { checksums: None, ..summed() };
            let store = Store::open(&env, Arc::new(device.clone()), unsummed).await.unwrap();
            put(&store, 1, 0, 7, 3 * BLOCK as usize + 10).await;
            drop(store);
            let mut store = open(&env, &device).await;
            let data = path(&device, key(1), "");
            device.set_unreadable(&data, true);
            scrub(&env, &store).await;
            rest(&env, &store, 30).await;
            assert_eq!(store.damaged().1, [damage(1, 0, 4)]);
            if crash {
                device.crash();
                drop(store);
                store = open(&env, &device).await;
            }
            device.set_unreadable(&data, false);
            if zeros {
                device.open(&data).unwrap().write_at(&[0; BLOCK as usize], BLOCK).unwrap();
            }
            for _ in 0..3 {
                scrub(&env, &store).await;
                let bad = if zeros { vec![damage(1, BLOCK, 1)] } else { vec![] };
                assert_eq!(store.damaged().1, bad, "{crash}");
                assert_eq!(is_refused(&store.read_at(key(1), BLOCK, 10).await), zeros);
                assert_eq!(store.read_at(key(1), 0, 10).await.unwrap().data, bytes(7, 10));
                rest(&env, &store, 30).await;
            }
            // What was good has sums again, and so has what is rewritten.
            put(&store, 1, BLOCK, 8, BLOCK as usize).await;
            rest(&env, &store, 30).await;
            for (block, found) in [(2, 1), (1, 2)] {
                device.rot(&data, block * BLOCK);
                scrub(&env, &store).await;
                assert_eq!(store.damaged().1, [damage(1, block * BLOCK, found)]);
            }
        }
    });
}

/// Of a block that was bad nothing is known any more, and it is not shown because it reads.
#[test]
fn what_was_bad_stays_that_when_its_sums_are_lost() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        device.rot(&path(&device, key(1), ""), 5 * BLOCK);
        scrub(&env, &store).await;
        drop(store);
        let store = open(&env, &device).await;
        device.set_unreadable(&path(&device, key(1), ".sums"), true);
        for _ in 0..3 {
            scrub(&env, &store).await;
            rest(&env, &store, 30).await;
            assert_eq!(store.damaged().1, [damage(1, 5 * BLOCK, 1)]);
        }
        assert_eq!(store.scrubbed().lost, 1);
        assert_eq!(store.scrubbed().compared, 1 << 20, "it has sums again");
    });
}

#[test]
fn sums_that_cannot_be_read_are_given_up_and_made_anew() {
    simulate(async |env| {
        // The second flush that fails is that of the folder.
        for fails in [false, true] {
            let device = MemDevice::new();
            let mut store = open(&env, &device).await;
            put(&store, 1, 0, 7, 1 << 20).await;
            rest(&env, &store, 30).await;
            let (data, side) = (path(&device, key(1), ""), path(&device, key(1), ".sums"));
            // All of it reaches the medium, as it may at any time.
            device.open(&side).unwrap().sync_data().unwrap();
            device.sync_dir(data.rsplit_once('/').unwrap().0).unwrap();
            drop(store);
            store = open(&env, &device).await;
            device.set_unreadable(&side, true);
            if fails {
                device.fail_syncs(1);
                let write = store.write_at(&access(1), 0, bytes(8, 10), Stability::Unstable).await;
                assert!(matches!(write, Err(StoreError::Io(_))), "{write:?}");
                assert_eq!(store.read_at(key(1), 0, 1).await.unwrap().data, bytes(7, 1));
            }
            // What is on the device then says nothing of it any more.
            store.write_at(&access(1), 0, bytes(8, 10), Stability::Unstable).await.unwrap();
            assert_eq!(store.scrubbed().lost, 1);
            assert!(
                device
                    .list(data.rsplit_once('/').unwrap().0)
                    .unwrap()
                    .iter()
                    .all(|name| !name.contains("sums"))
            );
            device.crash_keeping(|| true);
            drop(store);
            store = open(&env, &device).await;
            device.set_unreadable(&side, false);
            scrub(&env, &store).await;
            assert_eq!(store.damaged().1, []);
            assert_eq!(store.read_at(key(1), 0, 1).await.unwrap().data, bytes(8, 1));
            rest(&env, &store, 30).await;
            scrub(&env, &store).await;
            assert_eq!((store.damaged().1, store.scrubbed().compared), (vec![], 1 << 20));
            device.rot(&data, 5 * BLOCK);
            scrub(&env, &store).await;
            assert_eq!(store.damaged().1, [damage(1, 5 * BLOCK, 1)]);
        }
    });
}

/// By truncation, or a scrub.
#[test]
fn whoever_needs_sums_that_cannot_be_read_goes_on_without() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        for file in 1..=3 {
            put(&store, file, 0, 7, 2 * REGION as usize).await;
        }
        rest(&env, &store, 30).await;
        drop(store);
        let store = open(&env, &device).await;
        for file in 1..=3 {
            device.set_unreadable(&path(&device, key(file), ".sums"), true);
        }
        store.truncate(key(1), 100).await.unwrap();
        store.deallocate(key(2), 10, 100).await.unwrap();
        scrub(&env, &store).await;
        assert_eq!((store.scrubbed().lost, store.damaged().1), (3, vec![]));
        rest(&env, &store, 30).await;
        scrub(&env, &store).await;
        assert_eq!((store.scrubbed().compared, store.damaged().1), (100 + 4 * REGION, vec![]));
    });
}
