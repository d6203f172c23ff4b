//! SLUICE_DATA_SERVER: orders, taken only over a connection that has proved the cluster key.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_rpc::program::DEFAULT_REPLY_BOUND;
use sluice_rpc::{Call, Frame, Program, Reply};
use sluice_xdr::control::{SLUICE_DATA_SERVER, SLUICE_DATA_SERVER_V1};
use sluice_xdr::{Decode, Encode, from_bytes, to_frame};

use super::{
    allocate, capacity, checksum, clone, copy, digest, epoch, fence, hole, inventory, logical_size, machine,
    remove, scrub, seek, space, stat, transfer, truncate,
};
use crate::shared::Shared;

/// Largest reply: an inventory page.
const REPLY_MAX: usize = 1 << 20;

/// A reply of a few words is shorter.
const SHORT: usize = 256;

type Handler = for<'a> fn(&'a Arc<Shared>, Bytes) -> BoxFuture<'a, Reply>;

/// What is set aside for an order before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// For a reply of a few words.
    Short,
    /// For one that says a few words of each data file that was asked about.
    Listed,
    /// For a long one, or for what the order holds in memory while it runs: no more than so many run at once.
    Large,
}

use Room::{Large, Listed, Short};

/// One row per procedure; the number is the position.
static TABLE: [(&str, Room, Handler); 22] = [
    ("NULL", Short, |_, _| Box::pin(std::future::ready(Reply::Success(Frame::empty())))),
    ("REMOVE", Listed, |shared, args| answer(args, |args| remove::run(shared, args))),
    ("TRUNCATE", Short, |shared, args| answer(args, |args| truncate::run(shared, args))),
    ("STAT", Listed, |shared, args| answer(args, |args| stat::run(shared, args))),
    ("FENCE", Short, |shared, args| answer(args, |args| fence::run(shared, args))),
    ("LOGICAL_SIZE", Short, |shared, args| answer(args, |args| logical_size::run(shared, args))),
    ("EPOCH", Short, |shared, args| answer(args, |args| epoch::run(shared, args))),
    ("SPACE", Short, |shared, args| answer(args, |args| space::run(shared, args))),
    ("SEEK", Short, |shared, args| answer(args, |args| seek::run(shared, args))),
    ("COPY", Large, |shared, args| answer(args, |args| copy::run(shared, args))),
    ("INVENTORY", Large, |shared, args| answer(args, |args| inventory::run(shared, args))),
    ("CHECKSUM", Large, |shared, args| answer(args, |args| checksum::run(shared, args))),
    ("MACHINE", Short, |shared, args| answer(args, |()| machine::run(shared))),
    ("TRANSFER", Large, |shared, args| answer(args, |args| transfer::run(shared, args))),
    ("CLONE", Large, |shared, args| answer(args, |args| clone::run(shared, args))),
    ("SCRUB", Short, |shared, args| answer(args, |args| scrub::run(shared, args))),
    ("CAPACITY", Short, |shared, args| answer(args, |()| capacity::run(shared))),
    ("FENCED", Short, |shared, args| answer(args, |args| fence::in_force(shared, args))),
    ("DIGEST", Large, |shared, args| answer(args, |args| digest::run(shared, args))),
    ("ALLOCATE", Short, |shared, args| answer(args, |args| allocate::run(shared, args))),
    ("HOLE", Short, |shared, args| answer(args, |args| hole::run(shared, args))),
    ("PROTECTION", Short, |shared, args| answer(args, |()| std::future::ready(shared.protection))),
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
            Some((_, _, run)) => run(&self.shared, call.args),
            None => refused(Reply::ProcUnavail),
        }
    }

    fn reply_bound(&self, _version: u32, procedure: u32, args: &Bytes) -> usize {
        match TABLE.get(procedure as usize).map(|(_, room, _)| room) {
            Some(Large) => DEFAULT_REPLY_BOUND,
            // Of a data file nine words are said, and four ask.
            Some(Listed) => SHORT + 3 * args.len(),
            Some(Short) | None => SHORT,
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_env::Env;
    use sluice_rpc::Tcp;
    use sluice_store::device::MemDevice;
    use sluice_store::{Options, Store};
    use sluice_xdr::control::*;

    use super::*;

    /// What fits into 64 MiB at once is a megabyte each: orders in plenty must not keep the reply to a heartbeat waiting.
    #[tokio::test]
    async fn a_short_reply_is_promised_little_room_and_no_reply_is_longer_than_promised() {
        let env = Env::simulated(1);
        let options = Options { create: true, ..Options::default() };
        let store = Store::open(&env, Arc::new(MemDevice::new()), options).await.unwrap();
        let program = DataServerProgram::new(Arc::new(Shared::new(
            env,
            Arc::new(Tcp),
            store,
            (None, ctl_protection::PROTECTION_NONE),
        )));
        let bytes = |frame: Frame| frame.into_segments().concat();
        let files = vec![ctl_data_file::default(); CTL_FILES_MAX as usize];
        let remove = DS_REMOVE_args { caller: ctl_caller::default(), epoch: 1, files: files.clone() };
        let results = vec![ctl_status::CTL_OK; files.len()];
        let stats = DS_STAT_res::CTL_OK(vec![ctl_stat::default(); files.len()]);
        let none = Bytes::new();
        for (procedure, args, longest) in [
            (
                DS_REMOVE,
                bytes(to_frame(&remove, 1 << 20).unwrap()).into(),
                to_frame(&DS_REMOVE_res { results }, 1 << 20),
            ),
            (
                DS_STAT,
                bytes(to_frame(&DS_STAT_args { files }, 1 << 20).unwrap()).into(),
                to_frame(&stats, 1 << 20),
            ),
            (DS_FENCE, none.clone(), to_frame(&ctl_status::CTL_OK, 100)),
            (DS_TRUNCATE, none.clone(), to_frame(&ctl_status::CTL_OK, 100)),
            (DS_SCRUB, none.clone(), to_frame(&ctl_scrub::default(), 1000)),
            (DS_CAPACITY, none.clone(), to_frame(&ctl_capacity::default(), 1000)),
            (DS_MACHINE, none.clone(), to_frame(&ctl_machine::default(), 1000)),
        ] {
            let bound = program.reply_bound(1, procedure, &args);
            assert!((longest.unwrap().len()..64 << 10).contains(&bound), "{procedure}: {bound}");
        }
        assert_eq!(program.reply_bound(1, DS_INVENTORY, &none), DEFAULT_REPLY_BOUND);
    }
}
