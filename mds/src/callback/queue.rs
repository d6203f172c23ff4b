//! Recalls that wait for their clients. Who holds a million layouts is asked for each of them when a data server is lost: what
//! waits is a record, and a task only what is being sent. RFC 8881 §20.3, §20.2.
//!
//! ```text
//!   recall ──▶ waiting ──its turn──▶ a slot of the back channel ──▶ sent, by a task ──▶ answered
//!                         │ returned, or taken                │ none up, or none free in time
//!                         ▼                                   ▼
//!                       dropped                          unreachable
//! ```
//!
//! The machine of the file keeps the deadline, and asks again.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dashmap::{DashMap, Entry};
use foldhash::fast::FixedState;
use sluice_state::effect::{Call, Calls, Recall, RecallAnswer, RecallKind};
use sluice_state::file::FileId;
use sluice_state::{ClientId, StateId};
use sluice_xdr::nfs4::{
    CB_LAYOUTRECALL4args, CB_RECALL4args, layoutiomode4, layoutrecall_file4, layoutrecall4, layouttype4,
    nfs_cb_argop4, nfsstat4,
};

use super::wire::Message;
use super::{handle, path};
use crate::compound::context::to_wire;
use crate::files::{FileEntry, file_id};
use crate::metrics::add;
use crate::server::Mds;

/// So many that nobody is reached with go by before others have their turn of the processor.
const BATCH: usize = 64;

/// Recalls that are not yet sent.
#[derive(Debug, Default)]
pub(crate) struct Recalls {
    lines: DashMap<ClientId, Line, FixedState>,
}

/// Those of one client, first come first served; gone when empty. Delegations are few, and somebody waits for each: they do not
/// stand behind all layouts that a data server which is lost has taken back.
#[derive(Debug, Default)]
struct Line {
    delegations: VecDeque<Asked>,
    layouts: VecDeque<Asked>,
    /// Who sends them: one task.
    sender: Weak<()>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Asked {
    file: FileId,
    kind: RecallKind,
    stateid: StateId,
}

impl Recalls {
    /// One more. `Some`: nobody sends those of this client; whoever holds this does.
    fn push(&self, client: ClientId, asked: Asked) -> Option<Arc<()>> {
        let mut line = self.lines.entry(client).or_default();
        match asked.kind {
            RecallKind::Delegation => line.delegations.push_back(asked),
            RecallKind::Layout { .. } => line.layouts.push_back(asked),
        }
        // A sender that died by a fault of ours is replaced.
        (line.sender.strong_count() == 0).then(|| {
            let own = Arc::new(());
            line.sender = Arc::downgrade(&own);
            own
        })
    }

    /// The next one. `None`: there is none, and the next to come has another sender.
    fn next(&self, client: ClientId) -> Option<Asked> {
        let Entry::Occupied(mut line) = self.lines.entry(client) else { return None };
        let waiting = line.get_mut();
        let next = waiting.delegations.pop_front().or_else(|| waiting.layouts.pop_front());
        if next.is_none() {
            line.remove();
        }
        next
    }
}

/// A recall is to be sent, and the client's answer reported to the file's machine.
pub(crate) fn recall(mds: &Arc<Mds>, entry: &FileEntry, recall: Recall) {
    let Recall { client, kind, stateid } = recall;
    let asked = Asked { file: file_id(&entry.key), kind, stateid };
    if let Some(own) = mds.recalls.push(client, asked) {
        mds.spawn(send_all(Arc::clone(mds), client, own));
    }
}

async fn send_all(mds: Arc<Mds>, client: ClientId, _own: Arc<()>) {
    let mut done = 0_usize;
    while let Some(asked) = mds.recalls.next(client) {
        send(&mds, client, asked).await;
        done += 1;
        if done.is_multiple_of(BATCH) {
            tokio::task::yield_now().await;
        }
    }
}

/// Waits for a slot; the rest is another task's.
async fn send(mds: &Arc<Mds>, client: ClientId, asked: Asked) {
    let Asked { file, kind, stateid } = asked;
    let Some(entry) = mds.files.get(file) else { return };
    let under_way = || entry.peek(|file| file.recall_under_way(kind, client, &stateid));
    let Some((until, _)) = under_way() else { return };
    // Courteous, but not in the way (§8.3).
    if kind == RecallKind::Delegation && mds.expel_if_courtesy(client).await {
        return;
    }
    // Beyond that it is revoked.
    let patience = Duration::from_nanos(until.since(mds.now())).min(mds.config.recall_timeout);
    let deadline = mds.env.clock.now() + patience;
    let slot = if patience.is_zero() { None } else { path::acquire(mds, client, deadline).await };
    let Some(slot) = slot else { return unreached(mds, &entry, client, asked).await };
    let Some((_, after)) = under_way() else { return };
    add(&mds.metrics.recalls_sent, 1);
    let own = Arc::clone(mds);
    mds.spawn(async move {
        let said = path::reach_over(slot, message(&own, &entry, client, asked, after), deadline).await;
        match answer(said.ok().map(|said| said.status)) {
            RecallAnswer::Unreachable => unreached(&own, &entry, client, asked).await,
            answer => answered(&own, &entry, client, asked, answer),
        }
    });
}

fn message(mds: &Mds, entry: &FileEntry, client: ClientId, asked: Asked, after: Calls) -> Message {
    // Of a session that is over there is nothing to be told.
    let is_there = |call: &Call| mds.clients.session(call.session).is_some();
    let after = after.into_iter().flatten().filter(is_there).collect();
    Message { operation: operation(mds, entry, client, asked), after }
}

fn operation(mds: &Mds, entry: &FileEntry, client: ClientId, asked: Asked) -> nfs_cb_argop4 {
    let (fh, stateid) = (handle(mds, entry, client), to_wire(&asked.stateid));
    match asked.kind {
        RecallKind::Layout { changed } => nfs_cb_argop4::OP_CB_LAYOUTRECALL(CB_LAYOUTRECALL4args {
            clora_type: layouttype4::LAYOUT4_FLEX_FILES,
            clora_iomode: layoutiomode4::LAYOUTIOMODE4_ANY,
            clora_changed: changed,
            clora_recall: layoutrecall4::LAYOUTRECALL4_FILE(layoutrecall_file4 {
                lor_fh: fh,
                lor_offset: 0,
                lor_length: u64::MAX,
                lor_stateid: stateid,
            }),
        }),
        RecallKind::Delegation => nfs_cb_argop4::OP_CB_RECALL(CB_RECALL4args {
            stateid,
            // A client that is told so may drop what it has not flushed (§20.2). What the file is recalled for may fail yet.
            truncate: false,
            fh,
        }),
    }
}

/// What a status means to the machine; `None`: the client was not reached.
fn answer(status: Option<nfsstat4>) -> RecallAnswer {
    match status {
        Some(nfsstat4::NFS4_OK) => RecallAnswer::Ok,
        Some(nfsstat4::NFS4ERR_DELAY) => RecallAnswer::Delay,
        Some(nfsstat4::NFS4ERR_NOMATCHING_LAYOUT) => RecallAnswer::NoMatching,
        Some(nfsstat4::NFS4ERR_BAD_STATEID | nfsstat4::NFS4ERR_BADHANDLE) => RecallAnswer::BadStateid,
        Some(nfsstat4::NFS4ERR_OLD_STATEID) => RecallAnswer::OldStateid,
        Some(_) | None => RecallAnswer::Unreachable,
    }
}

async fn unreached(mds: &Arc<Mds>, entry: &Arc<FileEntry>, client: ClientId, asked: Asked) {
    // Courteous, but not in the way (§8.3): one whose lease is over is not waited for.
    mds.expel_if_courtesy(client).await;
    answered(mds, entry, client, asked, RecallAnswer::Unreachable);
}

fn answered(mds: &Arc<Mds>, entry: &Arc<FileEntry>, client: ClientId, asked: Asked, answer: RecallAnswer) {
    let Asked { kind, stateid, file } = asked;
    tracing::debug!(?client, ?kind, ?answer, file = file.0, "recall");
    mds.step(entry, Some(client), |file, ctx| ((), file.recall_answer(ctx, kind, client, &stateid, answer)));
}
