//! What each operation costs the metadata store: transactions, versions to read at, reads and conflicts; and how many
//! there are in a second, by clients that share one directory.

use anyhow::{Context, Result};
use sluice_xdr::nfs4::{OPEN4_SHARE_ACCESS_BOTH, layoutiomode4, nfs_fh4};

use super::Target;
use super::host::{Installation, Work};
use super::load::{self, AsyncOperation, Run, Until};
use super::table::{Row, Table};
use crate::client::{Client, How, Open, Segment};

const CLIENTS: [usize; 4] = [1, 8, 64, 256];

/// In the order in which they leave behind what the next ones need.
const PHASES: [(Phase, &str); 8] = [
    (Phase::MakeDirectory, "CREATE"),
    (Phase::Create, "OPEN(create) CLOSE"),
    (Phase::LookUp, "LOOKUP GETATTR"),
    (Phase::GetAttributes, "GETATTR"),
    (Phase::Open, "OPEN CLOSE"),
    (Phase::Commit, "LAYOUTCOMMIT GETATTR"),
    (Phase::Rename, "RENAME"),
    (Phase::Remove, "REMOVE"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    MakeDirectory,
    Create,
    LookUp,
    GetAttributes,
    Open,
    Commit,
    Rename,
    Remove,
}

/// A client at work.
#[derive(Clone, Debug)]
struct Worker {
    client: Client,
    directory: nfs_fh4,
    number: usize,
    made: u64,
    renamed: u64,
    /// Since the phase began.
    done: u64,
    /// Open for writing all the time.
    file: Open,
    segment: Segment,
    written: u64,
}

impl Worker {
    fn name(&self, kind: &str, index: u64) -> Vec<u8> {
        format!("{kind}{:03}.{index:08}", self.number).into_bytes()
    }

    /// One operation; `false`: nothing is left to do.
    async fn step(&mut self, phase: Phase) -> Result<bool> {
        let (client, directory) = (&self.client, &self.directory);
        let known = self.name("file", self.done % self.made.max(1));
        match phase {
            Phase::MakeDirectory => {
                client.mkdir(directory, &self.name("folder", self.done), 0o755).await?;
            }
            Phase::Create => {
                let new = self.name("file", self.made);
                let open = client.open(directory, &new, &How::new_file(0o644)).await?;
                client.close(&open).await?;
                self.made += 1;
            }
            Phase::LookUp => {
                client.lookup(directory, &known).await?;
            }
            Phase::GetAttributes => {
                client.getattr(directory).await?;
            }
            Phase::Open => {
                let open = client.open(directory, &known, &How::existing(OPEN4_SHARE_ACCESS_BOTH)).await?;
                client.close(&open).await?;
            }
            Phase::Commit => {
                self.written += 4096;
                client.layoutcommit_and_look(&self.segment, Some(self.written - 1)).await?;
            }
            Phase::Rename if self.renamed < self.made => {
                client
                    .rename(directory, &self.name("file", self.renamed), &self.name("moved", self.renamed))
                    .await?;
                self.renamed += 1;
            }
            Phase::Remove if self.done < self.made => {
                let kind = if self.done < self.renamed { "moved" } else { "file" };
                client.remove(directory, &self.name(kind, self.done)).await?;
            }
            Phase::Rename | Phase::Remove => return Ok(false),
        }
        self.done += 1;
        Ok(true)
    }
}

struct Step(Phase);

impl AsyncOperation<Worker> for Step {
    async fn once(&self, worker: &mut Worker, _: u64) -> Result<bool> {
        worker.step(self.0).await
    }
}

pub(super) async fn measure(target: &Target, installation: &Installation, table: &mut Table) -> Result<()> {
    for count in CLIENTS {
        let mut clients = Vec::with_capacity(count);
        for number in 0..count {
            clients.push(target.client(&format!("bench-costs-{count}-{number}"), 2).await?);
        }
        let first = clients.first().context("no clients")?;
        let directory = first.mkdir(first.root(), format!("costs-{count}").as_bytes(), 0o755).await?.handle;
        let mut workers = Vec::with_capacity(count);
        for (number, client) in clients.iter().enumerate() {
            workers.push(worker(client, &directory, number).await?);
        }
        for (phase, what) in PHASES {
            for worker in &mut workers {
                worker.done = 0;
            }
            let before = installation.work()?;
            let until = Until::Elapsed(target.scale.round);
            let (run, after) = load::run(workers, until, Step(phase)).await?;
            workers = after;
            rows(what, count, &run, &installation.work()?.since(&before), table);
        }
        for worker in workers {
            worker.client.return_and_close(&worker.file).await?;
        }
        for client in clients {
            client.leave().await?;
        }
    }
    Ok(())
}

async fn worker(client: &Client, directory: &nfs_fh4, number: usize) -> Result<Worker> {
    let name = format!("written{number:03}");
    let iomode = layoutiomode4::LAYOUTIOMODE4_RW;
    let (file, segment) =
        client.open_with_layout(directory, name.as_bytes(), &How::new_file(0o644), iomode).await?;
    let (client, directory) = (client.clone(), directory.clone());
    Ok(Worker { client, directory, number, made: 0, renamed: 0, done: 0, file, segment, written: 0 })
}

fn rows(what: &str, clients: usize, run: &Run, spent: &Work, table: &mut Table) {
    let how = if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients, one directory") };
    let done = run.operations.len().max(1) as f64;
    table.row(Row::new(what, &how, run.rate(), "/s").with_latency(load::latency([run])));
    let counts = [
        ("durable transactions", spent.transactions),
        ("versions to read at", spent.views),
        ("reads", spent.reads),
        ("conflicts", spent.conflicts),
    ];
    for (name, count) in counts {
        table.row(Row::new(what, &format!("{how}: {name}"), count as f64 / done, "each"));
    }
}
