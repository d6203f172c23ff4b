//! Large READs over a real socket from a real file: they go another way than all others, and say the same.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;

use common::*;
use sluice_env::Env;
use sluice_store::Options;
use sluice_xdr::capability::Rights;
use sluice_xdr::nfs3::*;

const SIZE: u64 = (3 << 20) + 1000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_reads_are_what_was_written() {
    let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
    let options = Options { create: true, ..Options::default() };
    let (ds, nfs, content) = written(&env, dir.path(), options, SIZE).await;
    let mut tasks = tokio::task::JoinSet::new();
    for offset in [0, 1, 4096, 65_536, 1 << 20, SIZE - (1 << 20), SIZE - 100_000, SIZE - 1000, SIZE] {
        for count in [4096, 65_535, 65_536, 65_537, 100_000, 1 << 20] {
            let (nfs, content) = (Arc::clone(&nfs), content.clone());
            tasks.spawn(async move {
                let (data, eof) = nfs.read(&handle(1, RW), offset, count).await.unwrap();
                let end = SIZE.min(offset + u64::from(count));
                assert_eq!(data, content[offset as usize..end as usize], "{count} at {offset}");
                // More may be there: only who has looked beyond the end knows of it.
                assert_eq!(eof, offset + u64::from(count) > SIZE, "{count} at {offset}");
            });
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(nfs.read(&handle(1, Rights::READ), 0, 1 << 20).await.unwrap().0, content[..1 << 20]);
    assert_eq!(nfs.read(&handle(1, Rights::WRITE), 0, 1 << 20).await, Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(ds.status().counters.refused, 1, "counted once");
    ds.shutdown(LONG).await;
}
