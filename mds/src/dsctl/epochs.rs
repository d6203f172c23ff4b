//! Capability epochs (docs/DESIGN §6). Every handle carries the epoch it was made in, every fence and tombstone
//! the epoch up to which it refuses. The epoch turns
//!
//! * with every start: handles of an earlier incarnation can be told from ours, and are over before grace is;
//! * when a holder that was fenced off a file asks for it again: the newer handle passes the fence;
//! * when an export narrows: older handles of whom it let in can be told from those that they may have;
//! * when a data server was restarted: a handle from before it may have lost what it does not find;
//! * when a data server goes on with an older copy of its store: it takes no handle of before;
//! * when a data server has many rows to keep, or many clients are locked out of an export: once all layouts of older epochs are back, those are retired, and
//!   the rows with them;
//! * when a data server has retired later ones, since the metadata are older than what it remembers;
//! * when the key that seals capabilities is replaced (docs/adr/0024): likewise, and the old key goes with its epochs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_namespace::stable_storage::{CapabilityEpochs, capability_epochs, put_capability_epochs};
use sluice_namespace::{DataFileId, FsError, Layout, StoreId};
use sluice_state::file::LayoutFilter;
use sluice_state::{ClientId, StateId, Time};
use sluice_xdr::nfs4::nfsstat4;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::registry::StoreHandle;
use super::{fence, holder, orders};
use crate::files::FileEntry;
use crate::server::Mds;

/// Between two looks at what is to be done.
const LOOK: Duration = Duration::from_millis(500);
/// The same, while clients wait for it.
const SOON: Duration = Duration::from_millis(20);
/// Between two turns: many that ask at once are let in by one.
const LEAST: Duration = Duration::from_secs(1);
/// Epochs that may be alive together. Data servers compare 16 bits as serial numbers, half of them newer.
const MOST: u32 = 0x4000;
/// Between two retirements that a data server without room asks for, or that rows do which are many but not too many.
const FULL_AGAIN: Duration = Duration::from_secs(60);
/// Files whose layouts are recalled together.
const BATCH: usize = 256;

/// What the turns of the epoch need to know.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Holders fenced off a file since the last turn: a handle of this epoch is refused.
    fenced: Mutex<BTreeSet<(u32, DataFileId)>>,
    /// Holders fenced off all files since then.
    fenced_off: Mutex<BTreeSet<u32>>,
    /// Fences and tombstones that each data server was told since the last retirement.
    rows: Mutex<BTreeMap<StoreId, u64>>,
    /// A data server has no room for more of them.
    full: AtomicBool,
    /// Grace is to end.
    ending: Notify,
    /// Handles of earlier incarnations are refused everywhere: it may.
    predecessors_over: AtomicBool,
    /// Handles are out that are to be good no longer, whoever has them.
    unwanted: AtomicBool,
    /// One turn at a time: when the last was.
    last: tokio::sync::Mutex<Option<Time>>,
    /// One change at a time, so that the one in force is the newest. Taken after `last`.
    changing: tokio::sync::Mutex<()>,
}

/// Why older epochs are to be retired, as in [`Turns`].
struct Asked {
    rows: BTreeMap<StoreId, u64>,
    full: bool,
    unwanted: bool,
}

impl Turns {
    /// Handles of this holder on this file, of the current epoch and older ones, are about to be refused.
    pub(crate) fn fenced(&self, client: ClientId, file: DataFileId) {
        self.fenced.lock().insert((holder(client), file));
    }

    /// Handles of this holder, of the current epoch and older ones, are about to be refused.
    pub(super) fn fenced_off(&self, client: ClientId) {
        self.fenced_off.lock().insert(holder(client));
    }

    /// Older epochs are to be retired as soon as their layouts are back.
    pub(super) fn want_retirement(&self) {
        self.unwanted.store(true, Ordering::Relaxed);
    }

    /// A data server keeps so many rows more.
    pub(crate) fn kept(&self, store: StoreId, rows: usize) {
        *self.rows.lock().entry(store).or_default() += u64::try_from(rows).unwrap_or(u64::MAX);
    }

    /// How many those of a data server are that has the most.
    fn most_rows(&self) -> u64 {
        self.rows.lock().values().copied().max().unwrap_or(0)
    }

    /// A data server refused a row for want of room.
    pub(crate) fn full(&self) {
        self.full.store(true, Ordering::Relaxed);
    }

    /// Asked when nothing else is in the way of the end of grace: whether handles of earlier incarnations are over.
    pub(crate) fn predecessors_over(&self) -> bool {
        self.ending.notify_one();
        self.predecessors_over.load(Ordering::Acquire)
    }

    /// What asks for a retirement, which begins.
    fn take_asked(&self) -> Asked {
        Asked {
            rows: std::mem::take(&mut *self.rows.lock()),
            full: self.full.swap(false, Ordering::Relaxed),
            unwanted: self.unwanted.swap(false, Ordering::Relaxed),
        }
    }

    /// It did not come to its end.
    fn ask_again(&self, asked: &Asked) {
        let mut all = self.rows.lock();
        asked.rows.iter().for_each(|(store, rows)| *all.entry(*store).or_default() += rows);
        drop(all);
        self.full.fetch_or(asked.full, Ordering::Relaxed);
        self.unwanted.fetch_or(asked.unwanted, Ordering::Relaxed);
    }

    fn refuses(&self, client: ClientId, file: DataFileId) -> bool {
        self.fenced.lock().contains(&(holder(client), file))
            || self.fenced_off.lock().contains(&holder(client))
    }
}

/// Whether [`let_in`] has something to do, for which it may have to wait.
pub(crate) fn refuses(mds: &Mds, client: ClientId, file: DataFileId) -> bool {
    mds.data_servers.turns.refuses(client, file)
}

/// Before a handle is made: a holder that was fenced off the file gets one of a newer epoch, or it would be
/// refused for ever, however often it asked.
///
/// # Errors
/// LAYOUTUNAVAILABLE when too many epochs are alive: its I/O goes through this server. What the store says.
pub(crate) async fn let_in(mds: &Arc<Mds>, client: ClientId, file: DataFileId) -> Result<(), nfsstat4> {
    let registry = &mds.data_servers;
    if !refuses(mds, client, file) {
        return Ok(());
    }
    let mut last = registry.turns.last.lock().await;
    if !refuses(mds, client, file) {
        return Ok(());
    }
    let epochs = registry.epochs();
    if epochs.current.wrapping_sub(epochs.oldest) >= MOST {
        // Until the next retirement, which this asks for.
        registry.turns.full();
        return Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
    }
    pace(mds, *last).await;
    turn(mds, false).await.map_err(|error| crate::error::fs_status(&error))?;
    *last = Some(mds.now());
    Ok(())
}

/// Handles that are made from now on can be told from older ones: the latest epoch of those. `None` when too many epochs are
/// alive: all older ones are about to be retired.
///
/// # Errors
/// What the store says.
pub(crate) async fn set_apart(mds: &Arc<Mds>) -> Result<Option<u32>, FsError> {
    let turns = &mds.data_servers.turns;
    let mut last = turns.last.lock().await;
    let epochs = mds.data_servers.epochs();
    if epochs.current.wrapping_sub(epochs.oldest) >= MOST {
        turns.want_retirement();
        return Ok(None);
    }
    pace(mds, *last).await;
    let current = turn(mds, false).await?;
    *last = Some(mds.now());
    Ok(Some(current - 1))
}

/// Many who ask at once are let in by one turn.
async fn pace(mds: &Mds, last: Option<Time>) {
    if let Some(before) = last {
        let since = Duration::from_nanos(mds.now().since(before));
        mds.env.clock.sleep(LEAST.saturating_sub(since)).await;
    }
}

/// A data server begins anew. A handle that is made from now on for what was written there says that it must exist; an
/// older one may not, and is told by its epoch.
///
/// # Errors
/// What the store says.
pub(super) async fn restarted(mds: &Arc<Mds>) -> Result<(), FsError> {
    let asked = mds.now();
    let registry = &mds.data_servers;
    let mut last = registry.turns.last.lock().await;
    // Of many that were restarted together, one turn is enough.
    if last.is_some_and(|last| last > asked) {
        return Ok(());
    }
    let epochs = registry.epochs();
    if epochs.current.wrapping_sub(epochs.oldest) >= MOST {
        // It takes older handles for what they say until the next retirement, which this asks for.
        registry.turns.full();
        return Ok(());
    }
    turn(mds, false).await?;
    *last = Some(mds.now());
    Ok(())
}

/// A data server refuses handles of epochs before this one. If that is still to come, it served metadata that these are an
/// older copy of: the epoch turns beyond it, or every handle would be refused there.
///
/// False: it is so far ahead that both cannot be compared.
///
/// # Errors
/// What the store says.
pub(super) async fn overtake(mds: &Arc<Mds>, retired: u16) -> Result<bool, FsError> {
    let registry = &mds.data_servers;
    if beyond(&registry.epochs(), retired).is_none() {
        return Ok(true);
    }
    let mut last = registry.turns.last.lock().await;
    let epochs = registry.epochs();
    let Some(epoch) = beyond(&epochs, retired) else { return Ok(true) };
    if epoch - epochs.oldest >= MOST {
        return Ok(false);
    }
    begin(mds, |epochs| epochs.current = epochs.current.max(epoch)).await?;
    *last = Some(mds.now());
    tracing::warn!(
        epoch,
        "a data server remembers newer metadata than these, as after a load of an old dump; it serves these from now on"
    );
    Ok(true)
}

/// The epoch after one that a data server has retired everything before, if that is newer than ours. Compared as it
/// does, as serial numbers of 16 bits; 0 is one that has retired none.
fn beyond(epochs: &CapabilityEpochs, retired: u16) -> Option<u32> {
    let ahead = retired.wrapping_sub(epochs.current as u16);
    (retired != 0 && ahead.cast_signed() > 0).then(|| epochs.current + u32::from(ahead) + 1)
}

/// The next epoch begins, perhaps with the announced key: durable before a handle of it exists.
async fn turn(mds: &Arc<Mds>, with_key: bool) -> Result<u32, FsError> {
    begin(mds, |epochs| if with_key { epochs.turn_key() } else { epochs.current += 1 }).await
}

/// A later epoch begins.
async fn begin(mds: &Arc<Mds>, later: impl Fn(&mut CapabilityEpochs) + Send + Sync) -> Result<u32, FsError> {
    // Whoever is fenced from now on may be fenced in the new epoch as well as in the old one: it stays noted.
    let turns = &mds.data_servers.turns;
    let fenced = std::mem::take(&mut *turns.fenced.lock());
    let fenced_off = std::mem::take(&mut *turns.fenced_off.lock());
    let turned = change(mds, later).await;
    if turned.is_err() {
        turns.fenced.lock().extend(fenced);
        turns.fenced_off.lock().extend(fenced_off);
    }
    Ok(turned?.current)
}

/// Durable first, then in force.
async fn change(
    mds: &Arc<Mds>,
    change: impl Fn(&mut CapabilityEpochs) + Send + Sync,
) -> Result<CapabilityEpochs, FsError> {
    let _alone = mds.data_servers.turns.changing.lock().await;
    let change = &change;
    let (epochs, _) = mds
        .write(|mut txn| {
            Box::pin(async move {
                let found = capability_epochs(&txn).await?;
                let mut epochs = found.ok_or(FsError::Corrupt { what: "capability epochs" })?;
                change(&mut epochs);
                put_capability_epochs(&mut txn, &epochs);
                Ok(epochs)
            })
        })
        .await?;
    mds.data_servers.set_epochs(epochs.clone());
    Ok(epochs)
}

/// Whether a handle that an earlier incarnation of this server gave out may still be good somewhere: its holder
/// may write without our knowing. Not where a mirror was left behind, nor at a data server that has been away for
/// so long that it serves nobody before it has heard that they are over.
pub(crate) fn old_handles_live(mds: &Mds, layout: &Layout) -> bool {
    let mut files = layout.data_files().filter(|file| !file.stale);
    files.any(|file| mds.data_servers.get(file.store).is_none_or(|store| old_handles_live_at(mds, &store)))
}

/// The same of one data server.
pub(crate) fn old_handles_live_at(mds: &Mds, store: &StoreHandle) -> bool {
    let ours = mds.data_servers.first_epoch();
    let over = mds.data_servers.epochs().oldest >= ours;
    store.update(|view| view.retired) < ours && !(over && fence::isolated(mds, store))
}

/// Whether a data server may take handles that an earlier incarnation of this server gave out. Nobody has any once grace is
/// over.
pub(crate) fn takes_old_handles(mds: &Mds, id: StoreId) -> bool {
    let ours = mds.data_servers.first_epoch();
    let store = mds.data_servers.get(id).filter(|store| !store.is_removed());
    let takes = |store: &StoreHandle| store.view().retired < ours && !fence::isolated(mds, store);
    mds.in_grace() && store.is_some_and(|store| takes(&store))
}

/// The same of one that cannot be told which of them are good no more.
pub(crate) fn takes_old_handles_unheard(mds: &Mds, id: StoreId) -> bool {
    let hears = mds.data_servers.get(id).is_some_and(|store| store.connection().is_some());
    !hears && takes_old_handles(mds, id)
}

/// Retires epochs for the life of the server: those of earlier incarnations before what was held under them and not
/// reclaimed is given to others, later ones when data servers have many rows to keep.
pub(crate) async fn run(mds: Arc<Mds>) {
    let turns = &mds.data_servers.turns;
    turns.ending.notified().await;
    end_predecessors(&mds).await;
    turns.predecessors_over.store(true, Ordering::Release);
    forget_retired(&mds).await;
    let mut not_before = mds.now();
    loop {
        tell_all(&mds).await;
        mds.env.clock.sleep(LOOK).await;
        let rested = mds.now() >= not_before;
        let many = are_many(turns.most_rows(), mds.config.capability_rows, rested);
        let asked = turns.full.load(Ordering::Relaxed) || turns.unwanted.load(Ordering::Relaxed);
        let asked = asked && rested;
        // Perhaps one that an earlier incarnation announced.
        let announced = mds.data_servers.epochs().announced().is_some();
        let new_key = announced && all_know(&mds).await;
        // The store refused to end a rotation: there are layouts under the key before.
        let unfinished = mds.data_servers.epochs().opening().count() > 1;
        if many || asked || new_key || unfinished {
            match renew(&mds, new_key).await {
                Ok(()) => forget_retired(&mds).await,
                Err(error) => tracing::warn!(%error, "cannot retire old capabilities; trying again"),
            }
            not_before = mds.now() + FULL_AGAIN;
        }
    }
}

/// Whether some data server keeps so many rows that older epochs are to be retired: after a while, unless half as many again have
/// come meanwhile.
///
/// No table of a data server overflows over that. It holds what was counted of it since the last retirement began, and no more:
/// each row that is counted adds one to it at most, and those from before go when that retirement ends. Of the 2^20 that each has
/// room for at least 360,000 are left when the next one begins ([`Config`](crate::Config)), for what comes while
/// layouts come back. What is not counted, since it did not become durable, is refused at worst (AGAIN), and stays queued: that
/// asks for a retirement, too.
fn are_many(rows: u64, most: u64, rested: bool) -> bool {
    rows >= if rested { most } else { most.saturating_add(most / 2) }
}

/// Rows that nobody needs are in nobody's way: the next retirement tries again.
async fn forget_retired(mds: &Mds) {
    if let Err(error) = fence::forget_retired(mds).await {
        tracing::warn!(%error, "cannot drop the rows of fences that are over");
    }
}

/// Returns when no data server takes handles of earlier incarnations any more. A client that is cut off from this server, and
/// not from them, would otherwise write under a lock that somebody else has by then (RFC 8881 §8.4.2, §12.7.4).
///
/// They are good until all data servers can be told: nobody loses his while one of them is waited for.
async fn end_predecessors(mds: &Arc<Mds>) {
    let ours = mds.data_servers.first_epoch();
    let mut waits = mds.clients.lock().grace().had_any();
    let begun = mds.now();
    loop {
        let silent = |store: &StoreHandle| store.connection().is_none() && !fence::isolated(mds, store);
        let here = !waits || !mds.data_servers.all().iter().any(|store| silent(store));
        let over = |store: &StoreHandle| store.view().retired >= ours || fence::isolated(mds, store);
        match if here { retire(mds, ours).await } else { Ok(()) } {
            Ok(()) if !waits => return,
            Ok(()) if here && mds.data_servers.all().iter().all(|store| over(store)) => return,
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot retire the capabilities of earlier incarnations; trying again");
                mds.env.clock.sleep(LOOK).await;
            }
        }
        if waits && mds.now().since(begun) > 2 * mds.data_servers.isolation_nanos() {
            let late = named(&mds.data_servers.all(), |store| !over(store));
            tracing::warn!(data_servers = %late, "grace ends without a word of them that handles of before are over");
            waits = false;
        }
        mds.env.clock.sleep(SOON).await;
    }
}

/// A new key, durable, and from then on told to whoever registers. It comes into use when all data servers know it.
/// False: one was announced already and is not in use yet; that one it is.
///
/// # Errors
/// What the store says.
pub(crate) async fn rotate(mds: &Arc<Mds>) -> Result<bool, FsError> {
    let key = mds.env.random.array();
    let epochs = change(mds, |epochs| epochs.announce(key)).await?;
    let ours = epochs.announced().is_some_and(|announced| announced.key == key);
    if ours {
        tracing::info!("a new key for capabilities is announced to the data servers");
    }
    Ok(ours)
}

/// Whether every data server has the announced key, or serves nobody before it has registered again.
async fn all_know(mds: &Arc<Mds>) -> bool {
    let stores = mds.data_servers.all();
    // Nobody is waited for who is known to be silent.
    if stores.iter().any(|store| !may_know(mds, store)) {
        return false;
    }
    let mut told: JoinSet<bool> = JoinSet::new();
    for store in stores {
        let mds = Arc::clone(mds);
        told.spawn(async move { orders::retire(&mds, &store).await || fence::isolated(&mds, &store) });
    }
    told.join_all().await.into_iter().all(|knows| knows)
}

/// One that is failing serves what it can, so it must know, too.
fn may_know(mds: &Mds, store: &StoreHandle) -> bool {
    let view = store.view();
    store.connection().is_some() && view.fences_told && !view.lost || fence::isolated(mds, store)
}

fn named(stores: &[Arc<StoreHandle>], is: impl Fn(&StoreHandle) -> bool) -> String {
    let found = stores.iter().filter(|store| is(store)).map(|store| store.id.0.to_string());
    found.collect::<Vec<_>>().join(", ")
}

/// What stands between now and the end of a rotation or retirement, in words; nothing when none is under way.
pub(crate) fn waits_for(mds: &Mds) -> String {
    let epochs = mds.data_servers.epochs();
    let stores = mds.data_servers.all();
    if epochs.announced().is_some() {
        let silent = named(&stores, |store| !may_know(mds, store));
        return match &*silent {
            "" => "the data servers to take the new key".to_owned(),
            silent => {
                format!("data server {silent} to answer, or to be silent for so long that it serves nobody")
            }
        };
    }
    if epochs.opening().count() > 1 {
        let layouts: u64 = mds.files.index().usages().iter().map(|(_, usage)| u64::from(usage.layouts)).sum();
        return match layouts {
            0 => "older handles to be over".to_owned(),
            some => format!("layouts of older handles to come back ({some} layouts are out in all)"),
        };
    }
    let late = |store: &StoreHandle| store.view().retired < epochs.oldest && !fence::isolated(mds, store);
    match &*named(&stores, late) {
        "" => String::new(),
        late => format!("data server {late} to forget older handles"),
    }
}

/// A new epoch, perhaps with the key that was announced, and the older ones are retired. Whatever step of it fails, it is asked
/// for as before.
async fn renew(mds: &Arc<Mds>, new_key: bool) -> Result<(), FsError> {
    let turns = &mds.data_servers.turns;
    let mut last = turns.last.lock().await;
    let asked = turns.take_asked();
    let renewed = async {
        let current = turn(mds, new_key).await?;
        *last = Some(mds.now());
        drop(last);
        if new_key {
            tracing::info!(epoch = current, "capabilities are sealed with the new key");
        }
        retire_before(mds, current, asked.rows.values().sum()).await
    };
    renewed.await.inspect_err(|_| turns.ask_again(&asked))
}

/// Every layout of epochs before the current one comes back; those are retired.
async fn retire_before(mds: &Arc<Mds>, current: u32, rows: u64) -> Result<(), FsError> {
    tracing::info!(epoch = current, rows, "retiring old capabilities: layouts are recalled");
    // LAYOUTGETs that are under way may have made their handles in the epoch before.
    mds.env.clock.sleep(LEAST).await;
    for files in mds.files.all().chunks(BATCH) {
        let old: Vec<_> = files.iter().flat_map(|entry| recall(mds, entry, LayoutFilter::All)).collect();
        come_back(mds, &old).await;
    }
    retire(mds, current).await
}

/// The layouts that clients have come back, or are taken from them: all at once, which takes as long as one recall.
pub(super) async fn give_back(mds: &Arc<Mds>, clients: &[ClientId]) {
    // As above.
    mds.env.clock.sleep(LEAST).await;
    let mut old = Vec::new();
    for client in clients {
        let files = mds.files.index().files_of(*client);
        for files in files.chunks(BATCH) {
            let entries = files.iter().filter_map(|file| mds.files.get(*file));
            old.extend(entries.flat_map(|entry| recall(mds, &entry, LayoutFilter::Client(*client))));
            tokio::task::yield_now().await;
        }
    }
    come_back(mds, &old).await;
}

/// Who does not return it loses it: the wait ends with the recall's.
async fn come_back(mds: &Mds, layouts: &[HeldLayout]) {
    while layouts.iter().any(|(entry, client, stateid)| still_held(entry, *client, stateid)) {
        mds.env.clock.sleep(LOOK).await;
    }
}

type HeldLayout = (Arc<FileEntry>, ClientId, StateId);

fn recall(mds: &Arc<Mds>, entry: &Arc<FileEntry>, those: LayoutFilter) -> Vec<HeldLayout> {
    let mut held = entry.peek(sluice_state::file::File::held_layouts);
    if let LayoutFilter::Client(only) = those {
        held.retain(|(client, _)| *client == only);
    }
    if !held.is_empty() {
        mds.step(entry, None, |file, ctx| ((), file.recall_layouts(ctx, those, false)));
    }
    held.into_iter().map(|(client, stateid)| (Arc::clone(entry), client, stateid)).collect()
}

fn still_held(entry: &FileEntry, client: ClientId, stateid: &StateId) -> bool {
    entry.peek(|file| file.layout_of(client)).is_some_and(|(now, _)| now.other == stateid.other)
}

/// No handle of an epoch before `oldest` is good any more; data servers that are away hear of it when they
/// register.
async fn retire(mds: &Arc<Mds>, oldest: u32) -> Result<(), FsError> {
    let before = mds.data_servers.epochs();
    if before.oldest < oldest {
        let now = change(mds, |epochs| epochs.retire(oldest)).await?;
        if now.opening().count() < before.opening().count() {
            tracing::info!("the older key for capabilities is forgotten: handles made with it are over");
        }
    }
    tell_all(mds).await;
    Ok(())
}

/// Side by side: one that does not answer is in nobody's way.
async fn tell_all(mds: &Arc<Mds>) {
    let mut told = JoinSet::new();
    for store in mds.data_servers.all() {
        let mds = Arc::clone(mds);
        told.spawn(async move { tell(&mds, store.id).await });
    }
    told.join_all().await;
}

/// Tells a data server which epochs are over, if it has not confirmed that yet.
async fn tell(mds: &Arc<Mds>, store: StoreId) {
    let oldest = mds.data_servers.epochs().oldest;
    let Some(store) = mds.data_servers.get(store) else { return };
    // One that is failing serves what it can, so it must know, too.
    if store.view().retired < oldest && store.connection().is_some() && orders::retire(mds, &store).await {
        store.update(|view| view.retired = view.retired.max(oldest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_many_wait_for_a_while_and_those_that_are_too_many_do_not() {
        let most = crate::Config::default().capability_rows;
        assert!(are_many(most, most, true) && !are_many(most - 1, most, true));
        assert!(!are_many(most, most, false) && are_many(most + most / 2, most, false));
        assert!((1 << 20) - (most + most / 2) >= 360_000);
    }
}
