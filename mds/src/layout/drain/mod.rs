//! A data server is emptied: nothing new is placed on it, and every data file there goes to another one, while
//! clients use the files. docs/adr/0019-draining.md.
//!
//! | module | what |
//! | --- | --- |
//! | `change` | what an administrator asks for, or why not; a class, too |
//! | `pass` | one walk over all files, those that name the data server |
//! | `mover` | one file |
//! | `progress` | how far it is |
//!
//! What is durable is that it shall happen (a row of the data server) and what has: the files' own layouts. After a
//! restart the walk begins again, and finds what is left.

pub(crate) mod change;
pub(super) mod mover;
mod pass;
pub(crate) mod progress;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_namespace::stable_storage::{Drain, drain, drains, put_drain, store};
use sluice_namespace::{FsError, StoreId};
use tokio::sync::Notify;

use crate::server::Mds;
use progress::{Closed, Progress};

/// Between two looks at what is to be done when nobody says that something is.
const LOOK: Duration = Duration::from_secs(5);
/// Before what did not succeed is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// The data servers that are being emptied, as their rows say.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    under_way: Mutex<BTreeMap<StoreId, Arc<Progress>>>,
    changed: Notify,
    /// One administrator at a time: a row goes only when its drain was stopped, and none begins in between.
    asked: tokio::sync::Mutex<()>,
    /// Data servers whose rows were to be changed, and it is not known whether they were.
    doubtful: Mutex<BTreeSet<StoreId>>,
}

impl Drains {
    /// How far it is.
    pub(crate) fn of(&self, store: StoreId) -> Option<Arc<Progress>> {
        self.under_way.lock().get(&store).map(Arc::clone)
    }

    /// Bytes were copied from a data server that may have a limit for that: how long to wait before more are.
    pub(crate) fn pause(&self, mds: &Mds, store: StoreId, copied: u64) -> Duration {
        self.of(store).map_or(Duration::ZERO, |progress| progress.copied(mds.now(), copied))
    }

    fn is_doubtful(&self, store: StoreId) -> bool {
        self.doubtful.lock().contains(&store)
    }

    /// The rows are as `row` says.
    fn began(&self, row: Drain) {
        let mut all = self.under_way.lock();
        match all.get(&row.store) {
            Some(progress) => progress.set_row(row),
            None => drop(all.insert(row.store, Arc::new(Progress::new(row)))),
        }
        drop(all);
        self.changed.notify_one();
    }

    fn ended(&self, store: StoreId) {
        if let Some(progress) = self.under_way.lock().remove(&store) {
            progress.stop();
        }
    }
}

/// Empties what is to be emptied, for the life of the server, after what earlier incarnations left.
pub(crate) async fn run(mds: Arc<Mds>) {
    while let Err(error) = load(&mds).await {
        tracing::warn!(%error, "cannot read which data servers are to be emptied; trying again");
        mds.env.clock.sleep(LOOK).await;
    }
    loop {
        let changed = mds.drains.changed.notified();
        if let Err(error) = change::look_up_doubtful(&mds).await {
            tracing::debug!(%error, "it is not known whether data servers are to be emptied; looking again");
        }
        let all: Vec<_> = mds.drains.under_way.lock().values().map(Arc::clone).collect();
        for progress in all.into_iter().filter(|progress| progress.take_up()) {
            mds.spawn(empty(Arc::clone(&mds), progress));
        }
        let _ = mds.env.clock.timeout(LOOK, changed).await;
    }
}

async fn load(mds: &Arc<Mds>) -> Result<(), FsError> {
    let rows = mds.read(|txn| Box::pin(async move { drains(&txn).await })).await?;
    rows.into_iter().for_each(|row| mds.drains.began(row));
    Ok(())
}

/// Empties one data server, however long it takes.
async fn empty(mds: Arc<Mds>, progress: Arc<Progress>) {
    let id = progress.store();
    // Files that are being made may still be placed there.
    mds.data_servers.placed(&mds.env).await;
    progress.close(Closed::ForNew);
    mds.spawn(progress::count(Arc::clone(&mds), Arc::clone(&progress)));
    let mut todo = pass::Todo::All;
    while !progress.is_stopped() {
        match pass::run(&mds, &progress, todo).await {
            Ok(pass::Todo::Nothing) => match finish(&mds, &progress).await {
                Ok(true) => return,
                Ok(false) => todo = pass::Todo::Nothing,
                Err(error) => {
                    tracing::warn!(%error, data_server = id.0, "cannot record that it is drained; trying again");
                    todo = pass::Todo::Nothing;
                }
            },
            Ok(left) => todo = left,
            Err(error) => {
                tracing::warn!(%error, data_server = id.0, "cannot look for what is on a data server; trying again");
                todo = pass::Todo::All;
            }
        }
        mds.env.clock.sleep(AGAIN).await;
    }
}

/// Nothing names it any more: durably so, when what it held is removed there, if anything can be. False: not yet. A drain
/// that was cancelled changes nothing.
async fn finish(mds: &Arc<Mds>, progress: &Arc<Progress>) -> Result<bool, FsError> {
    let id = progress.store();
    if mds.data_servers.get(id).is_some_and(|store| store.takes_writes())
        && spares(mds, |store| store == id).await?
    {
        super::garbage::poke(mds);
        return Ok(false);
    }
    let (row, _) = mds
        .write(|mut txn| {
            Box::pin(async move {
                let (Some(store), Some(row)) = (store(&txn, id).await?, drain(&txn, id).await?) else {
                    return Ok(None);
                };
                // After the rows were read: whoever cancels from now on conflicts, and what is read then may be the row
                // of a drain that began later.
                if progress.is_stopped() {
                    return Ok(None);
                }
                let row = Drain { done: true, ..row };
                put_drain(&mut txn, &store, &row);
                Ok(Some(row))
            })
        })
        .await?;
    // Cancelled meanwhile otherwise.
    if let Some(row) = row {
        progress.set_row(row);
        tracing::info!(
            data_server = id.0,
            "data server drained: it holds nothing that is in use, and can be removed"
        );
    }
    Ok(true)
}

/// Whether a data server that nothing new is placed on is to take the place of another for some file: from when it was
/// not, nothing comes there any more.
async fn is_headed_for(mds: &Arc<Mds>, id: StoreId) -> Result<bool, FsError> {
    const PAGE: usize = 1000;
    let (namespace, mut after) = (&mds.namespace, None);
    loop {
        let page = mds.read(|txn| Box::pin(async move { namespace.heals(&txn, after, PAGE).await })).await?;
        if page.iter().flat_map(|row| &row.replacements).any(|replacement| replacement.new.store == id) {
            return Ok(true);
        }
        let Some(last) = page.last() else { return Ok(false) };
        after = Some(last.inode.fileid);
    }
}

/// Whether data files that lost their place are still to be removed at one of these.
pub(super) async fn spares(mds: &Arc<Mds>, at: impl Fn(StoreId) -> bool) -> Result<bool, FsError> {
    const PAGE: usize = 1000;
    let (namespace, mut after) = (&mds.namespace, None);
    loop {
        let page = mds.read(|txn| Box::pin(async move { namespace.spares(&txn, after, PAGE).await })).await?;
        if page.iter().any(|spare| at(spare.store)) {
            return Ok(true);
        }
        let Some(last) = page.last() else { return Ok(false) };
        after = Some((last.id, last.slot));
    }
}
