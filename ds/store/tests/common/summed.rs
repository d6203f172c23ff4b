//! Stores that keep checksums.

use std::sync::Arc;
use std::time::Duration;

use sluice_env::Env;
use sluice_store::device::{Device, MemDevice};
use sluice_store::{Damage, Options, Stability, Store, StoreError, SumOptions};

#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use super::path;
use super::{access, bytes, key, options};

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const REGION: u64 = 4 << 20;

pub(crate) fn summed() -> Options {
    let sums = SumOptions { rate: 0, interval: Duration::ZERO, ..SumOptions::default() };
    Options { checksums: Some(true), sums, ..options() }
}

pub(crate) async fn open(env: &Env, device: &MemDevice) -> Arc<Store> {
    open_on(env, Arc::new(device.clone())).await
}

pub(crate) async fn open_on(env: &Env, device: Arc<dyn Device>) -> Arc<Store> {
    Store::open(env, device, summed()).await.unwrap()
}

/// Lets the store keep its sums for a while.
pub(crate) async fn rest(env: &Env, store: &Arc<Store>, seconds: u64) {
    let _ = env.clock.timeout(Duration::from_secs(seconds), Arc::clone(store).keep_sums()).await;
}

/// One whole scrub.
pub(crate) async fn scrub(env: &Env, store: &Arc<Store>) {
    assert!(store.scrub());
    while store.scrubbed().running {
        rest(env, store, 1).await;
    }
}

pub(crate) fn damage(file: u64, offset: u64, blocks: u64) -> Damage {
    Damage { key: key(file), offset, length: blocks * BLOCK }
}

pub(crate) async fn put(store: &Arc<Store>, file: u64, offset: u64, fill: u8, length: usize) {
    store.write_at(&access(file), offset, bytes(fill, length), Stability::FileSync).await.unwrap();
}

pub(crate) fn is_refused<T: std::fmt::Debug>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Quarantined))
}
