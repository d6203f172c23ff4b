//! What an operation costs when there are few files, and when there are many: one directory grows by tenths, and after
//! each tenth some of what is there by then is looked up, and removed and made again.

use anyhow::{Context, Result};
use sluice_xdr::nfs4::nfs_fh4;

use super::peers::Peer;
use crate::bench::ds::report::Figure;
use crate::bench::load::{self, AsyncOperation, Run, Until};
use crate::client::{Client, How};

/// Files that are there before the first tenth.
const FIRST: u64 = 10_000;
/// Clients at work.
const CLIENTS: usize = 64;
/// Operations of other kinds after each tenth, at most.
const SAMPLE: u64 = 50_000;
/// What the last tenth may cost of what the first did.
const LIMIT: f64 = 1.3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Create,
    LookUp,
    Remove,
}

#[derive(Clone, Debug)]
struct Worker {
    client: Client,
    directory: nfs_fh4,
}

/// On files from this number on; of those that are looked up, all over the directory.
struct Step {
    kind: Kind,
    from: u64,
    all: u64,
}

/// What a tenth took, each operation: seconds elapsed, and CPU seconds of the server.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    elapsed: f64,
    cpu: f64,
}

fn name(number: u64) -> Vec<u8> {
    format!("file{number:08}").into_bytes()
}

impl AsyncOperation<Worker> for Step {
    async fn once(&self, worker: &mut Worker, number: u64) -> Result<bool> {
        let Worker { client, directory } = worker;
        match self.kind {
            Kind::Create => {
                let open = client.open(directory, &name(self.from + number), &How::new_file(0o644)).await?;
                client.close(&open).await?;
            }
            Kind::LookUp => {
                let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.all;
                client.lookup(directory, &name(scattered)).await?;
            }
            Kind::Remove => client.remove(directory, &name(self.from + number)).await?,
        }
        Ok(true)
    }
}

/// The figures for a directory that grows to so many files.
pub(super) async fn measure(peer: &Peer, files: u64) -> Result<Vec<Figure>> {
    let directory = peer.directory("many").await?;
    let run = async |kind, from, all, count| {
        let workers = peer.clients(CLIENTS).map(|client| Worker { client, directory: directory.clone() });
        let before = peer.cpu_seconds()?;
        let (run, _): (Run, _) =
            load::run(workers.collect(), Until::Done(count), Step { kind, from, all }).await?;
        let done = run.operations.len().max(1) as f64;
        let cpu = (peer.cpu_seconds()? - before) / done;
        anyhow::Ok(Cost { elapsed: run.elapsed.as_secs_f64() / done, cpu })
    };
    run(Kind::Create, 0, 0, FIRST).await?;
    let tenth = (files.saturating_sub(FIRST) / 10).max(1);
    let sample = SAMPLE.min(tenth);
    let mut tenths: Vec<[Cost; 3]> = Vec::new();
    for number in 0..10 {
        let (from, all) = (FIRST + number * tenth, FIRST + (number + 1) * tenth);
        let created = run(Kind::Create, from, all, tenth).await?;
        let found = run(Kind::LookUp, 0, all, sample).await?;
        let removed = run(Kind::Remove, all - sample, all, sample).await?;
        run(Kind::Create, all - sample, all, sample).await?;
        eprintln!(
            "{all} files: create {:.1} us of CPU, {:.0}/s; look-up {:.1} us; remove {:.1} us, {:.0}/s",
            created.cpu * 1e6,
            1.0 / created.elapsed,
            found.cpu * 1e6,
            removed.cpu * 1e6,
            1.0 / removed.elapsed,
        );
        tenths.push([created, found, removed]);
    }
    let (first, last) = (tenths.first().context("no tenth")?, tenths.last().context("no tenth")?);
    let mut figures = Vec::new();
    for ((what, first), last) in ["creates", "look-ups", "removes"].into_iter().zip(first).zip(last) {
        let title = |of: &str| format!("{what}, {FIRST} to {files} files: {of}, last tenth to first");
        figures.push(figure(title("server CPU"), last.cpu / first.cpu));
        figures.push(figure(title("time"), last.elapsed / first.elapsed));
    }
    Ok(figures)
}

fn figure(title: String, value: f64) -> Figure {
    Figure { title, value, unit: "", bound: Some((LIMIT, false)) }
}
