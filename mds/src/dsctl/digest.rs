//! DIGEST: what a data server has of a range, unit by unit.

use std::time::Duration;

use sluice_namespace::{DataFile, DataFileId};
use sluice_rpc::CallError;
use sluice_xdr::control::*;

use super::orders::{call_over, wire};
use crate::metrics;
use crate::server::Mds;

/// A data server reads the range while clients come first, and others may wait there before us.
const PATIENCE: Duration = Duration::from_secs(120);

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undigested {
    /// The data server does not answer.
    Away,
    /// It is of a release that does not know how.
    Unknown,
    /// It cannot read the range.
    Unreadable,
}

/// A range, in units of `unit` bytes.
///
/// # Errors
/// Why not.
pub(crate) async fn digest(
    mds: &Mds,
    id: DataFileId,
    file: &DataFile,
    (offset, length): (u64, u64),
    unit: u32,
) -> Result<DS_DIGEST_resok, Undigested> {
    let store = mds.data_servers.get(file.store).ok_or(Undigested::Away)?;
    let connection = store.connection().filter(|_| store.serves()).ok_or(Undigested::Away)?;
    metrics::add(&store.orders, 1);
    let args = DS_DIGEST_args { target: wire(id, file), offset, length, unit };
    match call_over(&connection, DS_DIGEST, &args, PATIENCE).await {
        Ok(DS_DIGEST_res::CTL_OK(found)) => {
            let whole = u64::try_from(found.units.len()) == Ok(length.div_ceil(u64::from(unit.max(1))));
            if whole { Ok(found) } else { Err(Undigested::Unreadable) }
        }
        Ok(DS_DIGEST_res::Default(ctl_status::CTL_ERR_IO)) => Err(Undigested::Unreadable),
        Err(CallError::ProcUnavail) => Err(Undigested::Unknown),
        Ok(DS_DIGEST_res::Default(_)) | Err(_) => Err(Undigested::Away),
    }
}
