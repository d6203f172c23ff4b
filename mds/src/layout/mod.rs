//! Where file data is and how clients are told.

pub(crate) mod garbage;
pub(crate) mod settle;

use std::sync::Arc;

use sluice_namespace::{Layout, LayoutPolicy};
use sluice_xdr::nfs4::nfsstat4;

use crate::server::Mds;

/// Chooses data servers for a new file under `policy` and names its data files. No round trip.
///
/// # Errors
/// NOSPC when every data server is full, DELAY when none is registered yet.
pub(crate) async fn place(_mds: &Arc<Mds>, _policy: &LayoutPolicy) -> Result<Layout, nfsstat4> {
    Err(nfsstat4::NFS4ERR_DELAY)
}

/// The same placement with fresh data files, for a truncation to zero.
///
/// # Errors
/// What the store says when names run out.
pub(crate) async fn fresh(_mds: &Arc<Mds>, _old: &Layout) -> Result<Layout, nfsstat4> {
    Err(nfsstat4::NFS4ERR_DELAY)
}
