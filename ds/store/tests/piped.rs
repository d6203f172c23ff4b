//! Large writes whose bytes lie in a pipe.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::watched::{Watch, WatchedDevice};
use common::{access, key, open_on, options};
use proptest::prelude::*;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use sluice_env::Env;
use sluice_store::device::{Device, FileDevice, MemDevice};
use sluice_store::{Epoch, Fence, Options, Refusal, Stability, Store, StoreError};

/// It fits into the pipes of the tests, whose pages are not full.
const LARGE: usize = 768 << 10;

fn content(length: usize, seed: usize) -> Bytes {
    (0..length).map(|i| (i * 7 + (i >> 8) + seed) as u8).collect::<Vec<_>>().into()
}

/// A pipe with these bytes, in pages that are not full, as a network has them.
fn pipe_of(data: &[u8]) -> OwnedFd {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    fcntl_setpipe_size(&write, 1 << 20).unwrap();
    let mut left = data;
    while !left.is_empty() {
        let n = rustix::io::write(&write, &left[..left.len().min(30_000)]).unwrap();
        left = &left[n..];
    }
    read
}

async fn write(store: &Arc<Store>, offset: u64, data: &Bytes, here: usize) -> Result<(), StoreError> {
    let tail = (pipe_of(&data[here..]), data.len() - here);
    store.write_piped(&access(1), offset, data.slice(..here), tail).await.map(drop)
}

async fn read(store: &Arc<Store>, offset: u64, count: usize) -> Bytes {
    store.read_at(key(1), offset, count).await.unwrap().data
}

fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[tokio::test]
async fn what_lies_in_a_pipe_is_written() {
    let (env, dir, memory) = (Env::system(), disk(), tempfile::tempdir_in("/dev/shm").unwrap());
    let devices: [Arc<dyn Device>; 3] = [
        Arc::new(FileDevice::new(dir.path()).unwrap()),
        Arc::new(FileDevice::new(memory.path()).unwrap()),
        Arc::new(MemDevice::new()),
    ];
    for device in devices {
        let store = open_on(&env, Arc::clone(&device)).await.unwrap();
        let verifier = store.verifier(key(1));
        let mut expected = vec![0; 3 * LARGE];
        for (i, (offset, length, here)) in [
            (0, LARGE, 4096),
            (LARGE, LARGE, 0),
            (4096, 70_000, 4096),
            (5000, 200_000, 3192),
            (2 * LARGE, 9, 8),
        ]
        .into_iter()
        .enumerate()
        {
            let data = content(length, i);
            let tail = (pipe_of(&data[here..]), length - here);
            let before = store.writes(key(1));
            let written = store.write_piped(&access(1), offset as u64, data.slice(..here), tail).await;
            assert_eq!(written.unwrap(), verifier);
            assert!(store.writes(key(1)).last > before.newest, "it has a number of its own");
            expected[offset..offset + length].copy_from_slice(&data);
        }
        expected.truncate(2 * LARGE + 9);
        assert_eq!(read(&store, 0, 3 * LARGE).await, expected);
        store.commit(key(1)).await.unwrap();
        assert!(store.piped_bytes() > 2 * LARGE as u64);
    }
}

/// A power failure after COMMIT takes nothing.
#[tokio::test]
async fn what_is_committed_is_durable() {
    let (env, device) = (Env::system(), MemDevice::new());
    let store = open_on(&env, Arc::new(device.clone())).await.unwrap();
    let data = content(LARGE, 3);
    write(&store, 0, &data, 4096).await.unwrap();
    store.commit(key(1)).await.unwrap();
    drop(store);
    device.crash();
    let store = open_on(&env, Arc::new(device)).await.unwrap();
    assert_eq!(read(&store, 0, LARGE).await, data);
}

#[tokio::test]
async fn who_may_not_writes_nothing() {
    let (env, dir) = (Env::system(), disk());
    let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
    let old = content(LARGE, 1);
    write(&store, 0, &old, 0).await.unwrap();
    let fence = Fence::Holder { holder: 1, epoch: Epoch(1) };
    store.fence(&[fence]).await.unwrap();
    let refused = write(&store, 0, &content(LARGE, 2), 4096).await.unwrap_err();
    assert!(matches!(refused, StoreError::Refused(Refusal::Fenced)), "{refused:?}");
    assert_eq!(read(&store, 0, LARGE).await, old);
}

/// A pipe that does not hold what was said is an error, and no thread waits for it.
#[tokio::test]
async fn a_pipe_that_is_too_short_is_an_error() {
    let (env, dir) = (Env::system(), disk());
    for device in
        [Arc::new(FileDevice::new(dir.path()).unwrap()) as Arc<dyn Device>, Arc::new(MemDevice::new())]
    {
        let store = open_on(&env, device).await.unwrap();
        let (open, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        rustix::io::write(&write, &[1; 100]).unwrap();
        let written = store.write_piped(&access(1), 0, Bytes::new(), (open, 200)).await;
        assert!(matches!(written, Err(StoreError::Io(_))), "{written:?}");
        let closed = store.write_piped(&access(1), 0, Bytes::new(), (pipe_of(&[2; 100]), 200)).await;
        assert!(matches!(closed, Err(StoreError::Io(_))), "{closed:?}");
        drop(write);
    }
}

/// What a write leaves in the pipe is the caller's.
#[tokio::test]
async fn no_more_is_taken_than_was_said() {
    let (env, dir) = (Env::system(), disk());
    for device in
        [Arc::new(FileDevice::new(dir.path()).unwrap()) as Arc<dyn Device>, Arc::new(MemDevice::new())]
    {
        let store = open_on(&env, device).await.unwrap();
        let pipe = Arc::new(pipe_of(&content(200_000, 1)));
        store.write_piped(&access(1), 0, Bytes::new(), (Arc::clone(&pipe), 150_000)).await.unwrap();
        let mut left = vec![0; 60_000];
        let n = rustix::io::read(pipe.as_fd(), &mut left).unwrap();
        assert_eq!(left[..n], content(200_000, 1)[150_000..]);
        assert_eq!(read(&store, 0, LARGE).await, content(200_000, 1)[..150_000]);
    }
}

#[tokio::test]
async fn a_full_device_says_so_before_anything_is_written() {
    let (env, device) = (Env::system(), MemDevice::new());
    device.set_capacity(2 * LARGE as u64);
    let store = open_on(&env, Arc::new(device)).await.unwrap();
    write(&store, 0, &content(LARGE, 1), 0).await.unwrap();
    let refused = write(&store, 3 * LARGE as u64, &content(LARGE, 1), 4096).await.unwrap_err();
    assert!(matches!(refused, StoreError::NoSpace), "{refused:?}");
}

/// With checksums all of a write is in memory: it may have to be whole to mend what is broken.
#[tokio::test]
async fn pipes_begin_at_pages_and_not_with_checksums() {
    let env = Env::system();
    let store = open_on(&env, Arc::new(MemDevice::new())).await.unwrap();
    assert_eq!([0, 1, 4096, 5000].map(|at| store.pipe_from(at)), [0, 4096, 4096, 8192].map(Some));
    assert_eq!(store.pipe_from(u64::MAX), None);
    let sums = Options { checksums: Some(true), ..options() };
    let summed = Store::open(&env, Arc::new(MemDevice::new()), sums).await.unwrap();
    assert_eq!(summed.pipe_from(0), None);
    write(&summed, 0, &content(LARGE, 1), 0).await.unwrap();
    assert_eq!(read(&summed, 0, LARGE).await, content(LARGE, 1));
}

/// Counts writes to the device.
#[derive(Debug, Default)]
struct Steps(AtomicUsize);

impl Watch for Steps {
    fn writing(&self, direct: bool) {
        assert!(!direct);
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn large_writes_have_steps_while_there_are_small_calls() {
    let (env, steps) = (Env::system(), Arc::new(Steps::default()));
    let device = WatchedDevice(Box::new(MemDevice::new()), Arc::clone(&steps) as Arc<dyn Watch>);
    let store = open_on(&env, Arc::new(device)).await.unwrap();
    let data = content(LARGE, 1);
    let write = async |piped: bool, offset| {
        match piped {
            true => write(&store, offset, &data, 4096).await.unwrap(),
            false => {
                store.write_at(&access(1), offset, data.clone(), Stability::Unstable).await.unwrap();
            }
        }
        steps.0.swap(0, Ordering::SeqCst)
    };
    // One more for what is in memory.
    for (piped, more) in [(false, 0), (true, 1)] {
        assert_eq!(write(piped, 0).await, 1 + more);
        assert!(store.read_now(key(1), 0, &mut [0; 100]));
        assert_eq!(write(piped, 0).await, LARGE / (128 << 10) + more, "{piped}");
        assert_eq!(write(piped, 0).await, 1 + more, "none since");
        store.write_now(&access(1), 0, &[0; 4096]).unwrap().unwrap();
        assert_eq!(steps.0.swap(0, Ordering::SeqCst), 1);
        assert_eq!(write(piped, 5000).await, LARGE / (128 << 10) + 1 + more, "{piped}");
        assert_eq!(read(&store, 5000, LARGE).await, data);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Beside all other ways to write, on a real file system.
    #[test]
    fn pipes_and_other_ways_write_one_file(
        steps in prop::collection::vec((0..3u8, 0..600_000usize, 1..400_000usize, 0..9000usize), 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (env, dir) = (Env::system(), disk());
            let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
            let (mut expected, mut end) = (vec![0; 2 * LARGE], 0);
            for (i, (way, offset, length, here)) in steps.into_iter().enumerate() {
                let data = content(length, i);
                match way {
                    0 => write(&store, offset as u64, &data, here.min(length)).await.unwrap(),
                    1 => drop(store.write_at(&access(1), offset as u64, data.clone(), Stability::Unstable).await.unwrap()),
                    _ => drop(store.write_at(&access(1), offset as u64, data.clone(), Stability::FileSync).await.unwrap()),
                }
                expected[offset..offset + length].copy_from_slice(&data);
                end = end.max(offset + length);
            }
            assert!(read(&store, 0, 2 * LARGE).await == expected[..end]);
        });
    }
}
