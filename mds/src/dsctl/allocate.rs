//! Space that is set aside for a range of a file: at data servers that have room for all of it. Where one refuses all the
//! same, what others have set aside behind the end of the file is given back. Space that is freed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_namespace::{Component, DataFile, DataFileId, Layout, StoreId};
use sluice_xdr::control::{
    DS_ALLOCATE, DS_ALLOCATE_args, DS_ALLOCATE_res, DS_SPACE, DS_SPACE_args, ctl_space_operation, ctl_stat,
    ctl_status, ctl_units,
};
use sluice_xdr::nfs4::nfsstat4;
use tokio::task::JoinSet;

use super::orders::Unknown;
use super::{capacity, orders, resync};
use crate::server::Mds;

/// Data files that are asked at the same time at most.
const AT_ONCE: usize = 32;

/// What one data file is to hold of a range.
#[derive(Clone, Copy, Debug)]
struct Part {
    file: DataFile,
    /// How many hold the same.
    mirrors: usize,
    /// What lies between them is other columns', and is to stay a hole.
    units: ctl_units,
    /// In all pieces.
    bytes: u64,
}

/// The stripe units of a range that are in one column.
pub(super) fn units(component: &Component, column: u64, bytes: &Range<u64>) -> ctl_units {
    let (from, end) = (bytes.start.max(component.start), bytes.end.min(component.end));
    if component.width <= 1 {
        return ctl_units { offset: from, end, unit: u64::MAX, apart: 0 };
    }
    let (unit, width) = (component.stripe_unit.max(1), u64::from(component.width));
    let ahead = (column + width - from / unit % width) % width;
    let begins = (from / unit).saturating_add(ahead).saturating_mul(unit);
    ctl_units { offset: begins.max(from), end, unit, apart: unit.saturating_mul(width - 1) }
}

/// There is no more of it than one range, which any release knows to ask for.
pub(super) fn is_one(units: ctl_units) -> bool {
    units.pieces().nth(1).is_none()
}

fn parts(layout: &Layout, bytes: &Range<u64>) -> Vec<Part> {
    let mut parts = Vec::new();
    for component in layout.components.iter().filter(|c| c.start < bytes.end && bytes.start < c.end) {
        let columns = component.slots.chunks(usize::from(component.mirrors.max(1))).enumerate();
        for ((index, column), number) in columns.zip(0..) {
            let until = |end| component.bytes_of_column(index, end);
            let held = until(bytes.end).saturating_sub(until(bytes.start));
            let good = || column.iter().filter(|file| !file.stale);
            let (mirrors, units) = (good().count(), units(component, number, bytes));
            if held > 0 {
                parts.extend(good().map(|file| Part { file: *file, mirrors, units, bytes: held }));
            }
        }
    }
    parts
}

/// Space that there is room for, and what is there of the data files before any of it is set aside.
#[derive(Debug)]
pub(crate) struct Plan {
    id: DataFileId,
    parts: Vec<(Part, ctl_stat)>,
}

impl Plan {
    /// Looks at all data files of a range, each once.
    ///
    /// # Errors
    /// NOSPC where a data server has no room for what it is to hold. What was there once and is lost: IO, or DELAY when
    /// another mirror may have it. DELAY where one does not say.
    pub(crate) async fn of(mds: &Arc<Mds>, layout: &Layout, bytes: &Range<u64>) -> Result<Self, nfsstat4> {
        let id = layout.id;
        let look = |part: Part| {
            let mds = Arc::clone(mds);
            async move {
                let there = orders::as_it_is(&mds, id, &part.file, part.mirrors).await?;
                Ok((part, there))
            }
        };
        let plan = Self { id, parts: side_by_side(parts(layout, bytes), look).await? };
        if !plan.fits(mds) {
            // There may be more than the last heartbeats said.
            capacity::look(mds).await;
            if !plan.fits(mds) {
                return Err(nfsstat4::NFS4ERR_NOSPC);
            }
        }
        Ok(plan)
    }

    /// What a data file has counts as if all of it were in the range: nothing is refused that there may be room for.
    fn fits(&self, mds: &Mds) -> bool {
        let mut lacking: BTreeMap<StoreId, u64> = BTreeMap::new();
        for (part, there) in &self.parts {
            let more = part.bytes.saturating_sub(there.allocated_bytes);
            let sum = lacking.entry(part.file.store).or_default();
            *sum = sum.saturating_add(more);
        }
        lacking.into_iter().all(|(store, bytes)| {
            let capacity = mds.data_servers.get(store).map(|store| store.update(|view| view.capacity));
            capacity.is_none_or(|capacity| capacity.total_bytes == 0 || bytes <= capacity.free_bytes)
        })
    }

    /// Sets it aside, at all data files side by side.
    ///
    /// # Errors
    /// NOSPC, NOTSUPP, IO, FBIG, DELAY: some of it may be set aside.
    pub(crate) async fn carry_out(&self, mds: &Arc<Mds>) -> Result<(), nfsstat4> {
        let (id, failed) = (self.id, Arc::new(AtomicBool::new(false)));
        let set_aside = |(part, _): (Part, ctl_stat)| {
            let (mds, failed) = (Arc::clone(mds), Arc::clone(&failed));
            async move {
                let done = set_aside(&mds, id, &part, &failed).await;
                done.inspect_err(|_| failed.store(true, Ordering::Relaxed))
            }
        };
        side_by_side(self.parts.clone(), set_aside).await.map(drop)
    }

    /// Gives back what was set aside behind `size`, while nobody writes. Where somebody has since it was looked at, it
    /// stays: how far that reaches.
    pub(crate) async fn take_back(&self, mds: &Arc<Mds>, size: u64) -> Option<u64> {
        let id = self.id;
        let give_back = |(part, before): (Part, ctl_stat)| {
            let mds = Arc::clone(mds);
            async move { Ok(give_back(&mds, (id, &part.file), &before, size).await) }
        };
        let written = side_by_side(self.parts.clone(), give_back).await;
        written.unwrap_or_default().into_iter().flatten().max()
    }
}

/// At one data file, until it `failed` at another: with as few orders as it takes of those that each end in a moment, or with
/// one for each unit where a release before is asked.
async fn set_aside(mds: &Arc<Mds>, id: DataFileId, part: &Part, failed: &AtomicBool) -> Result<(), nfsstat4> {
    let goes_on = || !failed.load(Ordering::Relaxed);
    let mut rest = part.units;
    while !is_one(rest) && goes_on() {
        match some_of(mds, id, part, rest).await? {
            Ok(next) if next > rest.offset => rest.offset = next,
            Ok(_) => return Err(nfsstat4::NFS4ERR_SERVERFAULT),
            Err(Unknown) => break,
        }
    }
    let operation = ctl_space_operation::SPACE_ALLOCATE;
    for piece in rest.pieces().take_while(|_| goes_on()) {
        space_of(mds, id, (&part.file, part.mirrors), operation, piece).await?;
    }
    Ok(())
}

/// Of these units so many as one order sets aside: where the next begins.
async fn some_of(
    mds: &Arc<Mds>,
    id: DataFileId,
    part: &Part,
    units: ctl_units,
) -> Result<Result<u64, Unknown>, nfsstat4> {
    let Part { file, mirrors, .. } = part;
    let store = orders::to_store(mds, file.store)?;
    let args = DS_ALLOCATE_args { caller: mds.data_servers.caller(), target: orders::wire(id, file), units };
    let (next, status) = match orders::call_newer(&store, DS_ALLOCATE, &args, orders::PATIENCE).await {
        Ok(Some(DS_ALLOCATE_res::CTL_OK(next))) => (next, Some(ctl_status::CTL_OK)),
        Ok(Some(DS_ALLOCATE_res::Default(status))) => (0, Some(status)),
        Ok(None) => (0, None),
        Err(unknown) => return Ok(Err(unknown)),
    };
    let done = orders::carried_out(mds, store.id, status);
    refused(mds, id, (file, *mirrors), done).map(|()| Ok(next))
}

/// Frees the storage of a range. Bytes are at their own offsets in their data files, and those of others are holes there:
/// each that has some of them is asked once, however long the range is.
///
/// # Errors
/// NOTSUPP, IO, DELAY.
pub(crate) async fn deallocate(mds: &Arc<Mds>, layout: &Layout, bytes: &Range<u64>) -> Result<(), nfsstat4> {
    let mut all = Vec::new();
    for component in layout.components.iter().filter(|c| c.start < bytes.end && bytes.start < c.end) {
        let range = bytes.start.max(component.start)..bytes.end.min(component.end);
        for column in component.columns_of(&range) {
            let good = || column.iter().filter(|file| !file.stale);
            let mirrors = good().count();
            all.extend(good().map(|file| (*file, mirrors, range.clone())));
        }
    }
    let id = layout.id;
    let free = |(file, mirrors, range): (DataFile, usize, Range<u64>)| {
        let mds = Arc::clone(mds);
        async move {
            let operation = ctl_space_operation::SPACE_DEALLOCATE;
            space_of(&mds, id, (&file, mirrors), operation, range).await
        }
    };
    side_by_side(all, free).await.map(drop)
}

/// Orders it of one data file; so many `mirrors` hold the same.
async fn space_of(
    mds: &Arc<Mds>,
    id: DataFileId,
    (file, mirrors): (&DataFile, usize),
    operation: ctl_space_operation,
    bytes: Range<u64>,
) -> Result<(), nfsstat4> {
    let (caller, target) = (mds.data_servers.caller(), orders::wire(id, file));
    let (offset, length) = (bytes.start, bytes.end - bytes.start);
    let args = DS_SPACE_args { caller, operation, target, offset, length };
    let done = orders::order(mds, file.store, DS_SPACE, &args).await;
    refused(mds, id, (file, mirrors), done)
}

/// What a mirror's device refuses is remembered, as with a WRITE through this server: others are changed without it.
fn refused(
    mds: &Mds,
    id: DataFileId,
    (file, mirrors): (&DataFile, usize),
    done: Result<(), nfsstat4>,
) -> Result<(), nfsstat4> {
    if done == Err(nfsstat4::NFS4ERR_IO)
        && mirrors > 1
        && let Some(store) = mds.data_servers.get(file.store)
    {
        store.refused(id, file.slot, mds.now());
    }
    done
}

/// Gives back what one data file has.
async fn give_back(
    mds: &Mds,
    (id, file): (DataFileId, &DataFile),
    before: &ctl_stat,
    size: u64,
) -> Option<u64> {
    let is_here = mds.data_servers.get(file.store).is_some_and(|store| store.takes_writes());
    let now = if is_here { resync::stat(mds, id, file).await } else { None };
    match now {
        Some(now) if now.size <= size => {}
        Some(now) if now.last_write > before.writes => return Some(now.size),
        Some(_) if resync::set_end(mds, id, file, size, size).await.is_ok() => {}
        _ => tracing::warn!(
            data_server = file.store.0,
            file = id.0,
            "space that was set aside behind the end of a file may still be there"
        ),
    }
    None
}

/// Some at a time; after the first that fails none begins, and those under way are waited for.
async fn side_by_side<T, R: Send + 'static, F>(all: Vec<T>, act: impl Fn(T) -> F) -> Result<Vec<R>, nfsstat4>
where
    F: Future<Output = Result<R, nfsstat4>> + Send + 'static,
{
    let (mut waiting, mut under_way) = (all.into_iter(), JoinSet::new());
    waiting.by_ref().take(AT_ONCE).for_each(|one| drop(under_way.spawn(act(one))));
    let mut outcome = Ok(Vec::new());
    while let Some(done) = under_way.join_next().await {
        let done = done.unwrap_or(Err(nfsstat4::NFS4ERR_SERVERFAULT));
        outcome = outcome.and_then(|mut all| {
            all.push(done?);
            Ok(all)
        });
        if outcome.is_ok()
            && let Some(one) = waiting.next()
        {
            under_way.spawn(act(one));
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_all_columns_are_those_of_the_range() {
        let slot = |slot: u16| DataFile { slot, store: StoreId(slot), ..DataFile::default() };
        let component = |start, end, stripe_unit, width: u16, mirrors: u16, first: u16| Component {
            start,
            end,
            stripe_unit,
            width,
            mirrors,
            handed_out: true,
            slots: (first..first + width * mirrors).map(slot).collect(),
        };
        let components = vec![component(0, 100, 10, 1, 2, 0), component(100, u64::MAX, 10, 3, 2, 2)];
        let layout = Layout { id: DataFileId(1), components, mirrors_dirty: false };
        for (from, end) in [(0, 1), (5, 95), (99, 101), (100, 110), (113, 119), (127, 333), (119, 121)] {
            let mut expected = BTreeMap::<u16, Vec<Range<u64>>>::new();
            for (at, length, files) in orders::pieces(&layout, from, end - from) {
                files.iter().for_each(|file| expected.entry(file.slot).or_default().push(at..at + length));
            }
            let mut found = BTreeMap::new();
            for part in parts(&layout, &(from..end)) {
                let pieces: Vec<_> = part.units.pieces().collect();
                assert_eq!(is_one(part.units), pieces.len() == 1);
                assert_eq!(part.bytes, pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>());
                assert_eq!((part.mirrors, found.insert(part.file.slot, pieces)), (2, None));
            }
            assert_eq!(found, expected, "{from} {end}");
        }
        let last = parts(&layout, &((i64::MAX as u64 - 25)..i64::MAX as u64));
        assert_eq!(last.iter().map(|part| part.bytes).sum::<u64>(), 2 * 25);
        assert_eq!(
            last.iter()
                .flat_map(|part| part.units.pieces())
                .map(|piece| piece.end - piece.start)
                .sum::<u64>(),
            50
        );
    }
}
