//! ALLOCATE and what it shares with DEALLOCATE. RFC 7862 §15.1.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{CommitSize, Inode, Layout};
use sluice_state::file::{File, Intent, LayoutFilter};
use sluice_xdr::nfs4::{ALLOCATE4args, ALLOCATE4res, nfs_resop4, nfsstat4};

use super::lock::must_be_file;
use super::read::{bounded, permit_io};
use super::write::conclude;
use crate::compound::{Context, OpError, OpResult};
use crate::dsctl::allocate::Plan;
use crate::dsctl::{self, resync};
use crate::files::Held;
use crate::layout::heal::{self, leave};
use crate::layout::ready::{Use, ready};
use crate::layout::{inline, settle};
use crate::quota::room;
use crate::server::Mds;

/// Between two looks whether layouts have come back, and how often that is looked for. A LAYOUTCOMMIT that comes before waits.
const PAUSE: Duration = Duration::from_millis(100);
const LOOKS: u32 = 30;

pub(crate) async fn allocate(cx: &mut Context, args: ALLOCATE4args) -> OpResult<ALLOCATE4res> {
    let end = bounded(args.aa_offset, args.aa_length)?;
    must_be_file(cx).await?;
    let stateid = cx.stateid(&args.aa_stateid)?;
    permit_io(cx, &stateid, true).await?;
    let answer = ALLOCATE4res { ar_status: nfsstat4::NFS4_OK };
    if args.aa_length > 0 {
        let change = Change { offset: args.aa_offset, length: args.aa_length, end: Some(end) };
        reshape(cx, change, &nfs_resop4::OP_ALLOCATE(answer)).await?;
    }
    Ok(answer)
}

/// What storage is to stand behind a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) offset: u64,
    pub(super) length: u64,
    /// How long the file is to be at least, where space is set aside; `None`: it is freed.
    pub(super) end: Option<u64>,
}

/// Carries the change out at every data file of the range. `answer` is what the client is told.
///
/// # Errors
/// What the state, the data servers and the store say.
pub(super) async fn reshape(cx: &mut Context, change: Change, answer: &nfs_resop4) -> Result<(), OpError> {
    let Change { offset, length, end } = change;
    let client = cx.client()?;
    let key = cx.current()?.inode;
    let entry = cx.server.file(&key).await?;
    // What is allocated is to grow, and to be found where space can be set aside.
    inline::promote(&cx.server, key).await?;
    let cuts = Intent::SetSize { client, replace: false, fresh: false };
    let mut held = settle::prepare(&cx.server, &entry, &cuts).await?;
    // What is set aside beyond the new end would be cut off with what was there.
    if let Some(status) = cx.server.uncut_status(key.fileid) {
        return Err(status.into());
    }
    settle::settle_size(&cx.server, &key).await?;
    cx.forget_inode();
    let inode = match end {
        // What is set aside counts as handed out, so that it is not placed anew without it.
        Some(end) => {
            ready(&cx.server, key, &Use { bytes: offset..end, write: true, persist_rw: false }).await?
        }
        None => cx.inode().await?,
    };
    let _room = room::to_grow(&cx.server, &cx.who, &inode, end.unwrap_or(0)).await?;
    let length = match (end, inode.layout()) {
        (Some(_), _) => length,
        // Beyond the end there is nothing to free.
        (None, Some(_)) => length.min(inode.size().saturating_sub(offset)),
        // Nor is there in a file that has a size and no data.
        (None, None) => 0,
    };
    if length > 0 {
        let layout = inode.layout().ok_or(nfsstat4::NFS4ERR_SERVERFAULT)?;
        let bytes = offset..offset.saturating_add(length);
        let plan = match end {
            Some(_) => Some(plan(cx, &inode, layout, &bytes).await?),
            None => None,
        };
        let grows = bytes.end > inode.size();
        if grows {
            // What is set aside may be refused elsewhere, and is no part of the file before it is all there.
            held.hide();
        }
        let done = match &plan {
            Some(plan) => plan.carry_out(&cx.server).await,
            None => dsctl::deallocate(&cx.server, layout, &bytes).await,
        };
        if let Some(gate) = cx.server.heals.busy(key.fileid) {
            gate.disturb();
        }
        if let Err(status) = done {
            let beyond = plan.filter(|_| grows);
            if beyond.is_some() {
                // Nor is it later.
                held.cut();
            }
            let told = refused(cx, &inode, layout, (bytes, status)).await;
            if let Some(plan) = beyond {
                cx.server.spawn(take_back(Arc::clone(&cx.server), held, plan));
            }
            return Err(told);
        }
    }
    // What was freed is not known otherwise; what was set aside counts as far as the file grew.
    let freed = match end {
        None if length > 0 => dsctl::observe(&cx.server, &inode).await.ok().map(|seen| seen.space),
        _ => None,
    };
    let commit = CommitSize { end, space_used: freed, ..CommitSize::default() };
    conclude(cx, key, &commit, answer).await?;
    held.commit()?;
    Ok(())
}

/// What is to be set aside, if there is room for it; nothing is ordered yet.
async fn plan(cx: &Context, inode: &Inode, layout: &Layout, bytes: &Range<u64>) -> Result<Plan, OpError> {
    match Plan::of(&cx.server, layout, bytes).await {
        Ok(plan) => Ok(plan),
        // The client comes again, and then does without a mirror that is lost.
        Err(status) => Err(leave::instead_of(&cx.server, inode, bytes.clone(), status).await.into()),
    }
}

/// What the client is told where a data server has not done it, when nothing of it is under way any more.
async fn refused(
    cx: &Context,
    inode: &Inode,
    layout: &Layout,
    (bytes, status): (Range<u64>, nfsstat4),
) -> OpError {
    let marked = heal::suspect(&cx.server, inode).await;
    // The client comes again, and then does without the mirrors that are away, or refuse.
    let told = leave::instead_of(&cx.server, inode, bytes.clone(), status).await;
    resync::quiet(&cx.server, layout, bytes, resync::GIVEN_UP).await;
    marked.map_or_else(OpError::from, |()| told.into())
}

/// Of space that was refused, what was set aside behind the end is given back: whoever may write the file next would find
/// it there, and take it for written. Layouts come back first, so that nothing is cut off that is written meanwhile; where
/// they do not it stays.
async fn take_back(mds: Arc<Mds>, held: Held, plan: Plan) {
    let (entry, key) = (held.entry(), held.key());
    let mut looks = 0..LOOKS;
    while entry.peek(File::has_layouts) {
        if looks.next().is_none() {
            tracing::warn!(
                file = key.fileid.0,
                "space that was refused may be behind the end of a file that is in use"
            );
            return;
        }
        mds.step(&entry, None, |file, ctx| ((), file.recall_layouts(ctx, LayoutFilter::All, false)));
        mds.env.clock.sleep(PAUSE).await;
    }
    let Ok(inode) = settle::inode(&mds, key).await else { return };
    let written = plan.take_back(&mds, inode.size()).await;
    if let Some(gate) = mds.heals.busy(key.fileid) {
        gate.disturb();
    }
    if let Some(end) = written
        && let Err(error) = settle::reaches(&mds, key, end).await
    {
        tracing::warn!(file = key.fileid.0, %error, "what was written behind the end of a file may be missing");
    }
}
