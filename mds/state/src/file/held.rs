//! Who holds what of a file and who waits for it, for people: a page at a time, since there may be tens of thousands of
//! opens, and as many ranges of one lock-owner.

use crate::delegation::DelegationKind;
use crate::effect::RevokeReason;
use crate::ids::{ClientId, StateId, Time};
use crate::lock::LockKind;
use crate::open::{Access, Deny};
use crate::range_set::Range;
use crate::stateid::Other;

use super::File;

/// One thing that a client holds, or waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who.
    pub client: ClientId,
    /// Under which stateid; of one that waits, that of its open.
    pub stateid: StateId,
    /// What.
    pub what: What,
    /// Since when; of a lock, since when its owner has had anything locked; of one that waits, since it asked first.
    pub since: Time,
    /// An administrator has broken it, or its client is gone: it is in force until the client cannot write any more.
    pub taken: Option<RevokeReason>,
}

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// An open.
    Open(Access, Deny),
    /// A range that is locked.
    Lock(LockKind, Range),
    /// A delegation.
    Delegation(DelegationKind),
    /// A range that its client would have locked and, as far as it has said, still wants: in the order in which they came,
    /// by the number in the file's queue.
    Waiting(LockKind, Range, u64),
}

/// A place among what is held of one file. They are in the order of what comes: opens, locks, delegations, and
/// who waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which of the four.
    pub part: u32,
    /// The state.
    pub other: Other,
    /// Of a lock, where the range begins; of a delegation, whose it is; of one that waits, its number.
    pub at: u64,
}

const OPENS: u32 = 0;
const LOCKS: u32 = 1;
const DELEGATIONS: u32 = 2;
const WAITING: u32 = 3;

impl Hold {
    /// Where it is.
    #[must_use]
    pub const fn place(&self) -> Place {
        match self.what {
            What::Open(..) => Place { part: OPENS, other: self.stateid.other, at: 0 },
            What::Lock(_, range) => Place { part: LOCKS, other: self.stateid.other, at: range.start() },
            What::Delegation(_) => Place { part: DELEGATIONS, other: [0; 12], at: self.client.0 },
            What::Waiting(_, _, number) => Place { part: WAITING, other: [0; 12], at: number },
        }
    }
}

impl File {
    /// What is held, by this client or by any, after a place or from the beginning; so many at most.
    #[must_use]
    pub fn holds(&self, whose: Option<ClientId>, after: Option<Place>, most: usize) -> Vec<Hold> {
        let from = after.unwrap_or_default();
        // A lock-owner with many ranges is gone through from where the last page ended.
        let open_from = if from.part == OPENS { from.other } else { [0xff; 12] };
        let lock_from = match from.part {
            OPENS => [0; 12],
            LOCKS => from.other,
            _ => [0xff; 12],
        };
        let meant = |client: ClientId| whose.is_none_or(|whose| whose == client);
        let hold = |client, stateid, what, since| {
            let taken = self.leaving.get(&client).copied();
            Hold { client, stateid, what, since, taken }
        };
        let opens = self.opens.starting_at(open_from).filter(|open| meant(open.owner.client));
        let opens =
            opens.map(|o| hold(o.owner.client, o.stateid, What::Open(o.access, o.deny), o.begun.since));
        let locks = self.locks.starting_at(lock_from).filter(|lock| meant(lock.owner.client));
        let locks = locks.flat_map(|lock| {
            let begun = from.part == LOCKS && lock.stateid.other == from.other;
            let rest = Range::new(if begun { from.at } else { 0 }, u64::MAX).unwrap_or(Range::ALL);
            let ranges = lock.ranges.overlapping(rest);
            ranges.map(|(range, kind)| {
                hold(lock.owner.client, lock.stateid, What::Lock(kind, range), lock.since)
            })
        });
        let delegations = self.delegations.held.iter().filter(|(client, _)| meant(**client));
        let delegations =
            delegations.map(|(client, d)| hold(*client, d.stateid, What::Delegation(d.kind), d.since));
        let number = if from.part == WAITING { from.at } else { 0 };
        let waiting = self.locks.waiting.starting_at(number).filter(|waiter| meant(waiter.owner.client));
        let waiting = waiting.map(|waiter| {
            let stateid = StateId { seqid: 0, other: waiter.open };
            let what = What::Waiting(waiter.kind, waiter.range, waiter.number);
            hold(waiter.owner.client, stateid, what, waiter.since)
        });
        let all = opens.chain(locks).chain(delegations).chain(waiting);
        all.filter(|hold| after.is_none_or(|after| hold.place() > after)).take(most).collect()
    }

    /// What the client held is taken, and in force until it cannot write any more.
    #[must_use]
    pub fn is_leaving(&self, client: ClientId) -> bool {
        self.leaving.contains_key(&client)
    }

    /// The clients that hold anything of the file: an open, a lock, a delegation or a layout.
    #[must_use]
    pub fn holders(&self) -> Vec<ClientId> {
        let opens = self.opens.iter().map(|open| open.owner.client);
        let layouts = self.layouts.iter().map(|(client, _)| client);
        let mut all: Vec<_> = opens.chain(self.delegations.held.keys().copied()).chain(layouts).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}
