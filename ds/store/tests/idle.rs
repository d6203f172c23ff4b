//! Data files that were written and are left alone are closed, and nothing is lost with that.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{access, bytes, key, open, open_on, simulate};
use sluice_env::Env;
use sluice_store::device::{Device, FileDevice, MemDevice};
use sluice_store::{Stability, Store};

const WRITTEN: [Stability; 2] = [Stability::FileSync, Stability::DataSync];

async fn keep(env: &Env, store: &Arc<Store>, seconds: u64) {
    let _ = env.clock.timeout(Duration::from_secs(seconds), Arc::clone(store).close_idle()).await;
}

fn opened(device: &MemDevice, file: u64) -> usize {
    let below = |path: &str| -> Vec<String> {
        let names = device.list(path).unwrap_or_default();
        names.into_iter().map(|name| format!("{path}/{name}")).collect()
    };
    let leaves = below("data").into_iter().flat_map(|path| below(&path));
    leaves.map(|leaf| device.opened(&format!("{leaf}/{}", key(file)))).sum()
}

async fn write(store: &Arc<Store>, file: u64, stability: Stability) -> sluice_store::Verifier {
    store.write_at(&access(file), 0, bytes(1, 5000), stability).await.unwrap()
}

#[test]
fn what_was_written_is_closed_after_seconds_and_what_was_read_stays_open() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        write(&store, 9, Stability::FileSync).await;
        drop(store);
        let store = open(&env, &device).await.unwrap();
        store.read_at(key(9), 0, 10).await.unwrap();
        for (file, stability) in (1..).zip(WRITTEN) {
            write(&store, file, stability).await;
            keep(&env, &store, 3).await;
            assert_eq!(opened(&device, file), 1, "it may go on");
            keep(&env, &store, 5).await;
            assert_eq!(opened(&device, file), 0);
            assert_eq!(store.read_at(key(file), 0, 5000).await.unwrap().data, bytes(1, 5000));
            write(&store, file, stability).await;
            assert_eq!(opened(&device, file), 1);
        }
        assert_eq!(opened(&device, 9), 1, "nothing is set aside for it");
    });
}

#[test]
fn what_is_used_every_second_stays_open() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        write(&store, 1, Stability::FileSync).await;
        let user = async {
            for second in 0..20 {
                env.clock.sleep(Duration::from_secs(1)).await;
                assert_eq!(opened(&device, 1), 1);
                if second % 2 == 0 {
                    write(&store, 1, Stability::FileSync).await;
                } else {
                    store.read_at(key(1), 0, 10).await.unwrap();
                }
            }
            env.clock.sleep(Duration::from_secs(5)).await;
            assert_eq!(opened(&device, 1), 0);
        };
        tokio::join!(keep(&env, &store, 30), user);
    });
}

/// All of a full cache is seen to, whatever takes whose place.
#[test]
fn nothing_that_was_written_is_passed_over() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        for file in 0..600 {
            write(&store, file, Stability::FileSync).await;
        }
        keep(&env, &store, 5).await;
        assert_eq!((0..600).step_by(50).map(|file| opened(&device, file)).sum::<usize>(), 0);
    });
}

/// A device tells of a failed write-back to who has the file open, and once.
#[test]
fn what_is_not_flushed_stays_open_until_it_is() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        let before = write(&store, 1, Stability::Unstable).await;
        keep(&env, &store, 20).await;
        assert_eq!(opened(&device, 1), 1, "not flushed");
        device.fail_syncs(1);
        store.commit(key(1)).await.unwrap_err();
        keep(&env, &store, 20).await;
        assert_eq!(opened(&device, 1), 1, "the flush failed");
        assert_ne!(store.commit(key(1)).await.unwrap(), before);
        keep(&env, &store, 5).await;
        assert_eq!(opened(&device, 1), 0);
        assert_ne!(store.commit(key(1)).await.unwrap(), before, "closed, and not forgotten");
    });
}

/// A client may commit its layout long after it wrote: times that it set since are to stay.
#[test]
fn a_data_file_that_is_closed_counts_as_written_when_it_was() {
    simulate(async |env| {
        let store = open(&env, &MemDevice::new()).await.unwrap();
        write(&store, 1, Stability::FileSync).await;
        let look = store.writes(key(1)).newest;
        write(&store, 2, Stability::FileSync).await;
        keep(&env, &store, 10).await;
        assert!(store.writes(key(1)).last <= look, "it is closed");
        store.read_at(key(1), 0, 10).await.unwrap();
        assert!(store.writes(key(1)).last <= look, "it is open again");
        store.read_at(key(2), 0, 10).await.unwrap();
        assert!(store.writes(key(2)).last > look, "whatever was done to it since");
        write(&store, 1, Stability::FileSync).await;
        assert!(store.writes(key(1)).last > look);
    });
}

/// Descriptors of this process for data files below `dir`.
fn descriptors(dir: &Path) -> usize {
    let data = dir.join("data");
    let open = fs::read_dir("/proc/self/fd").unwrap();
    open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).filter(|at| at.starts_with(&data)).count()
}

/// On a real file system: the descriptor itself goes, but not before the last user is done.
#[test]
fn a_descriptor_in_use_stays() {
    const SIZE: usize = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    simulate(async |env| {
        let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
        store.write_at(&access(1), 0, bytes(7, SIZE), Stability::FileSync).await.unwrap();
        assert_eq!(descriptors(dir.path()), 1);
        // A large read that is being sent.
        let Some(sent) = store.in_place(&access(1), 0, SIZE) else { return };
        keep(&env, &store, 10).await;
        assert_eq!(descriptors(dir.path()), 1);
        assert_eq!(sent.load(0).await.unwrap(), bytes(7, SIZE));
        store.write_at(&access(1), 0, bytes(8, SIZE), Stability::FileSync).await.unwrap();
        assert_eq!(descriptors(dir.path()), 1, "it is one file to all");
        drop(sent);
        keep(&env, &store, 10).await;
        assert_eq!(descriptors(dir.path()), 0);
    });
}
