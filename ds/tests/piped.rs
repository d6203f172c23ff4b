//! Large UNSTABLE WRITEs over a real socket to a real file: most of their data goes another way than all others', and is
//! the same.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use common::*;
use sluice_ds::DataServer;
use sluice_env::Env;
use sluice_rpc::{Client, Tcp};
use sluice_store::Options;
use sluice_xdr::capability::Rights;
use sluice_xdr::nfs3::*;

const MIB: usize = 1 << 20;

fn content(length: usize, seed: usize) -> Bytes {
    (0..length).map(|i| (i * 7 + (i >> 8) + seed) as u8).collect::<Vec<_>>().into()
}

async fn served(dir: &Path, checksums: bool) -> (DataServer, Nfs) {
    let env = Env::system();
    let options = Options { create: true, reserve: 0, checksums: Some(checksums), ..Options::default() };
    let ds = on_directory(&env, dir, options).await;
    let tcp = Arc::new(Tcp);
    let connection = Client::connect(env, tcp, ds.local_addr(), Vec::new()).await.unwrap();
    (ds, Nfs { connection })
}

async fn piped(ds: &DataServer) -> u64 {
    ds.metrics().await.piped_bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_writes_are_what_was_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (ds, nfs) = served(dir.path(), false).await;
    let nfs = Arc::new(nfs);
    let mut expected = vec![0; 4 * MIB];
    let lengths = [4096, 65_536, 65_540, 100_000, 300_001, MIB];
    let offsets = [0, 1, 4095, 4096, 131_072, 1_000_000, 3 * MIB - 7];
    for (seed, (offset, length)) in
        offsets.iter().flat_map(|offset| lengths.map(|length| (*offset, length))).enumerate()
    {
        let data = content(length, seed);
        // Small calls between them.
        let (one, two) = (handle(1, RW), handle(2, RW));
        let (write, small) = tokio::join!(
            nfs.write(&one, offset as u64, &data, stable_how::UNSTABLE),
            nfs.write(&two, 0, &data[..4096], stable_how::UNSTABLE),
        );
        assert_eq!(write.unwrap(), small.unwrap());
        expected[offset..offset + length].copy_from_slice(&data);
        let from = offset.saturating_sub(5000) as u64;
        let (read, _) = nfs.read(&handle(1, RW), from, MIB as u32).await.unwrap();
        assert!(read == expected[from as usize..][..read.len()], "{length} at {offset}");
    }
    nfs.commit(&handle(1, RW)).await.unwrap();
    let length = 4 * MIB - 7;
    let mut at = 0;
    while at < length {
        let (read, _) = nfs.read(&handle(1, RW), at as u64, MIB as u32).await.unwrap();
        assert!(read == expected[at..at + read.len()], "at {at}");
        at += read.len();
    }
    // Odd lengths have padding, which is no data: they come whole.
    assert!(piped(&ds).await > 6 * MIB as u64);
    let before = piped(&ds).await;
    for stable in [stable_how::DATA_SYNC, stable_how::FILE_SYNC] {
        nfs.write(&handle(1, RW), 0, &content(MIB, 1), stable).await.unwrap();
    }
    nfs.write(&handle(1, RW), 0, &content(MIB - 1, 2), stable_how::UNSTABLE).await.unwrap();
    assert_eq!(piped(&ds).await, before, "what goes past the page cache, and what has padding");
    ds.shutdown(LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_write_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (ds, nfs) = served(dir.path(), false).await;
    let (old, new) = (content(MIB, 1), content(MIB, 2));
    nfs.write(&handle(1, RW), 0, &old, stable_how::UNSTABLE).await.unwrap();
    let before = piped(&ds).await;
    let write = |handle: Bytes, offset| {
        let (nfs, new) = (&nfs, &new);
        async move { nfs.write(&handle, offset, new, stable_how::UNSTABLE).await.unwrap_err() }
    };
    assert_eq!(write(handle(1, Rights::READ), 0).await, nfsstat3::NFS3ERR_ACCES);
    let mut forged = handle(1, RW).to_vec();
    forged[31] ^= 1;
    assert_eq!(write(forged.into(), 0).await, nfsstat3::NFS3ERR_BADHANDLE);
    assert_eq!(write(handle(1, RW), u64::MAX - 4096).await, nfsstat3::NFS3ERR_FBIG);
    assert_eq!(write(handle(1, RW), 1 << 63).await, nfsstat3::NFS3ERR_FBIG);
    assert_eq!(piped(&ds).await, before);
    assert_eq!(nfs.read(&handle(1, RW), 0, MIB as u32).await.unwrap().0, old);
    // The connection goes on.
    nfs.write(&handle(1, RW), 0, &new, stable_how::UNSTABLE).await.unwrap();
    assert_eq!(nfs.read(&handle(1, RW), 0, MIB as u32).await.unwrap().0, new);
    assert_eq!(ds.status().counters.bytes_written, 2 * MIB as u64);
    ds.shutdown(LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_checksums_all_of_a_write_is_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (ds, nfs) = served(dir.path(), true).await;
    let data = content(MIB, 1);
    nfs.write(&handle(1, RW), 0, &data, stable_how::UNSTABLE).await.unwrap();
    assert_eq!(nfs.read(&handle(1, RW), 0, MIB as u32).await.unwrap().0, data);
    assert_eq!(piped(&ds).await, 0);
    ds.shutdown(LONG).await;
}
