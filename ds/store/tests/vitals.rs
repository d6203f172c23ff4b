//! Whether the device works, and whether it answers at all.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::options;
use common::watched::{Watch, WatchedDevice};
use parking_lot::{Condvar, Mutex};
use sluice_env::Env;
use sluice_store::Store;
use sluice_store::device::MemDevice;

/// Its file system answers from memory, and the device not at all while this says so.
#[derive(Debug, Default)]
struct Hangs(Mutex<bool>, Condvar);

impl Hangs {
    fn set(&self, hangs: bool) {
        *self.0.lock() = hangs;
        self.1.notify_all();
    }
}

impl Watch for Hangs {
    fn writing(&self, _direct: bool) {}
    fn asking(&self) {
        self.1.wait_while(&mut self.0.lock(), |hangs| *hangs);
    }
}

/// In real time: a thread waits for the device.
#[allow(clippy::disallowed_methods, reason = "in real time")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_hangs_is_silent_though_its_file_system_tells_its_capacity() {
    const SOON: Duration = Duration::from_millis(20);
    let (env, hangs) = (Env::system(), Arc::new(Hangs::default()));
    let device = WatchedDevice(Box::new(MemDevice::new()), Arc::clone(&hangs) as Arc<dyn Watch>);
    let store = Store::open(&env, Arc::new(device), options()).await.unwrap();
    let well = store.vitals(Duration::from_secs(10)).await;
    assert!(well.silent.is_zero() && well.capacity.is_some(), "{well:?}");
    hangs.set(true);
    assert!(store.vitals(SOON).await.silent >= SOON);
    tokio::time::sleep(5 * SOON).await;
    let silent = store.vitals(SOON).await.silent;
    assert!(silent >= 6 * SOON, "{silent:?}");
    hangs.set(false);
    let well = store.vitals(Duration::from_secs(10)).await;
    assert!(well.silent.is_zero() && well.capacity.is_some() && well.probe.is_none(), "{well:?}");
}
