//! Large writes that go past the page cache.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::watched::{Watch, WatchedDevice};
use common::{access, bytes, key, open_on, path};
use proptest::prelude::*;
use sluice_env::Env;
use sluice_store::device::{Device, FileDevice, MemDevice};
use sluice_store::{Stability, Store};

const LARGE: usize = 1 << 20;

/// Counts writes by their ways.
#[derive(Debug, Default)]
struct Ways {
    cached: AtomicUsize,
    direct: AtomicUsize,
}

impl Watch for Ways {
    fn writing(&self, direct: bool) {
        let count = if direct { &self.direct } else { &self.cached };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

impl Ways {
    /// Cached and direct since the last look.
    fn since(&self) -> (usize, usize) {
        (self.cached.swap(0, Ordering::SeqCst), self.direct.swap(0, Ordering::SeqCst))
    }
}

async fn watched(env: &Env) -> (Arc<Store>, Arc<Ways>) {
    let ways = Arc::new(Ways::default());
    let watch: Arc<dyn Watch> = Arc::clone(&ways) as _;
    (open_on(env, Arc::new(WatchedDevice(Box::new(MemDevice::new()), watch))).await.unwrap(), ways)
}

#[tokio::test]
async fn what_somebody_waits_for_goes_past_the_page_cache_if_it_is_large() {
    let (store, ways) = watched(&Env::system()).await;
    let write = async |length, stability| store.write_at(&access(1), 0, bytes(1, length), stability).await;
    write(LARGE, Stability::Unstable).await.unwrap();
    assert_eq!(ways.since(), (1, 0), "nobody waits for it");
    for stability in [Stability::DataSync, Stability::FileSync] {
        write(LARGE, stability).await.unwrap();
        assert_eq!(ways.since(), (0, 1), "{stability:?}");
        write(64 << 10, stability).await.unwrap();
        assert_eq!(ways.since(), (1, 0), "{stability:?}");
    }
    store.fill(key(1), 0, 0, bytes(2, LARGE)).await.unwrap();
    assert_eq!(ways.since(), (0, 1), "a copy");
}

/// On the file system that the tests are built on.
fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[tokio::test]
async fn it_leaves_nothing_in_memory() {
    let (env, dir) = (Env::system(), disk());
    let device = Arc::new(FileDevice::new(dir.path()).unwrap());
    let store = open_on(&env, Arc::clone(&device) as Arc<dyn Device>).await.unwrap();
    // Asked of the kernel, where it tells: a read that does not wait begins one, and a quick device has it done by then.
    // Else samples far apart, from the end on, since such a read has the system read what follows, and a little around.
    let held = |file| {
        let file = device.open(&path(&*device, key(file), "")).unwrap();
        (0..LARGE).step_by(LARGE / 4).rev().filter(|at| file.is_cached(*at as u64, 4096)).count()
    };
    store.write_at(&access(1), 0, bytes(1, LARGE), Stability::FileSync).await.unwrap();
    store.write_at(&access(1), LARGE as u64, bytes(2, 4096), Stability::FileSync).await.unwrap();
    assert_eq!(store.direct_bytes(), LARGE as u64);
    assert!(store.read_now(key(1), LARGE as u64, &mut [0; 4096]));
    assert_eq!(held(1), 0, "pages in memory");
    // A second one replaces what memory holds.
    assert_eq!(store.read_at(key(1), 8192, 4096).await.unwrap().data, bytes(1, 4096));
    store.write_at(&access(1), 0, bytes(3, LARGE), Stability::DataSync).await.unwrap();
    let all = store.read_at(key(1), 0, LARGE).await.unwrap();
    assert!(all.data.iter().all(|byte| *byte == 3), "what was read before");
    // Of an odd length all whole blocks go that way, and those that follow, too.
    for (file, length) in [(2, LARGE + 100), (3, LARGE)] {
        store.write_at(&access(file), 0, bytes(4, length), Stability::FileSync).await.unwrap();
        assert_eq!(held(file), 0, "{length} bytes");
    }
}

/// Files on `dir` that this process has open past the page cache.
fn open_directly(dir: &Path) -> usize {
    let direct = rustix::fs::OFlags::DIRECT.bits();
    let of = |entry: &std::fs::DirEntry| {
        let info = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name())).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
        (flags & direct != 0 && std::fs::read_link(entry.path()).ok()?.starts_with(dir)).then_some(())
    };
    std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| of(&entry.unwrap())).count()
}

#[tokio::test]
async fn it_does_not_double_the_open_files() {
    let (env, dir) = (Env::system(), disk());
    let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
    let path = dir.path().canonicalize().unwrap();
    for file in 0..150 {
        store.write_at(&access(file), 0, bytes(1, 256 << 10), Stability::FileSync).await.unwrap();
    }
    let open = open_directly(&path);
    assert!((1..=128).contains(&open), "{open}");
    // The first has none any more, and gets another.
    store.write_at(&access(0), 0, bytes(2, 256 << 10), Stability::FileSync).await.unwrap();
    assert_eq!(store.read_at(key(0), 0, 10).await.unwrap().data, bytes(2, 10));
    assert_eq!(open_directly(&path), open);
    drop(store);
    // Threads that flushed some let go of them a moment later than the store.
    for _ in 0..1000 {
        if open_directly(&path) == 0 {
            break;
        }
        env.clock.sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(open_directly(&path), 0);
}

#[derive(Clone, Debug)]
struct Piece {
    offset: usize,
    data: Bytes,
    stability: Stability,
}

/// Of all alignments, in offset, length and memory.
fn piece() -> impl Strategy<Value = Piece> {
    let unit = prop_oneof![Just(4096usize), Just(512), Just(4), Just(1)];
    let stability =
        prop_oneof![Just(Stability::Unstable), Just(Stability::DataSync), Just(Stability::FileSync)];
    (unit, 0usize..300, 1usize..180, 0usize..64, any::<u8>(), stability).prop_map(
        |(unit, at, pages, shift, fill, stability)| {
            let (offset, length) = (at * 4096 / unit * unit + unit % 4096, pages * 4096 + unit % 4096);
            let all: Vec<u8> = (0..length + shift).map(|i| fill.wrapping_add((i / 7) as u8)).collect();
            Piece { offset, data: Bytes::from(all).slice(shift..), stability }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]
    #[test]
    fn any_mixture_is_what_was_written_last(pieces in prop::collection::vec(piece(), 1..12)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let dir = disk();
        runtime.block_on(async {
            let store = open_on(&Env::system(), Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
            let mut model = Vec::new();
            for Piece { offset, data, stability } in pieces {
                let end = offset + data.len();
                model.resize(model.len().max(end), 0);
                model[offset..end].copy_from_slice(&data);
                store.write_at(&access(1), offset as u64, data, stability).await.unwrap();
                let read = store.read_at(key(1), 0, model.len() + 1).await.unwrap();
                assert!(read.end && read.data == model, "after a write of {offset} to {end}");
            }
        });
    }
}
