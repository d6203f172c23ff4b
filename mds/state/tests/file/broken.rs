//! What an administrator breaks, and what he is shown before.

use sluice_state::delegation::DelegationKind;
use sluice_state::effect::{Effect, IoMode, RevokeReason};
use sluice_state::file::{Error, Hold, Intent, Outcome, Place, Prepared, Reply, What};
use sluice_state::lock::LockKind;
use sluice_state::open::{Access, Deny, OpenRequest};
use sluice_state::owner::{LockOwner, OpenOwner};
use sluice_state::range_set::Range;
use sluice_state::{BootEpoch, ClientId, StateId, StateKind};

use super::world::{A, B, World, locker, open_request, owner, range};

const W: LockKind = LockKind::Write;

fn both(w: &mut World, client: ClientId) -> StateId {
    w.open(client, Access::BOTH, Deny::NONE).unwrap()
}

/// A has the file locked, and B waits.
fn contended() -> (World, StateId, StateId) {
    let mut w = World::default();
    let open = both(&mut w, A);
    both(&mut w, B);
    let lock = w.lock(A, W, Range::ALL, false).unwrap();
    assert!(matches!(w.lock(B, W, Range::ALL, true), Err(Error::Denied(_))));
    (w, open, lock)
}

fn located(w: &World, stateid: &StateId) -> Result<(), Error> {
    w.index.locate(BootEpoch(5), A, stateid).map(drop)
}

#[test]
fn who_waits_has_the_lock_and_the_holder_goes_on() {
    let (mut w, open, lock) = contended();
    w.break_state(A);
    assert_eq!(w.notified, [locker(B)]);
    for stateid in [lock, open] {
        assert_eq!(located(&w, &stateid), Err(Error::AdminRevoked));
        assert!(w.index.free_revoked(A, &stateid));
        assert_eq!(located(&w, &stateid), Err(Error::BadStateid));
    }
    w.lock(B, W, Range::ALL, true).unwrap();
    // It may come back, for what is free.
    let again = both(&mut w, A);
    assert_ne!(again.other, open.other);
    assert!(matches!(w.lock(A, W, Range::ALL, false), Err(Error::Denied(_))));
    w.close(A).unwrap();
}

/// As Linux does; it looks through all of its state for as long as it is told that it has not freed all.
#[test]
fn who_frees_an_open_that_was_taken_has_freed_its_locks() {
    let (mut w, open, lock) = contended();
    w.break_state(A);
    assert!(w.index.free_revoked(A, &open));
    assert_eq!(located(&w, &lock), Err(Error::BadStateid));
    assert!(!w.index.has_revoked(A));
}

#[test]
fn nothing_is_given_on_before_its_holder_is_cut_off() {
    let (mut w, open, lock) = contended();
    w.layout(A, IoMode::ReadWrite).unwrap();
    w.break_state(A);
    assert!(w.notified.is_empty());
    let held = w.file.holds(Some(A), None, 9);
    assert!(held.iter().all(|hold| hold.taken == Some(RevokeReason::Admin)) && held.len() == 2, "{held:?}");
    assert_eq!(w.check_io(A, &open, true), Err(Error::AdminRevoked));
    assert_eq!(w.run(&Intent::Close { client: A, stateid: open }), Err(Error::AdminRevoked));
    assert_eq!(w.unlock_of(A, lock), Err(Error::AdminRevoked));
    assert_eq!(w.open(A, Access::READ, Deny::NONE), Err(Error::Delay), "it comes back later");
    let write = Intent::ProxyIo { client: A, write: true, exclusive: false };
    assert_eq!(w.run(&write), Err(Error::Delay));
    w.fence_done(0);
    assert_eq!(w.notified, [locker(B)]);
    both(&mut w, A);
}

#[test]
fn nor_before_a_write_that_is_under_way_has_ended() {
    let (mut w, ..) = contended();
    let write = w.ticket(&Intent::ProxyIo { client: A, write: true, exclusive: false });
    w.break_state(A);
    assert!(w.notified.is_empty());
    assert!(matches!(w.lock(B, W, Range::ALL, true), Err(Error::Delay)));
    w.finish(write, Outcome::Committed);
    w.lock(B, W, Range::ALL, true).unwrap();
}

/// An OPEN that made the file cannot be asked again where it is exclusive or guarded; one that makes another open wider can.
#[test]
fn an_open_under_way_makes_a_new_one_or_is_asked_again() {
    let (mut w, open, _) = contended();
    let wider = w.ticket(&Intent::Open(open_request(A, Access::BOTH, Deny::NONE)));
    let other =
        OpenRequest { owner: OpenOwner::new(A, b"other"), ..open_request(A, Access::READ, Deny::NONE) };
    let new = w.ticket(&Intent::Open(other));
    w.break_state(A);
    assert_eq!(w.finish(wider, Outcome::Committed), Reply::Refused(Error::Delay));
    let Reply::Opened { stateid: Some(stateid), .. } = w.finish(new, Outcome::Committed) else { panic!() };
    assert_eq!((located(&w, &stateid), located(&w, &open)), (Ok(()), Err(Error::AdminRevoked)));

    // While it can still write, nothing is given to it.
    let (mut w, ..) = contended();
    w.layout(A, IoMode::ReadWrite).unwrap();
    let other =
        OpenRequest { owner: OpenOwner::new(A, b"other"), ..open_request(A, Access::READ, Deny::NONE) };
    let new = w.ticket(&Intent::Open(other));
    w.break_state(A);
    let Reply::Opened { stateid: Some(stateid), .. } = w.finish(new, Outcome::Committed) else { panic!() };
    assert_eq!(located(&w, &stateid), Err(Error::AdminRevoked));
    w.fence_done(0);
    assert_eq!(w.file.holds(Some(A), None, 9), []);
}

#[test]
fn closing_what_is_broken_says_so() {
    let (mut w, open, _) = contended();
    w.policy.close_releases_locks = true;
    let close = w.ticket(&Intent::Close { client: A, stateid: open });
    w.break_state(A);
    assert_eq!(w.finish(close, Outcome::Committed), Reply::Refused(Error::AdminRevoked));
}

#[test]
fn a_share_reservation_and_a_delegation_are_broken() {
    let mut w = World::default();
    w.policy.write_delegations = true;
    both(&mut w, A);
    assert_eq!(w.file.delegation_of(A), Some(DelegationKind::Write));
    w.break_state(A);
    assert!(w.log.iter().any(|effect| matches!(
        effect,
        Effect::Revoked { kind: StateKind::Delegation, reason: RevokeReason::Admin, .. }
    )));
    w.open(A, Access::BOTH, Deny::BOTH).unwrap();
    assert_eq!(w.open(B, Access::READ, Deny::NONE), Err(Error::ShareDenied { holder: A }));
    let token = w.prepare(&Intent::Open(open_request(B, Access::READ, Deny::NONE)), None);
    assert!(matches!(token, Prepared::Deny(_)));
    assert_eq!(w.file.holders(), [A]);
    w.break_state(A);
    w.open(B, Access::READ, Deny::NONE).unwrap();
}

#[test]
fn what_is_held_is_shown_a_page_at_a_time() {
    let mut w = World::default();
    let first = both(&mut w, A);
    let since = w.now;
    w.now = w.now.plus_nanos(5);
    w.open(B, Access::READ, Deny::NONE).unwrap();
    both(&mut w, A);
    w.lock_as(LockOwner::new(A, b"one"), W, range(0, 9), false).unwrap();
    w.lock_as(LockOwner::new(A, b"two"), W, range(10, 19), false).unwrap();
    w.now = w.now.plus_nanos(5);
    w.lock_as(LockOwner::new(A, b"two"), W, range(40, u64::MAX), false).unwrap();
    let all = w.file.holds(None, None, 100);
    let what: Vec<_> = all.iter().map(|hold| (hold.client, hold.what, w.now.since(hold.since))).collect();
    assert_eq!(
        what,
        [
            (A, What::Open(Access::BOTH, Deny::NONE), 10),
            (B, What::Open(Access::READ, Deny::NONE), 5),
            (A, What::Lock(W, range(0, 9)), 5),
            (A, What::Lock(W, range(10, 19)), 5),
            (A, What::Lock(W, range(40, u64::MAX)), 5),
        ]
    );
    assert_eq!((all[0].stateid.other, all[0].since), (first.other, since));
    for most in 1..=5 {
        let (mut paged, mut after): (Vec<Hold>, Option<Place>) = (Vec::new(), None);
        loop {
            let page = w.file.holds(None, after, most);
            let Some(last) = page.last() else { break };
            assert!(page.len() <= most);
            after = Some(last.place());
            paged.extend(page);
        }
        assert_eq!(paged, all, "{most} at a time");
    }
    assert_eq!(w.file.holds(Some(B), None, 9), all[1..2]);
    assert!(w.opens.contains_key(&owner(A)));

    let mut w = World::default();
    w.policy.read_delegations = true;
    w.open(A, Access::READ, Deny::NONE).unwrap();
    w.open(B, Access::READ, Deny::NONE).unwrap();
    let all = w.file.holds(None, None, 9);
    let read = What::Delegation(DelegationKind::Read);
    assert_eq!(
        all[2..].iter().map(|hold| (hold.client, hold.what)).collect::<Vec<_>>(),
        [(A, read), (B, read)]
    );
    assert_eq!(w.file.holds(None, Some(all[2].place()), 9), all[3..]);
}
