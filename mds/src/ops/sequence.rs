//! SEQUENCE. RFC 8881 §18.46.

use sluice_xdr::Frame;
use bytes::Bytes;
use sluice_xdr::nfs4::{SEQUENCE4args, SEQUENCE4res, nfsstat4};

use crate::compound::{Context, OpResult};

/// What SEQUENCE found.
pub(crate) enum Begun {
    /// A new request: run the rest.
    Proceed { reply: SEQUENCE4res, limit: ReplyLimit },
    /// A retry: the reply it had.
    Replay(Frame),
    /// A retry of a request still being run: no answer now.
    Drop,
    Fail(nfsstat4),
}

/// How large the reply may be, RPC header included.
pub(crate) struct ReplyLimit {
    /// ca_maxresponsesize.
    pub(crate) response: usize,
    /// ca_maxresponsesize_cached, if the client asked for the reply to be cached.
    pub(crate) cached: Option<usize>,
}

/// Begins a COMPOUND: finds the session and the slot, renews the lease. `count` operations, `size` bytes
/// of request with its RPC header.
pub(crate) fn begin(_cx: &mut Context, _args: SEQUENCE4args, _count: u32, _size: usize, _request: &Bytes) -> Begun {
    Begun::Fail(nfsstat4::NFS4ERR_NOTSUPP)
}

/// Ends it: the slot is free for the next request, the reply kept if it must be.
pub(crate) fn end(_cx: &mut Context, _reply: &Frame) {}

/// SEQUENCE anywhere but first.
pub(crate) async fn sequence(_cx: &mut Context, _args: SEQUENCE4args) -> OpResult<SEQUENCE4res> {
    Err(nfsstat4::NFS4ERR_SEQUENCE_POS.into())
}
