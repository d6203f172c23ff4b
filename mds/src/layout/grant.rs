//! What a LAYOUTGET answers, once the state allows it: the segment, its data servers, their handles.

use std::sync::Arc;

use bytes::Bytes;
use sluice_namespace::stable_storage::Protection;
use sluice_namespace::{DataFile, FileId, Inode, Layout};
use sluice_state::ClientId;
use sluice_xdr::Capability;

use super::device;
use super::flexfiles::{self, Holder, Mirrors, Named, Segment};
use super::reason::Reason;
use super::reports::Subject;
use crate::dsctl::{StoreHandle, holder, rights, wanted};
use crate::server::Mds;

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) client: ClientId,
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    pub(crate) write: bool,
    /// The client takes striped layouts.
    pub(crate) stripes: bool,
    pub(crate) way: Way,
}

/// How data would go between a client and data servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Of its connections to them.
    pub(crate) wants: Protection,
    /// It speaks in clear with them all the same.
    pub(crate) in_clear: bool,
}

/// One layout of flexible files.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) offset: u64,
    /// 2^64-1: without end.
    pub(crate) length: u64,
    pub(crate) body: Bytes,
}

/// The layout that holds the offset asked for.
///
/// # Errors
/// Why there is none.
pub(crate) fn grant(mds: &Arc<Mds>, inode: &Inode, ask: &Ask) -> Result<Granted, Reason> {
    let layout = inode.layout().ok_or(Reason::NoPlace)?;
    let segment = flexfiles::segment(layout, ask.offset, ask.stripes).ok_or(Reason::NoPlace)?;
    let mirrors = choose(mds, layout, &segment, ask)?;
    for file in mirrors.iter().flatten() {
        mds.reports.handed_out(mds.now(), ask.client, Subject::Store(file.store));
        mds.reports.handed_out(mds.now(), ask.client, Subject::Data(file.store, ask.file));
    }
    mds.reports.handed_out(mds.now(), ask.client, Subject::File(ask.file));
    mds.reports.handed_out(mds.now(), ask.client, Subject::Length(ask.file));
    let holder = Holder { tag: holder(ask.client), write: ask.write };
    let body =
        flexfiles::body(layout, segment.stripe_unit, &mirrors, holder, |file| name(mds, layout, file, ask));
    let end = segment.bytes.end;
    Ok(Granted {
        offset: segment.bytes.start,
        length: if end == u64::MAX { u64::MAX } else { end - segment.bytes.start },
        // A data server went just now.
        body: body.ok_or_else(|| away(mds, &segment))?,
    })
}

/// What [`grant`] would say now, wherever in the file `ask` is; nothing follows from it.
///
/// # Errors
/// Why there would be no layout.
pub(crate) fn explain(mds: &Mds, inode: &Inode, ask: &Ask) -> Result<(), Reason> {
    if !mds.config.layouts {
        return Err(Reason::Off);
    }
    // To be written to where it is now; a layout to write with would give it data files.
    if inode.inline().is_some() {
        return Err(Reason::Inline);
    }
    if ask.write && mds.heals.is_busy(ask.file) {
        return Err(Reason::Healing);
    }
    if let Some(reason) = barred(mds, ask.way) {
        return Err(reason);
    }
    let Some(layout) = inode.layout() else {
        // Placed when it is first asked for.
        return if super::candidates(mds).list.is_empty() { Err(Reason::NoPlace) } else { Ok(()) };
    };
    let mut offset = Some(0);
    while let Some(at) = offset {
        let segment = flexfiles::segment(layout, at, ask.stripes).ok_or(Reason::NoPlace)?;
        choose(mds, layout, &segment, ask)?;
        offset = next_columns(layout, at, segment.bytes.end);
    }
    Ok(())
}

/// Where the segment behind the one that ends at `end` and begins at `at` begins, if it has other data servers than
/// those before.
fn next_columns(layout: &Layout, at: u64, end: u64) -> Option<u64> {
    let component = layout.component(at)?;
    let round = component.stripe_unit.saturating_mul(component.width.into());
    let next = if end - component.start >= round { component.end } else { end };
    Some(next).filter(|next| *next != u64::MAX)
}

fn choose(mds: &Mds, layout: &Layout, segment: &Segment<'_>, ask: &Ask) -> Result<Mirrors, Reason> {
    let now = mds.now();
    if mds.reports.finding(now, ask.client, Subject::File(ask.file)).failed {
        return Err(Reason::HandlesRefused);
    }
    let used = || segment.data_files().filter(|file| !file.stale);
    let in_clear = || {
        let file = used().find(|file| serves(mds, file) && !protects(mds, file, ask.way.wants));
        file.map(|file| Reason::InClear(file.store))
    };
    let failed = || {
        let failed = |subject| mds.reports.finding(now, ask.client, subject).failed;
        used().map(|file| file.store).find_map(|store| {
            let unreachable = failed(Subject::Store(store)).then_some(Reason::Unreachable(store));
            unreachable.or_else(|| failed(Subject::Data(store, ask.file)).then_some(Reason::DataFile(store)))
        })
    };
    if !ask.write {
        return readable(mds, layout, segment, ask)
            .ok_or_else(|| in_clear().or_else(failed).unwrap_or_else(|| away(mds, segment)));
    }
    if let Some(reason) = in_clear() {
        return Err(reason);
    }
    if mds.reports.finding(now, ask.client, Subject::Length(ask.file)).failed {
        return Err(Reason::TooLong);
    }
    if layout.mirrors_dirty {
        // Mirrors that may differ are not written apart: this server writes all of them, if it takes long.
        return Err(Reason::Healing);
    }
    if segment.mixes_mirrors(|file| !file.stale) {
        return Err(Reason::Segments);
    }
    let room = |file: &DataFile| Subject::Room(file.store, ask.file);
    if let Some(full) = used().find(|file| mds.reports.finding(now, ask.client, room(file)).full) {
        return Err(Reason::Full(full.store));
    }
    if let Some(failed) = failed() {
        // One client's word does not make a mirror stale: this server writes all of them.
        return Err(failed);
    }
    // All of them: one that has gone since it was looked at (`ready.rs`) would miss what is written, and nobody would know.
    match used().find(|file| !writable(mds, file)) {
        Some(file) if serves(mds, file) => Err(Reason::ReadOnly(file.store)),
        Some(file) => Err(Reason::Away(file.store)),
        None => segment.mirrors(|file| !file.stale, usize::MAX).ok_or_else(|| away(mds, segment)),
    }
}

/// Some data server of the segment does not serve.
fn away(mds: &Mds, segment: &Segment<'_>) -> Reason {
    let silent = segment.data_files().find(|file| !serves(mds, file));
    // It may be back already.
    silent.or(segment.data_files().next()).map_or(Reason::NoPlace, |file| Reason::Away(file.store))
}

/// Mirrors to read; those that the client has found wanting are left out while there are others.
fn readable(mds: &Mds, layout: &Layout, segment: &Segment<'_>, ask: &Ask) -> Option<Mirrors> {
    let now = mds.now();
    let finding = |file: &DataFile| mds.reports.there(now, ask.client, file.store, ask.file);
    let usable = |file: &DataFile| !file.stale && serves(mds, file) && protects(mds, file, ask.way.wants);
    let good = |file: &DataFile| usable(file) && !finding(file).failed;
    if layout.mirrors_dirty {
        // Mirrors that may differ are read in one way, the same for all, until they are equal again.
        let first = segment.mirrors(|file| !file.stale, 1)?;
        return first.iter().flatten().all(good).then_some(first);
    }
    let best = |file: &DataFile| good(file) && !finding(file).suspect;
    segment.mirrors(best, usize::MAX).or_else(|| segment.mirrors(good, usize::MAX))
}

fn serves(mds: &Mds, file: &DataFile) -> bool {
    mds.data_servers.get(file.store).is_some_and(|store| store.serves())
}

/// Why there would be no layout of any file, for what is wanted of connections: data servers would refuse what is in clear, but only
/// when they have it; or there is none that would.
pub(crate) fn barred(mds: &Mds, way: Way) -> Option<Reason> {
    if way.wants == Protection::None {
        return None;
    }
    if way.in_clear {
        return Some(Reason::ClientInClear);
    }
    let mut serving = mds.data_servers.all();
    serving.retain(|store| store.serves());
    let holds = |store: &Arc<StoreHandle>| store.update(|view| view.protection) >= way.wants;
    serving.first().filter(|_| !serving.iter().any(holds)).map(|store| Reason::InClear(store.id))
}

/// Whether a data server refuses who is not as protected as that.
fn protects(mds: &Mds, file: &DataFile, wants: Protection) -> bool {
    let holds = |store: Arc<StoreHandle>| store.update(|view| view.protection) >= wants;
    wants == Protection::None || mds.data_servers.get(file.store).is_some_and(holds)
}

fn writable(mds: &Mds, file: &DataFile) -> bool {
    mds.data_servers.get(file.store).is_some_and(|store| store.takes_writes())
}

fn name(mds: &Mds, layout: &Layout, file: &DataFile, ask: &Ask) -> Option<Named> {
    let store = mds.data_servers.get(file.store)?;
    let capability = Capability {
        // Any data file may end before its file does: a size is set without it.
        rights: rights(ask.write, file.materialised, true).or(wanted(ask.way.wants)),
        store: file.store.0,
        data_file: layout.id.0,
        slot: file.slot,
        generation: file.generation,
        holder: holder(ask.client),
        ..Capability::default()
    };
    Some(Named { device: device::id(&store), handle: mds.data_servers.seal(capability)? })
}
