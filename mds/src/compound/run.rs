//! The COMPOUND loop: gate, reply room, run, stop at the first failure. RFC 8881 §16.2.
//!
//! Operations are decoded one at a time, as they are reached: what follows an operation that failed,
//! or that this server does not know, is never looked at.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_namespace::FileId;
use sluice_rpc::{Call, Connection, Reply};
use sluice_xdr::nfs4::{SEQUENCE4args, nfs_argop4, nfs_opnum4, nfs_resop4, nfsstat4, openflag4};
use sluice_xdr::{Decode, DecodeError, Encode, Frame, Reader, Writer};

use super::record::{Progress, Stored};
use super::{Context, OpError, gate, table};
use crate::dsctl::Soundness;
use crate::error::fs_status;
use crate::exports::{Origin, Table};
use crate::ops::sequence::{self, Begun, Sizes};
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

/// How long a request waits for what is over in a moment, as a rule, before it is told to come again. Linux takes a DELAY for
/// SEQUENCE as "in fifteen seconds", each time: it does not begin with less, as it does for other operations.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks for that.
const LOOK: Duration = Duration::from_millis(20);

/// The three fields before the operations.
struct Head {
    tag: Bytes,
    minor: u32,
    count: u32,
}

/// Runs one COMPOUND.
pub(crate) async fn compound(server: &Arc<Mds>, call: Call, caller: (Arc<Table>, Origin)) -> Reply {
    let size = call.args.len() + RPC_CALL_HEADER;
    let mut reader = Reader::new(call.args.clone());
    let Ok(head) = head(&mut reader) else { return Reply::GarbageArgs };
    if !(1..=2).contains(&head.minor) {
        return refuse(&head, nfsstat4::NFS4ERR_MINOR_VERS_MISMATCH);
    }
    if std::str::from_utf8(&head.tag).is_err() {
        return refuse(&head, nfsstat4::NFS4ERR_INVAL);
    }
    let mut cx = Context::new(Arc::clone(server), &call, caller, head.minor);
    cx.count = head.count;
    let Some(first) = sequence_args(&reader) else {
        return finish(run(&mut cx, &head, reader, Results::new(&head, SESSIONLESS_REPLY), 0).await);
    };
    let sizes = Sizes { request: size, least_reply: least_reply(&head) };
    let rest = reader.rest();
    let begun = match sequence::begin(&mut cx, &first, head.count, sizes, &rest) {
        Begun::Busy => Box::pin(when_served(&mut cx, &first, head.count, sizes, &rest)).await,
        begun => begun,
    };
    match begun {
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
        Begun::Busy => refuse_sequence(&head, nfsstat4::NFS4ERR_DELAY),
        Begun::Fail(status) => refuse_sequence(&head, status),
        Begun::Proceed { reply, limit, resume } => {
            let mut results = Results::new(&head, limit.response.saturating_sub(RPC_REPLY_HEADER));
            results.cached_limit = limit.cached.map(|cached| cached.saturating_sub(RPC_REPLY_HEADER));
            results.succeed(&nfs_resop4::OP_SEQUENCE(reply));
            results.first = results.writer.mark();
            let stored = match &cx.recorder {
                Some(recorder) if resume => recorder.load(server).await,
                _ => Ok(Stored::Nothing),
            };
            let stored = match stored {
                Ok(stored) => stored,
                Err(error) => {
                    sequence::put_back(&mut cx);
                    return refuse_sequence(&head, fs_status(&error));
                }
            };
            if let Some(file) = stored.current()
                && !Box::pin(cut_soon(server, file.inode.fileid)).await
            {
                // It has truncated a file and not been answered because that is not done yet: nor is it now.
                sequence::put_back(&mut cx);
                return refuse_sequence(&head, nfsstat4::NFS4ERR_DELAY);
            }
            let frame = pin!(proceed(&mut cx, &head, reader, results, stored)).await;
            if cx.is_in_doubt() {
                // The client asks again, and the store tells then.
                sequence::put_back(&mut cx);
                return unanswered(&cx.connection);
            }
            sequence::end(&mut cx, &frame);
            finish(frame)
        }
    }
}

/// What a retry finds once the original has been served. Its connection may have broken just before the answer.
async fn when_served(
    cx: &mut Context,
    first: &SEQUENCE4args,
    count: u32,
    sizes: Sizes,
    rest: &Bytes,
) -> Begun {
    let server = Arc::clone(&cx.server);
    let clock = &server.env.clock;
    let until = clock.now() + PATIENCE;
    loop {
        clock.sleep(LOOK).await;
        match sequence::begin(cx, first, count, sizes, rest) {
            Begun::Busy if clock.now() < until => {}
            begun => return begun,
        }
    }
}

/// Whether no truncation of the file is still to be carried out. After a restart that waits for its data servers to register.
async fn cut_soon(server: &Mds, file: FileId) -> bool {
    let clock = &server.env.clock;
    let until = clock.now() + PATIENCE;
    while server.is_uncut(file) {
        if clock.now() >= until {
            return false;
        }
        clock.sleep(LOOK).await;
    }
    true
}

/// Runs what follows SEQUENCE, or what of it a restart left to be run.
async fn proceed(
    cx: &mut Context,
    head: &Head,
    mut reader: Reader,
    mut results: Results,
    stored: Stored,
) -> Frame {
    // The borrowed decode left the cursor in place: step over what was peeked at.
    if nfs_argop4::decode(&mut reader).is_err() {
        return results.finish();
    }
    let index = match stored {
        Stored::Nothing => Ok(1),
        Stored::Progress(progress) => resume(cx, &mut reader, &mut results, *progress),
        Stored::NotKept => {
            // §2.10.6.1.3, as for a reply that was not kept in memory.
            if let Ok(number) = reader.u32() {
                results.fail(number, nfsstat4::NFS4ERR_RETRY_UNCACHED_REP);
            }
            return results.finish();
        }
    };
    match index {
        Ok(index) => pin!(run(cx, head, reader, results, index)).await,
        // Not the request of the row, whatever the fingerprint says.
        Err(_) => {
            results.fail(nfs_opnum4::OP_ILLEGAL.0, nfsstat4::NFS4ERR_BADXDR);
            results.finish()
        }
    }
}

/// Puts the COMPOUND where its last transaction left it; the position to go on at.
fn resume(
    cx: &mut Context,
    reader: &mut Reader,
    results: &mut Results,
    progress: Progress,
) -> Result<u32, DecodeError> {
    let Progress { index, current, saved, before, last } = progress;
    for _ in 1..index {
        nfs_argop4::decode(reader)?;
    }
    match current {
        Some(current) => cx.set_current(current),
        None => cx.clear_current(),
    }
    cx.saved = saved;
    cx.modified = index;
    results.repeat(&before, index - 1);
    let half = Reader::new(reader.rest()).u32().is_ok_and(|number| {
        table::find(number, cx.minor).is_some_and(|row| row.flags.has(table::Flags::HALF))
    });
    if half {
        cx.done_before = Some(Box::new(last));
        return Ok(index);
    }
    nfs_argop4::decode(reader)?;
    results.succeed(&last);
    Ok(index + 1)
}

/// What a reply has at least, RPC header included: what is around the results, SEQUENCE's, and the failure of whatever
/// is next.
fn least_reply(head: &Head) -> usize {
    const AROUND: usize = 12;
    RPC_REPLY_HEADER + AROUND + head.tag.len().next_multiple_of(4) + sequence::RESULT_SIZE + FAILURE_SIZE
}

/// Asks the client to come again, and does nothing.
pub(crate) fn not_now(call: &Call) -> Reply {
    let mut reader = Reader::new(call.args.clone());
    let Ok(head) = head(&mut reader) else { return Reply::GarbageArgs };
    let Ok(first) = reader.u32() else { return refuse(&head, nfsstat4::NFS4ERR_DELAY) };
    let mut results = Results::new(&head, SESSIONLESS_REPLY);
    results.fail(first, nfsstat4::NFS4ERR_DELAY);
    finish(results.finish())
}

/// No answer. A client sends a request again when its connection is lost, and not before (RFC 8881 §2.9.2).
pub(crate) fn unanswered(connection: &Connection) -> Reply {
    connection.close();
    Reply::Drop
}

fn refuse_sequence(head: &Head, status: nfsstat4) -> Reply {
    let mut results = Results::new(head, SESSIONLESS_REPLY);
    results.fail(nfs_opnum4::OP_SEQUENCE.0, status);
    finish(results.finish())
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
    let mut began = cx.server.env.clock.now();
    let doubted = cx.server.data_servers.is_doubted();
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
        let refused = cx.refused();
        let left = head.count - index;
        let wrong_flavour = refused == Some(nfsstat4::NFS4ERR_WRONGSEC);
        let excused = wrong_flavour && cx.is_excused(row, &reader, left);
        let facts = gate::Facts {
            index,
            count: head.count,
            in_session: cx.session.is_some(),
            has_current: cx.current_or_none().is_some(),
            has_saved: cx.saved.is_some(),
            refused: refused.filter(|_| !excused),
            read_only: cx.is_read_only(),
            pseudo: cx.pseudo().is_some(),
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
        // RFC 8881 §15.1.1.3: what is asked may be done later; until then nothing of it is.
        if doubted && !Box::pin(lets_in(&cx.server, row, &arguments)).await {
            results.fail(number, nfsstat4::NFS4ERR_DELAY);
            break;
        }
        cx.index = index;
        (cx.reply_room, cx.cached_room) = (facts.room, facts.cached_room);
        if row.flags.has(table::Flags::MODIFIES) {
            cx.modified = index;
            if let Some(recorder) = &mut cx.recorder {
                recorder.set_before(results.so_far(recorder.limit()));
            }
        }
        let outcome = match row.run {
            table::Handler::AtOnce(run) => run(cx, arguments),
            table::Handler::Waits(run) => run(cx, arguments).await,
        };
        if row.flags.has(table::Flags::CHANGES_FILES) {
            cx.changed();
        }
        let outcome = match outcome {
            Ok(_)
                if cx.refused() == Some(nfsstat4::NFS4ERR_WRONGSEC)
                    && gate::names_no_flavour(row, following(&reader, head, index))
                    && !cx.is_excused(row, &reader, left - 1) =>
            {
                Err(nfsstat4::NFS4ERR_WRONGSEC.into())
            }
            outcome => outcome,
        };
        let ended = cx.server.env.clock.now();
        cx.server.metrics.operation(row, &outcome, ended.since(began));
        began = ended;
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

/// Whether the metadata are sound enough for an operation. Of an older copy nobody is shown anything, and what was done on it
/// would be gone with it; at a start, before any data server was heard, nothing is changed.
async fn lets_in(server: &Mds, row: &table::Row, arguments: &nfs_argop4) -> bool {
    if row.flags.has(table::Flags::UPKEEP) {
        return true;
    }
    let creates =
        matches!(arguments, nfs_argop4::OP_OPEN(open) if matches!(open.openhow, openflag4::OPEN4_CREATE(_)));
    let changes = creates || row.flags.has(table::Flags::CHANGES_FILES);
    let clock = &server.env.clock;
    let until = clock.now() + PATIENCE;
    loop {
        match server.soundness() {
            Soundness::Sound => return true,
            Soundness::Unheard if !changes => return true,
            // Data servers register within a moment, as a rule.
            Soundness::Unheard if clock.now() < until => clock.sleep(LOOK).await,
            Soundness::Unheard | Soundness::Refused => return false,
        }
    }
}

/// The row of the operation after position `index`, if one follows that is known.
fn following(reader: &Reader, head: &Head, index: u32) -> Option<&'static table::Row> {
    let number = Reader::new(reader.rest()).u32().ok().filter(|_| index + 1 < head.count)?;
    table::find(number, head.minor)
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
    /// Where the results after SEQUENCE's begin.
    first: sluice_xdr::Mark,
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
        let first = writer.mark();
        Self { writer, status: nfsstat4::NFS4_OK, status_at, count: 0, count_at, cached_limit: None, first }
    }

    /// The results so far, without SEQUENCE's, if they have at most `limit` bytes.
    fn so_far(&self, limit: usize) -> Option<Vec<u8>> {
        (self.writer.len_since(&self.first) <= limit).then(|| self.writer.since(&self.first))
    }

    /// Appends results that were given before.
    fn repeat(&mut self, results: &Bytes, count: u32) {
        self.writer.splice(results);
        self.count += count;
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
