//! The receiving half of a connection: records in, calls started, replies handed to their callers.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_xdr::{Frame, RecordDecoder};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::budget::Ticket;
use crate::connection::{Connection, Ended};
use crate::message::{CallHeader, Message, Verdict, parse};
use crate::program::{Call, Program, Reply};

/// Most calls kept back while we look for a reply behind them.
const PARKED: usize = 64;

/// Room set aside for a reply that is only a refusal.
const REFUSAL: usize = 64;

/// Something the peer asked for, understood and not yet begun.
enum Work {
    Call(CallHeader, Arc<dyn Program>),
    Refuse(u32, Verdict),
}

struct Parked {
    work: Work,
    request: usize,
    reply: usize,
}

/// Reads one connection.
pub(crate) struct Intake<'a> {
    connection: &'a Arc<Connection>,
    decoder: RecordDecoder,
    /// Calls for which there was no room yet, oldest first. Usually none, or the one that stopped the
    /// reader.
    parked: VecDeque<Parked>,
    parked_bytes: usize,
}

impl<'a> Intake<'a> {
    pub(crate) fn new(connection: &'a Arc<Connection>, decoder: RecordDecoder) -> Self {
        Self { connection, decoder, parked: VecDeque::new(), parked_bytes: 0 }
    }

    /// Reads until the connection ends.
    pub(crate) async fn run<R: AsyncRead + Unpin>(mut self, reader: &mut R) -> Ended {
        loop {
            self.start_parked().await;
            if let Err(why) = self.take_records().await {
                return why;
            }
            if !self.connection.outbox.is_idle() {
                // The writer's turn, before more is read.
                give_way().await;
            }
            let reading = self.may_read();
            self.connection.partial.store(reading && self.decoder.pending() > 0, Ordering::Relaxed);
            let read = match self.parked.front() {
                None => reader.read_buf(self.decoder.buffer()).await,
                Some(first) => {
                    let changed = self.connection.budget.changed(first.request, first.reply);
                    if !reading {
                        changed.await;
                        continue;
                    }
                    tokio::select! {
                        biased;
                        () = changed => continue,
                        read = reader.read_buf(self.decoder.buffer()) => read,
                    }
                }
            };
            match read {
                Ok(0) if self.decoder.pending() > 0 => return Ended::Orderly("by the peer, inside a record"),
                Ok(0) => return Ended::Orderly("by the peer"),
                Ok(_) => {}
                Err(error) => return Ended::Io(error),
            }
        }
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

    /// Starts calls that were set aside, as far as there is room now.
    async fn start_parked(&mut self) {
        if self.connection.is_draining() {
            self.parked.clear();
            self.parked_bytes = 0;
        }
        while let Some(first) = self.parked.front() {
            let Some(ticket) = self.connection.budget.admit(first.request, first.reply) else { return };
            if let Some(first) = self.parked.pop_front() {
                self.parked_bytes -= first.request;
                start(self.connection, first.work, ticket).await;
            }
        }
    }

    /// Handles the whole records that have arrived.
    async fn take_records(&mut self) -> Result<(), Ended> {
        while self.may_read() {
            match self.decoder.next_record() {
                Ok(Some(record)) => {
                    self.connection.records.fetch_add(1, Ordering::Relaxed);
                    self.take(record).await?;
                }
                Ok(None) => break,
                Err(error) => return Err(Ended::Hostile(error.to_string())),
            }
        }
        Ok(())
    }

    async fn take(&mut self, record: Bytes) -> Result<(), Ended> {
        let request = record.len();
        let message =
            parse(record.clone()).map_err(|e| Ended::Hostile(format!("not an RPC message: {e}")))?;
        let work = match message {
            Message::Reply { xid } => {
                if !self.connection.pending.complete(xid, record) {
                    tracing::debug!(peer = %self.connection.peer(), xid, "a reply nobody waits for");
                }
                return Ok(());
            }
            // The peer will repeat it on its next connection; starting it now would hold up the drain.
            _ if self.connection.is_draining() => return Ok(()),
            Message::Refused { xid, verdict } => Work::Refuse(xid, verdict),
            Message::Call(header) => match self.connection.registry.find(header.program, header.version) {
                Ok(program) => Work::Call(header, Arc::clone(program)),
                Err(why) => Work::Refuse(header.xid, why.into()),
            },
        };
        let reply = match &work {
            Work::Call(header, program) => {
                program.reply_bound(header.version, header.procedure, &header.args)
            }
            Work::Refuse(..) => REFUSAL,
        };
        let ticket = match self.parked.is_empty() {
            true => self.connection.budget.admit(request, reply),
            false => None,
        };
        match ticket {
            Some(ticket) => start(self.connection, work, ticket).await,
            None => {
                self.parked_bytes += request;
                self.parked.push_back(Parked { work, request, reply });
            }
        }
        Ok(())
    }
}

/// Runs a call as far as it goes without waiting; a task of its own does the rest.
async fn start(connection: &Arc<Connection>, work: Work, ticket: Ticket) {
    let (header, program) = match work {
        Work::Call(header, program) => (header, program),
        Work::Refuse(xid, verdict) => return connection.reply(xid, verdict, Frame::empty(), ticket),
    };
    let mut task: BoxFuture<'static, ()> = Box::pin(answer(Arc::clone(connection), header, program, ticket));
    let polled = poll_fn(|cx| Poll::Ready(task.as_mut().poll(cx))).await;
    if polled.is_pending() {
        connection.env.spawn.spawn(task);
    }
}

/// A call that owes an answer: a handler that ends without one, by a panic, is answered SYSTEM_ERR, since
/// an NFSv4 client never repeats a call on the same connection (RFC 8881 §2.9.2).
struct Owed {
    connection: Arc<Connection>,
    xid: u32,
    ticket: Option<Ticket>,
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.connection.reply(self.xid, Verdict::SystemErr, Frame::empty(), ticket);
        }
    }
}

async fn answer(connection: Arc<Connection>, header: CallHeader, program: Arc<dyn Program>, ticket: Ticket) {
    let CallHeader { xid, program: number, version, procedure, credential, args } = header;
    let request = args.len();
    let started = connection.env.clock.now();
    let mut owed = Owed { connection: Arc::clone(&connection), xid, ticket: Some(ticket) };
    let call = Call {
        xid,
        program: number,
        version,
        procedure,
        credential,
        args,
        connection: Arc::clone(&connection),
    };
    let (verdict, body) = match program.call(call).await {
        Reply::Success(body) => (Verdict::Success, body),
        Reply::GarbageArgs => (Verdict::GarbageArgs, Frame::empty()),
        Reply::ProcUnavail => (Verdict::ProcUnavail, Frame::empty()),
        Reply::SystemErr => (Verdict::SystemErr, Frame::empty()),
        Reply::AuthError(stat) => (Verdict::AuthError(stat), Frame::empty()),
        Reply::Drop => {
            owed.ticket = None;
            return;
        }
    };
    let took = connection.env.clock.now().since(started);
    let metrics = &connection.registry.metrics;
    metrics.record(number, procedure, verdict == Verdict::Success, request, body.len(), took);
    if let Some(ticket) = owed.ticket.take() {
        connection.reply(xid, verdict, body, ticket);
    }
}

/// Lets the other half of the connection's task run once.
async fn give_way() {
    let mut gave = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut gave, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
