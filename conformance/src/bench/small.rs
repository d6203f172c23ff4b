//! Small files as a stock kernel writes them (`tar`, `cp -p`), and what one costs: durable transactions, flushes
//! and calls between servers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use sluice_xdr::nfs3::stable_how;
use sluice_xdr::nfs4::{Attributes, layoutiomode4, nfs_fh4, nfstime4, settime4, stateid4};

use super::Target;
use super::host::{Installation, Work};
use super::load::{self, AsyncOperation, Run, Until};
use super::table::{Row, Table};
use crate::client::{Client, How};

const CLIENTS: [usize; 3] = [1, 8, 64];
const SIZE: u64 = 4096;
/// Data servers tell their counters with their heartbeats.
const SETTLED: Duration = Duration::from_secs(3);
const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;

/// A client at work.
#[derive(Clone, Debug)]
struct Worker {
    client: Client,
    directory: nfs_fh4,
}

/// One file, from open to close.
struct Write {
    payload: Bytes,
    /// Times are set on it before it is closed.
    times: bool,
    /// How long each COMPOUND took.
    steps: Arc<Mutex<BTreeMap<&'static str, Vec<Duration>>>>,
}

impl Write {
    fn note(&self, step: &'static str, began: &mut Instant) {
        let now = Instant::now();
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).entry(step).or_default().push(now - *began);
        *began = now;
    }
}

impl AsyncOperation<Worker> for Write {
    async fn once(&self, worker: &mut Worker, number: u64) -> Result<bool> {
        let client = &worker.client;
        let mut at = Instant::now();
        let name = format!("file{number:08}");
        let how = How::new_file(0o644);
        let (open, segment) = client.open_with_layout(&worker.directory, name.as_bytes(), &how, RW).await?;
        self.note("1 OPEN(create) LAYOUTGET", &mut at);
        client.write(&segment, 0, self.payload.clone(), stable_how::FILE_SYNC).await?;
        self.note("2 WRITE 4 KiB FILE_SYNC at the data server", &mut at);
        if self.times {
            let then = settime4::SET_TO_CLIENT_TIME4(nfstime4 { seconds: 1_000_000_000, nseconds: 7 });
            let values = Attributes {
                time_access_set: Some(then),
                time_modify_set: Some(then),
                ..Attributes::default()
            };
            client.setattr(&open.handle, stateid4::default(), &values).await?;
            self.note("3 SETATTR(times) GETATTR", &mut at);
        }
        let seen = client.layoutcommit_and_look(&segment, Some(SIZE - 1)).await?;
        self.note("4 LAYOUTCOMMIT GETATTR", &mut at);
        ensure!(seen.size == Some(SIZE), "{:?} bytes shown of {SIZE} written", seen.size);
        ensure!(
            !self.times || seen.time_modify.is_some_and(|time| time.seconds == 1_000_000_000),
            "the LAYOUTCOMMIT moved times set after the data"
        );
        client.return_and_close(&open).await?;
        self.note("5 LAYOUTRETURN GETATTR CLOSE", &mut at);
        Ok(true)
    }
}

pub(super) async fn measure(target: &Target, installation: &Installation, table: &mut Table) -> Result<()> {
    let most = CLIENTS.into_iter().max().unwrap_or(1);
    let mut clients = Vec::with_capacity(most);
    for number in 0..most {
        clients.push(target.client(&format!("bench-small-{number}"), 2).await?);
    }
    for times in [true, false] {
        for count in CLIENTS {
            let clients = clients.get(..count).unwrap_or_default();
            group(target, installation, clients, times, table).await?;
        }
    }
    for client in clients {
        client.leave().await?;
    }
    Ok(())
}

async fn group(
    target: &Target,
    installation: &Installation,
    clients: &[Client],
    times: bool,
    table: &mut Table,
) -> Result<()> {
    let what = if times { "small file, times set (tar, cp -p)" } else { "small file (cp)" };
    let how = match clients.len() {
        1 => "1 client".to_owned(),
        count => format!("{count} clients"),
    };
    let mut workers = Vec::with_capacity(clients.len());
    for (number, client) in clients.iter().enumerate() {
        let name = format!("small-{}-{times}-{number}", clients.len());
        let directory = client.mkdir(client.root(), name.as_bytes(), 0o755).await?.handle;
        workers.push(Worker { client: client.clone(), directory });
    }
    let steps = Arc::default();
    let operation = |steps: &Arc<_>| Write {
        payload: Bytes::from(vec![0x5a; usize::try_from(SIZE).unwrap_or_default()]),
        times,
        steps: Arc::clone(steps),
    };
    // Connections to data servers, devices and folders are there afterwards.
    let (_, warm) = load::run(workers, Until::Done(64), operation(&Arc::default())).await?;
    target.env.clock.sleep(SETTLED).await;
    let before = installation.work()?;
    let mut runs: Vec<Run> = Vec::new();
    let mut workers = warm;
    for _ in 0..target.scale.rounds {
        for worker in &mut workers {
            let name = format!("round{}", runs.len());
            let parent = nfs_fh4::clone(&worker.directory);
            worker.directory = worker.client.mkdir(&parent, name.as_bytes(), 0o755).await?.handle;
        }
        let (run, after) = load::run(workers, Until::Elapsed(target.scale.round), operation(&steps)).await?;
        runs.push(run);
        workers = after;
    }
    target.env.clock.sleep(SETTLED).await;
    let files: usize = runs.iter().map(|run| run.operations.len()).sum();
    ensure!(files > 0, "not one file was written");
    let spent = installation.work()?.since(&before);
    let rates: Vec<f64> = runs.iter().map(Run::rate).collect();
    table.row(Row::median(what, &how, &rates, "files/s").with_latency(load::latency(&runs)));
    costs(what, &how, &spent, files as f64, table);
    let steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
    for (step, took) in steps.iter() {
        let mean = took.iter().sum::<Duration>().as_secs_f64() * 1e6 / took.len().max(1) as f64;
        table.row(Row::new(what, &format!("{how}: {step}"), mean, "us, mean"));
    }
    Ok(())
}

fn costs(what: &str, how: &str, spent: &Work, files: f64, table: &mut Table) {
    let rows = [
        ("durable transactions", spent.transactions),
        ("flushes of the metadata store", spent.groups),
        ("flushes of data servers' devices", spent.flushes),
        ("calls to data servers", spent.orders),
        ("reports of data servers", spent.reports),
    ];
    for (name, count) in rows {
        table.row(Row::new(what, &format!("{how}: {name}"), count as f64 / files, "per file"));
    }
}
