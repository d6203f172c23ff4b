//! Data files that come into being: their folders, and what is durable before anybody hears of them.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::watched::{Watch, WatchedDevice};
use common::{access, bytes, key, open, open_on, options, simulate};
use parking_lot::{Condvar, Mutex};
use sluice_env::Env;
use sluice_store::device::{Device, MemDevice};
use sluice_store::{FileKey, Options, Stability, Store, StoreError};

async fn put(store: &Arc<Store>, file: u64, stability: Stability) -> Result<(), StoreError> {
    store.write_at(&access(file), 0, bytes(file as u8, 20_000), stability).await.map(drop)
}

/// Folders of data wait until so many data files are flushed.
#[derive(Debug, Default)]
struct Together {
    files: usize,
    flushed: Mutex<usize>,
    more: Condvar,
    folders: AtomicUsize,
}

impl Watch for Together {
    fn writing(&self, _direct: bool) {}
    fn flushed(&self) {
        *self.flushed.lock() += 1;
        self.more.notify_all();
    }
    fn flushing(&self, folder: &str) {
        // Not one above them: those are made first.
        if folder.matches('/').count() == 2 {
            self.folders.fetch_add(1, Ordering::SeqCst);
            let mut flushed = self.flushed.lock();
            self.more.wait_while_for(&mut flushed, |flushed| *flushed < self.files, Duration::from_secs(20));
            // They are on their way.
            self.more.wait_for(&mut flushed, Duration::from_millis(50));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_come_together_share_the_flush_of_their_folder() {
    const FILES: usize = 48;
    let watch = Arc::new(Together { files: FILES, ..Together::default() });
    let device = WatchedDevice(Box::new(MemDevice::new()), Arc::clone(&watch) as _);
    let store = open_on(&Env::system(), Arc::new(device)).await.unwrap();
    let mut set = tokio::task::JoinSet::new();
    for file in 0..FILES as u64 {
        let store = Arc::clone(&store);
        set.spawn(async move { put(&store, file, Stability::FileSync).await.unwrap() });
    }
    while let Some(done) = set.join_next().await {
        done.unwrap();
    }
    assert_eq!(store.unreported(1000).len(), FILES);
    // That of the first beside its data, that of those who came first, that of all others.
    let folders = watch.folders.load(Ordering::SeqCst);
    assert!(folders <= FILES / 6, "{folders}");
}

/// A device tells of it once, and what it lost may be the entry of any of them.
#[test]
fn a_folder_that_could_not_be_flushed_is_told_to_all_who_come() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        let elsewhere = 1 << 20;
        put(&store, 9, Stability::FileSync).await.unwrap();
        for file in [1, 2, elsewhere] {
            put(&store, file, Stability::Unstable).await.unwrap();
        }
        // Beside its data, and then without.
        for round in 1..=2 {
            let before = store.verifier(key(2));
            device.fail_syncs(1);
            assert!(matches!(store.commit(key(1)).await, Err(StoreError::Io(_))));
            assert!(matches!(store.commit(key(2)).await, Err(StoreError::Io(_))), "{round}");
            assert_ne!(store.verifier(key(2)), before);
            assert_eq!(store.flush_failures(), 2 * round);
        }
        for file in [1, 2, 9, elsewhere] {
            store.commit(key(file)).await.unwrap();
        }
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.unreported(9).len(), 4);
        for file in [1, 2, 9, elsewhere] {
            assert_eq!(store.read_at(key(file), 0, 20_000).await.unwrap().data, bytes(file as u8, 20_000));
        }
    });
}

/// What is closed because others are to be opened: whoever commits it later is told what became of its entry.
#[test]
fn a_file_is_closed_with_its_entry() {
    simulate(async |env| {
        let device = MemDevice::new();
        let options = Options { open_files: 1, ..options() };
        let store = Store::open(&env, Arc::new(device.clone()), options).await.unwrap();
        // More than one for each shard of those that are open.
        for file in 0..200 {
            put(&store, file, Stability::Unstable).await.unwrap();
        }
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        let mut kept = 0;
        for file in 0..200 {
            if let Ok(read) = store.read_at(key(file), 0, 20_000).await {
                kept += u64::from(read.data == bytes(file as u8, 20_000));
            }
        }
        assert!((50..200).contains(&kept), "{kept} had been closed");
    });
}

#[test]
fn a_folder_that_could_not_be_flushed_for_one_that_is_closed_is_told_to_the_others() {
    simulate(async |env| {
        let device = MemDevice::new();
        let options = Options { open_files: 1, ..options() };
        let store = Store::open(&env, Arc::new(device.clone()), options).await.unwrap();
        put(&store, 0, Stability::Unstable).await.unwrap();
        let mut files = 1;
        while store.flush_failures() == 0 {
            // What is to be closed has its data flushed, and not its entry.
            device.fail_syncs_after(1, 1);
            put(&store, files, Stability::Unstable).await.unwrap();
            files += 1;
        }
        device.fail_syncs(0);
        let mut told = 0;
        for file in 0..files {
            told += u64::from(store.commit(key(file)).await.is_err());
            store.commit(key(file)).await.unwrap();
        }
        // All but that one, and the one that came after it.
        assert_eq!(told, files - 2);
    });
}

/// As docs/ds-format.md has it for stores of format 1 and 2.
fn by_id(FileKey { file, .. }: FileKey) -> String {
    let mut x = file;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let leaf = (x ^ (x >> 31)) % 4096;
    format!("data/{:x}/{:02x}/{file:016x}-0000", leaf >> 8, leaf & 0xff)
}

#[test]
fn a_store_keeps_the_rule_by_which_files_have_folders() {
    simulate(async |env| {
        let device = MemDevice::new();
        let old = Options { run: 0, ..options() };
        let store = Store::open(&env, Arc::new(device.clone()), old).await.unwrap();
        put(&store, 1, Stability::FileSync).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        put(&store, 2, Stability::FileSync).await.unwrap();
        for file in [1, 2] {
            assert_eq!(store.read_at(key(file), 0, 9).await.unwrap().data, bytes(file as u8, 9));
            assert_eq!(device.stat(&by_id(key(file))).unwrap().size, 20_000);
        }
        assert_eq!(store.inventory(None, 9).await.unwrap().len(), 2);
        // A new one has those of a run in one folder.
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        for file in [256, 257, 511, 512] {
            put(&store, file, Stability::FileSync).await.unwrap();
        }
        let folder = by_id(key(1)).rsplit_once('/').unwrap().0.to_owned();
        let name = |file: u64| format!("{file:016x}-0000");
        assert_eq!(device.list(&folder).unwrap(), [name(256), name(257), name(511)]);
        let all = store.inventory(None, 9).await.unwrap();
        assert_eq!(all.len(), 4);
        for (at, entry) in all.iter().enumerate() {
            assert_eq!(store.inventory(Some(entry.key), 9).await.unwrap(), all[at + 1..]);
        }
    });
}
