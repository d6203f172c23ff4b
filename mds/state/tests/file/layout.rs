//! Layouts: stateid rules, returns, recalls, fences, the rw_layout row, settling.

use sluice_state::effect::{Effect, IoMode, RecallAnswer, RecallKind, RevokeReason};
use sluice_state::file::{Error, FileSeed, Grace, Intent, LayoutFilter, Outcome, Prepared, Reply};
use sluice_state::layout::ReturnMode;
use sluice_state::open::{Access, Deny};
use sluice_state::{ClientId, StateId, StateKind};

use super::world::{A, B, World, owner};

const R: IoMode = IoMode::Read;
const RW: IoMode = IoMode::ReadWrite;

fn opened() -> World {
    let mut w = World::default();
    for client in [A, B] {
        w.open(client, Access::BOTH, Deny::NONE).unwrap();
    }
    w
}

fn truncate(client: ClientId) -> Intent {
    Intent::SetSize { client, replace: false, fresh: false }
}

#[test]
fn one_stateid_per_client_and_file() {
    let mut w = opened();
    let first = w.layout(A, R).unwrap();
    assert_eq!((first.seqid, first.kind()), (1, Some(StateKind::Layout)));
    let second = w.layout(A, RW).unwrap();
    assert_eq!(second, first.with_seqid(2));
    // Under the open stateid again: a client that forgot. The same state, so that nothing is left behind.
    w.layouts.clear();
    assert_eq!(w.layout(A, RW).unwrap(), first.with_seqid(3));
    assert_ne!(w.layout(B, RW).unwrap().other, first.other);
}

#[test]
fn parallel_layoutgets_of_a_fresh_file() {
    let mut w = opened();
    let intent = w.layout_get(A, RW);
    let (one, two) = (w.ticket(&intent), w.ticket(&intent));
    assert!(one.must_persist_rw() && two.must_persist_rw());
    let Reply::LayoutGranted { stateid: first, .. } = w.finish(two, Outcome::Committed) else { panic!() };
    assert_eq!(w.finish(one, Outcome::Aborted), Reply::Aborted);
    assert_eq!(w.layout(A, RW).unwrap(), first.with_seqid(2), "an aborted one leaves no gap");
}

#[test]
fn layoutget_stateid_rules() {
    let mut w = opened();
    let get = |stateid, iomode| Intent::LayoutGet { client: A, stateid, iomode, call: None };
    assert_eq!(w.run(&get(StateId::default(), R)), Err(Error::BadStateid));
    let first = w.layout(A, RW).unwrap();
    w.layout(A, RW).unwrap();
    assert!(w.run(&get(first, R)).is_ok(), "parallel LAYOUTGETs carry older seqids");
    assert_eq!(w.run(&get(first.with_seqid(9), R)), Err(Error::BadStateid));
    assert_eq!(
        w.run(&Intent::LayoutGet { client: B, stateid: first, iomode: R, call: None }),
        Err(Error::BadStateid)
    );
    w.grace = Grace::Active { may_reclaim: true };
    assert_eq!(w.run(&get(first, R)), Err(Error::Grace));
}

#[test]
fn a_read_write_layout_needs_an_open_for_writing() {
    let mut w = World::default();
    w.open(A, Access::READ, Deny::NONE).unwrap();
    assert_eq!(w.layout(A, RW), Err(Error::Openmode));
    w.layout(A, R).unwrap();
    assert_eq!(w.layout(A, RW), Err(Error::Openmode), "nor under the layout stateid");
}

#[test]
fn caps_on_layouts() {
    let mut w = opened();
    w.policy.max_layouts_per_client = 0;
    assert_eq!(w.layout(A, R), Err(Error::LayoutUnavailable));
}

#[test]
fn the_row_is_written_once_and_cleared_after_the_last_clean_return() {
    let mut w = opened();
    let get = w.layout_get(A, RW);
    let ticket = w.ticket(&get);
    assert!(ticket.must_persist_rw());
    w.finish(ticket, Outcome::Committed);
    let get = w.layout_get(B, RW);
    let ticket = w.ticket(&get);
    assert!(!ticket.must_persist_rw(), "it is there");
    w.finish(ticket, Outcome::Committed);
    w.layout_return(A, ReturnMode::Any).unwrap();
    assert_eq!(w.idle_notices, 0);
    assert_eq!(w.run(&Intent::ClearRw), Err(Error::Delay));
    w.layout_return(B, ReturnMode::Any).unwrap();
    assert_eq!(w.idle_notices, 1);
    w.close(A).unwrap();
    w.close(B).unwrap();
    assert!(!w.file.is_idle(), "dropping it now would make the file look unclean");
    let clear = w.ticket(&Intent::ClearRw);
    assert!(clear.clears_rw());
    w.finish(clear, Outcome::Committed);
    assert!(!w.row && w.file.is_idle() && !w.file.needs_settle());
}

#[test]
fn what_could_not_be_cleared_in_time_is_said_again() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    let committing = w.ticket(&w.layout_commit(A));
    w.layout_return(A, ReturnMode::Any).unwrap();
    w.close(A).unwrap();
    w.close(B).unwrap();
    let token = w.wait(&Intent::ClearRw);
    let told = w.idle_notices;
    w.tick_to(w.now.plus_nanos(w.policy.wait));
    assert!(matches!(w.prepare(&Intent::ClearRw, Some(token)), Prepared::Deny(Error::Delay)));
    w.finish(committing, Outcome::Committed);
    assert_eq!(w.idle_notices, told + 1);
    // So it is where nobody waited for it, or nobody came back.
    let committing = w.ticket(&Intent::ClearRw);
    let token = w.wait(&Intent::ClearRw);
    w.cancel(token);
    assert_eq!(w.idle_notices, told + 2);
    w.wait(&Intent::ClearRw);
    w.tick_to(w.now.plus_nanos(w.policy.wait));
    w.tick_to(w.now.plus_nanos(w.policy.wait));
    assert_eq!(w.idle_notices, told + 3);
    w.finish(committing, Outcome::Committed);
    assert!(w.file.is_idle());
}

#[test]
fn a_return_when_nobody_could_be_asked_what_was_written_keeps_the_row() {
    for (mode, wrote) in [(R, false), (RW, true)] {
        let mut w = opened();
        w.layout(A, mode).unwrap();
        assert_eq!(w.give_back(A, ReturnMode::Any, false), Ok(None));
        assert_eq!(w.file.needs_settle(), wrote);
        assert_eq!((w.idle_notices, w.run(&Intent::ClearRw)), (0, Err(Error::Delay)));
        if wrote {
            let settle = w.ticket(&Intent::Settle);
            assert!(settle.clears_rw());
            w.finish(settle, Outcome::Committed);
            assert!(!w.file.needs_settle());
        }
    }
}

#[test]
fn a_grant_waits_for_the_clearing_of_the_row_and_writes_it_again() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    w.layout_return(A, ReturnMode::Any).unwrap();
    let clear = w.ticket(&Intent::ClearRw);
    let get = w.layout_get(A, RW);
    let token = w.wait(&get);
    w.finish(clear, Outcome::Committed);
    let Prepared::Ticket(ticket) = w.prepare(&get, Some(token)) else { panic!() };
    assert!(ticket.must_persist_rw());
    w.finish(ticket, Outcome::Committed);
}

#[test]
fn a_row_that_may_be_gone_is_written_again() {
    for (applied, intent) in [(true, Intent::ClearRw), (false, Intent::ClearRw), (true, Intent::Settle)] {
        let mut w = opened();
        w.layout(A, RW).unwrap();
        w.layout_return(A, ReturnMode::Any).unwrap();
        let clear = w.ticket(&intent);
        assert!(clear.clears_rw());
        if applied {
            w.store(&clear);
        }
        assert_eq!(w.finish(clear, Outcome::Unknown), Reply::Aborted);
        let get = w.layout_get(A, RW);
        let get = w.ticket(&get);
        assert!(get.must_persist_rw(), "{applied} {intent:?}");
        w.finish(get, Outcome::Committed);
    }
}

/// It was written for a layout that was refused in the end, or may have been.
#[test]
fn a_row_that_may_be_there_is_cleared() {
    for wrote in [true, false] {
        let mut w = opened();
        let get = w.layout_get(A, RW);
        let ticket = w.ticket(&get);
        assert!(ticket.must_persist_rw());
        if wrote {
            w.store(&ticket);
        }
        assert_eq!(w.finish(ticket, Outcome::Unknown), Reply::Aborted);
        assert_eq!(w.idle_notices, 1);
        w.close(A).unwrap();
        w.close(B).unwrap();
        assert!(!w.file.is_idle(), "dropping it now would make the file look unclean");
        // It is not relied upon.
        w.open(A, Access::BOTH, Deny::NONE).unwrap();
        let get = w.layout_get(A, RW);
        let ticket = w.ticket(&get);
        assert!(ticket.must_persist_rw());
        w.finish(ticket, Outcome::Aborted);
        assert_eq!(w.idle_notices, 2);
        let clear = w.ticket(&Intent::ClearRw);
        assert!(clear.clears_rw());
        w.finish(clear, Outcome::Committed);
        w.close(A).unwrap();
        assert!(!w.row && w.file.is_idle() && !w.file.needs_settle());
    }
}

#[test]
fn a_commit_in_flight_keeps_the_row() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    let commit = w.layout_commit(A);
    let commit = w.ticket(&commit);
    w.layout_return(A, ReturnMode::Any).unwrap();
    let token = w.wait(&Intent::ClearRw);
    w.finish(commit, Outcome::Committed);
    assert!(w.woken.contains(&token));
}

#[test]
fn returns_by_iomode() {
    let mut w = opened();
    w.layout(A, R).unwrap();
    let both = w.layout(A, RW).unwrap();
    let left = w.layout_return(A, ReturnMode::ReadWrite).unwrap();
    assert_eq!(left, Some(both.with_seqid(3)), "lrs_present while something is left");
    assert_eq!(w.idle_notices, 1);
    assert_eq!(w.layout_return(A, ReturnMode::Read).unwrap(), None);
    assert_eq!(w.layout_return(A, ReturnMode::Any), Err(Error::BadStateid));
    assert!(!w.file.has_layouts());
}

#[test]
fn a_return_does_not_cover_a_later_grant() {
    let mut w = opened();
    let first = w.layout(A, RW).unwrap();
    w.layout(A, R).unwrap();
    w.layouts.insert(A, first);
    assert_eq!(w.layout_return(A, ReturnMode::Any), Err(Error::OldStateid));
    w.layout_return(A, ReturnMode::ReadWrite).unwrap();
    w.layouts.insert(A, first.with_seqid(9));
    assert_eq!(w.layout_return(A, ReturnMode::Any), Err(Error::BadStateid));
}

/// LAYOUTGET and LAYOUTRETURN of one client cross. Linux answers OLD_STATEID with the next seqid, before it has
/// heard of the grant, and then writes under that.
#[test]
fn a_return_repeated_with_a_guess_does_not_cover_the_grant_either() {
    let mut w = opened();
    let first = w.layout(A, RW).unwrap();
    let second = w.layout(A, RW).unwrap();
    w.layouts.insert(A, first);
    assert_eq!(w.layout_return(A, ReturnMode::Any), Err(Error::OldStateid));
    w.layouts.insert(A, second);
    let left = w.layout_return(A, ReturnMode::Any).unwrap();
    assert_eq!(left, Some(first.with_seqid(3)), "lrs_present");
    assert!(w.file.size_may_lag(ClientId(0)), "there is a writer");
    assert_eq!(w.layout_return(A, ReturnMode::Any).unwrap(), None);
    // A grant that the client has heard of, since it came after the answer.
    let first = w.layout(A, RW).unwrap();
    w.layout(A, RW).unwrap();
    w.layouts.insert(A, first);
    assert_eq!(w.layout_return(A, ReturnMode::Any), Err(Error::OldStateid));
    let third = w.layout(A, RW).unwrap();
    w.layouts.insert(A, third);
    assert_eq!(w.layout_return(A, ReturnMode::Any).unwrap(), None);
}

#[test]
fn layoutcommit_accepts_older_seqids_and_never_says_bad_stateid() {
    let mut w = opened();
    let first = w.layout(A, RW).unwrap();
    w.layout(A, RW).unwrap();
    let commit = |stateid| Intent::LayoutCommit { client: A, stateid };
    assert_eq!(w.run(&commit(first)), Ok(Reply::Done));
    w.recall_layouts(LayoutFilter::All, false);
    assert_eq!(w.run(&commit(first)), Ok(Reply::Done), "during a recall");
    w.grace = Grace::Active { may_reclaim: false };
    assert_eq!(w.run(&commit(first)), Ok(Reply::Done), "never GRACE");
    w.layout_return(A, ReturnMode::Any).unwrap();
    assert_eq!(w.run(&commit(first)), Err(Error::BadLayout));
    w.grace = Grace::Over;
    let read = w.layout(A, R).unwrap();
    assert_eq!(w.run(&commit(read)), Err(Error::BadIomode));
}

#[test]
fn truncate_recalls_other_writers_and_waits() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    let held = w.layout(B, RW).unwrap();
    let token = w.wait(&truncate(A));
    assert_eq!(w.recalls.len(), 1, "not its own");
    assert_eq!(w.recalls[0].stateid, held.with_seqid(2), "the recall increments the seqid");
    assert_eq!(w.recalls[0].kind, RecallKind::Layout { changed: false });
    assert_eq!(w.layout(B, RW), Err(Error::RecallConflict));
    assert_eq!(w.layout(A, RW), Err(Error::RecallConflict), "behind the queued truncate");
    // B commits what it wrote before it returns: that must not wait for A.
    let commit = w.layout_commit(B);
    assert_eq!(w.run(&commit), Ok(Reply::Done));
    w.answer(B, RecallAnswer::Ok);
    w.layout_return(B, ReturnMode::Any).unwrap();
    assert!(w.woken.contains(&token));
    let Prepared::Ticket(ticket) = w.prepare(&truncate(A), Some(token)) else { panic!() };
    let get = w.layout_get(B, R);
    let waiting = w.wait(&get);
    w.finish(ticket, Outcome::Committed);
    assert!(w.woken.contains(&waiting));
}

#[test]
fn truncate_leaves_readers_alone_and_replace_does_not() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    w.layout(B, R).unwrap();
    assert_eq!(w.run(&truncate(A)), Ok(Reply::Done));
    w.wait(&Intent::SetSize { client: A, replace: true, fresh: true });
    assert_eq!(w.recalls.len(), 2, "every handle goes, also the caller's own");
    assert!(w.recalls.iter().all(|r| r.kind == RecallKind::Layout { changed: true }));
}

#[test]
fn truncate_waits_for_a_layoutget_in_flight_and_then_recalls_it() {
    let mut w = opened();
    let get = w.layout_get(B, RW);
    let ticket = w.ticket(&get);
    let token = w.wait(&truncate(A));
    assert!(w.recalls.is_empty());
    assert!(matches!(w.finish(ticket, Outcome::Committed), Reply::LayoutGranted { .. }));
    assert_eq!(w.recalls.len(), 1);
    assert!(!w.woken.contains(&token));
}

#[test]
fn no_truncate_in_grace() {
    let mut w = World::default().in_grace(true);
    assert_eq!(w.run(&truncate(A)), Err(Error::Grace));
}

#[test]
fn a_recall_not_answered_is_revoked_fenced_and_settled() {
    let mut w = opened();
    let held = w.layout(B, RW).unwrap();
    let token = w.wait(&truncate(A));
    let deadline = w.now.plus_nanos(w.policy.recall_timeout);
    w.tick_to(w.now.plus_nanos(w.policy.recall_timeout - 1));
    assert!(w.fences.is_empty());
    // The wait ran out before the recall did; the client asks again.
    assert!(matches!(w.prepare(&truncate(A), Some(token)), Prepared::Deny(Error::Delay)));
    let token = w.wait(&truncate(A));
    w.tick_to(deadline);
    assert_eq!(w.fences.len(), 1);
    assert_eq!(w.index.locate(w.ids.epoch(), B, &held), Err(Error::DelegRevoked));
    assert!(w.file.needs_settle() && w.file.size_may_lag(A));
    assert!(!w.woken.contains(&token), "a late write may still arrive");
    w.layouts.clear();
    assert_eq!(w.layout(B, RW), Err(Error::Delay), "its handle would be cut off by the fence");
    assert_eq!(w.idle_notices, 0);
    w.fence_done(0);
    assert!(w.woken.contains(&token));
    let Prepared::Ticket(ticket) = w.prepare(&truncate(A), Some(token)) else { panic!() };
    w.finish(ticket, Outcome::Committed);
    let settle = w.ticket(&Intent::Settle);
    assert!(settle.clears_rw());
    w.finish(settle, Outcome::Committed);
    assert!(!w.file.needs_settle() && !w.row);
}

#[test]
fn settle_waits_for_the_fence_and_spares_other_writers() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    w.layout(B, RW).unwrap();
    w.expire(B, RevokeReason::LeaseExpired);
    let token = w.wait(&Intent::Settle);
    w.fence_done(0);
    let Prepared::Ticket(ticket) = w.prepare(&Intent::Settle, Some(token)) else { panic!() };
    assert!(!ticket.clears_rw(), "A still writes");
    let commit = w.layout_commit(A);
    assert_eq!(w.run(&commit), Ok(Reply::Done), "and commits meanwhile");
    w.finish(ticket, Outcome::Committed);
    assert!(!w.file.needs_settle() && w.row && w.file.size_may_lag(B));
    w.layout_return(A, ReturnMode::Any).unwrap();
    assert_eq!(w.idle_notices, 1);
}

#[test]
fn an_unclean_end_during_a_settle_needs_another() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    w.layout(B, RW).unwrap();
    w.expire(B, RevokeReason::LeaseExpired);
    w.fence_done(0);
    let settle = w.ticket(&Intent::Settle);
    w.expire(A, RevokeReason::LeaseExpired);
    w.finish(settle, Outcome::Committed);
    assert!(w.file.needs_settle());
}

#[test]
fn a_row_found_on_the_store_is_unclean() {
    let mut w = World::new(FileSeed { rw_layout: true, orphan: false });
    assert!(w.file.needs_settle() && w.file.size_may_lag(A));
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    let get = w.layout_get(A, RW);
    let ticket = w.ticket(&get);
    assert!(!ticket.must_persist_rw());
    w.finish(ticket, Outcome::Committed);
    w.layout_return(A, ReturnMode::Any).unwrap();
    assert_eq!(w.idle_notices, 0, "a clean return does not excuse the earlier end");
    w.run(&Intent::Settle).unwrap();
    assert!(!w.row && !w.file.needs_settle());
}

#[test]
fn a_row_written_with_the_file_waits_for_the_layout() {
    let mut w = World::made();
    assert!(!w.file.needs_settle() && !w.file.size_may_lag(A) && !w.file.is_idle());
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    w.open(B, Access::READ, Deny::NONE).unwrap();
    w.close(B).unwrap();
    assert_eq!(w.idle_notices, 0, "the layout may still be asked for");
    let get = w.layout_get(A, RW);
    let ticket = w.ticket(&get);
    assert!(!ticket.must_persist_rw(), "it is durable already");
    w.finish(ticket, Outcome::Committed);
    w.layout_return(A, ReturnMode::Any).unwrap();
    assert_eq!(w.idle_notices, 1);
    w.run(&Intent::ClearRw).unwrap();
    w.close(A).unwrap();
    assert!(!w.row && w.file.is_idle());
}

#[test]
fn a_row_written_with_the_file_goes_with_the_last_open_if_no_layout_came() {
    let mut w = World::made();
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    w.close(A).unwrap();
    assert_eq!(w.idle_notices, 1);
    w.run(&Intent::ClearRw).unwrap();
    assert!(!w.row && w.file.is_idle());
    // Not even an open came of it.
    let mut w = World::made();
    w.tick_to(w.now);
    assert_eq!(w.idle_notices, 1);
    let get = Intent::ClearRw;
    w.run(&get).unwrap();
    w.open(A, Access::BOTH, Deny::NONE).unwrap();
    let get = w.layout_get(A, RW);
    assert!(w.ticket(&get).must_persist_rw(), "the row is gone");
}

#[test]
fn attributes_and_a_truncation_exclude_each_other() {
    let mut w = opened();
    let attributes = w.ticket(&Intent::SetAttributes { client: A });
    let waiting = w.wait(&truncate(B));
    w.finish(attributes, Outcome::Committed);
    assert!(w.woken.contains(&waiting));
}

#[test]
fn delay_is_asked_again_old_stateid_with_a_later_one() {
    let mut w = opened();
    w.layout(B, RW).unwrap();
    w.recall_layouts(LayoutFilter::Client(B), true);
    w.recall_layouts(LayoutFilter::All, true);
    let first = w.recalls[0].clone();
    assert_eq!(w.recalls.len(), 1, "one recall at a time");
    w.answer(B, RecallAnswer::Delay);
    w.recalls.clear();
    let retry = w.file.next_deadline().unwrap();
    assert_eq!(retry, w.now.plus_nanos(w.policy.recall_retry));
    w.tick_to(retry);
    assert_eq!(w.recalls, std::slice::from_ref(&first), "the same seqid again");
    w.answer(B, RecallAnswer::OldStateid);
    w.recalls.clear();
    w.tick_to(w.file.next_deadline().unwrap());
    assert_eq!(w.recalls[0].stateid, first.stateid.with_seqid(first.stateid.seqid + 1));
    w.answer(B, RecallAnswer::Unreachable);
    w.tick_to(w.file.next_deadline().unwrap());
    w.answer(B, RecallAnswer::Ok);
    let (_, timeout) = (w.now, w.policy.recall_timeout);
    assert!(
        w.file.next_deadline().unwrap() < w.now.plus_nanos(timeout),
        "the deadline counts from the first"
    );
    w.layout_return(B, ReturnMode::Any).unwrap();
    assert!(w.file.next_deadline().is_none() && !w.file.needs_settle());
}

#[test]
fn a_forgotten_layout_is_fenced_only_where_it_could_write() {
    let mut w = opened();
    w.layout(A, R).unwrap();
    w.layout(B, RW).unwrap();
    w.recall_layouts(LayoutFilter::All, false);
    w.answer(A, RecallAnswer::NoMatching);
    assert!(w.fences.is_empty());
    w.layout(A, R).unwrap();
    w.answer(B, RecallAnswer::BadStateid);
    assert_eq!(w.fences.len(), 1);
    assert!(w.file.needs_settle(), "what it wrote may be uncommitted");
}

/// RFC 8881 §12.5.5.2: the recall comes before the reply to LAYOUTGET.
#[test]
fn who_has_no_layout_yet_is_asked_again_and_has_not_forgotten_it() {
    for answer in [RecallAnswer::NoMatching, RecallAnswer::BadStateid] {
        let mut w = opened();
        let get = w.layout_get(B, RW);
        let ticket = w.ticket(&get);
        let waiting = w.wait(&truncate(A));
        w.finish(ticket, Outcome::Committed);
        assert_eq!(w.recalls.len(), 1, "at once");
        w.answer_of_the_unaware(B, answer);
        assert!(w.fences.is_empty() && !w.file.needs_settle() && w.file.has_layouts());
        w.recalls.clear();
        w.tick_to(w.file.next_deadline().unwrap());
        assert_eq!(w.recalls.len(), 1, "now it knows");
        w.answer(B, RecallAnswer::Ok);
        w.layout_return(B, ReturnMode::Any).unwrap();
        assert!(w.woken.contains(&waiting) && w.fences.is_empty() && !w.file.needs_settle());
    }
}

#[test]
fn a_late_answer_is_ignored() {
    let mut w = opened();
    w.layout(B, RW).unwrap();
    w.recall_layouts(LayoutFilter::ReadWrite, false);
    let recall = w.recalls[0].clone();
    w.layout_return(B, ReturnMode::Any).unwrap();
    w.layout(B, RW).unwrap();
    w.recalls.push(recall);
    w.layouts.remove(&B);
    let before = w.log.len();
    w.answer(B, RecallAnswer::NoMatching);
    assert_eq!(w.log.len(), before);
    assert!(w.file.has_layouts());
}

#[test]
fn a_recall_during_a_layoutget_refuses_the_grant() {
    let mut w = opened();
    let held = w.layout(A, RW).unwrap();
    let get = w.layout_get(A, R);
    let ticket = w.ticket(&get);
    w.recall_layouts(LayoutFilter::All, true);
    assert_eq!(w.finish(ticket, Outcome::Committed), Reply::Refused(Error::RecallConflict));
    assert_eq!(w.recalls[0].stateid, held.with_seqid(2), "the seqid the client expects");
}

#[test]
fn a_layoutget_of_a_gone_client_grants_nothing() {
    let mut w = opened();
    let get = w.layout_get(A, RW);
    let ticket = w.ticket(&get);
    w.expire(A, RevokeReason::LeaseExpired);
    assert_eq!(w.finish(ticket, Outcome::Committed), Reply::Refused(Error::Expired));
    assert!(w.row && w.idle_notices == 1, "the row was written for nothing");
}

#[test]
fn a_layout_may_outlive_the_last_close() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    w.close(A).unwrap();
    assert!(w.recalls.is_empty() && w.file.has_layouts());
    w.layout_return(A, ReturnMode::Any).unwrap();
    assert!(!w.file.has_layouts());
}

#[test]
fn proxied_io_shares_with_layouts_unless_it_must_not() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    let io = |write, exclusive| Intent::ProxyIo { client: B, write, exclusive };
    assert_eq!(w.run(&io(false, false)), Ok(Reply::Done));
    assert_eq!(w.run(&io(true, false)), Ok(Reply::Done));
    let token = w.wait(&io(true, true));
    assert_eq!(w.recalls.len(), 1);
    w.layout_return(A, ReturnMode::Any).unwrap();
    let Prepared::Ticket(ticket) = w.prepare(&io(true, true), Some(token)) else { panic!() };
    let get = w.layout_get(A, RW);
    w.wait(&get);
    let read = w.layout_get(A, R);
    assert!(w.run(&read).is_ok(), "readers do not disturb");
    w.finish(ticket, Outcome::Committed);
}

/// RFC 7862 §15.13.3: a clone is of one moment.
#[test]
fn what_is_read_as_of_one_moment_is_not_written_to_meanwhile() {
    let mut w = opened();
    let io = |client, write, exclusive| Intent::ProxyIo { client, write, exclusive };
    let Prepared::Ticket(ticket) = w.prepare(&io(A, false, true), None) else { panic!() };
    assert_eq!(w.run(&io(A, false, false)), Ok(Reply::Done), "readers do not disturb");
    let token = w.wait(&io(B, true, false));
    w.finish(ticket, Outcome::Committed);
    assert!(w.woken.contains(&token));
    let Prepared::Ticket(writer) = w.prepare(&io(B, true, false), Some(token)) else { panic!() };
    w.wait(&io(A, false, true));
    w.finish(writer, Outcome::Committed);
}

#[test]
fn fallback_writes_wait_for_the_fence_of_the_same_client() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    w.recall_layouts(LayoutFilter::All, true);
    w.answer(A, RecallAnswer::NoMatching);
    let io = |client, write| Intent::ProxyIo { client, write, exclusive: false };
    assert_eq!(w.run(&io(B, true)), Ok(Reply::Done));
    assert_eq!(w.run(&io(A, false)), Ok(Reply::Done));
    let token = w.wait(&io(A, true));
    w.fence_done(0);
    assert!(w.woken.contains(&token));
}

/// Told of with the return, ahead of it, or both: it costs one fence, and the end of the layout is clean.
#[test]
fn what_a_client_gave_up_is_cut_off_before_it_goes_on() {
    let io = Intent::ProxyIo { client: A, write: true, exclusive: false };
    for returned_first in [false, true] {
        let mut w = opened();
        w.layout(A, RW).unwrap();
        w.layout(B, RW).unwrap();
        w.layout_failed(A);
        w.layout_failed(A);
        if returned_first {
            w.layout_return(A, ReturnMode::Any).unwrap();
        }
        assert_eq!(w.fences.len(), 1);
        assert!(!w.file.needs_settle());
        assert_eq!(w.layout(A, RW), Err(Error::Delay), "nothing is recalled");
        let token = w.wait(&io);
        assert_eq!(w.run(&Intent::ProxyIo { client: B, write: true, exclusive: false }), Ok(Reply::Done));
        w.fence_done(0);
        assert!(w.woken.contains(&token));
        w.layout(A, RW).unwrap();
        w.layout_failed(A);
        assert_eq!(w.fences.len(), 1, "what was handed out since");
        w.fence_done(0);
    }
}

/// It waits for more than its own failure did.
#[test]
fn who_is_revoked_while_it_is_cut_off_is_fenced_anew() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    w.layout_failed(A);
    w.expire(A, RevokeReason::LeaseExpired);
    assert!(w.file.needs_settle());
    assert_eq!(w.fences.len(), 2);
    let token = w.wait(&Intent::Settle);
    w.fence_done(0);
    assert!(!w.woken.contains(&token), "the earlier fence says nothing of others");
    w.fence_done(0);
    assert!(w.woken.contains(&token));
}

#[test]
fn relayout_recalls_everything_as_changed() {
    let mut w = opened();
    w.layout(A, R).unwrap();
    w.layout(B, RW).unwrap();
    let token = w.wait(&Intent::Relayout);
    assert!(w.recalls.iter().all(|r| r.kind == RecallKind::Layout { changed: true }));
    w.layout_return(A, ReturnMode::Any).unwrap();
    w.layout_return(B, ReturnMode::Any).unwrap();
    assert!(w.woken.contains(&token));
}

#[test]
fn the_last_unlink_drops_layouts_without_fences() {
    let mut w = opened();
    w.layout(A, RW).unwrap();
    w.close(A).unwrap();
    w.close(B).unwrap();
    w.run(&Intent::Unlink { client: B, last_link: true }).unwrap();
    assert!(!w.file.has_layouts() && w.fences.is_empty() && w.file.is_idle());
    assert!(w.log.iter().any(|e| matches!(e, Effect::Release { kind: StateKind::Layout, .. })));
}

#[test]
fn a_client_with_only_a_read_layout_goes_at_once() {
    let mut w = opened();
    w.layout(A, R).unwrap();
    w.open(B, Access::BOTH, Deny::NONE).unwrap();
    w.expire(A, RevokeReason::Admin);
    assert!(!w.opens.contains_key(&owner(A)));
    assert_eq!(w.file.live_stateids().len(), 1);
    assert_eq!(w.fences.len(), 1, "its handle is cut off all the same");
    assert!(!w.file.needs_settle());
}
