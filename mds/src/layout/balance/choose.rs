//! How full devices are, who gives how much, and who takes what: among those of a class (docs/adr/0041). Pure: no clock, and
//! nothing is asked.

use std::collections::{BTreeMap, BTreeSet};

use sluice_namespace::{Class, StoreId};

/// All of a device, in the unit of shares.
const WHOLE: u64 = 1 << 32;
/// Of a device, the part that stays free whatever is moved there: one in so many.
const SPARE: u64 = 20;
/// Sizes beyond are taken for this, so that products of two fit.
const MOST: u64 = 1 << 60;

/// A device, and the data servers that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) stores: Vec<StoreId>,
    pub(crate) used: u64,
    pub(crate) total: u64,
    pub(crate) role: Role,
    pub(crate) class: Option<Class>,
}

/// What a device does in a balance. A role is kept for as long as it lasts: what was moved stays where it is then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Gives,
    Takes,
    /// It counts, and nothing is moved there or away.
    Stays,
}

/// So many bytes are to go from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) from: StoreId,
    pub(crate) to: StoreId,
    pub(crate) bytes: u64,
}

/// Devices, and what each of them has still to give or to take.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    devices: Vec<Device>,
    left: Vec<u64>,
    means: Means,
}

/// The used share of all devices of a class together.
type Means = BTreeMap<Option<Class>, u64>;

/// Data servers of devices that are fuller than the mean of their class.
pub(crate) fn fuller(devices: &[Device]) -> BTreeSet<StoreId> {
    let means = means(devices);
    let above = devices.iter().filter(|device| device.share() > mean_for(&means, device));
    above.flat_map(|device| device.stores.iter().copied()).collect()
}

fn means(devices: &[Device]) -> Means {
    let classes: BTreeSet<Option<Class>> = devices.iter().map(|device| device.class).collect();
    let of = |class: Option<Class>| (class, mean(devices.iter().filter(|device| device.class == class)));
    classes.into_iter().map(of).collect()
}

fn mean_for(means: &Means, device: &Device) -> u64 {
    means.get(&device.class).copied().unwrap_or(0)
}

fn mean<'a>(devices: impl Iterator<Item = &'a Device>) -> u64 {
    let (mut used, mut total) = (0_u128, 0_u128);
    for device in devices {
        used += u128::from(device.used);
        total += u128::from(device.total);
    }
    part(used, total)
}

fn part(used: u128, total: u128) -> u64 {
    let whole = u128::from(WHOLE);
    (used * whole).checked_div(total).map_or(0, |part| u64::try_from(part.min(whole)).unwrap_or(WHOLE))
}

fn thousandths(share: u64) -> u16 {
    u16::try_from((u128::from(share) * 1000 + u128::from(WHOLE / 2)) / u128::from(WHOLE)).unwrap_or(1000)
}

impl Device {
    pub(crate) fn new(stores: Vec<StoreId>, used: u64, total: u64, role: Role) -> Self {
        let total = total.clamp(1, MOST);
        Self { stores, used: used.min(total), total, role, class: None }
    }

    pub(crate) fn of(self, class: Option<Class>) -> Self {
        Self { class, ..self }
    }

    fn share(&self) -> u64 {
        part(self.used.into(), self.total.into())
    }

    /// How many bytes a share is.
    fn bytes(&self, share: u64) -> u64 {
        u64::try_from(u128::from(self.total) * u128::from(share) / u128::from(WHOLE)).unwrap_or(self.total)
    }

    /// What is free of it for others.
    fn room(&self) -> u64 {
        (self.total - self.used).saturating_sub(self.total / SPARE)
    }

    fn above(&self, share: u64) -> u64 {
        if self.role == Role::Gives { self.used.saturating_sub(self.bytes(share)) } else { 0 }
    }

    fn below(&self, share: u64) -> u64 {
        if self.role == Role::Takes {
            self.bytes(share).saturating_sub(self.used).min(self.room())
        } else {
            0
        }
    }
}

impl Levels {
    /// The least that brings all of them to within `tolerance`, in thousandths, of the mean of their class, and a little more, so that
    /// clients may go on: the fullest give first, and the emptiest take first.
    pub(crate) fn of(devices: Vec<Device>, tolerance: u16) -> Self {
        let mut levels = Self { left: vec![0; devices.len()], means: means(&devices), devices };
        for (class, mean) in levels.means.clone() {
            if !levels.is_even_in(class, mean, tolerance) {
                levels.level(class, mean, tolerance);
            }
        }
        levels
    }

    fn in_class(&self, class: Option<Class>) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(move |device| device.class == class)
    }

    /// What each device of a class has to give or to take.
    fn level(&mut self, class: Option<Class>, mean: u64, tolerance: u16) {
        let aim = u64::from(tolerance) * WHOLE / 2000;
        let above = |share| self.in_class(class).map(|device| u128::from(device.above(share))).sum::<u128>();
        let below = |share| self.in_class(class).map(|device| u128::from(device.below(share))).sum::<u128>();
        let wanted = above(mean.saturating_add(aim)).max(below(mean.saturating_sub(aim)));
        let goal = wanted.min(above(mean)).min(below(mean));
        // The highest level down to which so much is given, and the lowest one up to which it is taken.
        let floor = last(mean..WHOLE, |share| above(share) >= goal);
        let ceiling = mean - last(0..mean, |down| below(mean - down) >= goal);
        for (device, left) in
            self.devices.iter().zip(&mut self.left).filter(|(device, _)| device.class == class)
        {
            *left = device.above(floor).saturating_add(device.below(ceiling));
        }
    }

    /// There are devices of several classes, or of some class and of none.
    pub(crate) fn has_classes(&self) -> bool {
        self.means.len() > 1
    }

    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Thousandths of all devices together that are in use.
    pub(crate) fn mean(&self) -> u16 {
        thousandths(mean(self.devices.iter()))
    }

    /// Thousandths between the fullest device and the emptiest one, of the class where they are furthest apart.
    pub(crate) fn spread(&self) -> u16 {
        let spread = |class: &Option<Class>| {
            let shares = || self.in_class(*class).map(Device::share);
            shares().max().unwrap_or(0) - shares().min().unwrap_or(0)
        };
        thousandths(self.means.keys().map(spread).max().unwrap_or(0))
    }

    /// Every device is within so many thousandths of the mean of its class.
    pub(crate) fn is_even(&self, tolerance: u16) -> bool {
        self.means.iter().all(|(class, mean)| self.is_even_in(*class, *mean, tolerance))
    }

    fn is_even_in(&self, class: Option<Class>, mean: u64, tolerance: u16) -> bool {
        let tolerance = u64::from(tolerance) * WHOLE / 1000;
        self.in_class(class).all(|device| device.share().abs_diff(mean) <= tolerance)
    }

    /// Bytes that are still to be given, by all of them and by the one that this data server is on.
    pub(crate) fn to_give(&self) -> u64 {
        let of = |class: &Option<Class>| self.sum(*class, Role::Gives).min(self.sum(*class, Role::Takes));
        self.means.keys().map(of).fold(0, u64::saturating_add)
    }

    pub(crate) fn gives(&self, store: StoreId) -> u64 {
        self.left_of(store, Role::Gives)
    }

    pub(crate) fn takes(&self, store: StoreId) -> u64 {
        self.left_of(store, Role::Takes)
    }

    fn left_of(&self, store: StoreId, role: Role) -> u64 {
        let mut all = self.devices.iter().zip(&self.left);
        let found = all.find(|(device, _)| device.role == role && device.stores.contains(&store));
        found.map_or(0, |(_, left)| *left)
    }

    fn sum(&self, class: Option<Class>, role: Role) -> u64 {
        let each = self.devices.iter().zip(&self.left);
        let each = each.filter(|(device, _)| device.role == role && device.class == class);
        each.fold(0, |sum: u64, (_, left)| sum.saturating_add(*left))
    }

    /// Where a data file of so many bytes goes from `from`: to the emptiest device that has still to take something, and
    /// to a data server there that `may` have it. `None`: it stays.
    pub(crate) fn choose(&self, from: StoreId, bytes: u64, may: impl Fn(StoreId) -> bool) -> Option<StoreId> {
        let giver = self.devices.iter().find(|device| device.stores.contains(&from))?;
        if bytes == 0 || self.gives(from) == 0 {
            return None;
        }
        let takers = self.devices.iter().zip(&self.left);
        let takers = takers.filter(|(device, left)| device.role == Role::Takes && **left > 0);
        let takers = takers.filter(|(device, _)| device.class == giver.class);
        let fit = takers.filter(|(device, _)| device.room() >= bytes && evens(giver, device, bytes));
        let found = fit.filter_map(|(device, _)| {
            let store = device.stores.iter().copied().find(|store| may(*store))?;
            Some((device.share(), store))
        });
        found.min().map(|(_, store)| store)
    }

    /// A data file goes, or has gone.
    pub(crate) fn moves(&mut self, from: StoreId, to: StoreId, bytes: u64) {
        self.change(from, |device, left| {
            device.used = device.used.saturating_sub(bytes);
            *left = left.saturating_sub(bytes);
        });
        self.change(to, |device, left| {
            device.used = device.used.saturating_add(bytes).min(device.total);
            *left = left.saturating_sub(bytes);
        });
    }

    /// It did not.
    pub(crate) fn stays(&mut self, from: StoreId, to: StoreId, bytes: u64) {
        self.change(from, |device, left| {
            device.used = device.used.saturating_add(bytes).min(device.total);
            *left = left.saturating_add(bytes);
        });
        self.change(to, |device, left| {
            device.used = device.used.saturating_sub(bytes);
            *left = left.saturating_add(bytes);
        });
    }

    fn change(&mut self, store: StoreId, change: impl FnOnce(&mut Device, &mut u64)) {
        let mut all = self.devices.iter_mut().zip(&mut self.left);
        if let Some((device, left)) = all.find(|(device, _)| device.stores.contains(&store)) {
            change(device, left);
        }
    }

    /// Who gives how much to whom, the largest of each class first.
    pub(crate) fn flows(&self) -> Vec<Flow> {
        self.means.keys().flat_map(|class| self.flows_in(*class)).collect()
    }

    fn flows_in(&self, class: Option<Class>) -> Vec<Flow> {
        let of = |role| {
            let each = self.devices.iter().zip(&self.left);
            let each = each.filter(move |(device, _)| device.role == role && device.class == class);
            let first = |(device, left): (&Device, &u64)| Some((*left, *device.stores.first()?));
            let mut all: Vec<(u64, StoreId)> = each.filter_map(first).filter(|(left, _)| *left > 0).collect();
            all.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
            all
        };
        let (mut givers, mut takers) = (of(Role::Gives), of(Role::Takes));
        let mut flows = Vec::new();
        let (mut next, mut into) = (givers.iter_mut(), takers.iter_mut());
        let (mut giver, mut taker) = (next.next(), into.next());
        while let (Some(gives), Some(takes)) = (giver.as_deref_mut(), taker.as_deref_mut()) {
            let bytes = gives.0.min(takes.0);
            flows.push(Flow { from: gives.1, to: takes.1, bytes });
            (gives.0, takes.0) = (gives.0 - bytes, takes.0 - bytes);
            let (given, taken) = (gives.0 == 0, takes.0 == 0);
            if given {
                giver = next.next();
            }
            if taken {
                taker = into.next();
            }
        }
        flows
    }
}

/// The two are less apart with it than without, and none of them is outside of where both were: the spread of all never
/// grows. One that changes places with the other has to gain half of the difference by that.
fn evens(giver: &Device, taker: &Device, bytes: u64) -> bool {
    let cross = |bytes: u64, total: u64| i128::from(bytes) * i128::from(total);
    let (given, taken) = (giver.used.saturating_sub(bytes), taker.used.saturating_add(bytes));
    let before = cross(giver.used, taker.total) - cross(taker.used, giver.total);
    let after = cross(given, taker.total) - cross(taken, giver.total);
    let within = cross(taken, giver.total) <= cross(giver.used, taker.total)
        && cross(given, taker.total) >= cross(taker.used, giver.total);
    before > 0 && within && (after >= 0 || -after <= before / 2)
}

/// The last of a range for which it is true, if it is for the first.
fn last(range: std::ops::Range<u64>, is: impl Fn(u64) -> bool) -> u64 {
    let (mut yes, mut no) = (range.start, range.end.max(range.start) + 1);
    while no - yes > 1 {
        let middle = yes + (no - yes) / 2;
        if is(middle) { yes = middle } else { no = middle }
    }
    yes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TB: u64 = 1 << 40;

    fn device(n: u16, used: u64, total: u64, role: Role) -> Device {
        Device::new(vec![StoreId(n)], used, total, role)
    }

    /// With the roles of a balance that begins now.
    fn begun(mut devices: Vec<Device>) -> Vec<Device> {
        let givers = fuller(&devices);
        for device in &mut devices {
            let gives = device.stores.iter().any(|store| givers.contains(store));
            device.role = if gives { Role::Gives } else { Role::Takes };
        }
        devices
    }

    fn devices(used: &[(u64, u64)]) -> Vec<Device> {
        let each = (1..).zip(used).map(|(n, (used, total))| device(n, *used, *total, Role::Stays));
        begun(each.collect())
    }

    #[test]
    fn new_devices_take_from_all_that_are_fuller_than_the_mean() {
        let levels = Levels::of(devices(&[(60, 100), (60, 100), (0, 100), (0, 100)]), 50);
        assert_eq!((levels.mean(), levels.spread()), (300, 600));
        // To within half of the tolerance.
        let gives = levels.gives(StoreId(1));
        assert!((27..=28).contains(&gives), "{gives}");
        assert_eq!(levels.gives(StoreId(3)), 0);
        let flows = levels.flows();
        assert_eq!(flows.len(), 2);
        assert_eq!((flows[0].from, flows[0].to), (StoreId(1), StoreId(3)));
        assert_eq!((flows[1].from, flows[1].to), (StoreId(2), StoreId(4)));
        assert_eq!(flows.iter().map(|flow| flow.bytes).sum::<u64>(), levels.to_give());
        // Those within the tolerance give, too, where somebody is far below.
        let mut used = vec![(50, 100); 10];
        used.push((0, 100));
        let levels = Levels::of(devices(&used), 50);
        assert!(!levels.is_even(50) && levels.to_give() > 35, "{levels:?}");
    }

    #[test]
    fn the_fullest_give_first() {
        let levels =
            Levels::of(devices(&[(90 * TB, 100 * TB), (50 * TB, 100 * TB), (40 * TB, 100 * TB)]), 100);
        assert!(levels.gives(StoreId(1)) > 20 * TB, "{levels:?}");
        assert_eq!(levels.gives(StoreId(2)), 0, "{levels:?}");
    }

    #[test]
    fn shares_count_and_not_bytes() {
        let levels = Levels::of(devices(&[(50, 100), (500, 1000)]), 10);
        assert!(levels.is_even(0) && levels.to_give() == 0 && levels.flows().is_empty());
        let levels = Levels::of(devices(&[(50, 100), (100, 1000)]), 10);
        assert!(levels.gives(StoreId(1)) > 30, "{levels:?}");
    }

    #[test]
    fn the_emptiest_that_may_takes() {
        let levels = Levels::of(devices(&[(8000, 10_000), (2000, 10_000), (1000, 10_000)]), 50);
        assert_eq!(levels.choose(StoreId(1), 10, |_| true), Some(StoreId(3)));
        assert_eq!(levels.choose(StoreId(1), 10, |store| store != StoreId(3)), Some(StoreId(2)));
        assert_eq!(levels.choose(StoreId(1), 10, |_| false), None);
        assert_eq!(levels.choose(StoreId(3), 10, |_| true), None, "who takes gives nothing");
        assert_eq!(levels.choose(StoreId(9), 10, |_| true), None);
        assert_eq!(levels.choose(StoreId(1), 0, |_| true), None);
    }

    #[test]
    fn what_would_only_change_places_stays() {
        let levels = |used| Levels::of(devices(&[(used, 1000), (0, 1000)]), 50);
        assert_eq!(levels(600).choose(StoreId(1), 600, |_| true), None);
        assert_eq!(levels(600).choose(StoreId(1), 500, |_| true), None);
        assert_eq!(levels(600).choose(StoreId(1), 440, |_| true), Some(StoreId(2)));
        assert_eq!(levels(600).choose(StoreId(1), 300, |_| true), Some(StoreId(2)));
    }

    #[test]
    fn a_device_that_several_share_is_one() {
        let mut all = vec![Device::new(vec![StoreId(1), StoreId(2)], 800, 1000, Role::Stays)];
        all.push(Device::new(vec![StoreId(3), StoreId(4)], 0, 1000, Role::Stays));
        let levels = Levels::of(begun(all), 50);
        assert_eq!(levels.gives(StoreId(1)), levels.gives(StoreId(2)));
        assert_eq!(levels.choose(StoreId(2), 100, |store| store != StoreId(3)), Some(StoreId(4)));
        assert_eq!(levels.flows().len(), 1);
    }

    #[test]
    fn classes_are_evened_out_apart_from_each_other() {
        let archive = Class::parse("archive");
        let of = |n: u16, used, class| device(n, used, 1000, Role::Stays).of(class);
        // The classes differ by far more than what is in them.
        let apart = vec![of(1, 900, archive), of(2, 880, archive), of(3, 100, None), of(4, 120, None)];
        let levels = Levels::of(begun(apart), 50);
        assert!(levels.is_even(50) && levels.to_give() == 0 && levels.flows().is_empty(), "{levels:?}");
        assert_eq!((levels.spread(), levels.has_classes()), (20, true));
        let one = vec![of(1, 900, archive), of(2, 500, archive), of(3, 0, None), of(4, 10, None)];
        let levels = Levels::of(begun(one), 50);
        assert!(
            !levels.is_even(50) && levels.gives(StoreId(3)) + levels.gives(StoreId(4)) == 0,
            "{levels:?}"
        );
        assert_eq!(levels.choose(StoreId(1), 10, |_| true), Some(StoreId(2)), "the emptiest of its class");
        assert_eq!(levels.choose(StoreId(1), 10, |store| store != StoreId(2)), None);
        let flows: Vec<_> = levels.flows().iter().map(|flow| (flow.from.0, flow.to.0)).collect();
        assert_eq!(flows, [(1, 2)]);
        assert_eq!(levels.flows()[0].bytes, levels.to_give());
    }

    /// Whether the spread is as it was, or less: exactly.
    fn no_wider(before: &[Device], after: &[Device]) -> bool {
        let less = |one: &Device, other: &Device| {
            u128::from(one.used) * u128::from(other.total) < u128::from(other.used) * u128::from(one.total)
        };
        // No one is below, or above, all that were there.
        after.iter().all(|device| {
            !before.iter().all(|other| less(device, other)) && !before.iter().all(|other| less(other, device))
        })
    }

    proptest! {
        #[test]
        fn moves_never_widen_the_spread_and_come_to_an_end(
            totals in prop::collection::vec(1_000u64..1 << 40, 2..8),
            parts in prop::collection::vec(0u64..=100, 8),
            sizes in prop::collection::vec((0usize..8, 1u64..1 << 34), 0..200),
            tolerance in 1u16..300,
        ) {
            let used: Vec<_> = totals.iter().zip(&parts).map(|(total, part)| (total / 100 * part, *total)).collect();
            let mut levels = Levels::of(devices(&used), tolerance);
            let roles: Vec<Role> = levels.devices().iter().map(|device| device.role).collect();
            // Each data file is looked at until none moves.
            let mut files: Vec<_> = sizes.iter().map(|(at, size)| (StoreId((at % totals.len()) as u16 + 1), *size)).collect();
            let mut moved = BTreeSet::new();
            for round in 0.. {
                prop_assert!(round <= sizes.len(), "it ends");
                let before = moved.len();
                for (n, file) in files.iter_mut().enumerate() {
                    let Some(to) = levels.choose(file.0, file.1, |_| true) else { continue };
                    let was = levels.devices().to_vec();
                    prop_assert!(moved.insert(n), "moved twice");
                    prop_assert_ne!(to, file.0);
                    levels.moves(file.0, to, file.1);
                    prop_assert!(no_wider(&was, levels.devices()), "{was:?} {levels:?}");
                    file.0 = to;
                }
                if moved.len() == before {
                    break;
                }
                levels = Levels::of(levels.devices().to_vec(), tolerance);
            }
            let after: Vec<Role> = levels.devices().iter().map(|device| device.role).collect();
            prop_assert_eq!(roles, after);
        }

        #[test]
        fn with_small_files_it_ends_even(
            parts in prop::collection::vec(0u64..=90, 2..8),
            tolerance in 10u16..200,
        ) {
            const SIZE: u64 = 1 << 20;
            let used: Vec<_> = parts.iter().map(|part| (part * 1000 * SIZE, 100_000 * SIZE)).collect();
            let mut levels = Levels::of(devices(&used), tolerance);
            let before = levels.spread();
            let givers = fuller(levels.devices());
            while levels.to_give() > 0 {
                let next = givers.iter().find_map(|from| Some((*from, levels.choose(*from, SIZE, |_| true)?)));
                let Some((from, to)) = next else { break };
                levels.moves(from, to, SIZE);
            }
            prop_assert!(levels.is_even(tolerance), "{levels:?}");
            prop_assert!(levels.spread() <= before);
        }

        #[test]
        fn what_did_not_move_is_as_if_it_had_not_been_chosen(bytes in 1u64..100) {
            let levels = Levels::of(devices(&[(800, 1000), (0, 1000)]), 50);
            let mut other = levels.clone();
            other.moves(StoreId(1), StoreId(2), bytes);
            other.stays(StoreId(1), StoreId(2), bytes);
            prop_assert_eq!((other.devices(), &other.left), (levels.devices(), &levels.left));
        }
    }
}
