//! What was asked and answered, and whether a file system could have answered so.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use parking_lot::Mutex;

/// Position in the one order of all that is asked and answered.
pub(crate) type At = u64;
/// Not answered, and never will be.
pub(crate) const NEVER: At = At::MAX;

/// One change of a name, or a look at it. A label tells one object from another: its fileid.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Exclusively: the label of what was made, `None` if the name was there.
    Create(u8, Option<u64>),
    /// Whether it was there.
    Remove(u8, bool),
    Rename(u8, u8, bool),
    /// Another name for this object: whether the name was free.
    Link(u64, u8, bool),
    Look(u8, Option<u64>),
    /// For another reason than names: nothing happened.
    Refused,
}

/// From when it was asked until it was answered.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) from: At,
    pub(crate) to: At,
    pub(crate) act: Act,
}

/// Label of an object whose maker never heard of it; this and above.
pub(crate) const NAMELESS: u64 = 1 << 60;

type State = BTreeMap<u8, u64>;

/// The state after `act`, if it can be answered so. Without an answer it did what it could.
fn apply(state: &State, step: &Step) -> Option<State> {
    let silent = step.to == NEVER;
    let mut after = state.clone();
    match step.act {
        Act::Refused => {}
        Act::Create(name, made) => match (state.get(&name), made) {
            (None, Some(label)) => drop(after.insert(name, label)),
            (Some(_), None) => {}
            _ if silent => {}
            _ => return None,
        },
        Act::Remove(name, done) => match (after.remove(&name), done) {
            (found, done) if found.is_some() == done || silent => {}
            _ => return None,
        },
        Act::Rename(from, to, done) => match (state.get(&from), done) {
            (Some(label), _) if done || silent => {
                // Two names of one object: nothing happens.
                if state.get(&to) != Some(label) {
                    after.insert(to, *label);
                    after.remove(&from);
                }
            }
            (None, done) if !done || silent => {}
            _ => return None,
        },
        Act::Link(label, name, done) => match (state.contains_key(&name), done) {
            // The object may be gone with its last name: then it is refused, and nothing is known of the name. What
            // nobody has heard of may be this object, and need not be.
            _ if !state.values().any(|other| same(*other, label)) => {
                return (!done || silent).then_some(after);
            }
            _ if !done && !silent && !state.values().any(|other| *other == label) => {}
            (false, done) if done || silent => drop(after.insert(name, label)),
            (true, done) if !done || silent => {}
            _ => return None,
        },
        Act::Look(name, seen) => match (state.get(&name), seen) {
            (None, None) => {}
            (Some(label), Some(seen)) if same(*label, seen) => {}
            _ if silent => {}
            _ => return None,
        },
    }
    Some(after)
}

fn same(label: u64, other: u64) -> bool {
    label == other || label >= NAMELESS
}

/// Whether there is an order of all steps, none before one that was answered before it was asked, in which every
/// answer is right. Those without an answer happen once at any time after they were asked, or never.
pub(crate) fn linearizable(steps: &[Step]) -> Result<(), String> {
    let mut all = steps.to_vec();
    all.sort_by_key(|step| step.from);
    let mut seen: HashSet<(Vec<usize>, usize, State)> = HashSet::new();
    // Done: everything before `first`, and those in `ahead`.
    let mut stack = vec![(0_usize, BTreeSet::<usize>::new(), State::new())];
    let (mut furthest, mut there) = (0, State::new());
    while let Some((mut first, mut ahead, state)) = stack.pop() {
        while ahead.remove(&first) {
            first += 1;
        }
        if first > furthest {
            (furthest, there) = (first, state.clone());
        }
        if all[first..].iter().enumerate().all(|(n, step)| step.to == NEVER || ahead.contains(&(first + n))) {
            return Ok(());
        }
        if !seen.insert((ahead.iter().copied().collect(), first, state.clone())) {
            continue;
        }
        let open = || (first..all.len()).filter(|n| !ahead.contains(n));
        // Nothing begins after one that is not done was answered.
        let limit = open().map(|n| all[n].to).min().unwrap_or(NEVER);
        for n in open().take_while(|n| all[*n].from <= limit) {
            if let Some(after) = apply(&state, &all[n]) {
                let mut more = ahead.clone();
                more.insert(n);
                stack.push((first, more, after));
            }
            // One that was never answered may never happen: skipped when all others are done, above.
        }
    }
    let around = &all[furthest.saturating_sub(8)..(furthest + 8).min(all.len())];
    Err(format!("no order explains the answers around step {furthest}, at {there:?}: {around:#?}"))
}

/// What is written to a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// What nobody else writes; or zero, for what cuts it off.
    Is(u64),
    /// What this block of this file holds meanwhile.
    Of(usize, u64),
}

/// One write of a block.
#[derive(Clone, Copy, Debug)]
struct Write {
    /// Its number: what cuts off writes zeros, and there is more than one.
    id: u64,
    value: Value,
    from: At,
    to: At,
    /// Whether somebody was told that it is stable.
    acknowledged: bool,
}

type Writes = BTreeMap<(usize, u64), Vec<Write>>;

/// Copies of copies that are looked into; beyond that anything is believed.
const COPIES: u32 = 4;

/// Every block of every file, by what was written to it.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    writes: Mutex<Writes>,
}

impl Blocks {
    pub(crate) fn began(&self, file: usize, block: u64, id: u64, value: Value, from: At) {
        let write = Write { id, value, from, to: NEVER, acknowledged: false };
        self.writes.lock().entry((file, block)).or_default().push(write);
    }

    /// It is stable; or, not acknowledged, it cannot happen any more.
    pub(crate) fn ended(&self, file: usize, block: u64, id: u64, to: At, acknowledged: bool) {
        let mut all = self.writes.lock();
        let writes = all.entry((file, block)).or_default();
        for write in writes.iter_mut().filter(|write| write.id == id) {
            (write.to, write.acknowledged) = (to, acknowledged);
        }
    }

    /// No write of a block that has not ended can happen any more.
    pub(crate) fn fenced(&self, file: usize, block: u64, to: At) {
        let mut all = self.writes.lock();
        for write in all.entry((file, block)).or_default().iter_mut().filter(|write| write.to == NEVER) {
            write.to = to;
        }
    }

    /// What a read between `from` and `to` may find.
    pub(crate) fn check(&self, file: usize, block: u64, found: u64, from: At, to: At, who: (&str, bool)) {
        let all = self.writes.lock();
        assert!(
            could_hold(&all, (file, block), found, (from, to), COPIES),
            "file {file} block {block}: {found} was read from {from} to {to} by {who:?}, after these writes: {:#?}",
            all.get(&(file, block))
        );
    }
}

/// Whether a block may hold this at some moment between two.
fn could_hold(all: &Writes, place: (usize, u64), found: u64, (from, to): (At, At), copies: u32) -> bool {
    let writes = all.get(&place).map_or(&[][..], Vec::as_slice);
    let overwritten = |at: At| writes.iter().any(|w| w.acknowledged && w.from > at && w.to < from);
    let written = |w: &Write| match w.value {
        Value::Is(value) => value == found,
        Value::Of(file, block) => {
            copies == 0 || could_hold(all, (file, block), found, (w.from, w.to.min(to)), copies - 1)
        }
    };
    let beginning = found == 0 && !overwritten(0);
    beginning || writes.iter().any(|w| w.from < to && (w.to == NEVER || !overwritten(w.to)) && written(w))
}

/// Values that never go back.
#[derive(Debug, Default)]
pub(crate) struct Rising(Mutex<BTreeMap<Vec<u8>, u64>>);

impl Rising {
    /// What was seen so far, to be compared with what is asked for from now on.
    pub(crate) fn so_far(&self, of: &[u8]) -> u64 {
        self.0.lock().get(of).copied().unwrap_or(0)
    }

    pub(crate) fn seen(&self, of: &[u8], before: u64, now: u64) {
        assert!(now >= before, "a change attribute went back from {before} to {now}");
        let mut all = self.0.lock();
        let known = all.entry(of.to_vec()).or_default();
        *known = now.max(*known);
    }
}

#[test]
fn an_order_is_found_or_not() {
    let step = |from, to, act| Step { from, to, act };
    let (create, gone) = (step(1, 4, Act::Create(0, Some(7))), step(2, 3, Act::Remove(0, true)));
    linearizable(&[create.clone(), gone.clone(), step(5, 6, Act::Look(0, None))]).unwrap();
    // Removed twice, made once.
    linearizable(&[create.clone(), gone.clone(), step(5, 6, Act::Remove(0, true))]).unwrap_err();
    // A create that was never answered may have happened, late.
    let silent = step(1, NEVER, Act::Create(0, Some(NAMELESS)));
    linearizable(&[silent.clone(), step(2, 3, Act::Look(0, None)), step(5, 6, Act::Look(0, Some(9)))])
        .unwrap();
    linearizable(&[silent, step(2, 3, Act::Look(0, Some(9))), step(5, 6, Act::Look(0, None))]).unwrap_err();
    // Refused, since its last name went to one that nobody has heard of; but not while it has one.
    let made = |from, name, label| step(from, from + 1, Act::Create(name, Some(label)));
    let refused = step(7, 8, Act::Link(7, 1, false));
    let (known, nameless) = (made(1, 0, 7), made(3, 2, NAMELESS));
    let renamed = step(5, 6, Act::Rename(2, 0, true));
    linearizable(&[known.clone(), nameless.clone(), renamed, refused.clone()]).unwrap();
    linearizable(&[known, nameless, refused]).unwrap_err();
    // Acknowledged, and not there.
    linearizable(&[create, step(5, 6, Act::Look(0, None))]).unwrap_err();
}

const WHO: (&str, bool) = ("somebody", true);

#[test]
fn what_was_overwritten_is_not_read() {
    let blocks = Blocks::default();
    blocks.began(0, 0, 7, Value::Is(7), 1);
    blocks.check(0, 0, 0, 2, 3, WHO);
    blocks.check(0, 0, 7, 2, 3, WHO);
    blocks.ended(0, 0, 7, 4, true);
    blocks.check(0, 0, 7, 5, 6, WHO);
    let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| blocks.check(0, 0, 0, 5, 6, WHO)));
    assert!(lost.is_err());
    // Fenced: it was there before the next began, or never.
    blocks.began(0, 0, 8, Value::Is(8), 10);
    blocks.fenced(0, 0, 11);
    blocks.began(0, 0, 9, Value::Is(9), 12);
    blocks.ended(0, 0, 9, 13, true);
    let late = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| blocks.check(0, 0, 8, 14, 15, WHO)));
    assert!(late.is_err());
}

#[test]
fn a_copy_holds_what_its_source_held() {
    let blocks = Blocks::default();
    blocks.began(0, 0, 7, Value::Is(7), 1);
    blocks.ended(0, 0, 7, 2, true);
    blocks.began(1, 5, 8, Value::Of(0, 0), 3);
    blocks.ended(1, 5, 8, 4, true);
    blocks.check(1, 5, 7, 5, 6, WHO);
    // Written later: not what was copied.
    blocks.began(0, 0, 9, Value::Is(9), 5);
    for wrong in [0, 9] {
        let found = std::panic::AssertUnwindSafe(|| blocks.check(1, 5, wrong, 6, 7, WHO));
        assert!(std::panic::catch_unwind(found).is_err(), "{wrong}");
    }
}
