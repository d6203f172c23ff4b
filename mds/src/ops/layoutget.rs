//! LAYOUTGET. RFC 8881 §18.43, RFC 8435 §5.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{Charged, DirectoryUpdate, Inode, InodeKey, SET_ID};
use sluice_state::effect::{Call, IoMode};
use sluice_state::file::{Error, File, Intent, Reply, Ticket};
use sluice_state::stateid::{Special, special};
use sluice_state::{ClientId, StateId};
use sluice_xdr::nfs4::{
    LAYOUTGET4args, LAYOUTGET4res, LAYOUTGET4resok, layout_content4, layout4, layoutiomode4, layouttype4,
    nfs_resop4, nfsstat4,
};

use super::read::may_read;
use crate::compound::context::{from_wire, to_wire};
use crate::compound::{Context, OpError, OpResult};
use crate::dsctl::{self, epochs};
use crate::files::{FileEntry, Held};
use crate::layout::grant::{self, Ask, Granted};
use crate::layout::ready::{Use, ready_for};
use crate::layout::reason::Reason;
use crate::layout::settle;
use crate::metrics;
use crate::quota::Amount;
use crate::server::Mds;

/// Bytes of the result around the body of the one layout: number, status, return_on_close, stateid, how many layouts,
/// offset, length, iomode, type, length of the body.
pub(crate) const AROUND: usize = 60;
/// Before a client hears that a recall is in its way.
const RECALL_PAUSE: Duration = Duration::from_millis(50);
/// How long a LAYOUTGET that came with OPEN waits for others. Until it is answered Linux does not take note of the open, and
/// other opens of the file wait at the client, five seconds each; for the layout it asks again by itself.
const WITH_OPEN: Duration = Duration::from_millis(100);

pub(crate) async fn layoutget(cx: &mut Context, args: LAYOUTGET4args) -> OpResult<LAYOUTGET4res> {
    let iomode = checked(&args)?;
    super::layoutreturn::regular(cx).await?;
    let stateid = cx.stateid(&args.loga_stateid)?;
    let client = cx.client()?;
    let stripes = cx.session.as_ref().is_some_and(|session| session.entry.stripes);
    let write = iomode == IoMode::ReadWrite;
    let file = cx.current()?.inode.fileid;
    let ask = Ask { client, file, offset: args.loga_offset, write, stripes, way: cx.way() };
    if let Some(session) = &cx.session {
        session.entry.asked(write);
    }
    if !cx.server.config.layouts {
        return Err(refused(cx, &ask, Reason::Off));
    }
    // A file that was opened for writing when that was allowed.
    if write && cx.is_read_only() {
        return Err(refused(cx, &ask, Reason::ReadOnlyExport));
    }
    if cx.is_sealed_in_clear() {
        return Err(refused(cx, &ask, Reason::Sealed));
    }
    let (granted, stateid, return_on_close) =
        granted(cx, &args, &ask, stateid).await.map_err(with_its_arm)?;
    cx.server.proxied.granted(client, file);
    metrics::add(&cx.server.metrics.layouts_granted, 1);
    cx.current_stateid = Some(stateid);
    // Exactly one: stock clients ignore all but the first.
    let layout = layout4 {
        lo_offset: granted.offset,
        lo_length: granted.length,
        lo_iomode: args.loga_iomode,
        lo_content: layout_content4 { loc_type: layouttype4::LAYOUT4_FLEX_FILES, loc_body: granted.body },
    };
    Ok(LAYOUTGET4res::NFS4_OK(LAYOUTGET4resok {
        logr_return_on_close: return_on_close,
        logr_stateid: to_wire(&stateid),
        logr_layout: vec![layout],
    }))
}

/// §18.43.2: LAYOUTTRYLATER says whether the client will be told of a better moment. It will not.
fn with_its_arm(error: OpError) -> OpError {
    match error {
        OpError::Status(status @ nfsstat4::NFS4ERR_LAYOUTTRYLATER) => {
            let later = LAYOUTGET4res::NFS4ERR_LAYOUTTRYLATER(false);
            OpError::Arm(status, Box::new(nfs_resop4::OP_LAYOUTGET(later)))
        }
        other => other,
    }
}

/// §18.43.3: what is wrong whatever the file is.
fn checked(args: &LAYOUTGET4args) -> Result<IoMode, nfsstat4> {
    if args.loga_layout_type != layouttype4::LAYOUT4_FLEX_FILES {
        return Err(nfsstat4::NFS4ERR_UNKNOWN_LAYOUTTYPE);
    }
    let iomode = match args.loga_iomode {
        layoutiomode4::LAYOUTIOMODE4_READ => IoMode::Read,
        layoutiomode4::LAYOUTIOMODE4_RW => IoMode::ReadWrite,
        _ => return Err(nfsstat4::NFS4ERR_BADIOMODE),
    };
    let runs_over = |length: u64| length != u64::MAX && args.loga_offset.checked_add(length).is_none();
    if args.loga_minlength > args.loga_length || runs_over(args.loga_length) || runs_over(args.loga_minlength)
    {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    // The last byte of a layout without end is 2^64-2.
    if args.loga_offset == u64::MAX {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    Ok(iomode)
}

/// The layout, its stateid and whether it ends with the last close.
async fn granted(
    cx: &mut Context,
    args: &LAYOUTGET4args,
    ask: &Ask,
    stateid: StateId,
) -> Result<(Granted, StateId, bool), OpError> {
    let entry = cx.state_entry(&stateid)?;
    if !entry.through(ask.client, cx.current()?.export) {
        return Err(refused(cx, ask, Reason::OtherExport));
    }
    let opening = special(&from_wire(&args.loga_stateid)).ok().flatten() == Some(Special::Current);
    let inode = cx.inode().await?;
    if may_read(&inode, &cx.who).is_err() && entry.peek(|file| file.is_for_writing_alone(&stateid)) {
        // With a layout goes the right to read at data servers, for all users of the client.
        return Err(match ask.write {
            true => refused(cx, ask, Reason::WriteOnly),
            false => nfsstat4::NFS4ERR_ACCESS.into(),
        });
    }
    if inode.inline().is_some() && (opening || !ask.write) {
        // It is read where it is. Whoever has only just opened it does not know yet how much there will be to
        // write, and asks again when it is more than `mdsthreshold` says; Linux does not remember a refusal
        // that comes with OPEN.
        return Err(refused(cx, ask, Reason::Inline));
    }
    if opening && ask.write && inode.record.mode & SET_ID != 0 {
        // Whoever has only just opened it may never write.
        return Err(refused(cx, ask, Reason::SetId));
    }
    // Before it is given data files that there would be no layout of.
    if let Some(reason) = grant::barred(&cx.server, ask.way) {
        return Err(refused(cx, ask, reason));
    }
    if cx.server.is_uncut(ask.file) {
        return Err(uncut(cx, ask, &inode));
    }
    if inode.layout().is_some_and(|layout| layout.columns().any(|column| column.len() > 1)) {
        end_silent_writers(cx, &entry, ask.client).await?;
        if entry.peek(File::needs_settle) {
            if opening {
                return Err(nfsstat4::NFS4ERR_LAYOUTTRYLATER.into());
            }
            // Mirrors may differ, and say so once the file is settled.
            settle::settle_size(&cx.server, &entry.key).await?;
            if entry.peek(File::needs_settle) {
                return Err(nfsstat4::NFS4ERR_DELAY.into());
            }
        }
    }
    if ask.write && inode.loses_set_id(&cx.who) {
        // A GETATTR behind this one shows what is left of them.
        cx.forget_inode();
    }
    let mds = &cx.server;
    let iomode = if ask.write { IoMode::ReadWrite } else { IoMode::Read };
    let call =
        cx.session.as_ref().map(|asks| Call { session: asks.id, slot: asks.slot, sequence: asks.sequence });
    let intent = Intent::LayoutGet { client: ask.client, stateid, iomode, call };
    let held = if opening { soon(mds, &entry, &intent).await } else { prepare(mds, &entry, &intent).await };
    let mut held = held.map_err(|error| match error {
        // Linux tries again for two leases after LAYOUTTRYLATER, before each READ and WRITE.
        Error::LayoutUnavailable => refused(cx, ask, Reason::TooMany),
        Error::OtherMount => refused(cx, ask, Reason::OtherMount),
        error => error.into(),
    })?;
    // Under the ticket: a heal that begins now waits for it, and takes back what it gave.
    if ask.write && mds.heals.busy(ask.file).is_some() {
        return Err(refused(cx, ask, Reason::Healing));
    }
    let want = Use {
        // The segment is known only with the shape; a component is handed out as a whole anyway.
        bytes: ask.offset..ask.offset.saturating_add(1),
        write: ask.write,
        persist_rw: held.ticket().is_some_and(Ticket::must_persist_rw),
    };
    let inline = inode.inline().is_some();
    let inode = match ready_for(mds, Some(&mut held), entry.key, &want).await {
        Ok(inode) => inode,
        Err(status) => return Err(Box::pin(unready(cx, ask, entry.key, (inline, status))).await),
    };
    if let Some(layout) = inode.layout() {
        if opening && epochs::refuses(mds, ask.client, layout.id) {
            return Err(nfsstat4::NFS4ERR_LAYOUTTRYLATER.into());
        }
        epochs::let_in(mds, ask.client, layout.id).await?;
    }
    if ask.write {
        room(cx, ask, &inode).await?;
    }
    if ask.write && inode.keeps_set_id(&cx.who) {
        // A layout is the client's, for all its users: a write by others of them would take the bits away.
        return Err(refused(cx, ask, Reason::SetId));
    }
    if ask.write && inode.loses_set_id(&cx.who) {
        drop_set_id(cx, entry.key).await?;
    }
    let granted = grant::grant(mds, &inode, ask).map_err(|reason| match reason {
        // What is there may be written in place still: through this server, so that who does hears of no lack of room.
        Reason::Full(_) if ask.offset < inode.size() => {
            mds.proxied.refused(ask.client, ask.file, reason);
            nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE.into()
        }
        reason => refused(cx, ask, reason),
    })?;
    long_enough(args, ask, &granted, inode.size())?;
    small_enough(cx, args, &granted)?;
    match held.commit()? {
        Reply::LayoutGranted { stateid, return_on_close } => {
            if ask.write {
                mds.heals.over(ask.file);
                cx.server.watch_writers(&inode);
            }
            mds.given_by(&entry, &cx.exports, &cx.from);
            Ok((granted, stateid, return_on_close))
        }
        _ => Err(nfsstat4::NFS4ERR_SERVERFAULT.into()),
    }
}

async fn prepare(mds: &Arc<Mds>, entry: &Arc<FileEntry>, intent: &Intent) -> Result<Held, Error> {
    let held = mds.prepare(entry, intent).await;
    if matches!(held, Err(Error::RecallConflict)) {
        // Linux asks again at once, thousands of times a second until the recall has ended.
        mds.env.clock.sleep(RECALL_PAUSE).await;
    }
    held
}

/// A ticket, or word that there is none yet.
async fn soon(mds: &Arc<Mds>, entry: &Arc<FileEntry>, intent: &Intent) -> Result<Held, Error> {
    tokio::select! {
        biased;
        held = mds.prepare(entry, intent) => held,
        () = mds.env.clock.sleep(WITH_OPEN) => Err(Error::LayoutTryLater),
    }
}

/// A write by others than root takes set-id bits away, as POSIX has it, and what goes to data servers is not seen here: so
/// they go before it can. SETATTR gives them to a file only when nobody holds a layout to write with.
async fn drop_set_id(cx: &Context, key: InodeKey) -> Result<(), OpError> {
    let (mds, namespace) = (&cx.server, &cx.server.namespace);
    mds.write(|mut txn| {
        Box::pin(async move {
            let request = cx.request(DirectoryUpdate::Exact);
            namespace.drop_set_id(&mut txn, &key, &request).await
        })
    })
    .await?;
    Ok(())
}

/// Whoever may not write a byte more gets no layout to write it with. RFC 8881 §18.43.3 has DQUOT for that; what may be
/// overwritten is written through this server, which sees what is new.
async fn room(cx: &Context, ask: &Ask, inode: &Inode) -> Result<(), OpError> {
    let (mds, charged) = (&cx.server, Charged::of(&inode.record));
    match mds.find_room(&cx.who, charged.subjects(), Amount::new(0, 1)).await? {
        Ok(_) => Ok(()),
        Err(subject) if ask.offset >= inode.size() => Err(mds.quotas.refusals.refuse(subject).into()),
        Err(_) => Err(refused(cx, ask, Reason::Quota)),
    }
}

/// Before a truncation is carried out there is no layout of the file. Where a data server refuses to, nobody knows when that will be:
/// what is left can be read through this server.
fn uncut(cx: &Context, ask: &Ask, inode: &Inode) -> OpError {
    let mds = &cx.server;
    let refused_by = || mds.uncut.lock().get(&ask.file).and_then(|uncut| uncut.refused());
    let uncuttable = inode.layout().and_then(|layout| dsctl::uncuttable(mds, layout));
    let Some(id) = uncuttable.or_else(refused_by) else {
        return nfsstat4::NFS4ERR_DELAY.into();
    };
    let serves = mds.data_servers.get(id).is_some_and(|store| store.serves());
    refused(cx, ask, if serves { Reason::ReadOnly(id) } else { Reason::Away(id) })
}

/// Why a file is not ready for a layout. One that is kept in the metadata for want of a place elsewhere is written to there for as
/// long as it fits, and who does so waits for no data server: DELAY would have Linux ask without end before each write, and NOSPC,
/// as an error of a device, goes to the application. Who outgrows that hears of it from WRITE.
async fn unready(cx: &Context, ask: &Ask, key: InodeKey, (inline, status): (bool, nfsstat4)) -> OpError {
    let (mds, namespace) = (&cx.server, &cx.server.namespace);
    let unplaced = match status {
        nfsstat4::NFS4ERR_NOSPC | nfsstat4::NFS4ERR_IO | nfsstat4::NFS4ERR_ROFS => true,
        // One that is started again is there in a moment, and Linux asks for no layout of the file for two minutes after any other
        // answer.
        nfsstat4::NFS4ERR_DELAY => {
            let mut all = mds.data_servers.all();
            all.retain(|store| store.is_active());
            all.iter().any(|store| store.given_up())
                && all.iter().all(|store| store.serves() || store.given_up())
        }
        _ => false,
    };
    if inline && unplaced {
        // Somebody else may have found a place meanwhile.
        let found = mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await;
        if found.is_ok_and(|inode| inode.inline().is_some()) {
            mds.proxied.refused(ask.client, ask.file, Reason::NoPlace);
            return nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE.into();
        }
    }
    match status {
        nfsstat4::NFS4ERR_NOSPC => refused(cx, ask, Reason::NoPlace),
        status => status.into(),
    }
}

/// What the client hears; why is remembered for the administrator, to whom it says where the data goes.
fn refused(cx: &Context, ask: &Ask, reason: Reason) -> OpError {
    let status = reason.status(&cx.server, ask.file);
    // DELAY says that it will be granted soon; what is inline is not proxied.
    if status != nfsstat4::NFS4ERR_DELAY && reason != Reason::Inline {
        cx.server.proxied.refused(ask.client, ask.file, reason);
    }
    status.into()
}

/// A writer that is silent may have left mirrors that differ: its courtesy ends with the first who reads or
/// writes them, too, and they are compared (RFC 8881 §8.3 leaves that to the server).
async fn end_silent_writers(cx: &Context, entry: &Arc<FileEntry>, asks: ClientId) -> Result<(), OpError> {
    let mut ended = false;
    for writer in entry.peek(File::writers).into_iter().filter(|writer| *writer != asks) {
        ended |= cx.server.expel_if_courtesy(writer).await;
    }
    // Its fence, and what it left, come first.
    if ended { Err(nfsstat4::NFS4ERR_DELAY.into()) } else { Ok(()) }
}

/// What cannot be told is not given. How long it is nobody knew before.
fn small_enough(cx: &Context, args: &LAYOUTGET4args, granted: &Granted) -> Result<(), nfsstat4> {
    let size = granted.body.len();
    if usize::try_from(args.loga_maxcount).is_ok_and(|most| size > most) {
        return Err(nfsstat4::NFS4ERR_TOOSMALL);
    }
    let result = AROUND + size.next_multiple_of(4);
    if result > cx.reply_room {
        return Err(nfsstat4::NFS4ERR_REP_TOO_BIG);
    }
    if cx.cached_room.is_some_and(|room| result > room) {
        return Err(nfsstat4::NFS4ERR_REP_TOO_BIG_TO_CACHE);
    }
    Ok(())
}

/// §18.43.3: at least loga_minlength bytes, or nothing; for reading no more than there is.
fn long_enough(args: &LAYOUTGET4args, ask: &Ask, granted: &Granted, size: u64) -> Result<(), nfsstat4> {
    let needed = match args.loga_minlength {
        // As far as there is.
        u64::MAX => 0,
        least if ask.write => least,
        least => least.min(size.saturating_sub(ask.offset)),
    };
    let covered = match granted.length {
        u64::MAX => u64::MAX,
        length => granted.offset.saturating_add(length) - ask.offset,
    };
    if needed > covered { Err(nfsstat4::NFS4ERR_BADLAYOUT) } else { Ok(()) }
}
