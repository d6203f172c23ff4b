//! The receiving half of a connection: records in, calls started, replies handed to their callers.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use sluice_env::{BoxFuture, Monotonic};
use sluice_xdr::rpc::auth_stat;
use sluice_xdr::{Frame, RecordDecoder, RecordError};
use tokio::io::AsyncReadExt;

use crate::arrivals::Arriving;
use crate::budget::{Ticket, Wait};
use crate::connection::{Connection, Ended};
use crate::gss::{Begun, Opened, Seal};
use crate::message::{CallHeader, Glance, Message, SUCCESS_HEAD, Verdict, glance, parse, success_head};
use crate::outbox::{Body, Writing};
use crate::owed::Owed;
use crate::program::{Call, NOW_BOUND, Program};
use crate::recycle::BUFFER;
use crate::tail::{Filled, Filling, Tail};
use crate::transport::{Incoming, Outgoing};

/// Most calls kept back while we look for a reply behind them.
const PARKED: usize = 64;

/// A record of which more bytes are missing needs room for itself.
const LARGE: usize = 64 << 10;

/// A record of at most that many bytes is copied: a call that waits for a disk would otherwise keep a whole buffer from
/// being used again, and every other call would begin with the system clearing memory for a new one.
const COPIED: usize = 8 << 10;

/// Less room than that is not worth a read.
const SHORT: usize = 4096;

/// Storage devices take data that lies at a multiple of it, whichever they are.
const PAGE: usize = 4096;

/// Bytes of replies that leave before the next call is begun, as far as the peer takes them.
const ENOUGH: usize = 256 << 10;

/// Room set aside for a reply that is only a refusal.
const REFUSAL: usize = 64;

/// And for one that has a proof, or a token.
const GSS_REPLY: usize = 4096;

/// Bytes read at first if the last record had a tail: what is in memory is copied once more than the rest.
const HEAD: usize = 2048;

/// A shorter tail is not worth a pipe.
const TAIL: usize = LARGE;

/// The procedure that every program has and that does nothing, RFC 5531 §12.1.
const NULL: u32 = 0;

/// Something the peer asked for, understood and not yet begun.
enum Work {
    Call(CallHeader, Option<Tail>, Arc<dyn Program>),
    Refuse(u32, Verdict),
    /// What needs no program, of whom is known by a ticket.
    Answer(u32, Verdict, Box<Seal>),
    /// Somebody shows a ticket.
    Begin(u32, Bytes),
}

struct Parked {
    work: Work,
    request: usize,
    reply: usize,
    /// Until the call is let in, its record counts as one that is still arriving.
    _arriving: Option<Arriving>,
}

/// What became of a try to answer a call where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    Answered,
    /// Its program could not, at once.
    Refused,
    Untried,
}

/// Reads one connection.
pub(crate) struct Intake<'a, W> {
    connection: &'a Arc<Connection>,
    decoder: RecordDecoder,
    /// Calls for which there was no room yet, oldest first. Usually none, or the one that stopped the
    /// reader.
    parked: VecDeque<Parked>,
    parked_bytes: usize,
    /// Since there was no room for the first of them.
    wait: Option<Wait>,
    writing: &'a Mutex<Writing<W>>,
    prompt: Prompt,
    /// Room for the large record under way.
    arriving: Option<Arriving>,
    /// The decoder's buffer is one of the large ones.
    in_large: bool,
    /// The end of the large record under way, if it stays outside of memory.
    filling: Option<Filling>,
    tails: Tails,
    /// The peer sends nothing more. What it asked for is not begun any more: it does not wait for it, and may have asked
    /// somebody else again. What a WRITE that was sent again comes after must not come after it.
    gone: bool,
}

/// Whether records of a connection have tails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tails {
    /// None yet.
    Unknown,
    /// The last one had.
    Likely,
    /// Never again: what the network delivers does not fit into pipes.
    Never,
}

impl<'a, W: Outgoing + Unpin> Intake<'a, W> {
    pub(crate) fn new(
        connection: &'a Arc<Connection>,
        decoder: RecordDecoder,
        writing: &'a Mutex<Writing<W>>,
    ) -> Self {
        let (parked, prompt) = (VecDeque::new(), Prompt::default());
        Self {
            connection,
            decoder,
            parked,
            parked_bytes: 0,
            wait: None,
            writing,
            prompt,
            arriving: None,
            in_large: false,
            filling: None,
            tails: Tails::Unknown,
            gone: false,
        }
    }

    /// Reads until the connection ends.
    pub(crate) async fn run<R: Incoming + Unpin>(mut self, reader: &mut R) -> Ended {
        // It may have waited long for us to accept it.
        reader.look_for_end();
        loop {
            self.gone = reader.is_at_end();
            if self.gone && self.connection.pending.is_empty() {
                return Ended::Orderly("by the peer");
            }
            if let Err(why) = poll_fn(|cx| Poll::Ready(self.turn(cx))).await {
                return why;
            }
            self.prompt.recover(self.connection);
            let reading = self.may_read();
            self.connection.partial.store(reading && self.decoder.pending() > 0, Ordering::Relaxed);
            self.connection.has_room.store(reading && self.arriving.is_some(), Ordering::Relaxed);
            let read = match self.parked.front() {
                None => self.fill(reader).await,
                Some(first) => {
                    let (budget, clock) = (&self.connection.budget, &*self.connection.env.clock);
                    let wait = self.wait.get_or_insert_with(|| Wait::new(budget, clock));
                    let changed = budget.changed(clock, wait.patient, first.request, first.reply);
                    if !reading {
                        changed.await;
                        reader.look_for_end();
                        continue;
                    }
                    tokio::select! {
                        biased;
                        () = changed => {
                            reader.look_for_end();
                            continue;
                        }
                        read = self.fill(reader) => read,
                    }
                }
            };
            match read {
                Ok(0) if self.decoder.pending() > 0 => return Ended::Orderly("by the peer, inside a record"),
                Ok(0) => return Ended::Orderly("by the peer"),
                Ok(_) => _ = self.connection.heard.fetch_add(1, Ordering::Relaxed),
                Err(error) => return Ended::Io(error),
            }
        }
    }

    /// Handles what there is. It waits for nothing, so it is no future, nor is anything that it calls: one inside of the other,
    /// each would be copied into the next for every call that comes.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        self.connection.outbox.begin_turn();
        self.start_parked(cx);
        let taken = self.take_records(cx);
        self.prompt.finish(self.connection);
        self.connection.outbox.end_turn();
        taken?;
        // Replies leave before more is read. What the peer does not take now is the writer's.
        match self.flush(cx) {
            Poll::Ready(Err(error)) => Err(Ended::Io(error)),
            _ => Ok(()),
        }
    }

    /// Tries once to write what is queued.
    fn flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.outbox.poll_flush(cx, &mut self.writing.lock())
    }

    /// Reads more of the stream. While the peer is silent and owes nothing, no buffer is held for it.
    async fn fill<R: Incoming + Unpin>(&mut self, reader: &mut R) -> io::Result<usize> {
        if self.arriving.is_none()
            && let Some((missing, bytes)) = self.large()
        {
            // It is we who keep the rest of the record waiting.
            let late = self.connection.partial.swap(false, Ordering::Relaxed);
            let mut room = pin!(room(self.connection, bytes));
            self.arriving = Some(match poll_fn(|cx| Poll::Ready(room.as_mut().poll(cx))).await {
                Poll::Ready(arriving) => arriving,
                Poll::Pending => {
                    let arriving = room.await;
                    reader.look_for_end();
                    arriving
                }
            });
            self.connection.partial.store(late, Ordering::Relaxed);
            self.connection.has_room.store(true, Ordering::Relaxed);
            self.filling = if reader.splices() { self.tail() } else { None };
            if self.filling.is_none() && missing > LARGE {
                self.make_room(bytes);
            }
        }
        if self.filling.is_some()
            && let Some(read) = self.fill_tail(reader).await?
        {
            return Ok(read);
        }
        if self.in_large && self.arriving.is_none() && self.decoder.room() < SHORT {
            let buffer = self.connection.recycler.take();
            self.move_to(buffer, false);
        }
        poll_fn(|cx| {
            if self.decoder.is_bare() {
                let buffer = self.connection.recycler.take();
                self.move_to(buffer, false);
            }
            let read = match self.tails {
                Tails::Likely if self.decoder.pending() == 0 => {
                    pin!(reader.read_buf(&mut self.decoder.buffer_for(HEAD))).poll(cx)
                }
                _ => pin!(reader.read_buf(self.decoder.buffer())).poll(cx),
            };
            if read.is_pending() {
                self.rest();
            }
            read
        })
        .await
    }

    /// The peer is silent: no more is held for it than for what it has begun to send.
    fn rest(&mut self) {
        if let Some(buffer) = self.decoder.give_up() {
            self.give(buffer);
            self.in_large = false;
        } else if self.in_large && self.arriving.is_none() && self.decoder.pending() <= BUFFER {
            // The beginning of a record that is not large, or not yet known to be.
            let buffer = self.connection.recycler.take();
            self.move_to(buffer, false);
        }
    }

    /// If the record under way is large: how many bytes of its fragment are missing, and how many it may have.
    fn large(&self) -> Option<(usize, usize)> {
        let (missing, most) = (self.decoder.missing().unwrap_or(0), self.connection.limits.record());
        let bytes = missing.saturating_add(self.decoder.pending());
        if missing > LARGE {
            Some((missing, bytes.min(most)))
        } else if self.decoder.in_fragments() && bytes > LARGE {
            // How many more will follow nobody knows.
            Some((missing, most))
        } else {
            None
        }
    }

    /// Goes on in a buffer that holds all of the large record under way.
    fn make_room(&mut self, bytes: usize) {
        let mut buffer = self.connection.recycler.take_large(bytes + PAGE);
        end_at_page(&mut buffer, bytes);
        self.move_to(buffer, true);
    }

    /// A place for the end of the large record under way, if it is a call whose program has a use for it there.
    fn tail(&self) -> Option<Filling> {
        if self.tails == Tails::Never || self.takes_none() || self.connection.too_weak {
            return None;
        }
        let (received, length) = self.decoder.begun()?;
        let call = glance(received)?;
        let program = self.connection.registry.find(call.program, call.version).ok()?;
        let head = received.len() - call.args.len();
        let kept = program.leave(call.version, call.procedure, call.args, length - head)?;
        let before = kept.checked_sub(call.args.len())?;
        let tail = length.checked_sub(head + kept).filter(|tail| *tail >= TAIL)?;
        Filling::new(&self.connection.recycler.pipes, before, tail)
    }

    /// Reads more of a record with a tail. `None`: it has none any more, and nothing was read.
    async fn fill_tail<R: Incoming + Unpin>(&mut self, reader: &mut R) -> io::Result<Option<usize>> {
        let filled = poll_fn(|cx| {
            let Some(filling) = &mut self.filling else { return Poll::Ready(Ok(Filled::Full)) };
            if filling.before() == 0 {
                return filling.poll(cx, reader);
            }
            let read = pin!(reader.read_buf(&mut self.decoder.buffer_for(filling.before()))).poll(cx);
            read.map_ok(|n| {
                filling.came(n);
                Filled::Bytes(n)
            })
        });
        if let Filled::Bytes(n) = filled.await? {
            return Ok(Some(n));
        }
        self.tails = Tails::Never;
        if let Some(filling) = self.filling.take() {
            self.make_room(self.decoder.begun().map_or(0, |(_, length)| length + 4));
            filling.recall(self.decoder.buffer())?;
        }
        Ok(None)
    }

    fn move_to(&mut self, buffer: BytesMut, large: bool) {
        let old = self.decoder.move_to(buffer);
        self.give(old);
        self.in_large = large;
    }

    fn give(&self, buffer: BytesMut) {
        let recycler = &self.connection.recycler;
        if self.in_large { recycler.give_large(buffer) } else { recycler.give(buffer) }
    }

    /// Answers the next call where it lies, if its program can.
    fn answer_now(&mut self) -> Now {
        let connection = self.connection;
        if !self.parked.is_empty() || self.takes_none() || connection.too_weak {
            return Now::Untried;
        }
        let Some(call) = self.decoder.peek().and_then(glance) else { return Now::Untried };
        let Ok(program) = connection.registry.find(call.program, call.version) else { return Now::Untried };
        if !program.answers_now(call.procedure) {
            return Now::Untried;
        }
        let now = self.prompt.answer(connection, &call, &**program);
        if now == Now::Answered {
            connection.records.fetch_add(1, Ordering::Relaxed);
            self.decoder.skip();
            self.no_tail();
        }
        now
    }

    /// Whether to read on. Over budget we stop, unless a call of our own is waiting for its reply: that
    /// reply may be what lets a handler finish (a recalled layout, say), so some calls are set aside to
    /// reach it.
    fn may_read(&self) -> bool {
        self.parked.is_empty()
            || (!self.connection.pending.is_empty()
                && self.parked.len() < PARKED
                && self.parked_bytes < self.connection.limits.record())
    }

    fn takes_none(&self) -> bool {
        self.gone || self.connection.is_draining()
    }

    /// Starts calls that were set aside, as far as there is room now.
    fn start_parked(&mut self, cx: &mut Context<'_>) {
        if self.takes_none() {
            self.parked.clear();
            self.parked_bytes = 0;
            self.wait = None;
        }
        while let Some(first) = self.parked.front() {
            let Some(ticket) = self.connection.budget.admit(first.request, first.reply) else { return };
            self.wait = None;
            if let Some(first) = self.parked.pop_front() {
                self.parked_bytes -= first.request;
                drop(first._arriving);
                start(cx, self.connection, first.work, ticket, false);
            }
        }
    }

    /// Handles the whole records that have arrived.
    fn take_records(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        while self.may_read() {
            let tried = match self.answer_now() {
                Now::Answered => continue,
                Now::Refused => true,
                Now::Untried => false,
            };
            // What comes now may take long, and is nothing that was answered at once.
            self.prompt.last = None;
            match self.next_record() {
                Ok(Some((record, tail))) => {
                    let arriving = self.arriving.take();
                    let record = if record.len() > COPIED { record } else { Bytes::copy_from_slice(&record) };
                    self.connection.records.fetch_add(1, Ordering::Relaxed);
                    self.take(cx, record, (tail, arriving), tried)?;
                    if self.connection.outbox.queued() >= ENOUGH {
                        // While the data is still in the processor's cache. An error shows again.
                        let _ = self.flush(cx);
                    }
                }
                Ok(None) => break,
                Err(error) => return Err(Ended::Hostile(error.to_string())),
            }
        }
        Ok(())
    }

    /// The next record that has arrived, as far as it is in memory, and the rest of it.
    fn next_record(&mut self) -> Result<Option<(Bytes, Option<Tail>)>, RecordError> {
        if let Some(filling) = self.filling.take_if(|filling| filling.is_whole())
            && let Some(head) = self.decoder.take_begun()
        {
            self.tails = Tails::Likely;
            return Ok(Some((head, Some(filling.into_tail()))));
        }
        let record = self.decoder.next_record()?;
        if record.is_some() {
            self.no_tail();
        }
        Ok(record.map(|record| (record, None)))
    }

    /// A record had none: many small ones are read at once.
    fn no_tail(&mut self) {
        if self.tails == Tails::Likely {
            self.tails = Tails::Unknown;
        }
    }

    /// Starts the call that `record` holds, or sets it aside with the room that was made for it.
    fn take(
        &mut self,
        cx: &mut Context<'_>,
        record: Bytes,
        (tail, arriving): (Option<Tail>, Option<Arriving>),
        tried: bool,
    ) -> Result<(), Ended> {
        let request = record.len() + tail.as_ref().map_or(0, Tail::length);
        let message =
            parse(record.clone()).map_err(|e| Ended::Hostile(format!("not an RPC message: {e}")))?;
        let too_weak = self.connection.too_weak;
        let refused = |xid, stat| Work::Refuse(xid, Verdict::AuthError(stat));
        let work = match message {
            Message::Reply { xid } => {
                if !self.connection.pending.complete(xid, record) {
                    tracing::debug!(peer = %self.connection.peer(), xid, "a reply nobody waits for");
                }
                return Ok(());
            }
            // The peer will repeat it on its next connection, or has; starting it now would hold up the drain.
            _ if self.takes_none() => return Ok(()),
            Message::Refused { xid, verdict } => Work::Refuse(xid, verdict),
            // Nothing is known of a ticket that came in clear.
            Message::Gss(call) if too_weak => refused(call.xid, auth_stat::AUTH_TOOWEAK),
            Message::Gss(call) => {
                let (xid, gss) = (call.xid, self.connection.gss.as_ref());
                match gss.map(|gss| gss.open(&record, call)) {
                    None => refused(xid, auth_stat::AUTH_REJECTEDCRED),
                    // Nothing of such a record stayed outside of memory.
                    Some(Opened::Call(header)) => self.of_program(header, None),
                    Some(Opened::Refused(verdict)) => Work::Refuse(xid, verdict),
                    Some(Opened::Answer(verdict, seal)) => Work::Answer(xid, verdict, seal),
                    Some(Opened::Begin(token)) => Work::Begin(xid, token),
                    // It is not answered (RFC 2203 §5.3.3.1), and an NFSv4 client does not ask again on a connection that is there
                    // (RFC 8881 §2.9.2): one that was only overtaken comes again on another, under a number of its own.
                    Some(Opened::Dropped) => return Err(Ended::Orderly("a call whose number was over")),
                }
            }
            // Whoever wants to know whether anybody is there may ask in clear.
            Message::Call(header) if too_weak && header.procedure != NULL => {
                refused(header.xid, auth_stat::AUTH_TOOWEAK)
            }
            Message::Call(header) => self.of_program(header, tail),
        };
        let reply = match &work {
            Work::Call(header, _, program) => {
                program.reply_bound(header.version, header.procedure, &header.args)
            }
            Work::Refuse(..) => REFUSAL,
            Work::Answer(..) | Work::Begin(..) => GSS_REPLY,
        };
        let ticket = match self.parked.is_empty() {
            true => self.connection.budget.admit(request, reply),
            false => None,
        };
        match ticket {
            Some(ticket) => {
                drop(arriving);
                start(cx, self.connection, work, ticket, tried);
            }
            None => {
                self.parked_bytes += request;
                self.parked.push_back(Parked { work, request, reply, _arriving: arriving });
            }
        }
        Ok(())
    }

    /// A call that its program is to take, if there is one.
    fn of_program(&self, header: CallHeader, tail: Option<Tail>) -> Work {
        match self.connection.registry.find(header.program, header.version) {
            Ok(program) => Work::Call(header, tail, Arc::clone(program)),
            Err(why) => match header.seal {
                Some(seal) => Work::Answer(header.xid, why.into(), seal),
                None => Work::Refuse(header.xid, why.into()),
            },
        }
    }
}

/// Room for a large record to arrive.
async fn room(connection: &Connection, bytes: usize) -> Arriving {
    let server = &connection.budget.server;
    server.courtesy.give_way(&connection.env, bytes).await;
    // It may be the reply that lets handlers finish for which the others wait. That many could say so who owe us one and send
    // something else is why there is an end to it.
    let beyond = if connection.pending.is_empty() { None } else { server.arrivals.beyond(bytes) };
    match beyond {
        Some(arriving) => arriving,
        None => server.arrivals.room(bytes).await,
    }
}

/// Leaves out the beginning of an empty buffer, so that a record of so many bytes will end with a page. The data of an
/// NFSv3 WRITE are the end of its record: whole pages of it lie as a device takes them, and need not be copied.
fn end_at_page(buffer: &mut BytesMut, record: usize) {
    let end = buffer.as_ptr().addr() + record;
    let spare = end.next_multiple_of(PAGE) - end;
    buffer.put_bytes(0, spare);
    buffer.advance(spare);
}

/// Runs a call as far as it goes without waiting; a task of its own does the rest.
fn start(cx: &mut Context<'_>, connection: &Arc<Connection>, work: Work, ticket: Ticket, tried: bool) {
    let (header, tail, program) = match work {
        Work::Call(header, tail, program) => (header, tail, program),
        Work::Refuse(xid, verdict) => return connection.reply(xid, verdict, Frame::empty(), ticket),
        Work::Answer(xid, verdict, seal) => {
            let (verdict, body, proof) = seal.close(verdict, Body::default());
            return connection.reply_proved(xid, verdict, body, &proof.unwrap_or_default(), ticket);
        }
        Work::Begin(xid, token) => return begin(connection, xid, token, ticket),
    };
    let CallHeader { xid, program: number, version, procedure, credential, args, seal } = header;
    let from = Arc::clone(connection);
    let call =
        Call { xid, program: number, version, procedure, credential, args, tail, tried, connection: from };
    let owed = Owed::new(&call, seal, ticket);
    let Some((call, owed)) = program.take(call, owed) else { return };
    let mut task: BoxFuture<'static, ()> = Box::pin(async move { owed.answer(program.call(call).await) });
    if task.as_mut().poll(cx).is_pending() {
        connection.env.spawn.spawn(task);
    }
}

/// Looks at a ticket beside the connection's own task.
fn begin(connection: &Arc<Connection>, xid: u32, token: Bytes, ticket: Ticket) {
    let Some(gss) = connection.gss.clone() else { return };
    let from = Arc::clone(connection);
    connection.env.spawn.spawn(Box::pin(async move {
        let Begun { result, proof } = gss.begin(&from, token).await;
        let (verdict, body) = match result {
            Some(result) => (Verdict::Success, result.into()),
            None => (Verdict::SystemErr, Body::default()),
        };
        from.reply_proved(xid, verdict, body, &proof.unwrap_or_default(), ticket);
    }));
}

/// Replies to the calls of one turn that were answered at once, one behind the other.
#[derive(Debug, Default)]
struct Prompt {
    replies: BytesMut,
    /// Room in the budget for [`BATCH`] bytes of them.
    ticket: Option<Ticket>,
    /// What is left of the buffer of replies on their way.
    spare: Option<BytesMut>,
    /// When the last of them was answered: then the next one begins.
    last: Option<Monotonic>,
    /// What they took.
    took: Duration,
}

/// Bytes of replies that leave in one piece.
const BATCH: usize = BUFFER;

impl Prompt {
    /// If it is not answered nothing has changed, and the call must go the usual way.
    fn answer(&mut self, connection: &Connection, call: &Glance<'_>, program: &dyn Program) -> Now {
        if self.replies.len() + SUCCESS_HEAD + NOW_BOUND > BATCH {
            self.finish(connection);
        }
        if self.ticket.is_none() {
            self.ticket = connection.budget.admit(0, BATCH);
            if self.ticket.is_none() {
                return Now::Untried;
            }
            self.replies = connection.recycler.take();
        }
        let started = self.last.unwrap_or_else(|| connection.env.clock.now());
        let begin = self.replies.len();
        self.replies.put_bytes(0, SUCCESS_HEAD);
        let answered = program.answer_now(connection, call.procedure, call.args, &mut self.replies);
        let body = self.replies.len().saturating_sub(begin + SUCCESS_HEAD);
        let head = success_head(call.xid, body).filter(|_| answered);
        let (Some(head), Some(place)) = (head, self.replies.get_mut(begin..begin + SUCCESS_HEAD)) else {
            self.replies.truncate(begin);
            return Now::Refused;
        };
        place.copy_from_slice(&head);
        let ended = connection.env.clock.now();
        let took = ended.since(started);
        self.last = Some(ended);
        self.took += took;
        let metrics = &connection.registry.metrics;
        metrics.record(call.program, call.procedure, true, call.args.len(), body, took);
        Now::Answered
    }

    /// Queues what was gathered.
    fn finish(&mut self, connection: &Connection) {
        self.last = None;
        let Some(mut ticket) = self.ticket.take() else { return };
        let mut buffer = std::mem::take(&mut self.replies);
        if buffer.is_empty() {
            connection.recycler.give(buffer);
            return;
        }
        let replies = if connection.outbox.is_stuck() && buffer.len() <= COPIED {
            // They will lie there for a while: in no more memory than they need.
            let replies = Bytes::copy_from_slice(&buffer);
            connection.recycler.give(buffer);
            ticket.answered(replies.len(), 0);
            replies
        } else {
            let replies = buffer.split().freeze();
            self.spare = Some(buffer);
            // As a rule they leave at once. Until they do they keep all of the buffer.
            ticket.answered(BATCH, 0);
            replies
        };
        connection.outbox.push_replies(replies, ticket);
        connection.budget.server.courtesy.answered(&connection.env, std::mem::take(&mut self.took));
    }

    /// Gives back the memory of replies that have left.
    fn recover(&mut self, connection: &Connection) {
        if let Some(spare) = self.spare.take() {
            connection.recycler.give(spare);
        }
    }
}
