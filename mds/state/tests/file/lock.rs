//! Byte-range locks.

use sluice_state::effect::{IoMode, RevokeReason};
use sluice_state::file::{Ctx, Error, File, Grace, Intent, Outcome, Reply};
use sluice_state::lock::{LockConflict, LockKind, LockRequest, Locker};
use sluice_state::open::{Access, Deny, OpenRequest};
use sluice_state::owner::{LockOwner, OpenOwner};
use sluice_state::range_set::Range;
use sluice_state::{ClientId, StateId};

use super::world::{A, B, C, FILE, World, locker, open_request, owner, range};

const R: LockKind = LockKind::Read;
const W: LockKind = LockKind::Write;

fn opened() -> World {
    let mut w = World::default();
    for client in [A, B, C] {
        w.open(client, Access::BOTH, Deny::NONE).unwrap();
    }
    w
}

fn denied(client: ClientId, kind: LockKind, range: Range) -> Error {
    Error::Denied(Box::new(LockConflict { range, kind, owner: locker(client) }))
}

#[test]
fn writers_exclude_readers_share() {
    let mut w = opened();
    let first = w.lock(A, R, range(0, 99), false).unwrap();
    assert_eq!(first.seqid, 1);
    w.lock(B, R, range(50, 60), false).unwrap();
    assert_eq!(w.lock(C, W, range(99, 200), false), Err(denied(A, R, range(0, 99))));
    w.lock(C, W, range(100, 200), false).unwrap();
    assert_eq!(w.test_lock(A, R, range(0, u64::MAX)), Err(denied(C, W, range(100, 200))));
    assert_eq!(w.test_lock(C, R, range(0, u64::MAX)), Ok(()));
    assert_eq!(w.test_lock(C, W, Range::ALL), Err(denied(A, R, range(0, 99))), "the one that starts first");
}

#[test]
fn split_merge_and_upgrade() {
    let mut w = opened();
    w.lock(A, W, range(0, 99), false).unwrap();
    let stateid = w.unlock(A, range(40, 59)).unwrap();
    assert_eq!(stateid.seqid, 2);
    w.lock(B, W, range(40, 59), false).unwrap();
    assert_eq!(w.lock(B, W, range(60, 60), false), Err(denied(A, W, range(60, 99))));
    w.unlock(B, Range::ALL).unwrap();
    w.lock(A, W, range(40, 59), false).unwrap();
    assert_eq!(w.test_lock(B, R, range(70, 70)), Err(denied(A, W, range(0, 99))), "one range again");
    // Down to read in the middle, and up again once the other reader is gone.
    w.lock(A, R, range(10, 19), false).unwrap();
    w.lock(B, R, range(10, 19), false).unwrap();
    assert_eq!(w.lock(A, W, range(10, 19), false), Err(denied(B, R, range(10, 19))));
    w.unlock(B, range(10, 19)).unwrap();
    w.lock(A, W, range(10, 19), false).unwrap();
    assert_eq!(w.test_lock(B, R, range(0, 0)), Err(denied(A, W, range(0, 99))));
}

#[test]
fn a_lock_needs_an_open_of_its_kind() {
    let mut w = World::default();
    w.open(A, Access::READ, Deny::NONE).unwrap();
    w.open(B, Access::WRITE, Deny::NONE).unwrap();
    assert_eq!(w.lock(A, W, range(0, 1), false), Err(Error::Openmode));
    assert_eq!(w.lock(B, R, range(0, 1), false), Err(Error::Openmode));
    w.lock(A, R, range(0, 1), false).unwrap();
    assert_eq!(w.lock(C, R, range(0, 1), false), Err(Error::BadStateid));
}

#[test]
fn no_lock_under_an_open_that_is_closing() {
    let mut w = opened();
    let close = w.ticket(&Intent::Close { client: A, stateid: w.opens[&owner(A)] });
    assert_eq!(w.lock(A, W, range(0, 1), false), Err(Error::Delay));
    w.lock(B, W, range(0, 1), false).unwrap();
    w.finish(close, Outcome::Aborted);
    w.lock(A, W, range(5, 6), false).unwrap();
}

#[test]
fn a_known_owner_may_come_with_an_open_stateid_again() {
    let mut w = opened();
    let first = w.lock(A, W, range(0, 1), false).unwrap();
    w.locks.clear();
    let again = w.lock(A, W, range(5, 6), false).unwrap();
    assert_eq!(again, first.with_seqid(2));
    assert_eq!(w.check_io(A, &again, true), Ok(()), "I/O under a lock stateid");
}

#[test]
fn unlocking_what_is_not_locked_is_fine() {
    let mut w = opened();
    w.lock(A, W, range(0, 9), false).unwrap();
    w.unlock(A, range(100, 200)).unwrap();
    let old = w.unlock(A, range(0, 9)).unwrap();
    w.unlock(A, range(0, 9)).unwrap();
    assert_eq!(w.file.test_stateid(A, &old), Err(Error::OldStateid));
    w.free_stateid(A, &old.with_seqid(0)).unwrap();
    assert_eq!(w.file.test_stateid(A, &old), Err(Error::BadStateid));
}

#[test]
fn only_an_empty_lock_stateid_can_be_freed() {
    let mut w = opened();
    let lock = w.lock(A, W, range(0, 9), false).unwrap();
    assert_eq!(w.free_stateid(A, &lock), Err(Error::LocksHeld));
    let open = w.opens[&owner(A)];
    assert_eq!(w.free_stateid(A, &open), Err(Error::LocksHeld));
    assert_eq!(w.free_stateid(B, &lock), Err(Error::BadStateid));
}

#[test]
fn blocked_locks_are_notified_in_order_and_reserved() {
    let mut w = opened();
    let all = range(0, 9);
    w.lock(A, W, all, false).unwrap();
    assert_eq!(w.lock(B, W, all, true), Err(denied(A, W, all)));
    assert_eq!(w.lock(C, W, all, true), Err(denied(A, W, all)));
    w.unlock(A, all).unwrap();
    assert_eq!(w.notified, [locker(B)], "first come, first served");
    assert_eq!(w.lock(C, W, all, true), Err(denied(B, W, all)), "reserved for B");
    assert_eq!(w.test_lock(A, W, all), Ok(()), "nobody holds it");
    w.lock(B, W, all, true).unwrap();
    w.unlock(B, all).unwrap();
    assert_eq!(w.notified, [locker(B), locker(C)]);
    // C does not come: the reservation runs out.
    let deadline = w.file.next_deadline().unwrap();
    assert_eq!(deadline, w.now.plus_nanos(w.policy.lock_reservation));
    assert_eq!(w.lock(A, W, range(0, 19), true), Err(denied(C, W, all)));
    w.tick_to(deadline);
    w.lock(A, W, range(0, 19), true).unwrap();
    assert_eq!(w.file.next_deadline(), None);
}

/// A process that a signal interrupts while it waits says nothing (Linux), and what nobody holds nobody else need wait for.
#[test]
fn who_does_not_wait_is_not_kept_out_by_who_does() {
    let mut w = opened();
    let all = range(0, 9);
    w.lock(A, W, all, false).unwrap();
    w.lock(B, W, all, true).unwrap_err();
    w.lock(C, W, all, true).unwrap_err();
    w.unlock(A, all).unwrap();
    assert_eq!(w.notified, [locker(B)]);
    w.lock(A, W, all, false).unwrap();
    // B has not given up after all, and waits as before; nor does C come before it.
    assert_eq!(w.lock(B, W, all, true), Err(denied(A, W, all)));
    w.unlock(A, all).unwrap();
    assert_eq!(w.notified, [locker(B), locker(B)]);
    assert_eq!(w.lock(C, W, all, true), Err(denied(B, W, all)));
    w.lock(B, W, all, true).unwrap();
}

#[test]
fn the_next_is_notified_when_a_waiter_frees_its_stateid() {
    let mut w = opened();
    let all = range(0, 9);
    w.lock(B, W, all, false).unwrap();
    let empty = w.unlock(B, all).unwrap();
    w.lock(A, W, all, false).unwrap();
    assert_eq!(w.lock(B, W, all, true), Err(denied(A, W, all)));
    assert_eq!(w.lock(C, W, all, true), Err(denied(A, W, all)));
    w.unlock(A, all).unwrap();
    assert_eq!(w.notified, [locker(B)]);
    w.free_stateid(B, &empty).unwrap();
    assert_eq!(w.notified, [locker(B), locker(C)]);
    w.lock(C, W, all, true).unwrap();
}

/// Linux frees what a process is done with behind its back, and gives the name of the owner to the next one at once: whose
/// LOCK may come first.
#[test]
fn who_asks_anew_waits_though_the_owner_frees_what_it_had_before() {
    let mut w = opened();
    let all = range(0, 9);
    w.lock(B, W, all, false).unwrap();
    let empty = w.unlock(B, all).unwrap();
    w.lock(A, W, all, false).unwrap();
    w.locks.clear();
    assert_eq!(w.lock(B, W, all, true), Err(denied(A, W, all)), "with a name, and no stateid");
    w.free_stateid(B, &empty).unwrap();
    w.lock(A, W, range(20, 29), false).unwrap();
    w.unlock(A, all).unwrap();
    assert_eq!(w.notified, [locker(B)]);
    assert_eq!(w.lock(C, W, all, true), Err(denied(B, W, all)), "reserved for B");
    w.lock(B, W, all, true).unwrap();
}

/// B has the file open for two users, and a lock-owner of the first one is done. The next lock of that name is the second user's.
fn the_name_goes_to_another_user() -> (World, [StateId; 3]) {
    let mut w = opened();
    let first = w.opens[&owner(B)];
    w.lock(B, W, range(0, 9), false).unwrap();
    let empty = w.unlock(B, Range::ALL).unwrap();
    w.locks.clear();
    let user =
        OpenRequest { owner: OpenOwner::new(B, b"other"), ..open_request(B, Access::BOTH, Deny::NONE) };
    let Reply::Opened { stateid: Some(second), .. } = w.run(&Intent::Open(user)).unwrap() else { panic!() };
    w.opens.insert(owner(B), second);
    (w, [first, second, empty])
}

#[test]
fn a_lock_does_not_end_with_the_open_that_its_owners_name_was_used_under_before() {
    let (mut w, [first, _, empty]) = the_name_goes_to_another_user();
    let all = range(0, 9);
    let lock = w.lock(B, W, all, false).unwrap();
    assert_eq!((lock.seqid, lock.other != empty.other), (1, true));
    assert_eq!(w.free_stateid(B, &empty), Err(Error::BadStateid), "what it was is gone with it");
    w.run(&Intent::Close { client: B, stateid: first }).unwrap();
    assert_eq!(w.lock(A, W, all, false), Err(denied(B, W, all)));
    w.unlock_of(B, lock).unwrap();
    w.lock(A, W, all, false).unwrap();
}

#[test]
fn a_waiter_is_not_forgotten_with_the_open_that_its_name_was_used_under_before() {
    let (mut w, [first, ..]) = the_name_goes_to_another_user();
    let all = range(0, 9);
    w.lock(A, W, all, false).unwrap();
    assert_eq!(w.lock(B, W, all, true), Err(denied(A, W, all)));
    w.run(&Intent::Close { client: B, stateid: first }).unwrap();
    w.unlock(A, all).unwrap();
    assert_eq!(w.notified, [locker(B)]);
}

#[test]
fn locks_of_one_owner_under_two_opens_are_one() {
    let (mut w, [first, second, _]) = the_name_goes_to_another_user();
    let lock = w.lock(B, W, range(0, 9), false).unwrap();
    w.locks.clear();
    w.opens.insert(owner(B), first);
    assert_eq!(w.lock(B, W, range(20, 29), false), Ok(lock.with_seqid(2)));
    assert_eq!(w.run(&Intent::Close { client: B, stateid: second }), Err(Error::LocksHeld));
    w.run(&Intent::Close { client: B, stateid: first }).unwrap();
}

#[test]
fn readers_that_wait_together_are_notified_together() {
    let mut w = opened();
    let all = range(0, 9);
    w.lock(A, W, all, false).unwrap();
    w.lock(B, R, all, true).unwrap_err();
    w.lock(C, R, all, true).unwrap_err();
    w.unlock(A, all).unwrap();
    assert_eq!(w.notified, [locker(B), locker(C)]);
}

#[test]
fn a_waiting_writer_is_not_starved_by_waiting_readers() {
    let mut w = opened();
    let all = range(0, 9);
    w.lock(A, R, all, false).unwrap();
    w.lock(B, W, all, true).unwrap_err();
    assert_eq!(w.lock(C, R, all, true), Err(denied(B, W, all)), "blocking requests are served in order");
    w.lock(A, R, range(0, 20), true).unwrap();
    w.unlock(A, Range::ALL).unwrap();
    assert_eq!(w.notified, [locker(B)]);
}

#[test]
fn a_waiter_that_stops_asking_is_forgotten() {
    let mut w = opened();
    w.lock(A, W, range(0, 9), false).unwrap();
    w.lock(B, W, range(0, 9), true).unwrap_err();
    let deadline = w.file.next_deadline().unwrap();
    assert_eq!(deadline, w.now.plus_nanos(w.policy.lock_wait));
    w.tick_to(deadline);
    w.unlock(A, range(0, 9)).unwrap();
    assert!(w.notified.is_empty());
}

#[test]
fn a_dead_client_keeps_its_locks_until_it_is_fenced() {
    let mut w = opened();
    w.layout(A, IoMode::ReadWrite).unwrap();
    w.lock(A, W, range(0, 9), false).unwrap();
    w.lock(B, W, range(0, 9), true).unwrap_err();
    w.expire(A, RevokeReason::LeaseExpired);
    assert_eq!(w.lock(C, W, range(0, 9), false), Err(Error::Delay), "its last write may be on the way");
    assert!(w.notified.is_empty());
    w.fence_done(0);
    assert_eq!(w.notified, [locker(B)]);
    w.lock(B, W, range(0, 9), true).unwrap();
}

#[test]
fn reclaim_of_locks() {
    let mut w = opened();
    let request = |reclaim| LockRequest {
        locker: Locker::New { open: StateId::default(), owner: locker(A) },
        kind: W,
        blocking: false,
        reclaim,
        range: range(0, 9),
    };
    let ask = |w: &mut World, grace, client: ClientId, reclaim| {
        let by = Locker::New { open: w.opens[&owner(client)], owner: locker(client) };
        let request = LockRequest { locker: by, ..request(reclaim) };
        let usage = w.index.usage(client);
        let ctx = Ctx { now: w.now, ids: &w.ids, policy: &w.policy, usage, grace };
        let result = w.file.lock(&ctx, client, &request).0.map(drop);
        w.file.check_invariants().unwrap();
        result
    };
    let active = |may_reclaim| Grace::Active { may_reclaim };
    assert_eq!(ask(&mut w, active(true), A, false), Err(Error::Grace));
    assert_eq!(ask(&mut w, active(false), A, true), Err(Error::NoGrace));
    assert_eq!(ask(&mut w, Grace::Over, A, true), Err(Error::NoGrace));
    assert_eq!(ask(&mut w, active(true), A, true), Ok(()));
    assert_eq!(ask(&mut w, active(true), B, true), Err(Error::ReclaimConflict));
    w.grace = active(true);
    assert_eq!(w.test_lock(B, R, range(0, 0)), Err(Error::Grace));
}

#[test]
fn caps_on_ranges_owners_and_waiters() {
    let mut w = opened();
    w.policy.max_ranges_per_lock = 4;
    w.lock(A, W, range(0, 99), false).unwrap();
    for i in 1..=3 {
        w.unlock(A, range(i * 10, i * 10)).unwrap();
    }
    assert_eq!(w.unlock(A, range(50, 50)), Err(Error::Resource));
    assert_eq!(w.lock(A, W, range(200, 201), false), Err(Error::Resource));
    w.unlock(A, Range::ALL).unwrap();
    w.policy.max_lock_owners_per_file = 1;
    assert_eq!(w.lock(B, W, range(0, 1), false), Err(Error::Resource));
    w.policy.max_lock_owners_per_file = 9;
    w.policy.max_locks_per_client = 0;
    assert_eq!(w.lock(B, W, range(0, 1), false), Err(Error::Resource));
    w.policy.max_locks_per_client = 9;
    w.policy.max_waiting_locks_per_client = 1;
    w.lock(A, W, range(0, 9), false).unwrap();
    w.lock(B, W, range(0, 1), true).unwrap_err();
    w.lock(B, W, range(4, 5), true).unwrap_err();
    w.unlock(A, Range::ALL).unwrap();
    assert_eq!(w.notified.len(), 1, "the second one was denied, but not queued");
}

#[test]
fn an_owner_of_another_client_is_refused() {
    let mut w = opened();
    let by = Locker::New { open: w.opens[&owner(A)], owner: LockOwner::new(B, b"x") };
    let request = LockRequest { locker: by, kind: W, blocking: false, reclaim: false, range: range(0, 1) };
    let ctx = Ctx { now: w.now, ids: &w.ids, policy: &w.policy, usage: w.index.usage(A), grace: Grace::Over };
    let mut other = File::new(FILE, Default::default());
    assert_eq!(w.file.lock(&ctx, A, &request).0.map(drop), Err(Error::Inval));
    assert_eq!(other.lock(&ctx, A, &request).0.map(drop), Err(Error::BadStateid));
}

/// Ranges are what locks cost, however many of them one stateid has.
#[test]
fn all_clients_together_cannot_hold_more_ranges_than_there_may_be() {
    let mut w = World::default();
    w.policy.max_ranges = 4;
    w.policy.spare_ranges = 0;
    w.policy.close_releases_locks = true;
    let held = |w: &World| w.index.usage(C).ranges_of_all;
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    w.open(B, Access::BOTH, Deny::NONE).unwrap();
    for start in [0, 10, 20] {
        w.lock(A, LockKind::Write, range(start, start + 5), false).unwrap();
    }
    assert_eq!(w.lock(B, LockKind::Write, range(100, 105), false), Err(Error::Resource));
    w.unlock(A, range(12, 13)).unwrap();
    assert_eq!((held(&w), w.unlock(A, range(22, 23))), (4, Err(Error::Resource)));
    w.unlock(A, range(0, 15)).unwrap();
    assert_eq!(held(&w), 1);
    w.lock(B, LockKind::Write, range(100, 105), false).unwrap();
    assert_eq!(held(&w), 2);
    w.close(A).unwrap();
    assert_eq!(held(&w), 1);
    w.expire(B, RevokeReason::LeaseExpired);
    assert_eq!(held(&w), 0);
    w.index.forget_client(B);
    assert_eq!(held(&w), 0);
}

/// A process that locks every other byte takes none of the ranges that others need.
#[test]
fn one_client_does_not_hold_all_ranges_that_there_may_be() {
    let mut w = opened();
    (w.policy.max_ranges, w.policy.max_ranges_per_client) = (16, 4);
    let owners = [LockOwner::new(A, b"one"), LockOwner::new(A, b"two")];
    for n in 0..20 {
        // Until there is no room, and then as an unlock leaves more of them.
        let _ = w.lock_as(owners[n % 2].clone(), W, range(100 * n as u64, 100 * n as u64 + 50), false);
    }
    for n in 0..20 {
        let _ = w.unlock_as(owners[n % 2].clone(), range(100 * n as u64 + 10, 100 * n as u64 + 10));
    }
    assert_eq!((w.index.usage(A).ranges, w.index.in_all().ranges_of_all), (4, 4));
    assert_eq!(w.lock_as(owners[0].clone(), W, range(9000, 9001), false), Err(Error::Resource));
    w.lock(B, W, range(5000, 5099), false).unwrap();
    w.unlock(B, range(5050, 5050)).unwrap();
    assert_eq!((w.index.usage(B).ranges, w.index.in_all().ranges_of_all), (2, 6));
    // What is in the way is counted no more once it is gone.
    w.unlock_as(owners[0].clone(), Range::ALL).unwrap();
    w.lock_as(owners[0].clone(), W, range(9000, 9001), false).unwrap();
}

/// A machine may be as many clients as it has names for, and have as many addresses as it likes of its network.
#[test]
fn clients_of_one_host_leave_to_others_as_much_as_they_have() {
    // There are more clients than its checks know of.
    let mut w = World { replaying: true, ..World::default() };
    (w.policy.max_ranges, w.policy.max_locks) = (16, 100);
    let many: Vec<_> = (11..31).map(ClientId).collect();
    for (n, client) in many.iter().enumerate() {
        w.index.is_at(*client, format!("2001:db8::{n:x}").parse().unwrap());
        w.open(*client, Access::BOTH, Deny::NONE).unwrap();
        let _ = w.lock(*client, W, range(10 * n as u64, 10 * n as u64), false);
    }
    assert_eq!(w.index.in_all().ranges_of_all, 8);
    w.index.is_at(B, "10.0.0.1".parse().unwrap());
    w.open(B, Access::BOTH, Deny::NONE).unwrap();
    w.lock(B, W, range(90_000, 90_001), false).unwrap();
    // Of owners as of ranges.
    (w.policy.max_ranges, w.policy.max_locks) = (1000, 17);
    let more = LockOwner::new(many[0], b"more");
    assert_eq!(w.lock_as(more.clone(), W, range(80_000, 80_001), false), Err(Error::Resource));
    w.lock_as(LockOwner::new(B, b"more"), W, range(80_002, 80_003), false).unwrap();
    // What was had before a restart is had again, in whatever order it is asked for.
    let by = Locker::New { open: w.opens[&owner(many[0])], owner: more };
    let range = range(80_000, 80_001);
    let again = LockRequest { locker: by, kind: W, blocking: false, reclaim: true, range };
    let (usage, grace) = (w.index.usage(many[0]), Grace::Active { may_reclaim: true });
    let ctx = Ctx { now: w.now, ids: &w.ids, policy: &w.policy, usage, grace };
    assert!(w.file.lock(&ctx, many[0], &again).0.is_ok());
    w.index.check_invariants().unwrap();
    for client in many.into_iter().chain([B]) {
        w.expire(client, RevokeReason::LeaseExpired);
        w.index.forget_client(client);
    }
    w.index.check_invariants().unwrap();
    assert_eq!(w.index.in_all(), Default::default());
}

/// Whoever cannot unlock keeps out those who would make room.
#[test]
fn who_has_little_unlocks_in_the_middle_though_others_have_all_there_may_be() {
    let mut w = opened();
    (w.policy.max_ranges, w.policy.spare_ranges) = (7, 9);
    w.lock(B, W, range(900, 999), false).unwrap();
    for start in [0, 10, 20, 30] {
        w.lock(A, W, range(start, start + 5), false).unwrap();
    }
    w.lock(A, W, range(40, 45), false).unwrap();
    w.unlock(A, range(2, 3)).unwrap();
    assert_eq!(w.index.in_all().ranges_of_all, 7, "all");
    assert_eq!(w.unlock(A, range(12, 13)), Err(Error::Resource), "more than its share already");
    assert_eq!(w.lock(B, W, range(800, 801), false), Err(Error::Resource));
    w.unlock(B, range(910, 910)).unwrap();
    w.unlock(B, range(920, 920)).unwrap();
    // Three clients have the file open.
    assert_eq!(w.unlock(B, range(930, 930)), Err(Error::Resource));
    w.unlock(A, range(0, 5)).unwrap();
    w.unlock(B, range(910, 925)).unwrap();
    assert_eq!((w.index.usage(A).ranges, w.index.usage(B).ranges), (4, 2));
}

#[test]
fn all_clients_together_cannot_hold_more_locks_than_there_may_be() {
    let mut w = World::default();
    w.policy.max_locks = 1;
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    w.open(B, Access::BOTH, Deny::NONE).unwrap();
    w.lock(A, LockKind::Write, range(0, 5), false).unwrap();
    assert_eq!(w.lock(B, LockKind::Write, range(10, 15), false), Err(Error::Resource));
    // One more range is no more of them.
    w.lock(A, LockKind::Write, range(20, 25), false).unwrap();
    w.expire(A, RevokeReason::LeaseExpired);
    w.lock(B, LockKind::Write, range(10, 15), false).unwrap();
}

/// Names of owners are memory, and a client may invent as many as it likes, for each of its files.
#[test]
fn locks_that_wait_are_bounded_over_all_files() {
    let (mut one, mut other) = (World::default(), World::default());
    let all = range(0, 9);
    let fill = |w: &mut World| {
        (w.policy.max_waiting_locks_of_client, w.policy.max_waiting_locks) = (3, 5);
        // Its checks are of an index of one file alone.
        w.replaying = true;
        for client in [A, B, C] {
            w.open(client, Access::BOTH, Deny::NONE).unwrap();
        }
        w.lock(A, W, all, false).unwrap();
    };
    let name = |client, n: u8| LockOwner::new(client, &[n; 1024]);
    let ask = |w: &mut World, client, names: std::ops::Range<u8>| {
        for n in names {
            assert_eq!(w.lock_as(name(client, n), W, all, true), Err(denied(A, W, all)), "as ever");
        }
        ([B, C].map(|client| w.index.usage(client).waiting), w.index.in_all().waiting_of_all)
    };
    let switch = |from: &mut World, to: &mut World| {
        std::mem::swap(&mut from.index, &mut to.index);
        std::mem::swap(&mut from.ids, &mut to.ids);
    };
    fill(&mut one);
    assert_eq!(ask(&mut one, B, 0..2), ([2, 0], 2));
    switch(&mut one, &mut other);
    fill(&mut other);
    assert_eq!(ask(&mut other, B, 0..4), ([3, 0], 3));
    assert_eq!(ask(&mut other, C, 0..4), ([3, 2], 5));
    assert_eq!(ask(&mut other, B, 0..4), ([3, 2], 5), "who waits goes on");
    // Who waits no more makes room.
    other.close(B).unwrap();
    assert_eq!(ask(&mut other, C, 2..4), ([2, 3], 5));
    other.expire(C, RevokeReason::LeaseExpired);
    assert_eq!(ask(&mut other, B, 0..0), ([2, 0], 2));
    switch(&mut other, &mut one);
    one.unlock(A, all).unwrap();
    one.lock_as(name(B, 0), W, all, true).unwrap();
    assert_eq!(one.index.in_all().waiting_of_all, 1);
    one.tick_to(one.now.plus_nanos(one.policy.lock_wait));
    assert_eq!(one.index.in_all().waiting_of_all, 0);
}

/// Processes of one host, each of which wants the file for itself.
#[test]
fn hundreds_of_one_client_wait_and_are_notified_in_order() {
    let mut w = opened();
    w.lock(A, W, Range::ALL, false).unwrap();
    let owner = |n: u32| LockOwner::new(B, &n.to_be_bytes());
    for n in 0..1000 {
        let denied = w.lock_as(owner(n), W, Range::ALL, true).unwrap_err();
        assert!(matches!(denied, Error::Denied(_)), "{denied:?}");
    }
    w.unlock(A, Range::ALL).unwrap();
    for n in 0..1000 {
        assert_eq!(w.notified.last(), Some(&owner(n)));
        w.lock_as(owner(n), W, Range::ALL, true).unwrap();
        w.unlock_as(owner(n), Range::ALL).unwrap();
    }
    assert_eq!(w.notified.len(), 1000);
}
