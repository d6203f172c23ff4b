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

struct Create;
struct Remove;

fn name(number: u64) -> Vec<u8> {
    format!("file{number:08}").into_bytes()
}

impl AsyncOperation<Worker> for Create {
    async fn once(&self, worker: &mut Worker, number: u64) -> Result<bool> {
        let open = worker.client.open(&worker.directory, &name(number), &How::new_file(0o644)).await?;
        worker.client.close(&open).await?;
        Ok(true)
    }
}

impl AsyncOperation<Worker> for Remove {
    async fn once(&self, worker: &mut Worker, number: u64) -> Result<bool> {
        worker.client.remove(&worker.directory, &name(number)).await?;
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
    load::run(workers(&clients, &warm), Until::Done(WARM_UP), Create).await?;

    let before = installation.mds_cpu()?;
    let (created, _) = load::run(workers(&clients, &directory), Until::Done(files), Create).await?;
    let cpu = installation.mds_cpu()? - before;
    let what = format!("{files} files in one directory");
    tenths(table, &what, "create", "creates/s", &created);
    table.row(Row::new(&what, "create: CPU of the MDS", cpu * 1e6 / files as f64, "us/create"));

    list(target, first, &directory, files, &what, table).await?;

    let (removed, _) = load::run(workers(&clients, &directory), Until::Done(files), Remove).await?;
    tenths(table, &what, "remove", "removes/s", &removed);
    for client in clients {
        client.leave().await?;
    }
    Ok(())
}

fn workers(clients: &[Client], directory: &nfs_fh4) -> Vec<Worker> {
    let worker = |client: &Client| Worker { client: client.clone(), directory: directory.clone() };
    clients.iter().cycle().take(CLIENTS * SLOTS).map(worker).collect()
}

fn tenths(table: &mut Table, what: &str, operation: &str, unit: &'static str, run: &Run) {
    let (all, tenth) = (run.operations.len(), run.operations.len() / 10);
    let (first, last) =
        (load::window(run, 0, tenth).as_secs_f64(), load::window(run, all - tenth, all).as_secs_f64());
    let how = format!("{operation}: {CLIENTS} clients with {SLOTS} calls each");
    let latency = load::latency(std::slice::from_ref(run));
    table.row(Row::new(what, &how, run.rate(), unit).with_latency(latency));
    table.row(Row::new(what, &format!("{operation}: first tenth"), tenth as f64 / first, unit));
    table.row(Row::new(what, &format!("{operation}: last tenth"), tenth as f64 / last, unit));
    let ratio = Row::new(what, &format!("{operation}: cost of the last tenth to the first"), last / first, "x");
    table.row(ratio.at_most(LIMIT));
}

async fn list(
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
