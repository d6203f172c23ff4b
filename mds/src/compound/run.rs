//! The COMPOUND loop: gate, reply room, run, stop at the first failure. RFC 8881 §16.2.
//!
//! Operations are decoded one at a time, as they are reached: what follows an operation that failed,
//! or that this server does not know, is never looked at.

use std::sync::Arc;

use bytes::Bytes;
use sluice_rpc::{Call, Reply};
use sluice_xdr::nfs4::{SEQUENCE4args, nfs_argop4, nfs_opnum4, nfs_resop4, nfsstat4};
use sluice_xdr::{Decode, DecodeError, Encode, Frame, Reader, Writer};

use super::{Context, OpError, gate, table};
use crate::metrics::Metrics;
use crate::ops::sequence::{self, Begun};
use crate::server::Mds;

/// Bytes of RPC reply header that count against `ca_maxresponsesize`: xid, type, status, verifier, accept status.
const RPC_REPLY_HEADER: usize = 24;
/// Bytes of RPC call header at most, AUTH_SYS credential included, that count against `ca_maxrequestsize`.
const RPC_CALL_HEADER: usize = 40;
/// Largest reply outside a session: EXCHANGE_ID's and CREATE_SESSION's fit amply.
const SESSIONLESS_REPLY: usize = 4096;
/// Longest tag that is echoed. RFC 8881 §16.2.3 leaves it to the server; the field is unbounded.
const MAX_TAG: u32 = 1024;
/// Operations looked at in a COMPOUND at most, whatever a session would allow.
const MAX_OPERATIONS: u32 = 128;

/// The three fields before the operations.
struct Head {
    tag: Bytes,
    minor: u32,
    count: u32,
}

/// Runs one COMPOUND.
pub(crate) async fn compound(server: &Arc<Mds>, call: Call) -> Reply {
    let size = call.args.len() + RPC_CALL_HEADER;
    let mut reader = Reader::new(call.args.clone());
    let Ok(head) = head(&mut reader) else { return Reply::GarbageArgs };
    if !(1..=2).contains(&head.minor) {
        return refuse(&head, nfsstat4::NFS4ERR_MINOR_VERS_MISMATCH);
    }
    if std::str::from_utf8(&head.tag).is_err() {
        return refuse(&head, nfsstat4::NFS4ERR_INVAL);
    }
    let mut cx = Context::new(Arc::clone(server), &call, head.minor);
    cx.count = head.count;
    let Some(first) = sequence_args(&reader) else {
        return finish(run(&mut cx, &head, reader, Results::new(&head, SESSIONLESS_REPLY), 0).await);
    };
    match sequence::begin(&mut cx, &first, head.count, size, &call.args) {
        Begun::Replay(cached) => finish(cached),
        Begun::Uncached(reply) => {
            let mut results = Results::new(&head, SESSIONLESS_REPLY);
            results.succeed(&nfs_resop4::OP_SEQUENCE(reply));
            // §2.10.6.1.3: the second operation says that the reply was not kept.
            if let Some(number) = second(&mut reader) {
                results.fail(number, nfsstat4::NFS4ERR_RETRY_UNCACHED_REP);
            }
            finish(results.finish())
        }
        Begun::Fail(status) => {
            let mut results = Results::new(&head, SESSIONLESS_REPLY);
            results.fail(nfs_opnum4::OP_SEQUENCE.0, status);
            finish(results.finish())
        }
        Begun::Proceed { reply, limit } => {
            let mut results = Results::new(&head, limit.response.saturating_sub(RPC_REPLY_HEADER));
            results.cached_limit = limit.cached.map(|cached| cached.saturating_sub(RPC_REPLY_HEADER));
            results.succeed(&nfs_resop4::OP_SEQUENCE(reply));
            // The borrowed decode above left the cursor in place: step over what was peeked at.
            let frame = match nfs_argop4::decode(&mut reader) {
                Ok(_) => run(&mut cx, &head, reader, results, 1).await,
                Err(_) => results.finish(),
            };
            sequence::end(&mut cx, &frame);
            finish(frame)
        }
    }
}

fn head(reader: &mut Reader) -> Result<Head, DecodeError> {
    Ok(Head { tag: reader.opaque(MAX_TAG)?, minor: reader.u32()?, count: reader.u32()? })
}

/// The arguments of a leading SEQUENCE, if there is one.
fn sequence_args(reader: &Reader) -> Option<SEQUENCE4args> {
    let mut ahead = Reader::new(reader.rest());
    if ahead.u32().ok()? != nfs_opnum4::OP_SEQUENCE.0 {
        return None;
    }
    SEQUENCE4args::decode(&mut ahead).ok()
}

/// The number of the second operation, if there is one.
fn second(reader: &mut Reader) -> Option<u32> {
    nfs_argop4::decode(reader).ok()?;
    reader.u32().ok()
}

/// Runs the operations from position `index` on.
async fn run(cx: &mut Context, head: &Head, mut reader: Reader, mut results: Results, index: u32) -> Frame {
    for index in index..head.count.min(MAX_OPERATIONS) {
        let Ok(number) = Reader::new(reader.rest()).u32() else {
            results.fail(nfs_opnum4::OP_ILLEGAL.0, nfsstat4::NFS4ERR_BADXDR);
            break;
        };
        let Some(row) = table::find(number, head.minor) else {
            results.fail(nfs_opnum4::OP_ILLEGAL.0, nfsstat4::NFS4ERR_OP_ILLEGAL);
            break;
        };
        if row.since == u32::MAX {
            results.fail(number, nfsstat4::NFS4ERR_NOTSUPP);
            break;
        }
        let facts = gate::Facts {
            index,
            count: head.count,
            in_session: cx.session.is_some(),
            has_current: cx.current.is_some(),
            has_saved: cx.saved.is_some(),
            room: results.room(),
            cached_room: results.cached_room(),
        };
        if let Err(status) = gate::admit(row, &facts) {
            results.fail(number, status);
            break;
        }
        let Ok(arguments) = nfs_argop4::decode(&mut reader) else {
            results.fail(number, nfsstat4::NFS4ERR_BADXDR);
            break;
        };
        cx.index = index;
        cx.reply_room = results.room();
        if row.flags.has(table::Flags::MODIFIES) {
            cx.modified = index;
        }
        let outcome = (row.run)(cx, arguments).await;
        Metrics::operation(row.op, &outcome);
        let stop = match outcome {
            Ok(result) => results.succeed(&result),
            Err(OpError::Status(status)) => results.fail(number, status),
            Err(OpError::Arm(status, result)) => results.fail_with(status, &result),
        };
        if stop {
            break;
        }
    }
    results.finish()
}

fn refuse(head: &Head, status: nfsstat4) -> Reply {
    let mut results = Results::new(head, SESSIONLESS_REPLY);
    results.status = status;
    finish(results.finish())
}

fn finish(frame: Frame) -> Reply {
    Reply::Success(frame)
}

/// The reply as it grows.
struct Results {
    writer: Writer,
    status: nfsstat4,
    status_at: sluice_xdr::Patch,
    count: u32,
    count_at: sluice_xdr::Patch,
    cached_limit: Option<usize>,
}

/// Room kept for the result of the operation that did not fit: number, status, an empty bitmap.
const FAILURE_SIZE: usize = 12;

impl Results {
    fn new(head: &Head, limit: usize) -> Self {
        let least = head.tag.len() + 64;
        let mut writer = Writer::with_capacity(limit.max(least), 512);
        let status_at = writer.reserve_u32();
        writer.opaque(&head.tag, MAX_TAG);
        let count_at = writer.reserve_u32();
        Self { writer, status: nfsstat4::NFS4_OK, status_at, count: 0, count_at, cached_limit: None }
    }

    fn room(&self) -> usize {
        self.writer.room().saturating_sub(FAILURE_SIZE)
    }

    fn cached_room(&self) -> Option<usize> {
        self.cached_limit.map(|limit| limit.saturating_sub(self.writer.len() + FAILURE_SIZE))
    }

    /// Appends a successful result; true if it does not fit, which ends the COMPOUND.
    fn succeed(&mut self, result: &nfs_resop4) -> bool {
        self.append(nfsstat4::NFS4_OK, result)
    }

    fn fail_with(&mut self, status: nfsstat4, result: &nfs_resop4) -> bool {
        self.append(status, result);
        true
    }

    fn append(&mut self, status: nfsstat4, result: &nfs_resop4) -> bool {
        let mark = self.writer.mark();
        let before = self.writer.len();
        let cached_room = self.cached_room();
        result.encode(&mut self.writer);
        let size = self.writer.len() - before;
        let refusal = if self.writer.error().is_some() || self.writer.room() < FAILURE_SIZE {
            Some(nfsstat4::NFS4ERR_REP_TOO_BIG)
        } else if cached_room.is_some_and(|room| size > room) {
            Some(nfsstat4::NFS4ERR_REP_TOO_BIG_TO_CACHE)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.writer.truncate(mark);
            self.fail(result.discriminant().0, refusal);
            return true;
        }
        self.count += 1;
        self.status = status;
        status != nfsstat4::NFS4_OK
    }

    /// Appends the result of an operation that failed. Every result but SETATTR's is its status alone.
    fn fail(&mut self, number: u32, status: nfsstat4) -> bool {
        self.writer.u32(number);
        self.writer.u32(status.0);
        if number == nfs_opnum4::OP_SETATTR.0 {
            self.writer.u32(0);
        }
        self.count += 1;
        self.status = status;
        true
    }

    fn finish(mut self) -> Frame {
        self.writer.patch(self.status_at, self.status.0);
        self.writer.patch(self.count_at, self.count);
        self.writer.finish().unwrap_or_default()
    }
}
