//! A call that owes an answer, and the answer on its way.

use std::sync::Arc;

use sluice_env::Monotonic;
use sluice_xdr::Frame;

use crate::budget::Ticket;
use crate::connection::Connection;
use crate::message::Verdict;
use crate::outbox::Body;
use crate::program::{Call, Reply};
use crate::tail::Tail;

/// Whoever has it answers, from whichever thread. One that goes without an answer, by a panic, is answered SYSTEM_ERR,
/// since an NFSv4 client never repeats a call on the same connection (RFC 8881 §2.9.2).
#[derive(Debug)]
pub struct Owed {
    connection: Arc<Connection>,
    xid: u32,
    ticket: Option<Ticket>,
    program: u32,
    procedure: u32,
    /// Bytes of the arguments.
    request: usize,
    started: Monotonic,
}

impl Owed {
    pub(crate) fn new(call: &Call, ticket: Ticket) -> Self {
        Self {
            connection: Arc::clone(&call.connection),
            xid: call.xid,
            ticket: Some(ticket),
            program: call.program,
            procedure: call.procedure,
            request: call.args.len() + call.tail.as_ref().map_or(0, Tail::length),
            started: call.connection.env.clock.now(),
        }
    }

    /// Queues the reply.
    pub fn answer(mut self, reply: Reply) {
        let Some(ticket) = self.ticket.take() else { return };
        let (verdict, body) = match reply {
            Reply::Success(body) => (Verdict::Success, Body::from(body)),
            Reply::Data(frame, data) => (Verdict::Success, Body { frame, data: Some(data) }),
            Reply::GarbageArgs => (Verdict::GarbageArgs, Body::default()),
            Reply::ProcUnavail => (Verdict::ProcUnavail, Body::default()),
            Reply::SystemErr => (Verdict::SystemErr, Body::default()),
            Reply::AuthError(stat) => (Verdict::AuthError(stat), Body::default()),
            Reply::Drop => return,
        };
        let took = self.connection.env.clock.now().since(self.started);
        let metrics = &self.connection.registry.metrics;
        let good = verdict == Verdict::Success;
        metrics.record(self.program, self.procedure, good, self.request, body.len(), took);
        self.connection.reply(self.xid, verdict, body, ticket);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.connection.reply(self.xid, Verdict::SystemErr, Frame::empty(), ticket);
        }
    }
}
