//! WRITE through this server. RFC 8881 §18.32. A mount whose clients reach the data servers sends none but of
//! files whose data is here (docs/adr/0020).

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use sluice_namespace::{CommitSize, Inode, InodeKey};
use sluice_state::file::Intent;
use sluice_xdr::nfs4::{WRITE4args, WRITE4res, WRITE4resok, nfs_resop4, nfsstat4, stable_how4, verifier4};

use super::lock::must_be_file;
use super::read::{bounded, count_proxied, permit_io};
use crate::attr::get::MAX_IO;
use crate::compound::{Context, OpError, OpResult};
use crate::files::FileEntry;
use crate::layout::heal::{self, leave};
use crate::layout::inline;
use crate::layout::ready::{Use, ready};
use crate::quota::{Pass, room};
use crate::server::Mds;
use crate::{dsctl, metrics};

pub(crate) async fn write(cx: &mut Context, args: WRITE4args) -> OpResult<WRITE4res> {
    pin!(must_be_file(cx)).await?;
    let stateid = cx.stateid(&args.stateid)?;
    let entry = pin!(permit_io(cx, &stateid, true)).await?;
    let data = args.data.slice(..args.data.len().min(usize::try_from(MAX_IO).unwrap_or(1 << 20)));
    let length = u64::try_from(data.len()).unwrap_or(0);
    let end = bounded(args.offset, length)?;
    let answer = WRITE4res::NFS4_OK(WRITE4resok {
        count: u32::try_from(length).unwrap_or(0),
        // Data went to the data servers as FILE_SYNC, or into the store, and the size is committed: there is
        // nothing left to commit.
        committed: stable_how4::FILE_SYNC4,
        writeverf: cx.server.write_verifier(),
    });
    if length > 0 {
        entry.changes(cx.client()?);
        pin!(carry_out(cx, &entry, (args.offset, end), data, &nfs_resop4::OP_WRITE(answer))).await?;
    }
    Ok(answer)
}

async fn carry_out(
    cx: &mut Context,
    entry: &Arc<FileEntry>,
    (offset, end): (u64, u64),
    data: Bytes,
    answer: &nfs_resop4,
) -> Result<(), OpError> {
    let mds = Arc::clone(&cx.server);
    let look = |inode: &Inode| (inode.inline().is_some(), inline::stays(&mds, inode, end));
    let (was_inline, stays) = pin!(cx.look(look)).await?;
    if was_inline {
        if stays && pin!(carry_out_inline(cx, entry, (offset, &data), answer)).await? {
            return Ok(());
        }
        // It has outgrown that, now or just before.
        Box::pin(inline::promote(&mds, entry.key)).await?;
        cx.forget_inode();
    }
    // In a box: what is inline need have no room for it.
    Box::pin(carry_out_at_data_servers(cx, entry, (offset, end), data, (answer, was_inline))).await
}

/// Writes to a file whose data is at data servers. `was_inline`: until just now it was not.
async fn carry_out_at_data_servers(
    cx: &mut Context,
    entry: &Arc<FileEntry>,
    (offset, end): (u64, u64),
    data: Bytes,
    (answer, was_inline): (&nfs_resop4, bool),
) -> Result<(), OpError> {
    let (client, key, mds) = (cx.client()?, entry.key, Arc::clone(&cx.server));
    let exclusive = cx.inode().await?.layout().is_some_and(|layout| layout.mirrors_dirty);
    let held = cx.server.prepare(entry, &Intent::ProxyIo { client, write: true, exclusive }).await?;
    // Before the layout is looked at: a heal that ends meanwhile changes where the data belongs.
    let gate = mds.heals.gate(key.fileid);
    let filling = gate.lock.read().await;
    // Looked at again under the ticket: a truncation may have swapped the data files. What is written to
    // counts as handed out, so that it is not placed anew.
    let inode = ready(&mds, key, &Use { bytes: offset..end, write: true, persist_rw: false }).await?;
    let layout = inode.layout().ok_or(nfsstat4::NFS4ERR_SERVERFAULT)?;
    let length = end - offset;
    let _room = room::to_grow(&mds, &cx.who, &inode, end).await?;
    match dsctl::write(&mds, layout, &filling, offset, data).await {
        Ok(true) => {}
        Ok(false) => gate.disturb(),
        Err(status) => {
            gate.disturb();
            heal::suspect(&mds, &inode).await?;
            return Err(leave::instead_of(&mds, &inode, offset..end, status).await.into());
        }
    }
    let commit = CommitSize { end: Some(end), ..CommitSize::default() };
    conclude(cx, key, &commit, answer).await?;
    held.commit()?;
    if was_inline {
        // The client did as `mdsthreshold` says: nothing is in its way.
        mds.metrics.add_inline(0, length);
    } else {
        mds.learn(entry, end.max(inode.size()));
        metrics::add(&mds.metrics.proxied_written, length);
        count_proxied(cx, client, entry, length);
    }
    Ok(())
}

/// Commits what was done at the data files of the current file, for the client that is told `answer`.
///
/// # Errors
/// What the store says.
pub(super) async fn conclude(
    cx: &mut Context,
    key: InodeKey,
    commit: &CommitSize,
    answer: &nfs_resop4,
) -> Result<(), OpError> {
    let (namespace, context) = (&cx.server.namespace, &*cx);
    let (pending, version) = cx
        .write(|mut txn| {
            Box::pin(async move {
                let request = context.request(sluice_namespace::DirectoryUpdate::Exact);
                let done = namespace.commit_size(&mut txn, &key, commit, &request).await?;
                context.record(&mut txn, answer);
                Ok(done)
            })
        })
        .await?;
    cx.left(pending.resolve(version).inode);
    Ok(())
}

/// Writes to a file whose data is in the store, in one transaction. `false`: it is not inline any more.
async fn carry_out_inline(
    cx: &mut Context,
    entry: &Arc<FileEntry>,
    (offset, data): (u64, &Bytes),
    answer: &nfs_resop4,
) -> Result<bool, OpError> {
    let (client, key) = (cx.client()?, entry.key);
    let intent = Intent::ProxyIo { client, write: true, exclusive: false };
    let held = pin!(cx.server.prepare(entry, &intent)).await?;
    let length = u64::try_from(data.len()).unwrap_or(0);
    let _room = match cx.server.quotas.any() {
        true => Box::pin(room_to_grow(cx, offset.saturating_add(length))).await?,
        false => None,
    };
    let (namespace, context) = (&cx.server.namespace, &*cx);
    let done = cx.write(|mut txn| {
        Box::pin(async move {
            let request = context.request(sluice_namespace::DirectoryUpdate::Exact);
            let done = pin!(namespace.write_inline(&mut txn, &key, (offset, data), &request)).await?;
            if done.is_some() {
                context.record(&mut txn, answer);
            }
            Ok(done)
        })
    });
    let (written, version) = pin!(done).await?;
    let Some(pending) = written else { return Ok(false) };
    held.commit()?;
    let inode = pending.resolve(version).inode;
    cx.server.learn(entry, inode.size());
    cx.left(inode);
    cx.server.metrics.add_inline(0, length);
    Ok(true)
}

/// Where somebody has limits. Under the ticket: until it was there, a truncation may have made the file smaller.
async fn room_to_grow(cx: &mut Context, size: u64) -> Result<Option<Pass>, OpError> {
    cx.forget_inode();
    let inode = cx.inode().await?;
    Ok(room::to_grow(&cx.server, &cx.who, &inode, size).await?)
}

impl Mds {
    /// Changes with every incarnation (§18.32.3); nothing that it protects is ever lost, since all is stable.
    pub(crate) fn write_verifier(&self) -> verifier4 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.mds_epoch.incarnation[..8]);
        verifier4(bytes)
    }
}
