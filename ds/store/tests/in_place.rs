//! Reads that go from the page cache to a socket.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::future::poll_fn;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use common::{access, key, open_on, options};
use sluice_env::Env;
use sluice_store::device::{Device, FileDevice};
use sluice_store::{Epoch, Fence, InPlace, Options, Stability, Store};

const SIZE: usize = 1 << 20;

fn content() -> Bytes {
    (0..SIZE as u32).map(|i| (i * 7 + (i >> 8)) as u8).collect::<Vec<_>>().into()
}

async fn filled(env: &Env, dir: &Path) -> Arc<Store> {
    let store = open_on(env, Arc::new(FileDevice::new(dir).unwrap())).await.unwrap();
    store.write_at(&access(1), 0, content(), Stability::Unstable).await.unwrap();
    store.commit(key(1)).await.unwrap();
    store
}

/// What arrives on the other side until nothing is at hand, or all is there.
fn pump(data: &InPlace, mut from: usize) -> std::io::Result<Vec<u8>> {
    let (near, mut far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    let mut arrived = Vec::new();
    while from < data.length() {
        match data.send(from, near.as_fd()) {
            Ok(Some(n)) => from += n,
            Ok(None) => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert_eq!(far.read_to_end(&mut arrived).unwrap_err().kind(), ErrorKind::WouldBlock);
            }
            Err(error) => return Err(error),
        }
    }
    drop(near);
    far.read_to_end(&mut arrived).unwrap();
    Ok(arrived)
}

#[tokio::test]
async fn what_is_in_memory_is_sent_from_there() {
    let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
    let store = filled(&env, dir.path()).await;
    let all = store.in_place(&access(1), 0, SIZE).unwrap();
    assert_eq!(pump(&all, 0).unwrap(), content());
    let part = store.in_place(&access(1), 4097, 70_000).unwrap();
    assert_eq!(pump(&part, 0).unwrap(), content()[4097..74_097]);
    assert_eq!(pump(&part, 69_999).unwrap(), content()[74_096..74_097]);
    assert_eq!(part.load(60_000, usize::MAX).await.unwrap(), content()[64_097..74_097]);

    assert!(store.in_place(&access(1), 1, SIZE).is_none(), "the file ends before");
    assert!(store.in_place(&access(1), u64::MAX, SIZE).is_none());
    assert!(store.in_place(&access(2), 0, SIZE).is_none(), "not there");
}

/// A thread that must not go to the device, because as many as may are there.
#[tokio::test]
async fn whoever_may_not_send_it_loads_it() {
    let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
    drop(filled(&env, dir.path()).await);
    let device = Arc::new(FileDevice::new(dir.path()).unwrap());
    let store = Store::open(&env, device, Options { inline_threads: 0, ..options() }).await.unwrap();
    store.commit(key(1)).await.unwrap();
    let all = store.in_place(&access(1), 0, SIZE).unwrap();
    assert_eq!(pump(&all, 0).unwrap(), b"");
    assert_eq!(all.load(0, SIZE).await.unwrap(), content());
}

#[tokio::test]
async fn what_is_cut_off_meanwhile_is_zeros() {
    let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
    let store = filled(&env, dir.path()).await;
    let all = store.in_place(&access(1), 0, SIZE).unwrap();
    store.truncate(key(1), 100_000).await.unwrap();
    // Memory that was used before.
    drop(store.read_at(key(1), 0, SIZE).await.unwrap());
    let arrived = pump(&all, 0).unwrap();
    assert_eq!(arrived, content()[..100_000]);
    let rest = all.load(arrived.len(), usize::MAX).await.unwrap();
    assert!(rest.len() == SIZE - 100_000 && rest.iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn a_fenced_reader_gets_nothing_more() {
    let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
    let store = filled(&env, dir.path()).await;
    let all = store.in_place(&access(1), 0, SIZE).unwrap();
    let fence = Fence::Holder { holder: access(1).holder, epoch: Epoch(1) };
    store.fence(&[fence]).await.unwrap();
    assert_eq!(pump(&all, 4096).unwrap_err().kind(), ErrorKind::PermissionDenied);
    all.load(4096, usize::MAX).await.unwrap_err();
}

#[tokio::test]
async fn a_removed_file_is_read_to_its_end() {
    let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
    let store = filled(&env, dir.path()).await;
    let all = store.in_place(&access(1), 0, SIZE).unwrap();
    store.remove(&[(key(1), access(1).generation)], Epoch(1)).await.unwrap();
    assert_eq!(pump(&all, 0).unwrap(), content());
    assert_eq!(all.load(5000, usize::MAX).await.unwrap(), content()[5000..]);
    assert_eq!(all.load(5000, 100).await.unwrap(), content()[5000..5100]);
    assert!(store.in_place(&access(1), 0, SIZE).is_none());
}

/// The page cache is asked by samples; a file system that keeps nothing in it (or cannot tell) is never sent from.
#[tokio::test]
async fn what_is_not_in_memory_is_not_waited_for() {
    let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
    let store = filled(&env, dir.path()).await;
    let all = store.in_place(&access(1), 0, SIZE).unwrap();
    let forget = |path: &Path| {
        let file = std::fs::File::open(path).unwrap();
        file.sync_data().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    for leaf in walk(&dir.path().join("data")) {
        forget(&leaf);
    }
    if store.in_place(&access(1), 0, SIZE).is_some() {
        // A file system in memory forgets nothing.
        return;
    }
    assert_eq!(pump(&all, 4096).unwrap(), Vec::<u8>::new());
    assert_eq!(all.load(4096, usize::MAX).await.unwrap(), content()[4096..]);
    assert_eq!(pump(&all, 4096).unwrap(), content()[4096..], "it is again");
}

/// Some file systems cannot be sent from. The kernel says so as it does for a target that nothing can be sent to.
#[test]
fn who_cannot_send_says_so_once_and_copies_from_then_on() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::new(dir.path()).unwrap();
    let file = device.create("file").unwrap();
    file.write_at(&content(), 0).unwrap();
    assert!(file.is_cached(0, SIZE as u64));
    let mut options = std::fs::OpenOptions::new();
    let target = options.append(true).create(true).open(dir.path().join("target")).unwrap();
    assert_eq!(file.send(0, SIZE, target.as_fd()).unwrap(), 0);
    assert!(!file.is_cached(0, SIZE as u64));
    assert!(!device.open("file").unwrap().is_cached(0, SIZE as u64), "all of its files");
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// Its first and its last page are in memory, and what is between them is not.
#[tokio::test]
async fn what_is_not_all_in_memory_is_not_sent_from_there() {
    let (env, dir) = (Env::system(), tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let store = open_on(&env, Arc::new(FileDevice::new(dir.path()).unwrap())).await.unwrap();
    store.write_at(&access(1), 0, content(), Stability::FileSync).await.unwrap();
    // A file system that does not write past memory has all of it there.
    let past = store.direct_bytes() > 0;
    for offset in [0, SIZE - 4096] {
        let page = content().slice(offset..offset + 4096);
        store.write_at(&access(1), offset as u64, page, Stability::Unstable).await.unwrap();
    }
    assert_eq!(store.in_place(&access(1), 0, SIZE).is_none(), past);
    assert!(store.in_place(&access(1), 0, 4096).is_some());
}

/// Where it cannot be sent it is loaded, and nobody waits for a thread then.
#[tokio::test]
async fn what_is_in_memory_is_loaded_at_once() {
    let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
    let store = filled(&env, dir.path()).await;
    let all = store.in_place(&access(1), 0, SIZE).unwrap();
    for _ in 0..100 {
        let mut load = pin!(all.load(4097, 70_000));
        let loaded = poll_fn(|cx| Poll::Ready(load.as_mut().poll(cx))).await;
        assert_eq!(loaded.map(Result::unwrap), Poll::Ready(content().slice(4097..74_097)));
    }
}
