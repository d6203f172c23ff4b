//! Who is asked to give back layouts and delegations before there are too many. RFC 8881 §20.6, §10.4.5.
//!
//! ```text
//!   7/8 of a bound reached ──▶ asked (CB_RECALL_ANY) ──a while, and still above 3/4──▶ recalled one by one
//!                                  │ below 3/4                                           │
//!                                  └───────────────▶ left alone ◀────────────────────────┘
//! ```
//!
//! At the bound itself nothing more is granted, so that nobody's memory grows while a client does not listen.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ClientId, Time};
use crate::stateid::Usage;

/// What clients hold and can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recallable {
    /// Layouts of either iomode.
    Layouts,
    /// Delegations of files, of either kind.
    Delegations,
}

impl Recallable {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Layouts, Self::Delegations];

    fn of(self, usage: &Usage) -> u32 {
        match self {
            Self::Layouts => usage.layouts,
            Self::Delegations => usage.delegations,
        }
    }
}

/// How many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Of one client.
    pub per_client: u32,
    /// Of all together.
    pub in_all: u32,
}

/// What is to be done about one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Tell it how many it may keep; it knows best which.
    Ask {
        /// The holder.
        client: ClientId,
        /// Of what it holds too many.
        what: Recallable,
        /// How many it may keep.
        keep: u32,
    },
    /// It was asked, and a while has passed: so many are recalled. What is not returned then is revoked.
    Recall {
        /// The holder.
        client: ClientId,
        /// Of what it holds too many.
        what: Recallable,
        /// How many are too many.
        count: u32,
    },
}

/// Who was asked for what, and when.
#[derive(Debug, Default)]
pub struct Pressure {
    asked: BTreeMap<(ClientId, Recallable), Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Time,
    /// What it may keep.
    keep: u32,
}

/// Where asking begins: seven eighths.
const fn high(bound: u32) -> u32 {
    bound - bound / 8
}

/// Where it ends: three quarters.
const fn low(bound: u32) -> u32 {
    bound - bound / 4
}

impl Pressure {
    /// Looks at what clients hold. `patience`: how long a client has to give back what it was asked for, in
    /// nanoseconds; it is not asked again before.
    pub fn look(
        &mut self,
        now: Time,
        patience: u64,
        bound: impl Fn(Recallable) -> Bound,
        holders: &[(ClientId, Usage)],
    ) -> Vec<Demand> {
        let mut demands = Vec::new();
        for what in Recallable::ALL {
            let bound = bound(what);
            let share = fair_share(what, bound.in_all, holders);
            for (client, usage) in holders {
                let held = what.of(usage);
                let own = (held >= high(bound.per_client)).then(|| low(bound.per_client));
                let keep = [own, share].into_iter().flatten().min();
                demands.extend(self.judge(now, patience, (*client, what), held, keep));
            }
        }
        let left: BTreeSet<ClientId> = holders.iter().map(|(holder, _)| *holder).collect();
        self.asked.retain(|(client, _), _| left.contains(client));
        demands
    }

    /// `keep`: what a client may keep that is to be asked now; who was asked before is held to what it was told.
    fn judge(
        &mut self,
        now: Time,
        patience: u64,
        key: (ClientId, Recallable),
        held: u32,
        keep: Option<u32>,
    ) -> Option<Demand> {
        let (client, what) = key;
        match self.asked.get_mut(&key) {
            Some(asked) if held <= asked.keep => {
                self.asked.remove(&key);
                None
            }
            Some(asked) if now.since(asked.at) < patience => None,
            Some(asked) => {
                asked.at = now;
                Some(Demand::Recall { client, what, count: held - asked.keep })
            }
            None => {
                let keep = keep.filter(|keep| held > *keep)?;
                self.asked.insert(key, Asked { at: now, keep });
                Some(Demand::Ask { client, what, keep })
            }
        }
    }
}

/// What each client may keep when all together have too many: as much as every other.
fn fair_share(what: Recallable, in_all: u32, holders: &[(ClientId, Usage)]) -> Option<u32> {
    let total: u64 = holders.iter().map(|(_, usage)| u64::from(what.of(usage))).sum();
    if total < u64::from(high(in_all)) {
        return None;
    }
    let mut held: Vec<u32> = holders.iter().map(|(_, usage)| what.of(usage)).collect();
    held.sort_unstable();
    // Who has less than that leaves the rest to the others.
    let mut left = low(in_all);
    let mut share = 0;
    for (at, held_here) in held.iter().enumerate() {
        let others = u32::try_from(held.len() - at).unwrap_or(u32::MAX);
        share = left / others;
        if *held_here > share {
            break;
        }
        left -= held_here;
    }
    Some(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: u64 = 60;

    fn holders(layouts: &[u32]) -> Vec<(ClientId, Usage)> {
        let one = |(n, layouts): (usize, &u32)| {
            (ClientId(n as u64), Usage { layouts: *layouts, ..Usage::default() })
        };
        layouts.iter().enumerate().map(one).collect()
    }

    fn look(pressure: &mut Pressure, now: u64, layouts: &[u32]) -> Vec<Demand> {
        let bound = |_| Bound { per_client: 80, in_all: 160 };
        pressure.look(Time(now), PATIENCE, bound, &holders(layouts))
    }

    fn ask(client: u64, keep: u32) -> Demand {
        Demand::Ask { client: ClientId(client), what: Recallable::Layouts, keep }
    }

    fn recall(client: u64, count: u32) -> Demand {
        Demand::Recall { client: ClientId(client), what: Recallable::Layouts, count }
    }

    #[test]
    fn a_client_near_its_bound_is_asked_once_and_then_recalled() {
        let mut pressure = Pressure::default();
        assert_eq!(look(&mut pressure, 0, &[69, 5]), []);
        assert_eq!(look(&mut pressure, 1, &[70, 5]), [ask(0, 60)]);
        assert_eq!(look(&mut pressure, 2, &[75, 5]), []);
        assert_eq!(look(&mut pressure, 60, &[65, 5]), []);
        assert_eq!(look(&mut pressure, 61, &[65, 5]), [recall(0, 5)]);
        assert_eq!(look(&mut pressure, 62, &[64, 5]), []);
        assert_eq!(look(&mut pressure, 63, &[60, 5]), []);
        assert_eq!(look(&mut pressure, 200, &[69, 5]), [], "what it was asked for then is done with");
        assert_eq!(look(&mut pressure, 201, &[70, 5]), [ask(0, 60)]);
    }

    #[test]
    fn near_the_bound_of_all_those_with_the_most_are_asked() {
        let mut pressure = Pressure::default();
        assert_eq!(look(&mut pressure, 0, &[10, 64, 60, 5]), []);
        // 120 are to be left: 15 to those who have less, 52 to each of the others.
        assert_eq!(look(&mut pressure, 1, &[10, 64, 61, 5]), [ask(1, 52), ask(2, 52)]);
        assert_eq!(look(&mut pressure, 100, &[10, 50, 61, 5]), [recall(2, 9)]);
    }

    #[test]
    fn who_is_gone_is_forgotten() {
        let mut pressure = Pressure::default();
        assert_eq!(look(&mut pressure, 0, &[70]), [ask(0, 60)]);
        assert_eq!(look(&mut pressure, 1, &[]), []);
        assert_eq!(look(&mut pressure, 2, &[70]), [ask(0, 60)]);
    }

    #[test]
    fn small_bounds_do_no_harm() {
        for bound in 0..10 {
            let bounds = |_| Bound { per_client: bound, in_all: bound };
            Pressure::default().look(Time(0), PATIENCE, bounds, &holders(&[0, 1, bound, 20]));
        }
    }
}
