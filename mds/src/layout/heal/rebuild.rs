//! What a data server held that is lost for good gets another place, where there is another copy of it.
//!
//! What is lost stays part of its file until its replacement is whole: a data server that comes back after all
//! may hold the only other copy by then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::stable_storage::StoreState;
use sluice_namespace::{Component, DataFile, DataFileId, FsError, Heal, Inode, InodeKey, Layout, StoreId};
use sluice_state::Time;

use super::lost;
use super::room::{Column, columns, with_room};
use crate::dsctl::StoreHandle;
use crate::layout::placement::{self, Candidate};
use crate::layout::{candidates, settle, turn};
use crate::server::Mds;

const LOOK: Duration = Duration::from_secs(5);
/// Nanoseconds to the next look at what a removed data server held, where nobody is given up by the clock.
const AGAIN: u64 = 60_000_000_000;
/// Owners of data files looked at at once, and the pause that leaves the store to others.
const PAGE: usize = 256;
const PAUSE: Duration = Duration::from_millis(20);

/// Watches for data servers that are lost for good, for the life of the server.
pub(crate) async fn run(mds: Arc<Mds>) {
    let patience = u64::try_from(mds.config.rebuild_after.as_nanos()).unwrap_or(u64::MAX);
    let again = if patience > 0 { patience } else { AGAIN };
    // When to look again.
    let mut looked: BTreeMap<StoreId, Time> = BTreeMap::new();
    loop {
        mds.env.clock.sleep(LOOK).await;
        let mut lost = BTreeMap::new();
        for store in mds.data_servers.known() {
            if !lost_for_good(&mds, &store, patience) {
                looked.remove(&store.id);
            } else if looked.get(&store.id).is_none_or(|at| mds.now() >= *at) {
                lost.insert(store.id, Held::default());
            }
        }
        if lost.is_empty() {
            continue;
        }
        if let Err(error) = replace_all(&mds, &mut lost, patience).await {
            tracing::warn!(%error, "cannot look for the mirrors of lost data servers");
            continue;
        }
        for (id, held) in lost {
            // From time to time: there may have been no place for some. To one that was removed nothing comes any more.
            let over = held.files == 0 && mds.data_servers.is_removed(id);
            looked.insert(id, mds.now().plus_nanos(if over { u64::MAX } else { again }));
            if held.planned > 0 {
                tracing::warn!(
                    data_server = id.0,
                    mirrors = held.planned,
                    "data server lost for good: its mirrors are rebuilt on others"
                );
            }
        }
    }
}

/// What was found of a lost data server.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Files that have a mirror there.
    files: u64,
    /// Mirrors that are to be elsewhere.
    planned: u64,
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

/// Plans a replacement for every mirror that one of these holds, in one walk over all files; as long as it is lost.
async fn replace_all(
    mds: &Arc<Mds>,
    lost: &mut BTreeMap<StoreId, Held>,
    patience: u64,
) -> Result<(), FsError> {
    let mut after: Option<DataFileId> = None;
    loop {
        let namespace = &mds.namespace;
        let page = mds
            .read(|txn| Box::pin(async move { namespace.data_file_owners(&txn, after, PAGE).await }))
            .await?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = Some(*last);
        let mut still = mds.data_servers.known();
        still.retain(|store| lost_for_good(mds, store, patience));
        for (_, key) in page {
            let inode = match without_lost(mds, key).await {
                Err(FsError::Stale) => continue,
                inode => inode?,
            };
            let Some(layout) = inode.layout() else { continue };
            let goes =
                |id: StoreId| still.iter().any(|store| store.id == id) && holds_mirror(mds, layout, id);
            for (id, held) in lost.iter_mut().filter(|(id, _)| goes(**id)) {
                held.files += 1;
                match replace(mds, &inode, layout, *id).await {
                    Ok(planned) => held.planned += planned,
                    // It has changed meanwhile, or is gone.
                    Err(FsError::Invalid | FsError::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        mds.env.clock.sleep(PAUSE).await;
    }
}

/// A file as it is when nothing is to take the place any more of what is lost.
async fn without_lost(mds: &Arc<Mds>, key: InodeKey) -> Result<Inode, FsError> {
    let inode = settle::inode(mds, key).await?;
    if !lost::is_awaited(mds, &inode) {
        return Ok(inode);
    }
    lost::give_up(mds, key).await?;
    settle::inode(mds, key).await
}

/// Of one file; how many were planned.
async fn replace(mds: &Arc<Mds>, inode: &Inode, layout: &Layout, lost: StoreId) -> Result<u64, FsError> {
    let (key, namespace) = (inode.key, &mds.namespace);
    let row = mds.read(|txn| Box::pin(async move { namespace.heal(&txn, key.fileid).await })).await?;
    let mut planned = 0;
    let chosen = candidates(mds);
    let mirrored = columns(in_use(layout), inode).filter(|column| column.files.len() > 1);
    for (slot, store) in places(mds, &chosen.list, mirrored, row.as_ref(), lost) {
        mds.write(|mut txn| {
            Box::pin(async move { namespace.plan_replacement(&mut txn, &key, slot, store).await })
        })
        .await?;
        planned += 1;
    }
    if planned > 0 {
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

/// Where what `goes` holds of these columns is to be, and what is being filled there for one of them: the slot, and
/// a data server that holds no mirror of it. Those for which there is none are left out.
pub(crate) fn places<'a>(
    mds: &Mds,
    candidates: &[Candidate],
    columns: impl Iterator<Item = Column<'a>>,
    row: Option<&Heal>,
    goes: StoreId,
) -> Vec<(u16, StoreId)> {
    let mut places = Vec::new();
    for Column { files, bytes } in columns {
        // Chosen for this column just now.
        let mut taken = Vec::new();
        for file in files.iter().filter(|file| needs_place(mds, file, row, goes)) {
            let mut free = free_for(candidates, files, row);
            free.retain(|candidate| candidate.store != goes && !taken.contains(&candidate.store));
            let free = beside(mds, with_room(free, bytes), files, goes);
            if let Some(chosen) = free.get(placement::start(&free, turn(mds))) {
                taken.push(chosen.store);
                places.push((file.slot, chosen.store));
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
