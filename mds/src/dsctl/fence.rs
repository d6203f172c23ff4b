//! Fencing by holder: durable here first, then at every data server that holds the file. docs/DESIGN §6.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluice_env::BoxFuture;
use sluice_kv::Attempt;
use sluice_namespace::stable_storage::{
    Fence, PendingFence, fences, put_fence, retire_fences, witness_of_fence,
};
use sluice_namespace::{DataFile, DataFileId, FsError, Layout, StoreId};
use sluice_state::effect::FenceId;
use sluice_state::{ClientId, Time};

use super::control::forget_fences;
use super::orders::{self, Fenced};
use super::registry::{MDS_HOLDER, StoreHandle, holder};
use crate::files::FileEntry;
use crate::server::Mds;

/// Between two attempts to reach a data server that must hear of a fence.
const RETRY: Duration = Duration::from_millis(500);
/// The same, of one that refuses from memory what it is told to.
const WRITE_DOWN: Duration = Duration::from_secs(5);
/// Rows of fences that are looked at in one transaction, for those that are over.
const RETIRED_BATCH: usize = 1000;

/// Fences a client's capabilities on one file at every data server that holds it, then tells the file's
/// machine. A data server that is away counts as fenced once it must have stopped serving by itself; its
/// row waits for it to come back. `own`: see [`Effect::Fence`](sluice_state::effect::Effect::Fence).
pub(crate) async fn fence_holder_on_file(
    mds: Arc<Mds>,
    entry: Arc<FileEntry>,
    client: ClientId,
    (fence, own): (FenceId, bool),
) {
    // No layout goes to it before the fence is in force.
    mds.reports.fenced(mds.now(), client, entry.key.fileid);
    let pending = loop {
        match record(&mds, &entry, client).await {
            Ok(pending) => break pending,
            Err(FsError::Stale) => break Vec::new(),
            Err(error) => {
                tracing::warn!(%error, file = entry.key.fileid.0, "cannot record a fence; trying again");
                mds.env.clock.sleep(RETRY).await;
            }
        }
    };
    for row in pending {
        enforce(&mds, &[row], own).await;
    }
    mds.step(&entry, Some(client), |file, ctx| ((), file.fence_done(ctx, fence)));
}

/// Writes a row per store.
async fn record(mds: &Arc<Mds>, entry: &FileEntry, client: ClientId) -> Result<Vec<PendingFence>, FsError> {
    let key = entry.key;
    let namespace = &mds.namespace;
    let epoch = mds.data_servers.epoch();
    let (rows, _) = mds
        .write(|mut txn| {
            Box::pin(async move {
                let inode = namespace.getattr(&txn, &key).await?;
                let Some(layout) = inode.layout() else { return Ok(Vec::new()) };
                let fence = Fence::HolderFile { holder: holder(client), file: layout.id };
                let mut rows = Vec::new();
                for store in stores_of(mds, layout) {
                    let row = PendingFence { store, id: mds.next_fence().await?, fence, epoch };
                    put_fence(&mut txn, &row);
                    rows.push(row);
                }
                Ok(rows)
            })
        })
        .await?;
    // After the epoch was read: whoever is fenced in the current epoch is noted in it.
    if let Some(PendingFence { fence: Fence::HolderFile { file, .. }, .. }) = rows.first() {
        mds.data_servers.turns.fenced(client, *file);
    }
    Ok(rows)
}

/// Where fences are told: of components that nobody has seen there are no handles, and what was removed serves nobody.
fn stores_of(mds: &Mds, layout: &Layout) -> BTreeSet<StoreId> {
    let removed = |store| mds.data_servers.is_removed(store);
    let seen = layout.components.iter().filter(|c| c.handed_out || c.slots.iter().any(|s| s.materialised));
    seen.flat_map(|c| &c.slots).map(|file| file.store).filter(|store| !removed(*store)).collect()
}

/// Rows that kill the handles of data files which are no part of their file any more. What was at a data server that was removed
/// has none: that serves nobody.
///
/// # Errors
/// What the metadata store says.
pub(crate) async fn of_parted(
    mds: &Arc<Mds>,
    file: DataFileId,
    parted: &[DataFile],
) -> Result<Vec<PendingFence>, FsError> {
    let (mut rows, epoch) = (Vec::new(), mds.data_servers.epoch());
    for DataFile { store, slot, generation, .. } in parted.iter().copied() {
        if !mds.data_servers.is_removed(store) {
            let fence = Fence::Generation { file, slot, generation: generation.saturating_add(1) };
            rows.push(PendingFence { store, id: mds.next_fence().await?, fence, epoch });
        }
    }
    Ok(rows)
}

/// Fences that nobody waits for are told to data servers that are there, in the background; others hear of them when they
/// register.
pub(crate) fn tell(mds: &Arc<Mds>, rows: Vec<PendingFence>) {
    let mut by_store: BTreeMap<StoreId, Vec<PendingFence>> = BTreeMap::new();
    rows.into_iter().for_each(|row| by_store.entry(row.store).or_default().push(row));
    for rows in by_store.into_values() {
        let inner = Arc::clone(mds);
        mds.spawn(async move { enforce(&inner, &rows, true).await });
    }
}

/// The same, before anything else happens: returns when they hold, or their data servers must have stopped serving anybody.
pub(crate) async fn tell_first(mds: &Arc<Mds>, rows: Vec<PendingFence>) {
    for row in rows {
        enforce(mds, &[row], false).await;
    }
}

/// A transaction that writes these: whether it committed is known, since they are to be told then.
///
/// # Errors
/// What `op` says, or the store.
pub(crate) async fn write_with<'env, T, F>(mds: &Mds, rows: &[PendingFence], op: F) -> Result<T, FsError>
where
    F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, FsError>>,
{
    let done = match rows.first() {
        Some(row) => mds.write_known(witness_of_fence(row), op).await,
        None => mds.write(op).await,
    };
    done.map(|(value, _)| value)
}

/// Drops the rows of fences that died with epochs before the oldest. Data servers that are away need not hear of them: whoever
/// registers hears of the oldest epoch before it serves anybody, and refuses by that all that they were against.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn forget_retired(mds: &Mds) -> Result<(), FsError> {
    let oldest = mds.data_servers.epochs().oldest;
    for store in mds.data_servers.known() {
        let (id, mut after) = (store.id, None);
        loop {
            let step = mds.write(|mut txn| {
                Box::pin(async move {
                    let mut next = after;
                    let done = retire_fences(&mut txn, id, oldest, &mut next, RETIRED_BATCH).await?;
                    Ok((next, done))
                })
            });
            let ((next, done), _) = step.await?;
            if done {
                break;
            }
            after = next;
        }
    }
    Ok(())
}

/// Returns when the store, which all of them are of, refuses the holders, or must have stopped serving anybody; with `own` also
/// when it is lost.
async fn enforce(mds: &Arc<Mds>, rows: &[PendingFence], own: bool) {
    let Some(id) = rows.first().map(|row| row.store) else { return };
    loop {
        let Some(store) = mds.data_servers.get(id).filter(|store| !store.is_removed()) else { return };
        match orders::fence(mds, &store, rows).await {
            Fenced::Durably => {
                if let Err(error) = forget_fences(mds, rows).await {
                    // The row stays and is told again: harmless.
                    tracing::warn!(%error, "cannot drop the row of a fence that holds");
                }
                return;
            }
            Fenced::InMemory => return mds.spawn(write_down(Arc::clone(mds), rows.to_vec())),
            Fenced::Full | Fenced::No => {}
        }
        // No one is sent to one that is lost before it has registered, and been told with that.
        if isolated(mds, &store) || (own && store.view().lost) {
            return;
        }
        mds.env.clock.sleep(RETRY).await;
    }
}

/// Fences of one store that hold in memory become durable once its device takes writes again. Nobody waits for that; and
/// it is told when it registers anyhow.
async fn write_down(mds: Arc<Mds>, rows: Vec<PendingFence>) {
    let Some(id) = rows.first().map(|row| row.store) else { return };
    loop {
        mds.env.clock.sleep(WRITE_DOWN).await;
        let store = mds.data_servers.get(id).filter(|store| !store.is_removed() && !store.view().lost);
        let Some(store) = store else { return };
        if orders::fence(&mds, &store, &rows).await == Fenced::Durably {
            _ = forget_fences(&mds, &rows).await;
            return;
        }
    }
}

/// The store has been silent for so long that it answers nobody (its own clock says so before ours does).
pub(crate) fn isolated(mds: &Mds, store: &StoreHandle) -> bool {
    let heard = store.view().last_heard;
    // Never heard in this incarnation: it may have heard our predecessor until we began.
    let since = if heard == Time::ZERO { mds.started } else { heard };
    mds.now().since(since) > mds.data_servers.isolation_nanos()
}

/// The fence of what earlier incarnations of this server read and wrote itself. All have the same tag, so it is the epoch
/// that tells them apart. `None`: all of their epochs are over, which is as good.
pub(super) fn of_predecessors(mds: &Mds, store: StoreId) -> Option<PendingFence> {
    let first = mds.data_servers.first_epoch();
    let fence = Fence::Holder { holder: MDS_HOLDER };
    // It has no row here: every registration brings it.
    let row = PendingFence { store, id: 0, fence, epoch: first.wrapping_sub(1) };
    (mds.data_servers.epochs().oldest < first).then_some(row)
}

/// Whether clients may write there, as far as earlier incarnations go: the data server may still be hearing of this one, and
/// serves on meanwhile. To one that takes no writes nobody is sent.
pub(crate) async fn predecessors_over(mds: &Mds, id: StoreId) -> bool {
    let Some(store) = mds.data_servers.get(id) else { return true };
    let over = store.update(|view| view.predecessors_over);
    over || !store.takes_writes() || end_predecessors(mds, &store).await
}

/// Before anybody writes there under this incarnation: what an earlier one had on its way must not come behind it. False
/// when that is not known yet.
pub(super) async fn end_predecessors(mds: &Mds, store: &StoreHandle) -> bool {
    // The answer to its registration says the same, and may still be on its way.
    let over = match of_predecessors(mds, store.id) {
        Some(row) => orders::fence(mds, store, &[row]).await.in_force(),
        None => orders::retire(mds, store).await,
    };
    if over {
        store.update(|view| view.predecessors_over = true);
    }
    over
}

/// A data server registered under this incarnation: what its registration told it is durable there.
pub(super) async fn registered(mds: &Arc<Mds>, store: &StoreHandle) {
    let before = store.update(|view| {
        view.predecessors_over = true;
        view.returns += u64::from(!view.fences_told);
        std::mem::replace(&mut view.fences_told, true)
    });
    if before {
        return;
    }
    // Files whose mirrors are made equal there wait for it, and their writers for them.
    mds.heals.wake();
    let id = store.id;
    let told = mds.read(|txn| Box::pin(async move { fences(&txn, id, None, 4096).await })).await;
    match told {
        Ok(rows) if rows.is_empty() => {}
        Ok(rows) => {
            // Rows made since the registration are told again: a fence twice is one fence.
            match orders::fence(mds, store, &rows).await {
                Fenced::Durably => {
                    if let Err(error) = forget_fences(mds, &rows).await {
                        tracing::warn!(%error, "cannot drop the rows of fences that hold");
                    }
                }
                Fenced::InMemory => mds.spawn(write_down(Arc::clone(mds), rows)),
                Fenced::Full | Fenced::No => {}
            }
        }
        Err(error) => tracing::warn!(%error, "cannot read the fences of a data server"),
    }
}
