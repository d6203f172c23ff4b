//! Small files as a stock kernel writes them (`tar`, `cp -p`) and reads them, and what one costs: durable
//! transactions, flushes, calls between servers, CPU of all servers. At data servers and in the metadata, in turns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use sluice_xdr::nfs3::stable_how;
use sluice_xdr::nfs4::{
    Attributes, OPEN4_SHARE_ACCESS_READ, layoutiomode4, nfs_fh4, nfstime4, settime4, stateid4,
};

use super::Target;
use super::host::{Installation, Work};
use super::load::{self, AsyncOperation, Run, Until};
use super::table::{Row, Table};
use crate::client::{Client, How};

/// Clients, bytes of a file, and whether times are set on it before it is closed.
const GROUPS: [(usize, u32, bool); 7] = [
    (1, 4096, true),
    (8, 4096, true),
    (64, 4096, true),
    (1, 4096, false),
    (64, 4096, false),
    (64, 16_384, false),
    (64, 32_768, false),
];
/// Data servers tell their counters with their heartbeats.
const SETTLED: Duration = Duration::from_secs(3);
const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
const READ: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_READ;

/// A client at work.
#[derive(Clone, Debug)]
struct Worker {
    client: Client,
    directory: nfs_fh4,
    /// Files written and not yet read, and where.
    written: Vec<(nfs_fh4, u64)>,
}

type Steps = Arc<Mutex<BTreeMap<&'static str, Vec<Duration>>>>;

/// Notes how long the COMPOUND before `began` was moved on took.
fn note(steps: &Steps, step: &'static str, began: &mut Instant) {
    let now = Instant::now();
    steps.lock().unwrap_or_else(PoisonError::into_inner).entry(step).or_default().push(now - *began);
    *began = now;
}

fn name(number: u64) -> String {
    format!("file{number:08}")
}

/// One file, from open to close.
struct Write {
    payload: Bytes,
    /// Times are set on it before it is closed.
    times: bool,
    steps: Steps,
}

impl AsyncOperation<Worker> for Write {
    async fn once(&self, worker: &mut Worker, number: u64) -> Result<bool> {
        let client = &worker.client;
        let size = u64::try_from(self.payload.len())?;
        let mut at = Instant::now();
        let how = How::new_file(0o644);
        let (open, segment) =
            client.open_asking(&worker.directory, name(number).as_bytes(), &how, RW).await?;
        note(&self.steps, "1 OPEN(create) GETATTR LAYOUTGET", &mut at);
        let mut seen = match &segment {
            Some(segment) => {
                client.write(segment, 0, self.payload.clone(), stable_how::FILE_SYNC).await?;
                note(&self.steps, "2 WRITE FILE_SYNC at the data server", &mut at);
                None
            }
            None => {
                let seen = client.write_through(&open, 0, self.payload.clone()).await?;
                note(&self.steps, "2 WRITE GETATTR at the metadata server", &mut at);
                Some(seen)
            }
        };
        if self.times {
            let then = settime4::SET_TO_CLIENT_TIME4(nfstime4 { seconds: 1_000_000_000, nseconds: 7 });
            let values = Attributes {
                time_access_set: Some(then),
                time_modify_set: Some(then),
                ..Attributes::default()
            };
            let now = client.setattr(&open.handle, stateid4::default(), &values).await?;
            seen = seen.map(|_| now);
            note(&self.steps, "3 SETATTR(times) GETATTR", &mut at);
        }
        if let Some(segment) = &segment {
            seen = Some(client.layoutcommit_and_look(segment, Some(size - 1)).await?);
            note(&self.steps, "4 LAYOUTCOMMIT GETATTR", &mut at);
        }
        let seen = seen.unwrap_or_default();
        ensure!(
            !self.times || seen.time_modify.is_some_and(|time| time.seconds == 1_000_000_000),
            "times set after the data have moved"
        );
        let shown = if segment.is_some() {
            let closed = client.return_and_close(&open).await?;
            note(&self.steps, "5 LAYOUTRETURN GETATTR CLOSE", &mut at);
            closed.size
        } else {
            client.look_and_close(&open).await?;
            note(&self.steps, "5 GETATTR CLOSE", &mut at);
            seen.size
        };
        ensure!(shown == Some(size), "{shown:?} bytes shown of {size} written");
        worker.written.push((worker.directory.clone(), number));
        Ok(true)
    }
}

/// One of the files that were written, from open to close.
struct Read {
    size: u32,
    steps: Steps,
}

impl AsyncOperation<Worker> for Read {
    async fn once(&self, worker: &mut Worker, _: u64) -> Result<bool> {
        let Some((directory, number)) = worker.written.pop() else { return Ok(false) };
        let client = &worker.client;
        let mut at = Instant::now();
        let how = How::existing(OPEN4_SHARE_ACCESS_READ);
        let (open, segment) = client.open_asking(&directory, name(number).as_bytes(), &how, READ).await?;
        note(&self.steps, "1 OPEN GETATTR LAYOUTGET", &mut at);
        let data = match &segment {
            Some(segment) => {
                let (data, _) = client.read(segment, 0, self.size).await?;
                note(&self.steps, "2 READ at the data server", &mut at);
                data
            }
            None => {
                let data = client.read_through(&open, 0, self.size).await?;
                note(&self.steps, "2 READ at the metadata server", &mut at);
                data
            }
        };
        ensure!(
            u32::try_from(data.len()) == Ok(self.size) && data.iter().all(|byte| *byte == 0x5a),
            "{} bytes read, or others",
            data.len()
        );
        client.return_and_close(&open).await?;
        note(&self.steps, "3 (LAYOUTRETURN GETATTR) CLOSE", &mut at);
        Ok(true)
    }
}

pub(super) async fn measure(target: &Target, installation: &Installation, table: &mut Table) -> Result<()> {
    let most = GROUPS.into_iter().map(|group| group.0).max().unwrap_or(1);
    let mut clients = Vec::with_capacity(most);
    for number in 0..most {
        clients.push(target.client(&format!("bench-small-{number}"), 2).await?);
    }
    for (number, (count, size, times)) in GROUPS.into_iter().enumerate() {
        for inline in [false, true] {
            installation.keep_inline(if inline { "32KiB" } else { "off" })?;
            let clients = clients.get(..count).unwrap_or_default();
            let group = Group { number, size, times, inline };
            group.measure(target, installation, clients, table).await?;
        }
    }
    installation.keep_inline("off")?;
    for client in clients {
        client.leave().await?;
    }
    Ok(())
}

struct Group {
    number: usize,
    /// Bytes of a file.
    size: u32,
    times: bool,
    inline: bool,
}

impl Group {
    async fn measure(
        &self,
        target: &Target,
        installation: &Installation,
        clients: &[Client],
        table: &mut Table,
    ) -> Result<()> {
        let place = if self.inline { "in the metadata" } else { "at data servers" };
        let how = match clients.len() {
            1 => format!("{place}, 1 client"),
            count => format!("{place}, {count} clients"),
        };
        let mut workers = Vec::with_capacity(clients.len());
        for (number, client) in clients.iter().enumerate() {
            let name = format!("small-{}-{}-{number}", self.number, self.inline);
            let directory = client.mkdir(client.root(), name.as_bytes(), 0o755).await?.handle;
            workers.push(Worker { client: client.clone(), directory, written: Vec::new() });
        }
        let operation = |steps: &Steps| Write {
            payload: Bytes::from(vec![0x5a; usize::try_from(self.size).unwrap_or_default()]),
            times: self.times,
            steps: Arc::clone(steps),
        };
        // Connections to data servers, devices and folders are there afterwards.
        let (_, mut workers) = load::run(workers, Until::Done(64), operation(&Arc::default())).await?;
        target.env.clock.sleep(SETTLED).await;
        let (steps, before, mut runs) = (Arc::default(), Spent::now(installation)?, Vec::new());
        for _ in 0..target.scale.rounds {
            for worker in &mut workers {
                let name = format!("round{}", runs.len());
                let parent = nfs_fh4::clone(&worker.directory);
                worker.directory = worker.client.mkdir(&parent, name.as_bytes(), 0o755).await?.handle;
            }
            let (run, after) =
                load::run(workers, Until::Elapsed(target.scale.round), operation(&steps)).await?;
            runs.push(run);
            workers = after;
        }
        target.env.clock.sleep(SETTLED).await;
        let kib = self.size / 1024;
        let what = match self.times {
            true => format!("small file of {kib} KiB, times set (tar, cp -p)"),
            false => format!("small file of {kib} KiB (cp)"),
        };
        table_rows(&what, &how, &runs, &steps, &Spent::since(installation, &before)?, table)?;

        let (steps, before) = (Arc::default(), Spent::now(installation)?);
        let read = Read { size: self.size, steps: Arc::clone(&steps) };
        let (run, _) = load::run(workers, Until::Elapsed(target.scale.round * 2), read).await?;
        let what = format!("open, read and close a file of {kib} KiB");
        table_rows(&what, &how, &[run], &steps, &Spent::since(installation, &before)?, table)
    }
}

/// What the servers have done, and the CPU seconds that it took them.
struct Spent {
    work: Work,
    cpu: f64,
}

impl Spent {
    fn now(installation: &Installation) -> Result<Self> {
        Ok(Self { work: installation.work()?, cpu: installation.cpu()? })
    }

    fn since(installation: &Installation, before: &Self) -> Result<Self> {
        let now = Self::now(installation)?;
        Ok(Self { work: now.work.since(&before.work), cpu: now.cpu - before.cpu })
    }
}

fn table_rows(
    what: &str,
    how: &str,
    runs: &[Run],
    steps: &Steps,
    spent: &Spent,
    table: &mut Table,
) -> Result<()> {
    let files: usize = runs.iter().map(|run| run.operations.len()).sum();
    ensure!(files > 0, "not one file");
    let rates: Vec<f64> = runs.iter().map(Run::rate).collect();
    table.row(Row::median(what, how, &rates, "files/s").with_latency(load::latency(runs)));
    let rows = [
        ("durable transactions", spent.work.transactions),
        ("flushes of the metadata store", spent.work.groups),
        ("flushes of data servers' devices", spent.work.flushes),
        ("calls to data servers", spent.work.orders),
        ("reports of data servers", spent.work.reports),
    ];
    for (name, count) in rows {
        table.row(Row::new(what, &format!("{how}: {name}"), count as f64 / files as f64, "per file"));
    }
    let cpu = spent.cpu * 1e6 / files as f64;
    table.row(Row::new(what, &format!("{how}: CPU of all servers"), cpu, "us per file"));
    let steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
    for (step, took) in steps.iter() {
        let mean = took.iter().sum::<Duration>().as_secs_f64() * 1e6 / took.len().max(1) as f64;
        table.row(Row::new(what, &format!("{how}: {step}"), mean, "us, mean"));
    }
    Ok(())
}
