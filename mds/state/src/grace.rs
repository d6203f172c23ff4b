//! Grace period and reclaim: RFC 8881 §8.4.2, §8.4.3, §18.51.
//!
//! ```text
//!   start ──► Active ──time is up, or nobody left to wait for──► Ending ──row is durable──► Over
//! ```
//!
//! *Ending* exists because of the second edge condition of §8.4.3: a client that did not reclaim must
//! not be able to after the next restart, since by then its locks may have been given to others. One
//! stable row says which grace period ended last; it is durable before the first new lock is granted,
//! and a client may reclaim only if its own record is not older than that row.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use crate::client::Error;
use crate::file::FileId;
use crate::ids::{BootEpoch, ClientId, Time};
use crate::lease::ClientShared;
use crate::recovery::{Effect, ServerRow};

const ACTIVE: u8 = 0;
const ENDING: u8 = 1;
const OVER: u8 = 2;

/// What an operation that takes state wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// New state.
    New,
    /// State held before the restart (CLAIM_PREVIOUS, reclaim locks).
    Reclaim,
    /// Opens and locks that a delegation stands for. Whoever recalls it waits for them, in grace too (RFC 8881 §10.4.4), and
    /// what could be reclaimed does not conflict with them: the delegation kept it out before the restart.
    UnderDelegation,
}

/// The question of every OPEN and LOCK, asked without any lock.
#[derive(Clone, Debug)]
pub struct GraceGate(Arc<AtomicU8>);

impl GraceGate {
    /// May the client do this now?
    ///
    /// Errors. New: Grace, also before the client's own RECLAIM_COMPLETE (§18.51.3). Reclaim: NoGrace
    /// after grace or after the client's RECLAIM_COMPLETE, ReclaimBad for a client that held nothing it
    /// may reclaim, Delay while grace is being ended.
    pub fn admit(&self, client: &ClientShared, claim: Claim) -> Result<(), Error> {
        let phase = self.0.load(SeqCst);
        match claim {
            Claim::New if phase != OVER || !client.reclaim_complete() => Err(Error::Grace),
            Claim::New | Claim::UnderDelegation => Ok(()),
            Claim::Reclaim if phase == OVER || client.reclaim_complete() => Err(Error::NoGrace),
            Claim::Reclaim if !client.may_reclaim() => Err(Error::ReclaimBad),
            // The row that ends grace may already be durable, and then this reclaim came too late.
            Claim::Reclaim if phase == ENDING => Err(Error::Delay),
            Claim::Reclaim => Ok(()),
        }
    }

    /// Grace has not ended.
    #[must_use]
    pub fn in_grace(&self) -> bool {
        self.0.load(SeqCst) != OVER
    }
}

/// The grace period of one incarnation.
#[derive(Debug)]
pub struct Grace {
    gate: GraceGate,
    epoch: BootEpoch,
    until: Time,
    hard_limit: Time,
    lease_nanos: u64,
    /// Clients that may reclaim and have not sent RECLAIM_COMPLETE.
    pending: BTreeSet<ClientId>,
    /// There were some when it began.
    waited: bool,
    /// Files that have lost a name since it began: nobody knew of a delegation to recall first. `None`: too many to tell.
    moved: Option<BTreeSet<FileId>>,
}

/// Files whose loss of a name is remembered one by one.
const MOST_MOVED: usize = 100_000;

impl Grace {
    /// Starts the grace period of incarnation `epoch`: one lease period, at most two while reclaims
    /// keep coming.
    #[must_use]
    pub fn start(now: Time, epoch: BootEpoch, lease_nanos: u64, pending: BTreeSet<ClientId>) -> Self {
        let until = now.plus_nanos(lease_nanos);
        Self {
            gate: GraceGate(Arc::new(AtomicU8::new(ACTIVE))),
            epoch,
            until,
            hard_limit: until.plus_nanos(lease_nanos),
            lease_nanos,
            waited: !pending.is_empty(),
            pending,
            moved: Some(BTreeSet::new()),
        }
    }

    /// It goes on with what was begun before it, by an incarnation whose grace did not end: what lost a name then nobody knows.
    #[must_use]
    pub(crate) fn after_another(mut self) -> Self {
        self.moved = None;
        self
    }

    /// A handle for [`GraceGate::admit`].
    #[must_use]
    pub fn gate(&self) -> GraceGate {
        self.gate.clone()
    }

    /// Grace has not ended.
    #[must_use]
    pub fn in_grace(&self) -> bool {
        self.gate.in_grace()
    }

    /// Clients that are still waited for.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether it began with clients of earlier incarnations, who may hold what those gave out.
    #[must_use]
    pub fn had_any(&self) -> bool {
        self.waited
    }

    pub(crate) fn waits_for(&self) -> &BTreeSet<ClientId> {
        &self.pending
    }

    /// A reclaim succeeded: its client is at work and gets another tenth of a lease, up to the limit.
    pub fn note_reclaim(&mut self, now: Time) {
        let wish = now.plus_nanos(self.lease_nanos / 10);
        self.until = self.until.max(wish).min(self.hard_limit);
    }

    /// The client has completed its reclaim or is gone: it is not waited for.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.pending.remove(&client);
    }

    /// The file loses a name, or has another.
    pub fn note_moved(&mut self, file: FileId) {
        let Some(moved) = self.moved.as_mut().filter(|_| self.gate.in_grace()) else { return };
        moved.insert(file);
        if moved.len() > MOST_MOVED {
            self.moved = None;
        }
    }

    /// Whether the file may have lost a name under a delegation that is about to be reclaimed: its holder opens by the old name
    /// without asking (RFC 8881 §10.2), and would find it there for as long as it had the delegation.
    #[must_use]
    pub fn may_have_moved(&self, file: FileId) -> bool {
        self.moved.as_ref().is_none_or(|moved| moved.contains(&file))
    }

    /// The client goes on under a new client ID.
    pub(crate) fn rename(&mut self, old: ClientId, new: ClientId) {
        if self.pending.remove(&old) {
            self.pending.insert(new);
        }
    }

    /// Ends grace when it is time. The effect's row must be durable before [`Self::ended`] is called;
    /// until then every poll returns it again.
    pub fn poll(&mut self, now: Time) -> Option<Effect> {
        let phase = self.gate.0.load(SeqCst);
        let due = now >= self.until || self.pending.is_empty();
        if phase == OVER || (phase == ACTIVE && !due) {
            return None;
        }
        self.gate.0.store(ENDING, SeqCst);
        Some(Effect::PersistServer(ServerRow { grace_ended_in: self.epoch }))
    }

    /// The row of [`Self::poll`] is durable: new state may be granted.
    pub fn ended(&mut self) {
        if self.gate.0.load(SeqCst) == ENDING {
            self.gate.0.store(OVER, SeqCst);
            self.pending.clear();
            self.moved = Some(BTreeSet::new());
        }
    }

    /// When to poll next; [`Time::NEVER`] when grace is over.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        match self.gate.0.load(SeqCst) {
            OVER => Time::NEVER,
            ENDING => Time::ZERO,
            _ if self.pending.is_empty() => Time::ZERO,
            _ => self.until,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 1_000;

    fn client(complete: bool, may_reclaim: bool) -> ClientShared {
        let c = ClientShared::new(ClientId(1), Time::ZERO);
        c.set_reclaim(complete, may_reclaim);
        c
    }

    fn grace(pending: &[u64]) -> Grace {
        let pending = pending.iter().map(|id| ClientId(*id)).collect();
        Grace::start(Time::ZERO, BootEpoch(5), LEASE, pending)
    }

    fn end(g: &mut Grace, now: Time) {
        assert!(g.poll(now).is_some());
        g.ended();
    }

    /// The whole table of §8.4.2 and §18.51: (phase, completed, may reclaim) to (new, reclaim).
    #[test]
    fn admission_table() {
        let active = grace(&[1]);
        let mut ending = grace(&[]);
        assert!(ending.poll(Time::ZERO).is_some());
        let mut over = grace(&[]);
        end(&mut over, Time::ZERO);
        let (g, n, b, d) =
            (Err(Error::Grace), Err(Error::NoGrace), Err(Error::ReclaimBad), Err(Error::Delay));
        let table = [
            (&active, false, false, g, b),
            (&active, false, true, g, Ok(())),
            (&active, true, false, g, n),
            (&active, true, true, g, n),
            (&ending, false, false, g, b),
            (&ending, false, true, g, d),
            (&ending, true, true, g, n),
            (&over, false, false, g, n),
            (&over, false, true, g, n),
            (&over, true, false, Ok(()), n),
            (&over, true, true, Ok(()), n),
        ];
        for (i, (grace, complete, may, new, reclaim)) in table.into_iter().enumerate() {
            let c = client(complete, may);
            let gate = grace.gate();
            assert_eq!(gate.admit(&c, Claim::New), new, "row {i} new");
            assert_eq!(gate.admit(&c, Claim::Reclaim), reclaim, "row {i} reclaim");
        }
    }

    #[test]
    fn ends_early_when_nobody_is_waited_for() {
        let mut g = grace(&[1, 2]);
        assert!(g.poll(Time(1)).is_none());
        g.forget(ClientId(1));
        assert!(g.poll(Time(2)).is_none());
        g.forget(ClientId(2));
        assert_eq!(g.poll(Time(3)), Some(Effect::PersistServer(ServerRow { grace_ended_in: BootEpoch(5) })));
        assert!(g.gate().in_grace(), "not before the row is durable");
        assert!(g.poll(Time(4)).is_some(), "repeated until acknowledged");
        g.ended();
        assert!(!g.gate().in_grace());
        assert!(g.poll(Time(5)).is_none());
        assert_eq!(g.next_deadline(), Time::NEVER);
    }

    #[test]
    fn ends_by_time_and_reclaims_extend_it_up_to_twice() {
        let mut g = grace(&[1]);
        assert!(g.poll(Time(LEASE - 1)).is_none());
        g.note_reclaim(Time(LEASE - 1));
        assert_eq!(g.next_deadline(), Time(LEASE - 1 + LEASE / 10));
        assert!(g.poll(Time(LEASE)).is_none());
        g.note_reclaim(Time(50 * LEASE));
        assert_eq!(g.next_deadline(), Time(2 * LEASE));
        assert!(g.poll(Time(2 * LEASE)).is_some());
    }

    #[test]
    fn ended_without_poll_does_nothing() {
        let mut g = grace(&[1]);
        g.ended();
        assert!(g.gate().in_grace());
    }
}
