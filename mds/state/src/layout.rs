//! Layout state of one file: RFC 8881 §12.5, §18.42-18.44. One entry per client: stateid, iomodes, seqid; no
//! segment list, since recalls and returns are whole-file.
//!
//! ```text
//!            LAYOUTGET (seqid+1)
//!             ┌──┐
//! none ──▶ held ─┘──LAYOUTRETURN of all──▶ none            (clean, unless nobody could be asked what was written)
//!            │ recall (seqid+1)
//!            ▼
//!         recalled ──LAYOUTRETURN of all──▶ none            (clean)
//!            │ └──NOMATCHING, BAD_STATEID──▶ none or fencing (it could write)
//!            │ deadline; from held too: the client is gone
//!            ▼
//!         fencing ──every data server refuses it──▶ none    (unclean: settle)
//! ```
//!
//! Who says of a write that it got no answer is fenced, too, whether it returns the layout or goes on with it: what it
//! sends instead must not be overtaken by what a data server may yet find in a queue. That is no unclean end.
//!
//! The durable rw_layout row outlives all of it: it is written before the first read-write layout is
//! handed out and cleared after the last one ended cleanly or was settled.

use std::collections::BTreeMap;

use crate::effect::{Call, Calls, Effect, FenceId, IoMode, Recall, RecallKind};
use crate::few::Few;
use crate::file::{Error, PendingRecall};
use crate::ids::{ClientId, StateId, Time};
use crate::stateid::{Other, check_seqid, next_seqid, seqid_before};

/// The iomode of a LAYOUTRETURN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReturnMode {
    /// LAYOUTIOMODE4_READ.
    Read,
    /// LAYOUTIOMODE4_RW.
    ReadWrite,
    /// LAYOUTIOMODE4_ANY.
    Any,
}

/// A set of iomodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IoModes {
    /// READ segments were handed out.
    pub read: bool,
    /// Read-write segments were handed out.
    pub read_write: bool,
}

impl IoModes {
    /// True when nothing is held.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !self.read && !self.read_write
    }

    /// Adds one.
    pub const fn insert(&mut self, mode: IoMode) {
        match mode {
            IoMode::Read => self.read = true,
            IoMode::ReadWrite => self.read_write = true,
        }
    }
}

/// What one client holds.
#[derive(Debug, Hash)]
pub(crate) struct Layout {
    pub(crate) stateid: StateId,
    /// The seqid of the last READ segment handed out, if one is held.
    read: Option<u32>,
    /// The same for read-write.
    read_write: Option<u32>,
    pub(crate) recall: Option<PendingRecall>,
    /// The LAYOUTGETs of the last grants. Linux throws replies away (of a process that was killed, of an OPEN by name), and takes a
    /// recall whose seqid is not the next one that it knows of only if it is told of calls that it knows to be over.
    pub(crate) calls: Calls,
    /// When the first segment was handed out.
    pub(crate) since: Time,
    /// The seqid of a return that was refused because of a later grant.
    refused: Option<u32>,
    /// What was handed out so far is cut off, or about to be.
    pub(crate) cut_off: bool,
    /// The open or delegation that it was asked for under, by the mount that has it.
    under: Option<Other>,
    /// Segments to read with were handed out under another open, too: by another mount, as it seems.
    shared: bool,
}

/// A layout taken away whose fence is not yet in force: it may still write.
#[derive(Debug, Hash)]
pub(crate) struct Fencing {
    pub(crate) client: ClientId,
    pub(crate) read_write: bool,
}

/// The durable rw_layout row, as far as known here.
#[derive(Debug, Default, Hash)]
pub(crate) struct RwRow {
    /// It exists.
    pub(crate) durable: bool,
    /// It may exist, though nothing was handed out under it: it is not relied upon, and cleared.
    pub(crate) possible: bool,
    /// It was written with the file, for a layout that has not gone out yet: it waits while the file is open.
    pub(crate) awaited: bool,
    /// How many times a read-write layout ended uncleanly, and how many of those were settled.
    pub(crate) unclean: u64,
    pub(crate) settled: u64,
    /// Of the unclean ends, those that were found on the store.
    pub(crate) found: u64,
    /// [`Effect::RwIdle`](crate::effect::Effect::RwIdle) was sent and nothing has happened since.
    pub(crate) told_idle: bool,
}

/// All layouts of one file.
#[derive(Debug, Default, Hash)]
pub(crate) struct Layouts {
    held: Few<ClientId, Layout>,
    pub(crate) fencing: BTreeMap<FenceId, Fencing>,
    pub(crate) row: RwRow,
}

/// What a LAYOUTRETURN or a recall answer left.
#[derive(Debug)]
pub(crate) struct Returned {
    /// The stateid, at its last seqid.
    pub(crate) stateid: StateId,
    /// Segments of another iomode are left.
    pub(crate) left: bool,
}

impl RwRow {
    pub(crate) const fn needs_settle(&self) -> bool {
        self.unclean != self.settled
    }

    /// An unclean end of this incarnation is not settled: a reader of the inode from before the row was
    /// written must not get to make a fresh state machine that knows nothing of it.
    pub(crate) const fn must_be_remembered(&self) -> bool {
        self.needs_settle() && self.unclean > self.found
    }
}

impl Layout {
    pub(crate) fn modes(&self) -> IoModes {
        IoModes { read: self.read.is_some(), read_write: self.read_write.is_some() }
    }

    /// The seqids of the last grants.
    pub(crate) fn grants(&self) -> impl Iterator<Item = u32> {
        [self.read, self.read_write].into_iter().flatten()
    }

    pub(crate) fn is_rw(&self) -> bool {
        self.read_write.is_some()
    }

    /// Under which open, or delegation, it was asked for last.
    pub(crate) const fn under(&self) -> Option<Other> {
        self.under
    }

    /// Two mounts of one host are one client, which has one layout of a file and one stateid of it (RFC 8881 §12.5.3): what the one
    /// returns would end what the other goes on writing with, which nobody would recall, or fence. So where one of them writes the
    /// other has none. `other`: this is asked for by another mount than what is held.
    pub(crate) fn is_anothers(&self, other: bool, mode: IoMode) -> bool {
        (self.is_rw() || mode == IoMode::ReadWrite) && (self.shared || other)
    }
}

impl Layouts {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClientId, &Layout)> {
        self.held.iter().map(|(client, layout)| (*client, layout))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ClientId, &mut Layout)> {
        self.held.iter_mut().map(|(client, layout)| (*client, layout))
    }

    pub(crate) fn get(&self, client: ClientId) -> Option<&Layout> {
        self.held.get(&client)
    }

    pub(crate) fn get_mut(&mut self, client: ClientId) -> Option<&mut Layout> {
        self.held.get_mut(&client)
    }

    /// True when a read-write layout is live or not yet fenced.
    pub(crate) fn any_rw(&self) -> bool {
        self.held.values().any(Layout::is_rw) || self.fencing.values().any(|f| f.read_write)
    }

    pub(crate) fn fencing_client(&self, client: ClientId) -> bool {
        self.fencing.values().any(|f| f.client == client)
    }

    /// The layout named by a client's stateid; older seqids are good (RFC 8881 §12.5.3: LAYOUTGETs and
    /// LAYOUTCOMMITs run in parallel), later ones were never issued.
    pub(crate) fn check(&self, client: ClientId, stateid: &StateId) -> Result<&Layout, Error> {
        let layout = self.held.get(&client).filter(|l| l.stateid.other == stateid.other);
        let layout = layout.ok_or(Error::BadStateid)?;
        match check_seqid(stateid.seqid, layout.stateid.seqid) {
            Ok(()) | Err(Error::OldStateid) => Ok(layout),
            Err(error) => Err(error),
        }
    }

    /// Hands out a segment; true when the stateid is new (`fresh` is then in use). `other`: to another mount.
    pub(crate) fn grant(
        &mut self,
        client: ClientId,
        fresh: StateId,
        (mode, under, other): (IoMode, Option<Other>, bool),
        now: Time,
    ) -> (StateId, bool) {
        let new = self.held.get(&client).is_none();
        let layout = self.held.get_or_insert_with(client, || Layout {
            stateid: fresh,
            read: None,
            read_write: None,
            recall: None,
            calls: [None; 2],
            since: now,
            refused: None,
            cut_off: false,
            under,
            shared: false,
        });
        layout.shared |= other;
        layout.under = under.filter(|_| !other).or(layout.under);
        if !new {
            layout.stateid.seqid = next_seqid(layout.stateid.seqid);
        }
        (layout.refused, layout.cut_off) = (None, false);
        let seqid = layout.stateid.seqid;
        match mode {
            IoMode::Read => layout.read = Some(seqid),
            IoMode::ReadWrite => layout.read_write = Some(seqid),
        }
        (layout.stateid, new)
    }

    /// This call was just granted a segment.
    pub(crate) fn called(&mut self, client: ClientId, call: Option<Call>) {
        if let Some(layout) = self.held.get_mut(&client) {
            let [last, _] = layout.calls;
            layout.calls = [call, last];
        }
    }

    /// LAYOUTRETURN of the whole file.
    pub(crate) fn give_back(
        &mut self,
        client: ClientId,
        stateid: &StateId,
        mode: ReturnMode,
    ) -> Result<Returned, Error> {
        self.check(client, stateid)?;
        let layout = self.held.get_mut(&client).ok_or(Error::BadStateid)?;
        let read = matches!(mode, ReturnMode::Read | ReturnMode::Any).then_some(layout.read).flatten();
        let write =
            matches!(mode, ReturnMode::ReadWrite | ReturnMode::Any).then_some(layout.read_write).flatten();
        // RFC 8881 §12.5.5.1, §18.44.4: a return speaks of what the client knew at its seqid. A segment
        // granted since is not covered by it, and forgetting it here would leave a writer unseen; the
        // client asks again with the later seqid.
        let later =
            |than: u32| move |seqid: Option<u32>| seqid.is_some_and(|s| than != 0 && seqid_before(than, s));
        let granted_since = later(stateid.seqid);
        if granted_since(read) || granted_since(write) {
            layout.refused = Some(stateid.seqid);
            return Err(Error::OldStateid);
        }
        // Linux does that with a guess, the next seqid, and goes on to use the grant that it had not yet heard of
        // when it asked first: what that return did not cover, this one does not cover either.
        let unheard = later(layout.refused.take().unwrap_or_default());
        if read.is_some() && !unheard(read) {
            layout.read = None;
        }
        if write.is_some() && !unheard(write) {
            layout.read_write = None;
        }
        layout.stateid.seqid = next_seqid(layout.stateid.seqid);
        let (stateid, left) = (layout.stateid, !layout.modes().is_empty());
        if !left {
            self.held.remove(&client);
        }
        Ok(Returned { stateid, left })
    }

    pub(crate) fn remove(&mut self, client: ClientId) -> Option<Layout> {
        self.held.remove(&client)
    }
}

/// Starts or repeats the recall of one layout.
pub(crate) fn recall(
    client: ClientId,
    layout: &mut Layout,
    changed: bool,
    now: Time,
    timeout: u64,
) -> Option<Effect> {
    match &mut layout.recall {
        Some(pending) => {
            // A stronger reason is remembered for the next attempt; the one under way stands.
            pending.changed |= changed;
            None
        }
        None => {
            // RFC 8881 §12.5.3: a recall increments the seqid, once, however often it is repeated.
            layout.stateid.seqid = next_seqid(layout.stateid.seqid);
            layout.recall = Some(PendingRecall::new(changed, now, timeout));
            Some(callback(client, layout.stateid, changed))
        }
    }
}

pub(crate) const fn callback(client: ClientId, stateid: StateId, changed: bool) -> Effect {
    Effect::Callback(Recall { client, kind: RecallKind::Layout { changed }, stateid })
}
