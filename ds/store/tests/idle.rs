//! Data files that were written and are left alone are closed, and nothing is lost with that; whoever waits until one is open
//! again waits alone.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::watched::{Watch, WatchedDevice};
use common::{access, bytes, key, open, open_on, options, simulate};
use parking_lot::{Condvar, Mutex};
use sluice_env::Env;
use sluice_store::device::{Device, FileDevice, MemDevice};
use sluice_store::{Epoch, Options, Refusal, Stability, Store, StoreError};

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
        assert_eq!(sent.load(0, SIZE).await.unwrap(), bytes(7, SIZE));
        store.write_at(&access(1), 0, bytes(8, SIZE), Stability::FileSync).await.unwrap();
        assert_eq!(descriptors(dir.path()), 1, "it is one file to all");
        drop(sent);
        keep(&env, &store, 10).await;
        assert_eq!(descriptors(dir.path()), 0);
    });
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Door {
    #[default]
    Open,
    /// Whoever opens a data file next stands still.
    Shut,
    /// Somebody does.
    Stuck,
}

#[derive(Debug, Default)]
struct Opens {
    door: Mutex<Door>,
    moved: Condvar,
}

impl Watch for Opens {
    fn writing(&self, _direct: bool) {}
    fn opening(&self) {
        let mut door = self.door.lock();
        if *door == Door::Shut {
            *door = Door::Stuck;
            let until = Duration::from_secs(30);
            self.moved.wait_while_for(&mut door, |door| *door == Door::Stuck, until);
        }
    }
}

impl Opens {
    fn set(&self, door: Door) {
        *self.door.lock() = door;
        self.moved.notify_all();
    }
}

/// A store with data files 0 to 63, of which none is open.
async fn closed(env: &Env) -> (Arc<Store>, Arc<Opens>, MemDevice) {
    let (device, opens) = (MemDevice::new(), Arc::new(Opens::default()));
    let store = open(env, &device).await.unwrap();
    for file in 0..64 {
        write(&store, file, Stability::FileSync).await;
    }
    drop(store);
    let watched = WatchedDevice(Box::new(device.clone()), Arc::clone(&opens) as Arc<dyn Watch>);
    (open_on(env, Arc::new(watched)).await.unwrap(), opens, device)
}

async fn until(env: &Env, reached: impl Fn() -> bool) {
    for _ in 0..2000 {
        if reached() {
            return;
        }
        env.clock.sleep(Duration::from_millis(5)).await;
    }
    panic!("it never comes to that");
}

/// Flushes wait for tickets.
#[derive(Debug, Default)]
struct Flushing {
    /// Begun, and how many of them may go on.
    flushes: Mutex<(usize, usize)>,
    moved: Condvar,
}

impl Watch for Flushing {
    fn writing(&self, _direct: bool) {}
    fn flushes(&self) {
        let mut flushes = self.flushes.lock();
        flushes.0 += 1;
        let number = flushes.0;
        self.moved.wait_while_for(&mut flushes, |(_, may)| *may < number, Duration::from_secs(30));
    }
}

impl Flushing {
    fn let_go(&self, flushes: usize) {
        self.flushes.lock().1 += flushes;
        self.moved.notify_all();
    }
}

fn one_file() -> Options {
    Options { open_files: 1, ..options() }
}

/// A data file that file 1 has to be closed for, in a store that keeps hardly any open.
async fn rival(env: &Env) -> u64 {
    for file in 2.. {
        let device = MemDevice::new();
        let store = Store::open(env, Arc::new(device.clone()), one_file()).await.unwrap();
        write(&store, 1, Stability::FileSync).await;
        write(&store, file, Stability::FileSync).await;
        if opened(&device, 1) == 0 {
            return file;
        }
    }
    unreachable!("there are not so many places")
}

/// Others may wait for him: a fence does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "a test on a real machine")]
async fn who_flushes_to_make_room_does_not_go_on_for_others() {
    let env = Env::system();
    let (rival, flushing) = (rival(&env).await, Arc::new(Flushing::default()));
    let watched = WatchedDevice(Box::new(MemDevice::new()), Arc::clone(&flushing) as Arc<dyn Watch>);
    let store = Store::open(&env, Arc::new(watched), one_file()).await.unwrap();
    write(&store, 1, Stability::Unstable).await;
    let begun = |flushes: usize| flushing.flushes.lock().0 == flushes;
    let later = |file, stability| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { write(&store, file, stability).await })
    };
    let makes_room = later(rival, Stability::Unstable);
    until(&env, || begun(1)).await;
    let waits = later(1, Stability::FileSync);
    env.clock.sleep(Duration::from_millis(100)).await;
    flushing.let_go(1);
    until(&env, || begun(2)).await;
    let made = env.clock.timeout(Duration::from_secs(10), makes_room).await;
    let over = waits.is_finished();
    flushing.let_go(100);
    made.expect("the second flush is not for him").unwrap();
    assert!(!over, "it was written after the first flush began");
    waits.await.unwrap();
}

/// A hanging disk directory, or a folder that has to be made first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "a test on a real machine")]
async fn who_waits_for_a_file_to_be_open_waits_alone() {
    let env = Env::system();
    for new in [false, true] {
        let (store, opens, device) = closed(&env).await;
        for file in 1..64 {
            store.read_at(key(file), 0, 5000).await.unwrap();
        }
        let file = if new { 100 } else { 0 };
        opens.set(Door::Shut);
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    if new {
                        store.allocate(key(file), 0, 0, 5000).await
                    } else {
                        store.read_at(key(file), 0, 5000).await.map(drop)
                    }
                })
            })
            .collect();
        until(&env, || *opens.door.lock() == Door::Stuck).await;
        let others = Arc::clone(&store);
        // They would stand still themselves, and the clock with them.
        let going = tokio::task::spawn_blocking(move || {
            for file in 1..64 {
                assert!(others.read_now(key(file), 0, &mut [0; 4096]));
                assert!(others.write_now(&access(file), 0, &[1; 4096]).unwrap().is_ok());
            }
            assert!(!others.read_now(key(file), 0, &mut [0; 4096]), "it is not open yet");
        });
        let gone = env.clock.timeout(Duration::from_secs(10), going).await;
        opens.set(Door::Open);
        gone.expect("nobody else is held up").unwrap();
        for wait in waiting {
            wait.await.unwrap().unwrap();
        }
        assert_eq!(opened(&device, file), 1, "once");
    }
}

/// Neither what is being opened nor what is being made outlives its removal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "a test on a real machine")]
async fn a_file_that_is_removed_while_it_is_opened_is_gone() {
    let env = Env::system();
    for file in [0, 100] {
        let (store, opens, device) = closed(&env).await;
        // Nothing but the journal, once the store before is closed.
        until(&env, || device.all_opened() == 1).await;
        opens.set(Door::Shut);
        let opener = Arc::clone(&store);
        let opening = tokio::spawn(async move {
            match file {
                0 => opener.read_at(key(file), 0, 5000).await.map(drop),
                _ => opener.allocate(key(file), 0, 0, 5000).await,
            }
        });
        until(&env, || *opens.door.lock() == Door::Stuck).await;
        let remover = Arc::clone(&store);
        let removal = tokio::spawn(async move { remover.remove(&[(key(file), 0)], Epoch(1)).await });
        env.clock.sleep(Duration::from_millis(100)).await;
        assert!(!removal.is_finished(), "what is being made may be there any moment");
        opens.set(Door::Open);
        removal.await.unwrap().unwrap();
        // Made first, or refused.
        let made = opening.await.unwrap();
        assert!(matches!(made, Ok(()) | Err(StoreError::Refused(Refusal::Removed))), "{made:?}");
        assert_eq!(store.stat(key(file)).await.unwrap(), None);
        assert!(!store.inventory(None, 100).await.unwrap().iter().any(|entry| entry.key == key(file)));
        until(&env, || device.all_opened() == 1).await;
    }
}
