//! SEQUENCE. RFC 8881 §18.46, §2.10.6.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use sluice_namespace::stable_storage::NOBODY;
use sluice_state::client::Error as ClientError;
use sluice_state::session::{Completion, SequenceArgs, SequenceReply, Sequenced};
use sluice_state::{ConnectionId, SessionId};
use sluice_xdr::Frame;
use sluice_xdr::nfs4::{SEQUENCE4args, SEQUENCE4res, SEQUENCE4resok, nfsstat4, sessionid4};

use crate::clients::SessionRef;
use crate::compound::record::Recorder;
use crate::compound::{Context, OpResult};
use crate::error::client_status;
use crate::metrics;

/// What SEQUENCE found.
#[derive(Debug)]
pub(crate) enum Begun {
    /// Run the rest. `resume`: from where it was before a restart.
    Proceed {
        reply: SEQUENCE4res,
        limit: ReplyLimit,
        resume: bool,
    },
    /// A retry: the reply it had.
    Replay(Frame),
    /// A retry whose reply was not kept: this for SEQUENCE, RETRY_UNCACHED_REP for what follows.
    Uncached(SEQUENCE4res),
    /// A retry while the original is being served.
    Busy,
    Fail(nfsstat4),
}

/// How large the reply may be, RPC header included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyLimit {
    /// ca_maxresponsesize.
    pub(crate) response: usize,
    /// ca_maxresponsesize_cached, if the client asked for the reply to be cached.
    pub(crate) cached: Option<usize>,
}

/// Bytes of a request that tell a retry from a false one: header fields, filehandles and names fit.
const FINGERPRINTED: usize = 1024;

/// Bytes, RPC headers included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) request: usize,
    /// A reply that says that SEQUENCE succeeded has no less.
    pub(crate) least_reply: usize,
}

/// Begins a COMPOUND: finds the session and the slot, renews the lease. `count` operations; `rest` is the request from
/// SEQUENCE on.
pub(crate) fn begin(cx: &mut Context, args: &SEQUENCE4args, count: u32, sizes: Sizes, rest: &Bytes) -> Begun {
    let Some(entry) = cx.server.clients.session(SessionId(args.sa_sessionid.0)) else {
        return Begun::Fail(nfsstat4::NFS4ERR_BADSESSION);
    };
    let fingerprint = fingerprint(cx, count, rest);
    let wanted = SequenceArgs {
        slot: args.sa_slotid,
        seqid: args.sa_sequenceid,
        highest_slot: args.sa_highest_slotid,
        cache_this: args.sa_cachethis,
        fingerprint,
        request_size: u32::try_from(sizes.request).unwrap_or(u32::MAX),
        operations: count,
    };
    let connection = ConnectionId(cx.connection.id());
    let mut session = entry.lock();
    let known = session.is_bound(connection);
    // Asked of each connection once: from then on it is bound.
    if !known && !cx.may_bind(&entry) {
        return Begun::Fail(nfsstat4::NFS4ERR_BADSESSION);
    }
    let limit = ReplyLimit {
        response: usize::try_from(session.fore().max_response).unwrap_or(usize::MAX),
        cached: args
            .sa_cachethis
            .then(|| usize::try_from(session.fore().max_response_cached).unwrap_or(usize::MAX)),
    };
    // §18.46.3: a SEQUENCE that fails leaves the slot as it is.
    if sizes.least_reply > limit.response {
        return Begun::Fail(nfsstat4::NFS4ERR_REP_TOO_BIG);
    }
    if limit.cached.is_some_and(|most| sizes.least_reply > most) {
        return Begun::Fail(nfsstat4::NFS4ERR_REP_TOO_BIG_TO_CACHE);
    }
    let step = session.sequence(cx.server.now(), connection, &wanted);
    let persistent = session.is_persistent();
    // A retry may be answered without that.
    let newly = !known && session.is_bound(connection);
    let resume = matches!(step, Ok(Sequenced::Resume(_)));
    drop(session);
    if newly {
        cx.server.watch_connection(&cx.connection, &entry);
    }
    match step {
        Err(ClientError::Delay) => Begun::Busy,
        Err(error) => Begun::Fail(client_status(error)),
        Ok(Sequenced::Replay(bytes)) => Begun::Replay(bytes.into()),
        Ok(Sequenced::ReplayUncached(reply)) => Begun::Uncached(wire(&reply)),
        Ok(Sequenced::New(reply) | Sequenced::Resume(reply)) => {
            metrics::add(&entry.calls, 1);
            cx.recorder = persistent.then(|| {
                Recorder::new(entry.id, args.sa_slotid, args.sa_sequenceid, fingerprint, args.sa_cachethis)
            });
            cx.session = Some(SessionRef {
                client: entry.shared.id(),
                id: entry.id,
                slot: args.sa_slotid,
                sequence: args.sa_sequenceid,
                cache_this: args.sa_cachethis,
                entry,
            });
            Begun::Proceed { reply: wire(&reply), limit, resume }
        }
    }
}

/// Ends it: the slot is free for the next request, the reply kept if it must be.
pub(crate) fn end(cx: &mut Context, reply: &Frame) {
    let Some(session) = cx.session.take() else { return };
    // A copy: the frame's buffers may be parts of larger ones.
    let small = session.cache_this || reply.len() <= sluice_state::slot::SMALL_REPLY;
    let reply = small.then(|| Bytes::from(reply.to_bytes().to_vec()));
    let completion = Completion { reply, cache_this: session.cache_this };
    session.entry.lock().complete(cx.server.now(), session.slot, completion);
}

/// Ends it without an answer: the client sends it again, and its row tells then how far it got.
pub(crate) fn put_back(cx: &mut Context) {
    let Some(session) = cx.session.take() else { return };
    session.entry.lock().put_back(cx.server.now(), session.slot);
}

/// SEQUENCE anywhere but first.
pub(crate) fn sequence(_cx: &mut Context, _args: SEQUENCE4args) -> OpResult<SEQUENCE4res> {
    Err(nfsstat4::NFS4ERR_SEQUENCE_POS.into())
}

/// Bytes of SEQUENCE's successful result: number, status, session, seqid, slot, highest and target slot, flags.
pub(crate) const RESULT_SIZE: usize = 44;
/// SEQUENCE on the wire: number, session, seqid, slot, highest slot, whether to cache.
const SEQUENCE_SIZE: usize = 36;

/// Of the operations and the caller. Not of SEQUENCE, in which a client that sends a request again may name
/// another highest slot. The hash is one that later releases compute alike: it outlives the process.
fn fingerprint(cx: &Context, count: u32, rest: &Bytes) -> u64 {
    let operations = rest.get(SEQUENCE_SIZE..).unwrap_or_default();
    // As the client names itself: what an export makes of it may have changed when it comes again.
    let (flavour, caller) = match &cx.wire_credential {
        sluice_rpc::Credential::Sys(sys) => (0, sys.uid),
        // Principals are no numbers, and different ones may be no user here. Nor is it said with another protection again: nobody else
        // can say the same in another flavour, whatever number he calls himself.
        sluice_rpc::Credential::Gss(caller) => {
            let name = xxh3_64(caller.principal.as_bytes());
            let [high, low] = [name >> 32, name & u64::from(u32::MAX)].map(|half| half as u32);
            (1 << 31 | low << 4 | (caller.service as u32 + 1) << 2, high)
        }
        _ => (0, NOBODY),
    };
    hash([cx.minor | flavour, caller, count], operations)
}

fn hash([minor, caller, count]: [u32; 3], operations: &[u8]) -> u64 {
    let length = u32::try_from(operations.len()).unwrap_or(u32::MAX);
    let operations = operations.get(..FINGERPRINTED).unwrap_or(operations);
    // In one piece: what hashes pieces is set up for long ones, and takes longer for that than for these.
    let mut hashed = [0; 16 + FINGERPRINTED];
    let mut end = 0;
    let numbers = [minor, caller, count, length].map(u32::to_be_bytes);
    for part in numbers.iter().map(<[u8; 4]>::as_slice).chain([operations]) {
        hashed[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    xxh3_64(&hashed[..end])
}

fn wire(reply: &SequenceReply) -> SEQUENCE4res {
    SEQUENCE4res::NFS4_OK(SEQUENCE4resok {
        sr_sessionid: sessionid4(reply.session.0),
        sr_sequenceid: reply.seqid,
        sr_slotid: reply.slot,
        sr_highest_slotid: reply.highest_slot,
        sr_target_highest_slotid: reply.target_highest_slot,
        sr_status_flags: reply.status_flags,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_known_again_by_another_release() {
        let operations: Vec<u8> = (0..2000u32).map(|n| (n * 7) as u8).collect();
        let of = |length: usize| hash([2, 1000, 5], &operations[..length]);
        // What the first release stored.
        let stored = [
            0xe646_7f25_55e2_fc2f,
            0xb98c_f507_8406_5f04,
            0xd878_2795_cb90_d7b7,
            0x40a3_a7af_829c_810d,
            0xc6aa_3c10_4a42_7f42,
        ];
        assert_eq!([0, 60, 300, 1024, 2000].map(of), stored);
        assert_ne!(of(1500), of(1501), "their length counts beyond what is hashed");
    }
}
