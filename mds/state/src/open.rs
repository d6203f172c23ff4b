//! Opens and share reservations: RFC 8881 §9.7-9.11, §18.16 (OPEN), §18.18 (OPEN_DOWNGRADE), §18.2 (CLOSE).
//!
//! ```text
//! none ──OPEN──▶ open ──CLOSE──▶ none
//!                 │ ▲ OPEN (union), OPEN_DOWNGRADE (union of a subset): seqid+1, same `other`
//!                 └─┘
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::few::Few;
use crate::file::Error;
use crate::ids::{ClientId, StateId, Time};
use crate::owner::OpenOwner;
use crate::stateid::{Other, check_seqid};
use crate::times::Times;

/// OPEN4_SHARE_ACCESS: at least one bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Access(u8);

/// OPEN4_SHARE_DENY: any of two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deny(u8);

impl Access {
    /// OPEN4_SHARE_ACCESS_READ.
    pub const READ: Self = Self(1);
    /// OPEN4_SHARE_ACCESS_WRITE.
    pub const WRITE: Self = Self(2);
    /// OPEN4_SHARE_ACCESS_BOTH.
    pub const BOTH: Self = Self(3);

    /// From the wire bits (1..=3); `None` otherwise, which is NFS4ERR_INVAL.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits >= 1 && bits <= 3 { Some(Self(bits as u8)) } else { None }
    }

    /// The wire bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// True when READ is included.
    #[must_use]
    pub const fn reads(self) -> bool {
        self.0 & 1 != 0
    }

    /// True when WRITE is included.
    #[must_use]
    pub const fn writes(self) -> bool {
        self.0 & 2 != 0
    }
}

impl Deny {
    /// OPEN4_SHARE_DENY_NONE.
    pub const NONE: Self = Self(0);
    /// OPEN4_SHARE_DENY_READ.
    pub const READ: Self = Self(1);
    /// OPEN4_SHARE_DENY_WRITE.
    pub const WRITE: Self = Self(2);
    /// OPEN4_SHARE_DENY_BOTH.
    pub const BOTH: Self = Self(3);

    /// From the wire bits (0..=3); `None` otherwise, which is NFS4ERR_INVAL.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits <= 3 { Some(Self(bits as u8)) } else { None }
    }

    /// The wire bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// True when READ is included.
    #[must_use]
    pub const fn reads(self) -> bool {
        self.0 & 1 != 0
    }
}

/// `open_claim4`, as far as the state of the file cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    /// CLAIM_NULL and CLAIM_FH: a new open, by name or filehandle.
    New,
    /// CLAIM_PREVIOUS: reclaim after a restart of the server.
    Previous {
        /// The delegation reclaimed with it, if any.
        delegation: Want,
    },
    /// CLAIM_DELEGATE_CUR, CLAIM_DELEG_CUR_FH: an open made locally under this delegation.
    Delegation {
        /// The delegation's stateid.
        stateid: StateId,
    },
}

/// What the client says about delegations (OPEN4_SHARE_ACCESS_WANT_*).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Want {
    /// Nothing: what stock clients say.
    #[default]
    Unsaid,
    /// WANT_ANY_DELEG.
    Any,
    /// WANT_NO_DELEG.
    None,
    /// WANT_READ_DELEG (or OPEN_DELEGATE_READ in a reclaim).
    Read,
    /// WANT_WRITE_DELEG (or OPEN_DELEGATE_WRITE in a reclaim).
    Write,
}

/// OPEN of one file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpenRequest {
    /// The open-owner; its client is the session's.
    pub owner: OpenOwner,
    /// share_access without the WANT bits.
    pub access: Access,
    /// share_deny.
    pub deny: Deny,
    /// How the file was claimed.
    pub claim: Claim,
    /// It also empties the file.
    pub truncates: bool,
    /// It was granted before, and its client has not heard so.
    pub again: bool,
    /// Delegation wanted.
    pub want: Want,
    /// A delegation will do in place of an open (RFC 9754 §4, OPEN_XOR_DELEGATION): the client then has nothing to
    /// close.
    pub either: bool,
    /// The client answers for the times of a file that it may write (RFC 9754 §5): what they are now.
    pub times: Option<Times>,
    /// What the inode says about delegating it.
    pub history: History,
}

impl OpenRequest {
    /// What it does to the file, which reservations of others may deny: it writes where it empties the file, whatever the file
    /// is open for afterwards.
    #[must_use]
    pub const fn uses(&self) -> Access {
        if self.truncates { Access(self.access.0 | Access::WRITE.0) } else { self.access }
    }
}

/// What the inode of a file to open says about delegating it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// The change attribute, as the client will see it with its OPEN.
    pub change: u64,
    /// It has been changed lately, if only by being made: it may be changed again soon.
    pub restless: bool,
}

/// Since when somebody may have been using a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Begun {
    /// As far as is known here.
    pub(crate) since: Time,
    /// And before the restart.
    pub(crate) reclaimed: bool,
}

/// One open: (client, open-owner, file).
#[derive(Debug, Hash)]
pub(crate) struct Open {
    pub(crate) owner: OpenOwner,
    pub(crate) stateid: StateId,
    pub(crate) access: Access,
    pub(crate) deny: Deny,
    pub(crate) begun: Begun,
    /// The (access, deny) pairs of the OPENs in effect, as a bitmap over [`combo`].
    combos: u16,
}

/// All opens of one file.
#[derive(Debug, Default, Hash)]
pub(crate) struct Opens {
    by_other: Few<Other, Open>,
    by_owner: Few<OpenOwner, Other>,
    /// How many opens deny anything: almost always none, and then a new open need not look at the others.
    denying: usize,
}

const fn combo(access: Access, deny: Deny) -> u16 {
    1 << ((access.0 - 1) * 4 + deny.0)
}

fn combos_of(bits: u16) -> impl Iterator<Item = (Access, Deny)> {
    (0..12u8).filter(move |i| bits & (1 << i) != 0).map(|i| (Access(i / 4 + 1), Deny(i % 4)))
}

impl Open {
    /// The pairs that survive a downgrade, when the target is exactly the union of some of them.
    fn downgraded(&self, access: Access, deny: Deny) -> Option<u16> {
        // RFC 8881 §18.18.3: the result must be the union of a subset of the OPENs in effect. The
        // largest candidate subset is every pair within the target; if even that falls short, none fits.
        let (mut bits, mut a, mut d) = (0, 0, 0);
        for (pair_access, pair_deny) in combos_of(self.combos) {
            if pair_access.0 & !access.0 == 0 && pair_deny.0 & !deny.0 == 0 {
                bits |= combo(pair_access, pair_deny);
                a |= pair_access.0;
                d |= pair_deny.0;
            }
        }
        (a == access.0 && d == deny.0).then_some(bits)
    }
}

impl Opens {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_other.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_other.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Open> {
        self.by_other.values()
    }

    /// From the one with this stateid on, ascending.
    pub(crate) fn starting_at(&self, other: Other) -> impl Iterator<Item = &Open> {
        self.by_other.starting_at(other).map(|(_, open)| open)
    }

    pub(crate) fn get(&self, other: &Other) -> Option<&Open> {
        self.by_other.get(other)
    }

    pub(crate) fn of_owner(&self, owner: &OpenOwner) -> Option<&Open> {
        self.by_owner.get(owner).and_then(|other| self.by_other.get(other))
    }

    pub(crate) fn of_client(&self, client: ClientId) -> impl Iterator<Item = &Open> {
        let first = OpenOwner { client, opaque: Arc::default() };
        let owned = self.by_owner.starting_at(first).take_while(move |(owner, _)| owner.client == client);
        owned.filter_map(|(_, other)| self.by_other.get(other))
    }

    /// What a client reclaimed it has told of since.
    pub(crate) fn has_told(&mut self, client: ClientId) {
        let reclaimed = self.of_client(client).filter(|open| open.begun.reclaimed);
        let those: Vec<Other> = reclaimed.map(|open| open.stateid.other).collect();
        for other in those {
            if let Some(open) = self.by_other.get_mut(&other) {
                open.begun.reclaimed = false;
            }
        }
    }

    /// Who has it open.
    pub(crate) fn clients(&self) -> BTreeSet<ClientId> {
        each_once(|client| {
            let first = OpenOwner { client, opaque: Arc::default() };
            self.by_owner.starting_at(first).next().map(|(owner, _)| owner.client)
        })
    }

    /// The open named by a client's stateid.
    pub(crate) fn check(&self, client: ClientId, stateid: &StateId) -> Result<&Open, Error> {
        let open = self.get(&stateid.other).ok_or(Error::BadStateid)?;
        // RFC 8881 §8.2.4: another client's stateid is as good as unknown.
        if open.owner.client != client {
            return Err(Error::BadStateid);
        }
        check_seqid(stateid.seqid, open.stateid.seqid)?;
        Ok(open)
    }

    /// The first open whose share reservation excludes the one asked for.
    pub(crate) fn conflict(&self, asked: &OpenRequest) -> Option<&Open> {
        if asked.deny == Deny::NONE && self.denying == 0 {
            return None;
        }
        // RFC 8881 §9.7: no exception for what the same owner holds. But what it held before, a restart or a delegation in
        // between, went together then.
        let anew = asked.claim == Claim::New && !asked.again;
        self.iter().find(|open| {
            let own = open.owner == asked.owner;
            let access = if own { asked.access } else { asked.uses() };
            (anew || !own) && shares_conflict((open.access, open.deny), (access, asked.deny))
        })
    }

    /// The first open of anybody that denies reading or writing: for I/O without an open.
    pub(crate) fn denying(&self, write: bool) -> Option<&Open> {
        self.all_denying(write).next()
    }

    /// The first one beside this that denies reading: for a READ under an open that is not for reading.
    pub(crate) fn denying_to_read(&self, beside: &Other) -> Option<&Open> {
        self.all_denying(false).find(|open| open.stateid.other != *beside)
    }

    fn all_denying(&self, write: bool) -> impl Iterator<Item = &Open> {
        let bit = if write { Deny::WRITE } else { Deny::READ };
        let all = (self.denying > 0).then(|| self.iter());
        all.into_iter().flatten().filter(move |open| open.deny.0 & bit.0 != 0)
    }

    /// Adds an open or upgrades the owner's; true when the stateid is new. `stateid` is what was planned.
    pub(crate) fn install(
        &mut self,
        (owner, stateid): (&OpenOwner, StateId),
        (access, deny): (Access, Deny),
        begun: Begun,
    ) -> bool {
        let new = self.by_other.get(&stateid.other).is_none();
        if new {
            self.by_owner.insert(owner.clone(), stateid.other);
        }
        let open = self.by_other.get_or_insert_with(stateid.other, || Open {
            owner: owner.clone(),
            stateid,
            access,
            deny,
            begun,
            combos: 0,
        });
        let denied = !new && open.deny != Deny::NONE;
        open.stateid = stateid;
        open.access = Access(open.access.0 | access.0);
        open.deny = Deny(open.deny.0 | deny.0);
        open.combos |= combo(access, deny);
        self.denying += usize::from(open.deny != Deny::NONE) - usize::from(denied);
        new
    }

    /// The count of denying opens is right.
    pub(crate) fn counts_are_right(&self) -> bool {
        self.denying == self.iter().filter(|open| open.deny != Deny::NONE).count()
            && self.by_owner.len() == self.by_other.len()
    }

    /// May this open be downgraded so?
    pub(crate) fn can_downgrade(&self, other: &Other, access: Access, deny: Deny) -> bool {
        self.get(other).is_some_and(|open| open.downgraded(access, deny).is_some())
    }

    pub(crate) fn downgrade(&mut self, stateid: StateId, access: Access, deny: Deny) {
        if let Some(open) = self.by_other.get_mut(&stateid.other)
            && let Some(combos) = open.downgraded(access, deny)
        {
            self.denying -= usize::from(open.deny != Deny::NONE);
            self.denying += usize::from(deny != Deny::NONE);
            (open.stateid, open.access, open.deny, open.combos) = (stateid, access, deny, combos);
        }
    }

    pub(crate) fn remove(&mut self, other: &Other) -> Option<Open> {
        let open = self.by_other.remove(other)?;
        self.by_owner.remove(&open.owner);
        self.denying -= usize::from(open.deny != Deny::NONE);
        Some(open)
    }
}

/// The clients that `from` finds, each the first from the one on that it is asked for. However many owners each of them has.
pub(crate) fn each_once(from: impl Fn(ClientId) -> Option<ClientId>) -> BTreeSet<ClientId> {
    let next = |found: &ClientId| from(ClientId(found.0.checked_add(1)?));
    std::iter::successors(from(ClientId(0)), next).collect()
}

/// Do two share reservations exclude each other (RFC 8881 §9.7)?
pub(crate) const fn shares_conflict(a: (Access, Deny), b: (Access, Deny)) -> bool {
    a.0.0 & b.1.0 != 0 || b.0.0 & a.1.0 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BootEpoch, StateKind};

    #[test]
    fn downgrade_needs_a_union_of_earlier_opens() {
        let owner = OpenOwner::new(ClientId(1), b"o");
        let id = StateId::new(BootEpoch(1), StateKind::Open, 1, 1);
        let mut opens = Opens::default();
        let at = |since| Begun { since: Time(since), reclaimed: false };
        opens.install((&owner, id), (Access::READ, Deny::NONE), at(1));
        opens.install((&owner, id.with_seqid(2)), (Access::BOTH, Deny::WRITE), at(2));
        let ok = |access, deny| opens.can_downgrade(&id.other, access, deny);
        assert!(ok(Access::READ, Deny::NONE));
        assert!(ok(Access::BOTH, Deny::WRITE));
        assert!(!ok(Access::WRITE, Deny::NONE), "never opened for write alone");
        assert!(!ok(Access::READ, Deny::WRITE), "this deny came with write access");
        assert!(!ok(Access::BOTH, Deny::NONE));
        opens.downgrade(id.with_seqid(3), Access::READ, Deny::NONE);
        assert!(!opens.can_downgrade(&id.other, Access::BOTH, Deny::WRITE), "gone by the downgrade");
        let open = opens.get(&id.other).unwrap();
        assert_eq!((open.access, open.deny, open.stateid.seqid), (Access::READ, Deny::NONE, 3));
        assert_eq!(open.begun, at(1));
    }
}
