//! SLUICE_ADMIN: what the command line asks.

use std::ops::RangeInclusive;
use std::sync::Arc;

use sluice_env::BoxFuture;
use sluice_rpc::{Call, Program, Reply};
use sluice_xdr::control::{SLUICE_ADMIN, SLUICE_ADMIN_V1};

use crate::server::Mds;

#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) mds: Arc<Mds>,
}

impl Program for Admin {
    fn number(&self) -> u32 {
        SLUICE_ADMIN
    }
    fn versions(&self) -> RangeInclusive<u32> {
        SLUICE_ADMIN_V1..=SLUICE_ADMIN_V1
    }
    fn call<'a>(&'a self, _call: Call) -> BoxFuture<'a, Reply> {
        Box::pin(async { Reply::ProcUnavail })
    }
}
