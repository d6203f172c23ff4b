//! LAYOUTCOMMIT. RFC 8881 §18.42. Never refused for grace, for space, or for an old seqid: the data is at the
//! data servers already.

use sluice_env::Wall;
use sluice_namespace::MAX_FILE_SIZE;
use sluice_state::Time;
use sluice_state::file::{Error, Grace, Intent};
use sluice_xdr::nfs4::{
    LAYOUTCOMMIT4args, LAYOUTCOMMIT4res, LAYOUTCOMMIT4resok, layouttype4, newoffset4, newsize4, newtime4,
    nfsstat4,
};

use super::layoutreturn::regular;
use crate::compound::{Context, OpError, OpResult};
use crate::dsctl::{self, Unseen};
use crate::files::FileEntry;
use crate::layout::commits::{self, Said};
use crate::layout::{settle, times};

pub(crate) async fn layoutcommit(cx: &mut Context, args: LAYOUTCOMMIT4args) -> OpResult<LAYOUTCOMMIT4res> {
    let said = checked(&args)?;
    regular(cx).await?;
    let client = cx.client()?;
    if args.loca_reclaim {
        return reclaim(cx, said).await;
    }
    let stateid = cx.stateid(&args.loca_stateid)?;
    let Ok(entry) = cx.state_entry(&stateid) else { return Err(gone(cx, said, Error::BadLayout).await) };
    let held = match cx.server.prepare(&entry, &Intent::LayoutCommit { client, stateid }).await {
        // What it may write under has been returned, or never was there.
        Err(error @ (Error::BadLayout | Error::BadIomode)) => return Err(gone(cx, said, error).await),
        other => other?,
    };
    // A truncation has let it in that waits for this layout: what the client speaks of may be what is still to be cut off. Where the
    // file ends is looked for once that is done, for what is returned meanwhile has not been seen (`count` in layoutreturn.rs).
    let cutting = entry.last_cut().is_none();
    let (old, end, of_before) = if cutting {
        (false, None, false)
    } else {
        let (old, there) = times::stand(&cx.server, &entry).await?;
        let (end, of_before) = left(cx, &entry, said.end).await?;
        // What else was found there is part of the file as well.
        (old, end.max(there), of_before)
    };
    entry.changes(client);
    let done = commits::commit(&cx.server, entry.key, Said { old, end, ..said }).await?;
    if of_before {
        cx.server.step(&entry, None, |file, _| (file.has_told(client), Vec::new()));
    }
    held.commit()?;
    cx.server.learn(&entry, done.inode.size());
    let grown = done.grew.then(|| done.inode.size());
    cx.left(done.inode);
    cx.is_of_writer(entry.changes_alone(client));
    Ok(answer(grown))
}

/// Linux flushes before it truncates and says so afterwards, under the same layout or another that it got meanwhile, in a
/// LAYOUTCOMMIT that reaches to where it wrote. What was cut off since stays off: then the data servers know the end, under
/// a ticket that keeps truncations away. Which truncations there were before a restart is not known: so it is with whoever
/// reclaimed the file, until it has told once. Who waits for one that is away is told DELAY: neither are there zeros where nothing was
/// written, nor is lost what was. True: it was of before a restart, perhaps.
async fn left(cx: &Context, entry: &FileEntry, end: Option<u64>) -> Result<(Option<u64>, bool), OpError> {
    let (mds, client) = (&cx.server, cx.client()?);
    let cut = entry.cut_at().unwrap_or(Time::ZERO);
    let Some(end) = end else { return Ok((None, false)) };
    let since = entry.peek(|file| file.may_have_written_since(client));
    let Some(since) = since.filter(|since| *since <= cut) else { return Ok((Some(end), false)) };
    let reclaimed = since == Time::ZERO;
    let inode = settle::inode(mds, entry.key).await?;
    let size = inode.size();
    if end <= size {
        return Ok((Some(end), reclaimed));
    }
    match dsctl::observe_in(mds, &inode, size..end).await {
        Ok(seen) => Ok((Some(end.min(seen.size.max(size))), reclaimed)),
        Err(Unseen::Away) => Err(nfsstat4::NFS4ERR_DELAY.into()),
        // What it may have can be read as little as what it has not.
        Err(Unseen::GivenUp(_)) => Ok((Some(end), false)),
    }
}

/// A length of 0 and no new offset are what Linux sends for data that was stable at once.
fn checked(args: &LAYOUTCOMMIT4args) -> Result<Said, nfsstat4> {
    if args.loca_layoutupdate.lou_type != layouttype4::LAYOUT4_FLEX_FILES {
        return Err(nfsstat4::NFS4ERR_UNKNOWN_LAYOUTTYPE);
    }
    if args.loca_length != u64::MAX && args.loca_offset.checked_add(args.loca_length).is_none() {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    let end = match args.loca_last_write_offset {
        newoffset4::TRUE(last) if last >= MAX_FILE_SIZE => return Err(nfsstat4::NFS4ERR_FBIG),
        newoffset4::TRUE(last) => Some(last + 1),
        newoffset4::FALSE => None,
    };
    let mtime = match &args.loca_time_modify {
        newtime4::TRUE(time) if time.nseconds >= 1_000_000_000 => return Err(nfsstat4::NFS4ERR_INVAL),
        newtime4::TRUE(time) => Some(Wall { seconds: time.seconds, nanos: time.nseconds }),
        newtime4::FALSE => None,
    };
    Ok(Said { end, mtime, old: false })
}

/// The layout is not there any more. What was written under it is in the size before the client hears of
/// it; BAD_STATEID would send it into state recovery.
async fn gone(cx: &mut Context, said: Said, why: Error) -> OpError {
    let counted = count(cx, said).await;
    cx.forget_inode();
    match counted {
        Ok(()) => why.into(),
        Err(error) => error,
    }
}

/// A client that has not heard of our restart writes under its layout, and may have done so after the file
/// was settled: `end`, if it lies beyond the size, is looked for at the data servers.
async fn count(cx: &mut Context, said: Said) -> Result<(), OpError> {
    let key = cx.current()?.inode;
    settle::settle_size(&cx.server, &key).await?;
    cx.forget_inode();
    if said.end > Some(cx.inode().await?.size()) {
        settle::observe(&cx.server, &key).await?;
    }
    changed(cx, said).await
}

/// What was written may lie within the size: the change attribute moves all the same, and others look again. From whoever
/// has the file open, as he has when he flushes; others may say what they like.
async fn changed(cx: &mut Context, said: Said) -> Result<(), OpError> {
    let (mds, key, client) = (&cx.server, cx.current()?.inode, cx.client()?);
    let entry = mds.file(&key).await?;
    if !entry.peek(|file| file.may_write(client)) {
        return Ok(());
    }
    let (old, _) = times::stand(mds, &entry).await?;
    commits::commit(mds, key, Said { old, end: None, ..said }).await?;
    Ok(())
}

/// Of a layout from before our restart: the data servers are asked, as for any file left in this way.
async fn reclaim(cx: &mut Context, said: Said) -> OpResult<LAYOUTCOMMIT4res> {
    if cx.server.grace(Some(cx.client()?)) == Grace::Over {
        return Err(nfsstat4::NFS4ERR_NO_GRACE.into());
    }
    let key = cx.current()?.inode;
    let grew = settle::settle_size(&cx.server, &key).await?;
    changed(cx, said).await?;
    cx.forget_inode();
    let size = cx.inode().await?.size();
    Ok(answer(grew.then_some(size)))
}

fn answer(size: Option<u64>) -> LAYOUTCOMMIT4res {
    let newsize = size.map_or(newsize4::FALSE, newsize4::TRUE);
    LAYOUTCOMMIT4res::NFS4_OK(LAYOUTCOMMIT4resok { locr_newsize: newsize })
}
