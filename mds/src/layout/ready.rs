//! Makes a file's layout ready before data goes anywhere: re-places what no client has seen and whose data
//! servers are gone, remembers what is handed out, marks mirrors that will miss writes. All durable before
//! the first byte. docs/DESIGN §6, §8.

use std::ops::Range;
use std::sync::Arc;

use sluice_namespace::stable_storage::{Fence, PendingFence, put_fence};
use sluice_namespace::{
    Component, DataFile, FsError, Inode, InodeKey, Layout, LayoutNeed, LayoutPolicy, Sequence, lease_block,
};
use sluice_xdr::nfs4::nfsstat4;

use super::placement;
use crate::error::fs_status;
use crate::server::Mds;

/// What is about to happen to a file's data. The caller holds a ticket that keeps truncations away.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    /// Every component that it touches counts as handed out afterwards.
    pub(crate) bytes: Range<u64>,
    pub(crate) write: bool,
    /// A read-write layout goes out, and the store does not know yet of any.
    pub(crate) persist_rw: bool,
}

/// The file, ready for this use. Costs one read when it was ready before.
///
/// # Errors
/// STALE, WRONG_TYPE, DELAY; NOSPC when there is no place for its data.
pub(crate) async fn ready(mds: &Arc<Mds>, key: InodeKey, want: &Use) -> Result<Inode, nfsstat4> {
    let mut inode = read(mds, key).await?;
    if inode.file().is_none() {
        return Err(nfsstat4::NFS4ERR_WRONG_TYPE);
    }
    for index in orphaned(mds, &inode, want) {
        replace(mds, key, index).await?;
        inode = read(mds, key).await?;
    }
    if want.persist_rw || inode.layout().is_none_or(|layout| touched(layout, want).any(|c| !c.handed_out)) {
        inode = prepare(mds, &inode, want).await?;
    }
    let missing = match inode.layout() {
        Some(layout) if want.write => missing(mds, layout, want),
        _ => Vec::new(),
    };
    if !missing.is_empty() {
        inode = leave_behind(mds, &inode, &missing).await?;
    }
    Ok(inode)
}

async fn read(mds: &Arc<Mds>, key: InodeKey) -> Result<Inode, nfsstat4> {
    let namespace = &mds.namespace;
    let inode = mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await;
    inode.map_err(|error| fs_status(&error))
}

fn touched<'a>(layout: &'a Layout, want: &'a Use) -> impl Iterator<Item = &'a Component> {
    layout.components.iter().filter(|c| c.start < want.bytes.end && want.bytes.start < c.end)
}

/// Components in use that nobody has seen, with data servers that are full or gone: by index.
fn orphaned(mds: &Mds, inode: &Inode, want: &Use) -> Vec<usize> {
    let Some(layout) = inode.layout() else { return Vec::new() };
    let usable = |file: &DataFile| {
        mds.data_servers
            .get(file.store)
            .is_some_and(|store| store.serves() && (!want.write || store.takes_new()))
    };
    let at = layout.components.iter().enumerate();
    at.filter(|(_, c)| c.start < want.bytes.end && want.bytes.start < c.end)
        .filter(|(_, c)| c.is_untouched(inode.size()) && !c.slots.iter().all(usable))
        .map(|(index, _)| index)
        .collect()
}

/// Moves an untouched component to data servers that take new files. When there are none it stays: the
/// caller finds out what can be done with it.
async fn replace(mds: &Arc<Mds>, key: InodeKey, index: usize) -> Result<(), nfsstat4> {
    let (candidates, turn) = (super::candidates(mds), super::turn(mds));
    let (namespace, candidates) = (&mds.namespace, &candidates);
    let replaced = mds
        .write(|mut txn| {
            Box::pin(async move {
                let inode = namespace.getattr(&txn, &key).await?;
                let old = inode.layout().and_then(|layout| layout.components.get(index));
                let Some(old) = old.filter(|component| component.is_untouched(inode.size())) else {
                    return Ok(());
                };
                let Some(new) = placement::repaired(old, candidates, turn) else { return Ok(()) };
                namespace.replace_component(&mut txn, &key, index, new).await?;
                Ok(())
            })
        })
        .await;
    match replaced {
        // Invalid: somebody else was faster.
        Ok(_) | Err(FsError::Invalid) => Ok(()),
        Err(error) => Err(fs_status(&error)),
    }
}

async fn prepare(mds: &Arc<Mds>, inode: &Inode, want: &Use) -> Result<Inode, nfsstat4> {
    let propose = match inode.layout() {
        Some(_) => None,
        None => Some(super::place(mds, &LayoutPolicy::default()).await?),
    };
    let need = LayoutNeed { propose, hand_out: Some(want.bytes.clone()), read_write: want.persist_rw };
    let (namespace, key, need) = (&mds.namespace, &inode.key, &need);
    let prepared = mds
        .write(|mut txn| Box::pin(async move { namespace.prepare_layout(&mut txn, key, need).await }))
        .await;
    prepared.map(|(assigned, _)| assigned.inode).map_err(|error| fs_status(&error))
}

/// Mirrors that cannot be written now while another copy can.
fn missing(mds: &Mds, layout: &Layout, want: &Use) -> Vec<DataFile> {
    let alive = |file: &DataFile| mds.data_servers.get(file.store).is_some_and(|store| store.takes_writes());
    let mut missing = Vec::new();
    for component in touched(layout, want).filter(|component| component.mirrors > 1) {
        for column in component.slots.chunks(usize::from(component.mirrors)) {
            let (there, away): (Vec<_>, Vec<_>) =
                column.iter().copied().filter(|file| !file.stale).partition(alive);
            if !there.is_empty() {
                missing.extend(away);
            }
        }
    }
    missing
}

/// Marks mirrors that will miss writes, and kills the handles that others may still hold of them: a data
/// server that comes back must not serve old data under them.
async fn leave_behind(mds: &Arc<Mds>, inode: &Inode, files: &[DataFile]) -> Result<Inode, nfsstat4> {
    let slots: Vec<u16> = files.iter().map(|file| file.slot).collect();
    let epoch = mds.data_servers.epochs().current;
    let (namespace, key, slots) = (&mds.namespace, &inode.key, &slots);
    let marked = mds
        .write(|mut txn| {
            Box::pin(async move {
                let count = u64::try_from(slots.len()).unwrap_or(0);
                let ids = lease_block(&mut txn, Sequence::Fence, count).await?;
                let inode = namespace.leave_behind(&mut txn, key, slots).await?;
                let Some(layout) = inode.layout() else { return Ok(inode) };
                let left = layout.data_files().filter(|file| slots.contains(&file.slot));
                for (file, id) in left.zip(ids) {
                    let fence =
                        Fence::Generation { file: layout.id, slot: file.slot, generation: file.generation };
                    put_fence(&mut txn, &PendingFence { store: file.store, id, fence, epoch });
                }
                Ok(inode)
            })
        })
        .await;
    let (inode, _) = marked.map_err(|error| fs_status(&error))?;
    let stores: Vec<u16> = files.iter().map(|file| file.store.0).collect();
    tracing::warn!(file = key.fileid.0, data_servers = ?stores, "mirrors left behind: they miss writes from now on");
    Ok(inode)
}
