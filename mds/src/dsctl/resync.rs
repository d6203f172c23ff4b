//! Orders that make one data file equal to another, at two data servers that speak to each other.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::stable_storage::{Fence, PendingFence};
use sluice_namespace::{DataFile, DataFileId};
use sluice_xdr::control::*;

use super::orders::{self, Fenced, call, wire};
use super::transfer::peer;
use crate::server::Mds;

/// A data server may have to read and write a whole piece on a slow device.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is there of a data file; `None` when its data server does not say.
pub(crate) async fn stat(mds: &Mds, id: DataFileId, file: &DataFile) -> Option<ctl_stat> {
    let store = mds.data_servers.get(file.store)?;
    match call(&store, DS_STAT, &DS_STAT_args { files: vec![wire(id, file)] }, PATIENCE).await? {
        DS_STAT_res::CTL_OK(stats) => stats.first().copied(),
        DS_STAT_res::Default(_) => None,
    }
}

/// How many bytes of a range are there, and their hash.
pub(crate) async fn checksum(
    mds: &Mds,
    id: DataFileId,
    file: &DataFile,
    offset: u64,
    length: u64,
) -> Option<DS_CHECKSUM_resok> {
    let store = mds.data_servers.get(file.store)?;
    let args = DS_CHECKSUM_args { target: wire(id, file), offset, length };
    match call(&store, DS_CHECKSUM, &args, PATIENCE).await? {
        DS_CHECKSUM_res::CTL_OK(found) => Some(found),
        DS_CHECKSUM_res::Default(_) => None,
    }
}

/// Where the next data is, at or after `offset`: `Some(None)` when there is no more.
pub(crate) async fn next_data(
    mds: &Mds,
    id: DataFileId,
    file: &DataFile,
    offset: u64,
) -> Option<Option<u64>> {
    let store = mds.data_servers.get(file.store)?;
    let args = DS_SEEK_args { target: wire(id, file), offset, data: true };
    match call(&store, DS_SEEK, &args, PATIENCE).await? {
        DS_SEEK_res::CTL_OK(found) => Some(found.found.then_some(found.offset)),
        DS_SEEK_res::Default(ctl_status::CTL_ERR_NOENT) => Some(None),
        DS_SEEK_res::Default(_) => None,
    }
}

/// Has the data server of `target` read a range at that of `source`, write it and make it durable; how many
/// bytes that were.
pub(crate) async fn copy(
    mds: &Mds,
    id: DataFileId,
    source: &DataFile,
    target: &DataFile,
    (offset, length): (u64, u64),
) -> Option<u64> {
    let (to, from) = (mds.data_servers.get(target.store)?, peer(mds, id, source)?);
    let args = DS_COPY_args {
        caller: mds.data_servers.caller(),
        target: wire(id, target),
        source: from.address,
        source_fh: from.fh,
        offset,
        length,
    };
    match call(&to, DS_COPY, &args, PATIENCE).await? {
        DS_COPY_res::CTL_OK(copied) => Some(copied),
        DS_COPY_res::Default(status) => {
            tracing::debug!(data_server = to.id.0, from = source.store.0, ?status, "a copy failed");
            None
        }
    }
}

/// Sets where a data file ends, and makes all of it durable; an absent one stays absent. When it is done, no
/// earlier order on the file is under way at that data server.
pub(crate) async fn set_end(mds: &Arc<Mds>, id: DataFileId, file: &DataFile, end: u64, size: u64) -> bool {
    orders::truncate_one(mds, id, file, end, size).await.is_ok()
}

/// Handles of this data file with older generations are dead when it is true.
pub(crate) async fn fence_generations(mds: &Mds, id: DataFileId, file: &DataFile, least: u16) -> bool {
    let Some(store) = mds.data_servers.get(file.store) else { return false };
    let fence = Fence::Generation { file: id, slot: file.slot, generation: least };
    let epoch = mds.data_servers.epochs().current;
    let fenced = orders::fence(mds, &store, &[PendingFence { store: file.store, id: 0, fence, epoch }]).await;
    fenced == Fenced::Durably
}
