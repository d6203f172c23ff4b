//! What an operation costs when there are few files, and when there are many: one directory grows by tenths, and all
//! along each tenth some of what is there by then is looked up, and removed and made again.

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
/// Operations of other kinds in each tenth, at most.
const SAMPLE: u64 = 100_000;
/// Pieces of a tenth at most, operations of other kinds after each. The store merges what was written whenever it has gathered,
/// for seconds: a sample in one piece has all of such a merge, or none.
const PIECES: u64 = 20;
/// Files of a piece, at least: CPU time is counted in hundredths of a second, which hundreds of look-ups take.
const LEAST: u64 = 5_000;
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

/// What operations took: seconds elapsed, and CPU seconds of the server.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    operations: f64,
    elapsed: f64,
    cpu: f64,
}

impl Cost {
    fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.elapsed += other.elapsed;
        self.cpu += other.cpu;
    }

    /// Microseconds of CPU for one.
    fn micros(&self) -> f64 {
        self.cpu / self.operations * 1e6
    }

    fn rate(&self) -> f64 {
        self.operations / self.elapsed
    }
}

/// Of a tenth.
#[derive(Clone, Copy, Debug, Default)]
struct Tenth {
    creates: Cost,
    look_ups: Cost,
    removes: Cost,
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
        let cpu = peer.cpu_seconds()? - before;
        let operations = run.operations.len() as f64;
        anyhow::Ok(Cost { operations, elapsed: run.elapsed.as_secs_f64(), cpu })
    };
    run(Kind::Create, 0, 0, FIRST).await?;
    let size = (files.saturating_sub(FIRST) / 10).max(1);
    let pieces = (size / LEAST).clamp(1, PIECES);
    let piece = (size / pieces).max(1);
    let sample = (SAMPLE / pieces).min(piece);
    let mut tenths = Vec::new();
    let mut all = FIRST;
    for _ in 0..10 {
        let mut tenth = Tenth::default();
        for _ in 0..pieces {
            tenth.creates.add(run(Kind::Create, all, all, piece).await?);
            all += piece;
            tenth.look_ups.add(run(Kind::LookUp, 0, all, sample).await?);
            tenth.removes.add(run(Kind::Remove, all - sample, all, sample).await?);
            run(Kind::Create, all - sample, all, sample).await?;
        }
        let Tenth { creates, look_ups, removes } = tenth;
        eprintln!(
            "{all} files: create {:.1} us of CPU, {:.0}/s; look-up {:.1} us, {:.0}/s; remove {:.1} us, {:.0}/s",
            creates.micros(),
            creates.rate(),
            look_ups.micros(),
            look_ups.rate(),
            removes.micros(),
            removes.rate(),
        );
        tenths.push(tenth);
    }
    let (first, last) = (tenths.first().context("no tenth")?, tenths.last().context("no tenth")?);
    let kinds = [
        ("creates", first.creates, last.creates),
        ("look-ups", first.look_ups, last.look_ups),
        ("removes", first.removes, last.removes),
    ];
    let mut figures = Vec::new();
    for (what, first, last) in kinds {
        let title = |of: &str| format!("{what}, {FIRST} to {files} files: {of}, last tenth to first");
        figures.push(figure(title("server CPU"), last.micros() / first.micros()));
        figures.push(figure(title("time"), first.rate() / last.rate()));
    }
    Ok(figures)
}

fn figure(title: String, value: f64) -> Figure {
    Figure { title, value, unit: "", bound: Some((LIMIT, false)) }
}
