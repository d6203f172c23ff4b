//! Going on without a mirror whose data server is away: durable, and in force before anybody writes without it.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use sluice_env::BoxFuture;
use sluice_namespace::stable_storage::{Fence, PendingFence, put_fence};
use sluice_namespace::{DataFile, DataFileId, FsError, Inode, InodeKey, Layout};
use sluice_state::file::{Error, File, Intent, LayoutFilter};
use sluice_xdr::nfs4::nfsstat4;

use crate::dsctl::{self, epochs};
use crate::files::FileEntry;
use crate::layout::settle;
use crate::server::Mds;

/// Of attempts to have the layouts back; each waits some seconds by itself.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Has the mirrors of a file left behind whose data servers are given up, in the background. Its layouts are
/// taken back first: a data server that is alive but cut off from us must not be read under one, once others
/// are written without it.
pub(crate) fn begin(mds: &Arc<Mds>, key: InodeKey) {
    if !mds.heals.leaving.lock().insert(key.fileid) {
        return;
    }
    let inner = Arc::clone(mds);
    mds.spawn(async move {
        match leave(&inner, key).await {
            Ok(()) | Err(FsError::Stale | FsError::Invalid) => {}
            Err(error) => tracing::warn!(%error, file = key.fileid.0, "cannot leave a mirror behind yet"),
        }
        inner.heals.leaving.lock().remove(&key.fileid);
    });
}

/// A data server was given up: the files whose writers wait go on without it. Who asks waits twice as long each
/// time before it asks again (Linux), and is not to find only then that something is to be done first.
pub(crate) fn begin_wanted(mds: &Arc<Mds>) {
    for key in mds.heals.take_wanted() {
        begin(mds, key);
    }
}

/// The same for the holder of a ticket that keeps LAYOUTGETs and I/O through this server away: one step of it,
/// to be repeated until it is done.
pub(crate) async fn under_ticket(mds: &Arc<Mds>, entry: &Arc<FileEntry>) {
    let (namespace, key) = (&mds.namespace, entry.key);
    let inode = mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await;
    let Ok(inode) = inode else { return };
    let left = left_behind(mds, &inode).await;
    if left.is_empty() {
        return;
    }
    if entry.peek(File::has_layouts) {
        mds.step(entry, None, |file, ctx| ((), file.recall_layouts(ctx, LayoutFilter::All, true)));
    } else if let Err(error) = mark(mds, &inode, &left).await {
        tracing::warn!(%error, file = key.fileid.0, "cannot leave a mirror behind yet");
    }
}

/// The same, to its end.
///
/// # Errors
/// What the store says; Busy when layouts did not come back.
pub(super) async fn leave(mds: &Arc<Mds>, key: InodeKey) -> Result<(), FsError> {
    if is_left(mds, key).await? {
        return Ok(());
    }
    let act = |inode: Inode| -> BoxFuture<'static, _> {
        let mds = Arc::clone(mds);
        Box::pin(async move {
            let left = left_behind(&mds, &inode).await;
            mark(&mds, &inode, &left).await.map(Ok::<(), Infallible>)
        })
    };
    under_relayout(mds, key, |_| false, act).await.map(drop)
}

/// Leaves behind mirrors that are here, since others are the truth: how many. `others` says which, or why none, of the file as
/// it is when nobody holds a layout of it, and nothing goes on with its data.
///
/// # Errors
/// As [`leave`]; Invalid when the file has changed.
pub(crate) async fn leave_others<E: Send + 'static>(
    mds: &Arc<Mds>,
    key: InodeKey,
    others: impl Fn(Inode) -> BoxFuture<'static, Result<Vec<DataFile>, E>> + Send + Sync,
) -> Result<Result<usize, E>, FsError> {
    let act = |inode: Inode| -> BoxFuture<'static, _> {
        let (mds, others) = (Arc::clone(mds), others(inode.clone()));
        Box::pin(async move {
            Ok(match others.await {
                Ok(left) => {
                    mark(&mds, &inode, &left).await?;
                    Ok(left.len())
                }
                Err(why) => Err(why),
            })
        })
    };
    // The end of an unclean layout is settled first: it says that mirrors may differ.
    under_relayout(mds, key, File::needs_settle, act).await
}

/// Has `act` do something with the file, as it is when nobody holds a layout of it and nothing goes on with its data, and when it
/// is not, or no more, `unsettled`; or say why it did nothing.
///
/// # Errors
/// As [`leave`], and what `act` says.
pub(crate) async fn under_relayout<T: Send, E: Send>(
    mds: &Arc<Mds>,
    key: InodeKey,
    unsettled: fn(&File) -> bool,
    act: impl Fn(Inode) -> BoxFuture<'static, Result<Result<T, E>, FsError>> + Send + Sync,
) -> Result<Result<T, E>, FsError> {
    let entry = mds.file(&key).await?;
    for _ in 0..TRIES {
        match mds.prepare(&entry, &Intent::Relayout).await {
            Ok(held) if entry.peek(unsettled) => {
                drop(held);
                settle::settle_size(mds, &key).await?;
                mds.env.clock.sleep(PAUSE).await;
            }
            Ok(held) => {
                let done = act(settle::inode(mds, key).await?).await?;
                if done.is_ok() {
                    drop(held.commit());
                }
                return Ok(done);
            }
            Err(Error::Stale) => return Err(FsError::Stale),
            Err(_) => mds.env.clock.sleep(PAUSE).await,
        }
    }
    Err(FsError::Busy)
}

/// [`leave`] where a data server holds what nobody is to see: of its mirrors those that have another one are filled anew.
///
/// # Errors
/// As [`leave`]; Busy, too, when the other one does not say that it is not lost.
pub(crate) async fn damaged(mds: &Arc<Mds>, key: InodeKey) -> Result<(), FsError> {
    leave(mds, key).await?;
    if is_left(mds, key).await? { Ok(()) } else { Err(FsError::Busy) }
}

/// Nothing is [`away`] of it.
async fn is_left(mds: &Arc<Mds>, key: InodeKey) -> Result<bool, FsError> {
    let inode = settle::inode(mds, key).await?;
    Ok(inode.layout().is_none_or(|layout| away(mds, layout).is_empty()))
}

/// Whether what a data server has of a file is not what was written there.
pub(crate) fn is_damaged(mds: &Mds, layout: &Layout, file: &DataFile) -> bool {
    mds.data_servers.get(file.store).is_some_and(|store| store.is_damaged(layout.id, file.slot))
}

/// Whether there may be no more writing to what a data server has of a file, though it is here.
fn is_useless(mds: &Mds, layout: &Layout, file: &DataFile) -> bool {
    let refuses = |store: Arc<dsctl::StoreHandle>| store.refuses(layout.id, file.slot, mds.now());
    // Where mirrors are equal another one is read, and this one takes writes.
    let unread = || layout.mirrors_dirty && is_unreadable(mds, layout.id, file, false);
    is_damaged(mds, layout, file) || mds.data_servers.get(file.store).is_some_and(refuses) || unread()
}

/// Whether a data server could not read some of what it has of a file; `anew`, nor when that had been written anew.
pub(super) fn is_unreadable(mds: &Mds, id: DataFileId, file: &DataFile, anew: bool) -> bool {
    let store = mds.data_servers.get(file.store);
    store.is_some_and(|store| store.is_unreadable(id, file.slot, anew, mds.now()))
}

/// Good mirrors that are given up, or damaged, or refuse writes, while another copy is here.
pub(crate) fn away(mds: &Mds, layout: &Layout) -> Vec<DataFile> {
    let here = |file: &DataFile| {
        let store = mds.data_servers.get(file.store);
        store.is_some_and(|store| store.takes_writes()) && !is_useless(mds, layout, file)
    };
    let given_up = |file: &DataFile| {
        let store = mds.data_servers.get(file.store);
        store.is_none_or(|store| store.given_up()) || is_useless(mds, layout, file)
    };
    layout
        .columns()
        .filter(|column| column.iter().any(|file| !file.stale && here(file)))
        .flat_map(|column| column.iter().filter(|file| !file.stale && given_up(file)))
        .copied()
        .collect()
}

/// What whoever wrote `bytes` through this server is told when a data file would not take it: DELAY where another one has what that
/// has lost, or cannot write, or is not here to have, and the file goes on without it.
pub(crate) async fn instead_of(
    mds: &Arc<Mds>,
    inode: &Inode,
    bytes: Range<u64>,
    status: nfsstat4,
) -> nfsstat4 {
    let Some(layout) = inode.layout() else { return status };
    match status {
        nfsstat4::NFS4ERR_IO => {
            for file in mirrored(layout, &bytes) {
                // What is lost is remembered; who does not say may be here again when the client is.
                let _ = dsctl::is_lost(mds, layout.id, &file).await;
            }
        }
        // What is lost, or refuses, was found before.
        nfsstat4::NFS4ERR_ROFS | nfsstat4::NFS4ERR_DELAY => {}
        _ => return status,
    }
    if away(mds, layout).is_empty() {
        return status;
    }
    begin(mds, inode.key);
    nfsstat4::NFS4ERR_DELAY
}

/// What once was there of these bytes, and should be, of which there is more than one.
fn mirrored(layout: &Layout, bytes: &Range<u64>) -> Vec<DataFile> {
    let written = layout.components.iter().filter(|c| c.start < bytes.end && bytes.start < c.end);
    let several = written.filter(|component| component.mirrors > 1);
    let files = several.flat_map(|component| &component.slots);
    files.filter(|file| !file.stale && file.materialised).copied().collect()
}

/// Those of [`away`] that can be done without: nobody may know yet that the copy which is here is lost, and who has a handle of
/// before a restart may read what is to be left behind.
async fn left_behind(mds: &Mds, inode: &Inode) -> Vec<DataFile> {
    let Some(layout) = inode.layout() else { return Vec::new() };
    let mut asked = Vec::new();
    loop {
        // Looked at anew after each answer: meanwhile one that was away may have come back, and the one that was asked gone.
        let mut left = away(mds, layout);
        let without = |column: &&[DataFile]| column.iter().any(|file| left.contains(file));
        let relied_on = |file: &&DataFile| !file.stale && file.materialised && !left.contains(file);
        let mut unasked = layout.columns().filter(without).flatten().filter(relied_on);
        let Some(file) = unasked.find(|file| !asked.contains(*file)) else {
            left.retain(|file| !epochs::takes_old_handles_unheard(mds, file.store));
            return left;
        };
        if dsctl::is_lost(mds, layout.id, file).await.is_err() {
            // It does not say: whoever waits asks again.
            return Vec::new();
        }
        asked.push(*file);
    }
}

/// Marks mirrors that will miss writes, and kills the handles that others may still hold of them: a data
/// server that comes back must not serve old data under them.
async fn mark(mds: &Arc<Mds>, inode: &Inode, files: &[DataFile]) -> Result<(), FsError> {
    if files.is_empty() {
        return Ok(());
    }
    let slots: Vec<u16> = files.iter().map(|file| file.slot).collect();
    let (namespace, key, slots) = (&mds.namespace, &inode.key, &slots);
    let rows = &fences(mds, inode, files).await?;
    let fences = dsctl::write_with_fences(mds, rows, |mut txn| {
        Box::pin(async move {
            let inode = namespace.leave_behind(&mut txn, key, slots).await?;
            let fences = rows.iter().filter_map(|row| as_it_is(row, &inode)).collect::<Vec<_>>();
            fences.iter().for_each(|row| put_fence(&mut txn, row));
            Ok(fences)
        })
    })
    .await?;
    // It may be here, and damaged. Nobody of this incarnation holds a layout.
    if files.iter().any(|file| epochs::takes_old_handles(mds, file.store)) {
        dsctl::tell_fences_first(mds, fences).await;
    } else {
        dsctl::tell_fences(mds, fences);
    }
    let stores: Vec<u16> = files.iter().map(|file| file.store.0).collect();
    tracing::warn!(file = key.fileid.0, data_servers = ?stores, "mirrors left behind: they miss writes from now on");
    mds.heals.queue(*key);
    Ok(())
}

/// Of these mirrors as they are now.
async fn fences(mds: &Mds, inode: &Inode, files: &[DataFile]) -> Result<Vec<PendingFence>, FsError> {
    let (mut fences, epoch) = (Vec::new(), mds.data_servers.epoch());
    let Some(layout) = inode.layout() else { return Ok(fences) };
    // One that was removed serves nobody.
    for file in files.iter().filter(|file| !mds.data_servers.is_removed(file.store)) {
        let fence = Fence::Generation { file: layout.id, slot: file.slot, generation: file.generation };
        fences.push(PendingFence { store: file.store, id: mds.next_fence().await?, fence, epoch });
    }
    Ok(fences)
}

/// The same for a mirror as the transaction leaves it.
fn as_it_is(row: &PendingFence, inode: &Inode) -> Option<PendingFence> {
    let Fence::Generation { slot, .. } = row.fence else { return None };
    let layout = inode.layout()?;
    let left = layout.data_files().find(|file| file.slot == slot)?;
    let fence = Fence::Generation { file: layout.id, slot, generation: left.generation };
    Some(PendingFence { fence, ..*row })
}
