//! Large READs over a real socket from a real file: they go another way than all others, and say the same.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;
#[allow(dead_code, reason = "each test file uses its part")]
#[path = "../store/tests/common/watched.rs"]
mod watched;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use sluice_ds::DataServer;
use sluice_env::Env;
use sluice_rpc::Credential;
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

/// A device that keeps pages in memory which it could not read, as Linux does: they are there, and cannot be had.
#[derive(Debug, Default)]
struct BadPages {
    cached: AtomicBool,
    bad: AtomicBool,
}

impl watched::Watch for BadPages {
    fn writing(&self, _direct: bool) {}
    fn seems_cached(&self) -> bool {
        self.cached.load(Ordering::SeqCst)
    }
    fn reading(&self, _length: usize) -> io::Result<()> {
        // EIO.
        if self.bad.load(Ordering::SeqCst) { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }
}

const PIECE: usize = 128 << 10;

/// A reply that began in place ends with its connection, since its length was promised. That helps nobody twice.
#[test]
fn what_the_device_cannot_read_is_an_error_and_not_the_end_of_one_connection_after_the_other() {
    simulate(async |w| {
        let pages = Arc::new(BadPages::default());
        let watch = Arc::clone(&pages) as Arc<dyn watched::Watch>;
        let device = Arc::new(watched::WatchedDevice(Box::new(w.device.clone()), watch));
        // Whoever reads from memory finds nothing.
        w.device.set_cached(0);
        let host = w.net.host("ds");
        let ds = DataServer::start_on(w.env.clone(), host, device, w.config("ds")).await.unwrap();
        w.until(|| ds.status().serving).await;
        let nfs = w.client(&ds).await;
        for file in [1, 2] {
            nfs.write(&handle(file, RW), 0, &[7; PIECE], stable_how::FILE_SYNC).await.unwrap();
        }
        let (here, gone) =
            (|| pages.bad.store(false, Ordering::SeqCst), || pages.bad.store(true, Ordering::SeqCst));
        // Nothing of it was in memory when the first one asked.
        gone();
        assert_eq!(nfs.read(&handle(2, RW), 0, PIECE as u32).await, Err(nfsstat3::NFS3ERR_IO));
        pages.cached.store(true, Ordering::SeqCst);
        assert_eq!(nfs.read(&handle(2, RW), 0, PIECE as u32).await, Err(nfsstat3::NFS3ERR_IO));
        // It was, as far as anybody could tell.
        let args = READ3args { file: nfs_fh3 { data: handle(1, RW) }, offset: 0, count: PIECE as u32 };
        let none = Credential::None;
        let first = nfs.connection.call(NFS3_PROGRAM, NFS_V3, NFSPROC3_READ, &none, frame(&args), LONG).await;
        first.unwrap_err();
        // As long as a client may take to come again; nobody uses the data file meanwhile.
        for _ in 0..3 {
            w.sleep(Duration::from_secs(15)).await;
            let nfs = w.client(&ds).await;
            assert_eq!(nfs.read(&handle(1, RW), 0, PIECE as u32).await, Err(nfsstat3::NFS3ERR_IO));
        }
        // The medium gave it back.
        here();
        let nfs = w.client(&ds).await;
        let (data, _) = nfs.read(&handle(1, RW), 0, PIECE as u32).await.unwrap();
        assert_eq!(data, vec![7; PIECE]);
        w.sleep(Duration::from_secs(120)).await;
        gone();
        let nfs = w.client(&ds).await;
        let args = READ3args { file: nfs_fh3 { data: handle(1, RW) }, offset: 0, count: PIECE as u32 };
        let again = nfs.connection.call(NFS3_PROGRAM, NFS_V3, NFSPROC3_READ, &none, frame(&args), LONG).await;
        assert!(again.is_err(), "it is tried in place again: {again:?}");
        ds.shutdown(LONG).await;
    });
}
