//! Sizes are settled, never guessed (docs/DESIGN §6): what data servers hold is asked for before it is
//! shown, whenever a read-write layout may have moved the end of a file.

use std::sync::Arc;
use std::time::Duration;

use sluice_kv::Transaction;
use sluice_namespace::{
    CommitSize, Credential, DataFileId, DirectoryUpdate, FsError, Inode, InodeKey, Request, SizeCommitted,
};
use sluice_state::ClientId;
use sluice_state::file::{Error, File, FileSeed, Intent, Ticket};

use crate::compound::OpError;
use crate::dsctl::{self, Observed, Unseen};
use crate::files::{FileEntry, Held, Moment, file_id};
use crate::server::Mds;

/// Nobody: asks whether any client at all holds something.
const NOBODY: ClientId = ClientId(0);
/// How often a file may become unsettled again while somebody waits for it.
const TRIES: u32 = 3;
/// How often growth is looked for while a file is being written.
const LOOKS: u32 = 3;
/// What every file that is not empty takes, however little is stored of it.
const LEAST: u64 = 512;
/// How long rows of files that were closed cleanly are gathered before one transaction clears them.
const GATHER: Duration = Duration::from_millis(200);

/// Brings the size in the inode up to what the data servers hold, if it may lag; the caller then reads the
/// inode again. True when it changed. Cheap when nothing lags.
///
/// # Errors
/// What the store or the data servers say; Busy passes; EndUnknown, where what a data server has that was given up
/// would have to be known.
pub(crate) async fn settle_size(mds: &Arc<Mds>, key: &InodeKey) -> Result<bool, FsError> {
    settle_since(mds, key, mds.moment()).await
}

/// The same, where a look at the data servers that began after `then` will do.
async fn settle_since(mds: &Arc<Mds>, key: &InodeKey, then: Moment) -> Result<bool, FsError> {
    // What is seldom done is in a box: every GETATTR passes here, and its future shall not have room for it.
    let entry = match mds.files.get(file_id(key)) {
        Some(entry) => entry,
        None if mds.unsettled.lock().contains(&key.fileid) => Box::pin(mds.file(key)).await?,
        None => return Ok(false),
    };
    bring_up(mds, &entry, then).await
}

async fn bring_up(mds: &Arc<Mds>, entry: &Arc<FileEntry>, then: Moment) -> Result<bool, FsError> {
    if entry.peek(File::needs_settle) {
        return Box::pin(settle(mds, entry)).await;
    }
    if entry.peek(|file| file.size_may_lag(NOBODY)) && !entry.looked_since(then) {
        let (began, cut) = (mds.moment(), entry.last_cut());
        let changed = Box::pin(observe(mds, &entry.key)).await?;
        // While something is cut off nobody looks.
        if cut.is_some() && cut == entry.last_cut() {
            entry.look_done(began);
        }
        return Ok(changed);
    }
    Ok(false)
}

/// The inode anew, with its size settled as of `then`, when the request came that wants it; `None` where `read`
/// is what holds. Where the file is in use it is
/// read again even if settling changed nothing: a LAYOUTCOMMIT may have come since, and a client that is shown
/// less than what its own finished writes reached cuts its view of the file (and appends over what it wrote).
/// Files that clients merely remember (a directory full of delegated ones) are spared that. Of a file whose end only a
/// data server knows that was given up what the others have is shown: it can be listed, moved and removed, not opened.
///
/// # Errors
/// What the store or the data servers say; Busy passes.
pub(crate) async fn settled(mds: &Arc<Mds>, read: &Inode, then: Moment) -> Result<Option<Inode>, FsError> {
    let key = read.key;
    if is_settled(mds, read, then) {
        return Ok(None);
    }
    // Every GETATTR has room for this future, and hardly any needs it.
    Box::pin(async {
        match settle_since(mds, &key, then).await {
            Ok(_) | Err(FsError::EndUnknown) => {}
            Err(error) => return Err(error),
        }
        Ok(Some(inode(mds, key).await?))
    })
    .await
}

/// What was read of the inode takes in all that was written before `then`, and there is nothing to ask or to wait for.
pub(crate) fn is_settled(mds: &Mds, read: &Inode, then: Moment) -> bool {
    is_settled_if(mds, read, then, |_| true)
}

/// The same, where its state, if it has any, is also as it is asked for.
pub(crate) fn is_settled_if(mds: &Mds, read: &Inode, then: Moment, also: impl Fn(&File) -> bool) -> bool {
    let key = read.key;
    let is_still = |file: &File| file.is_still() && also(file);
    let still = || mds.files.get(file_id(&key)).is_none_or(|entry| entry.peek(is_still));
    // A file that fell still since then may have grown after it was read. In this order: it is still only when that is
    // recorded.
    let quiet = || still() && !mds.files.stilled_since(then) && !mds.unsettled.lock().contains(&key.fileid);
    read.file().is_none() || quiet()
}

/// Before the file is opened: nobody shall take what is shown of it for all there is, or append to it. And a GETATTR right
/// behind, which looks at no data server again, shall not be told DELAY by one that is away: Linux goes on asking then, and
/// takes note of the open only afterwards. Other opens wait five seconds for it, each; and where this server is started
/// again meanwhile the stateid that it had is put over the one that was reclaimed. True: what was read of the file since
/// `then` may be of before.
///
/// # Errors
/// As [`settle_size`].
pub(crate) async fn before_open(
    mds: &Arc<Mds>,
    entry: &Arc<FileEntry>,
    then: Moment,
) -> Result<bool, FsError> {
    let grew = bring_up(mds, entry, then).await?;
    Ok(grew || mds.files.stilled_since(then))
}

/// A ticket for something that needs a settled size, which the wait for it may have unsettled: a layout
/// that was not returned ends uncleanly.
///
/// # Errors
/// What the state forbids; DELAY while the size cannot be had, IO where it cannot be known.
pub(crate) async fn prepare(
    mds: &Arc<Mds>,
    entry: &Arc<FileEntry>,
    intent: &Intent,
) -> Result<Held, OpError> {
    for _ in 0..TRIES {
        let held = mds.prepare(entry, intent).await?;
        if !entry.peek(File::needs_settle) {
            return Ok(held);
        }
        // Settling takes a ticket of its own, which would wait for this one.
        drop(held);
        settle(mds, entry).await.map_err(|error| match error {
            FsError::Stale | FsError::EndUnknown => OpError::from(error),
            _ => Error::Delay.into(),
        })?;
    }
    Err(Error::Delay.into())
}

/// Where a file ends, for whoever has a data file of it that may end before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Zeros below, end of file there.
    At(u64),
    /// Zeros below; what is behind only a data server knows that is given up.
    Behind(u64),
}

/// The logical size of the file that these data files belong to.
///
/// # Errors
/// What the store or the data servers say.
pub(crate) async fn logical_size(mds: &Arc<Mds>, id: DataFileId) -> Result<Option<End>, FsError> {
    let namespace = &mds.namespace;
    let owner = mds.read(|txn| Box::pin(async move { namespace.data_file_owner(&txn, id).await })).await?;
    let Some(key) = owner else { return Ok(None) };
    let end = match settle_size(mds, &key).await {
        Ok(_) => End::At,
        // It has grown to what the others hold (`look`).
        Err(FsError::EndUnknown) => End::Behind,
        Err(error) => return Err(error),
    };
    Ok(Some(end(inode(mds, key).await?.size())))
}

/// Settles a file after an unclean end of a read-write layout.
pub(crate) async fn settle_in_background(mds: Arc<Mds>, entry: Arc<FileEntry>) {
    match settle(&mds, &entry).await {
        Ok(_) | Err(FsError::Stale) => {}
        // Whoever next asks for the size settles it.
        Err(error) => tracing::debug!(file = entry.key.fileid.0, %error, "a size is not settled yet"),
    }
}

pub(crate) async fn inode(mds: &Arc<Mds>, key: InodeKey) -> Result<Inode, FsError> {
    let namespace = &mds.namespace;
    mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await
}

/// While writers are at work: the size grows to what is there, nothing is cleared. What comes while the growth
/// is made durable is looked for again: a Linux client that is shown less than its own finished writes reached
/// cuts its view of the file.
///
/// # Errors
/// What the store says; Busy while the data servers cannot say, EndUnknown where one of them never may.
pub(crate) async fn observe(mds: &Arc<Mds>, key: &InodeKey) -> Result<bool, FsError> {
    // What lies beyond the end is what a truncation has still to cut off: the size in the inode is right.
    if mds.is_uncut(key.fileid) {
        return Ok(false);
    }
    let entry = mds.file(key).await?;
    let mut grew = false;
    for _ in 0..LOOKS {
        let Some(cut) = entry.last_cut() else { break };
        let now = inode(mds, *key).await?;
        let seen = look(mds, &entry, &now, cut).await?;
        if seen.size <= now.size() {
            entry.note_stored(stored_otherwise(&now, &seen));
            break;
        }
        if !grow(mds, &entry, &seen, cut).await? {
            break;
        }
        grew = true;
    }
    Ok(grew)
}

/// What the data servers see of a file. Where one was given up that may know more, the size grows to what the others have.
async fn look(mds: &Arc<Mds>, entry: &FileEntry, inode: &Inode, cut: u64) -> Result<Observed, FsError> {
    match dsctl::observe(mds, inode).await {
        Ok(seen) => Ok(seen),
        Err(Unseen::Away) => Err(FsError::Busy),
        Err(Unseen::GivenUp(seen)) => {
            if seen.size > inode.size() {
                grow(mds, entry, &seen, cut).await?;
            }
            Err(FsError::EndUnknown)
        }
    }
}

/// The size becomes what was observed at the data servers since truncation `cut`, if that is more. A truncation
/// that begins meanwhile is either seen here or conflicts with the transaction, which then runs again.
async fn grow(mds: &Arc<Mds>, entry: &FileEntry, seen: &Observed, cut: u64) -> Result<bool, FsError> {
    let (end, space_used) = (Some(seen.size), stored(seen, seen.size));
    let want = CommitSize { end, space_used, observed: true, ..CommitSize::default() };
    match commit_if(mds, entry.key, want, || entry.last_cut() == Some(cut)).await {
        Err(FsError::Invalid) => Ok(false),
        done => done.map(|done| done.grew),
    }
}

/// Bytes that are stored of a file of that size, if every data server that may have some has said so. A file without holes takes
/// what it is long: that file systems store whole blocks, or set some aside behind the end of what grows, does not count.
fn stored(seen: &Observed, size: u64) -> Option<u64> {
    let told = seen.complete && !seen.lost && seen.size > 0;
    told.then(|| seen.space.clamp(LEAST, size.max(LEAST)))
}

/// Where the inode says otherwise: its change attribute, and what is stored.
fn stored_otherwise(inode: &Inode, seen: &Observed) -> Option<(u64, u64)> {
    let file = inode.file().filter(|file| file.layout.is_some())?;
    let known = file.space_used.clamp(LEAST, file.size.max(LEAST));
    stored(seen, file.size).filter(|stored| *stored != known).map(|stored| (inode.change, stored))
}

/// After an unclean end, once the holder is fenced.
async fn settle(mds: &Arc<Mds>, entry: &Arc<FileEntry>) -> Result<bool, FsError> {
    // As in `observe`; and it stays unsettled until that is done.
    if mds.is_uncut(entry.key.fileid) {
        return Ok(false);
    }
    if may_still_be_written(mds, &entry.key).await? {
        return observe(mds, &entry.key).await;
    }
    let held = match mds.prepare(entry, &Intent::Settle).await {
        Ok(held) => held,
        Err(Error::Stale) => return Err(FsError::Stale),
        Err(_) => return Err(FsError::Busy),
    };
    // It may have become so while the ticket was waited for.
    if mds.is_uncut(entry.key.fileid) {
        return Ok(false);
    }
    let cut = entry.last_cut().ok_or(FsError::Busy)?;
    let before = inode(mds, entry.key).await?;
    let settled = held.ticket().is_some_and(Ticket::clears_rw);
    let mut want = CommitSize { settled, ..CommitSize::default() };
    if let Some(layout) = before.layout() {
        let seen = look(mds, entry, &before, cut).await?;
        want.end = Some(seen.size);
        want.space_used = Some(seen.space);
        want.mirrors_dirty = layout.has_copies();
        // A client that is gone may have written over what others have in memory, and it was durable (fdatasync).
        want.unseen = settled;
    }
    let changed = commit(mds, entry.key, want).await;
    if changed.as_ref().is_err_and(|error| !error.maybe_committed()) {
        return changed;
    }
    // Before anybody finds that there is nothing to settle: see `is_settled_if`.
    mds.files.stilled(mds.moment());
    // Also where nobody knows: if it has, whoever tries again finds them marked, and calls nobody back.
    if want.mirrors_dirty {
        mds.heals.queue(entry.key);
        if before.layout().is_some_and(|layout| !layout.mirrors_dirty) {
            mds.read_in_one_way(entry);
        }
    }
    if changed.is_err() {
        // The row that it was to clear may be gone.
        held.doubt();
        return changed;
    }
    if settled {
        mds.unsettled.lock().remove(&entry.key.fileid);
    }
    // The ticket's reply carries nothing, and the transaction stands whatever came meanwhile.
    drop(held.commit());
    changed
}

/// Whoever got a layout of an earlier incarnation may not have heard of its end. Until data servers refuse
/// those handles what they hold is looked at again each time: what fdatasync acknowledges is not lost.
async fn may_still_be_written(mds: &Arc<Mds>, key: &InodeKey) -> Result<bool, FsError> {
    if !mds.unsettled.lock().contains(&key.fileid) {
        return Ok(false);
    }
    let inode = inode(mds, *key).await?;
    Ok(inode.layout().is_some_and(|layout| dsctl::epochs::old_handles_live(mds, layout)))
}

/// Change attribute and times move, nothing else; and they do not if the change attribute has been another since. What it is then.
///
/// # Errors
/// What the store says.
pub(crate) async fn touch(mds: &Arc<Mds>, key: InodeKey, since: u64) -> Result<u64, FsError> {
    let want = CommitSize { since: Some(since), ..CommitSize::default() };
    commit_if(mds, key, want, || true).await.map(|done| done.inode.change)
}

/// The file is so long at least: somebody has written there, and may not have said so.
///
/// # Errors
/// What the store says.
pub(crate) async fn reaches(mds: &Arc<Mds>, key: InodeKey, end: u64) -> Result<bool, FsError> {
    commit(mds, key, CommitSize { end: Some(end), observed: true, ..CommitSize::default() }).await
}

async fn commit(mds: &Arc<Mds>, key: InodeKey, want: CommitSize) -> Result<bool, FsError> {
    commit_if(mds, key, want, || true).await.map(|done| done.grew)
}

/// Invalid when it `stands` no more.
async fn commit_if(
    mds: &Arc<Mds>,
    key: InodeKey,
    want: CommitSize,
    stands: impl Fn() -> bool + Send + Sync,
) -> Result<SizeCommitted, FsError> {
    let request =
        Request { who: &Credential::ROOT, now: mds.env.clock.wall(), directory: DirectoryUpdate::Exact };
    let (namespace, want, request, stands) = (&mds.namespace, &want, &request, &stands);
    let done = mds
        .write(|mut txn| {
            Box::pin(async move {
                let pending = namespace.commit_size(&mut txn, &key, want, request).await?;
                // After the inode was read: what begins from now on conflicts.
                if stands() { Ok(pending) } else { Err(FsError::Invalid) }
            })
        })
        .await;
    mds.found_size(done)
}

/// Clears the rw_layout row of a file whose last read-write layout was returned cleanly, together with those
/// of other files that were; and then puts down what was found to be stored of them.
pub(crate) async fn clear_rw(mds: Arc<Mds>, entry: Arc<FileEntry>) {
    let first = {
        let mut idle = mds.rw_idle.lock();
        idle.push(entry);
        idle.len() == 1
    };
    if !first {
        return;
    }
    mds.env.clock.sleep(GATHER).await;
    let mut entries = std::mem::take(&mut *mds.rw_idle.lock());
    // A file closed twice meanwhile is named twice, and its second ticket would wait for the first.
    entries.sort_unstable_by_key(|entry| entry.key.fileid);
    entries.dedup_by_key(|entry| entry.key.fileid);
    let mut held: Vec<Held> = Vec::with_capacity(entries.len());
    for entry in &entries {
        // Refused when it is not idle any more: the next clean return asks again. Where it would have to wait, all others
        // would wait with it: it is named again.
        held.extend(mds.prepare_now(entry, &Intent::ClearRw));
    }
    // The tickets retire their machines, which nobody else may be using then.
    drop(entries);
    if held.is_empty() {
        return;
    }
    let keys: Vec<InodeKey> = held.iter().map(Held::key).collect();
    let stored = held.iter().filter_map(|held| Some((held.key(), held.entry().take_stored()?)));
    let stored: Vec<_> = stored.collect();
    let (namespace, keys) = (&mds.namespace, &keys);
    let cleared = mds
        .write(|mut txn| {
            Box::pin(async move {
                keys.iter().for_each(|key| namespace.clear_read_write(&mut txn, key));
                Ok(())
            })
        })
        .await;
    match cleared {
        Ok(_) => {
            mds.files.stilled(mds.moment());
            held.into_iter().for_each(|ticket| drop(ticket.commit()));
        }
        // A row that stays costs a question to the data servers after the next restart, nothing else.
        Err(error) => {
            tracing::warn!(%error, "cannot clear the rows of files closed cleanly");
            if error.maybe_committed() {
                mds.files.stilled(mds.moment());
                held.into_iter().for_each(Held::doubt);
            }
        }
    }
    if !stored.is_empty() {
        take_stored(&mds, stored).await;
    }
}

/// From now on these files take what was found to be stored of them when their change attributes were these: until now what was
/// appended counts as stored, and what was written into a hole does not. Clients need not notice. Where a file has changed since,
/// its number is put right with the next layout. By itself: it reads inodes that others write, and whose rows are to be cleared waits for
/// nobody.
async fn take_stored(mds: &Arc<Mds>, stored: Vec<(InodeKey, (u64, u64))>) {
    let takes = |(key, (since, space_used))| {
        let (since, space_used) = (Some(since), Some(space_used));
        (key, CommitSize { since, space_used, observed: true, ..CommitSize::default() })
    };
    let stored: Vec<(InodeKey, CommitSize)> = stored.into_iter().map(takes).collect();
    let request =
        Request { who: &Credential::ROOT, now: mds.env.clock.wall(), directory: DirectoryUpdate::Exact };
    let (namespace, stored, request) = (&mds.namespace, &stored, &request);
    let taken = mds
        .write(|mut txn| {
            Box::pin(async move {
                for (key, takes) in stored {
                    match namespace.commit_size(&mut txn, key, takes, request).await {
                        Err(error @ FsError::Kv(_)) => return Err(error),
                        // One that is gone, or cannot be read, takes nothing from the others.
                        done => drop(done),
                    }
                }
                Ok(())
            })
        })
        .await;
    if let Err(error) = taken {
        tracing::debug!(%error, files = stored.len(), "what is stored of files closed cleanly is not put down");
    }
}

/// What the inode and its rows say about state that outlives a restart. A file without data files has no such rows, and its
/// inode is in memory as a rule: no transaction then.
///
/// # Errors
/// Stale when the inode is gone; what the store says.
pub(crate) async fn seed(mds: &Mds, key: &InodeKey) -> Result<FileSeed, FsError> {
    match mds.namespace.getattr_now(&mds.db, key) {
        Some(Ok(inode)) if inode.layout().is_none() => Ok(seed_of(&inode, false)),
        Some(Err(error)) => Err(error),
        _ => {
            let key = *key;
            let read = mds.read(|txn| Box::pin(async move { read_seed(mds, &txn, &key).await }));
            Box::pin(read).await
        }
    }
}

async fn read_seed(mds: &Mds, txn: &Transaction, key: &InodeKey) -> Result<FileSeed, FsError> {
    let inode = mds.namespace.getattr(txn, key).await?;
    let rw_layout = inode.layout().is_some() && mds.namespace.is_read_write(txn, key.fileid).await?;
    Ok(seed_of(&inode, rw_layout))
}

fn seed_of(inode: &Inode, rw_layout: bool) -> FileSeed {
    FileSeed { rw_layout, orphan: !inode.is_directory() && inode.nlink() == 0 }
}

/// Files that some read-write layout of an earlier incarnation may have left unsettled.
///
/// # Errors
/// What the store says.
pub(crate) async fn unsettled(
    db: &sluice_kv::Database,
    namespace: &sluice_namespace::Namespace,
) -> Result<std::collections::BTreeSet<sluice_namespace::FileId>, FsError> {
    const PAGE: usize = 1000;
    let mut all = std::collections::BTreeSet::new();
    let mut after = None;
    loop {
        let page = db
            .run_read(sluice_kv::RunLimits::default(), |txn| {
                Box::pin(async move { namespace.read_write_files(&txn, after, PAGE).await })
            })
            .await?;
        after = page.last().map(|key| key.fileid);
        all.extend(page.iter().map(|key| key.fileid));
        if page.len() < PAGE {
            return Ok(all);
        }
    }
}
