//! Bodies of flexible-file layouts: one stored shape, two encodings. RFC 8435 §5; docs/DESIGN §6.
//!
//! A client that stripes gets the whole component, one data server per column. Any other gets the one
//! stripe unit that holds the offset it asked for, on its one data server: the grid is fixed, so that
//! segments never overlap differently (kernels up to 6.17 merge overlapping segments into the newer one).

use std::ops::Range;

use bytes::Bytes;
use sluice_namespace::{Component, DataFile, Layout};
use sluice_xdr::flexfiles::{ff_data_server4, ff_layout4, ff_mirror4};
use sluice_xdr::nfs4::{deviceid4, nfs_fh4, stateid4};

/// Seconds between LAYOUTSTATS of one file.
const STATS_HINT: u32 = 60;
/// Of the mirror to read from first; the others follow in steps of one.
const PREFERRED: u32 = 100;

/// What one LAYOUTGET hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) bytes: Range<u64>,
    /// 0 with a single data server per mirror.
    pub(crate) stripe_unit: u64,
    /// One per stripe: its mirrors.
    columns: Vec<&'a [DataFile]>,
}

/// The segment that holds byte `offset`; `None` when no component does.
pub(crate) fn segment(layout: &Layout, offset: u64, stripes: bool) -> Option<Segment<'_>> {
    let component = layout.component(offset)?;
    let mirrors = usize::from(component.mirrors.max(1));
    if component.width > 1 && stripes {
        return Some(Segment {
            bytes: component.start..component.end,
            stripe_unit: component.stripe_unit,
            // The stripe of a byte is counted from byte 0 of the file, here as in the client.
            columns: component.slots.chunks(mirrors).collect(),
        });
    }
    let bytes = if component.width > 1 { unit(component, offset) } else { component.start..component.end };
    Some(Segment { bytes, stripe_unit: 0, columns: vec![component.column(offset)?] })
}

/// The stripe unit that holds `offset`, cut to the component.
fn unit(component: &Component, offset: u64) -> Range<u64> {
    let unit = component.stripe_unit.max(1);
    let start = offset / unit * unit;
    start.max(component.start)..start.saturating_add(unit).min(component.end)
}

/// A set of data files of a segment that together hold all of it: by mirror, then by stripe.
pub(crate) type Mirrors = Vec<Vec<DataFile>>;

impl<'a> Segment<'a> {
    /// Every data file of the segment.
    pub(crate) fn data_files(&self) -> impl Iterator<Item = &'a DataFile> {
        self.columns.iter().flat_map(|column| column.iter())
    }

    /// Whether more than one copy of it is written that are `good`, and it is not all of the file: a client that has the
    /// next segment, too, mixes up the copies at the end of this one (ADR 0033).
    pub(crate) fn mixes_mirrors(&self, good: impl Fn(&DataFile) -> bool) -> bool {
        self.bytes != (0..u64::MAX)
            && self.columns.iter().any(|column| column.iter().filter(|file| good(file)).count() > 1)
    }

    /// The mirrors made of data files that are `good`, at most `most`; `None` when some stripe has none.
    pub(crate) fn mirrors(&self, good: impl Fn(&DataFile) -> bool, most: usize) -> Option<Mirrors> {
        let columns: Vec<Vec<DataFile>> = self
            .columns
            .iter()
            .map(|column| column.iter().filter(|file| good(file)).take(most).copied().collect())
            .collect();
        let count = columns.iter().map(Vec::len).max().unwrap_or(0);
        let mirror = |at: usize| {
            // RFC 8435 §5.1 wants every mirror to have all stripes: where one is missing, another copy of
            // it stands in. Written twice it stays the same, and all good copies are written.
            columns
                .iter()
                .map(|column| column.get(at).or(column.first()).copied())
                .collect::<Option<Vec<_>>>()
        };
        if count == 0 { None } else { (0..count).map(mirror).collect() }
    }
}

/// How a data file is named to one client.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) device: deviceid4,
    pub(crate) handle: Bytes,
}

/// Who a layout is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    /// Tag of the client's incarnation.
    pub(crate) tag: u32,
    pub(crate) write: bool,
}

/// The body of a layout; `None` when a data file cannot be named or the encoding fails.
pub(crate) fn body(
    layout: &Layout,
    stripe_unit: u64,
    mirrors: &Mirrors,
    holder: Holder,
    name: impl Fn(&DataFile) -> Option<Named>,
) -> Option<Bytes> {
    let count = u32::try_from(mirrors.len()).ok()?.max(1);
    let (user, group) = synthetic(holder);
    let server = |at: u32, file: &DataFile| {
        let named = name(file)?;
        Some(ff_data_server4 {
            ffds_deviceid: named.device,
            // Readers go to the most efficient mirror and stay there: clients take turns.
            ffds_efficiency: PREFERRED - at.wrapping_add(holder.tag) % count,
            ffds_stateid: tag(layout, file),
            ffds_fh_vers: vec![nfs_fh4(named.handle)],
            ffds_user: user.clone(),
            ffds_group: group.clone(),
        })
    };
    let mirror = |(at, files): (u32, &Vec<DataFile>)| {
        let servers = files.iter().map(|file| server(at, file)).collect::<Option<Vec<_>>>()?;
        Some(ff_mirror4 { ffm_data_servers: servers })
    };
    let body = ff_layout4 {
        ffl_stripe_unit: stripe_unit,
        ffl_mirrors: (0..).zip(mirrors).map(mirror).collect::<Option<Vec<_>>>()?,
        ffl_flags: 0,
        ffl_stats_collect_hint: STATS_HINT,
    };
    sluice_xdr::to_bytes(&body).ok()
}

/// Synthetic uid and gid (RFC 8435 §2.2): they repeat what the handle says, for whoever looks at a packet.
/// Readers and writers of one client share the group and differ in the user. Decimal, because clients take
/// nothing else.
fn synthetic(holder: Holder) -> (Bytes, Bytes) {
    // 2^32-1 is nobody's uid: clients refuse it.
    let group = holder.tag & 0x3fff_ffff;
    let user = group << 1 | u32::from(holder.write);
    (user.to_string().into(), group.to_string().into())
}

/// A stateid means nothing over NFSv3, but clients send it back with errors: it says which data file.
fn tag(layout: &Layout, file: &DataFile) -> stateid4 {
    let mut other = [0; 12];
    let (id, rest) = other.split_at_mut(8);
    id.copy_from_slice(&layout.id.0.to_be_bytes());
    let (slot, generation) = rest.split_at_mut(2);
    slot.copy_from_slice(&file.slot.to_be_bytes());
    generation.copy_from_slice(&file.generation.to_be_bytes());
    stateid4 { seqid: 0, other }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_namespace::{DataFileId, LayoutPolicy, Shape, StoreId};

    use super::super::placement::{Candidate, place};
    use super::*;

    fn layout(shape: Shape, mirrors: u8, stores: u16) -> Layout {
        let candidates: Vec<_> = (1..=stores)
            .map(|n| Candidate { store: StoreId(n), free_bytes: 1 << 40, host: None, class: None })
            .collect();
        place(
            DataFileId(u64::MAX),
            LayoutPolicy { shape, mirrors, inline: 0, class: None },
            &candidates,
            5,
            64 << 20,
        )
        .unwrap()
    }

    fn encoded(layout: &Layout, segment: &Segment<'_>, good: impl Fn(&DataFile) -> bool) -> ff_layout4 {
        let mirrors = segment.mirrors(good, usize::MAX).unwrap();
        let name = |file: &DataFile| {
            let mut device = [0; 16];
            device[0] = u8::try_from(file.store.0).unwrap();
            Some(Named { device: deviceid4(device), handle: Bytes::from(vec![7; 32]) })
        };
        let holder = Holder { tag: u32::MAX, write: true };
        let bytes = body(layout, segment.stripe_unit, &mirrors, holder, name).unwrap();
        assert!(bytes.len() <= 4096, "{} bytes", bytes.len());
        sluice_xdr::from_bytes(bytes).unwrap()
    }

    #[test]
    fn the_widest_layouts_fit_the_buffer_of_a_stock_client() {
        for mirrors in 1..=36 {
            let layout = layout(Shape::Wide, mirrors, 36);
            let segment = segment(&layout, 12345, true).unwrap();
            let body = encoded(&layout, &segment, |_| true);
            assert_eq!(body.ffl_mirrors.len(), usize::from(mirrors));
            let total: usize = body.ffl_mirrors.iter().map(|mirror| mirror.ffm_data_servers.len()).sum();
            assert!(total <= 36 && total > 36 - usize::from(mirrors));
        }
    }

    #[test]
    fn stripes_are_the_whole_component_and_segments_one_unit() {
        let layout = layout(Shape::Default, 0, 4);
        let (first, unit) = (64 << 20, 64 << 20);
        let striped = segment(&layout, first + 5 * unit + 3, true).unwrap();
        assert_eq!((striped.bytes.clone(), striped.stripe_unit), (first..u64::MAX, unit));
        assert_eq!(encoded(&layout, &striped, |_| true).ffl_mirrors[0].ffm_data_servers.len(), 4);
        let single = segment(&layout, first + 5 * unit + 3, false).unwrap();
        assert_eq!((single.bytes.clone(), single.stripe_unit), (first + 5 * unit..first + 6 * unit, 0));
        // Both encodings lead to the same data file.
        let stripe = usize::try_from((single.bytes.start / unit) % 4).unwrap();
        assert_eq!(striped.columns[stripe], single.columns[0]);
        // One data server: one segment for every client.
        for stripes in [true, false] {
            let beginning = segment(&layout, 4096, stripes).unwrap();
            assert_eq!((beginning.bytes, beginning.stripe_unit), (0..first, 0));
        }
    }

    #[test]
    fn a_lost_mirror_is_left_out_and_a_lost_stripe_is_no_layout() {
        let layout = layout(Shape::Wide, 2, 4);
        let segment = segment(&layout, 0, true).unwrap();
        let alive = |gone: &'static [u16]| move |file: &DataFile| !gone.contains(&file.store.0);
        let mirrors = segment.mirrors(alive(&[2]), usize::MAX).unwrap();
        assert_eq!(mirrors.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4]);
        assert!(mirrors.iter().flatten().all(|file| file.store.0 != 2));
        let left: std::collections::BTreeSet<_> = mirrors.iter().flatten().map(|file| file.slot).collect();
        // Every good copy is in some mirror.
        assert_eq!(left.len(), layout.data_files().filter(|file| file.store.0 != 2).count());
        // Neighbours hold the copies of one stripe.
        assert!(segment.mirrors(alive(&[2, 3]), usize::MAX).is_none());
        assert_eq!(segment.mirrors(|_| true, 1).unwrap().len(), 1);
    }

    #[test]
    fn names_are_numbers_and_the_stateid_tells_the_data_file() {
        let layout = layout(Shape::Small, 0, 2);
        let segment = segment(&layout, 0, true).unwrap();
        let body = encoded(&layout, &segment, |_| true);
        let server = &body.ffl_mirrors[0].ffm_data_servers[0];
        assert!(server.ffds_user.iter().all(u8::is_ascii_digit) && server.ffds_user.len() < 16);
        assert_ne!(&server.ffds_user[..], b"4294967295");
        assert_eq!(server.ffds_stateid.other[..8], [255; 8]);
        assert_eq!(server.ffds_fh_vers.len(), 1);
        assert_eq!((body.ffl_flags, body.ffl_stripe_unit), (0, 0));
    }

    /// pynfs FFLA1.
    #[test]
    fn readers_and_writers_share_the_group_and_differ_in_the_user() {
        for tag in [1, 7, u32::MAX] {
            let (reader, writer) = (Holder { tag, write: false }, Holder { tag, write: true });
            assert_eq!(synthetic(reader).1, synthetic(writer).1);
            assert_ne!(synthetic(reader).0, synthetic(writer).0);
            assert_ne!(&synthetic(writer).0[..], b"4294967295");
        }
    }

    proptest! {
        #[test]
        fn segments_cover_the_offset_are_aligned_and_never_overlap_differently(
            shape in prop_oneof![Just(Shape::Default), Just(Shape::Wide), Just(Shape::WideAny)],
            stores in 1u16..40,
            one in 0..u64::MAX - 1,
            shift in 0u32..40,
            stripes: bool,
        ) {
            let layout = layout(shape, 0, stores);
            let one = one >> shift;
            let a = segment(&layout, one, stripes).unwrap();
            prop_assert!(a.bytes.contains(&one));
            if a.stripe_unit > 0 {
                prop_assert_eq!(a.bytes.start % a.stripe_unit, 0);
            }
            // Whatever byte of it is asked for, the same segment comes.
            for at in [a.bytes.start, a.bytes.start + (a.bytes.end - a.bytes.start) / 2, a.bytes.end - 1] {
                prop_assert_eq!(&segment(&layout, at, stripes).unwrap(), &a);
            }
        }
    }
}
