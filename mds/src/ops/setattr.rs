//! SETATTR. RFC 8881 §18.30.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{
    FsError, Inode, InodeKey, Kind, Namespace, SET_ID, SetAttr, SetSize, SetTime, TruncateIntent,
    TruncateOutcome,
};
use sluice_state::StateId;
use sluice_state::file::{File, Intent, LayoutFilter};
use sluice_state::stateid::special;
use sluice_xdr::nfs4::{FATTR4_SIZE, SETATTR4args, SETATTR4res, bitmap4, nfs_resop4, nfsstat4};

use crate::attr::delegated;
use crate::attr::set::Wanted;
use crate::compound::{Context, OpError, OpResult};
use crate::dsctl::{self, Cut};
use crate::files::{FileEntry, Held};
use crate::layout::garbage::Uncut;
use crate::layout::heal::leave;
use crate::layout::{self, Placed, garbage, inline, settle, times};
use crate::quota::{Pass, room};
use crate::server::Mds;

/// Between two attempts to finish a truncation.
const RETRY: Duration = Duration::from_millis(500);

pub(crate) async fn setattr(cx: &mut Context, args: SETATTR4args) -> OpResult<SETATTR4res> {
    if let Some(told) = delegated::decode(&cx.server, cx.minor, &args.obj_attributes)? {
        let answer = SETATTR4res { status: nfsstat4::NFS4_OK, attrsset: args.obj_attributes.attrmask };
        let stateid = cx.stateid(&args.stateid)?;
        delegated::set(cx, &stateid, told, &nfs_resop4::OP_SETATTR(answer.clone())).await?;
        return Ok(answer);
    }
    let wanted = Wanted::read(cx, &args.obj_attributes).await?;
    if wanted.is_for_new() {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    let stateid = cx.stateid(&args.stateid)?;
    let answer = SETATTR4res { status: nfsstat4::NFS4_OK, attrsset: wanted.mask };
    let result = nfs_resop4::OP_SETATTR(answer.clone());
    match wanted.size {
        Some(size) => set_size(cx, Some(&stateid), size, &wanted.set, &result).await?,
        None if wanted.beyond_size() => set_rest(cx, &wanted, &stateid, &result).await?,
        None => {}
    }
    Ok(answer)
}

fn gives_set_id(set: &SetAttr) -> bool {
    let masked = set.mode_masked.is_some_and(|(value, mask)| value & mask & SET_ID != 0);
    masked || set.mode.is_some_and(|mode| mode & SET_ID != 0)
}

/// Mode, access control list, owner and times.
async fn set_rest(
    cx: &mut Context,
    wanted: &Wanted,
    stateid: &StateId,
    result: &nfs_resop4,
) -> Result<(), OpError> {
    let key = cx.current()?.inode;
    let client = cx.client()?;
    let sets_id = gives_set_id(&wanted.set) && cx.inode().await?.kind() == Kind::File;
    if wanted.set.acl.is_some() {
        inline::room_for_names(&cx.server)?;
    }
    let entry = cx.server.file(&key).await?;
    let ordinary = special(stateid).ok().flatten().is_none();
    let writable_open = ordinary
        && cx.server.step(&entry, Some(client), |file, ctx| {
            (file.check_io(ctx, client, stateid, true).is_ok(), Vec::new())
        });
    if sets_id || entry.peek(|file| !file.delegated_to().is_empty()) {
        // Nobody gives back what he holds for a change that is refused.
        let inode = cx.inode().await?;
        let set = SetAttr { writable_open, ..wanted.set.clone() };
        Namespace::may_set(&inode, None, &set, &cx.request(sluice_namespace::DirectoryUpdate::Exact))?;
    }
    let mds = &cx.server;
    let intent = if sets_id {
        // Whoever holds a layout writes without being seen, and a write would take the bits away: see LAYOUTGET.
        Intent::SetSize { client, replace: true, fresh: false }
    } else {
        Intent::SetAttributes { client }
    };
    let held = mds.prepare(&entry, &intent).await?;
    // What was written before is not to move it: the LAYOUTCOMMIT of that comes with CLOSE, which may be much later.
    let look = if wanted.set.mtime.is_some() { Some(times::look(mds, &entry).await?) } else { None };
    let data_end = look.as_ref().and_then(|look| look.end);
    let _room = room_to_give(cx, key, &wanted.set, 0).await?;
    let (namespace, context) = (&mds.namespace, &*cx);
    let done = cx
        .write(|mut txn| {
            Box::pin(async move {
                let mut set = wanted.set.clone();
                set.writable_open = writable_open;
                set.data_end = data_end;
                let request = context.request(sluice_namespace::DirectoryUpdate::Exact);
                let done = namespace.setattr(&mut txn, &key, &set, &request).await?;
                context.record(&mut txn, result);
                Ok(done)
            })
        })
        .await;
    let done = mds.found_size(done)?;
    // What is made in a directory at the same time is not in it.
    if done.inode.is_directory() {
        cx.forget_inode()
    } else {
        cx.left(done.inode)
    }
    if let Some(look) = look {
        look.done(&entry);
    }
    held.commit()?;
    if gives(&wanted.set) {
        cx.server.watch_moved(&key).await;
    }
    Ok(())
}

/// Whether somebody else is charged for the file then.
fn gives(set: &SetAttr) -> bool {
    set.uid.is_some() || set.gid.is_some()
}

/// Room for a file of at least `size` bytes with whom it is given to.
async fn room_to_give(
    cx: &Context,
    key: InodeKey,
    set: &SetAttr,
    size: u64,
) -> Result<Option<Pass>, OpError> {
    if !gives(set) {
        return Ok(None);
    }
    let inode = settle::inode(&cx.server, key).await?;
    Ok(room::to_give(&cx.server, &cx.who, &inode, (set, size)).await?)
}

/// Sets the size of the current file (truncation, extension, or the same size again) and, together with it, the `rest`.
/// `stateid`: the one the client sent, checked for write access; `None` when the caller has checked (OPEN). `result`:
/// how the operation is answered.
///
/// # Errors
/// What the state, the permissions and the store say: nothing was changed then, unless it is DELAY.
pub(super) async fn set_size(
    cx: &mut Context,
    stateid: Option<&StateId>,
    size: u64,
    rest: &SetAttr,
    result: &nfs_resop4,
) -> Result<(), OpError> {
    let mut inode = cx.inode().await?;
    match inode.kind() {
        Kind::File => {}
        Kind::Directory => return Err(nfsstat4::NFS4ERR_ISDIR.into()),
        // §18.30.4: the size of anything else cannot be set.
        _ => return Err(nfsstat4::NFS4ERR_INVAL.into()),
    }
    let client = cx.client()?;
    let mds = &cx.server;
    let entry = mds.file(&inode.key).await?;
    let mut writable_open = stateid.is_none();
    if let Some(stateid) = stateid {
        writable_open = special(stateid).ok().flatten().is_none();
        if writable_open {
            // Tells revoked, stale and foreign stateids apart; the machine knows only its own.
            cx.state_entry(stateid)?;
        }
        mds.step(&entry, Some(client), |file, ctx| (file.check_io(ctx, client, stateid, true), Vec::new()))?;
    }
    let rest = SetAttr { writable_open, ..rest.clone() };
    // Nobody gives back what he holds, and no file gets data files, for a change that is refused.
    let request = cx.request(sluice_namespace::DirectoryUpdate::Exact);
    Namespace::may_set(&inode, Some(writable_open), &rest, &request)?;
    if inode.inline().is_some_and(|inline| !inline.holds(size)) {
        inline::promote(mds, inode.key).await?;
        inode = settle::inode(mds, inode.key).await?;
    }
    // Before that is done there is no other size, but with other data files, and nobody waits for what refuses it.
    let uncut = mds.uncut_status(inode.key.fileid);
    let stuck = uncut.is_some_and(|status| status == nfsstat4::NFS4ERR_IO || cannot_cut(mds, &inode));
    if stuck && size > 0 {
        return Err(nfsstat4::NFS4ERR_IO.into());
    }
    let swap = size == 0 && (stuck || wants_fresh(mds, &entry, &inode).await);
    if swap && inode.layout().is_some_and(|layout| !dsctl::can_cut(mds, layout)) {
        // Nobody gives back what he holds for what finds no place, as often as it is tried.
        drop(other_files(mds, &inode).await?);
    }
    // Whoever holds a layout writes without being seen, and a write would take set-id bits away: see LAYOUTGET.
    let replace = swap || gives_set_id(&rest);
    let intent = Intent::SetSize { client, replace, fresh: swap };
    let mut held = match settle::prepare(mds, &entry, &intent).await {
        // Where it ended matters no more, nor who knows.
        Err(OpError::Status(nfsstat4::NFS4ERR_IO)) if swap => mds.prepare(&entry, &intent).await?,
        // Nor is it found out before it is cut.
        Err(OpError::Status(nfsstat4::NFS4ERR_DELAY)) if swap && mds.is_uncut(inode.key.fileid) => {
            mds.prepare(&entry, &intent).await?
        }
        held => {
            let held = held?;
            settle::settle_size(mds, &inode.key).await?;
            held
        }
    };
    // It may have grown, or moved, until the ticket was there.
    let inode = settle::inode(mds, inode.key).await?;
    // Cut where it is, or where it ends already, all of it must be there, and may be changed. Once committed it would keep
    // everybody from writing to the file.
    if !swap && size <= inode.size() && cannot_cut(mds, &inode) {
        return Err(nfsstat4::NFS4ERR_IO.into());
    }
    let _room = (room(cx, &inode, size).await?, room_to_give(cx, inode.key, &rest, size).await?);
    let fresh = if swap { other_files(mds, &inode).await? } else { None };
    if stuck && fresh.is_none() && mds.is_uncut(inode.key.fileid) {
        return Err(nfsstat4::NFS4ERR_IO.into());
    }
    let (fresh, placing) = fresh.map(|placed| (placed.layout, placed.placing)).unzip();
    let old = inode.layout().filter(|_| fresh.is_some()).cloned();
    let set = SetSize { size, fresh, old, writable_open };
    held.cut();
    let cut = truncate(cx, &inode, &set, &rest, result).await;
    drop(placing);
    let left = cut?;
    if gives(&rest) {
        mds.watch_moved(&inode.key).await;
    }
    if let Some(left) = left {
        // Committed and not carried out: nobody writes to the file before it is.
        mds.spawn(finish(Arc::clone(mds), held, entry, left));
        return Err(nfsstat4::NFS4ERR_DELAY.into());
    }
    // This moment, as ftruncate(2) has it, goes on with what is written: no data server is asked for it.
    if matches!(rest.mtime, Some(SetTime::To(_))) {
        // All is done: what is not noted now counts as written later.
        times::look(mds, &entry).await.unwrap_or_default().done(&entry);
    }
    held.commit()?;
    cx.forget_inode();
    Ok(())
}

/// Whether some of it cannot be cut where it is, nor soon.
fn cannot_cut(mds: &Mds, inode: &Inode) -> bool {
    inode.layout().is_some_and(|layout| dsctl::uncuttable(mds, layout).is_some())
}

/// Whether an empty file gets other data files, so that no data server is waited for. Where there are layouts it keeps
/// those that it has, and its writers their layouts; unless one is lost, or at a data server that was given up, or is
/// read-only: nobody could write to it again.
async fn wants_fresh(mds: &Arc<Mds>, entry: &FileEntry, inode: &Inode) -> bool {
    // What was written there perhaps nobody was told of.
    if cannot_cut(mds, inode) {
        return true;
    }
    let written = inode.layout().is_some_and(|layout| layout.data_files().any(|file| file.materialised));
    if entry.peek(File::has_layouts) {
        return written && dsctl::observe(mds, inode).await.is_ok_and(|seen| seen.lost);
    }
    inode.size() > 0 || written
}

/// Other data files for one that is emptied. `None`: there is no place for them, and it is cut where it is.
///
/// # Errors
/// Why there is no place, where it cannot be cut either: nobody may read or write what is to be cut before it is.
async fn other_files(mds: &Arc<Mds>, inode: &Inode) -> Result<Option<Placed>, nfsstat4> {
    let Some(old) = inode.layout() else { return Ok(None) };
    match layout::fresh(mds, old).await {
        Ok(placed) => Ok(Some(placed)),
        Err(_) if dsctl::can_cut(mds, old) => Ok(None),
        // As whoever reads it is told: what was waited for so long may not come back.
        Err(nfsstat4::NFS4ERR_DELAY) if dsctl::has_hopeless(mds, old) => Err(nfsstat4::NFS4ERR_IO),
        Err(status) => Err(status),
    }
}

/// Room for a file that grows.
async fn room(cx: &Context, inode: &Inode, size: u64) -> Result<Option<Pass>, OpError> {
    if size <= inode.size() || !cx.server.quotas.any() {
        return Ok(None);
    }
    Ok(room::to_grow(&cx.server, &cx.who, inode, size).await?)
}

/// What is left of a truncation.
struct Left {
    inode: Inode,
    size: u64,
    cut: Cut,
}

/// Carries out the rest of a truncation, however long it takes, without the mirrors that are away: a client
/// that comes again waits behind the ticket. Whoever has a layout, and be it the client that asked for this, goes on writing: it
/// comes back first, or what is written meanwhile would be cut off.
async fn finish(mds: Arc<Mds>, held: Held, entry: Arc<FileEntry>, mut left: Left) {
    held.let_commits_in();
    loop {
        if all_came_back(&mds, &entry) {
            let Left { inode, size, cut } = &mut left;
            match carry_out(&mds, inode, *size, cut).await {
                Ok(()) => break,
                Err(error) if is_refused(&mds, inode, &error) => {
                    // Before the ticket ends, so that nobody finds the file without either.
                    let intent = TruncateIntent { inode: inode.key, size: *size };
                    mds.uncut.lock().insert(inode.key.fileid, Arc::new(Uncut::new(intent, left.cut)));
                    break;
                }
                Err(_) => {}
            }
        }
        mds.env.clock.sleep(RETRY).await;
        leave::under_ticket(&mds, &entry).await;
        let (namespace, key) = (&mds.namespace, left.inode.key);
        match mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await {
            Ok(now) => left.inode = now,
            Err(FsError::Stale) => return,
            Err(_) => {}
        }
    }
    drop(held.commit());
}

/// A data server will not cut it for now, as one that is read-only, and the file cannot go on without it: nobody knows for how long. Until
/// then what is left of it can be read: nobody waits for the ticket.
fn is_refused(mds: &Mds, inode: &Inode, error: &OpError) -> bool {
    let waits = matches!(error, OpError::Status(nfsstat4::NFS4ERR_DELAY));
    !waits && inode.layout().is_some_and(|layout| leave::away(mds, layout).is_empty())
}

/// Whether nobody has a layout of it; whoever has is asked for it. Without the ticket a writer would write what is cut off later, and
/// tell of an end that is none.
fn all_came_back(mds: &Arc<Mds>, entry: &Arc<FileEntry>) -> bool {
    let out = entry.peek(File::has_layouts);
    if out {
        mds.step(entry, None, |file, ctx| ((), file.recall_layouts(ctx, LayoutFilter::All, false)));
    }
    !out
}

/// Truncates in the store, with all else that is set, then the data files; what is left when a data server is away.
async fn truncate(
    cx: &Context,
    inode: &Inode,
    set: &SetSize,
    rest: &SetAttr,
    result: &nfs_resop4,
) -> Result<Option<Left>, OpError> {
    let (mds, key) = (&cx.server, inode.key);
    let namespace = &mds.namespace;
    // Left alone, an intent would keep every later truncation away, and cut off what was written since; and data files of which nobody
    // knows whose they are would have to stay until the next start.
    let witness = match &set.fresh {
        Some(fresh) => Namespace::witness_of_taking(fresh),
        None => Namespace::witness_of_truncation(key.fileid),
    };
    let (pending, version) = cx
        .write_witnessed(witness, |mut txn| {
            Box::pin(async move {
                let request = cx.request(sluice_namespace::DirectoryUpdate::Exact);
                let pending = namespace.truncate_and(&mut txn, &key, set, rest, &request).await?;
                cx.record(&mut txn, result);
                Ok(pending)
            })
        })
        .await?;
    let done = pending.resolve(version);
    match done.outcome {
        TruncateOutcome::Done => {}
        TruncateOutcome::Swapped(row) => {
            // What was to be cut is no part of the file any more.
            mds.uncut.lock().remove(&key.fileid);
            garbage::queued(mds, row);
        }
        TruncateOutcome::Intent(_) => {
            let mut left = Left { inode: done.inode, size: set.size, cut: Cut::default() };
            if carry_out(mds, &left.inode, left.size, &mut left.cut).await.is_err() {
                return Ok(Some(left));
            }
        }
    }
    Ok(None)
}

/// Truncates the data files of a committed intent, then clears it. Those that are `cut` already are let be.
///
/// # Errors
/// A data server could not be reached: the intent stays, the client is told to come again.
async fn carry_out(mds: &Arc<Mds>, inode: &Inode, size: u64, cut: &mut Cut) -> Result<(), OpError> {
    cut_off(mds, inode, size, cut).await?;
    let namespace = &mds.namespace;
    mds.write(|mut txn| {
        Box::pin(async move {
            namespace.truncate_done(&mut txn, inode.key.fileid);
            Ok(())
        })
    })
    .await?;
    Ok(())
}

/// The same of intents found at start, and of those that were refused: there is no ticket, and whoever empties the file meanwhile
/// gives it other data files, and perhaps another intent.
///
/// # Errors
/// As there.
pub(crate) async fn carry_out_alone(
    mds: &Arc<Mds>,
    inode: &Inode,
    size: u64,
    cut: &mut Cut,
) -> Result<(), OpError> {
    cut_off(mds, inode, size, cut).await?;
    let namespace = &mds.namespace;
    mds.write(|mut txn| {
        Box::pin(async move {
            let now = namespace.getattr(&txn, &inode.key).await?;
            let id = |inode: &Inode| inode.layout().map(|layout| layout.id);
            if id(&now) == id(inode) {
                namespace.truncate_done(&mut txn, inode.key.fileid);
            }
            Ok(())
        })
    })
    .await?;
    Ok(())
}

async fn cut_off(mds: &Arc<Mds>, inode: &Inode, size: u64, cut: &mut Cut) -> Result<(), nfsstat4> {
    let Some(layout) = inode.layout() else { return Ok(()) };
    let done = dsctl::truncate(mds, layout, size, cut).await;
    if let Some(gate) = mds.heals.busy(inode.key.fileid) {
        gate.disturb();
    }
    done
}

/// What SETATTR and OPEN say they set when only the size was.
pub(super) const SIZE_ONLY: bitmap4 = bitmap4::of(&[FATTR4_SIZE]);
