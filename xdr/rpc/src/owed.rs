//! A call that owes an answer, and the answer on its way.

use std::sync::Arc;

use sluice_env::Monotonic;

use crate::budget::Ticket;
use crate::connection::Connection;
use crate::gss::Seal;
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
    /// How the answer leaves, if not as it is.
    seal: Option<Box<Seal>>,
    program: u32,
    procedure: u32,
    /// Bytes of the arguments.
    request: usize,
    started: Monotonic,
}

impl Owed {
    pub(crate) fn new(call: &Call, seal: Option<Box<Seal>>, ticket: Ticket) -> Self {
        Self {
            connection: Arc::clone(&call.connection),
            xid: call.xid,
            ticket: Some(ticket),
            seal,
            program: call.program,
            procedure: call.procedure,
            request: call.args.len() + call.tail.as_ref().map_or(0, Tail::length),
            started: call.connection.env.clock.now(),
        }
    }

    /// Where the call came from.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
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
        self.send(verdict, body, ticket);
    }

    fn send(&self, verdict: Verdict, body: Body, ticket: Ticket) {
        let Some(seal) = &self.seal else { return self.connection.reply(self.xid, verdict, body, ticket) };
        let (verdict, body, proof) = seal.close(verdict, body);
        self.connection.reply_proved(self.xid, verdict, body, &proof.unwrap_or_default(), ticket);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.send(Verdict::SystemErr, Body::default(), ticket);
        }
    }
}
