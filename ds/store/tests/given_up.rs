//! Writes that are given up and sent again: what stays is what was acknowledged last, however long an older copy waits.
#![allow(clippy::unwrap_used, reason = "a test may fail")]
#![allow(clippy::disallowed_methods, reason = "a test on a real machine")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use common::watched::{Watch, WatchedDevice};
use common::{access, bytes, key, open_on};
use parking_lot::Mutex;
use sluice_env::Env;
use sluice_store::device::MemDevice;
use sluice_store::{Stability, Store};

/// Writes get stuck where they begin, if they are told to.
#[derive(Debug)]
struct Sticky {
    begun: AtomicUsize,
    stuck: Mutex<Option<Receiver<()>>>,
}

impl Watch for Sticky {
    fn writing(&self, _: bool) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let stuck = self.stuck.lock().take();
        if let Some(stuck) = stuck {
            // Until the other end is gone.
            _ = stuck.recv();
        }
    }
}

struct World {
    env: Env,
    store: Arc<Store>,
    sticky: Arc<Sticky>,
}

impl World {
    async fn new() -> Self {
        let env = Env::system();
        let sticky = Arc::new(Sticky { begun: 0.into(), stuck: Mutex::new(None) });
        let watch: Arc<dyn Watch> = Arc::clone(&sticky) as _;
        let device = WatchedDevice(Box::new(MemDevice::new()), watch);
        let store = open_on(&env, Arc::new(device)).await.unwrap();
        store.write_at(&access(1), 0, bytes(1, 4 << 20), Stability::Unstable).await.unwrap();
        Self { env, store, sticky }
    }

    /// A write that its sender gives up, which is at the device until what is returned is dropped.
    async fn give_up(&self, offset: u64, length: usize, stability: Stability) -> Sender<()> {
        let (open, gate) = channel();
        *self.sticky.stuck.lock() = Some(gate);
        let begun = self.begun();
        let write = self.write(offset, 2, length, stability);
        self.until(|| self.begun() > begun).await;
        write.abort();
        open
    }

    fn write(
        &self,
        offset: u64,
        fill: u8,
        length: usize,
        stability: Stability,
    ) -> tokio::task::JoinHandle<()> {
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            store.write_at(&access(1), offset, bytes(fill, length), stability).await.unwrap();
        })
    }

    fn begun(&self) -> usize {
        self.sticky.begun.load(Ordering::SeqCst)
    }

    async fn until(&self, reached: impl Fn() -> bool) {
        while !reached() {
            self.env.clock.sleep(Duration::from_millis(1)).await;
        }
    }

    async fn has(&self, offset: u64, fill: u8, length: usize) -> bool {
        self.store.read_at(key(1), offset, length).await.unwrap().data == bytes(fill, length)
    }
}

/// Those that are carried out on the calling thread, past all that is queued.
#[tokio::test]
async fn a_small_write_does_not_overtake_an_older_copy_of_itself() {
    let world = World::new().await;
    let store = &world.store;
    let stuck = world.give_up(8000, 100, Stability::Unstable).await;
    assert!(store.write_now(&access(1), 4096, &[3; 4096]).is_none(), "its page is being written");
    assert!(store.write_now(&access(1), 1 << 20, &[3; 4096]).is_some(), "another page");
    let again = world.write(4096, 3, 4096, Stability::Unstable);
    world.env.clock.sleep(Duration::from_millis(20)).await;
    assert!(!again.is_finished());
    drop(stuck);
    again.await.unwrap();
    assert!(world.has(4096, 3, 4096).await, "what was acknowledged last");
    // A write that took so long lets the calling threads have a rest.
    world.env.clock.sleep(Duration::from_secs(2)).await;
    assert!(store.write_now(&access(1), 4096, &[4; 4096]).is_some(), "nothing is under way any more");
}

/// Beside a large one that is queued still, on any page of it.
#[tokio::test]
async fn a_small_write_does_not_overtake_a_large_one() {
    let world = World::new().await;
    let stuck = world.give_up(3 << 20, 100, Stability::Unstable).await;
    let large = world.write(1 << 20, 5, 1 << 20, Stability::Unstable);
    tokio::task::yield_now().await;
    for page in [1 << 20, 1_500_000_u64.next_multiple_of(4096), (2 << 20) - 4096] {
        assert!(world.store.write_now(&access(1), page, &[6; 4096]).is_none(), "{page}");
    }
    assert!(world.store.write_now(&access(1), 2 << 20, &[6; 4096]).is_some(), "behind it");
    drop(stuck);
    large.await.unwrap();
}

/// Large stable ones, of which a device may take several at once, and begin one again that failed.
#[tokio::test]
async fn a_large_stable_write_does_not_overtake_an_older_copy_of_itself() {
    let world = World::new().await;
    let stuck = world.give_up(0, 1 << 20, Stability::FileSync).await;
    world.write(1 << 20, 3, 1 << 20, Stability::FileSync).await.unwrap();
    let begun = world.begun();
    let again = world.write(0, 3, 1 << 20, Stability::FileSync);
    world.env.clock.sleep(Duration::from_millis(20)).await;
    assert_eq!((world.begun(), again.is_finished()), (begun, false), "it waits");
    drop(stuck);
    again.await.unwrap();
    assert!(world.has(0, 3, 2 << 20).await, "what was acknowledged last");
}
