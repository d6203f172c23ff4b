//! Makes a file's layout ready before data goes anywhere: re-places what no client has seen and whose data
//! servers are gone, remembers what is handed out, sees to it that mirrors which will miss writes are left
//! behind. All durable before the first byte. docs/DESIGN §6, §8.

use std::ops::Range;
use std::sync::Arc;

use sluice_namespace::{Component, DataFile, FsError, Inode, InodeKey, Layout, LayoutNeed, LayoutPolicy};
use sluice_xdr::nfs4::nfsstat4;

use super::heal::leave;
use super::{inline, placement};
use crate::dsctl;
use crate::error::fs_status;
use crate::files::Held;
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
    ready_for(mds, None, key, want).await
}

/// The same for a layout, whose ticket hears of it when its row is about to be written: whatever the layout is refused for
/// from then on, the row may be there.
pub(crate) async fn ready_for(
    mds: &Arc<Mds>,
    held: Option<&mut Held>,
    key: InodeKey,
    want: &Use,
) -> Result<Inode, nfsstat4> {
    // What is written now would be cut off by what is still to be carried out; what is read would be there no more.
    if let Some(status) = mds.uncut_status(key.fileid)
        && (want.write || status == nfsstat4::NFS4ERR_DELAY)
    {
        return Err(status);
    }
    let mut inode = read(mds, key).await?;
    if inode.file().is_none() {
        return Err(nfsstat4::NFS4ERR_WRONG_TYPE);
    }
    // An empty one gets its data files below, with all else that must be durable.
    if inode.inline().is_some() && inode.size() > 0 {
        inline::promote(mds, key).await?;
        inode = read(mds, key).await?;
    }
    for index in orphaned(mds, &inode, want) {
        replace(mds, key, index).await?;
        inode = read(mds, key).await?;
    }
    let new = inode.layout().is_none_or(|layout| touched(layout, want).any(|c| !c.handed_out));
    if !new {
        // Before the row, which need not be written then.
        writable(mds, key, &inode, want).await?;
    }
    if let Some(held) = held.filter(|_| want.persist_rw) {
        held.writes();
    }
    if want.persist_rw || new {
        inode = prepare(mds, &inode, want).await?;
    }
    if new {
        writable(mds, key, &inode, want).await?;
    }
    Ok(inode)
}

/// No mirror would miss what is done now, and nothing that was done earlier comes behind it.
async fn writable(mds: &Arc<Mds>, key: InodeKey, inode: &Inode, want: &Use) -> Result<(), nfsstat4> {
    if let Some(layout) = inode.layout().filter(|layout| misses(mds, layout, want)) {
        // A data server that has only just gone may be back in a moment; the wait for its fence, or for
        // layouts that name it, is not ours to make under this ticket. Noted before it is looked at: it may be
        // given up at this very moment.
        mds.heals.want(key);
        if !leave::away(mds, layout).is_empty() {
            leave::begin(mds, key);
        }
        return Err(nfsstat4::NFS4ERR_DELAY);
    }
    if want.write && !predecessors_over(mds, inode, want).await {
        return Err(nfsstat4::NFS4ERR_DELAY);
    }
    Ok(())
}

/// What earlier incarnations of this server had on its way is not to come behind what is written now.
async fn predecessors_over(mds: &Mds, inode: &Inode, want: &Use) -> bool {
    let mirrors = inode.layout().into_iter().flat_map(|layout| touched(layout, want)).flat_map(|c| &c.slots);
    for file in mirrors.filter(|file| !file.stale) {
        if !dsctl::predecessors_over(mds, file.store).await {
            return false;
        }
    }
    true
}

/// Some mirror cannot be written now that would have to be, while another copy can. Of mirrors that may differ
/// the first is the truth, for readers, too.
fn misses(mds: &Mds, layout: &Layout, want: &Use) -> bool {
    let alive = |file: &&DataFile| mds.data_servers.get(file.store).is_some_and(|store| store.takes_writes());
    (want.write || layout.mirrors_dirty)
        && touched(layout, want).any(|component| {
            component.slots.chunks(usize::from(component.mirrors.max(1))).any(|column| {
                let good = || column.iter().filter(|file| !file.stale);
                let needed = if want.write { usize::MAX } else { 1 };
                good().any(|file| alive(&file)) && !good().take(needed).all(|file| alive(&file))
            })
        })
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
    let (chosen, turn) = (super::candidates(mds), super::turn(mds));
    let (namespace, candidates) = (&mds.namespace, &chosen.list);
    let replaced = mds
        .write(|mut txn| {
            Box::pin(async move {
                let inode = namespace.getattr(&txn, &key).await?;
                let old = inode.layout().and_then(|layout| layout.components.get(index));
                let Some(old) = old.filter(|component| component.is_untouched(inode.size())) else {
                    return Ok(());
                };
                let like = |store| super::classes::like(mds, store);
                let new = placement::repaired(old, candidates, turn, like);
                if new.slots != old.slots {
                    namespace.replace_component(&mut txn, &key, index, new).await?;
                }
                Ok(())
            })
        })
        .await;
    drop(chosen);
    match replaced {
        // Invalid: somebody else was faster.
        Ok(_) | Err(FsError::Invalid) => Ok(()),
        Err(error) => Err(fs_status(&error)),
    }
}

async fn prepare(mds: &Arc<Mds>, inode: &Inode, want: &Use) -> Result<Inode, nfsstat4> {
    let placed = match inode.layout() {
        Some(_) => None,
        None => {
            let policy = inode.inline().map_or_else(LayoutPolicy::default, |inline| inline.policy());
            let policy = super::classes::of_file(mds, policy);
            Some(super::place(mds, &policy, true).await?)
        }
    };
    let propose = placed.as_ref().map(|placed| placed.layout.clone());
    let (inline, hand_out) = (inode.inline(), Some(want.bytes.clone()));
    let need = LayoutNeed { propose, inline, hand_out, read_write: want.persist_rw };
    let (namespace, key, need) = (&mds.namespace, &inode.key, &need);
    let prepared = mds
        .write(|mut txn| Box::pin(async move { namespace.prepare_layout(&mut txn, key, need).await }))
        .await;
    drop(placed);
    prepared.map(|(assigned, _)| assigned.inode).map_err(|error| fs_status(&error))
}
