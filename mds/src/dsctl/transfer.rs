//! Orders that copy ranges between data files, at one data server or from one to another.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{DataFile, DataFileId, Layout};
use sluice_xdr::capability::Capability;
use sluice_xdr::control::*;
use sluice_xdr::nfs4::nfsstat4;

use super::orders::{call, wire};
use super::registry::{MDS_HOLDER, rights};
use crate::layout::heal::{Filling, beside};
use crate::server::Mds;

/// A data server may have to read and write a whole piece on a slow device.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that lie in one column of the source and in one of the target.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) source: DataFileId,
    /// The mirrors that may be read, the best first.
    pub(crate) from: Vec<DataFile>,
    pub(crate) source_offset: u64,
    pub(crate) target: DataFileId,
    /// The mirrors that are written.
    pub(crate) to: Vec<DataFile>,
    /// What is being filled to become one.
    pub(crate) filling: Vec<DataFile>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// The pieces of a range of two files, none longer than `most`.
pub(crate) fn pieces(
    (source, source_offset): (&Layout, u64),
    (target, offset): (&Layout, u64),
    length: u64,
    most: u64,
    filling: &[Filling],
) -> Vec<Piece> {
    let mut out = Vec::new();
    for (at, length, to) in super::orders::pieces(target, offset, length) {
        for (from_at, length, from) in super::orders::pieces(source, source_offset + (at - offset), length) {
            let place = |at: u64| offset + (at - source_offset);
            let mut done = 0;
            while done < length {
                let step = most.min(length - done);
                // Of mirrors that may differ, the first is the truth.
                let readable = if source.mirrors_dirty { 1 } else { usize::MAX };
                out.push(Piece {
                    source: source.id,
                    from: from.iter().filter(|file| !file.stale).take(readable).copied().collect(),
                    source_offset: from_at + done,
                    target: target.id,
                    to: to.iter().filter(|file| !file.stale).copied().collect(),
                    filling: beside(filling, target, &to),
                    offset: place(from_at + done),
                    length: step,
                });
                done += step;
            }
        }
    }
    out
}

/// Copies one piece, durably at every mirror. The first mirror is made from the source and the others from the
/// first, so that they are equal even if somebody writes to the source meanwhile. `false`: what is being filled
/// does not have it.
///
/// # Errors
/// What the client is told.
pub(crate) async fn transfer(mds: &Arc<Mds>, piece: &Piece) -> Result<bool, nfsstat4> {
    let (first, others) = piece.to.split_first().ok_or(nfsstat4::NFS4ERR_SERVERFAULT)?;
    for file in &piece.to {
        super::orders::must_be_there(mds, piece.target, file, piece.to.len()).await?;
    }
    let mut last = Err(Undone::Otherwise(nfsstat4::NFS4ERR_IO));
    for file in &piece.from {
        last = one(mds, (piece.source, file, piece.source_offset), first, piece).await;
        if matches!(last, Ok(()) | Err(Undone::Otherwise(nfsstat4::NFS4ERR_NOSPC))) {
            break;
        }
    }
    told(mds, piece, first, last)?;
    let copy = DataFile { materialised: true, ..*first };
    for file in others {
        told(mds, piece, file, one(mds, (piece.target, &copy, piece.offset), file, piece).await)?;
    }
    let mut filled = true;
    for file in &piece.filling {
        filled &= one(mds, (piece.target, &copy, piece.offset), file, piece).await.is_ok();
    }
    Ok(filled)
}

/// Why a mirror does not have what it was to be given.
#[derive(Clone, Copy, Debug)]
enum Undone {
    /// Its data server could not write it, or not make it durable.
    Refused,
    Otherwise(nfsstat4),
}

/// What the client is told. A mirror that refuses is done without where there is another one, as with a WRITE.
fn told(mds: &Mds, piece: &Piece, target: &DataFile, done: Result<(), Undone>) -> Result<(), nfsstat4> {
    match done {
        Ok(()) => Ok(()),
        Err(Undone::Otherwise(status)) => Err(status),
        Err(Undone::Refused) => {
            if piece.to.len() > 1
                && let Some(store) = mds.data_servers.get(target.store)
            {
                store.refused(piece.target, target.slot, mds.now());
            }
            Err(nfsstat4::NFS4ERR_IO)
        }
    }
}

async fn one(
    mds: &Arc<Mds>,
    (id, source, source_offset): (DataFileId, &DataFile, u64),
    target: &DataFile,
    piece: &Piece,
) -> Result<(), Undone> {
    let later = Undone::Otherwise(nfsstat4::NFS4ERR_DELAY);
    let at = mds.data_servers.get(target.store).ok_or(later)?;
    // Before the handle, whose epoch is this one or newer.
    let epoch = mds.data_servers.epoch();
    let source = if source.store == target.store {
        ctl_source::TRUE(ctl_own_file { file: wire(id, source), must_exist: source.materialised })
    } else {
        ctl_source::FALSE(peer(mds, id, source).ok_or(later)?)
    };
    let args = DS_TRANSFER_args {
        caller: mds.data_servers.caller(),
        target: wire(piece.target, target),
        offset: piece.offset,
        source,
        source_offset,
        length: piece.length,
    };
    match call(&at, DS_TRANSFER, &args, PATIENCE).await {
        Some(ctl_status::CTL_OK) => Ok(()),
        Some(ctl_status::CTL_ERR_NOSPC) => Err(Undone::Otherwise(nfsstat4::NFS4ERR_NOSPC)),
        // The source was restarted meanwhile, and an older handle cannot tell what is lost from what was never there.
        Some(ctl_status::CTL_ERR_IO | ctl_status::CTL_ERR_NOENT) if mds.data_servers.epoch() != epoch => {
            Err(later)
        }
        Some(ctl_status::CTL_ERR_IO) => Err(Undone::Refused),
        // Of the source.
        Some(ctl_status::CTL_ERR_NOENT) => Err(Undone::Otherwise(nfsstat4::NFS4ERR_IO)),
        // No device of it has files that long.
        Some(ctl_status::CTL_ERR_INVAL) => Err(Undone::Otherwise(nfsstat4::NFS4ERR_FBIG)),
        _ => Err(later),
    }
}

/// Where a data file is read, and with what.
pub(super) fn peer(mds: &Mds, id: DataFileId, source: &DataFile) -> Option<ctl_peer> {
    let address = mds.data_servers.get(source.store)?.view().addresses.first().copied()?;
    let reader = Capability {
        // Where the file ends is judged here: the data file's own end is what is wanted.
        rights: rights(false, source.materialised, false),
        store: source.store.0,
        data_file: id.0,
        slot: source.slot,
        generation: source.generation,
        holder: MDS_HOLDER,
        ..Capability::default()
    };
    Some(ctl_peer { address: host(address), fh: mds.data_servers.seal(reader)? })
}

/// An address as data servers are told.
pub(super) fn host(address: SocketAddr) -> ctl_address {
    ctl_address { host: address.ip().to_string().into(), port: address.port().into() }
}

#[cfg(test)]
mod tests {
    use sluice_namespace::{Component, StoreId};

    use super::*;

    fn layout(id: u64, unit: u64, width: u16) -> Layout {
        let slots = (0..width)
            .map(|slot| DataFile { store: StoreId(slot + 1), slot, ..DataFile::default() })
            .collect();
        let component = Component {
            start: 0,
            end: u64::MAX,
            stripe_unit: unit,
            width,
            mirrors: 1,
            handed_out: true,
            slots,
        };
        Layout { id: DataFileId(id), components: vec![component], mirrors_dirty: false }
    }

    #[test]
    fn pieces_lie_in_one_column_of_each_and_cover_the_range_once() {
        let (source, target) = (layout(1, 100, 3), layout(2, 64, 2));
        let found = pieces((&source, 30), (&target, 7), 1000, 50, &[]);
        let mut at = 7;
        for piece in &found {
            assert_eq!(piece.offset, at);
            assert_eq!(piece.source_offset, at + 23);
            assert!(piece.length <= 50);
            let column =
                |layout: &Layout, at: u64| layout.component(at).unwrap().column(at).unwrap().to_vec();
            for byte in [0, piece.length - 1] {
                assert_eq!(piece.from, column(&source, piece.source_offset + byte));
                assert_eq!(piece.to, column(&target, piece.offset + byte));
            }
            at += piece.length;
        }
        assert_eq!(at, 1007);
    }

    #[test]
    fn mirrors_that_may_differ_are_read_at_the_first_and_stale_ones_not_at_all() {
        let (mut source, mut target) = (layout(1, 100, 2), layout(2, 100, 2));
        for layout in [&mut source, &mut target] {
            layout.components[0].width = 1;
            layout.components[0].mirrors = 2;
        }
        let both = pieces((&source, 0), (&target, 0), 10, 50, &[]);
        assert_eq!((both[0].from.len(), both[0].to.len()), (2, 2));
        source.mirrors_dirty = true;
        target.components[0].slots[0].stale = true;
        let nine = DataFile { slot: 9, ..DataFile::default() };
        let filling = [Filling { id: target.id, column: 0, target: nine }];
        let fewer = pieces((&source, 0), (&target, 0), 10, 50, &filling);
        assert_eq!(fewer[0].from, source.components[0].slots[..1]);
        assert_eq!(fewer[0].to, target.components[0].slots[1..]);
        assert_eq!(fewer[0].filling, [nine]);
        let before = [Filling { id: DataFileId(1), ..filling[0] }];
        assert_eq!(pieces((&source, 0), (&target, 0), 10, 50, &before)[0].filling, [], "of an older layout");
    }
}
