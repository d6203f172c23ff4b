//! The data servers as this server sees them: who they are, whether they live, and what it asks of them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_env::Env;
use sluice_kv::Database;
use sluice_namespace::{FsError, Layout, Namespace};
use sluice_rpc::{Call, Program, Reply};
use sluice_state::{BootEpoch, ClientId};
use sluice_state::effect::FenceId;
use sluice_xdr::control::{SLUICE_CONTROL, SLUICE_CONTROL_V1, ctl_capacity};
use sluice_xdr::nfs4::nfsstat4;

use crate::config::Config;
use crate::files::FileEntry;
use crate::server::Mds;

/// SLUICE_CONTROL, called by data servers.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) mds: Arc<Mds>,
}

impl Program for Control {
    fn number(&self) -> u32 {
        SLUICE_CONTROL
    }
    fn versions(&self) -> RangeInclusive<u32> {
        SLUICE_CONTROL_V1..=SLUICE_CONTROL_V1
    }
    fn call<'a>(&'a self, _call: Call) -> BoxFuture<'a, Reply> {
        Box::pin(async { Reply::ProcUnavail })
    }
}

/// Known data servers.
#[derive(Debug, Default)]
pub(crate) struct Registry {}

impl Registry {
    /// The data servers, keys and fences that earlier incarnations knew.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn load(_env: &Env, _db: &Database, _namespace: &Namespace, _config: &Config, _epoch: BootEpoch) -> Result<Self, FsError> {
        Ok(Self {})
    }

    /// Of all data servers that take new files, together.
    pub(crate) fn capacity(&self) -> ctl_capacity {
        ctl_capacity::default()
    }
}

/// Watches the data servers for the life of this server.
pub(crate) async fn run(_mds: Arc<Mds>) {}

/// Fences a client's capabilities on one file at every data server that holds it, durably, then tells the
/// file's machine.
pub(crate) async fn fence_holder_on_file(_mds: Arc<Mds>, _entry: Arc<FileEntry>, _client: ClientId, _fence: FenceId) {}

/// Reads through this server. Bytes beyond what data files hold are zeros; the caller has clamped to size.
///
/// # Errors
/// What the client is told.
pub(crate) async fn read(_mds: &Arc<Mds>, _layout: &Layout, _offset: u64, _length: u32) -> Result<Bytes, nfsstat4> {
    Err(nfsstat4::NFS4ERR_NOTSUPP)
}

/// Writes through this server; with `stable`, durable at every mirror before it returns.
///
/// # Errors
/// What the client is told.
pub(crate) async fn write(_mds: &Arc<Mds>, _layout: &Layout, _offset: u64, _data: Bytes, _stable: bool) -> Result<(), nfsstat4> {
    Err(nfsstat4::NFS4ERR_NOTSUPP)
}

/// Makes earlier unstable writes through this server durable.
///
/// # Errors
/// What the client is told.
pub(crate) async fn commit(_mds: &Arc<Mds>, _layout: &Layout) -> Result<(), nfsstat4> {
    Err(nfsstat4::NFS4ERR_NOTSUPP)
}

/// Tells the data servers of a sparse file its new logical size. Best effort: who does not hear asks.
pub(crate) async fn push_size(_mds: &Arc<Mds>, _layout: &Layout, _size: u64) {}

/// Truncates every data file of `layout` so that no byte at or above `size` stays.
///
/// # Errors
/// DELAY when a data server cannot be reached.
pub(crate) async fn truncate(_mds: &Arc<Mds>, _layout: &Layout, _size: u64) -> Result<(), nfsstat4> {
    Err(nfsstat4::NFS4ERR_DELAY)
}
