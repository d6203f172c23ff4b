//! The metadata server dies under many changes of names. Clients go on with the sessions they have, send again what was
//! not answered, and hold a model of all that they were promised. Each worker has directories of its own, so that the
//! answer to every request is known before it comes: what is done twice, or not at all, is answered otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};
use sluice_env::{BoxFuture, Env};
use sluice_rpc::{Call, Frame, Program, Reply, Tcp};
use sluice_xdr::nfs4::*;

use super::Options;
use super::cluster::Blow;
use super::dice::Dice;
use super::herd::{Herd, Late, Worker};
use super::servers::Servers;
use super::tree::{Broken, Tree};
use crate::client::{Answer, Identity, Lost, Persistent, ops};

const CLIENTS: u64 = 4;
const WORKERS: u64 = 4;
/// Between the end of a comparison and the next kill, in milliseconds.
const ALIVE: (u64, u64) = (20, 400);
/// One kill in so many meets a server that has just been started, and may not serve yet.
const EARLY: u64 = 8;
const STARTING: u64 = 120;
/// On a cluster: of so many blows one meets the metadata server alone, one both, the others the cluster alone.
const BOTH_TOO: u64 = 4;
/// Everything that a round needs happens sooner.
const PATIENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(5);

/// No callback concerns who holds nothing.
#[derive(Debug)]
struct Silent;

impl Program for Silent {
    fn number(&self) -> u32 {
        0x4000_0000
    }

    fn versions(&self) -> std::ops::RangeInclusive<u32> {
        1..=1
    }

    fn call<'a>(&'a self, _: Call) -> BoxFuture<'a, Reply> {
        Box::pin(std::future::ready(Reply::Success(Frame::empty())))
    }
}

/// A client, and whether somebody is telling the server that it has reclaimed.
#[derive(Debug)]
pub(crate) struct Host {
    session: Persistent,
    recovering: AtomicBool,
    /// Requests answered, and those that had to be sent more than once.
    answered: AtomicU64,
    repeated: AtomicU64,
    /// When the last answer came, and what it was.
    last: Mutex<(Instant, nfsstat4, u32)>,
}

impl Host {
    async fn begin(servers: &Servers, n: u64, forgetful: bool) -> Result<Arc<Self>> {
        let identity = Identity::new(&format!("kills{n}"), "6.18.3");
        let (env, transport) = (Env::system(), Arc::new(Tcp));
        let mut session =
            Persistent::begin(env, transport, servers.mds_address(), identity, Arc::new(Silent)).await?;
        if forgetful {
            session = session.forgetful();
        }
        let (recovering, answered, repeated) = (AtomicBool::new(false), 0.into(), 0.into());
        let last = Mutex::new((Instant::now(), nfsstat4::NFS4_OK, 0));
        let host = Arc::new(Self { session, recovering, answered, repeated, last });
        host.reclaimed().await?;
        Ok(host)
    }

    /// Nothing is held, so there is nothing to reclaim: the server is told so.
    async fn reclaimed(&self) -> Result<()> {
        let complete = nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false });
        loop {
            let answer = self.session.request(vec![complete.clone()]).await.map_err(session)?;
            self.heard(&answer);
            match answer.status {
                nfsstat4::NFS4_OK | nfsstat4::NFS4ERR_COMPLETE_ALREADY => return Ok(()),
                nfsstat4::NFS4ERR_DELAY => tokio::time::sleep(AGAIN).await,
                other => bail!("RECLAIM_COMPLETE: {other}"),
            }
        }
    }

    fn heard(&self, answer: &Answer) {
        let now = (Instant::now(), answer.status, answer.flags);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// How it is with its server.
    fn state(&self) -> String {
        let (at, status, flags) = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let recovering = self.recovering.load(Ordering::Relaxed);
        let ago = at.elapsed().as_secs_f64();
        format!("last answered {ago:.1} s ago with {status}, flags {flags:#x}, reclaiming: {recovering}")
    }

    /// The answer to a COMPOUND, asked for again while the server says DELAY or GRACE: then it has done nothing.
    pub(crate) async fn ask(&self, ops: Vec<nfs_argop4>) -> Result<Answer> {
        loop {
            let answer = self.session.request(ops.clone()).await.map_err(session)?;
            self.heard(&answer);
            self.answered.fetch_add(1, Ordering::Relaxed);
            self.repeated.fetch_add(u64::from(answer.sent > 1), Ordering::Relaxed);
            if answer.flags & SEQ4_STATUS_RESTART_RECLAIM_NEEDED != 0
                && !self.recovering.swap(true, Ordering::Relaxed)
            {
                let done = self.reclaimed().await;
                self.recovering.store(false, Ordering::Relaxed);
                done?;
            }
            match answer.status {
                nfsstat4::NFS4ERR_DELAY | nfsstat4::NFS4ERR_GRACE => tokio::time::sleep(AGAIN).await,
                _ => return Ok(answer),
            }
        }
    }
}

/// A session outlives the server (ADR of persistent sessions): its loss is a broken promise.
fn session(lost: Lost) -> Error {
    match lost {
        Lost::Session | Lost::Sequence(_) => Broken(lost.to_string()).into(),
        Lost::Other(error) => error.into(),
    }
}

#[derive(Debug)]
struct Gardener {
    host: Arc<Host>,
    tree: Tree,
}

impl Worker for Gardener {
    async fn step(&mut self) -> Result<()> {
        self.tree.step(&self.host).await
    }

    async fn compare(&mut self) -> Result<()> {
        self.tree.compare(&self.host).await
    }
}

/// Clients and their workers, who begin at once.
pub(crate) async fn plant(
    servers: &Servers,
    herd: &mut Herd,
    dice: &mut Dice,
    forgetful: bool,
) -> Result<Vec<Arc<Host>>> {
    let mut hosts = Vec::new();
    for n in 0..CLIENTS {
        let host = Host::begin(servers, n, forgetful).await?;
        hosts.push(Arc::clone(&host));
        for w in 0..WORKERS {
            let tree = Tree::plant(&host, &format!("{n}-{w}"), Dice::new(dice.next())).await?;
            herd.add(Gardener { host: Arc::clone(&host), tree });
        }
    }
    Ok(hosts)
}

/// Requests answered, and those that had to be sent more than once.
pub(crate) fn told(hosts: &[Arc<Host>]) -> (u64, u64) {
    let count = |of: fn(&Host) -> &AtomicU64| -> u64 {
        hosts.iter().map(|host| of(host).load(Ordering::Relaxed)).sum()
    };
    (count(|host| &host.answered), count(|host| &host.repeated))
}

/// Who is late did not say what he waits for.
fn explained(error: Error, hosts: &[Arc<Host>]) -> Error {
    if !error.is::<Late>() {
        return error;
    }
    let states = hosts.iter().enumerate().map(|(n, host)| format!("client {n}: {}", host.state()));
    error.context(states.collect::<Vec<_>>().join("; "))
}

/// What has been done to the servers.
#[derive(Debug, Default)]
struct Blows {
    metadata: u32,
    killed: u32,
    stopped: u32,
}

impl Blows {
    /// The next one: the metadata server is killed; on a cluster as often one of its processes, or both.
    async fn next(&mut self, servers: &mut Servers, dice: &mut Dice) -> Result<()> {
        if servers.cluster.is_none() {
            return self.metadata(servers, dice).await;
        }
        let kind = dice.below(BOTH_TOO);
        if kind <= 1 {
            self.metadata(servers, dice).await?;
        }
        if kind == 0 {
            return Ok(());
        }
        // Where both are met, the metadata server starts meanwhile.
        let cluster = servers.cluster.as_mut().context("a cluster has no end")?;
        match cluster.strike(dice).await? {
            Blow::Killed => self.killed += 1,
            Blow::Stopped => self.stopped += 1,
        }
        Ok(())
    }

    async fn metadata(&mut self, servers: &mut Servers, dice: &mut Dice) -> Result<()> {
        self.metadata += 1;
        servers.kill_mds()?;
        servers.start_mds()?;
        if dice.below(EARLY) == 0 {
            tokio::time::sleep(Duration::from_millis(dice.below(STARTING))).await;
            servers.kill_mds()?;
            servers.start_mds()?;
        }
        Ok(())
    }

    fn told(&self, servers: &Servers) -> String {
        let Self { metadata, killed, stopped } = self;
        let of_mds = format!("{metadata} kills of the metadata server");
        match servers.cluster {
            Some(_) => format!(
                "{of_mds}, {killed} of processes of its cluster, and {stopped} were stopped for a while"
            ),
            None => of_mds,
        }
    }
}

/// Kills the metadata server so many times; what was seen.
pub(crate) async fn run(servers: &mut Servers, options: &Options, forgetful: bool) -> Result<String> {
    let mut dice = Dice::new(options.seed);
    let mut herd = Herd::new(PATIENCE);
    let hosts = plant(servers, &mut herd, &mut dice, forgetful).await?;
    let mut blows = Blows::default();
    for kill in 1..=options.rounds {
        let alive = Duration::from_millis(ALIVE.0 + dice.below(ALIVE.1 - ALIVE.0));
        tokio::time::sleep(alive).await;
        blows.next(servers, &mut dice).await?;
        herd.compare(kill).await.map_err(|error| explained(error, &hosts))?;
        if kill % options.check_every == 0 || kill == options.rounds {
            servers.check().map_err(|error| Broken(format!("after kill {kill}: {error:#}")))?;
        }
        if kill % 50 == 0 {
            eprintln!("{kill} kills");
        }
        herd.go_on();
    }
    herd.end().await?;
    let (answered, repeated) = told(&hosts);
    Ok(format!(
        "{}: {answered} requests, of which {repeated} were sent again and done once; all that was promised is there",
        blows.told(servers),
    ))
}

/// PUTROOTFH, and what follows.
pub(crate) fn root(rest: Vec<nfs_argop4>) -> Vec<nfs_argop4> {
    let mut all = vec![ops::putrootfh()];
    all.extend(rest);
    all
}
