//! Leases and what a session must see of its client without the client table: RFC 8881 §8.3, §18.46.
//!
//! ```text
//!            SEQUENCE                     lease elapsed, nothing in progress
//!   Active ───────────► Active    Active ───────────────────────────────────► Courtesy
//!   Courtesy ──SEQUENCE──► Active         Courtesy ──conflict, cap, age──► Dead
//!   any ──destroyed, replaced by a new incarnation, revoked──► Dead (final)
//! ```
//!
//! Active and Courtesy are the same stored fact (the time of the last renewal) seen at different times:
//! an expired lease costs nothing until somebody conflicts with what it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::ids::{ClientId, Time};

/// `SEQ4_STATUS_*` bits of `sr_status_flags`, RFC 8881 §18.46.3.
pub mod seq4_status {
    /// `SEQ4_STATUS_CB_PATH_DOWN`: no session of the client has a usable back channel.
    pub const CB_PATH_DOWN: u32 = 0x1;
    /// `SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED`
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x8;
    /// `SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED`
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x10;
    /// `SEQ4_STATUS_ADMIN_STATE_REVOKED`: stays until the stateids are freed with FREE_STATEID.
    pub const ADMIN_STATE_REVOKED: u32 = 0x20;
    /// `SEQ4_STATUS_RECALLABLE_STATE_REVOKED`: likewise, for layouts and delegations.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    /// `SEQ4_STATUS_LEASE_MOVED`
    pub const LEASE_MOVED: u32 = 0x80;
    /// `SEQ4_STATUS_RESTART_RECLAIM_NEEDED`: set until RECLAIM_COMPLETE after a server restart.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    /// `SEQ4_STATUS_CB_PATH_DOWN_SESSION`: this session has no usable back channel.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    /// `SEQ4_STATUS_BACKCHANNEL_FAULT`: the client must replace the session.
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
    /// `SEQ4_STATUS_DEVID_CHANGED`
    pub const DEVID_CHANGED: u32 = 0x800;
    /// `SEQ4_STATUS_DEVID_DELETED`
    pub const DEVID_DELETED: u32 = 0x1000;
}

/// State of a client's lease at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Renewed less than a lease period ago, or a request of the client is being served.
    Active,
    /// Elapsed; the state is kept until it conflicts and a SEQUENCE revives it.
    Courtesy,
    /// Gone for good: every session answers BADSESSION.
    Dead,
}

/// From one reply that tells of layouts that were revoked to the next: Linux drops each layout that it has at every one, and
/// never frees those (ADR 0037).
pub const TOLD_AGAIN_NANOS: u64 = 1_000_000_000;

/// Last-renewal value of a dead lease.
const DEAD: u64 = u64::MAX;

/// The part of a client that its sessions read and write while holding only their own lock.
///
/// All fields are atomics; each documents who writes it. Shared as `Arc<ClientShared>` by the client
/// table and by every session of the client.
#[derive(Debug)]
pub struct ClientShared {
    id: ClientId,
    /// Nanoseconds; written by sessions (renew), set to DEAD by the client table.
    renewed: AtomicU64,
    /// Nanoseconds; when the last SEQUENCE began of those whose COMPOUND has been answered. Written by sessions.
    answered: AtomicU64,
    /// COMPOUNDs between SEQUENCE and completion; written by sessions.
    in_flight: AtomicU32,
    /// Revocation and device bits of `sr_status_flags`; written by whoever revokes.
    status: AtomicU32,
    /// Nanoseconds; when a reply may tell again of layouts that were revoked. Written by sessions.
    tells_again: AtomicU64,
    /// Nanoseconds; when the last delegation was revoked while one is to be freed: each reply tells of it. Zero: there is none.
    /// Written by whoever revokes.
    delegation_revoked: AtomicU64,
    /// Sessions of this client with a usable back channel; written by sessions.
    back_channels: AtomicU32,
    /// Whether any session ever had a back channel; written by sessions.
    back_wanted: AtomicBool,
    /// RECLAIM_COMPLETE was received (or is not owed); written by the client table.
    reclaim_complete: AtomicBool,
    /// May send reclaims in this grace period; written by the client table.
    may_reclaim: AtomicBool,
    /// SP4_MACH_CRED enforces BIND_CONN_TO_SESSION; written by the client table before there is a session.
    must_bind: AtomicBool,
}

impl ClientShared {
    /// A client whose lease starts at `now`.
    #[must_use]
    pub fn new(id: ClientId, now: Time) -> Self {
        Self {
            id,
            renewed: AtomicU64::new(now.0.min(DEAD - 1)),
            answered: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            status: AtomicU32::new(0),
            tells_again: AtomicU64::new(0),
            delegation_revoked: AtomicU64::new(0),
            back_channels: AtomicU32::new(0),
            back_wanted: AtomicBool::new(false),
            reclaim_complete: AtomicBool::new(false),
            may_reclaim: AtomicBool::new(false),
            must_bind: AtomicBool::new(false),
        }
    }

    /// The client.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// Starts serving a COMPOUND: renews the lease and keeps it from elapsing until [`Self::end`].
    /// `false`: the client is dead and nothing was started.
    ///
    /// Only a successful SEQUENCE calls this (RFC 8881 §8.3): no other operation renews a 4.1 lease.
    pub(crate) fn begin(&self, now: Time) -> bool {
        // Counted before the renewal: `kill_if_elapsed` looks at the count first and swaps the renewal
        // time second, so that it cannot miss both.
        self.in_flight.fetch_add(1, SeqCst);
        if self.renew(now) {
            return true;
        }
        self.in_flight.fetch_sub(1, SeqCst);
        false
    }

    /// The reply of a COMPOUND started by [`Self::begin`] is ready.
    ///
    /// RFC 8881 §8.3: the lease must not elapse sooner than one lease period after the last operation
    /// of the COMPOUND, which may have waited for a recall, so it is renewed once more here.
    pub(crate) fn end(&self, now: Time) {
        self.renew(now);
        self.in_flight.fetch_sub(1, SeqCst);
    }

    /// A COMPOUND has its reply, whose flags are those of when it began.
    pub(crate) fn answered(&self, began: Time) {
        self.answered.fetch_max(began.0, SeqCst);
    }

    /// When the last SEQUENCE began of those whose COMPOUND has its reply: what was raised before then was told in it.
    /// [`Time::ZERO`]: there was none.
    #[must_use]
    pub fn told(&self) -> Time {
        Time(self.answered.load(SeqCst))
    }

    /// No SEQUENCE succeeds any more.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.renewed.load(SeqCst) == DEAD
    }

    /// The lease of a client that was just confirmed begins.
    pub(crate) fn start_lease(&self, now: Time) {
        self.renew(now);
    }

    fn renew(&self, now: Time) -> bool {
        let now = now.0.min(DEAD - 1);
        self.renewed
            .fetch_update(SeqCst, SeqCst, |old| if old == DEAD { None } else { Some(old.max(now)) })
            .is_ok()
    }

    /// Time of the last renewal; [`Time::NEVER`] when dead.
    #[must_use]
    pub fn renewed(&self) -> Time {
        Time(self.renewed.load(SeqCst))
    }

    /// The lease at `now`, for a lease period of `lease_nanos`.
    #[must_use]
    pub fn lease(&self, now: Time, lease_nanos: u64) -> LeaseState {
        let renewed = self.renewed.load(SeqCst);
        if renewed == DEAD {
            LeaseState::Dead
        } else if self.in_flight() > 0 || now <= Time(renewed).plus_nanos(lease_nanos) {
            LeaseState::Active
        } else {
            LeaseState::Courtesy
        }
    }

    /// Kills the client if its lease has elapsed at `now`; `true` when it is dead afterwards.
    pub(crate) fn kill_if_elapsed(&self, now: Time, lease_nanos: u64) -> bool {
        let renewed = self.renewed.load(SeqCst);
        if renewed == DEAD {
            return true;
        }
        if self.in_flight() > 0 || now <= Time(renewed).plus_nanos(lease_nanos) {
            return false;
        }
        // A SEQUENCE that came in between changed the value and wins.
        self.renewed.compare_exchange(renewed, DEAD, SeqCst, SeqCst).is_ok()
    }

    /// Kills the client: no SEQUENCE succeeds from here on.
    pub(crate) fn kill(&self) {
        self.renewed.store(DEAD, SeqCst);
    }

    /// COMPOUNDs in progress on all sessions of the client.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(SeqCst)
    }

    /// Raises revocation or device bits ([`seq4_status`]) for every session of the client.
    pub fn raise_status(&self, bits: u32) {
        self.status.fetch_or(bits, SeqCst);
    }

    /// Clears bits raised with [`Self::raise_status`]: once the last revoked stateid has been freed.
    pub fn clear_status(&self, bits: u32) {
        self.status.fetch_and(!bits, SeqCst);
    }

    pub(crate) fn back_channel_up(&self) {
        self.back_wanted.store(true, SeqCst);
        self.back_channels.fetch_add(1, SeqCst);
    }

    pub(crate) fn back_channel_down(&self) {
        let _ = self.back_channels.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
    }

    pub(crate) fn want_back_channel(&self) {
        self.back_wanted.store(true, SeqCst);
    }

    /// Sessions of the client with a usable back channel.
    #[must_use]
    pub fn back_channels(&self) -> u32 {
        self.back_channels.load(SeqCst)
    }

    /// The client has sent RECLAIM_COMPLETE.
    #[must_use]
    pub fn reclaim_complete(&self) -> bool {
        self.reclaim_complete.load(SeqCst)
    }

    /// The client held state when the previous incarnation ended and has not completed its reclaim.
    #[must_use]
    pub fn may_reclaim(&self) -> bool {
        self.may_reclaim.load(SeqCst)
    }

    pub(crate) fn set_reclaim(&self, complete: bool, may_reclaim: bool) {
        self.reclaim_complete.store(complete, SeqCst);
        self.may_reclaim.store(may_reclaim, SeqCst);
    }

    /// Its sessions are used over connections alone that were bound to them.
    pub(crate) fn must_bind(&self) -> bool {
        self.must_bind.load(SeqCst)
    }

    pub(crate) fn set_must_bind(&self, must: bool) {
        self.must_bind.store(must, SeqCst);
    }

    /// The client-wide bits of `sr_status_flags`.
    #[must_use]
    pub fn status_flags(&self) -> u32 {
        let mut flags = self.status.load(SeqCst);
        // RFC 8881 §18.46.3: raised while no session of the client has a back channel. A client that
        // never asked for one is not told again and again what it knows.
        if self.back_wanted.load(SeqCst) && self.back_channels() == 0 {
            flags |= seq4_status::CB_PATH_DOWN;
        }
        flags
    }

    /// A delegation was revoked, and is to be freed.
    pub fn note_revoked_delegation(&self, now: Time) {
        self.delegation_revoked.store(now.0.max(1), SeqCst);
    }

    /// All delegations that were revoked have been freed.
    pub fn delegations_are_freed(&self) {
        self.delegation_revoked.store(0, SeqCst);
    }

    /// When the last delegation was revoked; `None` when none is to be freed.
    #[must_use]
    pub fn delegation_revoked(&self) -> Option<Time> {
        Some(self.delegation_revoked.load(SeqCst)).filter(|at| *at != 0).map(Time)
    }

    /// Those for the reply to a SEQUENCE that begins at `now`. Of a delegation that was revoked each reply tells until it is
    /// freed (RFC 8881 §18.46.3); of layouts one does, and another after [`TOLD_AGAIN_NANOS`].
    pub(crate) fn flags_to_tell(&self, now: Time) -> u32 {
        let (flags, again) = (self.status_flags(), now.plus_nanos(TOLD_AGAIN_NANOS).0);
        if flags & seq4_status::RECALLABLE_STATE_REVOKED == 0 || self.delegation_revoked().is_some() {
            return flags;
        }
        let due = |at: u64| (at <= now.0).then_some(again);
        match self.tells_again.fetch_update(SeqCst, SeqCst, due) {
            Ok(_) => flags,
            Err(_) => flags & !seq4_status::RECALLABLE_STATE_REVOKED,
        }
    }
}

/// Whether anybody uses a session: written by the session, read by the client table when it needs room.
#[derive(Clone, Debug, Default)]
pub(crate) struct UseGauge(Arc<AtomicU32>);

impl UseGauge {
    const EVICTED: u32 = u32::MAX;

    /// Sets the number of users; `false`: the session was given up in the meantime.
    pub(crate) fn set(&self, users: usize) -> bool {
        let users = u32::try_from(users).unwrap_or(Self::EVICTED - 1).min(Self::EVICTED - 1);
        let update = |old| if old == Self::EVICTED { None } else { Some(users) };
        self.0.fetch_update(SeqCst, SeqCst, update).is_ok()
    }

    /// Gives the session up if nobody uses it: no SEQUENCE succeeds on it afterwards.
    pub(crate) fn evict(&self) -> bool {
        let got = self.0.compare_exchange(0, Self::EVICTED, SeqCst, SeqCst);
        matches!(got, Ok(_) | Err(Self::EVICTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 90_000_000_000;

    fn shared() -> ClientShared {
        ClientShared::new(ClientId(1), Time::ZERO)
    }

    #[test]
    fn transitions() {
        let c = shared();
        assert_eq!(c.lease(Time(LEASE), LEASE), LeaseState::Active);
        assert_eq!(c.lease(Time(LEASE + 1), LEASE), LeaseState::Courtesy);
        assert!(c.begin(Time(LEASE + 2)), "courtesy is revived by SEQUENCE");
        c.end(Time(LEASE + 2));
        assert_eq!(c.lease(Time(2 * LEASE), LEASE), LeaseState::Active);
        c.kill();
        assert_eq!(c.lease(Time(2 * LEASE), LEASE), LeaseState::Dead);
        assert!(!c.begin(Time(2 * LEASE)));
        assert_eq!(c.in_flight(), 0);
    }

    /// RFC 8881 §8.3: the lease may not elapse while a COMPOUND runs, and runs anew at its end.
    #[test]
    fn a_compound_in_progress_holds_the_lease() {
        let c = shared();
        assert!(c.begin(Time(1)));
        assert_eq!(c.lease(Time(10 * LEASE), LEASE), LeaseState::Active);
        assert!(!c.kill_if_elapsed(Time(10 * LEASE), LEASE));
        c.end(Time(10 * LEASE));
        assert_eq!(c.lease(Time(11 * LEASE), LEASE), LeaseState::Active);
        assert!(!c.kill_if_elapsed(Time(11 * LEASE), LEASE));
        assert!(c.kill_if_elapsed(Time(11 * LEASE + 1), LEASE));
        assert!(c.kill_if_elapsed(Time(11 * LEASE + 1), LEASE), "already dead");
    }

    #[test]
    fn time_never_runs_back() {
        let c = shared();
        assert!(c.begin(Time(50)));
        c.end(Time(20));
        assert_eq!(c.renewed(), Time(50));
    }

    #[test]
    fn back_channel_flags() {
        let c = shared();
        assert_eq!(c.status_flags(), 0);
        c.back_channel_up();
        assert_eq!(c.status_flags(), 0);
        c.back_channel_down();
        assert_eq!(c.status_flags(), seq4_status::CB_PATH_DOWN);
        c.back_channel_down();
        assert_eq!(c.back_channels(), 0, "never wraps");
        c.raise_status(seq4_status::ADMIN_STATE_REVOKED);
        assert_eq!(c.status_flags(), seq4_status::CB_PATH_DOWN | seq4_status::ADMIN_STATE_REVOKED);
        c.clear_status(seq4_status::ADMIN_STATE_REVOKED);
        assert_eq!(c.status_flags(), seq4_status::CB_PATH_DOWN);
    }

    #[test]
    fn one_reply_a_second_tells_of_layouts_that_were_revoked_and_each_of_delegations() {
        use seq4_status::{ADMIN_STATE_REVOKED as ADMIN, RECALLABLE_STATE_REVOKED as RECALLABLE};
        let c = ClientShared::new(ClientId(1), Time(5));
        c.raise_status(RECALLABLE | ADMIN);
        let told = |at: u64| c.flags_to_tell(Time(5 + at));
        assert_eq!([0, 1, TOLD_AGAIN_NANOS - 1].map(told), [RECALLABLE | ADMIN, ADMIN, ADMIN]);
        assert_eq!([TOLD_AGAIN_NANOS, TOLD_AGAIN_NANOS + 1].map(told), [RECALLABLE | ADMIN, ADMIN]);
        assert_eq!(told(9 * TOLD_AGAIN_NANOS), RECALLABLE | ADMIN);
        c.note_revoked_delegation(Time(7));
        assert_eq!(c.delegation_revoked(), Some(Time(7)));
        assert_eq!([1, 2, 3].map(|at| told(9 * TOLD_AGAIN_NANOS + at)), [RECALLABLE | ADMIN; 3]);
        c.delegations_are_freed();
        assert_eq!(told(9 * TOLD_AGAIN_NANOS + 4), ADMIN);
        c.clear_status(RECALLABLE | ADMIN);
        assert_eq!(told(20 * TOLD_AGAIN_NANOS), 0);
    }
}
