//! A file as it is now, wherever that is known: in the inode, at data servers that are being written to, or with
//! the client that holds a write delegation. RFC 8881 §10.4.3.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sluice_env::Monotonic;
use sluice_namespace::{FsError, Inode, Node};
use sluice_state::ClientId;
use sluice_state::delegation::Writer;
use sluice_state::file::File;
use sluice_xdr::nfs4::nfsstat4;
use tokio::sync::oneshot;

use super::delegated;
use crate::callback::{self, Told};
use crate::compound::{Context, OpError};
use crate::files::{FileEntry, file_id};
use crate::layout::settle;
use crate::server::Mds;

/// The inode anew, as of when the COMPOUND came; `None` where `read` is what holds.
///
/// # Errors
/// DELAY while the holder of a write delegation does not answer: it is recalled. What the store or the data servers
/// say.
pub(crate) async fn current(cx: &Context, read: &Inode) -> Result<Option<Inode>, OpError> {
    if cx.just_made(&read.key) {
        return Ok(None);
    }
    let held = against(cx, read)?;
    if held.is_none() && settle::is_settled(&cx.server, read, cx.came) {
        return Ok(None);
    }
    // Every GETATTR has room for this future, and few need it.
    Box::pin(found(cx, read, held)).await
}

async fn found(
    cx: &Context,
    read: &Inode,
    held: Option<(Arc<FileEntry>, Writer)>,
) -> Result<Option<Inode>, OpError> {
    let Some((entry, writer)) = held else { return Ok(settle::settled(&cx.server, read, cx.came).await?) };
    let told = match asked(&cx.server, &entry, &writer, read.change).await? {
        Asked::Said(size) => size,
        Asked::Gone => None,
        Asked::Silent => return Err(nfsstat4::NFS4ERR_DELAY.into()),
    };
    let now = after_asking(cx, read).await?;
    delegated::shown(&cx.server, &entry, &now);
    Ok(Some(as_told(&entry, now, told).await))
}

/// The inode anew, once the holder was asked: that it has news is noted there, and what it had not flushed when `read` was
/// read it may have flushed since.
async fn after_asking(cx: &Context, read: &Inode) -> Result<Inode, FsError> {
    match settle::settled(&cx.server, read, cx.came).await? {
        Some(now) => Ok(now),
        None => settle::inode(&cx.server, read.key).await,
    }
}

/// Nobody else knows more of the file than `read`: what most are when they are listed.
pub(crate) fn at_rest(cx: &Context, read: &Inode) -> bool {
    let Ok(client) = cx.client() else { return false };
    let nobody = |file: &File| file.write_delegation_against(client).is_none();
    settle::is_settled_if(&cx.server, read, cx.came, nobody)
}

/// So long others are asked for one listing, holders and data servers: beyond it nobody else is.
const ASKING: Duration = Duration::from_secs(2);
/// And so long the last of them is waited for.
const LISTING: Duration = Duration::from_secs(5);
/// A holder that takes longer to answer is not asked again for the same listing.
const QUICK: Duration = Duration::from_millis(500);

/// The same as [`current`] for the entries of a listing, which nobody who is away must take with him: what is known is shown.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Holders that did not answer, or took long.
    slow: BTreeSet<ClientId>,
    /// A data server did not answer, or took long.
    stalled: bool,
    /// When the first was asked.
    begun: Option<Monotonic>,
}

impl Listing {
    /// What there is so far is answered: there are many to ask, and each of them answers.
    pub(crate) fn has_enough(&self, cx: &Context) -> bool {
        self.slow.is_empty() && !self.stalled && self.is_over(cx)
    }

    fn is_over(&self, cx: &Context) -> bool {
        self.begun.is_some_and(|begun| cx.server.env.clock.now().since(begun) > ASKING)
    }

    pub(crate) async fn current(&mut self, cx: &Context, read: &Inode) -> Option<Inode> {
        let Some((entry, writer)) = against(cx, read).ok().flatten() else {
            return self.settled(cx, read).await;
        };
        if self.slow.contains(&writer.client) || self.is_over(cx) {
            let settled = self.settled(cx, read).await;
            delegated::shown(&cx.server, &entry, settled.as_ref().unwrap_or(read));
            return settled;
        }
        let now = || cx.server.env.clock.now();
        let begun = now();
        self.begun.get_or_insert(begun);
        let asked = Box::pin(asked(&cx.server, &entry, &writer, read.change)).await;
        if matches!(asked, Ok(Asked::Silent)) || now().since(begun) > QUICK {
            self.slow.insert(writer.client);
        }
        let told = match asked {
            Ok(Asked::Said(size)) => size,
            Ok(Asked::Gone | Asked::Silent) | Err(_) => None,
        };
        let now = match self.settled(cx, read).await {
            Some(now) => now,
            None => settle::inode(&cx.server, read.key).await.unwrap_or_else(|_| read.clone()),
        };
        delegated::shown(&cx.server, &entry, &now);
        Some(as_told(&entry, now, told).await)
    }

    /// As data servers have it, while they are asked; then, as it is stored. `None`: as it was read.
    async fn settled(&mut self, cx: &Context, read: &Inode) -> Option<Inode> {
        if settle::is_settled(&cx.server, read, cx.came) {
            return None;
        }
        if is_written_by_asker(cx, read) {
            // What is stored may be less than it has written, and Linux would cut its view of the file.
            return settle::settled(&cx.server, read, cx.came).await.ok().flatten();
        }
        if self.is_over(cx) {
            return settle::inode(&cx.server, read.key).await.ok();
        }
        let clock = &cx.server.env.clock;
        let began = clock.now();
        let patience = LISTING.saturating_sub(began.since(*self.begun.get_or_insert(began)));
        let (mds, of, came, (done, answer)) =
            (Arc::clone(&cx.server), read.clone(), cx.came, oneshot::channel());
        // What is settled is to be settled to its end, whoever goes on without.
        cx.server.spawn(async move {
            let _nobody_waits = done.send(settle::settled(&mds, &of, came).await);
        });
        let answered = clock.timeout(patience, answer).await;
        self.stalled |= clock.now().since(began) > QUICK;
        match answered {
            Ok(Ok(found)) => found.ok().flatten(),
            _ => settle::inode(&cx.server, read.key).await.ok(),
        }
    }
}

/// Whether who asks has a layout to write the file with.
fn is_written_by_asker(cx: &Context, read: &Inode) -> bool {
    let entry = cx.server.files.get(file_id(&read.key));
    cx.client().is_ok_and(|client| entry.is_some_and(|entry| entry.peek(|file| file.is_written_by(client))))
}

/// Somebody else's write delegation of the file.
fn against(cx: &Context, read: &Inode) -> Result<Option<(Arc<FileEntry>, Writer)>, OpError> {
    if read.file().is_none() {
        return Ok(None);
    }
    let client = cx.client()?;
    let Some(entry) = cx.server.files.get(file_id(&read.key)) else { return Ok(None) };
    let writer = entry.peek(|file| file.write_delegation_against(client));
    Ok(writer.map(|writer| (entry, writer)))
}

enum Asked {
    /// The size, if it knows of changes that we do not.
    Said(Option<u64>),
    /// It has returned the delegation meanwhile.
    Gone,
    /// It is recalled.
    Silent,
}

/// `since`: the change attribute as it was before.
async fn asked(
    mds: &Arc<Mds>,
    entry: &Arc<FileEntry>,
    writer: &Writer,
    since: u64,
) -> Result<Asked, FsError> {
    let told = callback::ask(mds, entry, writer).await;
    let holds = |file: &File| {
        file.write_delegation_against(ClientId(0)).is_some_and(|now| now.stateid == writer.stateid)
    };
    if !entry.peek(holds) {
        return Ok(Asked::Gone);
    }
    let Some(told) = told else {
        mds.step(entry, None, |file, ctx| ((), file.recall_delegation(ctx, writer.client)));
        return Ok(Asked::Silent);
    };
    // One after the other: what one is shown is not to change for the next one and look the same.
    let mut shown = entry.shown().await;
    let inode = settle::inode(mds, entry.key).await?;
    let holder = (writer.client, &writer.stateid);
    let believed =
        delegated::believe(mds, entry, holder, told.times, mds.env.clock.wall()).unwrap_or_default();
    let known = delegated::stamps(inode.record.atime, inode.mtime());
    let other = believed.modify.is_some() && believed.modify != known.modify;
    if !other && !is_news(told, writer.change, (inode.change, inode.size())) {
        return Ok(Asked::Said(None));
    }
    // It has data that nobody else has seen: who looks sees that the file is not what it was before.
    let change = match believed.modify {
        Some(_) => {
            delegated::show(mds, entry, writer, told.times).await?;
            settle::inode(mds, entry.key).await?.change
        }
        // What it has done here meanwhile is seen as it is, and a time that it has set stays.
        None => {
            let before = shown.with(inode.change);
            let since = if before > 0 && before < told.size { inode.change } else { since };
            settle::touch(mds, entry.key, since).await?
        }
    };
    shown.show(change, told.size);
    Ok(Asked::Said(Some(told.size)))
}

/// §10.4.3: a holder that has changed something says another change attribute than the one it was given. What was
/// given with a delegation that was reclaimed is not known here. `known`: change and size.
fn is_news(told: Told, given: Option<u64>, known: (u64, u64)) -> bool {
    let other = given.is_some_and(|given| told.change != given && told.change != known.0);
    other || told.size > known.1
}

/// With the size that the holder told, or, where its change attribute is one that another was shown, with that size.
async fn as_told(entry: &FileEntry, mut now: Inode, told: Option<u64>) -> Inode {
    if let (Some(told), Node::File(file)) = (told, &mut now.record.node) {
        file.size = file.size.max(told).max(entry.shown().await.with(now.change));
    }
    now
}

#[cfg(test)]
mod tests {
    use sluice_state::times::Times;

    use super::*;

    #[test]
    fn a_holder_that_has_changed_nothing_has_no_news() {
        let news =
            |change, size, given| is_news(Told { change, size, times: Times::default() }, given, (9, 100));
        assert!(!news(7, 100, Some(7)), "the change attribute has moved here, with its LAYOUTCOMMITs");
        assert!(!news(9, 100, Some(7)), "it has heard of that");
        assert!(news(8, 100, Some(7)), "it has written within the size");
        assert!(news(7, 101, Some(7)));
        assert!(!news(8, 100, None));
        assert!(news(8, 101, None));
    }
}
