//! Allocation, seqids, special stateids, the index.

use sluice_state::effect::{Effect, RevokeReason};
use sluice_state::file::{Error, FileId};
use sluice_state::stateid::{
    MAX_REVOKED_PER_CLIENT, Special, StateIds, StateIndex, check_seqid, next_seqid, seqid_before, special,
};
use sluice_state::{BootEpoch, StateId, StateKind};

use super::world::{A, B};

#[test]
fn seqids_wrap_around_zero() {
    assert_eq!(next_seqid(1), 2);
    assert_eq!(next_seqid(u32::MAX), 1, "0 means the most recent and is never issued");
    assert!(seqid_before(u32::MAX, 1));
    assert!(!seqid_before(1, u32::MAX));
    assert!(!seqid_before(4, 4));
    assert_eq!(check_seqid(0, 9), Ok(()));
    assert_eq!(check_seqid(9, 9), Ok(()));
    assert_eq!(check_seqid(8, 9), Err(Error::OldStateid));
    assert_eq!(check_seqid(10, 9), Err(Error::BadStateid));
    assert_eq!(check_seqid(u32::MAX, 1), Err(Error::OldStateid));
}

#[test]
fn the_special_ones() {
    let of = |seqid, byte| special(&StateId { seqid, other: [byte; 12] });
    assert_eq!(of(0, 0), Ok(Some(Special::Anonymous)));
    assert_eq!(of(1, 0), Ok(Some(Special::Current)));
    assert_eq!(of(u32::MAX, 0), Ok(Some(Special::Invalid)));
    assert_eq!(of(u32::MAX, 0xff), Ok(Some(Special::ReadBypass)));
    assert_eq!(of(2, 0), Err(Error::BadStateid));
    assert_eq!(of(0, 0xff), Err(Error::BadStateid));
    assert_eq!(of(0, 1), Ok(None));
}

fn register(index: &mut StateIndex, stateid: StateId) {
    let kind = stateid.kind().unwrap();
    index.apply(FileId(9), &Effect::Register { stateid, kind, client: A });
}

#[test]
fn the_index_tells_stale_from_bad() {
    let (epoch, ids) = (BootEpoch(5), StateIds::new(BootEpoch(5)));
    let mut index = StateIndex::new();
    let stateid = ids.next(StateKind::Open);
    assert_eq!(index.locate(epoch, A, &stateid), Err(Error::BadStateid));
    register(&mut index, stateid);
    assert_eq!(index.locate(epoch, A, &stateid).map(|at| at.file), Ok(FileId(9)));
    assert_eq!(index.locate(epoch, B, &stateid), Err(Error::BadStateid));
    let before = StateId::new(BootEpoch(4), StateKind::Open, 1, 1);
    assert_eq!(index.locate(epoch, A, &before), Err(Error::StaleStateid));
    let never = StateId { seqid: 1, other: [0x77; 12] };
    assert_eq!(index.locate(epoch, A, &never), Err(Error::BadStateid));
    assert_eq!(index.files_of(A), [FileId(9)]);
    index.apply(FileId(9), &Effect::Release { stateid, kind: StateKind::Open, client: A });
    assert_eq!(index.locate(epoch, A, &stateid), Err(Error::BadStateid));
    assert!(index.files_of(A).is_empty());
}

#[test]
fn revoked_stateids_are_remembered_within_bounds() {
    let (epoch, ids) = (BootEpoch(5), StateIds::new(BootEpoch(5)));
    let mut index = StateIndex::new();
    let all: Vec<StateId> = (0..=MAX_REVOKED_PER_CLIENT).map(|_| ids.next(StateKind::Layout)).collect();
    for stateid in &all {
        register(&mut index, *stateid);
        let (kind, reason) = (StateKind::Layout, RevokeReason::NotReturned);
        index.apply(FileId(9), &Effect::Revoked { stateid: *stateid, kind, client: A, reason });
    }
    assert_eq!(index.usage(A).layouts, 0);
    assert_eq!(index.locate(epoch, A, &all[0]), Err(Error::BadStateid), "the oldest is forgotten");
    assert_eq!(index.locate(epoch, A, &all[1]), Err(Error::DelegRevoked));
    assert!(!index.free_revoked(B, &all[1]));
    index.forget_client(A);
    assert_eq!(index.locate(epoch, A, &all[1]), Err(Error::BadStateid));
    assert!(!index.has_revoked(A));
}

/// Whoever is told of thousands of revoked layouts asks with each of them.
#[test]
fn what_kinds_are_revoked_is_known_however_they_end() {
    let (epoch, ids) = (BootEpoch(5), StateIds::new(BootEpoch(5)));
    let mut index = StateIndex::new();
    let revoke = |index: &mut StateIndex, kind| {
        let (stateid, reason) = (ids.next(kind), RevokeReason::NotReturned);
        register(index, stateid);
        let revoked = Effect::Revoked { stateid, kind, client: A, reason };
        index.apply(FileId(9), &revoked);
        // Told twice of one.
        index.apply(FileId(9), &revoked);
        index.check_invariants().unwrap();
        stateid
    };
    let layout = revoke(&mut index, StateKind::Layout);
    assert!(!index.has_revoked_delegation(A));
    let (first, second) =
        (revoke(&mut index, StateKind::Delegation), revoke(&mut index, StateKind::Delegation));
    assert!(index.has_revoked_delegation(A) && !index.has_revoked_delegation(B));
    assert!(index.free_revoked(A, &first) && index.has_revoked_delegation(A));
    assert!(!index.free_revoked(A, &first), "once");
    index.apply(FileId(9), &Effect::Release { stateid: second, kind: StateKind::Delegation, client: A });
    index.check_invariants().unwrap();
    assert!(!index.has_revoked_delegation(A) && index.has_revoked(A));
    assert!(index.free_revoked(A, &layout) && !index.has_revoked(A));
    // The oldest is forgotten.
    let oldest = revoke(&mut index, StateKind::Delegation);
    for _ in 0..MAX_REVOKED_PER_CLIENT {
        assert!(index.has_revoked_delegation(A));
        revoke(&mut index, StateKind::Layout);
    }
    assert_eq!(index.locate(epoch, A, &oldest), Err(Error::BadStateid));
    assert!(!index.has_revoked_delegation(A));
    revoke(&mut index, StateKind::Delegation);
    index.forget_client(A);
    index.check_invariants().unwrap();
    assert!(!index.has_revoked_delegation(A));
}
