use proptest::prelude::*;

use super::*;

fn bytes(n: usize) -> Bytes {
    Bytes::from(vec![7; n])
}

fn in_state(state: State, seqid: u32, cached: Cached) -> SlotTable {
    let mut t = SlotTable::new(1, 1);
    t.busy = u32::from(state == State::Busy);
    t.slots[0] = Slot { seqid, state, fingerprint: 1, began: Time::ZERO, cached };
    t
}

/// The diagram at the head of the module: (state, last) x (seqid, fingerprint) to answer.
#[test]
fn transition_table() {
    let (new, misordered) = (Ok(Begin::New), Err(Error::SeqMisordered));
    let (wrap, none) = (u32::MAX, Cached::Uncached);
    let reply = Cached::Reply(bytes(3));
    let table = [
        (State::Fresh, 0, none.clone(), 1, 1, new.clone()),
        (State::Fresh, 0, none.clone(), 0, 1, misordered.clone()),
        (State::Fresh, 0, none.clone(), 2, 1, misordered.clone()),
        (State::Busy, 5, none.clone(), 5, 1, Err(Error::Delay)),
        (State::Busy, 5, none.clone(), 6, 1, misordered.clone()),
        (State::Busy, 5, none.clone(), 4, 1, misordered.clone()),
        (State::Done, 5, reply.clone(), 5, 1, Ok(Begin::Replay(bytes(3)))),
        (State::Done, 5, none.clone(), 5, 1, Ok(Begin::ReplayUncached)),
        (State::Done, 5, reply.clone(), 5, 2, Err(Error::SeqFalseRetry)),
        (State::Done, 5, none.clone(), 5, 2, Err(Error::SeqFalseRetry)),
        (State::Done, 5, reply.clone(), 6, 2, new.clone()),
        (State::Done, 5, reply.clone(), 7, 1, misordered.clone()),
        (State::Done, 5, reply, 4, 1, misordered.clone()),
        (State::Done, wrap, none.clone(), 0, 1, new.clone()),
        (State::Done, wrap, none.clone(), 1, 1, misordered.clone()),
        (State::Restored, 5, none.clone(), 5, 1, Ok(Begin::Resume)),
        (State::Restored, 5, none.clone(), 5, 9, Err(Error::SeqFalseRetry)),
        (State::Restored, 5, none.clone(), 6, 9, new.clone()),
        (State::Restored, 5, none.clone(), 900, 9, new.clone()),
        (State::Restored, 5, none.clone(), 4, 1, misordered.clone()),
        (State::Restored, wrap, none.clone(), 3, 9, new.clone()),
        (State::Restored, 3, none.clone(), wrap, 1, misordered.clone()),
        (State::Blank, 0, none.clone(), 77, 9, new.clone()),
        (State::Blank, 0, none.clone(), 0, 9, new.clone()),
        (State::Reused, 5, none.clone(), 6, 9, new.clone()),
        (State::Reused, 5, none.clone(), 1, 9, new),
        (State::Reused, 5, none.clone(), 5, 9, misordered.clone()),
        (State::Reused, 5, none, 7, 9, misordered),
    ];
    for (i, (state, last, cached, seqid, fingerprint, answer)) in table.into_iter().enumerate() {
        let t = in_state(state, last, cached);
        assert_eq!(t.check(0, seqid, 0, fingerprint), answer, "row {i}: {state:?} {last} <- {seqid}");
    }
}

/// pynfs SEQ8.
#[test]
fn slots_beyond_the_table() {
    let t = SlotTable::new(4, 4);
    assert_eq!(t.check(4, 1, 3, 0), Err(Error::BadSlot));
    assert_eq!(t.check(0, 1, 4, 0), Err(Error::BadHighSlot));
    assert_eq!(t.check(3, 1, 3, 0), Ok(Begin::New));
}

fn run(t: &mut SlotTable, slot: u32, seqid: u32, reply: Option<Bytes>, keep: bool) {
    let high = t.target();
    assert_eq!(t.check(slot, seqid, high, 1), Ok(Begin::New), "slot {slot} seqid {seqid}");
    t.start(Time::ZERO, slot, seqid, high, 1);
    t.complete(slot, reply, keep);
}

#[test]
fn replies_are_kept_when_asked_for_or_small() {
    let mut t = SlotTable::new(1, 1);
    run(&mut t, 0, 1, Some(bytes(SMALL_REPLY + 1)), false);
    assert_eq!((t.check(0, 1, 0, 1), t.cached_bytes()), (Ok(Begin::ReplayUncached), 0));
    run(&mut t, 0, 2, Some(bytes(SMALL_REPLY)), false);
    assert_eq!(t.check(0, 2, 0, 1), Ok(Begin::Replay(bytes(SMALL_REPLY))));
    run(&mut t, 0, 3, Some(bytes(5000)), true);
    assert_eq!((t.check(0, 3, 0, 1), t.cached_bytes()), (Ok(Begin::Replay(bytes(5000))), 5000));
    t.start(Time::ZERO, 0, 4, 0, 1);
    assert_eq!(t.cached_bytes(), 0, "the next request frees the reply of the one before");
    t.complete(0, Some(bytes(5000)), false);
    assert_eq!(t.check(0, 4, 0, 1), Ok(Begin::ReplayUncached));
}

/// A request that a restart interrupted is resumed, once at a time.
#[test]
fn a_restored_slot_is_resumed_by_one_retry_at_a_time() {
    let mut t = SlotTable::restore(2, 2);
    t.restore_slot(1, Slot::restore(9, 1));
    for _ in 0..2 {
        assert_eq!(t.check(1, 9, 1, 1), Ok(Begin::Resume));
        t.start(Time::ZERO, 1, 9, 1, 1);
        assert_eq!(t.check(1, 9, 1, 1), Err(Error::Delay));
        t.put_back(1);
        assert_eq!(t.busy(), 0);
    }
    t.start(Time::ZERO, 1, 9, 1, 1);
    t.complete(1, Some(bytes(3)), true);
    t.put_back(1);
    assert_eq!(t.check(1, 9, 1, 1), Ok(Begin::Replay(bytes(3))), "not busy: nothing to put back");
}

#[test]
fn completing_twice_changes_nothing() {
    let mut t = SlotTable::new(2, 2);
    run(&mut t, 0, 1, Some(bytes(1)), true);
    t.complete(0, None, false);
    t.complete(1, None, false);
    t.complete(9, None, false);
    assert_eq!((t.busy(), t.check(0, 1, 0, 1)), (0, Ok(Begin::Replay(bytes(1)))));
}

#[test]
fn shrink_waits_for_the_client_and_for_busy_slots() {
    let mut t = SlotTable::new(4, 8);
    t.start(Time::ZERO, 3, 1, 3, 1);
    t.set_target(2);
    assert_eq!((t.highest(), t.target()), (3, 1));
    t.start(Time::ZERO, 0, 1, 3, 1);
    assert_eq!(t.highest(), 3, "the client still uses slot 3");
    t.start(Time::ZERO, 1, 1, 1, 1);
    assert_eq!(t.highest(), 3, "slot 3 is busy");
    t.complete(3, Some(bytes(10)), true);
    t.complete(0, None, false);
    t.start(Time::ZERO, 0, 2, 1, 1);
    assert_eq!((t.highest(), t.cached_bytes()), (1, 0), "retired slots keep no reply");
    assert_eq!(t.check(2, 1, 1, 1), Err(Error::BadSlot));
}

#[test]
fn a_slot_given_back_takes_either_seqid() {
    let mut t = SlotTable::new(2, 8);
    run(&mut t, 1, 1, None, false);
    run(&mut t, 1, 2, None, false);
    t.set_target(1);
    run(&mut t, 0, 1, None, false);
    assert_eq!(t.highest(), 0);
    t.set_target(6);
    assert_eq!((t.highest(), t.target()), (5, 5));
    assert_eq!(t.check(1, 3, 5, 1), Ok(Begin::New), "a client that remembers");
    assert_eq!(t.check(1, 1, 5, 1), Ok(Begin::New), "a client that forgot");
    assert_eq!(t.check(1, 2, 5, 1), Err(Error::SeqMisordered));
    assert_eq!(t.check(5, 1, 5, 1), Ok(Begin::New));
    t.set_target(1000);
    assert_eq!(t.highest(), 7, "bounded");
    t.set_target(0);
    assert_eq!(t.target(), 0, "at least one slot");
}

/// A reference client: slots with what it sent last.
#[derive(Clone, Debug)]
enum Step {
    New(u32),
    Retry(u32),
    FalseRetry(u32),
    Complete(u32, usize, bool),
    Target(u32),
    Junk(u32, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let slot = 0u32..6;
    prop_oneof![
        4 => slot.clone().prop_map(Step::New),
        2 => slot.clone().prop_map(Step::Retry),
        1 => slot.clone().prop_map(Step::FalseRetry),
        4 => (slot.clone(), 0usize..600, any::<bool>()).prop_map(|(s, n, k)| Step::Complete(s, n, k)),
        1 => (1u32..7).prop_map(Step::Target),
        1 => (slot, any::<u32>()).prop_map(|(s, q)| Step::Junk(s, q)),
    ]
}

proptest! {
    /// One execution per seqid, whatever the client sends; the reply of a retry is that of the original.
    #[test]
    fn exactly_once(steps in proptest::collection::vec(step(), 1..120)) {
        let mut t = SlotTable::new(4, 6);
        // Per slot: seqid, busy, reply kept.
        let mut model = vec![(0u32, false, None::<Bytes>); 6];
        for step in steps {
            match step {
                Step::New(s) => {
                    let m = &mut model[s as usize];
                    let seqid = m.0.wrapping_add(1);
                    match t.check(s, seqid, s, 1) {
                        Ok(begin) => {
                            prop_assert_eq!(begin, Begin::New);
                            prop_assert!(!m.1);
                            t.start(Time::ZERO, s, seqid, s, 1);
                            *m = (seqid, true, None);
                        }
                        Err(e) => prop_assert!(m.1 || s > t.highest(), "{e:?}"),
                    }
                }
                Step::Retry(s) => {
                    let m = &model[s as usize];
                    let got = t.check(s, m.0, 0, 1);
                    match (m.1, &m.2) {
                        _ if s > t.highest() => prop_assert_eq!(got, Err(Error::BadSlot)),
                        (true, _) => prop_assert_eq!(got, Err(Error::Delay)),
                        (false, _) if m.0 == 0 => prop_assert_eq!(got, Err(Error::SeqMisordered)),
                        // A retired slot has forgotten its reply, but never runs the request again
                        // unless its seqid is a first one.
                        (false, Some(b)) => prop_assert!(
                            got == Ok(Begin::Replay(b.clone())) || m.0 == 1
                                || got == Ok(Begin::ReplayUncached) || got == Err(Error::SeqMisordered),
                            "{got:?}"),
                        (false, None) => prop_assert!(got != Ok(Begin::New) || m.0 == 1, "{got:?}"),
                    }
                }
                Step::FalseRetry(s) => {
                    let got = t.check(s, model[s as usize].0, 0, 2);
                    prop_assert!(!matches!(got, Ok(Begin::Replay(_))), "{got:?}");
                }
                Step::Complete(s, n, keep) => {
                    t.complete(s, Some(bytes(n)), keep);
                    let m = &mut model[s as usize];
                    if m.1 {
                        m.1 = false;
                        m.2 = (keep || n <= SMALL_REPLY).then(|| bytes(n));
                    }
                }
                Step::Target(n) => t.set_target(n),
                Step::Junk(s, seqid) => {
                    let (last, ..) = model[s as usize];
                    let got = t.check(s, seqid, 0, 1);
                    if seqid != last && seqid != last.wrapping_add(1) && seqid != 1 {
                        prop_assert!(got.is_err());
                    }
                }
            }
            let cached: usize = t.slots.iter().map(|s| match &s.cached {
                Cached::Reply(b) => b.len(),
                _ => 0,
            }).sum();
            prop_assert_eq!(cached, t.cached_bytes());
            let busy = t.slots.iter().filter(|s| s.is_busy()).count();
            prop_assert_eq!(busy, t.busy() as usize);
            prop_assert!(t.slots.iter().skip(t.highest as usize + 1).all(|s| !s.is_busy()));
            prop_assert!(t.slots.len() <= 6);
        }
    }
}
