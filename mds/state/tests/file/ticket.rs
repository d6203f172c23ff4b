//! The ticket discipline itself: queue, wake-ups, time limits, caps.

use sluice_state::effect::{IoMode, RevokeReason};
use sluice_state::file::{Error, Intent, LayoutFilter, Outcome, Prepared};
use sluice_state::open::{Access, Deny};

use super::world::{A, B, C, World};

fn truncate(client: sluice_state::ClientId) -> Intent {
    Intent::SetSize { client, replace: false, fresh: false }
}

fn io(client: sluice_state::ClientId) -> Intent {
    Intent::ProxyIo { client, write: true, exclusive: false }
}

#[test]
fn first_come_first_served() {
    let mut w = World::default();
    let first = w.ticket(&truncate(A));
    let second = w.wait(&truncate(B));
    let third = w.wait(&io(C));
    let fourth = w.wait(&io(A));
    w.finish(first, Outcome::Committed);
    assert!(w.woken.contains(&second) && !w.woken.contains(&third));
    let late = w.wait(&io(B));
    let Prepared::Ticket(ticket) = w.prepare(&truncate(B), Some(second)) else { panic!() };
    w.finish(ticket, Outcome::Aborted);
    assert!([third, fourth, late].iter().all(|token| w.woken.contains(token)), "shared ones go together");
}

#[test]
fn giving_up_lets_the_others_go() {
    let mut w = World::default();
    let running = w.ticket(&io(A));
    let waiting = w.wait(&truncate(B));
    let behind = w.wait(&io(C));
    w.cancel(waiting);
    assert!(w.woken.contains(&behind), "it shares with what runs");
    w.finish(running, Outcome::Committed);
    assert!(matches!(w.prepare(&truncate(B), Some(waiting)), Prepared::Deny(Error::Delay)));
}

#[test]
fn a_request_that_is_denied_in_the_end_lets_the_others_go() {
    let mut w = World::default();
    let unlink = w.ticket(&Intent::Unlink { client: A, last_link: true });
    let again = Intent::Unlink { client: B, last_link: true };
    let second = w.wait(&again);
    let open = Intent::Open(super::world::open_request(C, Access::READ, Deny::NONE));
    let third = w.wait(&open);
    w.finish(unlink, Outcome::Committed);
    assert!(!w.woken.contains(&third));
    assert!(matches!(w.prepare(&again, Some(second)), Prepared::Deny(Error::Stale)));
    assert!(w.woken.contains(&third));
}

#[test]
fn waiting_too_long_is_answered_delay() {
    let mut w = World::default();
    let running = w.ticket(&truncate(A));
    let token = w.wait(&io(B));
    let deadline = w.file.next_deadline().unwrap();
    assert_eq!(deadline, w.now.plus_nanos(w.policy.wait));
    w.tick_to(deadline);
    assert!(w.woken.contains(&token));
    assert!(matches!(w.prepare(&io(B), Some(token)), Prepared::Deny(Error::Delay)));
    w.finish(running, Outcome::Committed);
    assert!(w.file.is_idle());
}

#[test]
fn a_request_that_never_comes_back_is_forgotten() {
    let mut w = World::default();
    let running = w.ticket(&io(A));
    w.wait(&truncate(B));
    w.finish(running, Outcome::Committed);
    // Woken, and its task is dead: it must not hold up the file for ever.
    let behind = w.wait(&io(C));
    w.tick_to(w.now.plus_nanos(w.policy.wait));
    assert!(w.woken.contains(&behind));
    assert!(matches!(w.prepare(&io(C), None), Prepared::Ticket(_)));
    w.tick_to(w.now.plus_nanos(w.policy.wait));
    assert_eq!(w.file.next_deadline(), None);
}

#[test]
fn queues_are_bounded() {
    let mut w = World::default();
    w.policy.max_waiters_per_client = 2;
    w.policy.max_waiters_per_file = 3;
    let _running = w.ticket(&truncate(A));
    w.wait(&io(B));
    w.wait(&io(B));
    assert!(matches!(w.prepare(&io(B), None), Prepared::Deny(Error::Delay)));
    w.wait(&io(C));
    assert!(matches!(w.prepare(&io(A), None), Prepared::Deny(Error::Delay)));
}

#[test]
fn a_recalled_client_is_not_queued_behind_the_one_that_waits_for_it() {
    let mut w = World::default();
    for client in [A, B] {
        w.open(client, Access::BOTH, Deny::NONE).unwrap();
    }
    w.layout(B, IoMode::ReadWrite).unwrap();
    w.wait(&truncate(A));
    assert!(w.run(&io(B)).is_ok(), "it may flush through the metadata server before it returns");
    w.wait(&io(C));
}

#[test]
fn expiry_ends_waiting_requests() {
    let mut w = World::default();
    let running = w.ticket(&truncate(A));
    let token = w.wait(&truncate(B));
    let behind = w.wait(&io(C));
    w.expire(B, RevokeReason::LeaseExpired);
    assert!(w.woken.contains(&token));
    assert!(matches!(w.prepare(&truncate(B), Some(token)), Prepared::Deny(Error::Delay)));
    w.finish(running, Outcome::Committed);
    assert!(w.woken.contains(&behind));
}

#[test]
fn a_leaving_client_gets_nothing_new() {
    let mut w = World::default();
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    w.layout(A, IoMode::ReadWrite).unwrap();
    w.expire(A, RevokeReason::LeaseExpired);
    assert_eq!(w.open(A, Access::READ, Deny::NONE), Err(Error::Expired));
    let token = w.wait(&Intent::Open(super::world::open_request(B, Access::BOTH, Deny::BOTH)));
    w.fence_done(0);
    assert!(w.woken.contains(&token), "its share reservation ends with the fence");
}

#[test]
fn a_recall_lets_a_request_out_of_the_queue() {
    let mut w = World::default();
    for client in [A, B] {
        w.open(client, Access::BOTH, Deny::NONE).unwrap();
    }
    w.layout(B, IoMode::Read).unwrap();
    let running = w.ticket(&io(A));
    w.wait(&truncate(A));
    let behind = w.wait(&io(B));
    w.recall_layouts(LayoutFilter::All, true);
    assert!(w.woken.contains(&behind), "it may be needed for the return");
    w.finish(running, Outcome::Committed);
}
