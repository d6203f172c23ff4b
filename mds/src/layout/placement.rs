//! Which data servers a new file gets. Pure: the same candidates, policy and turn give the same layout.
//! docs/DESIGN §6.

use std::net::IpAddr;

use sluice_namespace::{Class, Component, DataFile, DataFileId, Layout, LayoutPolicy, Shape, StoreId};

/// Unit of coarse stripes: clients that know no stripes take each unit as a segment of its own, one
/// LAYOUTGET each.
const COARSE: u64 = 64 << 20;
/// Unit of fine stripes: one READ or WRITE of a stock client at its largest, a power of two, and below the
/// 4 GiB at which Linux 6.18 to 7.2 divide wrongly.
const FINE: u64 = 1 << 20;
/// Data servers of the coarse part of a file of no particular policy. Every small file carries the
/// description of a part that it never grows into, so it is kept short; `wide` and `wide-any` take all.
const DEFAULT_WIDTH: usize = 8;

/// A data server that takes new data files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) store: StoreId,
    pub(crate) free_bytes: u64,
    /// Where it runs: what is on one host goes with it. `None`: alone, as far as is known.
    pub(crate) host: Option<IpAddr>,
    pub(crate) class: Option<Class>,
}

/// Data servers that something may be placed on: those of a class, which may be that they have none, or all
/// (docs/adr/0041).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Of(Option<Class>),
    Any,
}

impl Wanted {
    pub(crate) fn takes(self, class: Option<Class>) -> bool {
        match self {
            Self::Of(wanted) => wanted == class,
            Self::Any => true,
        }
    }

    /// Those of these that it takes.
    pub(crate) fn among(self, candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> {
        candidates.iter().filter(move |candidate| self.takes(candidate.class))
    }
}

/// Puts those of one host as far from each other as can be: neighbours are the mirrors of one file.
pub(crate) fn interleave(candidates: &mut [Candidate]) {
    let mut hosts: Vec<IpAddr> = candidates.iter().filter_map(|candidate| candidate.host).collect();
    hosts.sort_unstable();
    if hosts.first() == hosts.last() || hosts.windows(2).all(|pair| pair[0] != pair[1]) {
        return;
    }
    // By the place of the first of its like.
    let mut passed = vec![0; hosts.len()];
    candidates.sort_by_cached_key(|candidate| {
        let Some(host) = candidate.host else { return 1 << 31 };
        let first = hosts.partition_point(|other| *other < host);
        let count = hosts.partition_point(|other| *other <= host) - first;
        let before = passed.get_mut(first).map_or(0, |passed| std::mem::replace(passed, *passed + 1));
        // The middle of its part of the circle, which those of a host share evenly.
        ((2 * before + 1) << 32) / (2 * count.max(1))
    });
}

/// Those of other hosts than these, if there are any.
pub(crate) fn elsewhere(candidates: Vec<Candidate>, hosts: &[IpAddr]) -> Vec<Candidate> {
    let apart = |candidate: &Candidate| candidate.host.is_none_or(|host| !hosts.contains(&host));
    if candidates.iter().any(apart) { candidates.into_iter().filter(apart).collect() } else { candidates }
}

/// The shape of a file for the client that makes it. With mirrors, stripes are several segments to one that takes none, which would
/// write them through this server (ADR 0033): such a file has one column, and is one segment to whoever uses it later.
pub(crate) fn for_maker(policy: LayoutPolicy, stripes: bool) -> LayoutPolicy {
    let several = matches!(policy.shape, Shape::Wide | Shape::WideAny) && policy.mirrors > 1;
    if several && !stripes { LayoutPolicy { shape: Shape::Small, ..policy } } else { policy }
}

/// The layout of a new file. `candidates` in the same order each time; `turn` advances by one per
/// file; `first` is where the wide part of a default file begins. `None`: fewer candidates than mirrors.
pub(crate) fn place(
    id: DataFileId,
    policy: LayoutPolicy,
    candidates: &[Candidate],
    turn: u64,
    first: u64,
) -> Option<Layout> {
    let mirrors = usize::from(policy.mirrors.max(1));
    if candidates.len() < mirrors {
        return None;
    }
    let wheel = Wheel::of(candidates, turn);
    let all = candidates.len().min(Component::MAX_SLOTS / mirrors).max(1);
    let whole = |unit, width| vec![wheel.component(0..u64::MAX, unit, (width, mirrors), 0)];
    let components = match policy.shape {
        _ if candidates.len() == 1 => whole(COARSE, 1),
        Shape::Small => whole(COARSE, 1),
        Shape::Wide => whole(FINE, all),
        Shape::WideAny => whole(COARSE, all),
        // One segment to every client: ADR 0033.
        Shape::Default if mirrors > 1 => whole(COARSE, 1),
        Shape::Default => default_shape(&wheel, first, all.min(DEFAULT_WIDTH)),
    };
    Some(numbered(Layout { id, components, mirrors_dirty: false }))
}

/// The beginning on one data server, the rest over several; without mirrors.
fn default_shape(wheel: &Wheel<'_>, first: u64, width: usize) -> Vec<Component> {
    // Linux 6.18 to 7.2 measure stripe boundaries from the segment's offset: the wide part must begin at a
    // multiple of its unit.
    let first = first / FINE * FINE;
    if first == 0 {
        return vec![wheel.component(0..u64::MAX, COARSE, (width, 1), 0)];
    }
    let unit = COARSE.min(1 << first.trailing_zeros());
    // Stripes are counted from byte 0 of the file, so that where the wide part begins decides which of its
    // columns comes first: turned such that a file that grows leaves the data server of its beginning.
    let columns = u64::try_from(width).unwrap_or(1).max(1);
    let lead = usize::try_from((first / unit) % columns).unwrap_or(0);
    let from = 1 + wheel.len() * width - lead;
    vec![
        wheel.component(0..first, COARSE, (1, 1), 0),
        wheel.component(first..u64::MAX, unit, (width, 1), from),
    ]
}

/// The same shape with fresh data files under `id`, for a truncation to zero: data servers that take no
/// new files give way to others. `None`: not enough candidates.
pub(crate) fn renewed(
    id: DataFileId,
    old: &Layout,
    candidates: &[Candidate],
    turn: u64,
    like: impl Fn(StoreId) -> Wanted,
) -> Option<Layout> {
    let components = old.components.iter().map(|component| repaired(component, candidates, turn, &like));
    let new = numbered(Layout { id, components: components.collect(), mirrors_dirty: false });
    let found = new.data_files().all(|file| is_one_of(candidates, file.store));
    found.then_some(new)
}

/// The same shape and the same data servers, with fresh data files under `id`.
pub(crate) fn again(id: DataFileId, old: &Layout) -> Layout {
    let components = old.components.iter().map(|old| Component { handed_out: false, ..old.clone() });
    numbered(Layout { id, components: components.collect(), mirrors_dirty: false })
}

/// A component that no client has seen, with data servers that take no new files replaced by such that are `like` them; all else
/// stays, and so does what finds nobody.
pub(crate) fn repaired(
    component: &Component,
    candidates: &[Candidate],
    turn: u64,
    like: impl Fn(StoreId) -> Wanted,
) -> Component {
    let wheel = Wheel::of(candidates, turn);
    let usable = |file: &DataFile| is_one_of(candidates, file.store);
    let mut new = Component { handed_out: false, ..component.clone() };
    let mut next = 0;
    for column in new.slots.chunks_mut(usize::from(component.mirrors.max(1))) {
        let mut taken: Vec<DataFile> = column.iter().filter(|file| usable(file)).copied().collect();
        for file in column.iter_mut().filter(|file| !usable(file)) {
            if let Some(free) = wheel.next(next, &taken, like(file.store)) {
                next = free + 1;
                file.store = wheel.store(free);
            }
            taken.push(*file);
        }
    }
    new
}

fn is_one_of(candidates: &[Candidate], store: StoreId) -> bool {
    candidates.iter().any(|candidate| candidate.store == store)
}

/// Slots counted through, and everything else as of a data file that does not exist yet.
fn numbered(mut layout: Layout) -> Layout {
    let slots = layout.components.iter_mut().flat_map(|component| &mut component.slots);
    for (slot, file) in (0..).zip(slots) {
        *file = DataFile { store: file.store, slot, generation: 1, ..DataFile::default() };
    }
    layout
}

/// The candidates in a circle, from the one whose turn it is.
struct Wheel<'a> {
    candidates: &'a [Candidate],
    start: usize,
}

impl<'a> Wheel<'a> {
    fn of(candidates: &'a [Candidate], turn: u64) -> Self {
        Self { candidates, start: start(candidates, turn) }
    }

    fn len(&self) -> usize {
        self.candidates.len()
    }

    fn at(&self, at: usize) -> Option<&Candidate> {
        self.candidates.get((self.start + at) % self.len().max(1))
    }

    fn store(&self, at: usize) -> StoreId {
        self.at(at).map(|candidate| candidate.store).unwrap_or_default()
    }

    fn host(&self, at: usize) -> Option<IpAddr> {
        self.at(at).and_then(|candidate| candidate.host)
    }

    /// The first from here on that is `wanted` and none of `taken`, on a host of its own if there is one left.
    fn next(&self, from: usize, taken: &[DataFile], wanted: Wanted) -> Option<usize> {
        let has = |candidate: &&Candidate| taken.iter().any(|file| file.store == candidate.store);
        let hosts: Vec<IpAddr> = match taken {
            [] => Vec::new(),
            _ => self.candidates.iter().filter(has).filter_map(|candidate| candidate.host).collect(),
        };
        // A whole turn of the wheel meets every candidate.
        let turn = from..from + self.len();
        let may = |candidate: &Candidate| wanted.takes(candidate.class) && !has(&candidate);
        let free = || turn.clone().filter(|at| self.at(*at).is_some_and(may));
        let apart = |at: &usize| self.host(*at).is_none_or(|host| !hosts.contains(&host));
        free().find(apart).or_else(|| free().next())
    }

    /// The mirrors of a column are neighbours, and those of the next column begin one further: the load of
    /// a data server that fails is taken over by several others.
    fn component(
        &self,
        bytes: std::ops::Range<u64>,
        stripe_unit: u64,
        (width, mirrors): (usize, usize),
        from: usize,
    ) -> Component {
        let mut slots: Vec<DataFile> = Vec::with_capacity(width * mirrors);
        for column in 0..width {
            let (begin, mut next) = (slots.len(), from + column);
            for _ in 0..mirrors {
                let taken = slots.get(begin..).unwrap_or_default();
                let at = self.next(next, taken, Wanted::Any).unwrap_or(next);
                slots.push(DataFile { store: self.store(at), ..DataFile::default() });
                next = at + 1;
            }
        }
        Component {
            start: bytes.start,
            end: bytes.end,
            stripe_unit,
            width: u16::try_from(width).unwrap_or(1),
            mirrors: u16::try_from(mirrors).unwrap_or(1),
            handed_out: false,
            slots,
        }
    }
}

/// Where the file of this turn begins. Data servers about equally free take strict turns; else each takes
/// its share of the free space, spread as evenly as it goes.
pub(crate) fn start(candidates: &[Candidate], turn: u64) -> usize {
    let most = candidates.iter().map(|candidate| candidate.free_bytes).max().unwrap_or(0);
    // Sixteenths of the freest: small differences do not disturb the turns.
    let share = |candidate: &Candidate| match most {
        0 => 16,
        _ => u64::try_from(u128::from(candidate.free_bytes) * 16 / u128::from(most)).unwrap_or(16).max(1),
    };
    let count = u64::try_from(candidates.len()).unwrap_or(1).max(1);
    if candidates.iter().all(|candidate| share(candidate) >= 15) {
        return usize::try_from(turn % count).unwrap_or(0);
    }
    let total: u64 = candidates.iter().map(share).sum();
    // Multiples of the golden ratio, modulo one, fill the circle more evenly than chance does.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let point = (u128::from(turn.wrapping_mul(GOLDEN)) * u128::from(total)) >> 64;
    let mut passed = 0;
    let found = candidates.iter().position(|candidate| {
        passed += u128::from(share(candidate));
        point < passed
    });
    found.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const FIRST: u64 = 64 << 20;

    fn stores(n: u16) -> Vec<Candidate> {
        (1..=n)
            .map(|n| Candidate { store: StoreId(n), free_bytes: 1 << 40, host: None, class: None })
            .collect()
    }

    fn policy(shape: Shape, mirrors: u8) -> LayoutPolicy {
        LayoutPolicy { shape, mirrors, inline: 0, class: None }
    }

    fn placed(shape: Shape, mirrors: u8, candidates: &[Candidate], turn: u64) -> Layout {
        place(DataFileId(7), policy(shape, mirrors), candidates, turn, FIRST).unwrap()
    }

    #[test]
    fn a_default_file_begins_on_one_data_server_and_grows_over_all() {
        for turn in 0..5 {
            let layout = placed(Shape::Default, 0, &stores(4), turn);
            let [first, rest] = &layout.components[..] else { panic!("{layout:?}") };
            assert_eq!((first.start, first.end, first.width), (0, FIRST, 1));
            assert_eq!((rest.start, rest.end, rest.width, rest.stripe_unit), (FIRST, u64::MAX, 4, 64 << 20));
            // What follows the beginning is elsewhere.
            assert_ne!(first.slots[0].store, rest.column(FIRST).unwrap()[0].store);
            let stores: BTreeSet<_> = rest.slots.iter().map(|file| file.store).collect();
            assert_eq!(stores.len(), 4);
        }
    }

    /// One component is one segment to a client that knows stripes.
    #[test]
    fn a_mirrored_file_has_no_place_where_linux_mixes_up_its_mirrors() {
        for shape in [Shape::Default, Shape::Small, Shape::Wide, Shape::WideAny] {
            for candidates in 2..12 {
                let layout = placed(shape, 2, &stores(candidates), 5);
                let [whole] = &layout.components[..] else { panic!("{shape:?}: {layout:?}") };
                assert_eq!((whole.start, whole.end, whole.mirrors), (0, u64::MAX, 2));
            }
        }
    }

    #[test]
    fn one_data_server_means_one_component() {
        for shape in [Shape::Default, Shape::Small, Shape::Wide, Shape::WideAny] {
            let layout = placed(shape, 0, &stores(1), 3);
            assert_eq!(layout.components.len(), 1, "{shape:?}");
            assert_eq!(layout.components[0].slots.len(), 1, "{shape:?}");
        }
    }

    #[test]
    fn wide_takes_as_many_as_a_layout_body_holds() {
        for (mirrors, candidates, width) in [(1, 100, 36), (2, 100, 18), (3, 100, 12), (1, 5, 5), (2, 5, 5)] {
            let layout = placed(Shape::Wide, mirrors, &stores(candidates), 11);
            assert_eq!(layout.components[0].width, width);
            assert_eq!(layout.components[0].stripe_unit, 1 << 20);
        }
    }

    #[test]
    fn turns_are_strict_when_all_are_equally_free() {
        let mut count = BTreeMap::new();
        for turn in 0..64 {
            let layout = placed(Shape::Small, 0, &stores(4), turn);
            *count.entry(layout.components[0].slots[0].store).or_insert(0) += 1;
        }
        assert!(count.values().all(|n| *n == 16), "{count:?}");
    }

    #[test]
    fn each_takes_its_share_of_the_free_space() {
        let mut candidates = stores(4);
        candidates[2].free_bytes /= 4;
        let mut count = BTreeMap::new();
        for turn in 0..1300 {
            let layout = placed(Shape::Small, 0, &candidates, turn);
            *count.entry(layout.components[0].slots[0].store.0).or_insert(0) += 1;
        }
        assert!((95..=105).contains(&count[&3]), "{count:?}");
        assert!([1, 2, 4].iter().all(|n| (390..=410).contains(&count[n])), "{count:?}");
    }

    #[test]
    fn too_few_for_the_mirrors_is_no_layout() {
        assert!(place(DataFileId(1), policy(Shape::Small, 3), &stores(2), 0, FIRST).is_none());
        assert!(place(DataFileId(1), policy(Shape::Small, 1), &[], 0, FIRST).is_none());
    }

    #[test]
    fn a_repair_touches_only_what_must_go() {
        let old = placed(Shape::Default, 2, &stores(5), 2);
        let left: Vec<_> = stores(5).into_iter().filter(|candidate| candidate.store != StoreId(4)).collect();
        let new = renewed(DataFileId(8), &old, &left, 9, |_| Wanted::Any).unwrap();
        assert!(new.is_valid() && mirrors_are_apart(&new));
        for (before, after) in old.data_files().zip(new.data_files()) {
            assert_eq!(before.slot, after.slot);
            assert_ne!(after.store, StoreId(4));
            assert!(before.store == StoreId(4) || before.store == after.store);
        }
    }

    #[test]
    fn a_repair_stays_within_the_class_of_what_goes_and_is_none_where_that_has_nobody_left() {
        let class = |store: StoreId| Class::parse(if store.0 <= 3 { "archive" } else { "nvme" });
        let all: Vec<_> = stores(6)
            .into_iter()
            .map(|candidate| Candidate { class: class(candidate.store), ..candidate })
            .collect();
        for turn in 0..12 {
            let old = placed(Shape::Small, 2, &all[..3], turn);
            let (gone, stays) = (old.components[0].slots[0].store, old.components[0].slots[1].store);
            let left: Vec<_> = all.iter().filter(|candidate| candidate.store != gone).copied().collect();
            let like = |store| Wanted::Of(class(store));
            let new = renewed(DataFileId(8), &old, &left, turn, like).unwrap();
            let [first, second] = &new.components[0].slots[..] else { panic!("{new:?}") };
            assert!(first.store.0 <= 3 && first.store != gone && second.store == stays, "{new:?}");
            // Two of three are gone.
            let left: Vec<_> = left
                .iter()
                .filter(|candidate| candidate.store == stays || candidate.store.0 > 3)
                .copied()
                .collect();
            assert_eq!(renewed(DataFileId(8), &old, &left, turn, like), None);
            assert!(renewed(DataFileId(8), &old, &left, turn, |_| Wanted::Any).is_some());
        }
    }

    /// A data server of another class that is full or away is in nobody's way.
    #[test]
    fn what_finds_nobody_stays_and_keeps_nothing_else() {
        let all = stores(6);
        let class = |store: StoreId| Class::parse(if store == StoreId(6) { "archive" } else { "nvme" });
        let like = |store| Wanted::Of(class(store));
        let old = placed(Shape::Wide, 1, &all, 0).components.remove(0);
        let left: Vec<_> = all[1..5]
            .iter()
            .map(|candidate| Candidate { class: class(candidate.store), ..*candidate })
            .collect();
        let new = repaired(&old, &left, 3, like);
        for (before, after) in old.slots.iter().zip(&new.slots) {
            assert_ne!(after.store, StoreId(1));
            assert!(before.store == StoreId(1) || before.store == after.store, "{new:?}");
        }
    }

    /// Devices of hosts that were added one host after the other.
    fn hosts(devices: &[u8]) -> Vec<Candidate> {
        let each = (0..).zip(devices).flat_map(|(host, count)| (0..*count).map(move |_| host));
        let mut all: Vec<Candidate> = (1..)
            .zip(each)
            .map(|(n, host)| Candidate {
                store: StoreId(n),
                free_bytes: 1 << 40,
                host: Some(IpAddr::from([10, 0, 0, host])),
                class: None,
            })
            .collect();
        interleave(&mut all);
        all
    }

    fn host_of(candidates: &[Candidate], store: StoreId) -> IpAddr {
        candidates.iter().find(|candidate| candidate.store == store).and_then(|found| found.host).unwrap()
    }

    #[test]
    fn mirrors_are_on_different_hosts() {
        for devices in [&[4, 4][..], &[4, 4, 4], &[3, 1, 2], &[4, 1], &[1, 5, 1, 1]] {
            let candidates = hosts(devices);
            let mut held = BTreeMap::new();
            for shape in [Shape::Small, Shape::Default, Shape::Wide, Shape::WideAny] {
                for turn in 0..840 {
                    let layout = placed(shape, 2, &candidates, turn);
                    for column in layout.columns() {
                        let of: BTreeSet<_> =
                            column.iter().map(|file| host_of(&candidates, file.store)).collect();
                        assert_eq!(of.len(), 2, "{devices:?} {shape:?} {turn} {column:?}");
                    }
                    let first = layout.components[0].slots.iter();
                    first.for_each(|file| *held.entry(file.store).or_insert(0u32) += 1);
                }
            }
            // Hosts alike share the load evenly.
            if devices.windows(2).all(|pair| pair[0] == pair[1]) {
                assert_eq!(held.values().min(), held.values().max(), "{devices:?} {held:?}");
            }
        }
    }

    #[test]
    fn one_host_has_all_mirrors_where_there_is_no_other() {
        let candidates = hosts(&[3]);
        assert!(candidates.windows(2).all(|pair| pair[0].store < pair[1].store));
        assert!(mirrors_are_apart(&placed(Shape::Default, 3, &candidates, 1)));
        // Two hosts for three mirrors.
        let candidates = hosts(&[2, 2]);
        for turn in 0..8 {
            let layout = placed(Shape::Wide, 3, &candidates, turn);
            assert!(mirrors_are_apart(&layout));
            let column = layout.columns().next().unwrap();
            let of: BTreeSet<_> = column.iter().map(|file| host_of(&candidates, file.store)).collect();
            assert_eq!(of.len(), 2);
        }
    }

    #[test]
    fn what_takes_the_place_of_a_mirror_is_on_another_host_than_the_one_that_is_left() {
        let candidates = hosts(&[2, 2, 2]);
        for turn in 0..24 {
            let layout = placed(Shape::Small, 2, &candidates, turn);
            let gone = layout.components[0].slots[0].store;
            let left: Vec<_> =
                candidates.iter().filter(|candidate| candidate.store != gone).copied().collect();
            let new = repaired(&layout.components[0], &left, turn + 1, |_| Wanted::Any);
            let of: BTreeSet<_> = new.slots.iter().map(|file| host_of(&candidates, file.store)).collect();
            assert_eq!(of.len(), 2, "{new:?}");
            let stays = host_of(&candidates, layout.components[0].slots[1].store);
            let free = elsewhere(left.clone(), &[stays]);
            assert!(!free.is_empty() && free.iter().all(|candidate| candidate.host != Some(stays)));
        }
        let all = hosts(&[2]);
        assert_eq!(elsewhere(all.clone(), &[IpAddr::from([10, 0, 0, 0])]), all, "rather there than nowhere");
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        prop_oneof![Just(Shape::Default), Just(Shape::Small), Just(Shape::Wide), Just(Shape::WideAny)]
    }

    fn mirrors_are_apart(layout: &Layout) -> bool {
        layout.components.iter().all(|component| {
            component.slots.chunks(usize::from(component.mirrors)).all(|column| {
                column.iter().map(|file| file.store).collect::<BTreeSet<_>>().len() == column.len()
            })
        })
    }

    proptest! {
        #[test]
        fn layouts_are_valid_and_mirrors_apart(
            shape in shapes(),
            mirrors in 0u8..5,
            free in prop::collection::vec(0u64..1 << 50, 1..50),
            turn: u64,
            first in 0u64..1 << 31,
            gone in 0usize..50,
        ) {
            let candidates: Vec<_> = (1..)
                .zip(&free)
                .map(|(n, free)| Candidate { store: StoreId(n), free_bytes: *free, host: None, class: None })
                .collect();
            let layout = place(DataFileId(1), policy(shape, mirrors), &candidates, turn, first);
            prop_assert_eq!(layout.is_some(), candidates.len() >= usize::from(mirrors.max(1)));
            if let Some(layout) = layout {
                prop_assert!(layout.is_valid());
                prop_assert!(mirrors_are_apart(&layout));
                for component in &layout.components {
                    prop_assert!(component.stripe_unit.is_power_of_two());
                    prop_assert_eq!(component.start % component.stripe_unit, 0);
                }
                let mut left = candidates.clone();
                left.remove(gone % candidates.len());
                let renewed = renewed(DataFileId(2), &layout, &left, turn, |_| Wanted::Any);
                prop_assert_eq!(renewed.is_some(), left.len() >= usize::from(mirrors.max(1)));
                if let Some(renewed) = renewed {
                    prop_assert!(renewed.is_valid() && mirrors_are_apart(&renewed));
                }
            }
        }
    }
}
