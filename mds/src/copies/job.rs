//! A copy that goes on after its COPY was answered. RFC 7862 §4.4, §4.8, §15.8, §15.9, §16.1.
//!
//! ```text
//!   COPY ──▶ under way ──▶ ended ──▶ CB_OFFLOAD, until it was heard ──▶ remembered for a lease ──▶ forgotten
//!               │ OFFLOAD_CANCEL, or the client is gone
//!               └──▶ cancelled: nothing is written any more ──▶ forgotten
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sluice_state::{StateId, StateKind, Time};
use sluice_xdr::nfs4::nfsstat4;
use tokio::sync::watch;

use super::step::{Commit, Step, step};
use super::{Caller, End};
use crate::callback;
use crate::compound::OpError;
use crate::server::Mds;

/// After a step that could not be made now.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a copy may stand still before it fails: longer than it takes to do without a data server.
const GIVE_UP: u64 = 90_000_000_000;

/// One copy.
#[derive(Debug)]
pub(crate) struct Job {
    // Constant.
    pub(crate) stateid: StateId,
    pub(crate) caller: Caller,
    pub(crate) source: End,
    pub(crate) target: End,
    count: u64,
    // Changed as it goes on.
    copied: AtomicU64,
    cancelled: AtomicBool,
    /// When its client was last seen to have a session, nanoseconds.
    reachable: AtomicU64,
    /// How it ended.
    ended: watch::Sender<Option<nfsstat4>>,
}

impl Job {
    /// Bytes copied so far.
    pub(crate) fn copied(&self) -> u64 {
        self.copied.load(Ordering::Acquire)
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&self) -> Option<nfsstat4> {
        *self.ended.borrow()
    }

    /// It is to end after the step under way. `false`: it has ended.
    pub(crate) fn cancel(&self) -> bool {
        self.cancelled.store(true, Ordering::Release);
        self.ended().is_none()
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Returns when it has ended.
    pub(crate) async fn end(&self) {
        // The sender is ours: an error cannot happen.
        let _ = self.ended.subscribe().wait_for(Option::is_some).await;
    }
}

/// Begins a copy of what COPY has judged. `None`: there are too many already.
pub(crate) fn begin(mds: &Arc<Mds>, caller: Caller, source: End, target: End, count: u64) -> Option<StateId> {
    let job = Arc::new(Job {
        stateid: mds.files.new_stateid(StateKind::Copy),
        caller,
        // The client was answered: it opens and locks both files as before, and their stateids move on.
        source: source.newest(),
        target: target.newest(),
        count,
        copied: AtomicU64::new(0),
        cancelled: AtomicBool::new(false),
        reachable: AtomicU64::new(mds.now().0),
        ended: watch::Sender::new(None),
    });
    if !mds.copies.insert(&job) {
        return None;
    }
    let stateid = job.stateid;
    mds.spawn(run(Arc::clone(mds), job));
    Some(stateid)
}

async fn run(mds: Arc<Mds>, job: Arc<Job>) {
    let status = carry_out(&mds, &job).await;
    tracing::debug!(copy = ?job.stateid, client = ?job.caller.client, ?status, copied = job.copied(), "a copy ended");
    job.ended.send_replace(Some(status));
    // It may overtake the reply of COPY: a client that does not know the copy yet keeps what it hears, or asks for
    // the status.
    if !job.is_cancelled() {
        callback::offloaded(&mds, &job, status).await;
    }
    mds.env.clock.sleep(mds.config.lease).await;
    mds.copies.remove(&job.stateid);
}

/// Steps until all is copied, the source ends, something is in the way for good, or nobody wants it any more.
async fn carry_out(mds: &Arc<Mds>, job: &Job) -> nfsstat4 {
    let mut moved = mds.now();
    while job.copied() < job.count {
        if job.is_cancelled() {
            return nfsstat4::NFS4ERR_IO;
        }
        match advance(mds, job).await {
            Ok(0) => break,
            Ok(copied) => {
                job.copied.fetch_add(copied, Ordering::AcqRel);
                moved = mds.now();
            }
            Err(OpError::Status(status)) if passes(status) && !is_over(mds, moved) => {
                mds.env.clock.sleep(PAUSE).await;
            }
            // The client does not come again for a copy that it was told of.
            Err(OpError::Status(status)) if passes(status) => return nfsstat4::NFS4ERR_IO,
            Err(OpError::Status(status) | OpError::Arm(status, _)) => return status,
        }
    }
    nfsstat4::NFS4_OK
}

async fn advance(mds: &Arc<Mds>, job: &Job) -> Result<u64, OpError> {
    if !is_wanted(mds, job) {
        return Err(nfsstat4::NFS4ERR_EXPIRED.into());
    }
    // As if it were asked for now: what was revoked or forbidden meanwhile is not read or written any more.
    job.caller.permit(mds, &job.source, false).await?;
    let who = job.caller.permit(mds, &job.target, true).await?;
    let copied = job.copied();
    let next = Step {
        client: job.caller.client,
        source: job.source.handle.inode,
        source_offset: job.source.offset + copied,
        target: job.target.handle.inode,
        offset: job.target.offset + copied,
        length: job.count - copied,
        most: mds.config.copy_step,
    };
    step(mds, &next, &Commit::Server(&who)).await
}

/// A client that is gone, or has had no session for a lease, cannot hear of the end, nor be told what to do again (§4.8).
/// Between one session and the next it has none for a moment.
fn is_wanted(mds: &Mds, job: &Job) -> bool {
    let (client, now) = (job.caller.client, mds.now());
    if !mds.clients.sessions_of(client).is_empty() {
        job.reachable.store(now.0, Ordering::Release);
    }
    let silent = now.since(Time(job.reachable.load(Ordering::Acquire)));
    mds.clients.is_alive(client) && u128::from(silent) <= mds.config.lease.as_nanos()
}

/// A reason to come again.
fn passes(status: nfsstat4) -> bool {
    matches!(status, nfsstat4::NFS4ERR_DELAY | nfsstat4::NFS4ERR_GRACE)
}

fn is_over(mds: &Mds, moved: Time) -> bool {
    mds.now().since(moved) > GIVE_UP
}
