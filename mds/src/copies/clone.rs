//! CLONE: the target gets new data files, each made by its own data server to share with one of the source and one of
//! the target, and takes all of them in one transaction. So it is all or nothing, as RFC 7862 §15.13.3 wants it, for
//! files over many data servers, too. What lies elsewhere in the source than it will in the target is copied into
//! the new data files before they are taken.

use std::ops::Range;
use std::sync::Arc;

use sluice_namespace::{
    DataFile, DirectoryUpdate, FsError, Inode, InodeKey, Layout, MAX_FILE_SIZE, Namespace, SetClone,
};
use sluice_state::ClientId;
use sluice_state::file::Intent;
use sluice_xdr::nfs4::{nfs_resop4, nfsstat4};
use tokio::task::JoinSet;

use crate::compound::{Context, OpError};
use crate::copies::missed;
use crate::copies::plan::{Apart, plan};
use crate::copies::step::{self, Commit, PIECE};
use crate::dsctl::clone::{self, Piece};
use crate::dsctl::{self, transfer};
use crate::error::fs_status;
use crate::files::{Held, file_id};
use crate::layout::heal::leave;
use crate::layout::{classes, garbage, inline, settle};
use crate::quota::room;
use crate::server::Mds;

/// Ranges begin at multiples of it, so that file systems can share them: the block of XFS and btrfs.
pub(crate) const BLOCK: u64 = 4096;

/// Pieces of data to be copied at most.
const MOST: usize = 256;

/// What is to be cloned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clone {
    pub(crate) client: ClientId,
    pub(crate) source: InodeKey,
    pub(crate) source_offset: u64,
    /// The same file, perhaps.
    pub(crate) target: InodeKey,
    pub(crate) offset: u64,
    /// Bytes; 0 is up to the end of the source.
    pub(crate) count: u64,
}

/// Carries it out; `answer` is what the client is told.
///
/// # Errors
/// INVAL for a range that the source does not have or that overlaps itself; XDEV where too much of it cannot be shared,
/// NOTSUPP where no data can: the client copies instead. What else it is told.
pub(crate) async fn carry_out(cx: &mut Context, want: &Clone, answer: &nfs_resop4) -> Result<(), OpError> {
    let mds = Arc::clone(&cx.server);
    // Everybody's changes to the source have arrived and none is on its way: it is cloned as of one moment.
    let (reading, writing) = tickets(&mds, want).await?;
    settle::settle_size(&mds, &want.source).await?;
    settle::settle_size(&mds, &want.target).await?;
    let both = async || {
        let source = settle::inode(&mds, want.source).await?;
        Ok::<_, FsError>((source, settle::inode(&mds, want.target).await?))
    };
    let (mut source, mut target) = both().await?;
    let length = length(want, &source, &target)?;
    if length == 0 {
        return Ok(());
    }
    // What is still to be cut off is shared with nobody.
    if let Some(status) = [want.source, want.target].iter().find_map(|key| mds.uncut_status(key.fileid)) {
        return Err(status.into());
    }
    if source.inline().is_some() || target.inline().is_some() {
        if of_inline(cx, want, length, answer).await? {
            drop(writing.commit()?);
            if let Some(reading) = reading {
                drop(reading.commit()?);
            }
            return Ok(());
        }
        inline::promote(&mds, want.source).await?;
        inline::promote(&mds, want.target).await?;
        (source, target) = both().await?;
    }
    // Size without data is shared with nobody.
    let from = source.layout().ok_or(nfsstat4::NFS4ERR_XDEV)?;
    // Who copies into a directory of another class wants it there.
    if target.layout().is_some_and(|own| !classes::is_one(&mds, own, from)) {
        return Err(nfsstat4::NFS4ERR_XDEV.into());
    }
    let bytes = want.offset..want.offset + length;
    let id = mds.next_data_file().await.map_err(|error| fs_status(&error))?;
    let plan = plan(id, (from, want.source_offset), &target, bytes.clone()).ok_or(nfsstat4::NFS4ERR_XDEV)?;
    let takes_new = |file: &DataFile| mds.data_servers.get(file.store).is_some_and(|store| store.takes_new());
    // Until the target has taken them: what is drained from now on waits for that.
    let placing = mds.data_servers.placing();
    // What it will not be made of may be placed anew later.
    let is_active = |file: &DataFile| mds.data_servers.get(file.store).is_some_and(|store| store.is_active());
    let fits = |file: &DataFile| is_active(file) && (takes_new(file) || !file.materialised);
    // One that is drained must not be named by anybody new, written to or not.
    if !plan.fresh.data_files().all(fits) {
        return Err(nfsstat4::NFS4ERR_XDEV.into());
    }
    // Before anything is promised: a row of garbage for each attempt would wait for whoever is missed.
    missed::none(&mds, &plan, &source, plan.on_base.then_some(&target))?;
    let _room = room::to_grow(&mds, &cx.who, &target, bytes.end).await?;
    let moved = extents(&mds, from, &plan.apart).await?;
    // The client waits, and others with it.
    if moved.iter().map(|part| part.length).sum::<u64>() > mds.config.copy_step {
        return Err(nfsstat4::NFS4ERR_XDEV.into());
    }
    let making = mds.copies.make(id);
    promise(&mds, want.target, &plan.fresh).await?;
    if let Err(status) = all(&mds, plan.pieces).await {
        return Err(instead(
            &mds,
            (&source, &target),
            want.source_offset..want.source_offset + length,
            status,
        )
        .await
        .into());
    }
    let pieces = |part: &Apart| {
        let (from, to) = ((from, part.source_offset), (&plan.fresh, part.offset));
        transfer::pieces(from, to, part.length, PIECE, &[])
    };
    step::all(&mds, moved.iter().flat_map(pieces).collect()).await?;
    let space = |inode: &Inode| inode.file().map_or(0, |file| file.space_used);
    let shared = space(&source).min(length.next_multiple_of(BLOCK));
    let set = SetClone {
        fresh: plan.fresh,
        old: target.layout().cloned(),
        end: bytes.end,
        space_used: if plan.on_base { space(&target).max(shared) } else { shared },
        source: want.source.fileid,
    };
    if let Err(error) = take(cx, want.target, &set, answer).await {
        if error.maybe_committed() {
            making.keep();
        }
        return Err(error.into());
    }
    drop(placing);
    drop(making);
    drop(writing.commit()?);
    if let Some(reading) = reading {
        drop(reading.commit()?);
    }
    garbage::poke_rows(&mds);
    Ok(())
}

/// Copies what is so small instead, in one transaction: all or nothing, too. `false`: one of the two is not inline.
async fn of_inline(cx: &Context, want: &Clone, length: u64, answer: &nfs_resop4) -> Result<bool, OpError> {
    let Clone { source, source_offset, target, offset, .. } = *want;
    let range = inline::Range { source, source_offset, target, offset, length };
    let answer = |_| answer.clone();
    Ok(inline::copy(&cx.server, &range, &Commit::Operation(cx, &answer)).await?.is_some())
}

/// The right to read the one and to replace the other, taken in the order of their numbers so that two clones
/// cannot wait for each other. The same file needs one.
async fn tickets(mds: &Arc<Mds>, want: &Clone) -> Result<(Option<Held>, Held), OpError> {
    let client = want.client;
    // Data files that are shared must not be written to by who holds a layout of them as they were.
    let write = Intent::SetSize { client, replace: true, fresh: true };
    let read = Intent::ProxyIo { client, write: false, exclusive: true };
    let target = mds.file(&want.target).await?;
    if want.source == want.target {
        return Ok((None, settle::prepare(mds, &target, &write).await?));
    }
    let source = mds.file(&want.source).await?;
    if file_id(&want.source) < file_id(&want.target) {
        let first = settle::prepare(mds, &source, &read).await?;
        Ok((Some(first), settle::prepare(mds, &target, &write).await?))
    } else {
        let first = settle::prepare(mds, &target, &write).await?;
        Ok((Some(settle::prepare(mds, &source, &read).await?), first))
    }
}

/// How many bytes. RFC 7862 §15.13.3: 0 is up to the end; nothing beyond the end, nothing that overlaps.
fn length(want: &Clone, source: &Inode, target: &Inode) -> Result<u64, nfsstat4> {
    let size = source.size();
    let end = want.source_offset.checked_add(want.count).filter(|end| *end <= size);
    let end = end.ok_or(nfsstat4::NFS4ERR_INVAL)?;
    let length = if want.count == 0 { size - want.source_offset } else { want.count };
    let aligned = |at: u64| at.is_multiple_of(BLOCK);
    let whole_blocks = aligned(length) || want.count == 0 || end == size;
    if !aligned(want.source_offset) || !aligned(want.offset) || !whole_blocks {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    // What the target has behind a part of a block would be lost with the rest of that block. The RFC does not say so;
    // Linux refuses it for its local file systems (conformance/exceptions/clone-partial-block.toml).
    if !aligned(length) && want.offset.checked_add(length).is_some_and(|end| end < target.size()) {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    let apart = want.source_offset.abs_diff(want.offset) >= length;
    if want.source == want.target && !apart {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    let fits = want.offset.checked_add(length).is_some_and(|end| end <= MAX_FILE_SIZE);
    if fits { Ok(length) } else { Err(nfsstat4::NFS4ERR_FBIG) }
}

/// The data of what is to be copied: not its holes, apart from those between pieces of data.
async fn extents(mds: &Arc<Mds>, source: &Layout, apart: &[Apart]) -> Result<Vec<Apart>, nfsstat4> {
    let mut found = Vec::new();
    let piece = PIECE.min(mds.config.copy_step);
    for part in apart {
        let end = part.source_offset + part.length;
        let mut at = part.source_offset;
        while let Some(data) = dsctl::seek(mds, source, at, end, true).await?.filter(|data| *data < end) {
            let source_offset = data.max(at);
            let offset = part.offset + (source_offset - part.source_offset);
            let length = piece.min(end - source_offset);
            found.push(Apart { source_offset, offset, length });
            at = source_offset + length;
            if found.len() > MOST {
                return Err(nfsstat4::NFS4ERR_XDEV);
            }
        }
    }
    Ok(found)
}

/// Writes down what is about to be made.
async fn promise(mds: &Arc<Mds>, key: InodeKey, fresh: &Layout) -> Result<(), FsError> {
    let namespace = &mds.namespace;
    mds.write(|mut txn| {
        Box::pin(async move {
            namespace.promise_garbage(&mut txn, &key, fresh);
            Ok(())
        })
    })
    .await
    .map(drop)
}

/// Makes all data files; the first failure is told when no order is under way any more.
async fn all(mds: &Arc<Mds>, pieces: Vec<Piece>) -> Result<(), nfsstat4> {
    let mut orders = JoinSet::new();
    for piece in pieces {
        let mds = Arc::clone(mds);
        orders.spawn(async move {
            let _permit = mds.copies.orders.acquire().await;
            clone::clone(&mds, &piece).await
        });
    }
    let mut outcome = Ok(());
    while let Some(done) = orders.join_next().await {
        outcome = outcome.and(done.unwrap_or(Err(nfsstat4::NFS4ERR_SERVERFAULT)));
    }
    outcome
}

/// What the client is told where a data file could not be made. One that is to be shared may be lost, and another mirror have it:
/// nobody else may ever ask for it, so that the file has to go on without it for this clone's sake.
async fn instead(
    mds: &Arc<Mds>,
    (source, target): (&Inode, &Inode),
    bytes: Range<u64>,
    status: nfsstat4,
) -> nfsstat4 {
    let told = leave::instead_of(mds, source, bytes, status).await;
    // What is around the range is shared, too.
    let around = leave::instead_of(mds, target, 0..target.size(), status).await;
    if around == status { told } else { around }
}

/// The target takes what was made.
async fn take(cx: &Context, key: InodeKey, set: &SetClone, answer: &nfs_resop4) -> Result<(), FsError> {
    let namespace = &cx.server.namespace;
    // Data files of which nobody knows whose they are would have to stay until the next start.
    cx.write_witnessed(Namespace::witness_of_taking(&set.fresh), |mut txn| {
        Box::pin(async move {
            let request = cx.request(DirectoryUpdate::Exact);
            let done = namespace.set_clone(&mut txn, &key, set, &request).await?;
            cx.record(&mut txn, answer);
            Ok(done)
        })
    })
    .await
    .map(drop)
}
