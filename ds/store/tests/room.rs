//! Space on the device: what is written to although there is none left.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;

use common::{access, bytes, key, options};
use sluice_env::Env;
use sluice_store::device::FileDevice;
use sluice_store::{Options, Stability, Store, StoreError};

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
