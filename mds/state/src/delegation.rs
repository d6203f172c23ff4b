//! Delegations: RFC 8881 §10.2, §10.4, §18.6 (DELEGRETURN).
//!
//! ```text
//! none ──OPEN, by policy──▶ held ──DELEGRETURN──▶ none
//!                             │ a conflicting operation queues
//!                             ▼
//!                          recalled ──DELEGRETURN──▶ none
//!                             │ deadline
//!                             ▼
//!                          revoked (a writer is fenced off the file, too)
//! ```
//!
//! The rule of conflict: readers share read delegations, a write delegation is alone; the holder itself
//! never conflicts, but is asked for a read delegation when it opens for writing (`File::recall_own`).
//!
//! Who is given one, which §10.4 leaves free: `File::delegation_to_grant`.

use crate::effect::{Effect, Recall, RecallKind};
use crate::few::Few;
use crate::file::{Error, PendingRecall};
use crate::ids::{ClientId, StateId, Time};
use crate::open::Begun;
use crate::stateid::{Other, check_seqid};
use crate::times::{Kept, Stamp, Times};

/// The type of a delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DelegationKind {
    /// OPEN_DELEGATE_READ.
    Read,
    /// OPEN_DELEGATE_WRITE.
    Write,
}

/// A write delegation, as the metadata server must know it to ask its holder for size and change (§10.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// Who holds it.
    pub client: ClientId,
    /// Its stateid.
    pub stateid: StateId,
    /// The change attribute that came with the grant; `None` when the delegation was reclaimed.
    pub change: Option<u64>,
    /// It answers for the file's times, too.
    pub times: bool,
}

/// A delegation handed out with an OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Its type.
    pub kind: DelegationKind,
    /// Its stateid.
    pub stateid: StateId,
    /// Its holder answers for the file's times (RFC 9754 §5).
    pub times: bool,
}

/// What one client holds.
#[derive(Debug, Hash)]
pub(crate) struct Delegation {
    pub(crate) kind: DelegationKind,
    pub(crate) stateid: StateId,
    /// The open that it was granted with, if there was one: by the mount that has it.
    pub(crate) with: Option<Other>,
    /// When it was granted.
    pub(crate) since: Time,
    pub(crate) recall: Option<PendingRecall>,
    /// See [`Writer::change`].
    pub(crate) change: Option<u64>,
    /// The times that its holder answers for. Of write delegations alone.
    pub(crate) kept: Option<Kept>,
    /// See [`File::has_told`](crate::file::File::has_told).
    pub(crate) told: bool,
}

impl Delegation {
    /// Since when its holder may have been using the file.
    pub(crate) const fn begun(&self) -> Begun {
        Begun { since: self.since, reclaimed: self.change.is_none() && !self.told }
    }
}

/// A holder that may write has data to flush before it can return: it is given so many times as long.
/// With a recall timeout of a third of the lease that is a lease (§10.4.6).
const FLUSHING: u64 = 3;

/// All delegations of one file: several read delegations, or one write delegation.
#[derive(Debug, Default, Hash)]
pub(crate) struct Delegations {
    pub(crate) held: Few<ClientId, Delegation>,
    /// No grant before: a file that was just fought over would be recalled again at once.
    pub(crate) hold_off: Option<Time>,
}

/// No grant for so many recall timeouts after a recall.
const CALM: u64 = 3;

impl Delegations {
    pub(crate) fn get(&self, client: ClientId) -> Option<&Delegation> {
        self.held.get(&client)
    }

    /// The delegation named by a client's stateid.
    pub(crate) fn check(&self, client: ClientId, stateid: &StateId) -> Result<&Delegation, Error> {
        let delegation = self.held.get(&client).filter(|d| d.stateid.other == stateid.other);
        let delegation = delegation.ok_or(Error::BadStateid)?;
        check_seqid(stateid.seqid, delegation.stateid.seqid)?;
        Ok(delegation)
    }

    /// The holder says what the times are: what is to be believed of it.
    pub(crate) fn keep(
        &mut self,
        client: ClientId,
        stateid: &StateId,
        said: Times,
        now: Stamp,
    ) -> Result<Times, Error> {
        self.check(client, stateid)?;
        let kept = self.held.get_mut(&client).and_then(|held| held.kept.as_mut());
        Ok(kept.ok_or(Error::BadStateid)?.believe(said, now))
    }

    /// Somebody else was shown this time of modification.
    pub(crate) fn shown(&mut self, modify: Stamp) {
        self.held.values_mut().filter_map(|held| held.kept.as_mut()).for_each(|kept| kept.shown(modify));
    }

    /// The file has been at peace for long enough.
    pub(crate) fn calm_down(&mut self, now: Time) {
        self.hold_off = self.hold_off.filter(|until| *until > now);
    }

    /// The clients whose delegation is in the way of `client`.
    pub(crate) fn against(&self, client: ClientId, use_: Use) -> Vec<ClientId> {
        self.held
            .iter()
            .filter(|(holder, delegation)| **holder != client && use_.breaks(delegation.kind))
            .map(|(holder, _)| *holder)
            .collect()
    }

    /// Starts the recall of one; `None` when it is under way.
    pub(crate) fn recall(&mut self, client: ClientId, now: Time, timeout: u64) -> Option<Effect> {
        let delegation = self.held.get_mut(&client)?;
        if delegation.recall.is_some() {
            return None;
        }
        let patience = match delegation.kind {
            DelegationKind::Read => timeout,
            DelegationKind::Write => timeout.saturating_mul(FLUSHING),
        };
        delegation.recall = Some(PendingRecall::new(false, now, patience));
        self.hold_off = Some(now.plus_nanos(timeout.saturating_mul(CALM)));
        Some(callback(client, delegation.stateid))
    }
}

pub(crate) const fn callback(client: ClientId, stateid: StateId) -> Effect {
    Effect::Callback(Recall { client, kind: RecallKind::Delegation, stateid })
}

/// What another client is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Use {
    /// Look at data, or open for reading.
    Read,
    /// Change data or attributes, or forbid reading.
    Change,
}

impl Use {
    /// RFC 8881 §10.4: readers share read delegations; a write delegation is alone.
    const fn breaks(self, held: DelegationKind) -> bool {
        matches!((self, held), (Self::Change, _) | (Self::Read, DelegationKind::Write))
    }
}
