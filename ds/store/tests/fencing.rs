//! Fences against writes already on their way, and against kill -9.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::watched::{Watch, WatchedDevice};
use common::{access, bytes, key, open, open_on, options, path, simulate};
use sluice_env::Env;
use sluice_store::device::{FileDevice, MemDevice};
use sluice_store::{Access, Epoch, Fence, Refusal, Stability, Store, StoreError};

/// A device whose data writes wait until they are let through.
#[derive(Debug, Default)]
struct Turnstile {
    closed: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicBool,
    /// Writes that came here.
    arrived: AtomicUsize,
}

impl Turnstile {
    fn set(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        let mut closed = self.closed.lock().unwrap();
        while *closed {
            self.waiting.store(true, Ordering::SeqCst);
            closed = self.changed.wait(closed).unwrap();
        }
    }
}

impl Watch for Turnstile {
    fn writing(&self, _direct: bool) {
        self.pass();
    }
}

/// Opens the turnstile when dropped, so that a test that fails does not hang.
struct Open(Arc<Turnstile>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// A store, its turnstile, and one write stuck at it.
async fn with_stuck_write(env: &Env) -> (Arc<Store>, Open, tokio::task::JoinHandle<bool>) {
    let turnstile = Arc::new(Turnstile::default());
    let watch = Arc::clone(&turnstile);
    let device = WatchedDevice(Box::new(MemDevice::new()), watch);
    let store = Store::open(env, Arc::new(device), options()).await.unwrap();
    turnstile.set(true);
    let writer = Arc::clone(&store);
    #[allow(clippy::disallowed_methods, reason = "a task of the test")]
    let stuck = tokio::spawn(async move {
        writer.write_at(&access(1), 0, bytes(1, 10), Stability::Unstable).await.is_ok()
    });
    while !turnstile.waiting.load(Ordering::SeqCst) {
        env.clock.sleep(Duration::from_millis(1)).await;
    }
    (store, Open(turnstile), stuck)
}

#[tokio::test]
async fn a_fence_waits_for_a_write_that_passed_its_check_before() {
    let env = Env::system();
    let (store, turnstile, stuck) = with_stuck_write(&env).await;
    let fence = [Fence::Holder { holder: 1, epoch: Epoch(1) }];
    let fencing = store.fence(&fence);
    tokio::pin!(fencing);
    let early = env.clock.timeout(Duration::from_millis(50), &mut fencing).await;
    assert!(early.is_err(), "acknowledged with a write still on its way");
    drop(turnstile);
    assert!(stuck.await.unwrap());
    fencing.await.unwrap();
    let late = store.write_at(&access(1), 0, bytes(2, 10), Stability::Unstable).await;
    assert!(matches!(late, Err(StoreError::Refused(Refusal::Fenced))), "{late:?}");
    assert_eq!(store.read_at(key(1), 0, 10).await.unwrap().data, bytes(1, 10));
}

/// As most registrations have it.
#[tokio::test]
async fn no_fence_waits_for_nothing() {
    let env = Env::system();
    let (store, turnstile, stuck) = with_stuck_write(&env).await;
    env.clock.timeout(Duration::from_secs(5), store.fence(&[])).await.expect("there is none").unwrap();
    drop(turnstile);
    assert!(stuck.await.unwrap());
}

/// Past the page cache, and by way of it: what was sent first is there first.
#[tokio::test]
async fn a_write_past_the_page_cache_waits_behind_those_that_came_before() {
    let env = Env::system();
    let (store, turnstile, stuck) = with_stuck_write(&env).await;
    let mut writers = tokio::task::JoinSet::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    for (fill, length, stability) in
        [(2, 10, Stability::Unstable), (3, 1 << 20, Stability::FileSync), (4, 1 << 20, Stability::FileSync)]
    {
        let (store, order) = (Arc::clone(&store), Arc::clone(&order));
        writers.spawn(async move {
            store.write_at(&access(1), 0, bytes(fill, length), stability).await.unwrap();
            order.lock().unwrap().push(fill);
        });
        // It is in the queue.
        env.clock.sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(turnstile.0.arrived.load(Ordering::SeqCst), 1, "one that came later is at the device");
    drop(turnstile);
    assert!(stuck.await.unwrap());
    writers.join_all().await;
    assert_eq!(order.lock().unwrap()[0], 2);
    assert_ne!(store.read_at(key(1), 0, 10).await.unwrap().data, bytes(2, 10));
}

#[tokio::test]
async fn a_removal_waits_for_it_too_and_nothing_is_left() {
    let env = Env::system();
    let (store, turnstile, stuck) = with_stuck_write(&env).await;
    let targets = [(key(1), 0)];
    let removing = store.remove(&targets, Epoch(1));
    tokio::pin!(removing);
    assert!(env.clock.timeout(Duration::from_millis(50), &mut removing).await.is_err());
    drop(turnstile);
    stuck.await.unwrap();
    removing.await.unwrap();
    assert_eq!(store.stat(key(1)).await.unwrap(), None);
    assert_eq!(store.inventory(None, 10).await.unwrap(), []);
}

/// The first removal is stuck where it begins, until the other end is gone.
#[derive(Debug)]
struct Sticky(Mutex<Option<Receiver<()>>>);

impl Watch for Sticky {
    fn writing(&self, _direct: bool) {}
    fn removing(&self, _path: &str) {
        let stuck = self.0.lock().unwrap().take();
        if let Some(stuck) = stuck {
            _ = stuck.recv();
        }
    }
}

/// Of the order before it, and of a later one that the metadata server had answered.
#[tokio::test]
async fn a_removal_that_is_still_at_work_leaves_what_comes_into_being_under_the_same_name() {
    let env = Env::system();
    let (open, gate) = channel();
    let sticky = Arc::new(Sticky(Mutex::new(Some(gate))));
    let device = MemDevice::new();
    let watched = WatchedDevice(Box::new(device.clone()), Arc::clone(&sticky) as Arc<dyn Watch>);
    let store = open_on(&env, Arc::new(watched)).await.unwrap();
    for file in [1, 2] {
        let old = Access { generation: 1, ..access(file) };
        store.write_at(&old, 0, bytes(1, 10), Stability::FileSync).await.unwrap();
    }
    let remover = Arc::clone(&store);
    #[allow(clippy::disallowed_methods, reason = "a task of the test")]
    let first = tokio::spawn(async move { remover.remove(&[(key(1), 1), (key(2), 1)], Epoch(1)).await });
    while sticky.0.lock().unwrap().is_some() {
        env.clock.sleep(Duration::from_millis(1)).await;
    }
    store.remove(&[(key(2), 1)], Epoch(1)).await.unwrap();
    let later = Access { generation: 2, ..access(2) };
    let early = store.write_at(&later, 0, bytes(2, 10), Stability::FileSync).await;
    drop(open);
    first.await.unwrap().unwrap();
    match early {
        Err(StoreError::Refused(Refusal::Removed)) => {
            store.write_at(&later, 0, bytes(2, 10), Stability::FileSync).await.unwrap();
        }
        written => drop(written.unwrap()),
    }
    drop(store);
    let store = open_on(&env, Arc::new(device)).await.unwrap();
    assert_eq!(store.read_at(key(2), 0, 10).await.unwrap().data, bytes(2, 10));
    assert_eq!(store.inventory(None, 10).await.unwrap().len(), 1);
}

/// One that was on its way for long is over when it comes; whether the data file is open or not.
#[test]
fn a_removal_of_an_older_generation_is_late() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await.unwrap();
        store.remove(&[(key(1), 1)], Epoch(1)).await.unwrap();
        let later = Access { generation: 2, ..access(1) };
        store.write_at(&later, 0, bytes(2, 10), Stability::FileSync).await.unwrap();
        for open in [true, false] {
            if !open {
                let idle = Arc::clone(&store).close_idle();
                let _ = env.clock.timeout(Duration::from_secs(10), idle).await;
                assert_eq!(device.opened(&path(&device, key(1), "")), 0);
            }
            store.remove(&[(key(1), 1)], Epoch(1)).await.unwrap();
            assert_eq!(store.inventory(None, 10).await.unwrap().len(), 1);
            let old = Access { generation: 1, ..later };
            let late = store.write_at(&old, 0, bytes(1, 10), Stability::FileSync).await;
            assert!(matches!(late, Err(StoreError::Refused(Refusal::Removed))), "{late:?}");
            if !open {
                assert_eq!(store.read_at(key(1), 0, 10).await.unwrap().data, bytes(2, 10));
            }
        }
        store.remove(&[(key(1), 2)], Epoch(1)).await.unwrap();
        assert_eq!(store.inventory(None, 10).await.unwrap(), []);
    });
}

#[tokio::test]
async fn a_retirement_waits_for_it_however_often_it_is_asked_for() {
    let env = Env::system();
    let (store, turnstile, stuck) = with_stuck_write(&env).await;
    let mut set = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let store = Arc::clone(&store);
        set.spawn(async move { store.retire(Epoch(2)).await });
    }
    assert!(env.clock.timeout(Duration::from_millis(50), set.join_next()).await.is_err());
    let mut again = Box::pin(store.retire(Epoch(2)));
    assert!(env.clock.timeout(Duration::from_millis(50), &mut again).await.is_err(), "asked again");
    drop(turnstile);
    stuck.await.unwrap();
    again.await.unwrap();
    while let Some(done) = set.join_next().await {
        done.unwrap().unwrap();
    }
    store.retire(Epoch(1)).await.unwrap();
    assert_eq!(store.oldest(), Some(Epoch(2)));
}

/// What an order of a metadata server that was replaced had on its way is with the device before its successor is answered;
/// fences do not wait for it.
#[tokio::test]
async fn a_newer_caller_waits_for_steps_of_older_ones_and_there_are_no_more() {
    let env = Env::system();
    let store = open_on(&env, Arc::new(MemDevice::new())).await.unwrap();
    store.admit_caller(1).await.unwrap();
    let step = store.step(1).unwrap();
    store.fence(&[Fence::Holder { holder: 1, epoch: Epoch(1) }]).await.unwrap();
    let newer = store.admit_caller(2);
    tokio::pin!(newer);
    assert!(env.clock.timeout(Duration::from_millis(50), &mut newer).await.is_err());
    assert!(matches!(store.step(1), Err(StoreError::OldCaller)));
    let own = store.step(2).unwrap();
    drop(step);
    newer.await.unwrap();
    drop(own);
}

/// Not a test of its own: the process that [`kill_nine_loses_no_acknowledged_fence`] kills.
#[tokio::test]
#[ignore = "run by another test"]
async fn fence_until_killed() {
    let Some(dir) = std::env::var_os("SLUICE_TEST_STORE") else { return };
    let env = Env::system();
    let store = open_on(&env, Arc::new(FileDevice::new(dir).unwrap())).await.unwrap();
    let first: u32 = std::env::var("SLUICE_TEST_FIRST").unwrap().parse().unwrap();
    for holder in first.. {
        store.fence(&[Fence::Holder { holder, epoch: Epoch(1) }]).await.unwrap();
        eprintln!("fenced {holder}");
    }
}

#[tokio::test]
async fn kill_nine_loses_no_acknowledged_fence() {
    let env = Env::system();
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0u32;
    for round in 1..=4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fence_until_killed", "--ignored", "--nocapture"])
            .env("SLUICE_TEST_STORE", dir.path())
            .env("SLUICE_TEST_FIRST", (last + 1).to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        for line in lines.map_while(Result::ok) {
            let Some(holder) = line.strip_prefix("fenced ") else { continue };
            last = holder.parse().unwrap();
            if last >= round * 15 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
        for holder in 1..=last {
            let by = Access { holder, ..access(1) };
            assert_eq!(store.check(&by), Err(Refusal::Fenced), "holder {holder} of {last}");
        }
    }
    assert!(last >= 60, "{last}");
}
