//! ALLOCATE and what it shares with DEALLOCATE. RFC 7862 §15.1.

use sluice_namespace::CommitSize;
use sluice_state::file::Intent;
use sluice_xdr::control::ctl_space_operation;
use sluice_xdr::nfs4::{ALLOCATE4args, ALLOCATE4res, nfs_resop4, nfsstat4};

use super::lock::must_be_file;
use super::read::{bounded, permit_io};
use super::write::conclude;
use crate::compound::{Context, OpError, OpResult};
use crate::dsctl::{self, resync};
use crate::layout::heal::{self, leave};
use crate::layout::ready::{Use, ready};
use crate::layout::{inline, settle};
use crate::quota::room;

pub(crate) async fn allocate(cx: &mut Context, args: ALLOCATE4args) -> OpResult<ALLOCATE4res> {
    let end = bounded(args.aa_offset, args.aa_length)?;
    must_be_file(cx).await?;
    let stateid = cx.stateid(&args.aa_stateid)?;
    permit_io(cx, &stateid, true).await?;
    let answer = ALLOCATE4res { ar_status: nfsstat4::NFS4_OK };
    if args.aa_length > 0 {
        let change = Change {
            operation: ctl_space_operation::SPACE_ALLOCATE,
            offset: args.aa_offset,
            length: args.aa_length,
            end: Some(end),
        };
        reshape(cx, change, &nfs_resop4::OP_ALLOCATE(answer)).await?;
    }
    Ok(answer)
}

/// What storage is to stand behind a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) operation: ctl_space_operation,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// The size, if it changes too.
    pub(super) end: Option<u64>,
}

/// Carries the change out at every data file of the range. `answer` is what the client is told.
///
/// # Errors
/// What the state, the data servers and the store say.
pub(super) async fn reshape(cx: &mut Context, change: Change, answer: &nfs_resop4) -> Result<(), OpError> {
    let Change { operation, offset, length, end } = change;
    let client = cx.client()?;
    let key = cx.current()?.inode;
    let entry = cx.server.file(&key).await?;
    // What is allocated is to grow, and to be found where space can be set aside.
    inline::promote(&cx.server, key).await?;
    let held = settle::prepare(&cx.server, &entry, &Intent::SetSize { client, replace: false }).await?;
    // What is set aside beyond the new end would be cut off with what was there.
    if cx.server.is_uncut(key.fileid) {
        return Err(nfsstat4::NFS4ERR_DELAY.into());
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
    let layout = inode.layout().ok_or(nfsstat4::NFS4ERR_SERVERFAULT)?;
    let _room = room::to_grow(&cx.server, &cx.who, &inode, end.unwrap_or(0)).await?;
    // Beyond the end there is nothing to free.
    let length = if end.is_some() { length } else { length.min(inode.size().saturating_sub(offset)) };
    if length > 0 {
        let done = dsctl::space(&cx.server, layout, operation, offset, length).await;
        if let Some(gate) = cx.server.heals.busy(key.fileid) {
            gate.disturb();
        }
        if let Err(status) = done {
            let marked = heal::suspect(&cx.server, &inode).await;
            // The client comes again, and then does without the mirrors that are away, or refuse.
            let bytes = offset..offset.saturating_add(length);
            let told = leave::instead_of(&cx.server, &inode, bytes.clone(), status).await;
            resync::quiet(&cx.server, layout, bytes, resync::GIVEN_UP).await;
            marked?;
            return Err(told.into());
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
