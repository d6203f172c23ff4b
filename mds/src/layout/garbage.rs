//! Data files of deleted files: removed at the data servers, then forgotten. Everything here has a row and
//! goes on after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_kv::KvError;
use sluice_namespace::{
    DataFile, DataFileId, FileId, FsError, Garbage, GarbageBatch, InodeKey, Namespace, Reclaimed, StoreId,
    TruncateIntent,
};
use sluice_state::file::{File, Grace};
use sluice_xdr::control::ctl_data_file;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::spares::Spares;
use super::sweep::Sweep;
use crate::dsctl::{self, Cut};
use crate::files::FileEntry;
use crate::layout::heal::leave;
use crate::ops::setattr;
use crate::server::Mds;

/// Rows worked on at once.
const BATCH: usize = 256;
/// Rows that are held in memory at most; more are found by looking.
const HELD: usize = 4096;
/// Before what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Data servers that remove at the same time.
const WIDTH: usize = 64;
/// Files are often removed in a row: what comes meanwhile is worked on together.
const GATHER: Duration = Duration::from_millis(10);
/// For what was queued to be worked on, when somebody waits for it.
const PATIENCE: Duration = Duration::from_millis(500);

/// What was queued since the queue was last worked on.
///
/// The rows are durable and looking would find them. But a look passes by all that was removed since the store last put
/// its rows in order: after many files, that takes longer than everything else that removing a file does.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    news: Mutex<News>,
    /// Where data files are gone of rows that wait for another data server: they are not removed there again, look after look.
    gone: Mutex<BTreeMap<DataFileId, BTreeSet<StoreId>>>,
    woken: Notify,
    worked: watch::Sender<Worked>,
}

#[derive(Debug, Default)]
struct News {
    /// Committed, and nobody's for good.
    rows: Vec<Garbage>,
    /// There is more than that.
    look: bool,
    /// Data files outside of layouts may be removed now.
    spares: bool,
    /// How often something was told.
    told: u64,
    /// Somebody has waited in vain, when so many rounds were over.
    given_up: Option<u64>,
}

/// What is behind the queue.
#[derive(Clone, Copy, Debug, Default)]
struct Worked {
    rounds: u64,
    /// What was told by then has been worked on, once.
    told: u64,
}

impl Queue {
    fn tell(&self, change: impl FnOnce(&mut News)) {
        let mut news = self.news.lock();
        change(&mut news);
        news.told += 1;
        drop(news);
        self.woken.notify_one();
    }

    /// What is to be worked on now: rows, whether there are more, whether there may be spares, and what was told by then.
    fn take(&self) -> (Vec<Garbage>, bool, bool, u64) {
        let mut news = self.news.lock();
        (take(&mut news.rows), take(&mut news.look), take(&mut news.spares), news.told)
    }

    /// All that was told by `answered`, of what was taken by `told`, is worked on, whether data servers answered or not. While a walk
    /// is waited for that is under way, the round goes on.
    fn worked(&self, answered: u64, told: u64) {
        if answered < told && answered <= self.worked.borrow().told {
            return;
        }
        self.worked.send_modify(|worked| *worked = Worked { rounds: worked.rounds + 1, told: answered });
    }

    fn push(&self, row: Garbage) {
        self.tell(|news| {
            if news.rows.len() < HELD {
                news.rows.push(row);
            } else {
                news.look = true;
            }
        });
    }
}

/// Something was queued, or may be removed now: have everything looked through.
pub(crate) fn poke(mds: &Arc<Mds>) {
    mds.garbage.tell(|news| (news.look, news.spares) = (true, true));
}

/// Rows of data files that are nobody's were written, or may be removed now: have those looked through.
pub(crate) fn poke_rows(mds: &Arc<Mds>) {
    mds.garbage.tell(|news| news.look = true);
}

/// These data files were queued, and the row is committed.
pub(crate) fn queued(mds: &Arc<Mds>, row: Garbage) {
    mds.garbage.push(row);
}

/// Returns when all that was queued before has been worked on, or after a moment. A round in which somebody waited in
/// vain is waited for no more: a data server does not answer.
pub(crate) async fn worked_off(mds: &Mds) {
    let queue = &mds.garbage;
    let mut worked = queue.worked.subscribe();
    let (told, given_up) = {
        let news = queue.news.lock();
        (news.told, news.given_up)
    };
    let now = *worked.borrow_and_update();
    if now.told >= told || given_up == Some(now.rounds) {
        return;
    }
    let done = worked.wait_for(|worked| worked.told >= told);
    if mds.env.clock.timeout(PATIENCE, done).await.is_err() {
        queue.news.lock().given_up = Some(queue.worked.borrow().rounds);
    }
}

/// Works through the garbage queue for the life of the server, after what earlier incarnations left.
pub(crate) async fn run(mds: Arc<Mds>) {
    mds.spawn(finish_truncations(Arc::clone(&mds)));
    mds.spawn(collect_orphans(Arc::clone(&mds)));
    let clock = &mds.env.clock;
    // Data servers that were away come back without telling this queue.
    let (mut sweep, mut spares) = (Sweep::new(clock.now()), Spares::new(clock.now()));
    // What was told by the turn before.
    let mut before = 0;
    loop {
        let woken = mds.garbage.woken.notified();
        let (rows, to_look, to_spare, told) = mds.garbage.take();
        if to_look {
            sweep.ask(before);
        }
        if to_spare {
            spares.ask(before);
        }
        before = told;
        rows.iter().for_each(|row| spares.forget(row.layout.id));
        match turn(&mds, &rows, &mut sweep, &mut spares).await {
            Ok(()) => {}
            // The server ends; what is queued waits for the next one.
            Err(FsError::Kv(KvError::Closed)) => return,
            Err(error) => tracing::warn!(%error, "cannot work through the garbage queue; trying again"),
        }
        mds.garbage.worked(sweep.answered(told).min(spares.sweep.answered(told)), told);
        let left = sweep.next().min(spares.sweep.next()).since(clock.now());
        if left > Duration::ZERO && clock.timeout(left, woken).await.is_ok() {
            clock.sleep(GATHER).await;
        }
    }
}

/// What was told of, and a page of all else: with many rows that wait for something, to look through all of them takes long, and
/// what is removed meanwhile does not wait for that. What fails in one keeps nothing in the others.
async fn turn(
    mds: &Arc<Mds>,
    rows: &[Garbage],
    sweep: &mut Sweep<DataFileId>,
    spares: &mut Spares,
) -> Result<(), FsError> {
    let clock = &mds.env.clock;
    let forgot = forget(mds, rows).await;
    let began = clock.now();
    let swept = match sweep.turn(began) {
        Some(after) => {
            let page = sweep_page(mds, after).await;
            sweep.turned(began, clock.now(), page.as_ref().ok().copied());
            page.map(drop)
        }
        None => Ok(()),
    };
    let began = clock.now();
    let spared = match spares.sweep.turn(began) {
        Some(after) => {
            let page = spares.page(mds, after).await;
            spares.sweep.turned(began, clock.now(), page.as_ref().ok().copied());
            page.map(drop)
        }
        None => Ok(()),
    };
    spared.and(swept).and(forgot)
}

/// Removes the data files of these rows, as far as data servers answer, and the rows.
async fn forget(mds: &Arc<Mds>, rows: &[Garbage]) -> Result<(), FsError> {
    for rows in rows.chunks(BATCH) {
        let gone = &remove(mds, rows).await;
        if gone.is_empty() {
            continue;
        }
        let namespace = &mds.namespace;
        mds.write(|mut txn| {
            Box::pin(async move {
                namespace.garbage_done(&mut txn, gone);
                Ok(())
            })
        })
        .await?;
    }
    Ok(())
}

/// Some rows of deleted files, those behind `after`; where the next ones are.
async fn sweep_page(mds: &Arc<Mds>, after: Option<DataFileId>) -> Result<Option<DataFileId>, FsError> {
    let made = mds.copies.made();
    let mut batch = page(mds, after).await?;
    batch.rows.retain(|row| !mds.copies.is_making(row.layout.id));
    if mds.copies.made() != made {
        // Some of it may have found an owner since it was read: what has is not there any more.
        let now = page(mds, after).await?;
        let still: BTreeSet<DataFileId> = now.rows.iter().map(|row| row.layout.id).collect();
        // What others have pushed off this page the next look finds.
        batch.rows.retain(|row| still.contains(&row.layout.id));
    }
    forget(mds, &batch.rows).await?;
    Ok(batch.next)
}

/// The rows behind `after`, as they are when this begins or later.
///
/// Data files are [being made](crate::copies::Copies::make) before their row is written, and until an owner has taken them and
/// the row, or never will; where nobody knows which, they stay so until the server ends. No number is given twice. So what has a
/// row, and is found not to be in the making afterwards, was taken before that, or is nobody's for good. A page that is read from then on
/// tells which: it has no row of what was taken. What else is made meanwhile does not matter to it, and there may always be some.
async fn page(mds: &Arc<Mds>, after: Option<DataFileId>) -> Result<GarbageBatch, FsError> {
    let namespace = &mds.namespace;
    mds.read(|txn| Box::pin(async move { namespace.next_garbage(&txn, after, BATCH).await })).await
}

/// Removes the data files of `rows` where they are; the ids of those that are gone everywhere.
async fn remove(mds: &Arc<Mds>, rows: &[Garbage]) -> Vec<DataFileId> {
    let mut away: BTreeSet<StoreId> = rows.iter().flat_map(stores_of).collect();
    away.retain(|store| !dsctl::can_remove(mds, *store));
    let (rows, by_store) = removable(mds, rows, &away);
    // Until it has said that they are gone.
    away.extend(by_store.keys());
    for store in remove_at(mds, by_store).await {
        away.remove(&store);
    }
    removed(mds, &rows, &away)
}

/// Removes data files at these data servers, side by side; those at which all of them are gone.
pub(super) async fn remove_at(
    mds: &Arc<Mds>,
    by_store: BTreeMap<StoreId, Vec<ctl_data_file>>,
) -> BTreeSet<StoreId> {
    let (mut orders, mut done) = (JoinSet::new(), BTreeSet::new());
    for (store, files) in by_store {
        while orders.len() >= WIDTH {
            done.extend(orders.join_next().await.and_then(Result::ok).flatten());
        }
        let mds = Arc::clone(mds);
        orders.spawn(async move {
            for chunk in files.chunks(512) {
                if !dsctl::remove(&mds, store, chunk.to_vec()).await {
                    return None;
                }
            }
            Some(store)
        });
    }
    while let Some(one) = orders.join_next().await {
        done.extend(one.ok().flatten());
    }
    done
}

fn stores_of(row: &Garbage) -> impl Iterator<Item = StoreId> {
    row.layout.data_files().map(|file| file.store)
}

/// What can be removed now, by data server, and of which rows. A row that has to wait for one that is `away` waits with all of its
/// data files where it could not be remembered that some of them are gone.
fn removable<'a>(
    mds: &Mds,
    rows: &'a [Garbage],
    away: &BTreeSet<StoreId>,
) -> (Vec<&'a Garbage>, BTreeMap<StoreId, Vec<ctl_data_file>>) {
    let gone = mds.garbage.gone.lock();
    let mut room = mds.config.removals_remembered.saturating_sub(gone.len());
    let (mut taken, mut by_store) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
    for row in rows {
        let (before, is_away) = (gone.get(&row.layout.id), |store| away.contains(&store));
        if before.is_none() && stores_of(row).any(is_away) && !stores_of(row).all(is_away) {
            if room == 0 {
                continue;
            }
            room -= 1;
        }
        taken.push(row);
        let is_there = |file: &&DataFile| {
            !away.contains(&file.store) && !before.is_some_and(|stores| stores.contains(&file.store))
        };
        for file in row.layout.data_files().filter(is_there) {
            by_store.entry(file.store).or_default().push(ctl_data_file {
                file: row.layout.id.0,
                slot: file.slot.into(),
                generation: file.generation.into(),
            });
        }
    }
    (taken, by_store)
}

/// Remembers what is gone where of these rows, which wait for those that are `away`: the ids of those that wait for none.
fn removed(mds: &Mds, rows: &[&Garbage], away: &BTreeSet<StoreId>) -> Vec<DataFileId> {
    let mut gone = mds.garbage.gone.lock();
    let mut everywhere = Vec::new();
    for row in rows {
        let mut there = stores_of(row).filter(|store| !away.contains(store)).peekable();
        if !stores_of(row).any(|store| away.contains(&store)) {
            gone.remove(&row.layout.id);
            everywhere.push(row.layout.id);
        } else if let Some(before) = gone.get_mut(&row.layout.id) {
            before.extend(there);
        } else if there.peek().is_some() && gone.len() < mds.config.removals_remembered {
            // A data server that only now turned out to remove nothing may have left no room: once more there, then.
            gone.insert(row.layout.id, there.collect());
        }
    }
    everywhere
}

/// The last open of an unlinked file is gone.
pub(crate) async fn collect_orphan(mds: Arc<Mds>, entry: Arc<FileEntry>) {
    // A client that was away may still reclaim its open: orphans are untouchable until grace has ended. Then
    // `collect_orphans` finds this one.
    while mds.step(&entry, None, File::collect) {
        match reclaim(&mds, entry.key).await {
            Ok(()) => break,
            Err(error) => {
                tracing::warn!(%error, file = entry.key.fileid.0, "cannot collect an unlinked file; trying again");
                mds.env.clock.sleep(RETRY).await;
            }
        }
    }
}

async fn reclaim(mds: &Arc<Mds>, key: InodeKey) -> Result<(), FsError> {
    let namespace = &mds.namespace;
    let reclaimed =
        mds.write(|mut txn| Box::pin(async move { namespace.reclaim_orphan(&mut txn, &key).await })).await?;
    if let Reclaimed::Erased { garbage: Some(row), .. } = reclaimed.0 {
        queued(mds, row);
    }
    Ok(())
}

/// Unlinked files that were open when an earlier incarnation ended, and were not reclaimed.
async fn collect_orphans(mds: Arc<Mds>) {
    while mds.grace(None) != Grace::Over {
        mds.env.clock.sleep(RETRY).await;
    }
    let mut after = None;
    loop {
        let namespace = &mds.namespace;
        let page = mds.read(|txn| Box::pin(async move { namespace.orphans(&txn, after, BATCH).await })).await;
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "cannot look for unlinked files; trying again");
                mds.env.clock.sleep(RETRY).await;
                continue;
            }
        };
        let Some(last) = page.last() else { return };
        after = Some(last.fileid);
        for key in page {
            if let Some(entry) = orphan(&mds, &key).await {
                collect_orphan(Arc::clone(&mds), entry).await;
            }
        }
    }
}

/// What is held of an unlinked file; `None`: it has gone meanwhile, or cannot be read, and keeps no other.
async fn orphan(mds: &Arc<Mds>, key: &InodeKey) -> Option<Arc<FileEntry>> {
    loop {
        match mds.file(key).await {
            Ok(entry) => return Some(entry),
            // Its state goes with the server.
            Err(FsError::Stale | FsError::Kv(KvError::Closed)) => return None,
            Err(error) if passes(&error) => {
                tracing::warn!(%error, file = key.fileid.0, "cannot look at an unlinked file; trying again");
                mds.env.clock.sleep(RETRY).await;
            }
            Err(error) => {
                tracing::error!(%error, file = key.fileid.0, "an unlinked file cannot be collected");
                return None;
            }
        }
    }
}

/// The store is away or slow, or the server ends: it is not the file.
pub(in crate::layout) fn passes(error: &FsError) -> bool {
    let damaged = matches!(error, FsError::Kv(KvError::Corrupt { .. }));
    matches!(error, FsError::Busy | FsError::Fenced { .. } | FsError::Kv(_)) && !damaged
}

/// A truncation that was committed and is still to be carried out, without a ticket.
#[derive(Debug)]
pub(crate) struct Uncut {
    intent: TruncateIntent,
    /// What is left alone from now on, and who refused the last time.
    cut: Mutex<Cut>,
}

impl Uncut {
    pub(crate) fn new(intent: TruncateIntent, cut: Cut) -> Self {
        Self { intent, cut: Mutex::new(cut) }
    }

    /// A data server that is here failed to do it the last time, and nobody knows for how long.
    pub(crate) fn refused(&self) -> Option<StoreId> {
        self.cut.lock().refused
    }
}

/// Truncations that were committed and not yet carried out at the data servers.
///
/// # Errors
/// What the store says.
pub(crate) async fn uncut(
    db: &sluice_kv::Database,
    namespace: &Namespace,
) -> Result<BTreeMap<FileId, Arc<Uncut>>, FsError> {
    let mut all = BTreeMap::new();
    let mut after = None;
    loop {
        let page = db
            .run_read(sluice_kv::RunLimits::default(), |txn| {
                Box::pin(async move { namespace.truncate_intents(&txn, after, BATCH).await })
            })
            .await?;
        let last = page.len() < BATCH;
        after = page.last().map(|intent| intent.inode.fileid);
        let uncut = |intent| Arc::new(Uncut::new(intent, Cut::default()));
        all.extend(page.into_iter().map(|intent| (intent.inode.fileid, uncut(intent))));
        if last {
            return Ok(all);
        }
    }
}

/// Carries out what an earlier incarnation left of its truncations, and what data servers refused of those of this one. All others are
/// seen to under their tickets: done once more without one, they would cut off what was written since.
async fn finish_truncations(mds: Arc<Mds>) {
    loop {
        let left: Vec<_> = mds.uncut.lock().values().cloned().collect();
        for uncut in left {
            let (namespace, TruncateIntent { inode: key, size }) = (&mds.namespace, uncut.intent);
            // Until the end of this round it is as it was in the last one.
            let mut cut = uncut.cut.lock().clone();
            let inode = mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await;
            let done = match inode {
                // Failing means a data server is away: the next round tries again, without it if there is a mirror.
                Ok(inode) => match setattr::carry_out_alone(&mds, &inode, size, &mut cut).await {
                    Ok(()) => true,
                    Err(_) => {
                        if inode.layout().is_some_and(|layout| !leave::away(&mds, layout).is_empty()) {
                            leave::begin(&mds, key);
                        }
                        false
                    }
                },
                Err(error) => matches!(error, FsError::Stale),
            };
            *uncut.cut.lock() = cut;
            if done {
                // Whoever emptied the file meanwhile may have left another one.
                let mut all = mds.uncut.lock();
                if all.get(&key.fileid).is_some_and(|now| Arc::ptr_eq(now, &uncut)) {
                    all.remove(&key.fileid);
                }
            }
        }
        mds.env.clock.sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use sluice_namespace::Layout;

    use super::*;

    #[test]
    fn what_is_too_much_to_hold_is_looked_for() {
        let queue = Queue::default();
        let row = |number| Garbage {
            inode: InodeKey::ROOT,
            layout: Layout { id: DataFileId(number), components: Vec::new(), mirrors_dirty: false },
        };
        (0..HELD as u64).for_each(|number| queue.push(row(number)));
        assert!(!queue.news.lock().look);
        queue.push(row(u64::MAX));
        let (rows, look, spares, told) = queue.take();
        assert_eq!((rows.len(), look, spares, told), (HELD, true, false, HELD as u64 + 1));
        queue.push(row(0));
        assert!(!queue.news.lock().look, "it has been told");
    }

    #[test]
    fn a_round_ends_when_more_is_answered_or_all() {
        let queue = Queue::default();
        let worked = |answered, told| {
            queue.worked(answered, told);
            let Worked { rounds, told } = *queue.worked.borrow();
            (rounds, told)
        };
        assert_eq!([worked(0, 1), worked(0, 3)], [(0, 0), (0, 0)]);
        assert_eq!([worked(1, 5), worked(1, 6)], [(1, 1), (1, 1)]);
        assert_eq!([worked(6, 6), worked(6, 6)], [(2, 6), (3, 6)]);
    }
}
