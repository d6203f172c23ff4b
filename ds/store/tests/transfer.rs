//! Ranges that become equal to those of other data files.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::watched::{Watch, WatchedDevice};
use common::{access, bytes, key, open, open_on, options, simulate};
use sluice_env::Env;
use sluice_store::device::{FileDevice, MemDevice, Space};
use sluice_store::{Base, Options, Reflink, Stability, Store, StoreError, Transfer};

fn transfer(source: u64, source_offset: u64, target: u64, offset: u64, length: u64) -> Transfer {
    Transfer {
        source: key(source),
        source_offset,
        must_exist: false,
        target: key(target),
        generation: 0,
        offset,
        length,
    }
}

/// The same on memory and on a real directory.
async fn story(store: &Arc<Store>) {
    // Data in the middle of a hole, and in all of the target.
    store.write_at(&access(1), 100_000, bytes(7, 50_000), Stability::Unstable).await.unwrap();
    store.write_at(&access(2), 0, bytes(9, 300_000), Stability::Unstable).await.unwrap();
    let data = store.transfer(transfer(1, 4096, 2, 8192, 200_000)).await.unwrap();
    assert!((50_000..=50_000 + 2 * 4096).contains(&data), "{data} bytes of data");
    let read = store.read_at(key(2), 0, 300_000).await.unwrap().data;
    let mut expected = vec![9; 300_000];
    expected[8192..208_192].fill(0);
    expected[8192 + 95_904..8192 + 145_904].fill(7);
    assert!(read[..] == expected[..]);
    let before = store.stat(key(2)).await.unwrap().unwrap();
    assert_eq!(before.size, 300_000, "it does not shrink");
    assert!(before.allocated < 200_000, "{before:?}: holes stay holes");
    // To a file that was not there, at odd places.
    store.transfer(transfer(2, 5, 3, 777, 250_001)).await.unwrap();
    let read = store.read_at(key(3), 0, 300_000).await.unwrap();
    assert!(read.data[..777].iter().all(|byte| *byte == 0) && read.end);
    assert!(read.data[777..] == expected[5..250_006]);
    // The target reaches the end of the range, whatever the source has there.
    store.transfer(transfer(1, 140_000, 4, 0, 60_000)).await.unwrap();
    assert_eq!(store.stat(key(4)).await.unwrap().unwrap().size, 60_000);
    assert_eq!(store.transfer(transfer(99, 0, 4, 0, 50_000)).await.unwrap(), 0, "an absent one is a hole");
    assert!(store.read_at(key(4), 0, 60_000).await.unwrap().data.iter().all(|byte| *byte == 0));
    let lost = Transfer { must_exist: true, ..transfer(99, 0, 4, 0, 10) };
    assert!(matches!(store.transfer(lost).await, Err(StoreError::Missing)));
}

#[test]
fn in_memory() {
    simulate(async |env| story(&open(&env, &MemDevice::new()).await.unwrap()).await);
}

#[tokio::test]
async fn in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    story(&open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap()).await;
}

#[test]
fn what_was_committed_survives() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.write_at(&access(1), 0, bytes(7, 50_000), Stability::FileSync).await.unwrap();
        store.transfer(transfer(1, 0, 2, 0, 50_000)).await.unwrap();
        store.commit(key(2)).await.unwrap();
        store.transfer(transfer(1, 0, 3, 0, 50_000)).await.unwrap();
        device.crash();
        drop(store);
        let store = open(&env, &device).await.unwrap();
        assert!(store.read_at(key(2), 0, 50_000).await.unwrap().data.iter().all(|byte| *byte == 7));
        assert!(matches!(store.read_at(key(3), 0, 10).await, Err(StoreError::Missing)));
    });
}

/// New data files that share with others.
async fn clones(store: &Arc<Store>) {
    store.write_at(&access(1), 8192, bytes(7, 50_000), Stability::Unstable).await.unwrap();
    store.write_at(&access(2), 0, bytes(9, 100_000), Stability::Unstable).await.unwrap();
    let all = async |n: u64| store.read_at(key(n), 0, 300_000).await.unwrap().data;
    // The same place: the beginning is not asked for, nor is what lies behind.
    store.reflink(Reflink { base: None, range: transfer(1, 12_288, 3, 12_288, 20_001) }).await.unwrap();
    let mut expected = vec![0; 32_289];
    expected[12_288..].fill(7);
    assert!(all(3).await[..] == expected[..]);
    // Beyond the end of the source there are zeros.
    store.reflink(Reflink { base: None, range: transfer(1, 0, 4, 0, 70_000) }).await.unwrap();
    let mut expected = vec![0; 70_000];
    expected[8192..58_192].fill(7);
    assert!(all(4).await[..] == expected[..]);
    // Elsewhere, into another, of which the end was cut off meanwhile.
    let base = |file| Base { file: key(file), must_exist: true, end: 90_000 };
    let range = transfer(1, 8192, 5, 4096, 16_384);
    store.reflink(Reflink { base: Some(base(2)), range }).await.unwrap();
    let mut expected = vec![9; 90_000];
    expected[4096..20_480].fill(7);
    assert!(all(5).await[..] == expected[..]);
    // Elsewhere, into nothing.
    store.reflink(Reflink { base: None, range: transfer(1, 8192, 6, 4096, 16_384) }).await.unwrap();
    let mut expected = vec![0; 20_480];
    expected[4096..].fill(7);
    assert!(all(6).await[..] == expected[..]);
    // They go their own ways from then on.
    store.write_at(&access(1), 8192, bytes(1, 10_000), Stability::Unstable).await.unwrap();
    assert!(all(6).await[..] == expected[..]);
    // What is not there is a hole only if it may be.
    store.reflink(Reflink { base: None, range: transfer(99, 0, 7, 0, 4096) }).await.unwrap();
    assert!(all(7).await[..] == [0; 4096]);
    let lost = Reflink { base: None, range: Transfer { must_exist: true, ..transfer(99, 0, 8, 0, 10) } };
    assert!(matches!(store.reflink(lost).await, Err(StoreError::Missing)));
    let lost = Reflink { base: Some(base(99)), range: transfer(1, 0, 8, 0, 10) };
    assert!(matches!(store.reflink(lost).await, Err(StoreError::Missing)));
}

#[test]
fn data_files_share_with_others_until_they_are_written_to() {
    simulate(async |env| clones(&open(&env, &MemDevice::new()).await.unwrap()).await);
}

#[test]
fn a_clone_that_would_be_a_copy_is_refused() {
    simulate(async |env| {
        let device = MemDevice::new();
        device.set_reflinks(false);
        let store = open(&env, &device).await.unwrap();
        store.write_at(&access(1), 0, bytes(7, 50_000), Stability::Unstable).await.unwrap();
        for (to, base) in
            [(0, None), (4096, None), (0, Some(Base { file: key(1), must_exist: true, end: 9 }))]
        {
            let refused = store.reflink(Reflink { base, range: transfer(1, 0, 3, to, 8192) }).await;
            assert!(matches!(refused, Err(StoreError::NoReflink)), "{refused:?}");
        }
    });
}

/// Most of its files share, which takes no room.
#[derive(Debug)]
struct Shares(AtomicU64);

impl Watch for Shares {
    fn writing(&self, _direct: bool) {}
    fn room(&self, there: Space) -> Space {
        Space { free: self.0.load(Ordering::Relaxed), ..there }
    }
}

const FREE: u64 = 24 << 20;
const MORE: u64 = 40 << 20;

async fn filled(store: &Arc<Store>) {
    for at in (0..MORE).step_by(1 << 20) {
        store.write_at(&access(1), at, bytes(7, 1 << 20), Stability::Unstable).await.unwrap();
    }
    store.commit(key(1)).await.unwrap();
}

/// Data file 1 is larger than what is free.
async fn more_than_is_free(store: &Arc<Store>) {
    let base = Base { file: key(1), must_exist: true, end: MORE };
    for (to, base, range) in [
        (2, None, transfer(1, 0, 2, 0, MORE)),
        (3, None, transfer(1, 0, 3, 4096, MORE)),
        (4, Some(base), transfer(1, 0, 4, 8192, MORE)),
    ] {
        store.reflink(Reflink { base, range }).await.unwrap();
        let size = store.stat(key(to)).await.unwrap().unwrap().size;
        assert_eq!(size, range.offset + MORE);
        let last = store.read_at(key(to), size - 5, 10).await.unwrap();
        assert!(last.data[..] == [7; 5] && last.end);
    }
}

#[test]
fn what_is_shared_need_not_be_free() {
    simulate(async |env| {
        let shares = Arc::new(Shares(AtomicU64::new(FREE)));
        let device = WatchedDevice(Box::new(MemDevice::new()), Arc::clone(&shares) as Arc<dyn Watch>);
        let store = open_on(&env, Arc::new(device)).await.unwrap();
        filled(&store).await;
        more_than_is_free(&store).await;
        // Nobody knows what of it will be a copy: there is to be room for the next part.
        shares.0.store(8 << 20, Ordering::Relaxed);
        let part = Reflink { base: None, range: transfer(1, 0, 5, 4096, MORE) };
        assert!(matches!(store.reflink(part).await, Err(StoreError::NoSpace)));
        let copy = store.transfer(transfer(1, 0, 6, 4096, MORE)).await;
        assert!(matches!(copy, Err(StoreError::NoSpace)), "all of a copy has to be free: {copy:?}");
    });
}

/// `SLUICE_REFLINK_DIR`: a directory on XFS or btrfs, to see it by a real file system.
#[tokio::test]
async fn by_a_file_system_that_can() {
    let Some(root) = std::env::var_os("SLUICE_REFLINK_DIR") else { return };
    let dir = tempfile::tempdir_in(root).unwrap();
    let device = FileDevice::new(dir.path()).unwrap();
    let store = open_on(&Env::system(), Arc::new(device)).await.unwrap();
    clones(&store).await;
    filled(&store).await;
    let free = store.capacity().await.unwrap().free;
    drop(store);
    let options = Options { reserve: free - FREE, ..options() };
    let device = Arc::new(FileDevice::new(dir.path()).unwrap());
    let store = Store::open(&Env::system(), device, options).await.unwrap();
    more_than_is_free(&store).await;
}
