//! NFSv3 (RFC 1813) as far as a storage device of flexible file layouts needs it.

mod commit;
mod fsinfo;
mod fsstat;
mod getattr;
mod notsupp;
mod now;
mod null;
mod read;
mod table;
mod write;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sluice_env::BoxFuture;
use sluice_rpc::{Call, Connection, Owed, Program, Reply};
use sluice_xdr::nfs3::{
    NFS_V3, NFS3_PROGRAM, NFSPROC3_READ, NFSPROC3_WRITE, post_op_attr, pre_op_attr, wcc_data,
};
use sluice_xdr::{Encode, to_frame};

use crate::shared::{IO_MAX, Shared};
use table::{Run, TABLE};

/// The program a client's connection reaches; every other one is PROG_UNAVAIL, which Linux takes from
/// MOUNT, NLM and LOCALIO for "go on without".
pub(crate) struct Nfs3 {
    shared: Arc<Shared>,
}

impl fmt::Debug for Nfs3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nfs3")
    }
}

impl Nfs3 {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Program for Nfs3 {
    fn number(&self) -> u32 {
        NFS3_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        NFS_V3..=NFS_V3
    }

    fn take(&self, call: Call, owed: Owed) -> Option<(Call, Owed)> {
        // What was not tried may be in memory.
        match call.procedure {
            NFSPROC3_READ if call.tried => {
                read::soon(&self.shared, &call.args, owed).map(|owed| (call, owed))
            }
            _ => Some((call, owed)),
        }
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        match TABLE.get(call.procedure as usize).map(|row| &row.run) {
            Some(Run::Serve(run)) => run(&self.shared, call),
            Some(Run::Refuse(words)) => Box::pin(std::future::ready(notsupp::reply(*words))),
            None => Box::pin(std::future::ready(Reply::ProcUnavail)),
        }
    }

    fn answers_now(&self, procedure: u32) -> bool {
        matches!(procedure, NFSPROC3_READ | NFSPROC3_WRITE)
    }

    fn answer_now(&self, from: &Connection, procedure: u32, args: &[u8], result: &mut BytesMut) -> bool {
        match procedure {
            NFSPROC3_READ => read::now(&self.shared, from, args, result),
            NFSPROC3_WRITE => write::now(&self.shared, from, args, result),
            _ => false,
        }
    }

    fn leave(&self, _version: u32, procedure: u32, args: &[u8], length: usize) -> Option<usize> {
        if procedure == NFSPROC3_WRITE { write::leave(&self.shared, args, length) } else { None }
    }

    fn reply_bound(&self, _version: u32, procedure: u32, args: &Bytes) -> usize {
        let payload = match TABLE.get(procedure as usize).map(|row| row.name) {
            Some("READ") => read::count_of(args).min(IO_MAX) as usize,
            _ => 0,
        };
        payload + 256
    }
}

/// A procedure by its number, as RFC 1813 spells it.
pub fn procedure_name(procedure: u32) -> Option<&'static str> {
    TABLE.get(procedure as usize).map(|row| row.name)
}

/// Attributes are left out of every reply that may leave them out: clients of a layout ignore them
/// (RFC 8435 §2.1: the metadata server's count), and fetching them costs.
const NO_ATTRIBUTES: post_op_attr = post_op_attr::FALSE;

const fn no_wcc() -> wcc_data {
    wcc_data { before: pre_op_attr::FALSE, after: post_op_attr::FALSE }
}

fn reply<T: Encode>(result: &T) -> Reply {
    match to_frame(result, IO_MAX as usize + 4096) {
        Ok(frame) => Reply::Success(frame),
        Err(error) => {
            tracing::error!(%error, "a reply cannot be encoded");
            Reply::SystemErr
        }
    }
}
