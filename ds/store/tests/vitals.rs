//! Whether the device works, and whether it answers at all.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may fail, and its tasks are tokio's"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::watched::{Watch, WatchedDevice};
use common::{access, bytes, key, options};
use parking_lot::{Condvar, Mutex};
use sluice_env::{BoxFuture, Clock, Env, Monotonic, Wall};
use sluice_store::device::{Device, MemDevice};
use sluice_store::{Epoch, Fence, Options, Stability, Store, StoreError, Vitals};

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

/// It has much to flush, and takes its time: how many flushes are under way, and the most there were; `None`: no more.
#[derive(Debug, Default)]
struct Busy(Mutex<(Option<usize>, usize)>, Condvar);

impl Watch for Busy {
    fn writing(&self, _direct: bool) {}
    fn flushes(&self) {
        let mut at_work = self.0.lock();
        if let Some(count) = &mut at_work.0 {
            *count += 1;
            at_work.1 = at_work.1.max(at_work.0.unwrap());
            self.1.wait_while(&mut at_work, |at_work| at_work.0.is_some());
        }
    }
}

impl Busy {
    fn is_done(&self) {
        self.0.lock().0 = None;
        self.1.notify_all();
    }
}

/// Threads that wait would keep a test that has failed from ending.
struct IsDone(Arc<Busy>);

impl Drop for IsDone {
    fn drop(&mut self) {
        self.0.is_done();
    }
}

/// More than there are threads for blocking work. In real time.
#[allow(clippy::disallowed_methods, reason = "in real time")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_waits_for_a_busy_device_leaves_threads_to_others() {
    const FILES: u64 = 1100;
    const LONG: Duration = Duration::from_secs(10);
    let (env, busy) = (Env::system(), Arc::new(Busy(Mutex::new((Some(0), 0)), Condvar::new())));
    let _done = IsDone(Arc::clone(&busy));
    let device = WatchedDevice(Box::new(MemDevice::new()), Arc::clone(&busy) as Arc<dyn Watch>);
    let store = Store::open(&env, Arc::new(device), options()).await.unwrap();
    Arc::clone(&store).make_folders().await;
    let mut crowd = tokio::task::JoinSet::new();
    for file in 0..FILES {
        let store = Arc::clone(&store);
        // One half flushes where it writes, the other asks for it later.
        crowd.spawn(async move {
            let stability = if file % 2 == 0 { Stability::FileSync } else { Stability::Unstable };
            store.write_at(&access(file), 0, bytes(file as u8, 20_000), stability).await.unwrap();
            store.commit(key(file)).await.unwrap();
        });
    }
    while busy.0.lock().1 < 100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let well = store.vitals(LONG).await;
    assert!(well.silent.is_zero() && well.capacity.is_some(), "{well:?}");
    let fence = Fence::Holder { holder: 77, epoch: Epoch(1) };
    tokio::time::timeout(LONG, store.fence(&[fence])).await.unwrap().unwrap();
    assert!((100..=128).contains(&busy.0.lock().1), "{busy:?}");
    busy.is_done();
    while let Some(done) = crowd.join_next().await {
        done.unwrap();
    }
    assert_eq!(store.unreported(2000).len() as u64, FILES);
}

/// It has a bad sector, and much to flush before whatever else is to be flushed.
#[derive(Debug, Default)]
struct Backlog(Hangs);

impl Watch for Backlog {
    fn writing(&self, _direct: bool) {}
    fn reading(&self, _length: usize) -> std::io::Result<()> {
        Err(std::io::Error::other("a bad sector"))
    }
    fn journals(&self) {
        self.0.asking();
    }
}

/// What it is tried with waits for its turn, beside the question whether it answers. In real time.
#[allow(clippy::disallowed_methods, reason = "in real time")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_device_with_a_bad_sector_is_not_silent() {
    const SOON: Duration = Duration::from_millis(20);
    // For an answer on a machine that has other things to do.
    const WHILE: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(10);
    let (env, backlog) = (Env::system(), Arc::new(Backlog::default()));
    let device = MemDevice::new();
    let watched = WatchedDevice(Box::new(device.clone()), Arc::clone(&backlog) as Arc<dyn Watch>);
    let options = Options { inline_read: 0, ..options() };
    let store = Store::open(&env, Arc::new(watched), options).await.unwrap();
    store.write_at(&access(1), 0, bytes(1, 20_000), Stability::Unstable).await.unwrap();
    backlog.0.set(true);
    for _ in 0..5 {
        store.read_at(key(1), 0, 20_000).await.unwrap_err();
        store.vitals(SOON).await;
    }
    // It answers as often as it is asked, and is tried with one small file at a time.
    tokio::time::sleep(5 * SOON).await;
    let busy = store.vitals(WHILE).await;
    let tried = device.stat("probe.new").is_ok();
    backlog.0.set(false);
    assert!(busy.silent.is_zero() && busy.capacity.is_some() && busy.probe.is_none(), "{busy:?}");
    assert!(tried, "it is in doubt");
    let well = store.vitals(LONG).await;
    assert!(well.silent.is_zero() && well.probe.is_none(), "{well:?}");
    // What comes of it is told when it is known, and after that, until the next one ends.
    store.read_at(key(1), 0, 20_000).await.unwrap_err();
    device.set_read_only(true);
    let broken = store.vitals(LONG).await;
    assert!(broken.silent.is_zero() && matches!(broken.probe, Some(StoreError::ReadOnly)), "{broken:?}");
    device.set_read_only(false);
    backlog.0.set(true);
    let unknown = store.vitals(WHILE).await;
    backlog.0.set(false);
    assert!(unknown.silent.is_zero() && matches!(unknown.probe, Some(StoreError::ReadOnly)), "{unknown:?}");
    let well = store.vitals(LONG).await;
    assert!(well.silent.is_zero() && well.probe.is_none(), "{well:?}");
    assert!(device.stat("probe.new").is_err(), "it leaves nothing");
}

/// Writes to memory hang as well, as those do that a file system with a journal has to wait for.
#[derive(Debug, Default)]
struct Stuck(Hangs);

impl Watch for Stuck {
    fn writing(&self, _direct: bool) {
        self.0.asking();
    }
    fn asking(&self) {
        self.0.asking();
    }
}

/// With as many threads for connections as a data server has on two processors. In real time.
#[test]
fn small_writes_to_a_device_that_hangs_leave_a_thread_to_whoever_tells_of_it() {
    const SOON: Duration = Duration::from_millis(20);
    const CLIENTS: u64 = 6;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let stuck = Arc::new(Stuck::default());
    let device = WatchedDevice(Box::new(MemDevice::new()), Arc::clone(&stuck) as Arc<dyn Watch>);
    let options = Options { inline_threads: 2, ..options() };
    let page = bytes(1, 4096);
    let store = runtime.block_on(async {
        let store = Store::open(&Env::system(), Arc::new(device), options).await.unwrap();
        for file in 0..CLIENTS {
            store.write_at(&access(file), 0, page.clone(), Stability::Unstable).await.unwrap();
        }
        store
    });
    stuck.0.set(true);
    let mut clients = Vec::new();
    for file in 0..CLIENTS {
        let (store, page) = (Arc::clone(&store), page.clone());
        // As a connection does: what it may not do now is done elsewhere.
        clients.push(runtime.spawn(async move {
            match store.write_now(&access(file), 0, &page) {
                Some(written) => written.map(drop).unwrap(),
                None => drop(store.write_at(&access(file), 0, page, Stability::Unstable).await.unwrap()),
            }
        }));
    }
    let (told, hears) = std::sync::mpsc::channel();
    let looking = Arc::clone(&store);
    runtime.spawn(async move {
        let mut silent = Duration::ZERO;
        while silent < 10 * SOON {
            silent = looking.vitals(SOON).await.silent;
        }
        told.send(silent).unwrap();
    });
    let heard = hears.recv_timeout(Duration::from_secs(10));
    let waiting = clients.iter().filter(|client| !client.is_finished()).count();
    stuck.0.set(false);
    assert!(heard.is_ok(), "nobody was left to look");
    assert_eq!(waiting as u64, CLIENTS);
    runtime.block_on(async {
        for client in clients {
            client.await.unwrap();
        }
    });
}

/// Real time, and as much more as a test says.
#[derive(Debug)]
struct Later {
    inner: Arc<dyn Clock>,
    by: AtomicU64,
}

impl Later {
    fn env() -> (Env, Arc<Self>) {
        let env = Env::system();
        let later = Arc::new(Self { inner: Arc::clone(&env.clock), by: AtomicU64::new(0) });
        (Env { clock: Arc::clone(&later) as Arc<dyn Clock>, ..env }, later)
    }

    fn pass(&self, time: Duration) {
        self.by.fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for Later {
    fn now(&self) -> Monotonic {
        Monotonic(self.inner.now().0 + self.by.load(Ordering::SeqCst))
    }
    fn wall(&self) -> Wall {
        self.inner.wall()
    }
    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        self.inner.sleep_until(Monotonic(at.0.saturating_sub(self.by.load(Ordering::SeqCst))))
    }
}

/// It answers what it is asked, and takes no writes while this says so; or no flush ends on it that has much before it.
#[derive(Debug, Default)]
struct Takes {
    nothing: Hangs,
    flushes: Hangs,
    overwrites: AtomicU64,
}

impl Watch for Takes {
    fn writing(&self, _direct: bool) {
        self.nothing.asking();
    }
    fn overwriting(&self) {
        self.overwrites.fetch_add(1, Ordering::SeqCst);
        self.nothing.asking();
    }
    fn flushes(&self) {
        self.nothing.asking();
        self.flushes.asking();
    }
    fn journals(&self) {
        self.nothing.asking();
        self.flushes.asking();
    }
}

impl Takes {
    fn overwrites(&self) -> u64 {
        self.overwrites.load(Ordering::SeqCst)
    }
}

/// Threads that wait would keep a test that has failed from ending.
struct TakesAll(Arc<Takes>);

impl Drop for TakesAll {
    fn drop(&mut self) {
        self.0.nothing.set(false);
        self.0.flushes.set(false);
    }
}

const SOON: Duration = Duration::from_secs(1);
const BEAT: Duration = Duration::from_secs(2);

/// What is known after a few heartbeats.
async fn beats(store: &Arc<Store>, later: &Later, count: u32) -> Vitals {
    for _ in 0..count {
        later.pass(BEAT);
        store.vitals(SOON).await;
    }
    store.vitals(SOON).await
}

/// Until it is as `reached` says. In real time.
#[allow(clippy::disallowed_methods, reason = "in real time")]
async fn until(mut reached: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if reached().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never comes to that");
}

/// As a file system that was frozen. Whoever writes, flushes, or waits for the journal calls the witness.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_answers_and_takes_no_writes_is_noticed_by_its_witness() {
    for what in ["write", "flush", "journal"] {
        let ((env, later), takes) = (Later::env(), Arc::new(Takes::default()));
        let _all = TakesAll(Arc::clone(&takes));
        let device = WatchedDevice(Box::new(MemDevice::new()), Arc::clone(&takes) as Arc<dyn Watch>);
        let store = Store::open(&env, Arc::new(device), options()).await.unwrap();
        store.write_at(&access(1), 0, bytes(1, 20_000), Stability::Unstable).await.unwrap();
        takes.nothing.set(true);
        let waits = Arc::clone(&store);
        let waits = tokio::spawn(async move {
            match what {
                "write" => {
                    waits.write_at(&access(1), 0, bytes(2, 20_000), Stability::Unstable).await.map(|_| ())
                }
                "flush" => waits.commit(key(1)).await.map(|_| ()),
                _ => waits.fence(&[Fence::Holder { holder: 77, epoch: Epoch(1) }]).await,
            }
        });
        until(async || {
            beats(&store, &later, 1).await;
            takes.overwrites() == 1
        })
        .await;
        let hangs = beats(&store, &later, 15).await;
        assert!(hangs.unwritten >= 15 * BEAT && hangs.unwritten < 60 * BEAT, "{what}: {hangs:?}");
        assert!(hangs.silent.is_zero() && hangs.capacity.is_some() && hangs.probe.is_none(), "{hangs:?}");
        assert!(!waits.is_finished(), "{what}");
        assert_eq!(takes.overwrites(), 1, "one at a time");
        takes.nothing.set(false);
        waits.await.unwrap().unwrap();
        until(async || store.vitals(SOON).await.unwritten.is_zero()).await;
        let well = beats(&store, &later, 30).await;
        assert!(well.unwritten.is_zero() && well.capacity.is_some(), "{what}: {well:?}");
        assert!(takes.overwrites() <= 2, "{what}: it is called when there is reason");
    }
}

/// A flush of tens of gigabytes, or as many as a disk has to do one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_that_lasts_for_minutes_is_none_that_hangs() {
    let ((env, later), takes) = (Later::env(), Arc::new(Takes::default()));
    let _all = TakesAll(Arc::clone(&takes));
    let device = WatchedDevice(Box::new(MemDevice::new()), Arc::clone(&takes) as Arc<dyn Watch>);
    let store = Store::open(&env, Arc::new(device), options()).await.unwrap();
    beats(&store, &later, 60).await;
    assert_eq!(takes.overwrites(), 0, "a store that nobody uses pays nothing");
    store.write_at(&access(1), 0, bytes(1, 20_000), Stability::Unstable).await.unwrap();
    takes.flushes.set(true);
    let waits = Arc::clone(&store);
    let waits = tokio::spawn(async move { waits.commit(key(1)).await.unwrap() });
    for _ in 0..100 {
        let busy = beats(&store, &later, 1).await;
        assert!(busy.silent.is_zero(), "{busy:?}");
        // It is a thread like any other, and time passes at once here.
        until(async || store.vitals(SOON).await.unwritten.is_zero()).await;
    }
    assert!(!waits.is_finished());
    let called = takes.overwrites();
    assert!((1..=40).contains(&called), "{called} in 200 s");
    takes.flushes.set(false);
    waits.await.unwrap();
}

/// There is none where it cannot be had, and nobody is called silent for that.
#[tokio::test]
async fn a_device_without_a_witness_is_as_well_as_it_says() {
    let (env, later) = Later::env();
    let device = MemDevice::new();
    {
        let store = common::open(&env, &device).await.unwrap();
        device.remove("witness").unwrap();
        let _step = store.step(1).unwrap();
        let well = beats(&store, &later, 20).await;
        assert!(well.silent.is_zero() && well.capacity.is_some(), "{well:?}");
        until(async || store.vitals(SOON).await.unwritten.is_zero()).await;
    }
    until(async || common::open(&env, &device).await.is_ok()).await;
    assert_eq!(device.stat("witness").unwrap().size, 4096, "the next start makes it");
}
