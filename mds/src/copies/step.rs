//! One step of a copy: a range small enough that whoever wants to cut or grow the files waits for little. To
//! others it is a READ of the source and a WRITE of the target that come through this server.

use std::sync::Arc;

use sluice_namespace::{CommitSize, Credential, DirectoryUpdate, Inode, InodeKey, Layout, Request};
use sluice_state::ClientId;
use sluice_state::file::Intent;
use sluice_xdr::nfs4::{nfs_resop4, nfsstat4};
use tokio::task::JoinSet;

use crate::compound::{Context, OpError};
use crate::dsctl::{self, resync, transfer};
use crate::error::fs_status;
use crate::files::{Held, file_id};
use crate::layout::heal::{self, leave};
use crate::layout::inline;
use crate::layout::ready::{Use, ready};
use crate::layout::settle;
use crate::quota::room;
use crate::server::Mds;

/// Bytes of one order to a data server, which flushes after each.
pub(super) const PIECE: u64 = 16 << 20;
/// Orders of one step under way at once, all of an ordinary one: those of one data file take turns, and neighbours
/// are mostly of the same.
const WIDTH: usize = 16;

/// What is to be copied in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) client: ClientId,
    pub(crate) source: InodeKey,
    pub(crate) source_offset: u64,
    pub(crate) target: InodeKey,
    pub(crate) offset: u64,
    /// Bytes wanted.
    pub(crate) length: u64,
    /// Bytes of data at most; a hole may be longer.
    pub(crate) most: u64,
}

/// Who commits the step.
pub(crate) enum Commit<'a> {
    /// An operation, which is answered so when so many bytes were copied.
    Operation(&'a Context, &'a (dyn Fn(u64) -> nfs_resop4 + Send + Sync)),
    /// The server by itself, for a caller who is this.
    Server(&'a Credential),
}

impl Commit<'_> {
    pub(crate) fn who(&self) -> &Credential {
        match self {
            Self::Operation(cx, _) => &cx.who,
            Self::Server(who) => who,
        }
    }
}

/// Copies the beginning of the range: how many bytes, 0 at the end of the source. They are durable, and the
/// target's size and times tell of them.
///
/// # Errors
/// What the client is told; some bytes of the range may have been copied all the same.
pub(crate) async fn step(mds: &Arc<Mds>, step: &Step, commit: &Commit<'_>) -> Result<u64, OpError> {
    let tickets = tickets(mds, step).await?;
    let mut from = source(mds, step).await?;
    let length = step.length.min(from.size().saturating_sub(step.source_offset));
    if length == 0 {
        return Ok(0);
    }
    if from.inline().is_some() {
        let Step { source_offset, target, offset, .. } = *step;
        let range = inline::Range { source: step.source, source_offset, target, offset, length };
        if let Some(copied) = inline::copy(mds, &range, commit).await? {
            tickets.0.commit()?;
            tickets.1.commit()?;
            return Ok(copied);
        }
        inline::promote(mds, step.source).await?;
        from = source(mds, step).await?;
    }
    let source = from;
    let (hole, data) = extent(mds, source.layout(), step, length).await?;
    let end = step.offset + hole + data;
    // Before the layout is looked at: a heal that ends meanwhile changes where the data belongs.
    let gate = mds.heals.gate(step.target.fileid);
    let filling = gate.lock.read().await;
    // Looked at again under the ticket: a truncation may have swapped the data files. What is written to
    // counts as handed out, so that it is not placed anew.
    let bytes = step.offset..end;
    let target = ready(mds, step.target, &Use { bytes, write: true, persist_rw: false }).await?;
    let layout = target.layout().ok_or(nfsstat4::NFS4ERR_SERVERFAULT)?;
    let _room = room::to_grow(mds, commit.who(), &target, end).await.map_err(|error| fs_status(&error))?;
    let blanked = blank(mds, &target, step.offset, hole).await;
    let moved = match (blanked, source.layout()) {
        (Ok(filled), Some(from)) if data > 0 => {
            let (from, to) = ((from, step.source_offset + hole), (layout, step.offset + hole));
            let pieces = transfer::pieces(from, to, data, PIECE, &filling);
            all(mds, pieces).await.map(|beside| beside && filled)
        }
        (blanked, _) => blanked,
    };
    match moved {
        // What is being filled has no holes made in it.
        Ok(filled) if filled && (hole == 0 || filling.is_empty()) => {}
        Ok(_) => gate.disturb(),
        Err(status) => {
            gate.disturb();
            let marked = heal::suspect(mds, &target).await;
            resync::quiet(mds, layout, step.offset..end, resync::MOVING_GIVEN_UP).await;
            marked?;
            let written = step.offset..end;
            return Err(leave::instead_of(mds, &target, written, status).await.into());
        }
    }
    conclude(mds, step.target, &target, end, (hole + data, commit)).await?;
    tickets.0.commit()?;
    tickets.1.commit()?;
    Ok(hole + data)
}

/// The right to read the one and to write the other, taken in the order of their numbers so that two copies
/// cannot wait for each other.
async fn tickets(mds: &Arc<Mds>, step: &Step) -> Result<(Held, Held), OpError> {
    let client = step.client;
    let (source, target) = (mds.file(&step.source).await?, mds.file(&step.target).await?);
    let inode = settle::inode(mds, step.target).await?;
    let exclusive = inode.layout().is_some_and(|layout| layout.mirrors_dirty);
    let read = Intent::ProxyIo { client, write: false, exclusive: false };
    let write = Intent::ProxyIo { client, write: true, exclusive };
    if file_id(&step.source) < file_id(&step.target) {
        let first = mds.prepare(&source, &read).await?;
        Ok((first, mds.prepare(&target, &write).await?))
    } else {
        let first = mds.prepare(&target, &write).await?;
        Ok((mds.prepare(&source, &read).await?, first))
    }
}

/// The source as it is now, with everything that anybody wrote to the data servers.
async fn source(mds: &Arc<Mds>, step: &Step) -> Result<Inode, OpError> {
    settle::settle_size(mds, &step.source).await?;
    let inode = settle::inode(mds, step.source).await?;
    if !inode.layout().is_some_and(|layout| layout.mirrors_dirty) {
        return Ok(inode);
    }
    let bytes = step.source_offset..step.source_offset.saturating_add(step.length);
    Ok(ready(mds, step.source, &Use { bytes, write: false, persist_rw: false }).await?)
}

/// How long the hole is that the range begins with, and the bytes to move behind it.
async fn extent(
    mds: &Arc<Mds>,
    layout: Option<&Layout>,
    step: &Step,
    length: u64,
) -> Result<(u64, u64), nfsstat4> {
    // Size without data: a file that was only extended.
    let Some(layout) = layout else { return Ok((length, 0)) };
    let (from, end) = (step.source_offset, step.source_offset + length);
    let found = dsctl::seek(mds, layout, from, end, true).await?;
    let data = found.unwrap_or(end).clamp(from, end);
    Ok((data - from, (end - data).min(step.most)))
}

/// A range of the target becomes a hole. Beyond its end, too: there may be what is not in the size yet.
async fn blank(mds: &Arc<Mds>, target: &Inode, offset: u64, length: u64) -> Result<bool, nfsstat4> {
    if let (Some(layout), true) = (target.layout(), length > 0) {
        dsctl::deallocate(mds, layout, &(offset..offset.saturating_add(length))).await?;
    }
    Ok(true)
}

/// Some at a time; the first that fails ends it when those under way have ended.
pub(super) async fn all(mds: &Arc<Mds>, pieces: Vec<transfer::Piece>) -> Result<bool, nfsstat4> {
    let mut waiting = pieces.into_iter();
    let mut under_way = JoinSet::new();
    let mut outcome = Ok(true);
    loop {
        while outcome.is_ok() && under_way.len() < WIDTH {
            let Some(piece) = waiting.next() else { break };
            let mds = Arc::clone(mds);
            under_way.spawn(async move {
                let _permit = mds.copies.orders.acquire().await;
                transfer::transfer(&mds, &piece).await
            });
        }
        let Some(done) = under_way.join_next().await else { return outcome };
        match done.unwrap_or(Err(nfsstat4::NFS4ERR_SERVERFAULT)) {
            Ok(filled) => outcome = outcome.map(|all| all && filled),
            Err(status) => outcome = Err(status),
        }
    }
}

/// Size, times, change attribute and space of the target.
async fn conclude(
    mds: &Arc<Mds>,
    key: InodeKey,
    before: &Inode,
    end: u64,
    (copied, commit): (u64, &Commit<'_>),
) -> Result<(), OpError> {
    // Holes are free: what was appended is not what is stored.
    let seen = dsctl::observe(mds, before).await.ok().filter(|seen| seen.complete);
    let space_used = seen.map(|seen| seen.space);
    let size = CommitSize { end: Some(end), space_used, ..CommitSize::default() };
    let (namespace, size) = (&mds.namespace, &size);
    match commit {
        Commit::Operation(cx, answer) => {
            let (cx, result) = (*cx, &answer(copied));
            cx.write(|mut txn| {
                Box::pin(async move {
                    let request = cx.request(DirectoryUpdate::Exact);
                    let done = namespace.commit_size(&mut txn, &key, size, &request).await?;
                    cx.record(&mut txn, result);
                    Ok(done)
                })
            })
            .await?;
        }
        Commit::Server(who) => {
            let request = Request { who, now: mds.env.clock.wall(), directory: DirectoryUpdate::Exact };
            let request = &request;
            mds.write(|mut txn| {
                Box::pin(async move { namespace.commit_size(&mut txn, &key, size, request).await })
            })
            .await
            .map_err(|error| fs_status(&error))?;
        }
    }
    Ok(())
}
