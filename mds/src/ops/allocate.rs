//! ALLOCATE and what it shares with DEALLOCATE. RFC 7862 §15.1.

use sluice_namespace::CommitSize;
use sluice_state::file::Intent;
use sluice_xdr::control::ctl_space_operation;
use sluice_xdr::nfs4::{ALLOCATE4args, ALLOCATE4res, nfsstat4};

use super::lock::must_be_file;
use super::read::{bounded, permit_io};
use crate::compound::{Context, OpError, OpResult};
use crate::dsctl;
use crate::layout::settle;

pub(crate) async fn allocate(cx: &mut Context, args: ALLOCATE4args) -> OpResult<ALLOCATE4res> {
    let end = bounded(args.aa_offset, args.aa_length)?;
    must_be_file(cx).await?;
    let stateid = cx.stateid(&args.aa_stateid)?;
    permit_io(cx, &stateid, true).await?;
    if args.aa_length > 0 {
        reshape(cx, ctl_space_operation::SPACE_ALLOCATE, args.aa_offset, args.aa_length, Some(end)).await?;
    }
    Ok(ALLOCATE4res { ar_status: nfsstat4::NFS4_OK })
}

/// Changes what storage stands behind a range, at every data file of it, and with `end` the size.
///
/// # Errors
/// What the state, the data servers and the store say.
pub(super) async fn reshape(
    cx: &mut Context,
    operation: ctl_space_operation,
    offset: u64,
    length: u64,
    end: Option<u64>,
) -> Result<(), OpError> {
    let client = cx.client()?;
    let key = cx.current()?.inode;
    let entry = cx.server.file(&key).await?;
    let held = settle::prepare(&cx.server, &entry, &Intent::SetSize { client, replace: false }).await?;
    settle::settle_size(&cx.server, &key).await?;
    cx.forget_inode();
    let inode = cx.inode().await?;
    let layout = inode.layout().ok_or(nfsstat4::NFS4ERR_SERVERFAULT)?;
    // Beyond the end there is nothing to free.
    let length = if end.is_some() { length } else { length.min(inode.size().saturating_sub(offset)) };
    if length > 0 {
        dsctl::space(&cx.server, layout, operation, offset, length).await?;
    }
    let commit = CommitSize { end, ..CommitSize::default() };
    let (namespace, commit, context) = (&cx.server.namespace, &commit, &*cx);
    cx.server
        .write(|mut txn| {
            Box::pin(async move {
                let request = context.request(sluice_namespace::DirectoryUpdate::Exact);
                namespace.commit_size(&mut txn, &key, commit, &request).await
            })
        })
        .await?;
    held.commit()?;
    if let Some(end) = end.filter(|end| *end > inode.size()) {
        dsctl::push_size(&cx.server, layout, end).await;
    }
    cx.forget_inode();
    Ok(())
}
