//! Recalls of layouts that are not over with their first answer.

use sluice_state::SessionId;
use sluice_state::effect::{Call, IoMode, Recall, RecallAnswer};
use sluice_state::file::{Intent, LayoutFilter};
use sluice_state::layout::ReturnMode;
use sluice_state::open::{Access, Deny};

use super::world::{A, B, World};

const R: IoMode = IoMode::Read;
const RW: IoMode = IoMode::ReadWrite;

fn opened() -> World {
    let mut w = World::default();
    for client in [A, B] {
        w.open(client, Access::BOTH, Deny::NONE).unwrap();
    }
    w
}

/// Linux commits what it has written when it is asked for the layout, and returns that when all is committed: what ends after it
/// said OK waits for the next time.
#[test]
fn who_promised_to_return_a_layout_to_write_with_is_asked_again_each_second() {
    let mut w = opened();
    w.layout(A, R).unwrap();
    w.layout(B, RW).unwrap();
    w.recall_layouts(LayoutFilter::All, false);
    let of_b = |w: &World| w.recalls.iter().find(|recall| recall.client == B).cloned();
    let first = of_b(&w).unwrap();
    w.answer(A, RecallAnswer::Ok);
    w.answer(B, RecallAnswer::Ok);
    // It knows the recall: none of these is news, and none of them takes the layout.
    for answer in [
        RecallAnswer::Ok,
        RecallAnswer::OldStateid,
        RecallAnswer::Delay,
        RecallAnswer::Unreachable,
        RecallAnswer::NoMatching,
        RecallAnswer::OldStateid,
        RecallAnswer::BadStateid,
    ] {
        w.recalls.clear();
        let next = w.file.next_deadline().unwrap();
        assert_eq!(next, w.now.plus_nanos(1_000_000_000), "{answer:?}");
        w.tick_to(next);
        assert_eq!(w.recalls, std::slice::from_ref(&first), "who only reads is not asked again");
        w.answer_of_the_unaware(B, answer);
        assert!(w.fences.is_empty() && !w.file.needs_settle(), "{answer:?}");
    }
    let next = w.file.next_deadline().unwrap();
    w.layout_return(B, ReturnMode::Any).unwrap();
    w.recalls.clear();
    w.tick_to(next);
    assert!(w.recalls.is_empty() && !w.file.needs_settle(), "it is back");
}

/// The return may be on its way when it is said for the first time.
#[test]
fn who_promised_a_return_and_says_twice_that_there_is_no_layout_has_forgotten_it() {
    let mut w = opened();
    w.layout(B, RW).unwrap();
    let waiting = w.wait(&Intent::SetSize { client: A, replace: false, fresh: false });
    w.answer(B, RecallAnswer::Ok);
    w.tick_to(w.file.next_deadline().unwrap());
    w.answer_of_the_unaware(B, RecallAnswer::NoMatching);
    assert!(w.file.has_layouts() && w.fences.is_empty());
    w.tick_to(w.file.next_deadline().unwrap());
    w.answer(B, RecallAnswer::NoMatching);
    assert!(w.fences.len() == 1 && w.file.needs_settle());
    w.fence_done(0);
    assert!(w.woken.contains(&waiting) && !w.file.has_layouts());
}

/// RFC 8881 §2.10.6.3: the client may have had no answer to them, or thrown it away.
#[test]
fn a_recall_names_the_calls_that_moved_the_seqid() {
    let mut w = opened();
    let call = |sequence| Some(Call { session: SessionId::new(B, 1, 0), slot: 2, sequence });
    for sequence in [7, 8, 9] {
        let mut get = w.layout_get(B, RW);
        if let Intent::LayoutGet { call: by, .. } = &mut get {
            *by = call(sequence);
        }
        w.run(&get).unwrap();
    }
    w.recall_layouts(LayoutFilter::All, false);
    let after = |w: &World| {
        let Recall { client, kind, stateid } = &w.recalls[0];
        w.file.recall_under_way(*kind, *client, stateid).unwrap().1
    };
    assert_eq!(after(&w), [call(9), call(8)], "the last few, the latest first");
    w.answer(B, RecallAnswer::Delay);
    w.recalls.clear();
    w.tick_to(w.file.next_deadline().unwrap());
    assert_eq!(after(&w), [call(9), call(8)], "each time");
}
