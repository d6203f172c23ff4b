//! Inner errors become nfsstat4, one total match each.

use sluice_kv::KvError;
use sluice_namespace::FsError;
use sluice_state::client::Error as ClientError;
use sluice_state::file::Error as StateError;
use sluice_xdr::nfs4::nfsstat4;

use crate::compound::OpError;

/// What a client is told of an error of the namespace. Our own faults are logged here, once.
pub(crate) fn fs_status(error: &FsError) -> nfsstat4 {
    match error {
        FsError::NotFound => nfsstat4::NFS4ERR_NOENT,
        FsError::Exists => nfsstat4::NFS4ERR_EXIST,
        FsError::NotDirectory => nfsstat4::NFS4ERR_NOTDIR,
        FsError::IsDirectory => nfsstat4::NFS4ERR_ISDIR,
        FsError::NotEmpty => nfsstat4::NFS4ERR_NOTEMPTY,
        FsError::Access => nfsstat4::NFS4ERR_ACCESS,
        FsError::NotOwner => nfsstat4::NFS4ERR_PERM,
        FsError::NameTooLong => nfsstat4::NFS4ERR_NAMETOOLONG,
        FsError::BadName => nfsstat4::NFS4ERR_BADNAME,
        FsError::Invalid => nfsstat4::NFS4ERR_INVAL,
        FsError::WrongType => nfsstat4::NFS4ERR_WRONG_TYPE,
        FsError::IsSymlink => nfsstat4::NFS4ERR_SYMLINK,
        FsError::CrossDevice => nfsstat4::NFS4ERR_XDEV,
        FsError::NoSpace => nfsstat4::NFS4ERR_NOSPC,
        FsError::Quota => nfsstat4::NFS4ERR_DQUOT,
        FsError::TooBig => nfsstat4::NFS4ERR_FBIG,
        FsError::Stale => nfsstat4::NFS4ERR_STALE,
        FsError::BadHandle => nfsstat4::NFS4ERR_BADHANDLE,
        FsError::TooManyLinks => nfsstat4::NFS4ERR_MLINK,
        FsError::ReadOnly => nfsstat4::NFS4ERR_ROFS,
        FsError::NoXattr => nfsstat4::NFS4ERR_NOXATTR,
        FsError::XattrTooBig => nfsstat4::NFS4ERR_XATTR2BIG,
        FsError::NameMoved | FsError::Busy => nfsstat4::NFS4ERR_DELAY,
        // As a READ of what is there (§15.1.1.7): an application hears of it, and may come again.
        FsError::EndUnknown => nfsstat4::NFS4ERR_IO,
        FsError::Fenced { .. }
        | FsError::NewerSchema { .. }
        | FsError::Corrupt { .. }
        | FsError::HalfLoaded => {
            tracing::error!(%error, "a metadata operation failed");
            nfsstat4::NFS4ERR_SERVERFAULT
        }
        FsError::Kv(inner) => kv_status(inner),
    }
}

/// What a client is told of an error of the store: whatever may pass asks it to come again.
pub(crate) fn kv_status(error: &KvError) -> nfsstat4 {
    if error.is_retryable() || error.maybe_committed() {
        return nfsstat4::NFS4ERR_DELAY;
    }
    match error {
        // The store, or who took over, has said so once; this server ends, and the next one answers.
        KvError::Failed { .. } | KvError::Closed | KvError::Superseded => nfsstat4::NFS4ERR_DELAY,
        KvError::GaveUp { .. } | KvError::Unavailable { .. } => {
            tracing::warn!(%error, "the metadata store is slow or away; clients are told to wait");
            nfsstat4::NFS4ERR_DELAY
        }
        _ => {
            tracing::error!(%error, "the metadata store failed");
            nfsstat4::NFS4ERR_SERVERFAULT
        }
    }
}

/// What a client is told by the state machines.
pub(crate) fn state_status(error: &StateError) -> nfsstat4 {
    match error {
        StateError::ShareDenied { .. } => nfsstat4::NFS4ERR_SHARE_DENIED,
        StateError::Locked { .. } => nfsstat4::NFS4ERR_LOCKED,
        StateError::Denied(_) => nfsstat4::NFS4ERR_DENIED,
        StateError::LocksHeld => nfsstat4::NFS4ERR_LOCKS_HELD,
        StateError::BadStateid => nfsstat4::NFS4ERR_BAD_STATEID,
        StateError::OldStateid => nfsstat4::NFS4ERR_OLD_STATEID,
        StateError::StaleStateid => nfsstat4::NFS4ERR_STALE_STATEID,
        StateError::Expired => nfsstat4::NFS4ERR_EXPIRED,
        StateError::AdminRevoked => nfsstat4::NFS4ERR_ADMIN_REVOKED,
        StateError::DelegRevoked => nfsstat4::NFS4ERR_DELEG_REVOKED,
        StateError::Openmode => nfsstat4::NFS4ERR_OPENMODE,
        StateError::RecallConflict => nfsstat4::NFS4ERR_RECALLCONFLICT,
        StateError::LayoutTryLater => nfsstat4::NFS4ERR_LAYOUTTRYLATER,
        StateError::LayoutUnavailable | StateError::OtherMount => nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE,
        StateError::BadLayout => nfsstat4::NFS4ERR_BADLAYOUT,
        StateError::BadIomode => nfsstat4::NFS4ERR_BADIOMODE,
        StateError::Grace => nfsstat4::NFS4ERR_GRACE,
        StateError::NoGrace => nfsstat4::NFS4ERR_NO_GRACE,
        StateError::ReclaimBad => nfsstat4::NFS4ERR_RECLAIM_BAD,
        StateError::ReclaimConflict => nfsstat4::NFS4ERR_RECLAIM_CONFLICT,
        StateError::Delay => nfsstat4::NFS4ERR_DELAY,
        // Too many opens or waiters: it may pass. RESOURCE is an error of NFSv4.0 alone (RFC 8881 §15.1).
        StateError::Resource => nfsstat4::NFS4ERR_DELAY,
        StateError::Inval => nfsstat4::NFS4ERR_INVAL,
        StateError::Stale => nfsstat4::NFS4ERR_STALE,
        StateError::BadRange => nfsstat4::NFS4ERR_BAD_RANGE,
    }
}

impl From<FsError> for OpError {
    fn from(error: FsError) -> Self {
        Self::Status(fs_status(&error))
    }
}

impl From<StateError> for OpError {
    fn from(error: StateError) -> Self {
        Self::Status(state_status(&error))
    }
}

impl From<KvError> for OpError {
    fn from(error: KvError) -> Self {
        Self::Status(kv_status(&error))
    }
}

/// What a client is told by the client and session machines.
pub(crate) fn client_status(error: ClientError) -> nfsstat4 {
    match error {
        ClientError::BackChanBusy => nfsstat4::NFS4ERR_BACK_CHAN_BUSY,
        ClientError::BadSession => nfsstat4::NFS4ERR_BADSESSION,
        ClientError::BadSlot => nfsstat4::NFS4ERR_BADSLOT,
        ClientError::BadHighSlot => nfsstat4::NFS4ERR_BAD_HIGH_SLOT,
        ClientError::ClidInuse => nfsstat4::NFS4ERR_CLID_INUSE,
        ClientError::ClientidBusy => nfsstat4::NFS4ERR_CLIENTID_BUSY,
        ClientError::CompleteAlready => nfsstat4::NFS4ERR_COMPLETE_ALREADY,
        ClientError::ConnNotBoundToSession => nfsstat4::NFS4ERR_CONN_NOT_BOUND_TO_SESSION,
        ClientError::Delay => nfsstat4::NFS4ERR_DELAY,
        ClientError::EncrAlgUnsupp => nfsstat4::NFS4ERR_ENCR_ALG_UNSUPP,
        ClientError::Grace => nfsstat4::NFS4ERR_GRACE,
        ClientError::Inval => nfsstat4::NFS4ERR_INVAL,
        ClientError::Noent => nfsstat4::NFS4ERR_NOENT,
        ClientError::Nospc => nfsstat4::NFS4ERR_NOSPC,
        ClientError::NotSame => nfsstat4::NFS4ERR_NOT_SAME,
        ClientError::NoGrace => nfsstat4::NFS4ERR_NO_GRACE,
        ClientError::Perm => nfsstat4::NFS4ERR_PERM,
        ClientError::ReclaimBad => nfsstat4::NFS4ERR_RECLAIM_BAD,
        ClientError::RepTooBig => nfsstat4::NFS4ERR_REP_TOO_BIG,
        ClientError::RepTooBigToCache => nfsstat4::NFS4ERR_REP_TOO_BIG_TO_CACHE,
        ClientError::ReqTooBig => nfsstat4::NFS4ERR_REQ_TOO_BIG,
        ClientError::RetryUncachedRep => nfsstat4::NFS4ERR_RETRY_UNCACHED_REP,
        ClientError::SeqFalseRetry => nfsstat4::NFS4ERR_SEQ_FALSE_RETRY,
        ClientError::SeqMisordered => nfsstat4::NFS4ERR_SEQ_MISORDERED,
        ClientError::StaleClientid => nfsstat4::NFS4ERR_STALE_CLIENTID,
        ClientError::Toosmall => nfsstat4::NFS4ERR_TOOSMALL,
        ClientError::TooManyOps => nfsstat4::NFS4ERR_TOO_MANY_OPS,
    }
}

impl From<ClientError> for OpError {
    fn from(error: ClientError) -> Self {
        Self::Status(client_status(error))
    }
}
