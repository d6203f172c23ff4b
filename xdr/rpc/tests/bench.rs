//! Numbers, not judgements: `cargo test --release -p sluice-rpc --test bench -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use sluice_rpc::{Connection, Credential, Limits};

#[test]
#[ignore = "a benchmark"]
fn loopback() {
    on_tcp("127.0.0.1:0", |w| async move {
        let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
        let c = w.client().dial(addr).await.unwrap();
        rate(&w, "NULL, 1 at a time", &c, 1, procedure::NULL, 0, 0).await;
        rate(&w, "NULL, 64 at a time", &c, 64, procedure::NULL, 0, 0).await;
        rate(&w, "4 KiB read, 64 at a time", &c, 64, procedure::READ, 4096, 0).await;
        rate(&w, "1 MiB read, 8 at a time", &c, 8, procedure::READ, 1 << 20, 0).await;
        rate(&w, "1 MiB write, 8 at a time", &c, 8, procedure::WRITE, 0, 1 << 20).await;
        rate(&w, "1 MiB echo, 8 at a time", &c, 8, procedure::ECHO, 0, 1 << 20).await;
    });
}

async fn rate(
    w: &World,
    what: &str,
    c: &Arc<Connection>,
    depth: usize,
    procedure: u32,
    read: u32,
    write: usize,
) {
    const SPAN: Duration = Duration::from_secs(2);
    let done = Arc::new(AtomicUsize::new(0));
    let args = if read > 0 { words(&[read]) } else { vec![3; write].into() };
    let until = w.env.clock.now() + SPAN;
    let cpu = cpu_time();
    let tasks = (0..depth).map(|_| {
        let (env, c, done, args) = (w.env.clone(), c.clone(), done.clone(), args.clone());
        let (end, ended) = tokio::sync::oneshot::channel();
        w.env.spawn.spawn(Box::pin(async move {
            while env.clock.now() < until {
                c.call(ECHO, 3, procedure, &Credential::None, args.clone().into(), LONG).await.unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
            let _ = end.send(());
        }));
        ended
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let calls = done.load(Ordering::Relaxed) as f64 / SPAN.as_secs_f64();
    let bytes = (read as usize).max(write) as f64;
    let cpu = (cpu_time() - cpu) / (calls * SPAN.as_secs_f64());
    println!("{what:26} {calls:10.0} calls/s {:8.0} MB/s {:8.1} us CPU/call", calls * bytes / 1e6, cpu * 1e6);
}

/// User and system time of this process, in seconds, client included.
fn cpu_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
