//! What is to be made equal to what. Pure.

use sluice_namespace::{DataFile, DataFileId, Heal, Layout, StoreId};

/// One data file to be made equal to another of its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// The data file of the layout that will be good: `target`, or what `target` takes the place of.
    pub(super) old: DataFile,
    pub(super) source: DataFile,
    pub(super) target: DataFile,
}

impl Pair {
    /// The target takes the place of another data file.
    pub(super) fn replaces(&self) -> bool {
        self.old.slot != self.target.slot
    }

    /// Where there is no room for the target another data server may get one. Mirrors that may differ stay where they are:
    /// each of them is read until they are known to be equal.
    pub(super) fn may_go_elsewhere(&self) -> bool {
        self.replaces() || self.old.stale
    }

    /// It is filled from what it takes the place of.
    pub(super) fn is_a_move(&self) -> bool {
        self.replaces() && self.old.slot == self.source.slot
    }
}

/// What can be done for a file now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) id: DataFileId,
    /// Mirrors that are not stale may differ.
    pub(super) dirty: bool,
    pub(super) pairs: Vec<Pair>,
    /// All mirrors that are not stale are equal when the pairs are.
    pub(super) equal: bool,
    /// Data servers that are missed.
    pub(super) waits_for: Vec<StoreId>,
}

impl Plan {
    /// Of data files that may be read (`gives`) and written to (`takes`).
    pub(super) fn of(
        layout: &Layout,
        row: &Heal,
        gives: impl Fn(&DataFile) -> bool,
        takes: impl Fn(&DataFile) -> bool,
    ) -> Self {
        let (id, dirty) = (layout.id, layout.mirrors_dirty);
        let mut plan = Self { id, dirty, pairs: Vec::new(), equal: true, waits_for: Vec::new() };
        for column in layout.columns() {
            plan.add(column, layout.mirrors_dirty, row, (&gives, &takes));
        }
        plan.waits_for.sort_unstable();
        plan.waits_for.dedup();
        plan
    }

    /// Whether this is what would be planned in the light of `now`, too. Data files may have come into being,
    /// and data servers back, meanwhile; mirrors that were equal may not have come to differ.
    pub(super) fn stands(&self, now: &Self) -> bool {
        let name = |file: &DataFile| (file.store, file.slot, file.generation, file.stale, file.moving);
        let names = |pair: &Pair| (name(&pair.old), name(&pair.source), name(&pair.target));
        let planned = |pair: &Pair| now.pairs.iter().any(|other| names(other) == names(pair));
        self.id == now.id
            && self.dirty == now.dirty
            && self.pairs.iter().all(planned)
            && (now.equal || !self.equal)
    }

    fn add(
        &mut self,
        column: &[DataFile],
        dirty: bool,
        row: &Heal,
        (gives, takes): (&impl Fn(&DataFile) -> bool, &impl Fn(&DataFile) -> bool),
    ) {
        let first = column.iter().find(|file| !file.stale);
        let mut good = column.iter().filter(|file| !file.stale);
        // Of mirrors that may differ the first is the one that is read: it is the truth.
        let source = if dirty { good.next() } else { good.find(|file| gives(file)) };
        let suspect = |file: &DataFile| {
            file.stale || file.moving || (dirty && source.is_some_and(|source| source.slot != file.slot))
        };
        for old in column.iter().filter(|file| suspect(file)) {
            let target = if old.moving { row.replacement(old.slot).unwrap_or(*old) } else { *old };
            match source.filter(|source| gives(source) && source.slot != target.slot) {
                Some(source) if takes(&target) => {
                    self.pairs.push(Pair { old: *old, source: *source, target });
                }
                Some(_) => self.miss(old, target.store),
                // Whoever has the bytes is missed.
                None => self.miss(old, source.or(first).map_or(target.store, |source| source.store)),
            }
        }
    }

    /// It cannot be filled now.
    pub(super) fn leave_out(&mut self, pair: &Pair) {
        self.pairs.retain(|other| other != pair);
        self.equal &= pair.old.stale;
    }

    fn miss(&mut self, old: &DataFile, store: StoreId) {
        self.equal &= old.stale;
        self.waits_for.push(store);
    }
}

#[cfg(test)]
mod tests {
    use sluice_namespace::{InodeKey, LayoutPolicy, Replacement, Shape};

    use super::super::super::placement::{Candidate, place};
    use super::*;

    fn layout() -> Layout {
        let candidates: Vec<_> = (1..=4)
            .map(|n| Candidate { store: StoreId(n), free_bytes: 1 << 40, host: None, class: None })
            .collect();
        place(
            DataFileId(1),
            LayoutPolicy { shape: Shape::Wide, mirrors: 2, inline: 0, class: None },
            &candidates,
            0,
            0,
        )
        .unwrap()
    }

    fn plan(layout: &Layout, gone: &[u16]) -> Plan {
        let here = |file: &DataFile| !gone.contains(&file.store.0);
        Plan::of(layout, &Heal::of(InodeKey::ROOT), here, here)
    }

    #[test]
    fn a_stale_mirror_is_made_equal_to_a_good_one_of_its_column() {
        let mut layout = layout();
        layout.components[0].slots[2].stale = true;
        let found = plan(&layout, &[]);
        let [pair] = &found.pairs[..] else { panic!("{found:?}") };
        assert_eq!((pair.old.slot, pair.target.slot, pair.source.slot), (2, 2, 3));
        let away = layout.components[0].slots[2].store.0;
        let found = plan(&layout, &[away]);
        assert_eq!((found.pairs.len(), &found.waits_for[..]), (0, &[StoreId(away)][..]));
        assert!(found.equal, "those that are not stale are equal as before");
        let away = layout.components[0].slots[3].store.0;
        assert!(plan(&layout, &[away]).pairs.is_empty(), "no other column has its bytes");
    }

    #[test]
    fn of_mirrors_that_may_differ_the_first_is_the_truth_and_none_may_be_missing() {
        let mut layout = layout();
        layout.mirrors_dirty = true;
        let found = plan(&layout, &[]);
        assert!(found.equal && found.pairs.len() == 4);
        assert!(found.pairs.iter().all(|pair| pair.source.slot % 2 == 0 && pair.target.slot % 2 == 1));
        // The truth is away: its column waits.
        let away = layout.components[0].slots[0].store.0;
        let found = plan(&layout, &[away]);
        assert!(!found.equal && found.pairs.iter().all(|pair| pair.source.store.0 != away));
        // A stale one is neither the truth nor missed.
        layout.components[0].slots[0].stale = true;
        let found = plan(&layout, &[away]);
        assert!(found.equal || found.waits_for.iter().any(|store| store.0 == away));
        assert!(found.pairs.iter().all(|pair| pair.old.slot != 1), "the truth is not written");
    }

    #[test]
    fn a_plan_falls_when_mirrors_come_to_differ_but_not_when_a_data_server_comes_back() {
        let mut layout = layout();
        layout.components[0].slots[2].stale = true;
        layout.components[0].slots[5].stale = true;
        let away = layout.components[0].slots[5].store.0;
        let planned = plan(&layout, &[away]);
        assert!(planned.stands(&plan(&layout, &[])));
        assert!(!plan(&layout, &[]).stands(&planned), "a target has gone");
        // As equal as before with two mirrors; with three the other good one was not compared.
        layout.mirrors_dirty = true;
        assert!(!planned.stands(&plan(&layout, &[away])));
    }

    #[test]
    fn a_replacement_is_filled_in_place_of_what_is_lost() {
        let mut layout = layout();
        let lost = layout.components[0].slots[0];
        layout.components[0].slots[0].moving = true;
        let new = DataFile { store: StoreId(4), slot: 8, generation: 1, ..DataFile::default() };
        let mut row = Heal::of(InodeKey::ROOT);
        row.replacements.push(Replacement { old: 0, new });
        let here = |file: &DataFile| file.store != lost.store;
        let found = Plan::of(&layout, &row, here, here);
        let [pair] = &found.pairs[..] else { panic!("{found:?}") };
        assert_eq!((pair.old.slot, pair.target, pair.source.slot), (0, new, 1));
    }
}
