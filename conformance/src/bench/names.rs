//! Creates, stats and removes per second: 1, 8 and 64 clients, each with a session of its own and one
//! operation at a time, in one directory or a directory each.

use anyhow::Result;
use sluice_xdr::nfs4::nfs_fh4;

use super::Target;
use super::load::{self, AsyncOperation, Run, Until};
use super::table::{Row, Table};
use crate::client::{Client, How};

const CLIENTS: [usize; 3] = [1, 8, 64];

/// A client at work.
#[derive(Clone, Debug)]
struct Worker {
    client: Client,
    directory: nfs_fh4,
    number: usize,
    made: u64,
    /// Names visited since the phase began.
    visited: u64,
}

impl Worker {
    fn name(&self, index: u64) -> Vec<u8> {
        format!("client{:02}.file{index:08}", self.number).into_bytes()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Create,
    Stat,
    Remove,
}

struct Step(Phase);

impl AsyncOperation<Worker> for Step {
    async fn once(&self, worker: &mut Worker, _: u64) -> Result<bool> {
        match self.0 {
            Phase::Create => {
                let name = worker.name(worker.made);
                let how = How::new_file(0o644);
                let open = worker.client.open(&worker.directory, &name, &how).await?;
                worker.client.close(&open).await?;
                worker.made += 1;
            }
            Phase::Stat => {
                if worker.made == 0 {
                    return Ok(false);
                }
                let name = worker.name(worker.visited % worker.made);
                worker.client.lookup(&worker.directory, &name).await?;
            }
            Phase::Remove => {
                if worker.visited == worker.made {
                    return Ok(false);
                }
                let name = worker.name(worker.visited);
                worker.client.remove(&worker.directory, &name).await?;
            }
        }
        worker.visited += 1;
        Ok(true)
    }
}

pub(super) async fn measure(target: &Target, table: &mut Table) -> Result<()> {
    let most = CLIENTS.into_iter().max().unwrap_or(1);
    let mut clients = Vec::with_capacity(most);
    for number in 0..most {
        clients.push(target.client(&format!("bench-names-{number}"), 2).await?);
    }
    for shared in [true, false] {
        for count in CLIENTS {
            let clients = clients.get(..count).unwrap_or_default();
            group(target, clients, shared, table).await?;
        }
    }
    for client in clients {
        client.leave().await?;
    }
    Ok(())
}

/// All rounds of so many clients.
async fn group(target: &Target, clients: &[Client], shared: bool, table: &mut Table) -> Result<()> {
    let mut phases = [(Phase::Create, Vec::new()), (Phase::Stat, Vec::new()), (Phase::Remove, Vec::new())];
    for round in 0..target.scale.rounds {
        let mut workers = workers(clients, shared, round).await?;
        for (phase, runs) in &mut phases {
            runs.push(step(target, &mut workers, *phase).await?);
        }
    }
    let place = if shared { "one directory" } else { "a directory each" };
    for (phase, runs) in &phases {
        let how = match clients.len() {
            1 => format!("1 client, {place}"),
            count => format!("{count} clients, {place}"),
        };
        let rates: Vec<f64> = runs.iter().map(Run::rate).collect();
        let (what, unit) = match phase {
            Phase::Create => ("create (OPEN, CLOSE)", "creates/s"),
            Phase::Stat => ("stat (LOOKUP GETATTR)", "stats/s"),
            Phase::Remove => ("remove", "removes/s"),
        };
        table.row(Row::median(what, &how, &rates, unit).with_latency(load::latency(runs)));
    }
    Ok(())
}

/// One phase of a round, and the workers as it leaves them.
async fn step(target: &Target, workers: &mut Vec<Worker>, phase: Phase) -> Result<Run> {
    for worker in workers.iter_mut() {
        worker.visited = 0;
    }
    let until = match phase {
        // All that was made goes, however long it takes.
        Phase::Remove => Until::Done(u64::MAX),
        Phase::Create | Phase::Stat => Until::Elapsed(target.scale.round),
    };
    let (run, after) = load::run(std::mem::take(workers), until, Step(phase)).await?;
    *workers = after;
    Ok(run)
}

/// New directories for each round: what one round leaves behind is not the next one's burden.
async fn workers(clients: &[Client], shared: bool, round: u32) -> Result<Vec<Worker>> {
    let mut workers = Vec::with_capacity(clients.len());
    let mut common = None;
    for (number, client) in clients.iter().enumerate() {
        let directory = match &common {
            Some(directory) => nfs_fh4::clone(directory),
            None => {
                let name = format!("names-{}-{shared}-{round}-{number}", clients.len());
                client.mkdir(client.root(), name.as_bytes(), 0o755).await?.handle
            }
        };
        if shared {
            common = Some(directory.clone());
        }
        workers.push(Worker { client: client.clone(), directory, number, made: 0, visited: 0 });
    }
    Ok(workers)
}
