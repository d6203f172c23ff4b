//! Errors of the client and session machines: RFC 8881 §15.1.

/// Each variant is named after the `nfsstat4` it maps to; the caller maps it in one total match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Error {
    /// `NFS4ERR_BACK_CHAN_BUSY`
    #[error("callbacks are outstanding")]
    BackChanBusy,
    /// `NFS4ERR_BADSESSION`
    #[error("no such session")]
    BadSession,
    /// `NFS4ERR_BADSLOT`
    #[error("slot beyond the slot table")]
    BadSlot,
    /// `NFS4ERR_BAD_HIGH_SLOT`
    #[error("highest slot beyond the slot table")]
    BadHighSlot,
    /// `NFS4ERR_CLID_INUSE`
    #[error("client owner is in use by another principal")]
    ClidInuse,
    /// `NFS4ERR_CLIENTID_BUSY`
    #[error("client still has sessions or state")]
    ClientidBusy,
    /// `NFS4ERR_COMPLETE_ALREADY`
    #[error("reclaim was already completed")]
    CompleteAlready,
    /// `NFS4ERR_CONN_NOT_BOUND_TO_SESSION`
    #[error("connection is not bound to the session")]
    ConnNotBoundToSession,
    /// `NFS4ERR_DELAY`
    #[error("try again later")]
    Delay,
    /// `NFS4ERR_ENCR_ALG_UNSUPP`
    #[error("state protection is not supported")]
    EncrAlgUnsupp,
    /// `NFS4ERR_GRACE`
    #[error("in grace")]
    Grace,
    /// `NFS4ERR_INVAL`
    #[error("invalid argument")]
    Inval,
    /// `NFS4ERR_NOENT`
    #[error("no confirmed record to update")]
    Noent,
    /// `NFS4ERR_NOSPC`
    #[error("out of session resources")]
    Nospc,
    /// `NFS4ERR_NOT_SAME`
    #[error("verifier differs from the confirmed record")]
    NotSame,
    /// `NFS4ERR_NO_GRACE`
    #[error("reclaim outside of grace")]
    NoGrace,
    /// `NFS4ERR_PERM`
    #[error("principal differs from the confirmed record")]
    Perm,
    /// `NFS4ERR_RECLAIM_BAD`
    #[error("client may not reclaim")]
    ReclaimBad,
    /// `NFS4ERR_REP_TOO_BIG`
    #[error("reply exceeds the channel's maximum")]
    RepTooBig,
    /// `NFS4ERR_REP_TOO_BIG_TO_CACHE`
    #[error("reply exceeds the channel's cached maximum")]
    RepTooBigToCache,
    /// `NFS4ERR_REQ_TOO_BIG`
    #[error("request exceeds the channel's maximum")]
    ReqTooBig,
    /// `NFS4ERR_RETRY_UNCACHED_REP`
    #[error("retry of a request whose reply was not cached")]
    RetryUncachedRep,
    /// `NFS4ERR_SEQ_FALSE_RETRY`
    #[error("retry differs from the original request")]
    SeqFalseRetry,
    /// `NFS4ERR_SEQ_MISORDERED`
    #[error("sequence number out of order")]
    SeqMisordered,
    /// `NFS4ERR_STALE_CLIENTID`
    #[error("no such client id")]
    StaleClientid,
    /// `NFS4ERR_TOOSMALL`
    #[error("channel attribute too small")]
    Toosmall,
    /// `NFS4ERR_TOO_MANY_OPS`
    #[error("more operations than the channel allows")]
    TooManyOps,
}
