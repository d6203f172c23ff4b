//! NFS4_PROGRAM: NULL and COMPOUND. RFC 8881 §16.

use std::future::ready;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_rpc::{Call, Frame, Program, Reply};

use crate::compound::{bound, run};
use crate::server::Mds;

const NFS4_PROGRAM: u32 = 100_003;
const NFSPROC4_NULL: u32 = 0;
const NFSPROC4_COMPOUND: u32 = 1;

/// What NFS clients call.
#[derive(Debug)]
pub(crate) struct Nfs4 {
    pub(crate) mds: Arc<Mds>,
}

impl Nfs4 {
    async fn is_ours_soon(&self) -> bool {
        let ours = self.mds.env.clock.timeout(run::PATIENCE, self.mds.db.until_ours()).await;
        matches!(ours, Ok(Ok(())))
    }

    /// A server that was stopped for a while may have been replaced: until it knows, nothing of what it remembers is
    /// true for anybody.
    async fn compound(&self, mut call: Call) -> Reply {
        if !self.mds.db.is_ours() && !self.is_ours_soon().await {
            return run::not_now(&call);
        }
        let from = call.connection.peer().ip();
        let Ok(caller) = self.mds.caller(from).await else {
            return run::not_now(&call);
        };
        // Nothing is looked up for whom no export lets in: he could name every number there is. Nor where he is nobody anyhow.
        if self.mds.groups.asks()
            && caller.0.knows_users_of(&caller.1)
            && self.mds.groups.complete(&self.mds.env, from, &mut call.credential).await.is_err()
        {
            return run::not_now(&call);
        }
        let connection = Arc::clone(&call.connection);
        let reply = pin!(run::compound(&self.mds, call, caller)).await;
        match self.mds.db.until_ours().await {
            Ok(()) => reply,
            // Its successor answers when the client asks again.
            Err(_) => run::unanswered(&connection),
        }
    }
}

impl Program for Nfs4 {
    fn number(&self) -> u32 {
        NFS4_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        4..=4
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        match call.procedure {
            NFSPROC4_NULL => Box::pin(ready(Reply::Success(Frame::default()))),
            NFSPROC4_COMPOUND => Box::pin(self.compound(call)),
            _ => Box::pin(ready(Reply::ProcUnavail)),
        }
    }

    fn reply_bound(&self, _version: u32, _procedure: u32, args: &Bytes) -> usize {
        // Only the session knows how much it may be at most: the loop holds every reply to that.
        bound::of(args)
    }
}
