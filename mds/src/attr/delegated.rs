//! Times that the holder of a write delegation answers for. RFC 9754 §5. What of it is believed: mds/state/src/times.rs.

use std::sync::Arc;

use sluice_env::Wall;
use sluice_namespace::{Credential, DirectoryUpdate, FsError, Inode, KeptTimes, Request, SetAttr};
use sluice_state::delegation::Writer;
use sluice_state::file::{Error, Intent};
use sluice_state::times::Times;
use sluice_state::{ClientId, StateId};
use sluice_xdr::nfs4::{
    Attributes, FATTR4_TIME_DELEG_ACCESS, FATTR4_TIME_DELEG_MODIFY, bitmap4, fattr4, nfs_resop4, nfsstat4,
    nfstime4,
};

use crate::compound::{Context, OpError};
use crate::config::Delegations;
use crate::files::FileEntry;
use crate::layout::{settle, times};
use crate::server::Mds;

/// What the holder says in a SETATTR, and is asked in a CB_GETATTR.
pub(crate) const DELEGATED: bitmap4 = bitmap4::of(&[FATTR4_TIME_DELEG_ACCESS, FATTR4_TIME_DELEG_MODIFY]);

/// Whether clients are told that they may.
pub(crate) fn offered(mds: &Mds) -> bool {
    mds.config.delegations == Delegations::Times
}

/// Times of an inode, as the state of a file has them.
pub(crate) fn stamps(access: Wall, modify: Wall) -> Times {
    let stamp = |at: Wall| Some((at.seconds, at.nanos));
    Times { access: stamp(access), modify: stamp(modify) }
}

/// What a holder said, if it is times at all.
pub(crate) fn said(attributes: &Attributes) -> Option<Times> {
    let sound = |at: Option<nfstime4>| at.is_none_or(|at| at.nseconds < 1_000_000_000);
    let stamp = |at: Option<nfstime4>| at.map(|at| (at.seconds, at.nseconds));
    let (access, modify) = (attributes.time_deleg_access, attributes.time_deleg_modify);
    let times = Times { access: stamp(access), modify: stamp(modify) };
    (sound(access) && sound(modify)).then_some(times)
}

/// A SETATTR of these times; `None`: of something else. RFC 9754 §5: a holder sends them on their own, before it returns
/// the delegation. Beside other attributes they are what may not be set (INVAL), and where they are not offered what is
/// not supported (ATTRNOTSUPP): RFC 8881 §18.30.3.
///
/// # Errors
/// BADXDR, INVAL.
pub(crate) fn decode(mds: &Mds, minor: u32, from: &fattr4) -> Result<Option<Times>, nfsstat4> {
    let alone = !from.attrmask.is_empty() && from.attrmask.without(DELEGATED).is_empty();
    if !alone || minor < 2 || !offered(mds) {
        return Ok(None);
    }
    let values = Attributes::decode(from).map_err(|_| nfsstat4::NFS4ERR_BADXDR)?;
    said(&values).ok_or(nfsstat4::NFS4ERR_INVAL).map(Some)
}

/// SETATTR of them. Whoever holds the delegation may write, and so may move these times: no permission is asked for.
///
/// # Errors
/// BAD_STATEID: it is not of such a delegation. What the state and the store say.
pub(crate) async fn set(
    cx: &mut Context,
    stateid: &StateId,
    told: Times,
    result: &nfs_resop4,
) -> Result<(), OpError> {
    let (key, client) = (cx.current()?.inode, cx.client()?);
    let entry = cx.state_entry(stateid)?;
    let mds = &cx.server;
    // LAYOUTCOMMITs of what was written stay out meanwhile.
    let held = mds.prepare(&entry, &Intent::SetAttributes { client }).await?;
    let believed = || believe(mds, &entry, (client, stateid), told, mds.env.clock.wall()).map(wall);
    let kept = believed()?;
    let access = settle::inode(mds, key).await?.record.atime;
    if kept.mtime.is_none() && kept.atime.is_none_or(|at| at == access) {
        held.commit()?;
        return Ok(());
    }
    // A LAYOUTCOMMIT of what was written before may follow, and is not to move the time again.
    let look = if kept.mtime.is_some() { Some(times::look(mds, &entry).await?) } else { None };
    let data_end = look.as_ref().and_then(|look| look.end);
    let (namespace, context, believed) = (&mds.namespace, &*cx, &believed);
    let done = cx
        .write(|mut txn| {
            Box::pin(async move {
                // Judged by each try, after the inode was read: what a look shows from then on conflicts.
                namespace.getattr(&txn, &key).await?;
                let kept = Some(believed().unwrap_or_default());
                let set = SetAttr { kept, data_end, ..SetAttr::default() };
                let request = context.request(DirectoryUpdate::Exact);
                let done = namespace.setattr(&mut txn, &key, &set, &request).await?;
                context.record(&mut txn, result);
                Ok(done)
            })
        })
        .await;
    mds.found_size(done)?;
    if let Some(look) = look {
        look.done(&entry);
    }
    held.commit()?;
    Ok(())
}

/// What a holder that was asked said, where it counts, becomes what the file shows, and the change attribute moves.
///
/// # Errors
/// What the store says.
pub(crate) async fn show(
    mds: &Arc<Mds>,
    entry: &Arc<FileEntry>,
    writer: &Writer,
    told: Times,
) -> Result<(), FsError> {
    let request =
        Request { who: &Credential::ROOT, now: mds.env.clock.wall(), directory: DirectoryUpdate::Exact };
    let (namespace, request) = (&mds.namespace, &request);
    mds.write(|mut txn| {
        Box::pin(async move {
            // As in `set`.
            namespace.getattr(&txn, &entry.key).await?;
            let holder = (writer.client, &writer.stateid);
            let Ok(times) = believe(mds, entry, holder, told, request.now) else { return Ok(()) };
            let set = SetAttr { kept: Some(wall(times)), ..SetAttr::default() };
            namespace.setattr(&mut txn, &entry.key, &set, request).await.map(drop)
        })
    })
    .await
    .map(drop)
}

/// Another client is shown this file.
pub(crate) fn shown(mds: &Arc<Mds>, entry: &Arc<FileEntry>, inode: &Inode) {
    let modify = inode.mtime();
    mds.step(entry, None, |file, _| (file.time_shown((modify.seconds, modify.nanos)), Vec::new()));
}

/// Which of them count.
///
/// # Errors
/// BadStateid: the delegation is not there any more, or leaves the times to this server.
pub(crate) fn believe(
    mds: &Arc<Mds>,
    entry: &Arc<FileEntry>,
    (client, stateid): (ClientId, &StateId),
    told: Times,
    now: Wall,
) -> Result<Times, Error> {
    mds.step(entry, None, |file, _| {
        (file.keep_times(client, stateid, told, (now.seconds, now.nanos)), Vec::new())
    })
}

fn wall(times: Times) -> KeptTimes {
    let wall = |(seconds, nanos)| Wall { seconds, nanos };
    KeptTimes { atime: times.access.map(wall), mtime: times.modify.map(wall) }
}
