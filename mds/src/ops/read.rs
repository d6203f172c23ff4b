//! READ through this server. RFC 8881 §18.22. A mount whose clients reach the data servers sends none but of
//! files whose data is here (docs/adr/0020).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use sluice_namespace::{Credential, FsError, InlineData, Inode, Want};
use sluice_state::file::Intent;
use sluice_state::{ClientId, StateId};
use sluice_xdr::nfs4::{READ4args, READ4res, READ4resok, nfsstat4, stateid4};

use super::lock::must_be_file;
use crate::attr::get::MAX_IO;
use crate::compound::{Context, OpError, OpResult};
use crate::files::{FileEntry, Held};
use crate::layout::ready::{Use, ready};
use crate::layout::reason::Reason;
use crate::layout::settle;
use crate::{dsctl, metrics};

/// Bytes of the result around the data: number, status, eof, length.
const AROUND: usize = 32;

pub(crate) async fn read(cx: &mut Context, args: READ4args) -> OpResult<READ4res> {
    let room = u64::try_from(cx.reply_room.saturating_sub(AROUND)).unwrap_or(0);
    let asked = u64::from(args.count).min(MAX_IO).min(room);
    let Admitted { held, inode, inline } = pin!(admit(cx, &args.stateid, args.offset, asked)).await?;
    let length = inode.size().saturating_sub(args.offset).min(asked);
    let is_inline = inline.is_some();
    let data = match (length, inline, inode.layout()) {
        (0, _, _) => Bytes::new(),
        (_, Some(data), _) => data,
        // Size without data: a file that was only extended.
        (_, None, None) => Bytes::from(vec![0; usize::try_from(length).unwrap_or(0)]),
        (_, None, Some(layout)) => {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            Box::pin(dsctl::read(&cx.server, layout, args.offset, length)).await?
        }
    };
    done(cx, held, length, is_inline)?;
    let eof = args.offset.saturating_add(length) >= inode.size();
    Ok(READ4res::NFS4_OK(READ4resok { eof, data }))
}

/// The right to read a range.
pub(super) struct Admitted {
    pub(super) held: Held,
    /// The file as it is now.
    pub(super) inode: Inode,
    /// The bytes of the range that the file has, if it is inline.
    pub(super) inline: Option<Bytes>,
}

/// A ticket to read a range of the current file, and the file as it is now.
///
/// # Errors
/// What the state, the mode, the store and the data servers say.
pub(super) async fn admit(
    cx: &mut Context,
    stateid: &stateid4,
    offset: u64,
    length: u64,
) -> Result<Admitted, OpError> {
    pin!(must_be_file(cx)).await?;
    let stateid = cx.stateid(stateid)?;
    let entry = pin!(permit_io(cx, &stateid, false)).await?;
    let (client, key) = (cx.client()?, entry.key);
    let intent = Intent::ProxyIo { client, write: false, exclusive: false };
    let held = pin!(cx.server.prepare(&entry, &intent)).await?;
    pin!(settle::settle_size(&cx.server, &key)).await?;
    let namespace = &cx.server.namespace;
    let read = cx
        .server
        .read(|txn| Box::pin(async move { namespace.read_inline(&txn, &key, offset, length).await }));
    let InlineData { mut inode, data: inline } = pin!(read).await?;
    cx.saw(&inode);
    if inode.layout().is_some_and(|layout| layout.mirrors_dirty) {
        let bytes = offset..offset.saturating_add(length);
        // Hardly ever: not everybody's future shall have room for it.
        inode = Box::pin(ready(&cx.server, key, &Use { bytes, write: false, persist_rw: false })).await?;
    }
    Ok(Admitted { held, inode, inline })
}

/// So many bytes were read under the ticket.
///
/// # Errors
/// A revocation or expiry came meanwhile.
pub(super) fn done(cx: &Context, held: Held, length: u64, inline: bool) -> Result<(), OpError> {
    let (client, entry) = (cx.client()?, held.entry());
    held.commit()?;
    if inline {
        cx.server.metrics.add_inline(length, 0);
        return Ok(());
    }
    metrics::add(&cx.server.metrics.proxied_read, length);
    count_proxied(cx, client, &entry, length);
    Ok(())
}

/// May this stateid read (or write) the current file? An ordinary one was judged at OPEN; a special one, and reading
/// under an open that is for writing alone, is judged by the file's mode now. The file's state.
///
/// # Errors
/// What the state and the mode say.
pub(super) async fn permit_io(
    cx: &mut Context,
    stateid: &StateId,
    write: bool,
) -> Result<Arc<FileEntry>, OpError> {
    let client = cx.client()?;
    let special = sluice_state::stateid::special(stateid).ok().flatten().is_some();
    let entry = if special {
        let key = cx.current()?.inode;
        pin!(cx.server.file(&key)).await?
    } else {
        // Tells revoked, stale and foreign stateids apart; the machine knows only its own.
        cx.state_entry(stateid)?
    };
    let unasked = cx.server.step(&entry, Some(client), |file, ctx| {
        let permitted = file.check_io(ctx, client, stateid, write);
        (permitted.map(|()| !write && file.is_for_writing_alone(stateid)), Vec::new())
    })?;
    if special {
        let inode: Inode = cx.inode().await?;
        inode.record.owned().require(&cx.who, if write { Want::WRITE } else { Want::READ })?;
    } else if unasked {
        may_read(&cx.inode().await?, &cx.who)?;
    }
    Ok(entry)
}

/// May somebody read what he has opened for writing alone? As if he opened it for reading, or because it is his: he could give himself
/// the right, and may have made the file without.
///
/// # Errors
/// ACCESS.
pub(crate) fn may_read(inode: &Inode, who: &Credential) -> Result<(), FsError> {
    let owned = inode.record.owned();
    // A client that executes a file must read it.
    let may = owned.permits(who, Want::READ)
        || owned.permits(who, Want::EXECUTE)
        || owned.require_owner(who).is_ok();
    if may { Ok(()) } else { Err(FsError::Access) }
}

/// Counts what went through this server, and why: an administrator wants to know.
pub(super) fn count_proxied(cx: &Context, client: ClientId, entry: &FileEntry, bytes: u64) {
    let Some(session) = &cx.session else { return };
    let otherwise = if !cx.server.config.layouts {
        // Clients are not told of layouts, and do not ask.
        Reason::Off
    } else if let Some(store) = cx.server.reports.done_without(cx.server.now(), client) {
        Reason::Unreachable(store)
    } else if entry.peek(|file| file.layout_of(client).is_some()) {
        Reason::Unused
    } else if session.entry.asks_layouts.load(Ordering::Relaxed) {
        Reason::NotAsked
    } else {
        Reason::NeverAsked
    };
    cx.server.proxied.count(cx.server.now(), client, entry.key.fileid, bytes, otherwise);
}

/// The range ends within the largest file.
///
/// # Errors
/// INVAL beyond 2^64, FBIG beyond what a file can hold.
pub(super) fn bounded(offset: u64, length: u64) -> Result<u64, nfsstat4> {
    let end = offset.checked_add(length).ok_or(nfsstat4::NFS4ERR_INVAL)?;
    if i64::try_from(end).is_ok() { Ok(end) } else { Err(nfsstat4::NFS4ERR_FBIG) }
}
