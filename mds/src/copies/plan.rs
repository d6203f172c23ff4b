//! What the new data files of a clone are made of: what they share, and what has to be copied into them. Pure.

use std::ops::Range;

use sluice_namespace::{Component, DataFile, DataFileId, Inode, Layout};

use crate::dsctl::clone::Piece;
use crate::layout::placement;

/// The data files to be made.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) fresh: Layout,
    /// How each comes into being, sharing what can be shared.
    pub(super) pieces: Vec<Piece>,
    /// What is copied into them afterwards: from where in the source, to where.
    pub(super) apart: Vec<Apart>,
    /// Something of the target stays.
    pub(super) on_base: bool,
}

/// A range whose two ends do not lie in the same way at the same data servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Apart {
    pub(super) source_offset: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// A data file that nobody has made: all of it is a hole.
const NO_SLOT: u16 = u16::MAX;

/// How `bytes` of the target become what the source holds from an offset on. `None`: the two are of different
/// policies, or mirrors are not what they should be.
pub(super) fn plan(
    id: DataFileId,
    (source, source_offset): (&Layout, u64),
    target: &Inode,
    bytes: Range<u64>,
) -> Option<Plan> {
    let size = target.size();
    let base = target.layout().filter(|_| size > 0 && (bytes.start > 0 || bytes.end < size));
    // Who copies into a directory of another policy wants files of that.
    if target.layout().is_some_and(|own| !of_a_kind(own, source)) {
        return None;
    }
    if source.is_degraded() || base.is_some_and(Layout::is_degraded) {
        return None;
    }
    // Where nothing stays the target lies as the source does.
    let shape = base.unwrap_or(source);
    let mut fresh = placement::again(id, shape);
    let (mut pieces, mut apart) = (Vec::new(), Vec::new());
    for (component, new) in shape.components.iter().zip(&mut fresh.components) {
        let part = bytes.start.max(component.start)..bytes.end.min(component.end);
        let kept = base.map(|layout| (layout.id, size));
        let made = if part.start >= part.end {
            kept.map(|kept| untouched(id, new, component, kept)).unwrap_or_default()
        } else {
            let at = source_offset + (part.start - bytes.start);
            match beside(component, &part, source, at) {
                Some(from) => shared(id, (new, component), (source.id, from), (&part, at), kept),
                None => {
                    let length = part.end - part.start;
                    apart.push(Apart { source_offset: at, offset: part.start, length });
                    // Nothing of it is wanted, but who cannot share it is not asked to copy either.
                    emptied(id, (new, component), &part, kept.unwrap_or((source.id, 0)))
                }
            }
        };
        new.slots.iter_mut().for_each(|file| file.materialised = !made.is_empty());
        pieces.extend(made);
    }
    Some(Plan { fresh, pieces, apart, on_base: base.is_some() })
}

/// Of the same policy, as far as can be seen: how many data servers there were to choose from may differ.
fn of_a_kind(a: &Layout, b: &Layout) -> bool {
    let kind = |layout: &Layout| -> Vec<_> {
        let of = |c: &Component| (c.start, c.end, c.stripe_unit, c.width > 1, c.mirrors);
        layout.components.iter().map(of).collect()
    };
    kind(a) == kind(b)
}

/// A component that shares the part of the source, and the rest of what stays.
fn shared(
    id: DataFileId,
    (new, component): (&Component, &Component),
    (source, from): (DataFileId, &Component),
    (part, at): (&Range<u64>, u64),
    kept: Option<(DataFileId, u64)>,
) -> Vec<Piece> {
    let files = new.slots.iter().zip(&component.slots).zip(&from.slots);
    files
        .map(|((new, old), from)| Piece {
            target: (id, *new),
            offset: part.start,
            base: kept.map(|(of, size)| ((of, *old), size)),
            source: (source, *from),
            source_offset: at,
            length: part.end - part.start,
        })
        .collect()
}

/// A component that the range does not touch.
fn untouched(id: DataFileId, new: &Component, old: &Component, (of, size): (DataFileId, u64)) -> Vec<Piece> {
    let end = old.end.min(size);
    if old.start >= end {
        return Vec::new();
    }
    let files = new.slots.iter().zip(&old.slots);
    files
        .map(|(new, old_file)| Piece {
            target: (id, *new),
            offset: old.start,
            base: None,
            source: (of, *old_file),
            source_offset: old.start,
            length: end - old.start,
        })
        .collect()
}

/// A component that shares what another one of the same data servers holds up to an end, but has a hole for the part.
fn emptied(
    id: DataFileId,
    (new, old): (&Component, &Component),
    part: &Range<u64>,
    (of, end): (DataFileId, u64),
) -> Vec<Piece> {
    let files = new.slots.iter().zip(&old.slots);
    files
        .map(|(new, old_file)| Piece {
            target: (id, *new),
            offset: part.start,
            base: Some(((of, *old_file), end)),
            source: (id, DataFile { slot: NO_SLOT, materialised: false, ..*new }),
            source_offset: part.start,
            length: part.end - part.start,
        })
        .collect()
}

/// The component of the source that holds what `part` of the target's is to share, data file by data file.
fn beside<'a>(
    component: &Component,
    part: &Range<u64>,
    source: &'a Layout,
    at: u64,
) -> Option<&'a Component> {
    let from = source.component(at).filter(|from| at + (part.end - part.start) <= from.end)?;
    let turn = component.stripe_unit.saturating_mul(u64::from(component.width)).max(1);
    let in_step = component.width == 1
        || (component.stripe_unit == from.stripe_unit && part.start.abs_diff(at).is_multiple_of(turn));
    let alike = component.width == from.width && component.mirrors == from.mirrors && in_step;
    let stores = |component: &'a Component| component.slots.iter().map(|file| file.store);
    let same = component.slots.iter().map(|file| file.store).eq(stores(from));
    (alike && same).then_some(from)
}

#[cfg(test)]
mod tests {
    use sluice_namespace::{LayoutPolicy, Shape, StoreId};

    use super::*;
    use crate::layout::placement::{Candidate, place};

    fn layout(shape: Shape, mirrors: u8, stores: u16) -> Layout {
        let stores: Vec<_> = (1..=stores)
            .map(|n| Candidate { store: StoreId(n), free_bytes: 1 << 40, host: None, class: None })
            .collect();
        place(DataFileId(1), LayoutPolicy { shape, mirrors, inline: 0, class: None }, &stores, 0, 64 << 20)
            .unwrap()
    }

    #[test]
    fn files_of_another_policy_are_not_of_a_kind() {
        let shapes = [Shape::Default, Shape::Small, Shape::Wide, Shape::WideAny];
        for (one, two) in shapes.into_iter().flat_map(|one| shapes.map(|two| (one, two))) {
            assert_eq!(of_a_kind(&layout(one, 1, 4), &layout(two, 1, 4)), one == two);
            assert!(!of_a_kind(&layout(one, 1, 4), &layout(two, 2, 4)));
        }
        // Data servers have come since.
        assert!(of_a_kind(&layout(Shape::Default, 1, 4), &layout(Shape::Default, 1, 6)));
    }
}
