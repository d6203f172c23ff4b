//! What a LAYOUTGET answers, once the state allows it: the segment, its data servers, their handles.

use std::sync::Arc;

use bytes::Bytes;
use sluice_namespace::{DataFile, FileId, Inode, Layout};
use sluice_state::ClientId;
use sluice_xdr::Capability;
use sluice_xdr::nfs4::nfsstat4;

use super::device;
use super::flexfiles::{self, Holder, Mirrors, Named, Segment};
use super::reports::{Finding, Subject};
use crate::dsctl::{holder, rights};
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
/// LAYOUTUNAVAILABLE when a data server that it needs is away, NOSPC when one is full.
pub(crate) fn grant(mds: &Arc<Mds>, inode: &Inode, ask: &Ask) -> Result<Granted, nfsstat4> {
    // Everything else that says no makes clients ask again for every request, or fails the application.
    let unavailable = nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE;
    let layout = inode.layout().ok_or(unavailable)?;
    let segment = flexfiles::segment(layout, ask.offset, ask.stripes).ok_or(unavailable)?;
    let mirrors = choose(mds, layout, &segment, ask)?;
    for file in mirrors.iter().flatten() {
        mds.reports.handed_out(mds.now(), ask.client, Subject::Store(file.store));
    }
    mds.reports.handed_out(mds.now(), ask.client, Subject::File(ask.file));
    let holder = Holder { tag: holder(ask.client), write: ask.write };
    let body =
        flexfiles::body(layout, segment.stripe_unit, &mirrors, holder, |file| name(mds, layout, file, ask));
    let end = segment.bytes.end;
    Ok(Granted {
        offset: segment.bytes.start,
        length: if end == u64::MAX { u64::MAX } else { end - segment.bytes.start },
        body: body.ok_or(nfsstat4::NFS4ERR_SERVERFAULT)?,
    })
}

fn choose(mds: &Mds, layout: &Layout, segment: &Segment<'_>, ask: &Ask) -> Result<Mirrors, nfsstat4> {
    let now = mds.now();
    if mds.reports.finding(now, ask.client, Subject::File(ask.file)).failed {
        return Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
    }
    let finding = |file: &DataFile| mds.reports.finding(now, ask.client, Subject::Store(file.store));
    if !ask.write {
        return readable(mds, layout, segment, ask).ok_or(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
    }
    if layout.mirrors_dirty {
        // Mirrors that may differ are not written apart: this server writes all of them, if it takes long.
        return Err(mds.heals.refusal(ask.file, now));
    }
    let findings: Vec<Finding> = segment.data_files().filter(|file| !file.stale).map(finding).collect();
    if findings.iter().any(|finding| finding.full) {
        // The application is to hear of it; any other answer has the client try again for ever.
        return Err(nfsstat4::NFS4ERR_NOSPC);
    }
    if findings.iter().any(|finding| finding.failed) {
        // One client's word does not make a mirror stale: this server writes all of them.
        return Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
    }
    let good = |file: &DataFile| !file.stale && writable(mds, file);
    segment.mirrors(good, usize::MAX).ok_or(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE)
}

/// Mirrors to read; those that the client has found wanting are left out while there are others.
fn readable(mds: &Mds, layout: &Layout, segment: &Segment<'_>, ask: &Ask) -> Option<Mirrors> {
    let now = mds.now();
    let finding = |file: &DataFile| mds.reports.finding(now, ask.client, Subject::Store(file.store));
    let good = |file: &DataFile| !file.stale && serves(mds, file) && !finding(file).failed;
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

fn writable(mds: &Mds, file: &DataFile) -> bool {
    mds.data_servers.get(file.store).is_some_and(|store| store.takes_writes())
}

fn name(mds: &Mds, layout: &Layout, file: &DataFile, ask: &Ask) -> Option<Named> {
    let store = mds.data_servers.get(file.store)?;
    let capability = Capability {
        rights: rights(ask.write, file.materialised, layout.is_sparse()),
        store: file.store.0,
        data_file: layout.id.0,
        slot: file.slot,
        generation: file.generation,
        holder: holder(ask.client),
        ..Capability::default()
    };
    Some(Named { device: device::id(&store), handle: mds.data_servers.seal(capability)? })
}
