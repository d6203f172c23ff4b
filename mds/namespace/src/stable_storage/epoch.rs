//! Which metadata server may write: every transaction reads its epoch, so that a server that was
//! replaced cannot commit (DESIGN §4).

use sluice_kv::Transaction;

use super::{Row, get};
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys;

/// The present owner of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MdsEpoch {
    /// Raised by every server that takes over, from 1; also the boot epoch of client IDs and stateids.
    pub epoch: u64,
    /// Of the process.
    pub incarnation: [u8; 16],
}

impl Row for MdsEpoch {
    const WHAT: &'static str = "MDS epoch";
    fn encode(&self, w: &mut Writer) {
        w.u64(self.epoch).raw(&self.incarnation);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self { epoch: r.u64()?, incarnation: r.array()? })
    }
}

/// The present owner; `None` before the first server.
pub async fn epoch(txn: &Transaction) -> Result<Option<MdsEpoch>, FsError> {
    get(txn, &keys::single(keys::MDS_EPOCH)).await
}

/// Takes the file system over: from this commit on no transaction of an earlier owner commits. Run
/// again by the same incarnation it yields the same epoch.
pub async fn take_epoch(txn: &mut Transaction, incarnation: [u8; 16]) -> Result<MdsEpoch, FsError> {
    let epoch = match epoch(txn).await? {
        // An unknown commit result is resolved by looking: ours was the last.
        Some(present) if present.incarnation == incarnation => return Ok(present),
        Some(present) => present.epoch.checked_add(1).ok_or(FsError::corrupt(MdsEpoch::WHAT))?,
        None => 1,
    };
    let taken = MdsEpoch { epoch, incarnation };
    txn.set(keys::single(keys::MDS_EPOCH), taken.to_bytes());
    Ok(taken)
}

/// Refuses with [`FsError::Fenced`] if another server has taken over; the read is a conflict, so a
/// takeover at the same time makes this transaction fail.
pub async fn check_epoch(txn: &Transaction, ours: &MdsEpoch) -> Result<(), FsError> {
    match epoch(txn).await? {
        Some(present) if present == *ours => Ok(()),
        present => Err(FsError::Fenced { ours: ours.epoch, found: present.map_or(0, |p| p.epoch) }),
    }
}

/// The key and value of an owner's epoch, for a store that compares them itself in every write transaction.
pub fn epoch_guard(ours: &MdsEpoch) -> (bytes::Bytes, bytes::Bytes) {
    (keys::single(keys::MDS_EPOCH), ours.to_bytes())
}
