//! The next data or the next hole of a file that may be over many data files.

use std::ops::Range;
use std::sync::Arc;

use sluice_namespace::{Component, DataFile, DataFileId, Layout};
use sluice_xdr::control::{
    DS_HOLE, DS_HOLE_args, DS_HOLE_res, DS_SEEK, DS_SEEK_args, DS_SEEK_res, ctl_status, ctl_units,
};
use sluice_xdr::nfs4::nfsstat4;
use tokio::task::JoinSet;

use super::allocate::{is_one, units};
use super::orders::{PATIENCE, Unknown, call, call_newer, is_lost, no_answer, to_store, wire};
use crate::server::Mds;

/// Stripe units are looked at in steps, each so many times as long as the one before, but the first two: a hole may be near.
const MORE: u64 = 8;

/// The next byte of data (or hole) at or after `offset` and before `size`; `None` when there is none.
///
/// # Errors
/// DELAY, IO.
pub(crate) async fn seek(
    mds: &Arc<Mds>,
    layout: &Layout,
    offset: u64,
    size: u64,
    data: bool,
) -> Result<Option<u64>, nfsstat4> {
    match data {
        true => seek_data(mds, layout, offset, size).await,
        false => seek_hole(mds, layout, offset, size).await,
    }
}

/// Every data file has holes where others have their stripe units, so that each is asked about its own: all at the same time,
/// and about few units at first.
async fn seek_hole(mds: &Arc<Mds>, layout: &Layout, offset: u64, size: u64) -> Result<Option<u64>, nfsstat4> {
    for component in layout.components.iter().filter(|c| c.start < size && offset < c.end) {
        let (mut from, end) = (offset.max(component.start), size.min(component.end));
        let mut most = 1;
        while from < end {
            let until = match component.width {
                0 | 1 => end,
                _ => {
                    let unit = component.stripe_unit.max(1);
                    (from / unit).saturating_add(most).saturating_mul(unit).min(end)
                }
            };
            if let Some(hole) = hole_within(mds, Whose::of(layout), component, from..until).await? {
                return Ok(Some(hole));
            }
            from = until;
            most = if most == 1 { 2 } else { most.saturating_mul(MORE) };
        }
    }
    Ok(None)
}

/// The first hole of these bytes. What a data file does not say is of no matter where the hole is before its first unit.
async fn hole_within(
    mds: &Arc<Mds>,
    of: Whose,
    component: &Component,
    bytes: Range<u64>,
) -> Result<Option<u64>, nfsstat4> {
    let mut asked = JoinSet::new();
    for (column, files) in (0..).zip(component.slots.chunks(usize::from(component.mirrors.max(1)))) {
        let units = units(component, column, &bytes);
        if units.offset >= units.end {
            continue;
        }
        let (mds, files) = (Arc::clone(mds), files.to_vec());
        asked.spawn(async move {
            let found = of_column(&mds, of, &files, What::HoleIn(units)).await;
            // There is nothing of the data file: it is a hole.
            (units.offset, found.map(|found| found.unwrap_or(Some(units.offset))))
        });
    }
    let answers = asked.join_all().await;
    let hole = answers.iter().filter_map(|(_, found)| found.ok().flatten()).min();
    let silent =
        |(first, found): &(u64, Result<_, _>)| found.err().filter(|_| hole.is_none_or(|hole| *first < hole));
    match answers.iter().filter_map(silent).next() {
        Some(status) => Err(status),
        None => Ok(hole),
    }
}

/// Bytes are at their own offsets in their data files: each column is asked once, however long a hole is, and none but the
/// first byte's where that is no hole.
async fn seek_data(mds: &Arc<Mds>, layout: &Layout, offset: u64, size: u64) -> Result<Option<u64>, nfsstat4> {
    for component in layout.components.iter().filter(|c| c.start < size && offset < c.end) {
        let (from, end) = (offset.max(component.start), size.min(component.end));
        let what = What::DataFrom(from);
        let own = component.column(from).ok_or(nfsstat4::NFS4ERR_SERVERFAULT)?;
        let mut first = of_column(mds, Whose::of(layout), own, what).await?.flatten();
        if first != Some(from) {
            let mut asked = JoinSet::new();
            for files in component.slots.chunks(usize::from(component.mirrors.max(1))).filter(|c| *c != own) {
                let (mds, of, files) = (Arc::clone(mds), Whose::of(layout), files.to_vec());
                asked.spawn(async move { of_column(&mds, of, &files, what).await });
            }
            for found in asked.join_all().await {
                first = first.into_iter().chain(found?.flatten()).min();
            }
        }
        if let Some(first) = first.filter(|first| *first < end) {
            return Ok(Some(first));
        }
    }
    Ok(None)
}

/// Whose data files are asked, and how.
#[derive(Clone, Copy, Debug)]
struct Whose {
    id: DataFileId,
    mirrors_dirty: bool,
}

impl Whose {
    fn of(layout: &Layout) -> Self {
        Self { id: layout.id, mirrors_dirty: layout.mirrors_dirty }
    }
}

/// What a column is asked for.
#[derive(Clone, Copy, Debug)]
enum What {
    DataFrom(u64),
    HoleIn(ctl_units),
}

/// Where it is, if anywhere, by the column's data file; `None` where there is nothing of that.
async fn of_column(
    mds: &Arc<Mds>,
    of: Whose,
    files: &[DataFile],
    what: What,
) -> Result<Option<Option<u64>>, nfsstat4> {
    // Any mirror does that is here, else the first; of mirrors that may differ only the first is the truth.
    let serves = |file: &&DataFile| mds.data_servers.get(file.store).is_some_and(|store| store.serves());
    let good = || {
        let most = if of.mirrors_dirty { 1 } else { usize::MAX };
        files.iter().filter(|file| !file.stale).take(most)
    };
    let mut last = Err(nfsstat4::NFS4ERR_SERVERFAULT);
    for file in good().filter(serves).chain(good().filter(|file| !serves(file)).take(1)) {
        last = match what {
            What::DataFrom(offset) => next_of(mds, of.id, file, offset, true).await.map(|at| at.map(Some)),
            What::HoleIn(units) => hole_of(mds, of.id, file, units).await,
        };
        // What it has none of may be lost there, and is no hole.
        if last == Ok(None) && file.materialised && is_lost(mds, of.id, file).await? {
            last = Err(nfsstat4::NFS4ERR_IO);
        }
        if last != Err(nfsstat4::NFS4ERR_IO) {
            break;
        }
    }
    last
}

/// The next byte of data (or hole) of one data file; `None` when there is none before the end of that.
async fn next_of(
    mds: &Arc<Mds>,
    id: DataFileId,
    file: &DataFile,
    offset: u64,
    data: bool,
) -> Result<Option<u64>, nfsstat4> {
    let store = to_store(mds, file.store)?;
    let args = DS_SEEK_args { target: wire(id, file), offset, data };
    match call(&store, DS_SEEK, &args, PATIENCE).await {
        Some(DS_SEEK_res::CTL_OK(found)) => Ok(found.found.then_some(found.offset)),
        // A data file never written is a hole.
        Some(DS_SEEK_res::Default(ctl_status::CTL_ERR_NOENT)) => Ok(None),
        Some(DS_SEEK_res::Default(ctl_status::CTL_ERR_IO)) => Err(nfsstat4::NFS4ERR_IO),
        _ => Err(no_answer(mds, store.id)),
    }
}

/// The first hole in these units of a data file; `None`: there is nothing behind the first of them, or of the data file.
async fn hole_of(
    mds: &Arc<Mds>,
    id: DataFileId,
    file: &DataFile,
    units: ctl_units,
) -> Result<Option<Option<u64>>, nfsstat4> {
    let store = to_store(mds, file.store)?;
    let mut rest = units;
    while !is_one(rest) {
        let args = DS_HOLE_args { target: wire(id, file), units: rest };
        match call_newer(&store, DS_HOLE, &args, PATIENCE).await {
            Ok(Some(DS_HOLE_res::CTL_OK(answer))) if answer.found => return Ok(Some(Some(answer.offset))),
            Ok(Some(DS_HOLE_res::CTL_OK(answer))) if answer.offset > rest.offset => {
                rest.offset = answer.offset
            }
            Ok(Some(DS_HOLE_res::Default(ctl_status::CTL_ERR_NOENT))) => return Ok(None),
            Ok(Some(DS_HOLE_res::Default(ctl_status::CTL_ERR_IO))) => return Err(nfsstat4::NFS4ERR_IO),
            Ok(_) => return Err(no_answer(mds, store.id)),
            Err(Unknown) => break,
        }
    }
    // One range, or a release that is asked for each.
    for piece in rest.pieces() {
        let Some(hole) = next_of(mds, id, file, piece.start, false).await? else {
            return Ok((piece.start > units.offset).then_some(Some(piece.start)));
        };
        if hole < piece.end {
            return Ok(Some(Some(hole)));
        }
    }
    Ok(Some(None))
}
