//! Delegations.

use sluice_state::delegation::{DelegationKind, Writer};
use sluice_state::effect::{IoMode, RecallAnswer, RecallKind};
use sluice_state::file::{Error, Intent, LayoutFilter, Outcome, Policy, Prepared, Reply};
use sluice_state::open::{Access, Claim, Deny, History, OpenRequest, Want};
use sluice_state::owner::OpenOwner;
use sluice_state::times::Times;
use sluice_state::{ClientId, StateId};

use super::world::{A, B, C, World, open_request};

fn world() -> World {
    let mut w = World::default();
    w.policy.read_delegations = true;
    w
}

fn read(w: &mut World, client: ClientId) -> StateId {
    w.open(client, Access::READ, Deny::NONE).unwrap()
}

#[test]
fn off_by_default() {
    let mut w = World::default();
    read(&mut w, A);
    assert!(w.delegations.is_empty());
}

#[test]
fn readers_share_a_writer_recalls() {
    let mut w = world();
    read(&mut w, A);
    read(&mut w, B);
    assert_eq!(w.file.delegation_of(A), Some(DelegationKind::Read));
    assert_eq!(w.delegations.len(), 2);
    let grant = w.delegations[&A];
    assert_eq!(w.check_io(A, &grant.stateid, false), Ok(()));
    assert_eq!(w.check_io(A, &grant.stateid, true), Err(Error::Openmode));
    let open = Intent::Open(open_request(C, Access::WRITE, Deny::NONE));
    let token = w.wait(&open);
    assert_eq!(w.recalls.len(), 2);
    assert!(w.recalls.iter().all(|r| r.kind == RecallKind::Delegation));
    w.delegation_return(A).unwrap();
    assert!(!w.woken.contains(&token));
    w.delegation_return(B).unwrap();
    let Prepared::Ticket(ticket) = w.prepare(&open, Some(token)) else { panic!() };
    w.finish(ticket, Outcome::Committed);
    assert_eq!(w.delegation_return(B), Err(Error::BadStateid));
}

#[test]
fn what_recalls_a_read_delegation() {
    let changes = [
        Intent::Unlink { client: B, last_link: false },
        Intent::SetAttributes { client: B },
        Intent::SetSize { client: B, replace: false, fresh: false },
        Intent::ProxyIo { client: B, write: true, exclusive: false },
        Intent::Open(open_request(B, Access::READ, Deny::READ)),
    ];
    for intent in changes {
        let mut w = world();
        w.open(A, Access::READ, Deny::NONE).unwrap();
        if matches!(intent, Intent::Open(_)) {
            w.close(A).unwrap();
        }
        w.wait(&intent);
        assert_eq!(w.recalls.len(), 1, "{intent:?}");
    }
    let mut w = world();
    read(&mut w, A);
    for intent in [
        Intent::SetAttributes { client: A },
        Intent::ProxyIo { client: B, write: false, exclusive: false },
        Intent::Open(open_request(B, Access::READ, Deny::NONE)),
    ] {
        assert!(w.run(&intent).is_ok(), "{intent:?}");
    }
}

#[test]
fn no_grant_where_it_would_be_recalled_at_once() {
    let mut w = world();
    w.open(B, Access::WRITE, Deny::NONE).unwrap();
    read(&mut w, A);
    assert!(w.delegations.is_empty(), "somebody writes");
    let mut w = world();
    let ticket = w.ticket(&Intent::SetAttributes { client: B });
    read(&mut w, A);
    assert!(w.delegations.is_empty(), "a change is in flight");
    w.finish(ticket, Outcome::Committed);
    let mut w = world();
    w.run(&Intent::Open(OpenRequest { want: Want::None, ..open_request(A, Access::READ, Deny::NONE) }))
        .unwrap();
    assert!(w.delegations.is_empty(), "it said no");
    for cap in [|p: &mut Policy| p.max_delegations_per_client = 0, |p: &mut Policy| p.max_delegations = 0] {
        let mut w = world();
        cap(&mut w.policy);
        read(&mut w, A);
        assert!(w.delegations.is_empty());
    }
    let mut w = world();
    let unasked = OpenRequest { want: Want::Unsaid, ..open_request(A, Access::READ, Deny::NONE) };
    let history = History { restless: true, ..History::default() };
    w.run(&Intent::Open(OpenRequest { history, ..unasked.clone() })).unwrap();
    assert!(w.delegations.is_empty(), "nobody asked, and it may be changed again soon");
    w.policy.max_unasked_per_client = 0;
    w.run(&Intent::Open(unasked.clone())).unwrap();
    assert!(w.delegations.is_empty(), "it has as many as it has room for");
    w.policy.max_unasked_per_client = 1;
    w.run(&Intent::Open(unasked)).unwrap();
    assert_eq!(w.delegations.len(), 1);
}

#[test]
fn not_while_somebody_may_still_write_to_the_data_servers() {
    let mut w = world();
    w.open(B, Access::BOTH, Deny::NONE).unwrap();
    w.layout(B, IoMode::ReadWrite).unwrap();
    w.close(B).unwrap();
    read(&mut w, A);
    assert!(w.delegations.is_empty(), "a layout outlives its open");
    w.recall_layouts(LayoutFilter::All, false);
    w.answer(B, RecallAnswer::NoMatching);
    read(&mut w, A);
    assert!(w.delegations.is_empty(), "it is being fenced");
    w.fence_done(0);
    read(&mut w, A);
    assert!(w.delegations.is_empty(), "its size is not settled");
    w.run(&Intent::Settle).unwrap();
    read(&mut w, A);
    assert_eq!(w.delegations.len(), 1);
}

#[test]
fn not_while_a_read_write_layout_of_another_is_being_made() {
    for access in [Access::READ, Access::BOTH] {
        let mut w = world();
        w.policy.write_delegations = true;
        w.open(B, Access::WRITE, Deny::NONE).unwrap();
        let layout_get = w.layout_get(B, IoMode::ReadWrite);
        let ticket = w.ticket(&layout_get);
        // What it was asked for under ends before it does.
        w.close(B).unwrap();
        w.open(C, access, Deny::NONE).unwrap();
        assert_eq!(w.file.delegation_of(C), None, "{access:?}");
        assert!(matches!(w.finish(ticket, Outcome::Committed), Reply::LayoutGranted { .. }));
    }
}

#[test]
fn who_opens_for_writing_alone_gets_none() {
    let mut w = world();
    w.policy.write_delegations = true;
    w.open(A, Access::WRITE, Deny::NONE).unwrap();
    assert!(w.delegations.is_empty());
}

#[test]
fn a_writer_has_longer_to_return_and_is_fenced_if_it_does_not() {
    let mut w = world();
    w.policy.write_delegations = true;
    w.policy.wait = u64::MAX;
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    w.layout(A, IoMode::ReadWrite).unwrap();
    let open = Intent::Open(open_request(B, Access::READ, Deny::NONE));
    let token = w.wait(&open);
    w.answer(A, RecallAnswer::Ok);
    w.tick_to(w.now.plus_nanos(2 * w.policy.recall_timeout));
    assert!(w.file.delegation_of(A).is_some() && w.fences.is_empty());
    w.tick_to(w.now.plus_nanos(w.policy.recall_timeout));
    assert_eq!(w.file.delegation_of(A), None);
    assert_eq!(w.fences.len(), 1);
    assert!(w.woken.contains(&token));
    let open = open_request(A, Access::READ, Deny::NONE);
    w.run(&Intent::Open(OpenRequest { owner: OpenOwner::new(A, b"other"), ..open })).unwrap();
    assert_eq!(w.file.delegation_of(A), None, "it left a recall unanswered");
}

#[test]
fn the_holder_may_have_an_orphan_open() {
    let mut w = world();
    w.policy.write_delegations = true;
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    w.close(A).unwrap();
    w.run(&Intent::Unlink { client: A, last_link: true }).unwrap();
    assert_eq!(w.collected, 0);
    w.delegation_return(A).unwrap();
    assert_eq!(w.collected, 1);
}

#[test]
fn no_grant_for_a_while_after_a_conflict() {
    let mut w = world();
    read(&mut w, A);
    let change = Intent::SetAttributes { client: B };
    let token = w.wait(&change);
    w.delegation_return(A).unwrap();
    let Prepared::Ticket(ticket) = w.prepare(&change, Some(token)) else { panic!() };
    w.finish(ticket, Outcome::Committed);
    read(&mut w, C);
    assert!(w.delegations.is_empty());
    assert!(!w.file.is_idle() || w.file.is_open(), "it is remembered");
    w.now = w.now.plus_nanos(3 * w.policy.recall_timeout);
    read(&mut w, B);
    assert_eq!(w.delegations.len(), 1);
}

#[test]
fn a_recalled_client_may_open_under_its_delegation() {
    let mut w = world();
    read(&mut w, A);
    w.close(A).unwrap();
    let grant = w.delegations[&A];
    let change = Intent::Unlink { client: B, last_link: true };
    let token = w.wait(&change);
    let claim = Claim::Delegation { stateid: grant.stateid };
    let open = OpenRequest { claim, ..open_request(A, Access::READ, Deny::NONE) };
    assert!(matches!(w.run(&Intent::Open(open.clone())), Ok(Reply::Opened { delegation: None, .. })));
    w.delegation_return(A).unwrap();
    let Prepared::Ticket(ticket) = w.prepare(&change, Some(token)) else { panic!() };
    assert!(ticket.orphan());
    w.finish(ticket, Outcome::Aborted);
    assert_eq!(w.run(&Intent::Open(open)), Err(Error::BadStateid));
}

#[test]
fn not_returned_in_time_is_revoked() {
    let mut w = world();
    read(&mut w, A);
    let grant = w.delegations[&A];
    let token = w.wait(&Intent::SetAttributes { client: B });
    w.answer(A, RecallAnswer::BadStateid);
    assert_eq!(w.file.delegation_of(A), Some(DelegationKind::Read), "the OPEN's reply may be on its way");
    w.recalls.clear();
    w.tick_to(w.file.next_deadline().unwrap());
    assert_eq!(w.recalls.len(), 1, "asked again");
    w.answer(A, RecallAnswer::Ok);
    w.cancel(token);
    let deadline = w.file.next_deadline().unwrap();
    w.tick_to(deadline);
    assert_eq!(w.index.locate(w.ids.epoch(), A, &grant.stateid), Err(Error::DelegRevoked));
    assert_eq!(w.file.delegation_of(A), None);
    assert!(w.fences.is_empty(), "no handle was given with it");
}

#[test]
fn a_write_delegation_is_alone() {
    let mut w = world();
    w.policy.write_delegations = true;
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    let grant = w.delegations[&A];
    assert_eq!(grant.kind, DelegationKind::Write);
    assert_eq!(w.check_io(A, &grant.stateid, true), Ok(()));
    let writer = Writer { client: A, stateid: grant.stateid, change: Some(0), times: false };
    assert_eq!(w.file.write_delegation_against(B), Some(writer));
    assert_eq!(w.file.write_delegation_against(A), None);
    w.wait(&Intent::Open(open_request(B, Access::READ, Deny::NONE)));
    assert_eq!(w.recalls.len(), 1);
}

#[test]
fn reclaimed_with_the_open() {
    let mut w = World::default().in_grace(true);
    let claim = Claim::Previous { delegation: Want::Read };
    let open = OpenRequest { claim, ..open_request(A, Access::READ, Deny::NONE) };
    assert!(matches!(w.run(&Intent::Open(open)), Ok(Reply::Opened { delegation: Some(_), .. })));
}

#[test]
fn a_file_that_is_only_remembered_is_still() {
    let mut w = world();
    assert!(w.file.is_still());
    read(&mut w, A);
    assert!(!w.file.is_still(), "it is open");
    let get = w.layout_get(A, IoMode::Read);
    w.run(&get).unwrap();
    w.close(A).unwrap();
    assert!(w.file.has_layouts() && w.file.delegation_of(A).is_some());
    assert!(w.file.is_still() && !w.file.is_idle(), "A reads it without a word, and nothing changes by that");
}

#[test]
fn a_file_that_may_be_written_to_is_not_still() {
    let mut w = World::default();
    w.policy.read_delegations = true;
    w.policy.write_delegations = true;
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    assert_eq!(w.file.delegation_of(A), Some(DelegationKind::Write));
    let get = w.layout_get(A, IoMode::ReadWrite);
    w.run(&get).unwrap();
    w.close(A).unwrap();
    assert!(w.file.has_layouts() && !w.file.is_still(), "by its holder, under the delegation");
    w.layout_return(A, sluice_state::layout::ReturnMode::Any).unwrap();
    assert!(!w.file.is_still(), "its row says that it is unsettled");
    let clear = w.ticket(&Intent::ClearRw);
    assert!(!w.file.is_still());
    w.finish(clear, Outcome::Committed);
    assert!(w.file.is_still());
}

/// RFC 9754 §4: one of the two will do.
#[test]
fn a_delegation_stands_for_the_open_of_who_wants_either() {
    let either = |access, deny| OpenRequest { either: true, ..open_request(A, access, deny) };
    let stateid = |w: &mut World, open: OpenRequest| match w.run(&Intent::Open(open)).unwrap() {
        Reply::Opened { stateid, delegation } => (stateid.is_some(), delegation.is_some()),
        other => panic!("{other:?}"),
    };
    for access in [Access::READ, Access::BOTH] {
        let mut w = world();
        w.policy.write_delegations = true;
        assert_eq!(stateid(&mut w, either(access, Deny::NONE)), (false, true));
        assert!(w.file.is_open());
        // Who holds one gets an open for what it opens again.
        assert_eq!(stateid(&mut w, either(access, Deny::NONE)), (true, false));
        assert_eq!(
            stateid(&mut w, either(access, Deny::NONE)),
            (true, false),
            "an open that is there is added to"
        );
    }
    // Others are kept out by an open alone.
    assert_eq!(stateid(&mut world(), either(Access::READ, Deny::WRITE)), (true, true));
    // Where none is given there is an open.
    let mut w = world();
    w.open(B, Access::WRITE, Deny::NONE).unwrap();
    assert_eq!(stateid(&mut w, either(Access::READ, Deny::NONE)), (true, false));
}

#[test]
fn with_a_delegation_for_an_open_a_file_is_kept_and_read_and_laid_out() {
    let mut w = world();
    w.policy.write_delegations = true;
    w.run(&Intent::Open(OpenRequest { either: true, ..open_request(A, Access::BOTH, Deny::NONE) })).unwrap();
    let stateid = w.delegations[&A].stateid;
    for iomode in [IoMode::Read, IoMode::ReadWrite] {
        w.run(&Intent::LayoutGet { client: A, stateid, iomode, call: None }).unwrap();
    }
    w.run(&Intent::Unlink { client: A, last_link: true }).unwrap();
    assert!(!w.file.is_collectable(), "it has it open");
    w.delegation_return(A).unwrap();
    assert!(w.file.is_collectable());
}

/// RFC 9754 §5: a client that wants to answer for the times of what it may write does, where that is allowed.
#[test]
fn the_times_go_with_a_write_delegation_to_who_wants_them() {
    let floor = Times { access: Some((50, 0)), modify: Some((50, 0)) };
    let keeps = |access| OpenRequest { times: Some(floor), ..open_request(A, access, Deny::NONE) };
    let given = |allowed, open: OpenRequest| {
        let mut w = world();
        (w.policy.write_delegations, w.policy.delegated_times) = (true, allowed);
        w.run(&Intent::Open(open)).unwrap();
        (w.delegations[&A].times, w)
    };
    assert!(!given(false, keeps(Access::BOTH)).0);
    assert!(!given(true, open_request(A, Access::BOTH, Deny::NONE)).0, "it did not ask");
    let (times, mut w) = given(true, keeps(Access::READ));
    let read = w.delegations[&A].stateid;
    assert!(!times && w.file.keep_times(A, &read, floor, (99, 0)) == Err(Error::BadStateid));
    let (times, mut w) = given(true, keeps(Access::BOTH));
    assert!(times && w.file.write_delegation_against(B).unwrap().times);
    let stateid = w.delegations[&A].stateid;
    let says = |w: &mut World, modify| {
        let said = Times { access: None, modify: Some((modify, 0)) };
        w.file.keep_times(A, &stateid, said, (99, 0)).unwrap()
    };
    let modify = |at| Times { access: None, modify: Some((at, 0)) };
    assert_eq!(says(&mut w, 49), Times::default(), "before what was there");
    assert_eq!(says(&mut w, 50), Times::default(), "what was there");
    assert_eq!(says(&mut w, 60), modify(60));
    assert_eq!(says(&mut w, 55), Times::default(), "others may have been shown the other");
    assert_eq!(says(&mut w, 60), modify(60), "again: it may not have been made durable");
    w.file.time_shown((70, 0));
    assert_eq!(says(&mut w, 65), Times::default(), "others were shown what a commit of its data left");
    assert_eq!(says(&mut w, 70), modify(70));
    assert_eq!(says(&mut w, 200), modify(99), "not in the future");
    assert_eq!(w.file.keep_times(B, &stateid, floor, (99, 0)), Err(Error::BadStateid));
    w.delegation_return(A).unwrap();
    assert_eq!(w.file.keep_times(A, &stateid, floor, (99, 0)), Err(Error::BadStateid));
}

/// RFC 8881 §10.4: its holder may have opened the file for reading without a word, not for writing.
#[test]
fn a_read_delegation_is_claimed_for_reading_alone() {
    let mut w = World::default();
    w.policy.read_delegations = true;
    w.open(A, Access::READ, Deny::NONE).unwrap();
    let stateid = w.delegations[&A].stateid;
    w.close(A).unwrap();
    let claim = |access| {
        let claim = Claim::Delegation { stateid };
        Intent::Open(OpenRequest { claim, ..open_request(A, access, Deny::NONE) })
    };
    assert_eq!(w.run(&claim(Access::WRITE)), Err(Error::Openmode));
    assert_eq!(w.run(&claim(Access::BOTH)), Err(Error::Openmode));
    w.run(&claim(Access::READ)).unwrap();
}
