//! COPY within this server. RFC 7862 §4, §15.2.
//!
//! | module | what |
//! | --- | --- |
//! | `step` | moves a range from data servers to data servers, and commits it |
//! | `clone` | CLONE: data files that share what others hold |
//! | `plan` | which of them share what, and what has to be copied |
//! | `missed` | data servers that a clone needs and that are not here |
//! | `job` | a copy that goes on after its COPY was answered |
//! | this one | what a copy is of, who may make it; all copies under way |
//!
//! A copy is a series of steps; each takes tickets on both files and is durable when it ends. What was copied is
//! always a beginning of the range. Copies under way are in memory alone: a restart ends them, and their clients,
//! who reclaim their opens, ask anew.

pub(crate) mod clone;
pub(crate) mod job;
mod missed;
mod plan;
pub(crate) mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_namespace::stable_storage::Protection;
use sluice_namespace::{Credential, DataFileId, FileHandle, Inode, Want};
use sluice_state::stateid::{Other, special};
use sluice_state::{ClientId, StateId};
use sluice_xdr::nfs4::nfsstat4;
use tokio::sync::Semaphore;

use crate::compound::OpError;
use crate::exports::table;
use crate::files::file_id;
use crate::layout::settle;
use crate::ops::read::may_read;
use crate::server::Mds;
pub(crate) use job::Job;

/// Copies of one client that are under way, or of whose end it heard no longer than a lease ago.
const PER_CLIENT: usize = 32;
/// The same of all clients.
const IN_ALL: usize = 4096;

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) handle: FileHandle,
    pub(crate) stateid: StateId,
    pub(crate) offset: u64,
}

impl End {
    /// With the newest of its stateid (RFC 8881 §8.2.2: a seqid of 0 is that), which another OPEN or LOCK of its owner may be.
    fn newest(self) -> Self {
        let stateid = if self.is_ordinary() { self.stateid.with_seqid(0) } else { self.stateid };
        Self { stateid, ..self }
    }

    /// It is under a stateid that is none of the special ones.
    fn is_ordinary(&self) -> bool {
        special(&self.stateid).ok().flatten().is_none()
    }
}

/// Who copies.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) from: IpAddr,
    pub(crate) credential: sluice_rpc::Credential,
    /// What its connection has.
    pub(crate) over: Protection,
}

impl Caller {
    /// Who the caller is in the export of a filehandle, if it may use it, and write there.
    ///
    /// # Errors
    /// ACCESS, STALE, WRONGSEC, ROFS.
    fn judge(&self, mds: &Mds, handle: &FileHandle, write: bool) -> Result<Credential, nfsstat4> {
        let caller = (&self.credential, self.over);
        let rule = mds.exports.now().judge(handle, &mds.origin(self.from), caller).verdict?;
        if write && rule.read_only {
            return Err(nfsstat4::NFS4ERR_ROFS);
        }
        Ok(table::squash(&self.credential, &rule))
    }

    /// May this caller use the export of one end at all?
    ///
    /// # Errors
    /// ACCESS, STALE, WRONGSEC.
    pub(crate) fn permit_use(&self, mds: &Mds, end: &End) -> Result<(), nfsstat4> {
        self.judge(mds, &end.handle, false).map(drop)
    }

    /// May this caller read one end, or write the other, now? What an operation of its own would be asked
    /// (`ops/read.rs`), with the export's judgement before it.
    ///
    /// # Errors
    /// What the export, the state and the mode say.
    pub(crate) async fn permit(&self, mds: &Arc<Mds>, end: &End, write: bool) -> Result<Credential, OpError> {
        let who = self.judge(mds, &end.handle, write)?;
        let (client, key) = (self.client, end.handle.inode);
        let entry = mds.file(&key).await?;
        if end.is_ordinary() {
            // Tells revoked, stale and foreign stateids apart; the machine knows only its own.
            let at = mds.files.locate(client, &end.stateid)?;
            if at.file != file_id(&key) {
                return Err(nfsstat4::NFS4ERR_BAD_STATEID.into());
            }
        }
        let stateid = end.stateid;
        let unasked = mds.step(&entry, Some(client), |file, ctx| {
            let permitted = file.check_io(ctx, client, &stateid, write);
            (permitted.map(|()| !write && file.is_for_writing_alone(&stateid)), Vec::new())
        })?;
        if !end.is_ordinary() {
            let inode: Inode = settle::inode(mds, key).await?;
            inode.record.owned().require(&who, if write { Want::WRITE } else { Want::READ })?;
        } else if unasked {
            may_read(&settle::inode(mds, key).await?, &who)?;
        }
        Ok(who)
    }
}

/// Orders of all copies that are under way at once. A data server holds some MiB of each.
const ORDERS: usize = 32;

/// Copies under way, and those that ended a while ago.
#[derive(Debug)]
pub(crate) struct Copies {
    jobs: Mutex<BTreeMap<Other, Arc<Job>>>,
    /// A permit for each order to a data server.
    orders: Semaphore,
    making: Arc<Mutex<Making>>,
}

/// Data files that are being made for a clone. A row says that they are garbage, which becomes true should this
/// server end.
#[derive(Debug, Default)]
struct Making {
    ids: BTreeSet<DataFileId>,
    /// Those whose fate is not known.
    kept: BTreeSet<DataFileId>,
    /// How many were here once, and are not any more.
    ended: u64,
}

/// Data files that are not to be removed while this lives.
#[derive(Debug)]
pub(crate) struct Made {
    id: DataFileId,
    making: Arc<Mutex<Making>>,
}

impl Made {
    /// Nobody knows whether their owner has taken them: they are not removed before the next start, which finds
    /// out.
    pub(crate) fn keep(self) {
        self.making.lock().kept.insert(self.id);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let mut making = self.making.lock();
        making.ids.remove(&self.id);
        making.ended += 1;
    }
}

impl Default for Copies {
    fn default() -> Self {
        Self { jobs: Mutex::default(), orders: Semaphore::new(ORDERS), making: Arc::default() }
    }
}

impl Copies {
    /// Data files are about to be made: before their row says so.
    pub(crate) fn make(&self, id: DataFileId) -> Made {
        self.making.lock().ids.insert(id);
        Made { id, making: Arc::clone(&self.making) }
    }

    /// How many sets of data files have been made. What `garbage` is found between two calls that answer alike is
    /// nobody's, unless it [is being made](Self::is_making). Where they do not, it is if it is still there afterwards.
    pub(crate) fn made(&self) -> u64 {
        self.making.lock().ended
    }

    pub(crate) fn is_making(&self, id: DataFileId) -> bool {
        let making = self.making.lock();
        making.ids.contains(&id) || making.kept.contains(&id)
    }

    /// Takes a copy in. `false`: there are too many.
    fn insert(&self, job: &Arc<Job>) -> bool {
        let mut jobs = self.jobs.lock();
        let of_client = jobs.values().filter(|other| other.caller.client == job.caller.client).count();
        if of_client >= PER_CLIENT || jobs.len() >= IN_ALL {
            return false;
        }
        jobs.insert(job.stateid.other, Arc::clone(job));
        true
    }

    pub(crate) fn remove(&self, stateid: &StateId) {
        self.jobs.lock().remove(&stateid.other);
    }

    /// The copy that a client names, to this file.
    ///
    /// # Errors
    /// BAD_STATEID.
    pub(crate) fn find(
        &self,
        client: ClientId,
        target: &FileHandle,
        stateid: &StateId,
    ) -> Result<Arc<Job>, nfsstat4> {
        let jobs = self.jobs.lock();
        let job = jobs.get(&stateid.other).filter(|job| {
            // §4.8: a seqid of 0 is the most recent, and there is only one.
            let seqid = stateid.seqid == 0 || stateid.seqid == job.stateid.seqid;
            seqid && job.caller.client == client && job.target.handle == *target
        });
        job.map(Arc::clone).ok_or(nfsstat4::NFS4ERR_BAD_STATEID)
    }

    /// A client is gone, and its copies with it.
    pub(crate) fn forget_client(&self, client: ClientId) {
        self.jobs.lock().retain(|_, job| {
            let theirs = job.caller.client == client;
            if theirs {
                let _ended_already = job.cancel();
            }
            !theirs
        });
    }
}
