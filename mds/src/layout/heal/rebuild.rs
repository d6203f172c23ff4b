//! What a data server held that is lost for good gets another place, where there is another copy of it.
//!
//! What is lost stays part of its file until its replacement is whole: a data server that comes back after all
//! may hold the only other copy by then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_kv::KvError;
use sluice_namespace::stable_storage::StoreState;
use sluice_namespace::{Component, DataFile, DataFileId, FsError, Heal, Inode, InodeKey, Layout, StoreId};
use sluice_state::Time;
use tokio::task::JoinSet;

use super::lost;
use super::room::{Column, columns, with_room};
use crate::dsctl::StoreHandle;
use crate::layout::garbage::passes;
use crate::layout::placement::{self, Candidate};
use crate::layout::{candidates, classes, settle, turn};
use crate::server::Mds;

const LOOK: Duration = Duration::from_secs(5);
/// Nanoseconds to the next look at what a removed data server held, where nobody is given up by the clock.
const AGAIN: u64 = 60_000_000_000;
/// Owners of data files looked at between two pauses, so many of them in one transaction; the others at the same time.
const PAGE: usize = 256;
const TOGETHER: usize = 16;
/// Leaves the store to others; more of it where nothing has become less safe.
const PAUSE: Duration = Duration::from_millis(1);
const LEISURE: Duration = Duration::from_millis(20);
/// Attempts at a page while the store answers and some file of it cannot be looked at.
const TRIES: u32 = 12;

/// Watches for data servers that are lost for good, for the life of the server.
pub(crate) async fn run(mds: Arc<Mds>) {
    let mut walk = Walk::new(u64::try_from(mds.config.rebuild_after.as_nanos()).unwrap_or(u64::MAX));
    let mut pause = LOOK;
    loop {
        mds.env.clock.sleep(pause).await;
        walk.join(&mds);
        pause = LOOK;
        if walk.laps.is_empty() {
            continue;
        }
        let began = mds.env.clock.now();
        match walk.page(&mds).await {
            Ok(()) if walk.is_urgent(&mds) => pause = PAUSE,
            Ok(()) => pause = LEISURE.max(mds.env.clock.now().since(began)),
            // The server ends.
            Err(FsError::Kv(KvError::Closed)) => return,
            // The walk takes long where there are many files: it goes on where it is.
            Err(error) => {
                tracing::warn!(%error, "cannot look for the mirrors of lost data servers; trying again");
            }
        }
    }
}

/// One walk over all files for all data servers that are lost, round and round for as long as there are any: nobody waits
/// for the end of another's.
#[derive(Debug)]
struct Walk {
    /// Nanoseconds of silence until a data server is lost for good; 0: it never is.
    patience: u64,
    /// When to look again for one that all files were looked at for.
    looked: BTreeMap<StoreId, Time>,
    laps: BTreeMap<StoreId, Lap>,
    /// Where it is.
    after: Option<DataFileId>,
    /// Attempts at the page that is next.
    tries: u32,
}

/// What all files are looked at for, once.
#[derive(Debug)]
struct Lap {
    /// Where the walk was when it began.
    from: Option<DataFileId>,
    /// The walk has been at the end since.
    wrapped: bool,
    began: Time,
    held: Held,
    /// No files were passed by.
    whole: bool,
}

impl Lap {
    fn new(from: Option<DataFileId>, began: Time) -> Self {
        Self { from, wrapped: false, began, held: Held::default(), whole: true }
    }

    /// Nanoseconds to the next one: there is none where nothing is held any more, and to one that was removed nothing comes.
    fn rest(&self, now: Time, again: u64, is_removed: bool) -> u64 {
        if is_removed && self.whole && self.held.files == 0 {
            return u64::MAX;
        }
        // No more than half of the time, however long it takes.
        again.max(now.since(self.began))
    }
}

/// What was found of a lost data server.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Files that have a mirror there, or may have one; those that were looked at twice are counted twice.
    files: u64,
    /// Mirrors that are to be elsewhere.
    planned: u64,
    /// Of these, such that leave their class, since no data server of it takes them.
    elsewhere: u64,
}

impl Held {
    fn add(&mut self, more: Self) {
        self.files += more.files;
        self.planned += more.planned;
        self.elsewhere += more.elsewhere;
    }
}

impl Walk {
    fn new(patience: u64) -> Self {
        let (looked, laps) = (BTreeMap::new(), BTreeMap::new());
        Self { patience, looked, laps, after: None, tries: 0 }
    }

    /// Who is lost by now takes part from here on, and who is not lost any more does not.
    fn join(&mut self, mds: &Mds) {
        if self.laps.is_empty() {
            (self.after, self.tries) = (None, 0);
        }
        for store in mds.data_servers.known() {
            let id = store.id;
            if !lost_for_good(mds, &store, self.patience) {
                self.looked.remove(&id);
                self.laps.remove(&id);
            } else if self.looked.get(&id).is_none_or(|at| mds.now() >= *at) {
                self.laps.entry(id).or_insert_with(|| Lap::new(self.after, mds.now()));
            }
        }
    }

    /// It is not only for what went with those that were removed.
    fn is_urgent(&self, mds: &Mds) -> bool {
        self.laps.keys().any(|id| !mds.data_servers.is_removed(*id))
    }

    /// The next files.
    async fn page(&mut self, mds: &Arc<Mds>) -> Result<(), FsError> {
        let (namespace, after) = (&mds.namespace, self.after);
        let page = mds
            .read(|txn| Box::pin(async move { namespace.data_file_owners(&txn, after, PAGE).await }))
            .await?;
        let Some((last, _)) = page.last() else {
            self.wrap(mds);
            return Ok(());
        };
        let lost: Vec<StoreId> = self.laps.keys().copied().collect();
        let mut looks = JoinSet::new();
        for files in page.chunks(TOGETHER) {
            let keys = files.iter().map(|(_, key)| *key).collect();
            looks.spawn(look(Arc::clone(mds), keys, lost.clone(), self.patience));
        }
        let mut failed = None;
        for (found, done) in looks.join_all().await {
            found.iter().for_each(|(id, held)| self.found(*id, *held));
            failed = done.err().or(failed);
        }
        if let Some(error) = failed {
            self.tries += 1;
            if self.tries < TRIES {
                return Err(error);
            }
            // The next lap comes by here again: there is one for all that take part.
            self.laps.values_mut().for_each(|lap| lap.whole = false);
            tracing::warn!(%error, "files are passed by that cannot be looked at");
        }
        (self.after, self.tries) = (Some(*last), 0);
        self.end(mds, |lap, after| lap.wrapped && lap.from <= after);
        Ok(())
    }

    fn found(&mut self, id: StoreId, found: Held) {
        let Some(Lap { held, .. }) = self.laps.get_mut(&id) else { return };
        if held.planned == 0 && found.planned > 0 {
            tracing::warn!(
                data_server = id.0,
                "data server lost for good: its mirrors are rebuilt on others"
            );
        }
        if held.elsewhere == 0 && found.elsewhere > 0 {
            tracing::warn!(
                data_server = id.0,
                "no data server of the lost one's class takes some of its mirrors: they are rebuilt on others"
            );
        }
        held.add(found);
    }

    /// All files were looked at behind where each began: those before that are next.
    fn wrap(&mut self, mds: &Mds) {
        self.after = None;
        self.end(mds, |lap, _| lap.wrapped || lap.from.is_none());
        self.laps.values_mut().for_each(|lap| lap.wrapped = true);
    }

    /// For these all files were looked at. From time to time they are again: there may have been no place for some.
    fn end(&mut self, mds: &Mds, is_over: impl Fn(&Lap, Option<DataFileId>) -> bool) {
        let (now, after) = (mds.now(), self.after);
        let again = if self.patience > 0 { self.patience } else { AGAIN };
        for (id, lap) in self.laps.extract_if(.., |_, lap| is_over(lap, after)) {
            let rest = lap.rest(now, again, mds.data_servers.is_removed(id));
            self.looked.insert(id, now.plus_nanos(rest));
            if lap.held.planned > 0 {
                let (mirrors, other_classes) = (lap.held.planned, lap.held.elsewhere);
                tracing::info!(
                    data_server = id.0,
                    mirrors,
                    other_classes,
                    "all files of a lost data server were found"
                );
            }
        }
    }
}

fn lost_for_good(mds: &Mds, store: &StoreHandle, patience: u64) -> bool {
    let view = store.view();
    match view.intent {
        StoreState::Active => {
            let silent = mds.now().since(view.last_heard.max(mds.started));
            patience > 0 && view.lost && silent > patience
        }
        // One that is drained is emptied by those who do that.
        StoreState::Draining => false,
        // Files may have had another mirror there all the same.
        StoreState::Removed => true,
    }
}

/// Looks at some files for these data servers, as long as they are lost; what was found, and why not at all of them, if the
/// store says so.
async fn look(
    mds: Arc<Mds>,
    keys: Vec<InodeKey>,
    mut lost: Vec<StoreId>,
    patience: u64,
) -> (BTreeMap<StoreId, Held>, Result<(), FsError>) {
    let mut found = BTreeMap::new();
    let files = match read(&mds, &keys).await {
        Ok(files) => files,
        Err(error) => return (found, Err(error)),
    };
    let is_lost =
        |id: &StoreId| mds.data_servers.get(*id).is_some_and(|store| lost_for_good(&mds, &store, patience));
    lost.retain(is_lost);
    for (key, inode) in files {
        let done = match inode {
            Ok(inode) => replace_all(&mds, inode, &lost, &mut found).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(()) | Err(FsError::Stale) => {}
            Err(error) if passes(&error) => return (found, Err(error)),
            Err(error) => {
                tracing::error!(%error, file = key.fileid.0, "cannot look for the mirrors of a file");
                // It may have one at any of them.
                lost.iter().for_each(|id| found.entry(*id).or_default().files += 1);
            }
        }
    }
    (found, Ok(()))
}

/// What each of them is, or why it cannot be read.
async fn read(mds: &Arc<Mds>, keys: &[InodeKey]) -> Result<Vec<(InodeKey, Result<Inode, FsError>)>, FsError> {
    let namespace = &mds.namespace;
    mds.read(|txn| {
        Box::pin(async move {
            let mut files = Vec::with_capacity(keys.len());
            for key in keys {
                match namespace.getattr(&txn, key).await {
                    Err(error) if passes(&error) => return Err(error),
                    inode => files.push((*key, inode)),
                }
            }
            Ok(files)
        })
    })
    .await
}

/// Plans a replacement for every mirror of a file that one of these holds.
async fn replace_all(
    mds: &Arc<Mds>,
    read: Inode,
    lost: &[StoreId],
    found: &mut BTreeMap<StoreId, Held>,
) -> Result<(), FsError> {
    let inode = without_lost(mds, read).await?;
    let Some(layout) = inode.layout() else { return Ok(()) };
    for id in lost.iter().filter(|id| holds_mirror(mds, layout, **id)) {
        let held = found.entry(*id).or_default();
        held.files += 1;
        match replace(mds, &inode, layout, *id).await {
            Ok(planned) => held.add(planned),
            // It has changed meanwhile, or is gone.
            Err(FsError::Invalid | FsError::Stale) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A file as it is when nothing is to take the place any more of what is lost.
async fn without_lost(mds: &Arc<Mds>, inode: Inode) -> Result<Inode, FsError> {
    if !lost::is_awaited(mds, &inode) {
        return Ok(inode);
    }
    lost::give_up(mds, inode.key).await?;
    settle::inode(mds, inode.key).await
}

/// Of one file; how many were planned.
async fn replace(mds: &Arc<Mds>, inode: &Inode, layout: &Layout, lost: StoreId) -> Result<Held, FsError> {
    let (key, namespace) = (inode.key, &mds.namespace);
    let row = mds.read(|txn| Box::pin(async move { namespace.heal(&txn, key.fileid).await })).await?;
    let mut planned = Held::default();
    let chosen = candidates(mds);
    let mirrored = columns(in_use(layout), inode).filter(|column| column.files.len() > 1);
    for Place { slot, store, leaves } in places(mds, &chosen.list, mirrored, row.as_ref(), lost) {
        mds.write(|mut txn| {
            Box::pin(async move { namespace.plan_replacement(&mut txn, &key, slot, store).await })
        })
        .await?;
        planned.planned += 1;
        planned.elsewhere += u64::from(leaves);
    }
    if planned.planned > 0 {
        mds.heals.queue(key);
    }
    Ok(planned)
}

/// A part that nobody has seen is placed anew when it is first used.
pub(super) fn in_use(layout: &Layout) -> impl Iterator<Item = &Component> {
    layout.components.iter().filter(|c| c.handed_out || c.slots.iter().any(|s| s.materialised))
}

/// There is, or may be, another copy of it somewhere.
fn holds_mirror(mds: &Mds, layout: &Layout, store: StoreId) -> bool {
    let mirrored = in_use(layout).filter(|component| component.mirrors > 1);
    let mut columns = mirrored.flat_map(|component| component.slots.chunks(component.mirrors.into()));
    columns
        .any(|column| column.iter().any(|file| file.store == store) && lost::went_with(mds, column).is_none())
}

/// Data servers that may take the place of one of a column: none that has or gets a mirror of it.
pub(super) fn free_for(candidates: &[Candidate], column: &[DataFile], row: Option<&Heal>) -> Vec<Candidate> {
    let has = |store| column.iter().any(|mirror| mirror.store == store);
    let gets = |store| column.iter().filter_map(|file| planned(row, file)).any(|new| new.store == store);
    candidates.iter().filter(|candidate| !has(candidate.store) && !gets(candidate.store)).copied().collect()
}

/// Of these, data servers on other hosts than the column's other mirrors, if there are any: what `goes` does not count.
pub(super) fn beside(mds: &Mds, free: Vec<Candidate>, column: &[DataFile], goes: StoreId) -> Vec<Candidate> {
    let stay = column.iter().filter(|file| file.store != goes);
    let hosts = stay.filter_map(|file| mds.data_servers.get(file.store)?.update(|view| view.host()));
    placement::elsewhere(free, &hosts.collect::<Vec<_>>())
}

/// What is to take the place of a data file.
fn planned(row: Option<&Heal>, file: &DataFile) -> Option<DataFile> {
    row.and_then(|row| row.replacement(file.slot)).filter(|_| file.moving)
}

/// A data file is to be elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: u16,
    /// It holds no mirror of it.
    pub(crate) store: StoreId,
    /// No data server of its class takes it.
    pub(crate) leaves: bool,
}

/// Where what `goes` holds of these columns is to be, and what is being filled there for one of them. Those for which there is
/// no place are left out.
pub(crate) fn places<'a>(
    mds: &Mds,
    candidates: &[Candidate],
    columns: impl Iterator<Item = Column<'a>>,
    row: Option<&Heal>,
    goes: StoreId,
) -> Vec<Place> {
    let mut places = Vec::new();
    for Column { files, bytes } in columns {
        // Chosen for this column just now.
        let mut taken = Vec::new();
        for file in files.iter().filter(|file| needs_place(mds, file, row, goes)) {
            let mut free = free_for(candidates, files, row);
            free.retain(|candidate| candidate.store != goes && !taken.contains(&candidate.store));
            let free = classes::first(mds, free, file.store, bytes);
            let free = beside(mds, with_room(free, bytes), files, goes);
            if let Some(chosen) = free.get(placement::start(&free, turn(mds))) {
                taken.push(chosen.store);
                let leaves = !classes::like(mds, file.store).takes(chosen.class);
                places.push(Place { slot: file.slot, store: chosen.store, leaves });
            }
        }
    }
    places
}

/// It is at `goes` and nothing is on its way to replace it, or what is goes there.
pub(crate) fn needs_place(mds: &Mds, file: &DataFile, row: Option<&Heal>, goes: StoreId) -> bool {
    let under_way = |new: &DataFile| {
        let store = mds.data_servers.get(new.store);
        new.store != goes && store.is_some_and(|store| !store.given_up() && store.is_active())
    };
    match planned(row, file) {
        Some(new) => (file.store == goes || new.store == goes) && !under_way(&new),
        None => file.store == goes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_lap_that_found_nothing_is_the_last_one() {
        const LONG: u64 = 3 * AGAIN;
        let rest = |whole, files, is_removed| {
            let held = Held { files, ..Held::default() };
            let lap = Lap { held, whole, ..Lap::new(None, Time(5)) };
            lap.rest(Time(5 + LONG), AGAIN, is_removed)
        };
        assert_eq!(rest(true, 0, true), u64::MAX);
        assert_eq!([rest(false, 0, true), rest(true, 1, true), rest(true, 0, false)], [LONG; 3]);
        assert_eq!(Lap::new(None, Time(5)).rest(Time(6), AGAIN, false), AGAIN);
    }
}
