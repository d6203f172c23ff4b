//! Orders that make one data file equal to another, at two data servers that speak to each other.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use sluice_namespace::stable_storage::{Fence, PendingFence};
use sluice_namespace::{DataFile, DataFileId, Layout};
use sluice_xdr::control::*;

use super::orders::{self, Fenced, call, wire};
use super::transfer::{host, peer};
use crate::server::Mds;

/// A data server may have to read and write a whole piece on a slow device.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nanoseconds since it was heard of last, after which a data server that is away carries out no order any more that it
/// was told before, and none that moves data (docs/control-protocol.md).
pub(crate) const GIVEN_UP: u64 = 20_000_000_000;
pub(crate) const MOVING_GIVEN_UP: u64 = 70_000_000_000;
/// For orders before it to end, until one that does not answer is asked again.
const TURN: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(1);

/// Why a range was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCopied {
    /// The data server that it was to go to is full.
    Full,
    /// One of the two is away, or something is wrong with the source.
    Failed,
}

/// Why it is not known what is there of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotRead {
    /// The device cannot read it.
    Unreadable,
    /// Its data server is away, or cannot look now.
    Failed,
}

/// Why the end of a data file was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSet {
    /// One of its name was removed there, and none comes into being any more.
    Removed,
    /// Its data server is away, or something is wrong with it.
    Failed,
}

/// What is there of a data file; `None` when its data server does not say.
pub(crate) async fn stat(mds: &Mds, id: DataFileId, file: &DataFile) -> Option<ctl_stat> {
    let store = mds.data_servers.get(file.store)?;
    match call(&store, DS_STAT, &DS_STAT_args { files: vec![wire(id, file)] }, PATIENCE).await? {
        DS_STAT_res::CTL_OK(stats) => stats.first().copied(),
        DS_STAT_res::Default(_) => None,
    }
}

/// How many bytes of a range are there, and their hash.
///
/// # Errors
/// What was in the way.
pub(crate) async fn checksum(
    mds: &Mds,
    id: DataFileId,
    file: &DataFile,
    offset: u64,
    length: u64,
) -> Result<DS_CHECKSUM_resok, NotRead> {
    let store = mds.data_servers.get(file.store).ok_or(NotRead::Failed)?;
    let args = DS_CHECKSUM_args { target: wire(id, file), offset, length };
    match call(&store, DS_CHECKSUM, &args, PATIENCE).await {
        Some(DS_CHECKSUM_res::CTL_OK(found)) => Ok(found),
        Some(DS_CHECKSUM_res::Default(ctl_status::CTL_ERR_IO)) => Err(NotRead::Unreadable),
        Some(DS_CHECKSUM_res::Default(_)) | None => Err(NotRead::Failed),
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
///
/// # Errors
/// What was in the way.
pub(crate) async fn copy(
    mds: &Mds,
    id: DataFileId,
    source: &DataFile,
    target: &DataFile,
    (offset, length): (u64, u64),
) -> Result<u64, NotCopied> {
    let to = mds.data_servers.get(target.store).ok_or(NotCopied::Failed)?;
    let from = peer(mds, id, source).ok_or(NotCopied::Failed)?;
    let args = DS_COPY_args {
        caller: mds.data_servers.caller(),
        target: wire(id, target),
        source: from.address,
        source_fh: from.fh,
        offset,
        length,
    };
    match call(&to, DS_COPY, &args, PATIENCE).await.ok_or(NotCopied::Failed)? {
        DS_COPY_res::CTL_OK(copied) => Ok(copied),
        DS_COPY_res::Default(status) => {
            tracing::debug!(data_server = to.id.0, from = source.store.0, ?status, "a copy failed");
            let full = status == ctl_status::CTL_ERR_NOSPC;
            Err(if full { NotCopied::Full } else { NotCopied::Failed })
        }
    }
}

/// Sets where a data file ends, and makes all of it durable; an absent one stays absent. When it is done, no
/// earlier order on the file is under way at that data server.
///
/// # Errors
/// What was in the way.
pub(crate) async fn set_end(
    mds: &Mds,
    id: DataFileId,
    file: &DataFile,
    size: u64,
    logical_size: u64,
) -> Result<(), NotSet> {
    let store = mds.data_servers.get(file.store).filter(|store| !store.is_removed()).ok_or(NotSet::Failed)?;
    let args =
        DS_TRUNCATE_args { caller: mds.data_servers.caller(), target: wire(id, file), size, logical_size };
    match call(&store, DS_TRUNCATE, &args, TURN).await {
        Some(ctl_status::CTL_OK) => {
            mds.data_servers.looks.freed();
            Ok(())
        }
        Some(ctl_status::CTL_ERR_STALE) => Err(NotSet::Removed),
        _ => Err(NotSet::Failed),
    }
}

/// When it is true, no earlier order on this data file is under way at its data server, also of those that were given
/// up.
pub(crate) async fn is_quiet(mds: &Mds, id: DataFileId, file: &DataFile) -> bool {
    let Some(store) = mds.data_servers.get(file.store) else { return false };
    let Some(address) = store.view().addresses.first().copied() else { return false };
    // To copy nothing waits for its turn like everything else.
    let args = DS_COPY_args {
        caller: mds.data_servers.caller(),
        target: wire(id, file),
        source: host(address),
        source_fh: Bytes::new(),
        offset: 0,
        length: 0,
    };
    match call(&store, DS_COPY, &args, TURN).await {
        Some(DS_COPY_res::CTL_OK(_)) => true,
        // It had its turn: one of the release before looks whether the source is there, or the data file was removed.
        Some(DS_COPY_res::Default(status)) => {
            matches!(status, ctl_status::CTL_ERR_IO | ctl_status::CTL_ERR_STALE)
        }
        None => false,
    }
}

/// Returns when no order is under way any more at the data files of a range, of those that were given up. Whoever holds
/// a ticket keeps it until then: what comes late would overwrite what others write afterwards. `given_up`: when one that
/// is away need not be waited for any more.
pub(crate) async fn quiet(mds: &Mds, layout: &Layout, bytes: Range<u64>, given_up: u64) {
    let touched = layout.components.iter().filter(|c| c.start < bytes.end && bytes.start < c.end);
    for column in touched.flat_map(|component| component.slots.chunks(usize::from(component.mirrors.max(1))))
    {
        let takes =
            |file: &DataFile| mds.data_servers.get(file.store).is_some_and(|store| store.takes_writes());
        for file in column.iter().filter(|file| !file.stale) {
            while !is_quiet(mds, layout.id, file).await {
                let Some(store) = mds.data_servers.get(file.store) else { break };
                // What is left behind is healed, and that waits for what is under way there.
                let left = store.given_up() && column.iter().any(|other| !other.stale && takes(other));
                let left = left || store.is_removed();
                // It gives up by itself what it was told before it went.
                let silent = mds.now().since(store.view().last_heard.max(mds.started));
                let over = store.connection().is_none() && silent > given_up;
                if left || over {
                    break;
                }
                mds.env.clock.sleep(AGAIN).await;
            }
        }
    }
}

/// Handles of this data file with older generations are dead when it is true.
pub(crate) async fn fence_generations(mds: &Mds, id: DataFileId, file: &DataFile, least: u16) -> bool {
    let Some(store) = mds.data_servers.get(file.store) else { return false };
    let fence = Fence::Generation { file: id, slot: file.slot, generation: least };
    let epoch = mds.data_servers.epoch();
    let fenced = orders::fence(mds, &store, &[PendingFence { store: file.store, id: 0, fence, epoch }]).await;
    fenced == Fenced::Durably
}
