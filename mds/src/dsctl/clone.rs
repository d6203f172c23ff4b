//! Orders that make data files which share what others of the same data server hold.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{DataFile, DataFileId};
use sluice_rpc::CallError;
use sluice_xdr::control::*;
use sluice_xdr::nfs4::nfsstat4;

use super::orders::{call_over, wire};
use crate::metrics;
use crate::server::Mds;

/// Nothing is moved, but a file in very many pieces takes its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A data file and the set that it belongs to.
pub(crate) type Named = (DataFileId, DataFile);

/// A data file to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) target: Named,
    pub(crate) offset: u64,
    /// What it is outside of the range, up to an end.
    pub(crate) base: Option<(Named, u64)>,
    pub(crate) source: Named,
    pub(crate) source_offset: u64,
    pub(crate) length: u64,
}

/// Makes one, durably.
///
/// # Errors
/// NOTSUPP when the data server cannot; what else the client is told.
pub(crate) async fn clone(mds: &Arc<Mds>, piece: &Piece) -> Result<(), nfsstat4> {
    let at = mds.data_servers.get(piece.target.1.store).ok_or(nfsstat4::NFS4ERR_DELAY)?;
    let connection = at.connection().ok_or(nfsstat4::NFS4ERR_DELAY)?;
    let args = DS_CLONE_args {
        caller: mds.data_servers.caller(),
        target: wire(piece.target.0, &piece.target.1),
        offset: piece.offset,
        base: piece.base.iter().map(|(file, end)| ctl_clone_base { file: own(file), end: *end }).collect(),
        source: own(&piece.source),
        source_offset: piece.source_offset,
        length: piece.length,
    };
    metrics::add(&at.orders, 1);
    match call_over(&connection, DS_CLONE, &args, PATIENCE).await {
        Ok(ctl_status::CTL_OK) => Ok(()),
        // A data server of before there was such an order.
        Ok(ctl_status::CTL_ERR_NOTSUPP) | Err(CallError::ProcUnavail) => Err(nfsstat4::NFS4ERR_NOTSUPP),
        Ok(ctl_status::CTL_ERR_NOSPC) => Err(nfsstat4::NFS4ERR_NOSPC),
        Ok(ctl_status::CTL_ERR_IO | ctl_status::CTL_ERR_NOENT) => Err(nfsstat4::NFS4ERR_IO),
        // It has no files that long.
        Ok(ctl_status::CTL_ERR_INVAL) => Err(nfsstat4::NFS4ERR_FBIG),
        Ok(_) => Err(nfsstat4::NFS4ERR_DELAY),
        Err(error) => {
            tracing::debug!(data_server = at.id.0, %error, "an order to clone failed");
            Err(nfsstat4::NFS4ERR_DELAY)
        }
    }
}

fn own((id, file): &Named) -> ctl_own_file {
    ctl_own_file { file: wire(*id, file), must_exist: file.materialised }
}
