//! Room for what takes the place of a data file, and for a mirror that missed writes. What does not fit is not filled any further
//! where it was to go: it goes elsewhere, or waits, and what is there of it is removed, unless it is the mirror itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_namespace::{Component, DataFile, DataFileId, FileId, FsError, Inode, InodeKey, StoreId};
use sluice_state::Time;

use super::anew;
use super::job::{Outcome, look};
use super::plan::{Pair, Plan};
use super::rebuild::{beside, free_for};
use crate::dsctl::resync;
use crate::layout::placement::{self, Candidate};
use crate::layout::{Candidates, candidates, classes, turn};
use crate::server::Mds;

/// Nanoseconds until a data server that ran full under a file is tried for it again: what it says of its free space was
/// not true for this one, and two of them must not take turns.
const AGAIN: u64 = 600_000_000_000;
/// Remembered at most; beyond it all are forgotten, which costs an attempt.
const MOST: usize = 1 << 14;

/// Data servers that ran full while they were filled for a file.
#[derive(Debug, Default)]
pub(crate) struct Full(Mutex<BTreeMap<(FileId, StoreId), Time>>);

impl Full {
    fn note(&self, file: FileId, store: StoreId, now: Time) {
        let mut full = self.0.lock();
        if full.len() >= MOST {
            full.clear();
        }
        full.insert((file, store), now);
    }

    fn has(&self, file: FileId, store: StoreId, now: Time) -> bool {
        self.0.lock().get(&(file, store)).is_some_and(|since| now.since(*since) < AGAIN)
    }

    /// All of it is where it was to go.
    pub(super) fn forget(&self, file: FileId) {
        self.0.lock().retain(|(other, _), _| *other != file);
    }
}

/// Data files that hold the same bytes, and how many those are at most.
pub(crate) struct Column<'a> {
    pub(crate) files: &'a [DataFile],
    pub(crate) bytes: u64,
}

/// The columns of some components of a file.
pub(crate) fn columns<'a>(
    components: impl Iterator<Item = &'a Component>,
    inode: &'a Inode,
) -> impl Iterator<Item = Column<'a>> {
    // Holes are in the size, and never more is copied than there is.
    let (size, space) = (inode.size(), inode.file().map_or(0, |file| file.space_used));
    components.flat_map(move |component| {
        let columns = component.slots.chunks(usize::from(component.mirrors.max(1))).enumerate();
        let bytes = move |index| component.bytes_of_column(index, size).min(space);
        columns.map(move |(index, files)| Column { files, bytes: bytes(index) })
    })
}

/// Those that have room for so much. Where none has it is the one that has most: before it is filled it is looked at how
/// much there is to copy.
pub(super) fn with_room(mut free: Vec<Candidate>, bytes: u64) -> Vec<Candidate> {
    let most = free.iter().map(|candidate| candidate.free_bytes).max().unwrap_or(0);
    free.retain(|candidate| candidate.free_bytes >= bytes.min(most));
    free
}

/// Whether what a plan fills has room where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Enough,
    /// Some of it goes elsewhere by now: the plan is not the right one any more.
    Elsewhere,
    /// Nobody has room for some of it, which is not in the plan any more: a data file of so many bytes, and maybe others.
    Nowhere(u64),
}

/// Looks for room before anybody's layouts are taken back.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn find(mds: &Arc<Mds>, inode: &Inode, plan: &mut Plan) -> Result<Room, FsError> {
    let mut most = None;
    for pair in plan.pairs.clone().into_iter().filter(Pair::may_go_elsewhere) {
        let Some(Lacking { bytes, there }) = lacking(mds, inode, plan.id, &pair).await else { continue };
        if elsewhere(mds, inode, &pair, bytes).await? {
            return Ok(Room::Elsewhere);
        }
        // What was filled before is in the way of others.
        if there > 0 && pair.replaces() {
            anew::plan(mds, &inode.key, &pair, pair.target.store).await?;
        }
        plan.leave_out(&pair);
        most = most.max(Some(bytes));
    }
    Ok(most.map_or(Room::Enough, Room::Nowhere))
}

/// What there is no room for, and how much of it is where it was to go.
struct Lacking {
    bytes: u64,
    there: u64,
}

/// `None`: there is room. Where a data server does not say, that shows when it is filled.
async fn lacking(mds: &Mds, inode: &Inode, id: DataFileId, pair: &Pair) -> Option<Lacking> {
    let store = mds.data_servers.get(pair.target.store)?;
    let free = store.update(|view| view.capacity.free_bytes);
    let ran_full = mds.heals.full.has(inode.key.fileid, store.id, mds.now());
    if !ran_full && inode.size() <= free {
        return None;
    }
    let (source, target) =
        tokio::join!(resync::stat(mds, id, &pair.source), resync::stat(mds, id, &pair.target));
    let (bytes, there) = (source?.allocated_bytes, target?.allocated_bytes);
    (ran_full || bytes.saturating_sub(there) > free).then_some(Lacking { bytes, there })
}

/// Plans it for another data server that has room, or for where it was. False: there is none.
async fn elsewhere(mds: &Arc<Mds>, inode: &Inode, pair: &Pair, bytes: u64) -> Result<bool, FsError> {
    let (key, row) = (inode.key, look(mds, inode.key).await?.1);
    let mut columns = inode.layout().into_iter().flat_map(|layout| layout.columns());
    let column = columns.find(|column| column.iter().any(|file| file.slot == pair.old.slot));
    let (Some(row), Some(column)) = (row, column) else { return Ok(true) };
    let wanted = classes::like(mds, pair.old.store);
    // The choice is kept until it is planned.
    let find = |own: bool| {
        let Candidates { list, placing } = candidates(mds);
        let mut free = free_for(&list, column, Some(&row));
        let full = |store| mds.heals.full.has(key.fileid, store, mds.now());
        free.retain(|candidate| candidate.free_bytes >= bytes && !full(candidate.store));
        free.retain(|candidate| wanted.takes(candidate.class) == own);
        let free = beside(mds, free, column, pair.old.store);
        free.get(placement::start(&free, turn(mds))).map(|found| (found.store, placing))
    };
    let mut found = find(true);
    if found.is_none() {
        // Nobody waits for what data servers have to say.
        if back(mds, inode, pair).await? {
            return Ok(true);
        }
        // A copy in another class is better than none.
        if pair.old.stale || classes::may_leave(mds, pair.old.store) {
            found = find(false);
        }
    }
    let Some((store, _placing)) = found else { return Ok(false) };
    tracing::info!(
        file = key.fileid.0,
        data_server = pair.target.store.0,
        instead = store.0,
        "there is no room where a data file was to go: it goes elsewhere"
    );
    anew::plan(mds, &key, pair, store).await?;
    Ok(true)
}

/// A mirror that missed writes, and was to go elsewhere, is made equal where it is, if there is room by now.
async fn back(mds: &Arc<Mds>, inode: &Inode, pair: &Pair) -> Result<bool, FsError> {
    let (namespace, key, old) = (&mds.namespace, inode.key, pair.old);
    let takes = mds.data_servers.get(old.store).is_some_and(|store| store.is_active() && store.takes_heals());
    let Some(layout) = inode.layout().filter(|_| pair.replaces() && old.stale && takes) else {
        return Ok(false);
    };
    if lacking(mds, inode, layout.id, &Pair { target: old, ..*pair }).await.is_some() {
        return Ok(false);
    }
    let store = pair.target.store;
    tracing::info!(
        file = key.fileid.0,
        data_server = store.0,
        instead = old.store.0,
        "there is no room where a mirror was to go: it stays where it is"
    );
    let withdrawn = mds.write(|mut txn| {
        Box::pin(async move { namespace.withdraw_replacement(&mut txn, &key, old.slot, store).await })
    });
    anew::changed(mds, withdrawn.await).map(|()| true)
}

/// A data server became full while it was filled. What it has of it goes, whether another one takes it or not: it is in
/// the way of all who write there. A mirror that missed writes goes when another one has taken its place.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn ran_out(
    mds: &Arc<Mds>,
    key: InodeKey,
    id: DataFileId,
    pair: &Pair,
) -> Result<Outcome, FsError> {
    mds.heals.full.note(key.fileid, pair.target.store, mds.now());
    let (inode, _) = look(mds, key).await?;
    if inode.layout().is_none_or(|layout| layout.id != id) {
        return Ok(Outcome::Again);
    }
    let source = resync::stat(mds, id, &pair.source).await;
    let bytes = source.map_or(inode.size(), |source| source.allocated_bytes);
    if elsewhere(mds, &inode, pair, bytes).await? {
        return Ok(Outcome::Again);
    }
    if pair.replaces() {
        anew::plan(mds, &key, pair, pair.target.store).await?;
    }
    Ok(Outcome::NoRoom(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_ran_full_under_a_file_is_left_alone_for_ten_minutes() {
        let (full, at) = (Full::default(), Time::from_secs);
        full.note(FileId(1), StoreId(3), at(100));
        assert!(full.has(FileId(1), StoreId(3), at(699)));
        assert!(!full.has(FileId(1), StoreId(3), at(700)));
        assert!(!full.has(FileId(1), StoreId(4), at(100)) && !full.has(FileId(2), StoreId(3), at(100)));
        full.forget(FileId(1));
        assert!(!full.has(FileId(1), StoreId(3), at(101)));
        (0..=MOST as u64).for_each(|file| full.note(FileId(file), StoreId(1), at(1)));
        assert_eq!(full.0.lock().len(), 1);
    }

    #[test]
    fn who_has_room_is_preferred_and_without_any_who_has_most() {
        let of = |store, free_bytes| Candidate { store: StoreId(store), free_bytes, host: None, class: None };
        let all = vec![of(1, 10), of(2, 30), of(3, 20)];
        assert_eq!(with_room(all.clone(), 20), [of(2, 30), of(3, 20)]);
        assert_eq!(with_room(all.clone(), 31), [of(2, 30)]);
        assert_eq!(with_room(all.clone(), 0), all);
        assert_eq!(with_room(Vec::new(), 5), []);
    }
}
