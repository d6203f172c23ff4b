//! REMOVE. RFC 8881 §18.25.

use std::pin::pin;

use sluice_namespace::{
    DirectoryChange, DirectoryUpdate, FsError, Inode, InodeKey, Name, Pending, Remove, Removed, Unlinked,
};
use sluice_state::file::Intent;
use sluice_xdr::nfs4::{REMOVE4args, REMOVE4res, REMOVE4resok, nfs_resop4, nfsstat4};

use super::lookup::not_a_directory;
use crate::attr::change_info;
use crate::compound::{Context, OpError, OpResult};
use crate::files::{Held, file_id};
use crate::layout::garbage;
use crate::transact::Attempts;

/// How often a name may turn out to mean another file before the client is told to come again.
pub(super) const PATIENCE: usize = 16;

pub(crate) async fn remove(cx: &mut Context, args: REMOVE4args) -> OpResult<REMOVE4res> {
    let target = cx.name(&args.target)?;
    let directory = cx.current()?.inode;
    for _ in 0..PATIENCE {
        let Some(found) = pin!(find(cx, &directory, &target)).await? else {
            return Err(nfsstat4::NFS4ERR_NOENT.into());
        };
        spare_export(cx, &found)?;
        let refused = match calls_back(cx, &found)? {
            true => Box::pin(rehearse(cx, directory, target, &found)).await.err(),
            false => None,
        };
        let removed = match refused {
            Some(error) => Err(error),
            None => {
                let Some(held) = unless_gone(pin!(unlink_ticket(cx, &found)).await)? else { continue };
                let done = pin!(transaction(cx, directory, target, &found, held.as_ref())).await;
                done.map(|done| (held, done))
            }
        };
        match removed {
            Err(FsError::NameMoved) => {}
            Err(FsError::NotDirectory) => return Err(not_a_directory(cx).await),
            Err(error) => return Err(error.into()),
            Ok((held, (pending, version))) => {
                if let Some(held) = held {
                    held.commit()?;
                }
                let removed = pending.resolve(version);
                if let Unlinked::Removed { garbage: Some(row), .. } = removed.unlinked {
                    garbage::queued(&cx.server, row);
                }
                return Ok(answer(removed.directory));
            }
        }
    }
    Err(nfsstat4::NFS4ERR_DELAY.into())
}

fn answer(directory: DirectoryChange) -> REMOVE4res {
    REMOVE4res::NFS4_OK(REMOVE4resok { cinfo: change_info(directory) })
}

/// What `name` means in `directory` now.
///
/// # Errors
/// As LOOKUP, but NOENT is `None`.
pub(in crate::ops) async fn find(
    cx: &mut Context,
    directory: &InodeKey,
    name: &Name<'_>,
) -> Result<Option<Inode>, OpError> {
    let (namespace, who) = (&cx.server.namespace, &cx.who);
    let read =
        cx.server.read(|txn| Box::pin(async move { namespace.lookup(&txn, directory, name, who).await }));
    let found = pin!(read).await;
    match found {
        Ok(found) => Ok(Some(found.inode)),
        Err(FsError::NotFound) => Ok(None),
        Err(FsError::NotDirectory) => Err(not_a_directory(cx).await),
        Err(error) => Err(error.into()),
    }
}

/// A directory where an export begins keeps its name and place, as one that is mounted on does.
///
/// # Errors
/// FILE_OPEN, which is EBUSY to Linux.
pub(super) fn spare_export(cx: &Context, found: &Inode) -> Result<(), nfsstat4> {
    if cx.exports.is_root(&found.key) { Err(nfsstat4::NFS4ERR_FILE_OPEN) } else { Ok(()) }
}

/// Whether others are asked for what they hold before a name of the file goes. Nobody gives that back for what is refused: it is
/// tried before, in a transaction that only reads.
pub(super) fn calls_back(cx: &Context, found: &Inode) -> Result<bool, nfsstat4> {
    let client = cx.client()?;
    let entry = cx.server.files.get(file_id(&found.key));
    Ok(entry.is_some_and(|entry| entry.peek(|file| file.is_delegated_beside(client))))
}

async fn rehearse(cx: &Context, directory: InodeKey, name: Name<'_>, found: &Inode) -> Result<(), FsError> {
    let remove = Remove { directory, name, expect: Some(found.key), open: true };
    let (namespace, remove) = (&cx.server.namespace, &remove);
    let tried = cx.server.read(|mut txn| {
        Box::pin(async move {
            let request = cx.request(DirectoryUpdate::Blind);
            namespace.remove(&mut txn, remove, &request).await.map(drop)
        })
    });
    tried.await
}

/// The right to take a name from a file; directories hold no state and need none.
///
/// # Errors
/// What the file's state says.
pub(super) async fn unlink_ticket(cx: &Context, found: &Inode) -> Result<Option<Held>, OpError> {
    if found.is_directory() {
        return Ok(None);
    }
    let entry = pin!(cx.server.file(&found.key)).await?;
    let intent = Intent::Unlink { client: cx.client()?, last_link: found.nlink() <= 1 };
    let held = pin!(cx.server.prepare(&entry, &intent)).await?;
    cx.server.note_moved(file_id(&found.key));
    Ok(Some(held))
}

/// The tickets for what names meant; `None` if it has gone since, and the operation starts over: STALE is said of
/// filehandles (RFC 8881 §15.1.2.7), and these are not the client's.
///
/// # Errors
/// Any other.
pub(super) fn unless_gone<T>(tickets: Result<T, OpError>) -> Result<Option<T>, OpError> {
    match tickets {
        Ok(tickets) => Ok(Some(tickets)),
        Err(OpError::Status(nfsstat4::NFS4ERR_STALE)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether what happened is what the ticket was for; if not, the operation starts over.
///
/// # Errors
/// NameMoved.
pub(super) fn as_prepared(found: &Inode, unlinked: &Unlinked) -> Result<(), FsError> {
    let last = !matches!(unlinked, Unlinked::Linked(_));
    if found.is_directory() || last == (found.nlink() <= 1) { Ok(()) } else { Err(FsError::NameMoved) }
}

async fn transaction(
    cx: &Context,
    directory: InodeKey,
    name: Name<'_>,
    found: &Inode,
    held: Option<&Held>,
) -> Result<(Pending<Removed>, u64), FsError> {
    let open = held.and_then(Held::ticket).is_some_and(sluice_state::file::Ticket::orphan);
    let remove = Remove { directory, name, expect: Some(found.key), open };
    let attempts = Attempts::default();
    let (namespace, remove, attempts) = (&cx.server.namespace, &remove, &attempts);
    let done = cx.write(|mut txn| {
        Box::pin(async move {
            let request = cx.request(attempts.next());
            let pending = pin!(namespace.remove(&mut txn, remove, &request)).await?;
            as_prepared(found, &pending.peek().unlinked)?;
            cx.record(&mut txn, &nfs_resop4::OP_REMOVE(answer(pending.peek().directory)));
            Ok(pending)
        })
    });
    pin!(done).await
}
