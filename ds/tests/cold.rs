//! Small READs over a real socket of what a real device has to be asked for, many at once: they say what all others say.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use common::*;
use rustix::fs::{Advice, fadvise};
use sluice_env::Env;
use sluice_store::Options;

const SIZE: u64 = (8 << 20) + 1001;

/// Nothing of any file below is in memory, where there is anything else.
fn forget(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            forget(&path);
        } else {
            fadvise(File::open(path).unwrap(), 0, None, Advice::DontNeed).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_reads_are_what_was_written() {
    for checksums in [None, Some(true)] {
        let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
        let options = Options { create: true, checksums, ..Options::default() };
        let (ds, nfs, content) = written(&env, dir.path(), options, SIZE).await;
        let (mut reads, mut bytes) = (0, 0);
        for round in 0..4u64 {
            forget(&dir.path().join("data"));
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..400 {
                // Pages, parts of them, and what meets the end.
                let count = [4096, 4095, 1, 16 << 10][number as usize % 4];
                let offset = (number * 7919 + round * 31) * 4096 % (SIZE + 4096);
                let (nfs, content) = (Arc::clone(&nfs), content.clone());
                let end = SIZE.min(offset + u64::from(count));
                (reads, bytes) = (reads + 1, bytes + end.saturating_sub(offset));
                tasks.spawn(async move {
                    let (data, eof) = nfs.read(&handle(1, RW), offset, count).await.unwrap();
                    assert_eq!(data, content[offset.min(end) as usize..end as usize], "{count} at {offset}");
                    assert_eq!(eof, offset + u64::from(count) > SIZE, "{count} at {offset}");
                });
            }
            while let Some(task) = tasks.join_next().await {
                task.unwrap();
            }
        }
        let counters = ds.status().counters;
        assert_eq!((counters.reads, counters.bytes_read), (reads, bytes), "each was counted, once");
        ds.shutdown(LONG).await;
    }
}
