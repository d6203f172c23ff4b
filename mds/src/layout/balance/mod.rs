//! Data servers are filled about evenly: data files of the fuller ones go to the emptier ones, while clients use the
//! files. docs/adr/0030-balancing.md.
//!
//! | module | what |
//! | --- | --- |
//! | `change` | what an administrator asks for, or why not |
//! | `choose` | who gives how much, and who takes what (pure) |
//! | `pass` | one walk over all files, those with something at data servers that give |
//! | `mover` | one file |
//! | `progress` | how far it is |
//!
//! What is durable is that it shall happen and who gives (a row), and what has: the files' own layouts. After a restart
//! the walk begins again, and finds what is left. Who gives takes nothing, and who takes gives nothing, for as long as
//! a balance lasts: so nothing is moved twice.

pub(crate) mod change;
pub(crate) mod choose;
mod mover;
mod pass;
pub(crate) mod progress;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_namespace::stable_storage::{Balance, BalanceState, balance, put_balance};
use sluice_namespace::{FsError, StoreId};
use tokio::sync::Notify;

use crate::dsctl::{StoreHandle, capacity, epochs};
use crate::layout::{drain, garbage};
use crate::server::Mds;
use choose::{Device, Levels, Role};
use pass::{Stage, Walk};
use progress::Progress;

/// Between two looks at what is waited for, and before what did not succeed is tried again.
const LOOK: Duration = Duration::from_secs(5);
/// So long what was moved may take to be removed where it was: before, nobody knows how full that is.
const REMOVAL: u32 = 12;
/// Nanoseconds that one is waited for that may just be restarting: without it others would be given what is its share.
const AWAY: u64 = 300_000_000_000;
/// Walks in a row that move nothing, though something may move, until that is said to be the end.
const FRUITLESS: u32 = 3;

/// The balance that was asked for last.
#[derive(Debug, Default)]
pub(crate) struct Balances {
    last: Mutex<Option<Arc<Progress>>>,
    changed: Notify,
    /// One administrator at a time.
    asked: tokio::sync::Mutex<()>,
    /// The row was to be changed, and it is not known whether it was.
    doubtful: AtomicBool,
}

impl Balances {
    pub(crate) fn last(&self) -> Option<Arc<Progress>> {
        self.last.lock().clone()
    }

    /// Bytes were copied from a data server that may have a limit for that: how long to wait before more are.
    pub(crate) fn pause(&self, mds: &Mds, from: StoreId, copied: u64) -> Duration {
        self.last().map_or(Duration::ZERO, |progress| progress.copied(mds.now(), from, copied))
    }

    /// The row is as `row` says: one that runs goes on with it, or another one begins.
    fn began(&self, row: Balance) {
        let mut last = self.last.lock();
        match last.as_ref().filter(|progress| !progress.is_stopped()) {
            Some(progress) => progress.set_row(row),
            None => *last = Some(Arc::new(Progress::new(row))),
        }
        drop(last);
        self.changed.notify_one();
    }
}

/// Balances when it is asked for, for the life of the server, after what earlier incarnations left.
pub(crate) async fn run(mds: Arc<Mds>) {
    loop {
        match mds.read(|txn| Box::pin(async move { balance(&txn).await })).await {
            Ok(row) => {
                // Unless somebody has asked for one meanwhile.
                if mds.balances.last().is_none() {
                    row.into_iter().for_each(|row| mds.balances.began(row));
                }
                break;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read whether data servers are to be balanced; trying again")
            }
        }
        mds.env.clock.sleep(LOOK).await;
    }
    loop {
        let changed = mds.balances.changed.notified();
        look_up(&mds).await;
        if let Some(progress) = mds.balances.last().filter(|progress| progress.take_up()) {
            even_out(&mds, &progress).await;
        }
        let _ = mds.env.clock.timeout(LOOK, changed).await;
    }
}

async fn look_up(mds: &Arc<Mds>) {
    if let Err(error) = change::look_up_doubtful(mds).await {
        tracing::debug!(%error, "it is not known whether data servers are to be balanced; looking again");
    }
}

/// Moves until all are about as full, or nothing more can be done.
async fn even_out(mds: &Arc<Mds>, progress: &Arc<Progress>) {
    let mut walk = Walk::default();
    let mut fruitless = 0;
    while !progress.is_stopped() {
        look_up(mds).await;
        if progress.is_stopped() {
            return;
        }
        if let Some(first) = comes_first(mds) {
            progress.waits(first);
            mds.env.clock.sleep(LOOK).await;
            continue;
        }
        progress.waits(String::new());
        let levels = levels(mds, progress).await;
        progress.shows(&levels);
        if let Some((state, why)) = over(&levels, progress) {
            if end(mds, progress, state, why).await {
                return;
            }
            continue;
        }
        let passed = pass::run(mds, progress, levels, &mut walk).await;
        if let Err(error) = store_moved(mds, progress).await {
            tracing::debug!(%error, "what was moved so far is not counted after a restart");
        }
        match passed {
            Err(error) => {
                tracing::warn!(%error, "cannot look for what may be moved between data servers; trying again");
                mds.env.clock.sleep(LOOK).await;
            }
            // It goes on where it was, if something is still to be moved when all that was moved is removed.
            Ok(false) => {}
            Ok(true) => match walk.stage.next() {
                Some(next) => walk.begin(next),
                None if walk.moved > 0 => {
                    fruitless = 0;
                    walk.begin(Stage::All);
                }
                None => {
                    fruitless += 1;
                    let held = held_up(mds, progress);
                    let ended = match held {
                        None => Some((BalanceState::NothingMore, NOTHING.to_owned())),
                        Some(why) if fruitless >= FRUITLESS => Some((BalanceState::NoProgress, why)),
                        Some(_) => None,
                    };
                    if let Some((state, why)) = ended
                        && end(mds, progress, state, why).await
                    {
                        return;
                    }
                    mds.env.clock.sleep(LOOK).await;
                    walk.begin(Stage::All);
                }
            },
        }
    }
}

const NOTHING: &str = "no data file that is left fits anywhere so that data servers are filled more evenly: mirrors stay on different data servers and hosts, and what is large may not even things out";

/// What is waited for: a drain, which needs the same data servers, and a data server that may come back soon. A drain that
/// does not move anything is gone on around, and so is who stays away.
fn comes_first(mds: &Mds) -> Option<String> {
    let (drains, active): (Vec<_>, Vec<_>) =
        mds.data_servers.all().into_iter().partition(|store| !store.is_active());
    let away = |store: &&Arc<StoreHandle>| {
        let connected = store.connection().is_some();
        store.update(|view| {
            let here = connected && !view.lost && view.health.is_some();
            !here && mds.now().since(view.last_heard.max(mds.started)) < AWAY
        })
    };
    if let Some(store) = active.iter().find(away) {
        return Some(format!("data server {} is away", store.id.0));
    }
    // Until then nothing that was copied can take the place of what it was copied from.
    let old_handles = |store: &&Arc<StoreHandle>| store.serves() && epochs::old_handles_live_at(mds, store);
    if active.iter().any(|store| old_handles(&store)) {
        return Some("clients of before the restart may still come back".to_owned());
    }
    let busy = |store: &Arc<StoreHandle>| {
        let Some(progress) = mds.drains.of(store.id) else { return false };
        let numbers = progress.numbers(mds.now());
        !numbers.row.done && (numbers.held.is_empty() || !numbers.pace.stands_still(mds.now()))
    };
    drains.into_iter().find(busy).map(|store| format!("data server {} is being drained first", store.id.0))
}

/// How full the data servers are when what was moved is gone from where it was.
async fn levels(mds: &Arc<Mds>, progress: &Progress) -> Levels {
    let row = progress.row();
    for _ in 0..REMOVAL {
        garbage::poke(mds);
        garbage::worked_off(mds).await;
        let removes = |id| mds.data_servers.get(id).is_some_and(|store| store.takes_writes());
        match drain::spares(mds, removes).await {
            Ok(true) if !progress.is_stopped() => mds.env.clock.sleep(LOOK).await,
            _ => break,
        }
    }
    capacity::look(mds).await;
    Levels::of(devices(mds, |id| row.givers.contains(&id)), row.tolerance)
}

/// The devices of data servers that are in use, as last heard.
fn devices(mds: &Mds, gives: impl Fn(StoreId) -> bool) -> Vec<Device> {
    let mut by_device: BTreeMap<([u8; 16], StoreId), Vec<Arc<StoreHandle>>> = BTreeMap::new();
    let mut all = mds.data_servers.all();
    all.retain(|store| store.takes_writes() && store.is_active());
    for store in all {
        let device = store.view().capacity.device.0;
        // One whose device is not known has it for itself.
        let alone = if device == [0; 16] { store.id } else { StoreId::default() };
        by_device.entry((device, alone)).or_default().push(store);
    }
    let device = |stores: Vec<Arc<StoreHandle>>| {
        let capacity = stores.first()?.view().capacity;
        let role = match stores.iter().any(|store| gives(store.id)) {
            true => Role::Gives,
            false if stores.iter().any(|store| store.takes_new()) => Role::Takes,
            false => Role::Stays,
        };
        let total = capacity.used_bytes.saturating_add(capacity.free_bytes);
        // One device is of one class, whatever is said of those that share it.
        let class = stores.first().and_then(|store| store.class());
        let ids = stores.iter().map(|store| store.id).collect();
        (total > 0).then(|| Device::new(ids, capacity.used_bytes, total, role).of(class))
    };
    let mut all: Vec<Device> = by_device.into_values().filter_map(device).collect();
    all.sort_by(|one, other| one.stores.cmp(&other.stores));
    all
}

/// How it ends, if all that there is to do is done.
fn over(levels: &Levels, progress: &Progress) -> Option<(BalanceState, String)> {
    let row = progress.row();
    if levels.is_even(row.tolerance) {
        let mean = f64::from(levels.mean()) / 10.0;
        let within = f64::from(row.tolerance) / 10.0;
        let words = match levels.has_classes() {
            true => format!("each is within {within}% of the mean of its class"),
            false => format!("each is within {within}% of the mean, {mean}%"),
        };
        return Some((BalanceState::Even, words));
    }
    let nobody = || {
        let why = "no data server that was fuller than the mean when it began can give anything to one that is less full: begin another one";
        (BalanceState::NothingMore, why.to_owned())
    };
    (levels.to_give() == 0).then(nobody)
}

/// Why what may move does not.
fn held_up(mds: &Mds, progress: &Progress) -> Option<String> {
    let numbers = progress.numbers(mds.now());
    let (key, why) = numbers.held.first_key_value()?;
    Some(format!("{} files cannot be moved now, as file {}: {why}", numbers.held.len(), key.fileid.0))
}

/// It is over: durably so. False: that could not be said, or it has been asked for something else meanwhile.
async fn end(mds: &Arc<Mds>, progress: &Progress, state: BalanceState, why: String) -> bool {
    let _alone = mds.balances.asked.lock().await;
    if progress.is_stopped() {
        return true;
    }
    let numbers = progress.numbers(mds.now());
    let (before, moved, so_far) = (progress.row(), numbers.moved(), numbers.pace.moved);
    let ended = mds.env.clock.wall().seconds;
    let (data_files, bytes) = (moved.data_files, moved.bytes);
    let over = Balance { state, why, ended, data_files, bytes, ..before.clone() };
    let (before, over) = (&before, &over);
    let written = mds.write_again(|mut txn| {
        Box::pin(async move {
            let row = balance(&txn).await?;
            // By an attempt whose end nobody was told, otherwise.
            if row.as_ref() == Some(before) {
                put_balance(&mut txn, over);
                return Ok(Some(over.clone()));
            }
            Ok(row.filter(|row| row.state != BalanceState::Running))
        })
    });
    match written.await {
        Ok((Some(row), _)) => {
            progress.stop();
            tell_end(&row);
            progress.is_stored(row, so_far);
            true
        }
        // By an attempt to ask for something else.
        Ok((None, _)) => {
            let row = mds.read(|txn| Box::pin(async move { balance(&txn).await })).await;
            row.ok().flatten().into_iter().for_each(|row| progress.set_row(row));
            false
        }
        Err(error) => {
            tracing::warn!(%error, "cannot record that data servers are balanced; trying again");
            mds.env.clock.sleep(LOOK).await;
            false
        }
    }
}

/// What was moved so far is counted after a restart, too.
///
/// # Errors
/// What the metadata store says.
async fn store_moved(mds: &Arc<Mds>, progress: &Progress) -> Result<(), FsError> {
    let _alone = mds.balances.asked.lock().await;
    let numbers = progress.numbers(mds.now());
    let (moved, so_far) = (numbers.moved(), numbers.pace.moved);
    let (stored, _) = mds
        .write_again(|mut txn| {
            Box::pin(async move {
                let Some(row) = balance(&txn).await?.filter(|row| row.state == BalanceState::Running) else {
                    return Ok(None);
                };
                let row = Balance { data_files: moved.data_files, bytes: moved.bytes, ..row };
                put_balance(&mut txn, &row);
                Ok(Some(row))
            })
        })
        .await?;
    // Stopped meanwhile otherwise.
    if let Some(row) = stored.filter(|_| !progress.is_stopped()) {
        progress.is_stored(row, so_far);
    }
    Ok(())
}

fn tell_end(row: &Balance) {
    let (data_files, mib, why) = (row.data_files, row.bytes >> 20, &row.why);
    match row.state {
        BalanceState::Even => tracing::info!(data_files, mib, %why, "data servers are balanced"),
        BalanceState::Stopped => tracing::info!(data_files, mib, "the balance of data servers was stopped"),
        _ => tracing::warn!(data_files, mib, %why, "data servers cannot be balanced any further"),
    }
}
