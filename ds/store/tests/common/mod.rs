//! What the store's tests share.
#![allow(clippy::unwrap_used, reason = "a test may fail")]
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod summed;
pub(crate) mod watched;

use std::sync::Arc;

use bytes::Bytes;
use sluice_env::Env;
use sluice_store::device::{Device, MemDevice};
use sluice_store::{Access, Epoch, FileKey, Options, Store, StoreError};

pub(crate) fn key(file: u64) -> FileKey {
    FileKey { file, slot: 0 }
}

pub(crate) fn access(file: u64) -> Access {
    Access { holder: 1, key: key(file), generation: 0, epoch: Epoch(1), must_exist: false }
}

/// Where a data file is, or what is kept beside it.
pub(crate) fn path(device: &impl Device, key: FileKey, suffix: &str) -> String {
    let name = format!("{key}{suffix}");
    for middle in device.list("data").unwrap() {
        for leaf in device.list(&format!("data/{middle}")).unwrap() {
            let folder = format!("data/{middle}/{leaf}");
            if device.list(&folder).unwrap().contains(&name) {
                return format!("{folder}/{name}");
            }
        }
    }
    panic!("there is no {name}");
}

pub(crate) fn options() -> Options {
    Options { create: true, reserve: 0, ..Options::default() }
}

pub(crate) async fn open(env: &Env, device: &MemDevice) -> Result<Arc<Store>, StoreError> {
    open_on(env, Arc::new(device.clone())).await
}

pub(crate) async fn open_on(env: &Env, device: Arc<dyn Device>) -> Result<Arc<Store>, StoreError> {
    Store::open(env, device, options()).await
}

pub(crate) fn bytes(fill: u8, len: usize) -> Bytes {
    Bytes::from(vec![fill; len])
}

/// Runs on one thread with paused time.
pub(crate) fn simulate<F: Future<Output = ()>>(world: impl FnOnce(Env) -> F) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async { world(Env::simulated(7)).await });
}
