//! Data servers die under writes of all three kinds. Each worker has a file of its own and knows the version of every
//! block that was acknowledged as stable, by a WRITE or by a COMMIT under the same verifier; what was lost with a
//! verifier is written again, as every client does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use sluice_env::Env;
use sluice_rpc::{CallError, Tcp};
use sluice_xdr::nfs3::{nfsstat3, stable_how};
use sluice_xdr::nfs4::layoutiomode4;

use super::dice::Dice;
use super::herd::{Herd, Worker};
use super::servers::{DATA_SERVERS, Servers};
use super::tree::Broken;
use crate::client::{Client, Error, How, Identity, Open, Segment};

const CLIENTS: u64 = 2;
const WORKERS: u64 = 4;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 128;
/// Blocks of a WRITE that goes past the page cache of a data server.
const MANY: u64 = 64;
/// WRITEs before a COMMIT, at most.
const UNSTABLE: u64 = 12;
const ALIVE: (u64, u64) = (20, 400);
const PATIENCE: Duration = Duration::from_secs(90);
const AGAIN: Duration = Duration::from_millis(20);

/// Which verifiers the data servers had, by how often each was killed before.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    kills: BTreeMap<SocketAddr, AtomicU64>,
    verifiers: Mutex<BTreeMap<(SocketAddr, [u8; 8]), u64>>,
    acknowledged: AtomicU64,
    rewritten: AtomicU64,
}

impl Lives {
    /// Blocks acknowledged as stable so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    fn of(&self, server: SocketAddr) -> u64 {
        self.kills.get(&server).map_or(0, |kills| kills.load(Ordering::SeqCst))
    }

    /// A verifier seen in an answer to a call that was sent in life `sent`.
    fn seen(&self, server: SocketAddr, sent: u64, verifier: [u8; 8]) -> Result<()> {
        if sent != self.of(server) {
            return Ok(());
        }
        let mut known = self.verifiers.lock().unwrap_or_else(PoisonError::into_inner);
        let life = *known.entry((server, verifier)).or_insert(sent);
        if life == sent {
            return Ok(());
        }
        Err(Broken(format!("{server} has the verifier of {life} kills after {sent}")).into())
    }
}

/// One worker: its file, and what was promised of it.
#[derive(Debug)]
struct Writer {
    client: Client,
    open: Open,
    layout: Option<Segment>,
    lives: Arc<Lives>,
    dice: Dice,
    mark: u64,
    acknowledged: Vec<u64>,
    attempted: Vec<u64>,
}

fn block(mark: u64, number: u64, version: u64) -> Bytes {
    let mut bytes = Vec::with_capacity(BLOCK);
    while bytes.len() < BLOCK {
        for word in [mark, number, version, mark ^ number.rotate_left(17) ^ version.rotate_left(34)] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes.into()
}

fn version(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?))
}

/// How much a WRITE promises.
fn rank(how: stable_how) -> u32 {
    match how {
        stable_how::FILE_SYNC => 2,
        stable_how::DATA_SYNC => 1,
        _ => 0,
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

impl Writer {
    /// The file's first segment, asked for as often as it is taken away.
    async fn segment(&mut self) -> Result<Segment> {
        loop {
            if let Some(segment) = &self.layout {
                return Ok(segment.clone());
            }
            match self.client.layoutget(&self.open, layoutiomode4::LAYOUTIOMODE4_RW, 0).await {
                Ok(segment) => self.layout = Some(segment),
                // Its data server is thought lost for a moment.
                Err(Error::Status { .. }) => tokio::time::sleep(AGAIN).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What a stock kernel does after this error: wait, or ask for another layout.
    async fn again(&mut self, error: Error) -> Result<()> {
        match error {
            Error::LayoutGone => self.layout = None,
            Error::DataServer { status: nfsstat3::NFS3ERR_JUKEBOX, .. }
            | Error::Call(CallError::Timeout(_) | CallError::Closed | CallError::NotConnected(_)) => {}
            Error::DataServer { status: nfsstat3::NFS3ERR_ACCES | nfsstat3::NFS3ERR_STALE, .. } => {
                self.layout = None;
                self.client.layoutreturn(&self.open.handle).await?;
            }
            other => return Err(other.into()),
        }
        tokio::time::sleep(AGAIN).await;
        Ok(())
    }

    /// One WRITE, until it is answered: the data server, its life, its verifier.
    async fn write(&mut self, numbers: Range<u64>, how: stable_how) -> Result<(SocketAddr, [u8; 8])> {
        let at = numbers.start * BLOCK as u64;
        let blocks = numbers.map(|number| block(self.mark, number, self.attempted[index(number)]));
        let data = Bytes::from(blocks.collect::<Vec<_>>().concat());
        loop {
            let segment = self.segment().await?;
            let server = segment.mirrors.first().and_then(|stripes| stripes.first());
            let server = server.context("a layout of nothing")?.address;
            let life = self.lives.of(server);
            match self.client.write(&segment, at, data.clone(), how).await {
                Ok(written) => {
                    let [written] = written[..] else { bail!("one copy is written") };
                    if written.count as usize != data.len() || rank(written.committed) < rank(how) {
                        return Err(Broken(format!("a WRITE was answered {written:?}")).into());
                    }
                    self.lives.seen(server, life, written.verifier)?;
                    return Ok((server, written.verifier));
                }
                Err(error) => self.again(error).await?,
            }
        }
    }

    async fn commit(&mut self) -> Result<(SocketAddr, [u8; 8])> {
        loop {
            let segment = self.segment().await?;
            let server = segment.mirrors.first().and_then(|stripes| stripes.first());
            let server = server.context("a layout of nothing")?.address;
            let life = self.lives.of(server);
            match self.client.commit(&segment).await {
                Ok(verifiers) => {
                    let verifier = *verifiers.first().and_then(|one| one.first()).context("no verifier")?;
                    self.lives.seen(server, life, verifier)?;
                    return Ok((server, verifier));
                }
                Err(error) => self.again(error).await?,
            }
        }
    }

    fn promised(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.acknowledged[index(number)] = self.attempted[index(number)];
            self.lives.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Worker for Writer {
    /// A stable WRITE, of one block or of many, or several that are not and their COMMIT.
    async fn step(&mut self) -> Result<()> {
        if self.dice.below(3) == 0 {
            let count = if self.dice.below(2) == 0 { 1 } else { MANY };
            let first = self.dice.below(BLOCKS - count + 1);
            let numbers = first..first + count;
            numbers.clone().for_each(|number| self.attempted[index(number)] += 1);
            let how = if self.dice.below(2) == 0 { stable_how::FILE_SYNC } else { stable_how::DATA_SYNC };
            self.write(numbers.clone(), how).await?;
            self.promised(numbers);
            return Ok(());
        }
        let first = self.dice.below(BLOCKS);
        let count = 1 + self.dice.below(UNSTABLE);
        let mut waiting: BTreeMap<u64, Option<(SocketAddr, [u8; 8])>> =
            (first..(first + count).min(BLOCKS)).map(|number| (number, None)).collect();
        waiting.keys().for_each(|number| self.attempted[index(*number)] += 1);
        while !waiting.is_empty() {
            let missing: Vec<u64> =
                waiting.iter().filter(|(_, under)| under.is_none()).map(|(number, _)| *number).collect();
            for number in missing {
                let under = self.write(number..number + 1, stable_how::UNSTABLE).await?;
                waiting.insert(number, Some(under));
            }
            let now = Some(self.commit().await?);
            let kept: Vec<u64> =
                waiting.iter().filter(|(_, under)| **under == now).map(|(number, _)| *number).collect();
            waiting.retain(|number, _| !kept.contains(number));
            self.promised(kept);
            // The data server was another one meanwhile (RFC 1813 §3.3.21).
            for under in waiting.values_mut() {
                self.lives.rewritten.fetch_add(1, Ordering::Relaxed);
                *under = None;
            }
        }
        Ok(())
    }

    async fn compare(&mut self) -> Result<()> {
        for number in 0..BLOCKS {
            let (least, most) = (self.acknowledged[index(number)], self.attempted[index(number)]);
            if least == 0 {
                continue;
            }
            let found = loop {
                let segment = self.segment().await?;
                match self.client.read(&segment, number * BLOCK as u64, BLOCK as u32).await {
                    Ok((data, _)) => break data,
                    Err(error) => self.again(error).await?,
                }
            };
            let there = version(&found).filter(|there| (least..=most).contains(there));
            if there.is_none_or(|there| found != block(self.mark, number, there)) {
                let (file, seen) = (self.mark, version(&found));
                return Err(Broken(format!(
                    "file {file} block {number}: version {seen:?} in {} bytes, acknowledged {least}, attempted {most}",
                    found.len()
                ))
                .into());
            }
        }
        Ok(())
    }
}

/// Clients and their workers, who begin at once.
pub(crate) async fn begin(servers: &Servers, herd: &mut Herd, dice: &mut Dice) -> Result<Arc<Lives>> {
    let kills = (0..DATA_SERVERS).map(|n| (servers.data_address(n), AtomicU64::new(0))).collect();
    let lives = Arc::new(Lives { kills, ..Lives::default() });
    for n in 0..CLIENTS {
        let mut identity = Identity::new(&format!("writer{n}"), "6.18.3");
        identity.timeout = Duration::from_secs(20);
        let client = Client::connect(Env::system(), Arc::new(Tcp), servers.mds_address(), identity).await?;
        for w in 0..WORKERS {
            let open = client.open(client.root(), format!("{n}-{w}").as_bytes(), &How::create(0o644)).await?;
            let none = vec![0; index(BLOCKS)];
            let writer = Writer {
                client: client.clone(),
                open,
                layout: None,
                lives: Arc::clone(&lives),
                dice: Dice::new(dice.next()),
                mark: 1 + n * WORKERS + w,
                acknowledged: none.clone(),
                attempted: none,
            };
            herd.add(writer);
        }
    }
    Ok(lives)
}

/// Kills data servers so many times; what was seen.
pub(crate) async fn run(servers: &mut Servers, rounds: u32, seed: u64) -> Result<String> {
    let mut dice = Dice::new(seed);
    let mut herd = Herd::new(PATIENCE);
    let lives = begin(servers, &mut herd, &mut dice).await?;
    for kill in 1..=rounds {
        tokio::time::sleep(Duration::from_millis(ALIVE.0 + dice.below(ALIVE.1 - ALIVE.0))).await;
        let victim = u16::try_from(dice.below(DATA_SERVERS.into()))?;
        servers.kill_data_server(victim)?;
        if let Some(kills) = lives.kills.get(&servers.data_address(victim)) {
            kills.fetch_add(1, Ordering::SeqCst);
        }
        servers.start_data_server(victim, false)?;
        herd.compare(kill).await?;
        if kill % 50 == 0 {
            eprintln!("{kill} kills");
        }
        herd.go_on();
    }
    herd.end().await?;
    servers.check().map_err(|error| Broken(format!("at the end: {error:#}")))?;
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    Ok(format!(
        "{rounds} kills of data servers: {} blocks acknowledged as stable, {} written again after a verifier changed; all are there",
        count(&lives.acknowledged),
        count(&lives.rewritten),
    ))
}
