//! What a server serves: programs, and the calls they answer.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sluice_env::BoxFuture;
use sluice_xdr::Frame;
use sluice_xdr::rpc::auth_stat;

use crate::connection::Connection;
use crate::credential::Credential;
use crate::metrics::Metrics;
use crate::owed::Owed;
use crate::payload::Payload;
use crate::tail::Tail;

/// One call, its header already judged: the program and version exist, the credential is acceptable.
#[derive(Debug)]
pub struct Call {
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    pub credential: Credential,
    /// The encoded arguments, referring to the receive buffer: keep a copy, not these, beyond the call.
    pub args: Bytes,
    /// What follows them and is not in memory; only where [`Program::leave`] asked for it.
    pub tail: Option<Tail>,
    /// [`Program::answer_now`] was asked, and could not.
    pub tried: bool,
    /// Where the call came from; also the way to call the peer back.
    pub connection: Arc<Connection>,
}

/// What becomes of a call (RFC 5531 §9).
#[derive(Clone, Debug)]
pub enum Reply {
    /// The procedure ran; the frame is its encoded result, without any header.
    Success(Frame),
    /// The same, and so many bytes of data behind the frame.
    Data(Frame, Arc<dyn Payload>),
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// The program has no such procedure.
    ProcUnavail,
    /// Something went wrong that the program's own protocol cannot express.
    SystemErr,
    /// The credential will not do.
    AuthError(auth_stat),
    /// No answer at all: the peer will ask again, perhaps elsewhere.
    Drop,
}

/// A remote program (RFC 5531 §7.4).
pub trait Program: Send + Sync + Debug {
    /// The program number.
    fn number(&self) -> u32;

    /// The versions it serves; any other is answered PROG_MISMATCH.
    fn versions(&self) -> RangeInclusive<u32>;

    /// Takes a call that will be answered from another thread, without a future or a task; gives back any other.
    fn take(&self, call: Call, owed: Owed) -> Option<(Call, Owed)> {
        Some((call, owed))
    }

    /// Runs one call that [`Self::take`] did not want. The future is polled once on the connection's own task and moved to a
    /// task of its own only if it is not ready then, so it must not block a thread.
    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply>;

    /// Whether [`Self::answer_now`] is worth a try.
    fn answers_now(&self, procedure: u32) -> bool {
        let _ = procedure;
        false
    }

    /// Answers a call at once, if that takes no waiting and less than [`NOW_BOUND`] bytes: appends the encoded
    /// result to `result` and says true. Otherwise it leaves `result` and everything else as it was and says
    /// false, and the call goes the usual way. Most small calls of a data server end here, without a future, a
    /// task or memory of their own.
    fn answer_now(&self, from: &Connection, procedure: u32, args: &[u8], result: &mut BytesMut) -> bool {
        let _ = (from, procedure, args, result);
        false
    }

    /// Whether the end of a large call may stay outside of memory, as [`Call::tail`]: how many bytes of its arguments must
    /// be in it. `args` are those that have arrived, `length` is how many there will be, all of which are untrusted.
    fn leave(&self, version: u32, procedure: u32, args: &[u8], length: usize) -> Option<usize> {
        let _ = (version, procedure, args, length);
        None
    }

    /// An upper bound, in bytes, for the reply of this call: that much of the connection's budget is set
    /// aside before the call runs. Too low and a peer that never reads can exceed the budget by the
    /// difference; too high and fewer calls run at once. `args` are untrusted.
    fn reply_bound(&self, version: u32, procedure: u32, args: &Bytes) -> usize {
        let _ = (version, procedure, args);
        DEFAULT_REPLY_BOUND
    }
}

/// The most that [`Program::answer_now`] appends.
pub const NOW_BOUND: usize = 20 << 10;

/// The largest reply of an NFS procedure: 1 MiB of data and its headers.
pub const DEFAULT_REPLY_BOUND: usize = (1 << 20) + 4096;

/// The programs reachable over one kind of connection.
#[derive(Debug)]
pub(crate) struct Registry {
    programs: Vec<Arc<dyn Program>>,
    pub(crate) metrics: Metrics,
}

/// Why no program can take a call (RFC 5531 §9, accept_stat).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unavailable {
    Program,
    Version { low: u32, high: u32 },
}

impl Registry {
    pub(crate) fn new(programs: Vec<Arc<dyn Program>>) -> Self {
        let metrics = Metrics::new(programs.iter().map(|p| p.number()));
        Self { programs, metrics }
    }

    /// The program with `number` that serves `version`. One number may be registered several times with
    /// disjoint versions.
    pub(crate) fn find(&self, number: u32, version: u32) -> Result<&Arc<dyn Program>, Unavailable> {
        let mut range: Option<(u32, u32)> = None;
        for program in self.programs.iter().filter(|p| p.number() == number) {
            let versions = program.versions();
            if versions.contains(&version) {
                return Ok(program);
            }
            let (low, high) = range.unwrap_or((*versions.start(), *versions.end()));
            range = Some((low.min(*versions.start()), high.max(*versions.end())));
        }
        Err(match range {
            Some((low, high)) => Unavailable::Version { low, high },
            None => Unavailable::Program,
        })
    }
}
