//! One directory of many files: what its last tenth costs against its first, and how it lists.

use std::time::Instant;

use anyhow::{Result, ensure};
use sluice_xdr::nfs4::{nfs_fh4, verifier4};

use super::Target;
use super::host::Installation;
use super::load::{self, AsyncOperation, Run, Until};
use super::table::{Row, Table};
use crate::client::{Client, How};

const CLIENTS: usize = 8;
const SLOTS: usize = 8;
/// The last tenth of the operations may cost so much more than the first.
const LIMIT: f64 = 1.2;
/// Creates in another directory first: connections, caches and threads are then as they stay.
const WARM_UP: u64 = 2_000;

#[derive(Clone, Debug)]
struct Worker {
    client: Client,
    directory: nfs_fh4,
}

/// Creates, and removes, the file with this number added.
struct Create(u64);
struct Remove(u64);

/// What a tenth of the operations took.
#[derive(Debug)]
struct Tenth {
    run: Run,
    /// CPU seconds of the metadata server.
    cpu: f64,
}

fn name(number: u64) -> Vec<u8> {
    format!("file{number:08}").into_bytes()
}

impl AsyncOperation<Worker> for Create {
    async fn once(&self, worker: &mut Worker, number: u64) -> Result<bool> {
        let name = name(self.0 + number);
        let open = worker.client.open(&worker.directory, &name, &How::new_file(0o644)).await?;
        worker.client.close(&open).await?;
        Ok(true)
    }
}

impl AsyncOperation<Worker> for Remove {
    async fn once(&self, worker: &mut Worker, number: u64) -> Result<bool> {
        worker.client.remove(&worker.directory, &name(self.0 + number)).await?;
        Ok(true)
    }
}

pub(super) async fn measure(target: &Target, installation: &Installation, table: &mut Table) -> Result<()> {
    let files = target.scale.directory;
    let mut clients = Vec::with_capacity(CLIENTS);
    for number in 0..CLIENTS {
        clients.push(target.client(&format!("bench-directory-{number}"), 16).await?);
    }
    let Some(first) = clients.first() else { return Ok(()) };
    let make = |name: &'static [u8]| first.mkdir(first.root(), name, 0o755);
    let (warm, directory) = (make(b"warm-up").await?.handle, make(b"many").await?.handle);
    load::run(workers(&clients, &warm), Until::Done(WARM_UP), Create(0)).await?;

    let what = format!("{files} files in one directory");
    let workers = || workers(&clients, &directory);
    let created = tenths(files, installation, workers, Create).await?;
    report(table, &what, "create", "creates/s", &created);
    list(target, first, &directory, files, &what, table).await?;
    let removed = tenths(files, installation, workers, Remove).await?;
    report(table, &what, "remove", "removes/s", &removed);
    for client in clients {
        client.leave().await?;
    }
    Ok(())
}

fn workers(clients: &[Client], directory: &nfs_fh4) -> Vec<Worker> {
    let worker = |client: &Client| Worker { client: client.clone(), directory: directory.clone() };
    clients.iter().cycle().take(CLIENTS * SLOTS).map(worker).collect()
}

async fn tenths<F: AsyncOperation<Worker>>(
    files: u64,
    installation: &Installation,
    workers: impl Fn() -> Vec<Worker>,
    operation: impl Fn(u64) -> F,
) -> Result<Vec<Tenth>> {
    let mut all = Vec::with_capacity(10);
    for number in 0..10 {
        let before = installation.mds_cpu()?;
        let step = operation(number * (files / 10));
        let (run, _) = load::run(workers(), Until::Done(files / 10), step).await?;
        all.push(Tenth { run, cpu: installation.mds_cpu()? - before });
    }
    Ok(all)
}

fn report(table: &mut Table, what: &str, operation: &str, unit: &'static str, tenths: &[Tenth]) {
    let ([first, .., last], operations) =
        (tenths, tenths.iter().map(|tenth| tenth.run.operations.len()).sum::<usize>())
    else {
        return;
    };
    let rates: Vec<f64> = tenths.iter().map(|tenth| tenth.run.rate()).collect();
    let how = format!("{operation}: tenths, {CLIENTS} clients x {SLOTS} calls");
    let latency = load::latency(tenths.iter().map(|tenth| &tenth.run));
    table.row(Row::median(what, &how, &rates, unit).with_latency(latency));
    table.row(Row::new(what, &format!("{operation}: first tenth"), first.run.rate(), unit));
    table.row(Row::new(what, &format!("{operation}: last tenth"), last.run.rate(), unit));
    let ratio = first.run.rate() / last.run.rate();
    let how = format!("{operation}: cost of the last tenth to the first");
    table.row(Row::new(what, &how, ratio, "x").at_most(LIMIT));
    let cpu: f64 = tenths.iter().map(|tenth| tenth.cpu).sum();
    let how = format!("{operation}: CPU of the MDS");
    table.row(Row::new(what, &how, cpu * 1e6 / operations as f64, "us per operation"));
    // Elapsed time also counts whatever else the machine does.
    let how = format!("{operation}: its CPU in the last tenth to the first");
    table.row(Row::new(what, &how, last.cpu / first.cpu, "x"));
}

/// Lists a directory of so many files, a few times.
pub(super) async fn list(
    target: &Target,
    client: &Client,
    directory: &nfs_fh4,
    files: u64,
    what: &str,
    table: &mut Table,
) -> Result<()> {
    let mut rates = Vec::new();
    for _ in 0..target.scale.rounds {
        let began = Instant::now();
        let (mut entries, mut cookie, mut verifier) = (0, 0, verifier4::default());
        loop {
            let page = client.readdir_page(directory, cookie, verifier).await?;
            entries += page.entries.len() as u64;
            ensure!(page.eof || !page.entries.is_empty(), "an empty page that is not the last");
            (cookie, verifier) = (page.entries.last().map_or(cookie, |entry| entry.cookie), page.verifier);
            if page.eof {
                break;
            }
        }
        ensure!(entries == files, "{entries} entries listed of {files}");
        rates.push(entries as f64 / began.elapsed().as_secs_f64());
    }
    table.row(Row::median(what, "READDIR with attributes, one client", &rates, "entries/s"));
    Ok(())
}
