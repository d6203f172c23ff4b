//! Space on the device: what is written to although there is none left.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;

use common::{access, bytes, key, options, simulate};
use sluice_env::Env;
use sluice_store::device::{FileDevice, MemDevice};
use sluice_store::{Epoch, Fence, Options, Stability, Store, StoreError};

#[test]
fn a_full_device_refuses_before_it_wedges() {
    simulate(async |env| {
        let device = MemDevice::new();
        device.set_capacity(8 << 20);
        let options = Options { reserve: 2 << 20, ..options() };
        let store = Store::open(&env, Arc::new(device.clone()), options).await.unwrap();
        let mut at = 0;
        let error = loop {
            match store.write_at(&access(1), at, bytes(1, 1 << 18), Stability::Unstable).await {
                Ok(_) => at += 1 << 18,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StoreError::NoSpace), "{error}");
        assert!((4 << 20..6 << 20).contains(&at), "{at}");
        store.write_at(&access(1), 0, bytes(2, 1 << 18), Stability::Unstable).await.unwrap();
        assert!(matches!(
            store.write_at(&access(2), 0, bytes(2, 1 << 18), Stability::Unstable).await,
            Err(StoreError::NoSpace)
        ));
        store.fence(&[Fence::Holder { holder: 4, epoch: Epoch(1) }]).await.unwrap();
        assert_eq!(store.capacity().await.unwrap().free >> 18, 0);
        while store.write_at(&access(1), at, bytes(1, 4096), Stability::Unstable).await.is_ok() {
            at += 4096;
        }
        assert_eq!(store.capacity().await.unwrap().free, 0);
        // A file that is there, and is not open, takes data in place of data still.
        device.crash_keeping(|| true);
        drop(store);
        let options = Options { reserve: 2 << 20, ..common::options() };
        let store = Store::open(&env, Arc::new(device.clone()), options).await.unwrap();
        store.write_at(&access(1), 0, bytes(3, 1 << 18), Stability::Unstable).await.unwrap();
    });
}

/// What was set aside is there to be written to, however full the device is. On a real file system.
#[tokio::test]
async fn what_is_allocated_is_written_to_on_a_full_device() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let env = Env::system();
    let on = async |reserve| {
        let device = Arc::new(FileDevice::new(dir.path()).unwrap());
        Store::open(&env, device, Options { reserve, ..options() }).await.unwrap()
    };
    let store = on(0).await;
    // A hole behind it, and data.
    store.allocate(key(1), 0, 8192, 1 << 20).await.unwrap();
    store.write_at(&access(1), 2 << 20, bytes(1, 4096), Stability::FileSync).await.unwrap();
    drop(store);
    // All of the device is reserved.
    let store = on(u64::MAX).await;
    for (offset, length) in [(8192, 1 << 20), (8192, 10), (100_000, 200_000), (2 << 20, 4096)] {
        store.write_at(&access(1), offset, bytes(2, length), Stability::FileSync).await.unwrap();
    }
    for (offset, length) in [(4096, 4096), (0, 8193), (8192, (1 << 20) + 1), (3 << 20, 1), (2 << 20, 8192)] {
        let more = store.write_at(&access(1), offset, bytes(3, length), Stability::Unstable).await;
        assert!(matches!(more, Err(StoreError::NoSpace)), "{length} at {offset}: {more:?}");
    }
    store.allocate(key(1), 0, 8192, 1 << 20).await.unwrap();
}
