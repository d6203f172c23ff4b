//! Fences against writes already on their way, and against kill -9.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::fmt::Debug;
use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{access, bytes, key, open_on, options};
use sluice_env::Env;
use sluice_store::device::{Cached, Device, DeviceFile, FileDevice, FileStat, MemDevice, Space};
use sluice_store::{Access, Epoch, Fence, Refusal, Stability, Store, StoreError};

/// A device whose data writes wait until they are let through.
#[derive(Debug, Default)]
struct Turnstile {
    closed: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicBool,
}

impl Turnstile {
    fn set(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut closed = self.closed.lock().unwrap();
        while *closed {
            self.waiting.store(true, Ordering::SeqCst);
            closed = self.changed.wait(closed).unwrap();
        }
    }
}

#[derive(Debug)]
struct SlowDevice(MemDevice, Arc<Turnstile>);

#[derive(Debug)]
struct SlowFile(Arc<dyn DeviceFile>, Arc<Turnstile>);

impl SlowDevice {
    fn wrap(&self, path: &str, file: Arc<dyn DeviceFile>) -> Arc<dyn DeviceFile> {
        if path.starts_with("data/") { Arc::new(SlowFile(file, Arc::clone(&self.1))) } else { file }
    }
}

impl Device for SlowDevice {
    fn name(&self) -> String {
        self.0.name()
    }
    fn lock(&self) -> io::Result<Box<dyn Debug + Send + Sync>> {
        self.0.lock()
    }
    fn open(&self, path: &str) -> io::Result<Arc<dyn DeviceFile>> {
        Ok(self.wrap(path, self.0.open(path)?))
    }
    fn create(&self, path: &str) -> io::Result<Arc<dyn DeviceFile>> {
        Ok(self.wrap(path, self.0.create(path)?))
    }
    fn stat(&self, path: &str) -> io::Result<FileStat> {
        self.0.stat(path)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.0.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.0.create_dir(path)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.0.list(path)
    }
    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.0.sync_dir(path)
    }
    fn space(&self) -> io::Result<Space> {
        self.0.space()
    }
    fn syncs(&self) -> u64 {
        self.0.syncs()
    }
}

impl DeviceFile for SlowFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> io::Result<Cached> {
        self.0.read_cached(buffer, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.1.pass();
        self.0.write_at(data, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }
    fn set_len(&self, size: u64) -> io::Result<()> {
        self.0.set_len(size)
    }
    fn stat(&self) -> io::Result<FileStat> {
        self.0.stat()
    }
    fn allocate(&self, offset: u64, length: u64, extend: bool) -> io::Result<()> {
        self.0.allocate(offset, length, extend)
    }
    fn deallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.deallocate(offset, length)
    }
    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.0.seek_data(offset)
    }
    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.0.seek_hole(offset)
    }
    fn is_recorded(&self) -> io::Result<bool> {
        self.0.is_recorded()
    }
    fn set_recorded(&self) -> io::Result<()> {
        self.0.set_recorded()
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
    let device = SlowDevice(MemDevice::new(), Arc::clone(&turnstile));
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
