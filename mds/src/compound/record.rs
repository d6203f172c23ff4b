//! The reply row of a COMPOUND: how it is answered once, whatever dies in between. RFC 8881 §2.10.6.5.
//!
//! On a persistent session each transaction that carries out an operation also writes the row of the slot:
//! what the COMPOUND has answered so far. After a restart a retry goes on from there, so that nothing that
//! committed is done again; and the row tells whether a transaction of unknown result was applied.
//!
//! SEQUENCE's result is not in it: its flags tell a client what is so now, RESTART_RECLAIM_NEEDED above all.
//! Nor is anything written for operations without a transaction of their own. What only reads is safe to run
//! again, and may see newer data. State that lives in memory (opens, locks, layouts) is gone and has to be
//! reclaimed. LAYOUTCOMMIT only raises a size, and many of them share a transaction. The operations of
//! clients and sessions have records of their own.

use bytes::Bytes;
use sluice_kv::{Transaction, Versionstamp};
use sluice_namespace::stable_storage::{self, ReplyRow};
use sluice_namespace::{FileHandle, FsError, InodeKey};
use sluice_state::SessionId;
use sluice_state::slot::SMALL_REPLY;
use sluice_xdr::nfs4::{
    CREATE4res, LINK4res, OPEN4res, REMOVE4res, REMOVEXATTR4res, RENAME4res, SETXATTR4res, change_info4,
    nfs_resop4,
};
use sluice_xdr::{Decode, Encode, Reader, Writer};

use super::Context;
use crate::server::Mds;

/// Whose row it is, and what it says before the running operation adds to it.
#[derive(Debug)]
pub(crate) struct Recorder {
    // Constant.
    session: SessionId,
    slot: u32,
    seqid: u32,
    fingerprint: u64,
    /// Results up to this many bytes are kept. Those that the client wants cached are held to
    /// ca_maxresponsesize_cached already.
    limit: usize,
    // Changed by the loop.
    /// Results of the operations before the running one, without SEQUENCE's. `None`: too large to be kept.
    before: Option<Vec<u8>>,
}

impl Recorder {
    pub(crate) fn new(session: SessionId, slot: u32, seqid: u32, fingerprint: u64, cache_this: bool) -> Self {
        let limit = if cache_this { usize::MAX } else { SMALL_REPLY };
        Self { session, slot, seqid, fingerprint, limit, before: Some(Vec::new()) }
    }

    /// Results of at most this many bytes are kept.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The results before the operation that runs next.
    pub(crate) fn set_before(&mut self, before: Option<Vec<u8>>) {
        self.before = before;
    }

    /// Witness of a transaction that writes the row.
    pub(crate) fn key(&self) -> Bytes {
        stable_storage::reply_key(&self.session.0, self.slot)
    }

    /// What a restart finds of this request.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn load(&self, mds: &Mds) -> Result<Stored, FsError> {
        let (session, slot) = (self.session.0, self.slot);
        let row = mds
            .read(|txn| Box::pin(async move { stable_storage::reply(&txn, &session, slot).await }))
            .await?;
        match row {
            Some(row) if row.seqid == self.seqid => Stored::decode(mds, row),
            _ => Ok(Stored::Nothing),
        }
    }
}

impl Context {
    /// Says in the transaction of the running operation how it is answered. Change attributes that the
    /// commit decides are zero in `result`.
    pub(crate) fn record(&self, txn: &mut Transaction, result: &nfs_resop4) {
        self.put_record(txn, result, self.current_or_none());
    }

    /// As [`Context::record`], for an operation that leads to another current filehandle.
    pub(crate) fn record_at(&self, txn: &mut Transaction, result: &nfs_resop4, current: InodeKey) {
        let export = self.current_or_none().map_or(FileHandle::ROOT_EXPORT, |handle| handle.export);
        self.put_record(txn, result, Some(FileHandle { export, inode: current }));
    }

    fn put_record(&self, txn: &mut Transaction, result: &nfs_resop4, current: Option<FileHandle>) {
        let Some(recorder) = &self.recorder else { return };
        let results = recorder.before.as_ref().and_then(|before| {
            encode(current.as_ref(), self.saved.as_ref(), (before, result), recorder.limit)
        });
        let row = ReplyRow {
            stamp: Versionstamp([0; 10]),
            seqid: recorder.seqid,
            op_index: self.index,
            fingerprint: recorder.fingerprint,
            results: results.unwrap_or_default(),
        };
        stable_storage::put_reply(txn, &recorder.session.0, recorder.slot, &row);
    }
}

/// Room for the results of most operations.
const LAST: usize = 128;

/// A COMPOUND as a restart left it.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Position of the last operation that committed, from 1.
    pub(crate) index: u32,
    /// Filehandles after it. Stateids do not outlive the server.
    pub(crate) current: Option<FileHandle>,
    pub(crate) saved: Option<FileHandle>,
    /// Encoded results of the operations before it, without SEQUENCE's.
    pub(crate) before: Bytes,
    /// Its own result.
    pub(crate) last: nfs_resop4,
}

/// What stable storage says about a request.
#[derive(Debug)]
pub(crate) enum Stored {
    /// None of its transactions committed: it has not run yet.
    Nothing,
    /// Some did, and the results were too large to be kept.
    NotKept,
    Progress(Box<Progress>),
}

impl Stored {
    /// The filehandle that it had come to.
    pub(super) fn current(&self) -> Option<FileHandle> {
        match self {
            Self::Progress(progress) => progress.current,
            Self::Nothing | Self::NotKept => None,
        }
    }

    fn decode(mds: &Mds, row: ReplyRow) -> Result<Self, FsError> {
        if row.results.is_empty() {
            return Ok(Self::NotKept);
        }
        let change = mds.namespace.base().wrapping_add(row.stamp.version());
        decode(row, change)
            .map(|progress| Self::Progress(Box::new(progress)))
            .ok_or(FsError::Corrupt { what: "reply row" })
    }
}

/// Current and saved filehandle, each with its length before it; where the last result begins; the results. `None`: these are
/// larger than `limit`.
fn encode(
    current: Option<&FileHandle>,
    saved: Option<&FileHandle>,
    (before, last): (&[u8], &nfs_resop4),
    limit: usize,
) -> Option<Bytes> {
    const HANDLE: u8 = FileHandle::SIZE as u8;
    const AROUND: usize = 2 * (1 + FileHandle::SIZE) + 4;
    let mut out = Writer::with_capacity(limit.saturating_add(AROUND), AROUND + before.len() + LAST);
    for handle in [current, saved] {
        match handle {
            Some(handle) => {
                out.raw(&[HANDLE]);
                out.raw(&handle.to_array());
            }
            None => out.raw(&[0]),
        }
    }
    out.raw(&u32::try_from(before.len()).unwrap_or(u32::MAX).to_be_bytes());
    let results = out.len();
    out.raw(before);
    last.encode(&mut out);
    let fits = out.len() - results <= limit;
    out.finish_in_one().ok().filter(|_| fits).map(Bytes::from)
}

fn decode(row: ReplyRow, change: u64) -> Option<Progress> {
    let mut rest = row.results;
    let current = take_handle(&mut rest)?;
    let saved = take_handle(&mut rest)?;
    let last_at = usize::try_from(u32::from_be_bytes(take(&mut rest, 4)?.as_ref().try_into().ok()?)).ok()?;
    let before = take(&mut rest, last_at)?;
    let mut reader = Reader::new(rest);
    let mut last = nfs_resop4::decode(&mut reader).ok()?;
    reader.finish().ok()?;
    settle(&mut last, change);
    (row.op_index > 0).then_some(Progress { index: row.op_index, current, saved, before, last })
}

fn take(rest: &mut Bytes, n: usize) -> Option<Bytes> {
    (n <= rest.len()).then(|| rest.split_to(n))
}

fn take_handle(rest: &mut Bytes) -> Option<Option<FileHandle>> {
    let length = usize::from(*take(rest, 1)?.first()?);
    let bytes = take(rest, length)?;
    if bytes.is_empty() { Some(None) } else { FileHandle::decode(&bytes).ok().map(Some) }
}

/// Puts `change`, which the commit decided, where the row could not know it.
fn settle(result: &mut nfs_resop4, change: u64) {
    let put = |info: &mut change_info4| {
        if info.after == 0 {
            info.after = change;
        }
    };
    match result {
        nfs_resop4::OP_CREATE(CREATE4res::NFS4_OK(ok)) => put(&mut ok.cinfo),
        nfs_resop4::OP_LINK(LINK4res::NFS4_OK(ok)) => put(&mut ok.cinfo),
        nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(ok)) => put(&mut ok.cinfo),
        nfs_resop4::OP_REMOVE(REMOVE4res::NFS4_OK(ok)) => put(&mut ok.cinfo),
        nfs_resop4::OP_RENAME(RENAME4res::NFS4_OK(ok)) => {
            put(&mut ok.source_cinfo);
            put(&mut ok.target_cinfo);
        }
        nfs_resop4::OP_SETXATTR(SETXATTR4res::NFS4_OK(info))
        | nfs_resop4::OP_REMOVEXATTR(REMOVEXATTR4res::NFS4_OK(info)) => put(info),
        _ => {}
    }
}
