//! Data files that come into being: their folders, and what is durable before anybody hears of them.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::watched::{Watch, WatchedDevice};
use common::{access, bytes, key, open, open_on, options, simulate};
use parking_lot::{Condvar, Mutex};
use sluice_env::Env;
use sluice_store::device::{Device, MemDevice};
use sluice_store::{Epoch, Fence, Options, Reflink, Stability, Store, StoreError, Transfer};

async fn put(store: &Arc<Store>, file: u64, stability: Stability) -> Result<(), StoreError> {
    store.write_at(&access(file), 0, bytes(file as u8, 20_000), stability).await.map(drop)
}

/// Ids of data files that lie in the folder of number 0, as docs/ds-format.md has it; the last one does not.
fn neighbours(count: usize) -> Vec<u64> {
    let leaf = |file: u64| {
        let x = (file ^ (file >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % 4096
    };
    let mut files: Vec<u64> = (0..).filter(|file| leaf(*file) == leaf(0)).take(count).collect();
    files.push(1);
    files
}

/// Folders of data wait until so many data files are flushed.
#[derive(Debug, Default)]
struct Together {
    files: usize,
    flushed: Mutex<usize>,
    more: Condvar,
}

impl Watch for Together {
    fn writing(&self, _direct: bool) {}
    fn flushed(&self) {
        *self.flushed.lock() += 1;
        self.more.notify_all();
    }
    fn flushing(&self, folder: &str) -> io::Result<()> {
        // Not one above them: those are made first.
        if folder.matches('/').count() == 2 {
            let mut flushed = self.flushed.lock();
            self.more.wait_while_for(&mut flushed, |flushed| *flushed < self.files, Duration::from_secs(20));
            // They are on their way.
            self.more.wait_for(&mut flushed, Duration::from_millis(50));
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_come_together_share_the_flush_of_the_journal() {
    const FILES: u64 = 48;
    let watch = Together { files: FILES as usize, ..Together::default() };
    let device = WatchedDevice(Box::new(MemDevice::new()), Arc::new(watch));
    let store = open_on(&Env::system(), Arc::new(device)).await.unwrap();
    Arc::clone(&store).make_folders().await;
    let before = store.flushes();
    let mut set = tokio::task::JoinSet::new();
    for file in 0..FILES {
        let store = Arc::clone(&store);
        set.spawn(async move { put(&store, file, Stability::FileSync).await.unwrap() });
    }
    while let Some(done) = set.join_next().await {
        done.unwrap();
    }
    assert_eq!(store.unreported(1000).len() as u64, FILES);
    // Data and folder of each, and the journal for those who came first, and for all others.
    let flushes = store.flushes() - before;
    assert!((2 * FILES + 1..2 * FILES + FILES / 6).contains(&flushes), "{flushes}");
}

/// A device tells of it once, and what it lost may be the entry of any of them.
#[test]
fn a_folder_that_could_not_be_flushed_is_told_to_all_who_come() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        let [recorded, one, two, elsewhere] = neighbours(3)[..] else { panic!("four") };
        put(&store, recorded, Stability::FileSync).await.unwrap();
        for file in [one, two, elsewhere] {
            put(&store, file, Stability::Unstable).await.unwrap();
        }
        // Beside its data, and then without.
        for round in 1..=2 {
            let before = store.verifier(key(two));
            device.fail_syncs(1);
            assert!(matches!(store.commit(key(one)).await, Err(StoreError::Io(_))));
            assert!(matches!(store.commit(key(two)).await, Err(StoreError::Io(_))), "{round}");
            assert_ne!(store.verifier(key(two)), before);
            assert_eq!(store.flush_failures(), 2 * round);
        }
        for file in [one, two, recorded, elsewhere] {
            store.commit(key(file)).await.unwrap();
        }
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert_eq!(store.unreported(9).len(), 4);
        for file in [one, two, recorded, elsewhere] {
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
        let files = neighbours(200);
        put(&store, files[0], Stability::Unstable).await.unwrap();
        let mut count = 1;
        while store.flush_failures() == 0 {
            // What is to be closed has its data flushed, and not its entry.
            device.fail_syncs_after(1, 1);
            put(&store, files[count], Stability::Unstable).await.unwrap();
            count += 1;
        }
        device.fail_syncs(0);
        let mut told = 0;
        for file in &files[..count] {
            told += usize::from(store.commit(key(*file)).await.is_err());
            store.commit(key(*file)).await.unwrap();
        }
        // All but that one, and the one that came after it.
        assert_eq!(told, count - 2);
    });
}

/// A folder has to be opened to be flushed, which fails where so many files are open.
#[derive(Debug)]
struct Scarce {
    device: MemDevice,
    most: AtomicUsize,
}

impl Watch for Scarce {
    fn writing(&self, _direct: bool) {}
    fn flushing(&self, _folder: &str) -> io::Result<()> {
        let short = self.device.all_opened() >= self.most.load(Ordering::Relaxed);
        if short { Err(rustix::io::Errno::MFILE.into()) } else { Ok(()) }
    }
}

async fn where_descriptors_are_scarce(env: &Env, device: &MemDevice) -> (Arc<Store>, Arc<Scarce>) {
    let scarce = Arc::new(Scarce { device: device.clone(), most: AtomicUsize::new(usize::MAX) });
    let watched = WatchedDevice(Box::new(device.clone()), Arc::clone(&scarce) as Arc<dyn Watch>);
    (open_on(env, Arc::new(watched)).await.unwrap(), scarce)
}

/// Where nothing can be opened nothing is lost: it is for later.
#[test]
fn a_folder_that_cannot_be_opened_now_is_flushed_later() {
    simulate(async |env| {
        let device = MemDevice::new();
        let (store, scarce) = where_descriptors_are_scarce(&env, &device).await;
        let files = neighbours(2);
        for file in &files {
            put(&store, *file, Stability::Unstable).await.unwrap();
        }
        let before = files.iter().map(|file| store.verifier(key(*file))).collect::<Vec<_>>();
        scarce.most.store(0, Ordering::Relaxed);
        // Beside its data, and then without.
        for _ in 0..2 {
            for file in &files {
                let failed = store.commit(key(*file)).await;
                assert!(matches!(failed, Err(StoreError::NoDescriptors)), "{failed:?}");
            }
        }
        assert_eq!(store.flush_failures(), 0);
        assert_eq!(files.iter().map(|file| store.verifier(key(*file))).collect::<Vec<_>>(), before);
        scarce.most.store(usize::MAX, Ordering::Relaxed);
        for file in &files {
            put(&store, *file, Stability::FileSync).await.unwrap();
        }
        assert_eq!((store.flush_failures(), store.unreported(9).len()), (0, 3));
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        for file in &files {
            assert_eq!(store.read_at(key(*file), 0, 20_000).await.unwrap().data, bytes(*file as u8, 20_000));
        }
    });
}

#[test]
fn a_data_file_that_nobody_uses_is_closed_for_a_folder() {
    simulate(async |env| {
        let device = MemDevice::new();
        let (store, scarce) = where_descriptors_are_scarce(&env, &device).await;
        put(&store, 1, Stability::FileSync).await.unwrap();
        put(&store, 2, Stability::Unstable).await.unwrap();
        let all = device.all_opened();
        scarce.most.store(all, Ordering::Relaxed);
        store.commit(key(2)).await.unwrap();
        assert_eq!((store.flush_failures(), device.all_opened()), (0, all - 1));
    });
}

#[test]
fn so_it_is_for_the_folder_of_what_is_removed() {
    simulate(async |env| {
        let device = MemDevice::new();
        let (store, scarce) = where_descriptors_are_scarce(&env, &device).await;
        put(&store, 1, Stability::FileSync).await.unwrap();
        put(&store, 2, Stability::FileSync).await.unwrap();
        store.remove(&[(key(2), 0)], Epoch(1)).await.unwrap();
        put(&store, 3, Stability::FileSync).await.unwrap();
        scarce.most.store(device.all_opened() - 1, Ordering::Relaxed);
        store.remove(&[(key(3), 0)], Epoch(1)).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert!(matches!(store.read_at(key(3), 0, 9).await, Err(StoreError::Missing)));
    });
}

/// The thread that flushes for others fails.
#[derive(Debug, Default)]
struct Failing {
    at: Mutex<Option<&'static str>>,
}

impl Failing {
    fn pass(&self, place: &'static str) {
        let fails = *self.at.lock() == Some(place);
        assert!(!fails, "as asked");
    }
}

impl Watch for Failing {
    fn writing(&self, _direct: bool) {}
    fn flushes(&self) {
        self.pass("data");
    }
    fn journals(&self) {
        self.pass("journal");
    }
    fn flushing(&self, folder: &str) -> io::Result<()> {
        // Not one above them.
        if folder.matches('/').count() == 2 {
            self.pass("folder");
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_thread_that_has_failed() {
    let env = Env::system();
    for place in ["data", "folder", "journal"] {
        let failing = Arc::new(Failing::default());
        let watched = WatchedDevice(Box::new(MemDevice::new()), Arc::clone(&failing) as Arc<dyn Watch>);
        let store = open_on(&env, Arc::new(watched)).await.unwrap();
        Arc::clone(&store).make_folders().await;
        put(&store, 1, Stability::Unstable).await.unwrap();
        let before = store.verifier(key(1));
        *failing.at.lock() = Some(place);
        let soon = async |file| {
            let done =
                env.clock.timeout(Duration::from_secs(5), put(&store, file, Stability::FileSync)).await;
            done.unwrap_or_else(|_| panic!("{place}: it waits for ever"))
        };
        let failed = soon(1).await;
        *failing.at.lock() = None;
        assert!(failed.is_err(), "{place}");
        assert!(place != "data" || store.verifier(key(1)) != before, "what was flushed nobody knows");
        // Another thread may have been at the same, and fail a moment later.
        for _ in 0..3 {
            if soon(1).await.is_ok() {
                break;
            }
        }
        soon(1).await.unwrap();
        soon(2).await.unwrap();
        assert_eq!(store.unreported(9).len(), 2);
    }
}

/// Whoever keeps account of the ids that were given out can be told which ones were, whatever became of the data files.
#[test]
fn the_greatest_id_is_known_for_ever() {
    simulate(async |env| {
        let device = MemDevice::new();
        device.set_reflinks(true);
        let mut store = open(&env, &device).await.unwrap();
        assert_eq!(store.newest_file(), 0, "there was none");
        for file in [7, 900, 30] {
            put(&store, file, Stability::FileSync).await.unwrap();
        }
        assert_eq!(store.newest_file(), 900);
        let again = async |store: Arc<Store>| {
            drop(store);
            device.crash();
            open(&env, &device).await.unwrap()
        };
        // By the record that says that it is there.
        store = again(store).await;
        assert_eq!(store.newest_file(), 900);
        // That record is gone with the journal that it was in, and the data file, too.
        store.reported(&[key(7), key(30), key(900)]);
        store.remove(&[(key(900), 0)], Epoch(1)).await.unwrap();
        for _ in 0..3 {
            store = again(store).await;
            assert_eq!((store.newest_file(), store.unreported(9).len()), (900, 0));
        }
        // As it is with one that is rewritten while it is in use.
        put(&store, 1000, Stability::FileSync).await.unwrap();
        store.reported(&[key(1000)]);
        for _ in 0..3 {
            store.fence(&vec![Fence::Holder { holder: 9, epoch: Epoch(2) }; 5000]).await.unwrap();
        }
        assert!(device.stat("journal").unwrap().size < 15_000 * 64, "it was rewritten");
        store = again(store).await;
        assert_eq!(store.newest_file(), 1000);
        // Before anybody waits for it, and in whichever way it comes into being.
        put(&store, 1001, Stability::Unstable).await.unwrap();
        assert_eq!(store.newest_file(), 1001);
        store.allocate(key(1002), 0, 0, 100).await.unwrap();
        assert_eq!(store.newest_file(), 1002);
        let range = |file| Transfer {
            source: key(7),
            must_exist: true,
            source_offset: 0,
            target: key(file),
            generation: 0,
            offset: 0,
            length: 100,
        };
        store.transfer(range(1003)).await.unwrap();
        assert_eq!(store.newest_file(), 1003);
        store.reflink(Reflink { base: None, range: range(1004) }).await.unwrap();
        assert_eq!(store.newest_file(), 1004);
        // Of those the flush of one tells.
        store.commit(key(1004)).await.unwrap();
        store = again(store).await;
        assert_eq!(store.newest_file(), 1004);
    });
}
