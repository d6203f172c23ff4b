//! Loopback rates of one data server with our own client: `cargo test --release -p sluice-ds --test bench
//! -- --ignored --nocapture`. `SLUICE_BENCH_DIR` chooses the file system, `SLUICE_BENCH_SECONDS` the time
//! per row. Client and server share the machine and the runtime, so the figures are lower bounds.
#![allow(clippy::unwrap_used, reason = "a test may fail")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark measures real time and prints"
)]

#[path = "common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{LONG, Nfs, RW, handle, on_directory};
use sluice_ds::DataServer;
use sluice_env::Env;
use sluice_rpc::{Client, Tcp, Transport};
use sluice_store::Options;
use sluice_xdr::nfs3::*;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 256 * MIB;

async fn start(env: &Env, dir: &std::path::Path) -> DataServer {
    let number = |name, default| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default);
    let defaults = Options::default();
    let options = Options {
        create: true,
        read_threads: number("SLUICE_BENCH_READERS", defaults.read_threads),
        write_threads: number("SLUICE_BENCH_WRITERS", defaults.write_threads),
        inline_read: number("SLUICE_BENCH_INLINE", defaults.inline_read),
        ..defaults
    };
    on_directory(env, dir, options).await
}

/// Seconds of CPU this process has used, client and server together.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
}

async fn row(
    name: &str,
    env: &Env,
    ds: &DataServer,
    connections: usize,
    depth: usize,
    kind: Kind,
    size: u32,
) {
    let seconds: u64 = std::env::var("SLUICE_BENCH_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    let until = Instant::now() + Duration::from_secs(seconds);
    let (done, seed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
    let payload = Bytes::from(vec![0xa5; size as usize]);
    let (begun, cpu_before) = (Instant::now(), cpu());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let tcp: Arc<dyn Transport> = Arc::new(Tcp);
        let connection = Client::connect(env.clone(), tcp, ds.local_addr(), Vec::new()).await.unwrap();
        let nfs = Arc::new(Nfs { connection });
        for _ in 0..depth {
            let (nfs, done, seed, payload) =
                (Arc::clone(&nfs), Arc::clone(&done), Arc::clone(&seed), payload.clone());
            tasks.spawn(async move {
                let fh = handle(1, RW);
                while Instant::now() < until {
                    let random =
                        seed.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
                    let offset = random % (SIZE / u64::from(size)) * u64::from(size);
                    match kind {
                        Kind::Read => {
                            let file = nfs_fh3 { data: fh.clone() };
                            let args = READ3args { file, offset, count: size };
                            let READ3res::NFS3_OK(ok) = nfs.call(NFSPROC3_READ, &args).await else {
                                panic!()
                            };
                            assert_eq!(ok.count, size);
                        }
                        Kind::Write => {
                            let file = nfs_fh3 { data: fh.clone() };
                            let (stable, data) = (stable_how::UNSTABLE, payload.clone());
                            let args = WRITE3args { file, offset, count: size, stable, data };
                            let WRITE3res::NFS3_OK(_) = nfs.call(NFSPROC3_WRITE, &args).await else {
                                panic!()
                            };
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let (time, cpu) = (begun.elapsed().as_secs_f64(), cpu() - cpu_before);
    let operations = done.load(Ordering::Relaxed) as f64;
    let bytes = operations * f64::from(size);
    println!(
        "{name:<38} {:>8.0} MB/s {:>9.1} kIOPS {:>7.2} CPU s/GiB (both ends)",
        bytes / time / 1e6,
        operations / time / 1e3,
        cpu / (bytes / (1 << 30) as f64),
    );
}

#[test]
#[ignore = "a benchmark"]
fn rates() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let env = Env::system();
        let dir = match std::env::var_os("SLUICE_BENCH_DIR") {
            Some(dir) => tempfile::tempdir_in(dir).unwrap(),
            None => tempfile::tempdir().unwrap(),
        };
        let ds = start(&env, dir.path()).await;
        let tcp: Arc<dyn Transport> = Arc::new(Tcp);
        let connection = Client::connect(env.clone(), tcp, ds.local_addr(), Vec::new()).await.unwrap();
        let nfs = Nfs { connection };
        for offset in (0..SIZE).step_by(MIB as usize) {
            nfs.write(&handle(1, RW), offset, &[1; MIB as usize], stable_how::UNSTABLE).await.unwrap();
        }
        nfs.commit(&handle(1, RW)).await.unwrap();
        for round in 1..=2 {
            println!("round {round}");
            row("READ 1 MiB, 1 connection, depth 8", &env, &ds, 1, 8, Kind::Read, 1 << 20).await;
            row("READ 1 MiB, 4 connections, depth 4", &env, &ds, 4, 4, Kind::Read, 1 << 20).await;
            row("WRITE 1 MiB UNSTABLE, 1 conn, depth 8", &env, &ds, 1, 8, Kind::Write, 1 << 20).await;
            row("WRITE 1 MiB UNSTABLE, 4 conn, depth 4", &env, &ds, 4, 4, Kind::Write, 1 << 20).await;
            row("READ 4 KiB random, depth 32", &env, &ds, 1, 32, Kind::Read, 4096).await;
            row("WRITE 4 KiB random UNSTABLE, depth 32", &env, &ds, 1, 32, Kind::Write, 4096).await;
        }
        ds.shutdown(LONG).await;
    });
}
