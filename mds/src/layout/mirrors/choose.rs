//! Which data servers get further mirrors of a file, and which mirrors are given up. Pure.

use std::cmp::Reverse;
use std::net::IpAddr;

use sluice_namespace::{Component, DataFile, Layout, StoreId, is_one_segment_from_now_on};

use crate::layout::placement::{self, Candidate, Wanted};

/// Why there is no place for a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// A component has so many columns that it can have this many mirrors at most.
    TooWide(usize),
    /// Fewer data servers than mirrors take new files.
    TooFew,
    /// Those that have none yet have no room for what there is to copy.
    NoRoom,
}

/// What a file gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Added {
    /// As [`sluice_namespace::Namespace::add_mirrors`] takes them.
    pub(super) places: Vec<Vec<StoreId>>,
    /// To be copied, at most.
    pub(super) bytes: u64,
}

impl Added {
    pub(super) fn is_nothing(&self) -> bool {
        self.places.iter().all(Vec::is_empty)
    }
}

/// Places for what every column lacks of `mirrors`, on hosts that have none yet where there are such. The file has `size` bytes,
/// which take up `space`. `host`: of a data server that may not be among the candidates. What a column gets is `like` what it has.
pub(super) fn add(
    layout: &Layout,
    (size, space): (u64, u64),
    mirrors: u16,
    candidates: &[Candidate],
    turn: u64,
    host: impl Fn(StoreId) -> Option<IpAddr>,
    like: impl Fn(StoreId) -> Wanted,
) -> Result<Added, NoPlace> {
    let whole = is_one_segment_from_now_on(layout, size);
    let components = layout.components.iter().take(if whole { 1 } else { usize::MAX });
    let (mut candidates, mut added) = (candidates.to_vec(), Added::default());
    for component in components {
        let lacks = usize::from(mirrors.saturating_sub(component.mirrors));
        if lacks > 0 && usize::from(mirrors) * usize::from(component.width) > Component::MAX_SLOTS {
            return Err(NoPlace::TooWide(Component::MAX_SLOTS / usize::from(component.width.max(1))));
        }
        for (index, column) in component.slots.chunks(usize::from(component.mirrors.max(1))).enumerate() {
            let bytes = match component.is_untouched(size) {
                true => 0,
                false => component.bytes_of_column(index, size).min(space),
            };
            let mut taken: Vec<StoreId> = column.iter().map(|file| file.store).collect();
            let wanted = column.first().map_or(Wanted::Any, |file| like(file.store));
            for _ in 0..lacks {
                let store = next(&mut candidates, wanted, &taken, bytes, turn, &host)?;
                taken.push(store);
                added.bytes = added.bytes.saturating_add(bytes);
            }
            added.places.push(taken.split_off(column.len()));
        }
    }
    Ok(added)
}

/// One more beside these; what is to be copied there is not free any more.
fn next(
    candidates: &mut [Candidate],
    wanted: Wanted,
    taken: &[StoreId],
    bytes: u64,
    turn: u64,
    host: &impl Fn(StoreId) -> Option<IpAddr>,
) -> Result<StoreId, NoPlace> {
    let other = |candidate: &&Candidate| wanted.takes(candidate.class) && !taken.contains(&candidate.store);
    let others: Vec<Candidate> = candidates.iter().filter(other).copied().collect();
    if others.is_empty() {
        return Err(NoPlace::TooFew);
    }
    let roomy: Vec<Candidate> =
        others.into_iter().filter(|candidate| candidate.free_bytes >= bytes).collect();
    let hosts: Vec<IpAddr> = taken.iter().filter_map(|store| host(*store)).collect();
    let apart = placement::elsewhere(roomy, &hosts);
    let chosen = apart.get(placement::start(&apart, turn)).ok_or(NoPlace::NoRoom)?.store;
    for candidate in candidates.iter_mut().filter(|candidate| candidate.store == chosen) {
        candidate.free_bytes = candidate.free_bytes.saturating_sub(bytes);
    }
    Ok(chosen)
}

/// The slots to give up so that no column has more than `mirrors`: of each column what shares a host with what stays, then what
/// is where least is free, as `at` says of a data server.
pub(super) fn drop(layout: &Layout, mirrors: u16, at: impl Fn(StoreId) -> (Option<IpAddr>, u64)) -> Vec<u16> {
    // Slot numbers grow: what has the greatest stays.
    let greatest = layout.data_files().map(|file| file.slot).max();
    let mut slots = Vec::new();
    for column in layout.columns() {
        let mut stay: Vec<&DataFile> = column.iter().collect();
        while stay.len() > usize::from(mirrors.max(1)) {
            let beside = |file: &DataFile| {
                let host = at(file.store).0;
                host.is_some()
                    && stay.iter().any(|other| other.slot != file.slot && at(other.store).0 == host)
            };
            let may = stay.iter().enumerate().filter(|(_, file)| Some(file.slot) != greatest);
            let worst = may.max_by_key(|(_, file)| (beside(file), Reverse(at(file.store).1), file.slot));
            let Some((index, _)) = worst else { break };
            slots.push(stay.remove(index).slot);
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use sluice_namespace::{Class, DataFileId, LayoutPolicy, Shape};

    use super::*;

    fn ip(n: u16) -> Option<IpAddr> {
        Some(Ipv4Addr::new(10, 0, 0, u8::try_from(n).unwrap()).into())
    }

    /// Data servers 1 to `n`, two to a host.
    fn candidates(n: u16) -> Vec<Candidate> {
        let candidate =
            |n| Candidate { store: StoreId(n), free_bytes: 1 << 40, host: ip(n.div_ceil(2)), class: None };
        (1..=n).map(candidate).collect()
    }

    fn host(store: StoreId) -> Option<IpAddr> {
        ip(store.0.div_ceil(2))
    }

    fn layout(shape: Shape, mirrors: u8, servers: u16) -> Layout {
        let policy = LayoutPolicy { shape, mirrors, inline: 0, class: None };
        let mut layout = placement::place(DataFileId(1), policy, &candidates(servers), 0, 64 << 20).unwrap();
        layout.components[0].handed_out = true;
        layout
    }

    fn added(layout: &Layout, size: u64, mirrors: u16, servers: u16) -> Result<Added, NoPlace> {
        add(layout, (size, size), mirrors, &candidates(servers), 0, host, |_| Wanted::Any)
    }

    #[test]
    fn every_column_gets_what_it_lacks_on_a_host_of_its_own() {
        let one = layout(Shape::Small, 1, 4);
        let found = added(&one, 10 << 20, 2, 4).unwrap();
        assert_eq!((found.places.len(), found.bytes), (1, 10 << 20));
        assert_ne!(host(found.places[0][0]), host(one.components[0].slots[0].store));
        let wide = layout(Shape::Wide, 2, 6);
        let found = added(&wide, 12 << 20, 3, 6).unwrap();
        assert_eq!((found.places.len(), found.bytes), (6, 12 << 20));
        for (column, places) in wide.columns().zip(&found.places) {
            let [place] = places[..] else { panic!("{places:?}") };
            assert!(column.iter().all(|file| file.store != place && host(file.store) != host(place)));
        }
        assert!(added(&wide, 12 << 20, 2, 6).unwrap().is_nothing());
        assert!(added(&wide, 12 << 20, 1, 6).unwrap().is_nothing());
    }

    #[test]
    fn a_part_that_nobody_has_seen_gets_none_and_one_that_is_in_use_does() {
        let mut two = layout(Shape::Default, 1, 4);
        assert_eq!(two.components.len(), 2);
        assert_eq!(added(&two, 1 << 20, 2, 4).unwrap().places.len(), 1);
        two.components[1].handed_out = true;
        let found = added(&two, 1 << 20, 2, 4).unwrap();
        assert_eq!((found.places.len(), found.bytes), (5, 1 << 20));
    }

    #[test]
    fn where_there_is_no_place_it_is_said_why() {
        let wide = layout(Shape::Wide, 1, 6);
        assert_eq!(added(&wide, 1, 7, 6), Err(NoPlace::TooWide(6)));
        let one = layout(Shape::Small, 1, 2);
        assert_eq!(added(&one, 1, 3, 2), Err(NoPlace::TooFew));
        assert_eq!(added(&one, 1 << 41, 2, 2), Err(NoPlace::NoRoom));
        // Two columns do not both go where there is room for one.
        let wide = layout(Shape::Wide, 1, 2);
        let mut few = candidates(3);
        few.iter_mut().for_each(|candidate| candidate.free_bytes = 1 << 20);
        let size = (4 << 20, 4 << 20);
        assert_eq!(add(&wide, size, 2, &few, 0, host, |_| Wanted::Any), Err(NoPlace::NoRoom));
        few.iter_mut().for_each(|candidate| candidate.free_bytes = 2 << 20);
        let found = add(&wide, size, 2, &few, 0, host, |_| Wanted::Any).unwrap();
        assert_ne!(found.places[0], found.places[1]);
    }

    #[test]
    fn a_copy_is_of_the_class_of_what_it_copies() {
        let class = |store: StoreId| Class::parse(if store.0 <= 2 { "archive" } else { "nvme" });
        let mut all = candidates(6);
        all.iter_mut().for_each(|candidate| candidate.class = class(candidate.store));
        let one = layout(Shape::Small, 1, 2);
        let like = |store| Wanted::Of(class(store));
        let found = add(&one, (9, 9), 2, &all, 0, host, like).unwrap();
        let both = [one.components[0].slots[0].store.0, found.places[0][0].0];
        assert_eq!(both.into_iter().sum::<u16>(), 3, "{both:?}");
        assert_eq!(add(&one, (9, 9), 3, &all, 0, host, like), Err(NoPlace::TooFew));
        assert!(add(&one, (9, 9), 3, &all, 0, host, |_| Wanted::Any).is_ok());
    }

    #[test]
    fn what_is_given_up_leaves_every_column_alike_and_the_greatest_slot() {
        let at = |store: StoreId| (host(store), u64::from(store.0) << 30);
        for (shape, mirrors, left) in
            [(Shape::Small, 2, 1), (Shape::Wide, 2, 1), (Shape::Wide, 3, 2), (Shape::Wide, 3, 1)]
        {
            let layout = layout(shape, mirrors, 6);
            let slots = drop(&layout, left, at);
            let columns: Vec<_> = layout.columns().collect();
            let stay = |column: &&[DataFile]| column.iter().filter(|f| !slots.contains(&f.slot)).count();
            assert!(columns.iter().all(|column| stay(column) == usize::from(left)), "{slots:?}");
            assert!(!slots.contains(&layout.data_files().map(|file| file.slot).max().unwrap()));
        }
        assert!(drop(&layout(Shape::Wide, 2, 6), 2, at).is_empty());
    }

    #[test]
    fn of_those_on_one_host_one_is_given_up_and_else_the_fuller() {
        let mut layout = layout(Shape::Small, 3, 6);
        let places = [1, 2, 5];
        for (file, store) in layout.components[0].slots.iter_mut().zip(places) {
            file.store = StoreId(store);
        }
        let at = |store: StoreId| (host(store), if store.0 == 2 { 1 } else { 2 });
        assert_eq!(drop(&layout, 2, at), [1], "2 is beside 1, and is fuller");
        assert_eq!(drop(&layout, 1, at), [1, 0], "what has the greatest slot stays");
    }
}
