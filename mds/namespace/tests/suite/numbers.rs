//! A data file that was removed left a tombstone at its data server, for its number and all generations up to its own: whatever
//! became of the file since then, no data file of it is named so again.

use std::collections::BTreeMap;

use crate::common::*;
use crate::heal::{files, queue, spares};
use proptest::prelude::*;
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;
const ID: DataFileId = DataFileId(1);
const STORES: u16 = 9;
const SIZE: u64 = 10;

/// What is done to a file; numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Plan {
        at: usize,
        store: u16,
    },
    Withdraw {
        at: usize,
    },
    /// What is planned, and what is stale, is whole; or only some of it. It may be nothing at all.
    Heal {
        all: bool,
        exists: bool,
    },
    Leave {
        at: usize,
    },
    More {
        store: u16,
    },
    Fewer {
        at: usize,
    },
    Replace,
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<usize>(), 1..=STORES).prop_map(|(at, store)| Step::Plan { at, store }),
        4 => any::<usize>().prop_map(|at| Step::Withdraw { at }),
        2 => any::<(bool, bool)>().prop_map(|(all, exists)| Step::Heal { all, exists }),
        1 => any::<usize>().prop_map(|at| Step::Leave { at }),
        2 => (1..=STORES).prop_map(|store| Step::More { store }),
        2 => any::<usize>().prop_map(|at| Step::Fewer { at }),
        1 => Just(Step::Replace),
        4 => Just(Step::Sweep),
    ]
}

struct Story {
    w: World,
    key: InodeKey,
    /// Slots, and the generation up to which each is gone.
    tombstones: BTreeMap<u16, u16>,
}

impl Story {
    async fn layout(&self) -> Layout {
        self.w.stat(self.key).await.unwrap().layout().unwrap().clone()
    }

    async fn take(&mut self, step: &Step) {
        let (w, key) = (&self.w, self.key);
        let layout = self.layout().await;
        let all = files(w, key).await;
        let slot = |at: usize| all[at % all.len()].slot;
        // What cannot be done now is not done.
        match *step {
            Step::Plan { at, store } => {
                let plan = w.txn(async |t| w.ns.plan_replacement(t, &key, slot(at), StoreId(store)).await);
                drop(plan.await);
            }
            Step::Withdraw { at } => {
                let planned: Vec<_> = queue(w).await.into_iter().flat_map(|row| row.replacements).collect();
                if let Some(one) = planned.get(at % planned.len().max(1)) {
                    w.txn(async |t| w.ns.withdraw_replacement(t, &key, one.old, one.new.store).await)
                        .await
                        .unwrap();
                }
            }
            Step::Heal { all: whole, exists } => {
                let Some(row) = queue(w).await.pop() else { return };
                let wanted = all.iter().filter(|file| file.stale || file.moving);
                let slots = wanted.map(|file| {
                    let new = row.replacement(file.slot).unwrap_or(*file);
                    let filled = (new.store, new.slot);
                    HealedSlot { slot: file.slot, generation: file.generation, filled, exists }
                });
                let slots = slots.take(if whole { usize::MAX } else { 1 }).collect();
                let healed = Healed { id: ID, slots, dirty: layout.mirrors_dirty, equal: whole };
                w.txn(async |t| w.ns.healed(t, &key, &healed).await).await.unwrap();
            }
            Step::Leave { at } => {
                drop(w.txn(async |t| w.ns.leave_behind(t, &key, &[slot(at)]).await).await);
            }
            Step::More { store } => {
                let one = is_one_segment_from_now_on(&layout, SIZE);
                let columns = layout.components.iter().take(if one { 1 } else { usize::MAX });
                let places = vec![vec![StoreId(store)]; columns.map(|c| usize::from(c.width)).sum()];
                let mirrors = layout.components[0].mirrors + 1;
                drop(w.txn(async |t| w.ns.add_mirrors(t, &key, ID, mirrors, &places).await).await);
            }
            Step::Fewer { at } => {
                let goes = |column: &[DataFile]| column[at % column.len()].slot;
                let slots: Vec<_> = layout.columns().map(goes).collect();
                drop(w.txn(async |t| w.ns.drop_mirrors(t, &key, ID, &slots).await).await);
            }
            Step::Replace => {
                let Some(index) = layout.components.iter().position(|c| !c.handed_out) else { return };
                let mut new = layout.components[index].clone();
                new.slots.iter_mut().for_each(|file| file.store = StoreId(file.store.0 % STORES + 1));
                drop(w.txn(async |t| w.ns.replace_component(t, &key, index, new).await).await);
            }
            Step::Sweep => self.sweep().await,
        }
    }

    async fn sweep(&mut self) {
        let w = &self.w;
        for spare in spares(w).await {
            if w.read(async |t| w.ns.spare_may_go(t, &spare).await).await.unwrap() {
                let gone = self.tombstones.entry(spare.slot).or_default();
                *gone = spare.generation.max(*gone);
                w.txn(async |t| {
                    w.ns.spare_done(t, &spare);
                    Ok(())
                })
                .await
                .unwrap();
            }
        }
    }

    /// None of those that are in use or being filled would be refused.
    async fn stands(&self) {
        let planned = queue(&self.w).await.into_iter().flat_map(|row| row.replacements).map(|one| one.new);
        for file in files(&self.w, self.key).await.into_iter().chain(planned) {
            let gone = self.tombstones.get(&file.slot).copied().unwrap_or(0);
            assert!(file.generation > gone, "{file:?} was removed up to {gone}");
        }
        self.w.clean().await;
    }
}

/// Two columns of two mirrors; or a first part that is one segment, and the rest, which nobody has seen.
fn begins(two_parts: bool) -> Layout {
    let mut whole = layout(ID.0, if two_parts { 3 } else { 4 });
    let first = &mut whole.components[0];
    first.handed_out = true;
    if two_parts {
        let mut rest = first.clone();
        (first.end, first.width, rest.start, rest.width) = (1 << 20, 1, 1 << 20, 2);
        rest.handed_out = false;
        first.slots.truncate(1);
        rest.slots.remove(0);
        whole.components.push(rest);
    } else {
        (first.width, first.mirrors) = (2, 2);
    }
    assert!(whole.is_valid());
    whole
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn no_name_of_a_data_file_that_was_removed_is_given_again(
        two_parts: bool,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let w = World::new().await;
            let node = NewNode::File { layout: Some(begins(two_parts)), read_write_layout: false, size: SIZE };
            let key = w.node(ROOT, "f", node).await.unwrap().inode.key;
            let mut story = Story { w, key, tombstones: BTreeMap::new() };
            for step in &steps {
                story.take(step).await;
                story.stands().await;
            }
        });
    }
}
