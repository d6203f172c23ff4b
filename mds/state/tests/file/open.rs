//! Opens, share reservations, CLOSE, OPEN_DOWNGRADE, reclaim, open-unlinked files.

use sluice_state::effect::{Effect, IoMode, RevokeReason};
use sluice_state::file::{Error, FileSeed, Grace, Intent, Outcome, Prepared, Reply};
use sluice_state::layout::ReturnMode;
use sluice_state::lock::LockKind;
use sluice_state::open::{Access, Claim, Deny, OpenRequest, Want};
use sluice_state::owner::OpenOwner;
use sluice_state::{ClientId, StateId, StateKind};

use super::world::{A, B, C, World, open_request, owner, range};

fn reclaim(client: ClientId, access: Access, deny: Deny) -> Intent {
    let claim = Claim::Previous { delegation: Want::None };
    Intent::Open(OpenRequest { claim, ..open_request(client, access, deny) })
}

#[test]
fn share_reservations_exclude() {
    let all = [Access::READ, Access::WRITE, Access::BOTH];
    let denies = [Deny::NONE, Deny::READ, Deny::WRITE, Deny::BOTH];
    for (a1, d1) in all.into_iter().flat_map(|a| denies.map(|d| (a, d))) {
        for (a2, d2) in all.into_iter().flat_map(|a| denies.map(|d| (a, d))) {
            let mut w = World::default();
            w.open(A, a1, d1).unwrap();
            let clash = a1.bits() & d2.bits() != 0 || a2.bits() & d1.bits() != 0;
            let expected = if clash { Err(Error::ShareDenied { holder: A }) } else { Ok(()) };
            assert_eq!(w.open(B, a2, d2).map(drop), expected, "{a1:?}{d1:?} {a2:?}{d2:?}");
        }
    }
}

#[test]
fn two_owners_of_one_client_exclude_too() {
    let mut w = World::default();
    w.open(A, Access::READ, Deny::WRITE).unwrap();
    let second =
        OpenRequest { owner: OpenOwner::new(A, b"other"), ..open_request(A, Access::WRITE, Deny::NONE) };
    assert_eq!(w.run(&Intent::Open(second)), Err(Error::ShareDenied { holder: A }));
}

/// §9.7. What an owner held before, it is given back all the same: then it went together.
#[test]
fn an_owner_excludes_itself() {
    let mut w = World::default();
    w.open(A, Access::READ, Deny::WRITE).unwrap();
    let clash = Err(Error::ShareDenied { holder: A });
    assert_eq!(w.open(A, Access::WRITE, Deny::NONE).map(drop), clash);
    assert_eq!(w.open(A, Access::READ, Deny::READ).map(drop), clash);
    w.open(A, Access::READ, Deny::WRITE).unwrap();
    let again = OpenRequest { again: true, ..open_request(A, Access::WRITE, Deny::NONE) };
    w.run(&Intent::Open(again.clone())).unwrap();
    let others = OpenRequest { owner: owner(B), ..again };
    assert_eq!(w.run(&Intent::Open(others)).map(drop), clash, "that is its own matter");
    let mut w = World::default().in_grace(true);
    w.run(&reclaim(A, Access::READ, Deny::WRITE)).unwrap();
    w.run(&reclaim(A, Access::BOTH, Deny::WRITE)).unwrap();
    assert_eq!(w.run(&reclaim(B, Access::WRITE, Deny::NONE)), Err(Error::ReclaimConflict));
}

/// Whoever denies writing has the file as it is, against OPENs under way, too.
#[test]
fn to_empty_a_file_is_to_write_to_it() {
    let empties = |client, deny| {
        Intent::Open(OpenRequest { truncates: true, ..open_request(client, Access::READ, deny) })
    };
    let mut w = World::default();
    w.open(A, Access::READ, Deny::WRITE).unwrap();
    assert_eq!(w.run(&empties(B, Deny::NONE)), Err(Error::ShareDenied { holder: A }));
    w.run(&empties(A, Deny::WRITE)).unwrap();
    let mut w = World::default();
    let ticket = w.ticket(&empties(B, Deny::NONE));
    let denies = Intent::Open(open_request(A, Access::READ, Deny::WRITE));
    let token = w.wait(&denies);
    w.finish(ticket, Outcome::Committed);
    let Prepared::Ticket(ticket) = w.prepare(&denies, Some(token)) else { panic!() };
    w.finish(ticket, Outcome::Committed);
}

#[test]
fn one_stateid_per_owner_upgraded_in_place() {
    let mut w = World::default();
    let first = w.open(A, Access::READ, Deny::NONE).unwrap();
    let second = w.open(A, Access::WRITE, Deny::NONE).unwrap();
    assert_eq!((first.seqid, first.kind()), (1, Some(StateKind::Open)));
    assert_eq!(second, first.with_seqid(2));
    assert_eq!(w.check_io(A, &second, true), Ok(()));
    assert_eq!(w.check_io(A, &first, false), Err(Error::OldStateid));
    assert_eq!(w.check_io(A, &first.with_seqid(0), true), Ok(()));
    assert_eq!(w.check_io(A, &first.with_seqid(3), true), Err(Error::BadStateid));
    assert_eq!(w.check_io(B, &second, false), Err(Error::BadStateid));
    assert_eq!(w.index.usage(A).opens, 1);
}

#[test]
fn io_follows_the_open_mode() {
    let mut w = World::default();
    let read = w.open(A, Access::READ, Deny::NONE).unwrap();
    let write = w.open(B, Access::WRITE, Deny::NONE).unwrap();
    assert_eq!(w.check_io(A, &read, true), Err(Error::Openmode));
    assert_eq!(w.check_io(B, &write, true), Ok(()));
    assert_eq!(w.check_io(B, &write, false), Ok(()), "a writer of part of a page reads the rest");
}

/// RFC 8881 §9.1.2: a READ under it obeys what an OPEN for it would.
#[test]
fn a_writer_does_not_read_what_others_deny() {
    let mut w = World::default();
    let write = w.open(B, Access::WRITE, Deny::READ).unwrap();
    assert_eq!(w.check_io(B, &write, false), Ok(()), "it denies others to read");
    assert!(w.file.is_for_writing_alone(&write));
    let both = w.open(A, Access::BOTH, Deny::NONE);
    assert_eq!(both, Err(Error::ShareDenied { holder: B }));
    w.close(B).unwrap();
    let write = w.open(B, Access::WRITE, Deny::NONE).unwrap();
    let read = w.open(A, Access::READ, Deny::READ).unwrap();
    assert_eq!(w.check_io(B, &write, false), Err(Error::Locked { holder: A }));
    assert_eq!(w.check_io(B, &write, true), Ok(()));
    assert_eq!(w.check_io(A, &read, false), Ok(()));
    assert!(!w.file.is_for_writing_alone(&read));
}

/// A machine may be as many clients as it has names for.
#[test]
fn clients_of_one_host_leave_opens_to_others() {
    let mut w = World::default();
    w.policy.max_opens = 4;
    for client in [A, B] {
        w.index.is_at(client, "10.0.0.1".parse().unwrap());
        w.open(client, Access::READ, Deny::NONE).unwrap();
    }
    let more = OpenRequest { owner: OpenOwner::new(A, b"more"), ..open_request(A, Access::READ, Deny::NONE) };
    assert_eq!(w.run(&Intent::Open(more)), Err(Error::Resource));
    w.index.is_at(C, "10.0.0.2".parse().unwrap());
    w.open(C, Access::READ, Deny::NONE).unwrap();
}

#[test]
fn special_stateids_obey_share_reservations() {
    let mut w = World::default();
    let anonymous = StateId::default();
    let bypass = StateId { seqid: u32::MAX, other: [0xff; 12] };
    assert_eq!(w.check_io(B, &anonymous, true), Ok(()));
    w.open(A, Access::BOTH, Deny::BOTH).unwrap();
    assert_eq!(w.check_io(B, &anonymous, true), Err(Error::Locked { holder: A }));
    assert_eq!(w.check_io(B, &anonymous, false), Err(Error::Locked { holder: A }));
    assert_eq!(w.check_io(B, &bypass, false), Ok(()));
    assert_eq!(w.check_io(B, &bypass, true), Err(Error::Locked { holder: A }));
    let current = StateId { seqid: 1, other: [0; 12] };
    assert_eq!(w.check_io(B, &current, false), Err(Error::BadStateid), "resolved by the compound, not here");
    w.grace = Grace::Active { may_reclaim: false };
    assert_eq!(w.check_io(B, &anonymous, false), Err(Error::Grace));
}

#[test]
fn downgrade_to_an_earlier_open_only() {
    let mut w = World::default();
    w.open(A, Access::READ, Deny::NONE).unwrap();
    let stateid = w.open(A, Access::BOTH, Deny::WRITE).unwrap();
    let to = |access, deny| Intent::Downgrade { client: A, stateid, access, deny };
    assert_eq!(w.run(&to(Access::WRITE, Deny::NONE)), Err(Error::Inval));
    assert_eq!(
        w.run(&to(Access::READ, Deny::NONE)),
        Ok(Reply::Downgraded { stateid: stateid.with_seqid(3) })
    );
    assert_eq!(w.check_io(A, &stateid.with_seqid(3), true), Err(Error::Openmode));
    w.open(B, Access::BOTH, Deny::NONE).unwrap();
}

#[test]
fn close_ends_the_stateid() {
    let mut w = World::default();
    let stateid = w.open(A, Access::BOTH, Deny::NONE).unwrap();
    let Ok(Reply::Closed { stateid: closed }) = w.close(A) else { panic!() };
    assert_eq!((closed.seqid, closed.other), (u32::MAX, [0; 12]));
    assert_eq!(w.check_io(A, &stateid, false), Err(Error::BadStateid));
    assert!(w.file.is_idle());
    assert_eq!(w.run(&Intent::Close { client: A, stateid }), Err(Error::BadStateid));
}

#[test]
fn close_with_locks_is_refused_or_releases_them() {
    let mut w = World::default();
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    w.lock(A, LockKind::Write, range(0, 9), false).unwrap();
    assert_eq!(w.close(A), Err(Error::LocksHeld));
    w.policy.close_releases_locks = true;
    w.close(A).unwrap();
    assert!(w.file.is_idle());
    assert_eq!(w.index.usage(A).locks, 0);
}

#[test]
fn an_aborted_open_leaves_nothing() {
    let mut w = World::default();
    let ticket = w.ticket(&Intent::Open(open_request(A, Access::BOTH, Deny::BOTH)));
    assert!(w.file.is_open(), "a ticket counts as a holder");
    assert_eq!(w.finish(ticket, Outcome::Aborted), Reply::Aborted);
    assert!(w.file.is_idle());
    w.open(B, Access::BOTH, Deny::BOTH).unwrap();
}

#[test]
fn a_ticket_of_a_conflicting_open_is_waited_for() {
    let mut w = World::default();
    let first = w.ticket(&Intent::Open(open_request(A, Access::BOTH, Deny::BOTH)));
    let second = Intent::Open(open_request(B, Access::READ, Deny::NONE));
    let token = w.wait(&second);
    assert!(!w.woken.contains(&token));
    w.finish(first, Outcome::Aborted);
    assert!(w.woken.contains(&token), "not denied by something that never happened");
    assert!(matches!(w.prepare(&second, Some(token)), Prepared::Ticket(_)));
}

#[test]
fn reclaim_in_grace_only() {
    let mut w = World::default().in_grace(true);
    assert_eq!(w.open(A, Access::READ, Deny::NONE), Err(Error::Grace));
    assert!(w.run(&reclaim(A, Access::BOTH, Deny::WRITE)).is_ok());
    assert_eq!(w.run(&reclaim(B, Access::WRITE, Deny::NONE)), Err(Error::ReclaimConflict));
    w.grace = Grace::Active { may_reclaim: false };
    assert_eq!(w.run(&reclaim(B, Access::READ, Deny::NONE)), Err(Error::NoGrace));
    w.grace = Grace::Over;
    assert_eq!(w.run(&reclaim(B, Access::READ, Deny::NONE)), Err(Error::NoGrace));
}

#[test]
fn an_unlinked_file_lives_until_the_last_close() {
    let mut w = World::default();
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    w.open(B, Access::READ, Deny::NONE).unwrap();
    let ticket = w.ticket(&Intent::Unlink { client: B, last_link: true });
    assert!(ticket.orphan());
    w.finish(ticket, Outcome::Committed);
    w.layout(A, IoMode::ReadWrite).unwrap();
    w.close(B).unwrap();
    assert_eq!(w.collected, 0);
    w.layout_return(A, ReturnMode::Any).unwrap();
    w.close(A).unwrap();
    assert_eq!(w.collected, 1);
    assert!(w.file.is_collectable() && w.file.is_idle());
    assert_eq!(w.open(A, Access::READ, Deny::NONE), Err(Error::Stale));
}

#[test]
fn closed_while_it_was_being_unlinked() {
    let mut w = World::default();
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    let ticket = w.ticket(&Intent::Unlink { client: B, last_link: true });
    assert!(ticket.orphan());
    w.close(A).unwrap();
    assert_eq!(w.collected, 0);
    w.finish(ticket, Outcome::Committed);
    assert_eq!(w.collected, 1, "the transaction left an orphan that nobody has open");
}

#[test]
fn unlink_of_a_closed_file_needs_no_collection() {
    let mut w = World::default();
    let ticket = w.ticket(&Intent::Unlink { client: B, last_link: true });
    assert!(!ticket.orphan());
    w.finish(ticket, Outcome::Committed);
    assert!(!w.log.contains(&Effect::CloseOrphan), "the transaction did it");
}

#[test]
fn open_waits_for_an_unlink_in_flight() {
    let mut w = World::default();
    let unlink = w.ticket(&Intent::Unlink { client: B, last_link: true });
    let open = Intent::Open(open_request(A, Access::READ, Deny::NONE));
    let token = w.wait(&open);
    w.finish(unlink, Outcome::Committed);
    assert!(matches!(w.prepare(&open, Some(token)), Prepared::Deny(Error::Stale)));
}

#[test]
fn an_orphan_can_be_reclaimed_after_a_restart() {
    let mut w = World::new(FileSeed { rw_layout: false, orphan: true }).in_grace(true);
    assert!(w.file.is_collectable());
    w.run(&reclaim(A, Access::BOTH, Deny::NONE)).unwrap();
    assert!(!w.file.is_collectable());
    w.grace = Grace::Over;
    w.close(A).unwrap();
    assert_eq!(w.collected, 1);
}

/// RFC 8881 §18.16.3, OPEN4_RESULT_PRESERVE_UNLINKED: nobody knows yet who had it open.
#[test]
fn an_unlink_in_grace_leaves_an_orphan() {
    let mut w = World::default().in_grace(true);
    let ticket = w.ticket(&Intent::Unlink { client: B, last_link: true });
    assert!(ticket.orphan());
    w.finish(ticket, Outcome::Committed);
    assert!(w.file.is_collectable());
    w.run(&reclaim(A, Access::BOTH, Deny::NONE)).unwrap();
    assert!(!w.file.is_collectable());
    w.grace = Grace::Over;
    w.close(A).unwrap();
    assert!(w.collect() && w.file.is_idle());
}

/// Somebody else may reclaim it yet, and what was written before the restart is still to be settled.
#[test]
fn an_orphan_that_is_closed_in_grace_forgets_nothing() {
    let ends: [fn(&mut World); 2] =
        [|w| drop(w.close(A).unwrap()), |w| w.expire(A, RevokeReason::LeaseExpired)];
    for end in ends {
        let mut w = World::new(FileSeed { rw_layout: true, orphan: true }).in_grace(true);
        w.run(&reclaim(A, Access::BOTH, Deny::NONE)).unwrap();
        end(&mut w);
        assert!(w.file.needs_settle() && !w.collect());
        w.run(&reclaim(B, Access::BOTH, Deny::NONE)).unwrap();
        assert!(w.file.needs_settle());
        w.grace = Grace::Over;
        assert!(!w.collect(), "it is open");
        w.close(B).unwrap();
        assert!(w.collect() && !w.file.needs_settle());
    }
}

#[test]
fn an_aborted_reclaim_of_an_orphan_lets_it_be_collected() {
    let mut w = World::new(FileSeed { rw_layout: false, orphan: true }).in_grace(true);
    let ticket = w.ticket(&reclaim(A, Access::BOTH, Deny::NONE));
    assert!(!w.file.is_collectable());
    w.finish(ticket, Outcome::Aborted);
    assert_eq!(w.collected, 1);
}

#[test]
fn expiry_frees_share_reservations() {
    let mut w = World::default();
    let stateid = w.open(A, Access::BOTH, Deny::BOTH).unwrap();
    assert_eq!(w.open(B, Access::READ, Deny::NONE), Err(Error::ShareDenied { holder: A }));
    w.expire(A, RevokeReason::LeaseExpired);
    w.open(B, Access::READ, Deny::NONE).unwrap();
    assert_eq!(w.index.locate(w.ids.epoch(), A, &stateid), Err(Error::Expired));
    assert!(w.index.has_revoked(A));
    assert!(w.index.free_revoked(A, &stateid));
    assert_eq!(w.index.locate(w.ids.epoch(), A, &stateid), Err(Error::BadStateid));
    assert!(!w.index.has_revoked(A));
}

#[test]
fn an_open_in_flight_of_a_gone_client_makes_no_state() {
    let mut w = World::default();
    let ticket = w.ticket(&Intent::Open(open_request(A, Access::BOTH, Deny::BOTH)));
    w.expire(A, RevokeReason::LeaseExpired);
    assert_eq!(w.finish(ticket, Outcome::Committed), Reply::Refused(Error::Expired));
    assert!(w.file.is_idle());
}

#[test]
fn a_client_cannot_hold_more_opens_than_its_share() {
    let mut w = World::default();
    w.policy.max_opens_per_client = 2;
    for name in [b"1", b"2"] {
        let request =
            OpenRequest { owner: OpenOwner::new(A, name), ..open_request(A, Access::READ, Deny::NONE) };
        w.run(&Intent::Open(request)).unwrap();
    }
    assert_eq!(w.open(A, Access::READ, Deny::NONE), Err(Error::Resource));
    w.open(B, Access::READ, Deny::NONE).unwrap();
    assert!(w.opens.contains_key(&owner(B)));
}

#[test]
fn all_clients_together_cannot_hold_more_opens_than_there_may_be() {
    let mut w = World::default();
    w.policy.max_opens = 1;
    w.open(A, Access::READ, Deny::NONE).unwrap();
    assert_eq!(w.open(B, Access::READ, Deny::NONE), Err(Error::Resource));
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    w.close(A).unwrap();
    w.open(B, Access::READ, Deny::NONE).unwrap();
    w.expire(B, RevokeReason::LeaseExpired);
    w.open(A, Access::READ, Deny::NONE).unwrap();
}

/// It may do so with a file that it may only read, and has others wait for ever.
#[test]
fn a_client_leaves_half_of_the_opens_of_a_file_to_others() {
    let mut w = World::default();
    w.policy.max_opens_per_file = 8;
    let opens = |w: &mut World, client| {
        let names = (0..20u8).map(|n| OpenOwner::new(client, &[n]));
        let request = |owner| OpenRequest { owner, ..open_request(client, Access::READ, Deny::NONE) };
        names.take_while(|name| w.run(&Intent::Open(request(name.clone()))).is_ok()).count()
    };
    assert_eq!((opens(&mut w, A), opens(&mut w, B)), (4, 2));
    w.expire(A, RevokeReason::LeaseExpired);
    assert_eq!(opens(&mut w, C), 3);
    // What was had before a restart was had within the bounds of then.
    let mut w = World { grace: Grace::Active { may_reclaim: true }, ..World::default() };
    w.policy.max_opens_per_file = 8;
    for n in 0..8u8 {
        let request = open_request(A, Access::READ, Deny::NONE);
        let claim = Claim::Previous { delegation: Want::None };
        w.run(&Intent::Open(OpenRequest { owner: OpenOwner::new(A, &[n]), claim, ..request })).unwrap();
    }
}
