//! RENAME. RFC 8881 §18.26: from the saved directory to the current one.

use std::pin::pin;

use sluice_namespace::{DirectoryUpdate, FsError, Inode, InodeKey, Name, Pending, Rename, Renamed, Unlinked};
use sluice_state::file::Intent;
use sluice_xdr::nfs4::{RENAME4args, RENAME4res, RENAME4resok, nfs_resop4, nfsstat4};

use super::lookup::not_a_directory;
use super::remove::{PATIENCE, as_prepared, calls_back, spare_export, unless_gone, unlink_ticket};
use crate::attr::change_info;
use crate::compound::{Context, OpError, OpResult};
use crate::files::{Held, file_id};
use crate::layout::{garbage, settle};
use crate::quota::{Pass, room};
use crate::transact::Attempts;

pub(crate) async fn rename(cx: &mut Context, args: RENAME4args) -> OpResult<RENAME4res> {
    let (from_name, to_name) = (cx.name(&args.oldname)?, cx.name(&args.newname)?);
    let (from, to) = (cx.saved()?, cx.current()?);
    if from.export != to.export {
        return Err(nfsstat4::NFS4ERR_XDEV.into());
    }
    for _ in 0..PATIENCE {
        let (source, target) = pin!(find_two(cx, (&from.inode, &from_name), (&to.inode, &to_name))).await?;
        spare_export(cx, &source)?;
        target.as_ref().map_or(Ok(()), |target| spare_export(cx, target))?;
        let mut rename = Rename {
            from: from.inode,
            from_name,
            to: to.inode,
            to_name,
            expect_source: Some(source.key),
            expect_target: Some(target.as_ref().map(|target| target.key)),
            target_open: true,
        };
        let calls = calls_back(cx, &source)?
            || match &target {
                Some(target) => calls_back(cx, target)?,
                None => false,
            };
        let refused = if calls { Box::pin(rehearse(cx, &rename)).await.err() } else { None };
        if calls && refused.is_none() {
            drop(pin!(room(cx, &source)).await?);
        }
        let renamed = match refused {
            Some(error) => Err(error),
            None => {
                let held = unless_gone(pin!(tickets(cx, &source, target.as_ref())).await)?;
                let Some((moving, replacing)) = held else { continue };
                let _room = pin!(room(cx, &source)).await?;
                let ticket = replacing.as_ref().and_then(Held::ticket);
                rename.target_open = ticket.is_some_and(sluice_state::file::Ticket::orphan);
                let done = pin!(transaction(cx, &rename, target.as_ref())).await;
                done.map(|done| ([moving, replacing], done))
            }
        };
        match renamed {
            Err(FsError::NameMoved) => {}
            Err(FsError::NotDirectory)
                if !source.is_directory() || target.as_ref().is_none_or(Inode::is_directory) =>
            {
                return Err(not_a_directory(cx).await);
            }
            Err(error) => return Err(error.into()),
            Ok((tickets, (pending, version))) => {
                for held in tickets.into_iter().flatten() {
                    held.commit()?;
                }
                let renamed = pending.resolve(version);
                if !source.is_directory() {
                    cx.server.watch_moved(&source.key).await;
                }
                let answer = answer(&renamed);
                if let Some(Unlinked::Removed { garbage: Some(row), .. }) = renamed.replaced {
                    garbage::queued(&cx.server, row);
                }
                return Ok(answer);
            }
        }
    }
    Err(nfsstat4::NFS4ERR_DELAY.into())
}

/// Room for a file in the quota tree that it moves into.
async fn room(cx: &Context, source: &Inode) -> Result<Option<Pass>, OpError> {
    if !cx.server.quotas.any() {
        return Ok(None);
    }
    // Not everybody's future shall have room for it.
    Box::pin(limited(cx, source)).await
}

/// Where somebody has limits. Under the ticket: until it was there, the file may have grown.
async fn limited(cx: &Context, source: &Inode) -> Result<Option<Pass>, OpError> {
    let moved = match settle::inode(&cx.server, source.key).await {
        // It has gone, which the transaction finds, too.
        Err(FsError::Stale) => return Ok(None),
        moved => moved?,
    };
    let into = settle::inode(&cx.server, cx.current()?.inode).await?;
    Ok(room::to_rename(&cx.server, &cx.who, &moved, &into).await?)
}

/// What the two names mean now; there must be something under the first.
///
/// # Errors
/// NOENT; as LOOKUP.
async fn find_two(
    cx: &mut Context,
    (from, old): (&InodeKey, &Name<'_>),
    (to, new): (&InodeKey, &Name<'_>),
) -> Result<(Inode, Option<Inode>), OpError> {
    let (namespace, who) = (&cx.server.namespace, &cx.who);
    let read = cx
        .server
        .read(|txn| Box::pin(async move { namespace.lookup_two(&txn, (from, old), (to, new), who).await }));
    let found = pin!(read).await;
    match found {
        Ok((Some(source), target)) => Ok((source, target)),
        Ok((None, _)) => Err(nfsstat4::NFS4ERR_NOENT.into()),
        Err(FsError::NotDirectory) => Err(not_a_directory(cx).await),
        Err(error) => Err(error.into()),
    }
}

fn answer(renamed: &Renamed) -> RENAME4res {
    RENAME4res::NFS4_OK(RENAME4resok {
        source_cinfo: change_info(renamed.source_directory),
        target_cinfo: change_info(renamed.target_directory),
    })
}

/// Tickets on the file that moves and on the one it replaces, taken in the order of their numbers so that
/// two renames cannot wait for each other.
async fn tickets(
    cx: &Context,
    source: &Inode,
    target: Option<&Inode>,
) -> Result<(Option<Held>, Option<Held>), OpError> {
    let Some(target) = target.filter(|target| target.key != source.key) else {
        return Ok((pin!(moving_ticket(cx, source)).await?, None));
    };
    if file_id(&source.key) < file_id(&target.key) {
        let moving = pin!(moving_ticket(cx, source)).await?;
        Ok((moving, pin!(unlink_ticket(cx, target)).await?))
    } else {
        let replacing = pin!(unlink_ticket(cx, target)).await?;
        Ok((pin!(moving_ticket(cx, source)).await?, replacing))
    }
}

/// Recalls what others hold of the file that moves (RFC 8881 §18.26.3: delegations).
async fn moving_ticket(cx: &Context, source: &Inode) -> Result<Option<Held>, OpError> {
    if source.is_directory() {
        return Ok(None);
    }
    let entry = pin!(cx.server.file(&source.key)).await?;
    let intent = Intent::SetAttributes { client: cx.client()? };
    let held = pin!(cx.server.prepare(&entry, &intent)).await?;
    cx.server.note_moved(file_id(&source.key));
    Ok(Some(held))
}

/// Tries it, and leaves it at that.
async fn rehearse(cx: &Context, rename: &Rename<'_>) -> Result<(), FsError> {
    let namespace = &cx.server.namespace;
    let tried = cx.server.read(|mut txn| {
        Box::pin(async move {
            let request = cx.request(DirectoryUpdate::Blind);
            namespace.rename(&mut txn, rename, &request).await.map(drop)
        })
    });
    tried.await
}

async fn transaction(
    cx: &Context,
    rename: &Rename<'_>,
    target: Option<&Inode>,
) -> Result<(Pending<Renamed>, u64), FsError> {
    let attempts = Attempts::default();
    let (namespace, attempts) = (&cx.server.namespace, &attempts);
    let done = cx.write(|mut txn| {
        Box::pin(async move {
            let request = cx.request(attempts.next());
            let pending = pin!(namespace.rename(&mut txn, rename, &request)).await?;
            if let (Some(target), Some(replaced)) = (target, &pending.peek().replaced) {
                as_prepared(target, replaced)?;
            }
            cx.record(&mut txn, &nfs_resop4::OP_RENAME(answer(pending.peek())));
            Ok(pending)
        })
    });
    pin!(done).await
}
