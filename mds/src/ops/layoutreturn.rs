//! LAYOUTRETURN. RFC 8881 §18.44, RFC 8435 §9.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{FsError, Kind};
use sluice_state::file::{Grace, LayoutFilter};
use sluice_state::layout::ReturnMode;
use sluice_state::stateid::special;
use sluice_state::{ClientId, StateId};
use sluice_xdr::flexfiles::ff_layoutreturn4;
use sluice_xdr::nfs4::{
    LAYOUTRETURN4args, LAYOUTRETURN4res, device_error4, layoutiomode4, layoutreturn_file4,
    layoutreturn_stateid, layoutreturn_type4, layoutreturn4, layouttype4, nfs_opnum4, nfsstat4,
};

use crate::compound::context::to_wire;
use crate::compound::{Context, OpError, OpResult};
use crate::files::FileEntry;
use crate::layout::reports::{self, Subject};
use crate::layout::{heal, settle};
use crate::metrics;
use crate::server::Mds;

/// Before a layout that its client may not know of is asked for.
const UNUSED: Duration = Duration::from_secs(10);

pub(crate) async fn layoutreturn(cx: &mut Context, args: LAYOUTRETURN4args) -> OpResult<LAYOUTRETURN4res> {
    if args.lora_layout_type != layouttype4::LAYOUT4_FLEX_FILES {
        return Err(nfsstat4::NFS4ERR_UNKNOWN_LAYOUTTYPE.into());
    }
    let mode = match args.lora_iomode {
        layoutiomode4::LAYOUTIOMODE4_READ => ReturnMode::Read,
        layoutiomode4::LAYOUTIOMODE4_RW => ReturnMode::ReadWrite,
        layoutiomode4::LAYOUTIOMODE4_ANY => ReturnMode::Any,
        _ => return Err(nfsstat4::NFS4ERR_INVAL.into()),
    };
    let left = match args.lora_layoutreturn {
        layoutreturn4::LAYOUTRETURN4_FILE(file) => of_file(cx, &file, mode, args.lora_reclaim).await?,
        layoutreturn4::Default(layoutreturn_type4::LAYOUTRETURN4_ALL) => {
            of_client(cx, None, mode, args.lora_reclaim).await?;
            None
        }
        layoutreturn4::Default(layoutreturn_type4::LAYOUTRETURN4_FSID) => {
            // Each export is a file system of its own (`fsid` in attr/get.rs).
            let export = cx.current()?.export;
            of_client(cx, Some(export), mode, args.lora_reclaim).await?;
            None
        }
        layoutreturn4::Default(_) => return Err(nfsstat4::NFS4ERR_INVAL.into()),
    };
    Ok(LAYOUTRETURN4res::NFS4_OK(match left {
        Some(stateid) => layoutreturn_stateid::TRUE(to_wire(&stateid)),
        // Stock clients forget every segment of the file then.
        None => layoutreturn_stateid::FALSE,
    }))
}

/// Whatever range is named, the whole file is returned: stock clients say so in any case, and state is kept
/// per client and iomode.
async fn of_file(
    cx: &mut Context,
    file: &layoutreturn_file4,
    mode: ReturnMode,
    reclaim: bool,
) -> Result<Option<StateId>, OpError> {
    regular(cx).await?;
    if file.lrf_length != u64::MAX && file.lrf_offset.checked_add(file.lrf_length).is_none() {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    let client = cx.client()?;
    let given = StateId { seqid: file.lrf_stateid.seqid, other: file.lrf_stateid.other };
    let nothing = given == StateId::default();
    if reclaim || nothing {
        // Of a layout from before our restart: it has nothing to return but what it has to say, and all
        // there was is settled anyway (Linux 6.11 and later do this while they recover).
        return match (cx.server.grace(Some(client)), reclaim) {
            (Grace::Active { .. }, _) => {
                if let Some(entry) = cx.server.files.get(crate::files::file_id(&cx.current()?.inode)) {
                    listen(cx, &entry, &file.lrf_body)?;
                }
                Ok(None)
            }
            (Grace::Over, true) => Err(nfsstat4::NFS4ERR_NO_GRACE.into()),
            (Grace::Over, false) => Err(nfsstat4::NFS4ERR_BAD_STATEID.into()),
        };
    }
    let stateid = cx.stateid(&file.lrf_stateid)?;
    if special(&stateid).ok().flatten().is_some() {
        return Err(nfsstat4::NFS4ERR_BAD_STATEID.into());
    }
    let entry = cx.state_entry(&stateid)?;
    // Before the return: whether a recall was pending decides what errors mean.
    let errors = listen(cx, &entry, &file.lrf_body)?;
    let mut seen = true;
    if mode != ReturnMode::Read {
        // Who may not write has written nothing, whatever he says.
        if errors.iter().any(may_have_written) && entry.peek(|file| file.is_written_by(client)) {
            // What failed at one mirror may have been done at another, and is sent again under another layout,
            // if the client lives to do so.
            let inode = cx.inode().await?;
            heal::suspect(&cx.server, &inode).await?;
        }
        if errors.iter().any(may_be_on_its_way) {
            cut_off(&cx.server, &entry, client);
        }
        seen = count(cx, &entry).await?;
    }
    let left = give_back(cx, &entry, stateid, mode, seen)?;
    if let (Some(kept), ReturnMode::Any) = (left, mode) {
        cx.server.spawn(recall_unused(Arc::clone(&cx.server), entry, client, kept));
    }
    cx.current_stateid = left;
    Ok(left)
}

/// The LAYOUTCOMMIT of the last bytes may be on its way beside this return (Linux sends both when one process closes while
/// another writes), and fdatasync needs none: what was written is counted while the layout still says so. False when nobody
/// says what that is: a data server that is away must not keep its own layouts from coming back.
async fn count(cx: &Context, entry: &FileEntry) -> Result<bool, FsError> {
    // While something is cut off, nothing is asked, and what waits for this return is not waited for.
    let Some(cut) = entry.last_cut() else { return Ok(false) };
    match settle::settle_size(&cx.server, &entry.key).await {
        Ok(_) => Ok(entry.last_cut() == Some(cut)),
        Err(FsError::Busy | FsError::EndUnknown) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a client could not return, because it may not have heard of it, is asked for if it is not heard of.
async fn recall_unused(mds: Arc<Mds>, entry: Arc<FileEntry>, client: ClientId, kept: StateId) {
    mds.env.clock.sleep(UNUSED).await;
    if entry.peek(|file| file.layout_of(client)) == Some((kept, false)) {
        let those = LayoutFilter::Client(client);
        mds.step(&entry, None, |file, ctx| ((), file.recall_layouts(ctx, those, false)));
    }
}

fn give_back(
    cx: &Context,
    entry: &Arc<FileEntry>,
    stateid: StateId,
    mode: ReturnMode,
    seen: bool,
) -> Result<Option<StateId>, OpError> {
    let client = cx.client()?;
    let returned = cx.server.step(entry, Some(client), |file, ctx| {
        match file.layout_return(ctx.now, client, &stateid, mode, seen) {
            Ok((left, effects)) => (Ok(left), effects),
            Err(error) => (Err(error), Vec::new()),
        }
    });
    let left = returned?;
    metrics::add(&cx.server.metrics.layouts_returned, 1);
    Ok(left)
}

/// All that the client has, or has through one export (§18.44.3: FSID is the current filehandle's). Stock clients ask for neither.
async fn of_client(
    cx: &mut Context,
    export: Option<u32>,
    mode: ReturnMode,
    reclaim: bool,
) -> Result<(), OpError> {
    let client = cx.client()?;
    if reclaim {
        return match cx.server.grace(Some(client)) {
            Grace::Active { .. } => Ok(()),
            Grace::Over => Err(nfsstat4::NFS4ERR_NO_GRACE.into()),
        };
    }
    let files = cx.server.files.index().files_of(client);
    for entry in files.into_iter().filter_map(|id| cx.server.files.get(id)) {
        if export.is_some_and(|export| entry.export_of(client) != export) {
            continue;
        }
        let writes = mode != ReturnMode::Read && entry.peek(|file| file.is_written_by(client));
        let seen = match if writes { count(cx, &entry).await } else { Ok(true) } {
            // It was removed meanwhile.
            Err(FsError::Stale) => true,
            seen => seen?,
        };
        if let Some((stateid, _)) = entry.peek(|file| file.layout_of(client)) {
            give_back(cx, &entry, stateid, mode, seen)?;
        }
    }
    cx.current_stateid = None;
    Ok(())
}

/// Takes the errors and statistics that come with a return (RFC 8435 §9.3): the errors. Clients need not send any.
fn listen(cx: &Context, entry: &FileEntry, body: &bytes::Bytes) -> Result<Vec<device_error4>, OpError> {
    let report: ff_layoutreturn4 = match body.is_empty() {
        true => ff_layoutreturn4::default(),
        false => sluice_xdr::from_bytes(body.clone()).map_err(|_| nfsstat4::NFS4ERR_BADXDR)?,
    };
    let client = cx.client()?;
    if report.fflr_ioerr_report.is_empty() {
        // Of data servers it need not say anything: the layout may have named others.
        cx.server.reports.went_well(cx.server.now(), client, Subject::File(entry.key.fileid));
    }
    for error in &report.fflr_ioerr_report {
        reports::take(&cx.server, entry, client, &error.ffie_errors);
    }
    let count = u64::try_from(report.fflr_iostats_report.len()).unwrap_or(0);
    metrics::add(&cx.server.metrics.layout_stats, count);
    Ok(report.fflr_ioerr_report.into_iter().flat_map(|reported| reported.ffie_errors).collect())
}

/// Whether mirrors may differ now. Linux names no operation that it could not send.
pub(super) fn may_have_written(error: &device_error4) -> bool {
    error.de_opnum != nfs_opnum4::OP_READ
}

/// What the client sends instead of a write that it gave up must not be overtaken by it.
pub(super) fn cut_off(mds: &Arc<Mds>, entry: &Arc<FileEntry>, client: ClientId) {
    // It cannot say so itself before: if the data server is given up, the client goes on without it.
    mds.heals.want(entry.key);
    mds.step(entry, Some(client), |file, _| ((), file.layout_failed(client)));
}

/// Whether a data server may carry it out yet: it was sent, and no answer says that it has ended. Linux reports NXIO for
/// what was lost with a connection, cancelled for our own recall, or not answered in time.
pub(super) fn may_be_on_its_way(error: &device_error4) -> bool {
    let sent = matches!(error.de_opnum, nfs_opnum4::OP_WRITE | nfs_opnum4::OP_COMMIT);
    let answered = matches!(
        error.de_status,
        nfsstat4::NFS4_OK
            | nfsstat4::NFS4ERR_ACCESS
            | nfsstat4::NFS4ERR_STALE
            | nfsstat4::NFS4ERR_BADHANDLE
            | nfsstat4::NFS4ERR_NOSPC
            | nfsstat4::NFS4ERR_DQUOT
            | nfsstat4::NFS4ERR_FBIG
            | nfsstat4::NFS4ERR_ROFS
            | nfsstat4::NFS4ERR_DELAY
    );
    sent && !answered
}

/// Layouts are of regular files.
///
/// # Errors
/// ISDIR, WRONG_TYPE, and what the store says.
pub(super) async fn regular(cx: &mut Context) -> Result<(), OpError> {
    match cx.inode().await?.kind() {
        Kind::File => Ok(()),
        Kind::Directory => Err(nfsstat4::NFS4ERR_ISDIR.into()),
        _ => Err(nfsstat4::NFS4ERR_WRONG_TYPE.into()),
    }
}
