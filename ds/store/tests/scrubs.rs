//! Scrubs that are ended, break off, or could not look at everything.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::summed::*;
use common::watched::{Watch, WatchedDevice};
use common::{bytes, key, simulate};
use sluice_env::Env;
use sluice_store::device::{Device, MemDevice};
use sluice_store::{Options, Store, SumOptions};

const HOUR: u64 = 3600;

async fn scrubbing(env: &Env, device: impl Device + 'static, hours: u64, rate: u64) -> Arc<Store> {
    let sums = SumOptions { interval: Duration::from_secs(hours * HOUR), rate, ..summed().sums };
    Store::open(env, Arc::new(device), Options { sums, ..summed() }).await.unwrap()
}

#[test]
fn a_scrub_that_is_ended_is_due_again_an_interval_later() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = scrubbing(&env, device.clone(), 1, 1 << 20).await;
        put(&store, 1, 0, 7, 60 << 20).await;
        rest(&env, &store, HOUR + 10).await;
        let begun = store.scrubbed().begun;
        assert!(store.scrubbed().running && begun > 0, "it was due");
        store.stop_scrub();
        rest(&env, &store, HOUR - 100).await;
        assert_eq!((store.scrubbed().running, store.scrubbed().begun), (false, begun));
        rest(&env, &store, 110).await;
        assert!(store.scrubbed().running && store.scrubbed().begun > begun, "it is due again");
        // One that is asked for begins at once, and whoever is told to begin after a restart waits, too.
        store.stop_scrub();
        assert!(store.scrub() && store.scrubbed().running);
        store.stop_scrub();
        rest(&env, &store, 5).await;
        drop(store);
        let store = scrubbing(&env, device.clone(), 1, 1 << 20).await;
        rest(&env, &store, HOUR / 2).await;
        assert!(!store.scrubbed().running);
        rest(&env, &store, HOUR / 2 + 10).await;
        assert!(store.scrubbed().running);
    });
}

/// Files of the first folder that a scrub goes through, and of another one.
const OF_THE_FIRST: u64 = 9478;
const OF_ANOTHER: u64 = 1;

#[test]
fn a_scrub_that_is_ended_and_begun_anew_compares_everything() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = scrubbing(&env, device.clone(), 0, 1 << 20).await;
        for file in [OF_THE_FIRST, OF_ANOTHER] {
            put(&store, file, 0, 7, 12 << 20).await;
        }
        assert!(path(&device, key(OF_THE_FIRST), "").starts_with("data/0/00/"));
        assert!(!path(&device, key(OF_ANOTHER), "").starts_with("data/0/00/"));
        rest(&env, &store, 60).await;
        assert_eq!(store.scrubbed().sealed, 24 << 20);
        assert!(store.scrub());
        let anew = async {
            // The first one is done, and a region of the other is being read.
            while store.scrubbed().compared < 16 << 20 {
                env.clock.sleep(Duration::from_millis(100)).await;
            }
            store.stop_scrub();
            assert!(store.scrub());
            assert_eq!((store.scrubbed().folders, store.scrubbed().compared), (0, 0));
        };
        let _ = tokio::join!(rest(&env, &store, 120), anew);
        let done = store.scrubbed();
        assert!(!done.running && done.finished >= done.begun);
        assert_eq!(done.compared, 24 << 20);
    });
}

/// A device that does not do something.
#[derive(Debug, Default)]
struct Fails {
    listing: AtomicBool,
    reading: AtomicBool,
}

fn unless(fails: &AtomicBool) -> io::Result<()> {
    // Of no file's medium.
    if fails.load(Ordering::Relaxed) { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
}

impl Watch for Fails {
    fn writing(&self, _direct: bool) {}
    fn listing(&self, folder: &str) -> io::Result<()> {
        if folder.starts_with("data/8/") { unless(&self.listing) } else { Ok(()) }
    }
    fn reading(&self, _length: usize) -> io::Result<()> {
        unless(&self.reading)
    }
}

#[test]
fn a_scrub_that_broke_off_is_due_again_a_day_later() {
    simulate(async |env| {
        let (device, fails) = (MemDevice::new(), Arc::new(Fails::default()));
        let watched = || WatchedDevice(Box::new(device.clone()), Arc::clone(&fails) as Arc<dyn Watch>);
        let mut store = scrubbing(&env, watched(), 30, 0).await;
        put(&store, 1, 0, 7, 100).await;
        fails.listing.store(true, Ordering::Relaxed);
        rest(&env, &store, 30 * HOUR + 10).await;
        let begun = store.scrubbed().begun;
        let broken = store.scrubbed();
        assert!(!broken.running && begun > 0 && broken.finished == 0, "{broken:?}");
        rest(&env, &store, 10).await;
        assert_eq!(store.scrubbed().begun, begun);
        for again in [false, true] {
            if again {
                drop(store);
                store = scrubbing(&env, watched(), 30, 0).await;
            }
            rest(&env, &store, 10 * HOUR).await;
            assert_eq!((store.scrubbed().running, store.scrubbed().begun), (false, begun));
        }
        fails.listing.store(false, Ordering::Relaxed);
        rest(&env, &store, 4 * HOUR + 10).await;
        let done = store.scrubbed();
        assert!(!done.running && done.begun > begun && done.finished >= done.begun, "{done:?}");
    });
}

#[test]
fn a_scrub_that_could_not_look_at_a_file_has_not_come_to_its_end() {
    simulate(async |env| {
        let (device, fails) = (MemDevice::new(), Arc::new(Fails::default()));
        let watched = || WatchedDevice(Box::new(device.clone()), Arc::clone(&fails) as Arc<dyn Watch>);
        let store = scrubbing(&env, watched(), 30, 0).await;
        for file in 1..=3 {
            put(&store, file, 0, 7, 100).await;
        }
        rest(&env, &store, 60).await;
        fails.reading.store(true, Ordering::Relaxed);
        scrub(&env, &store).await;
        let ended = store.scrubbed();
        assert_eq!((ended.finished, ended.folders, ended.bad), (0, 4096, 0), "it went through all of them");
        fails.reading.store(false, Ordering::Relaxed);
        drop(store);
        let store = scrubbing(&env, watched(), 30, 0).await;
        assert!(!store.scrubbed().running);
        rest(&env, &store, 20 * HOUR).await;
        assert_eq!(store.scrubbed().begun, ended.begun, "it does not begin by itself at once");
        rest(&env, &store, 11 * HOUR).await;
        let done = store.scrubbed();
        assert_eq!((done.finished >= done.begun, done.compared), (true, 300));
        assert_eq!(store.read_at(key(1), 0, 1).await.unwrap().data, bytes(7, 1));
    });
}

/// As it goes on after a restart: it does not forget what it could not look at.
#[test]
fn a_scrub_looks_again_after_a_restart_at_what_it_could_not() {
    simulate(async |env| {
        let (device, fails) = (MemDevice::new(), Arc::new(Fails::default()));
        let watched = || WatchedDevice(Box::new(device.clone()), Arc::clone(&fails) as Arc<dyn Watch>);
        let store = scrubbing(&env, watched(), 0, 1 << 20).await;
        put(&store, OF_THE_FIRST, 0, 7, 100).await;
        // The one takes longer than until the place is saved, the other is behind it.
        put(&store, OF_ANOTHER, 0, 7, 36 << 20).await;
        put(&store, 7, 0, 7, 20 << 20).await;
        rest(&env, &store, 120).await;
        fails.reading.store(true, Ordering::Relaxed);
        assert!(store.scrub());
        let readable = async {
            while store.scrubbed().folders == 0 {
                env.clock.sleep(Duration::from_millis(10)).await;
            }
            fails.reading.store(false, Ordering::Relaxed);
            device.rot(&path(&device, key(OF_THE_FIRST), ""), 0);
        };
        let _ = tokio::join!(rest(&env, &store, 45), readable);
        assert!(store.scrubbed().running && store.scrubbed().folders > 0);
        drop(store);
        let store = scrubbing(&env, watched(), 0, 1 << 20).await;
        assert!(store.scrubbed().running);
        rest(&env, &store, 120).await;
        assert!(!store.scrubbed().running && store.scrubbed().finished > 0);
        assert_eq!(store.damaged().1, [damage(OF_THE_FIRST, 0, 1)]);
    });
}
