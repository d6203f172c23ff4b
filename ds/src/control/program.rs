//! SLUICE_DATA_SERVER: orders, taken only over a connection that has proved the cluster key.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_rpc::{Call, Frame, Program, Reply};
use sluice_xdr::control::{SLUICE_DATA_SERVER, SLUICE_DATA_SERVER_V1};
use sluice_xdr::{Decode, Encode, from_bytes, to_frame};

use super::{
    capacity, checksum, clone, copy, epoch, fence, inventory, logical_size, machine, remove, scrub, seek,
    space, stat, transfer, truncate,
};
use crate::shared::Shared;

/// Largest reply: an inventory page.
const REPLY_MAX: usize = 1 << 20;

type Handler = for<'a> fn(&'a Arc<Shared>, Bytes) -> BoxFuture<'a, Reply>;

/// One row per procedure; the number is the position.
static TABLE: [(&str, Handler); 17] = [
    ("NULL", |_, _| Box::pin(std::future::ready(Reply::Success(Frame::empty())))),
    ("REMOVE", |shared, args| answer(args, |args| remove::run(shared, args))),
    ("TRUNCATE", |shared, args| answer(args, |args| truncate::run(shared, args))),
    ("STAT", |shared, args| answer(args, |args| stat::run(shared, args))),
    ("FENCE", |shared, args| answer(args, |args| fence::run(shared, args))),
    ("LOGICAL_SIZE", |shared, args| answer(args, |args| logical_size::run(shared, args))),
    ("EPOCH", |shared, args| answer(args, |args| epoch::run(shared, args))),
    ("SPACE", |shared, args| answer(args, |args| space::run(shared, args))),
    ("SEEK", |shared, args| answer(args, |args| seek::run(shared, args))),
    ("COPY", |shared, args| answer(args, |args| copy::run(shared, args))),
    ("INVENTORY", |shared, args| answer(args, |args| inventory::run(shared, args))),
    ("CHECKSUM", |shared, args| answer(args, |args| checksum::run(shared, args))),
    ("MACHINE", |shared, args| answer(args, |()| machine::run(shared))),
    ("TRANSFER", |shared, args| answer(args, |args| transfer::run(shared, args))),
    ("CLONE", |shared, args| answer(args, |args| clone::run(shared, args))),
    ("SCRUB", |shared, args| answer(args, |args| scrub::run(shared, args))),
    ("CAPACITY", |shared, args| answer(args, |()| capacity::run(shared))),
];

fn answer<'a, A, R, F>(args: Bytes, run: impl FnOnce(A) -> F + Send + 'a) -> BoxFuture<'a, Reply>
where
    A: Decode + Send + 'a,
    R: Encode,
    F: Future<Output = R> + Send + 'a,
{
    Box::pin(async move {
        let Ok(args) = from_bytes::<A>(args) else { return Reply::GarbageArgs };
        match to_frame(&run(args).await, REPLY_MAX) {
            Ok(frame) => Reply::Success(frame),
            Err(error) => {
                tracing::error!(%error, "a control reply cannot be encoded");
                Reply::SystemErr
            }
        }
    })
}

pub(crate) struct DataServerProgram {
    shared: Arc<Shared>,
}

impl DataServerProgram {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl fmt::Debug for DataServerProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataServerProgram")
    }
}

impl Program for DataServerProgram {
    fn number(&self) -> u32 {
        SLUICE_DATA_SERVER
    }

    fn versions(&self) -> RangeInclusive<u32> {
        SLUICE_DATA_SERVER_V1..=SLUICE_DATA_SERVER_V1
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        let refused = |reply| -> BoxFuture<'a, Reply> { Box::pin(std::future::ready(reply)) };
        // Registered for secure connections only; checked again because data hangs on it.
        if !call.connection.is_secure() {
            return refused(Reply::SystemErr);
        }
        match TABLE.get(call.procedure as usize) {
            Some((_, run)) => run(&self.shared, call.args),
            None => refused(Reply::ProcUnavail),
        }
    }
}
