//! TEST_STATEID and FREE_STATEID.

use sluice_xdr::nfs4::*;

use crate::harness::*;

#[test]
fn each_stateid_gets_its_verdict() {
    simulate(1, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, stateid) = a.open("f", BOTH, 0).await;
        let (_, theirs) = b.open("f", BOTH, 0).await;
        let newer = stateid4 { seqid: stateid.seqid + 5, ..stateid };
        let unknown = stateid4 { seqid: 1, other: [0x55; 12] };
        let current_seqid = stateid4 { seqid: 0, ..stateid };
        assert_eq!(
            a.tested(&[stateid, current_seqid, theirs, newer, ANONYMOUS, CURRENT]).await,
            [
                nfsstat4::NFS4_OK,
                nfsstat4::NFS4_OK,
                nfsstat4::NFS4ERR_BAD_STATEID,
                nfsstat4::NFS4ERR_BAD_STATEID,
                nfsstat4::NFS4ERR_BAD_STATEID,
                nfsstat4::NFS4ERR_BAD_STATEID,
            ]
        );
        let verdict = a.tested(&[unknown]).await;
        assert!(matches!(verdict[..], [nfsstat4::NFS4ERR_BAD_STATEID | nfsstat4::NFS4ERR_STALE_STATEID]));
        assert_eq!(a.tested(&[]).await, []);
        // Another OPEN by the same owner moves the seqid on.
        let again = a.ok(vec![putfh(&fh), open_fh(b"owner", BOTH, 0), getfh()]).await;
        let (_, newest) = opened(&again);
        assert_eq!((newest.other, newest.seqid), (stateid.other, stateid.seqid + 1));
        assert_eq!(a.tested(&[stateid, newest]).await, [nfsstat4::NFS4ERR_OLD_STATEID, nfsstat4::NFS4_OK]);
    });
}

#[test]
fn a_lock_stateid_is_freed_once_it_holds_no_lock() {
    simulate(2, async |world: World| {
        let a = world.client("a").await;
        let (fh, open) = a.open("f", BOTH, 0).await;
        let nfs_resop4::OP_LOCK(LOCK4res::NFS4_OK(locked)) =
            a.last(vec![putfh(&fh), lock_new(nfs_lock_type4::WRITE_LT, open, b"l", (0, 10))]).await
        else {
            panic!()
        };
        let held = a.status(vec![free_stateid(locked.lock_stateid)]).await;
        assert_eq!(held, nfsstat4::NFS4ERR_LOCKS_HELD);
        assert_eq!(a.status(vec![free_stateid(open)]).await, nfsstat4::NFS4ERR_LOCKS_HELD);
        let nfs_resop4::OP_LOCKU(LOCKU4res::NFS4_OK(unlocked)) =
            a.last(vec![putfh(&fh), locku(nfs_lock_type4::WRITE_LT, locked.lock_stateid, (0, 10))]).await
        else {
            panic!()
        };
        a.ok(vec![free_stateid(unlocked)]).await;
        assert_eq!(a.status(vec![free_stateid(unlocked)]).await, nfsstat4::NFS4ERR_BAD_STATEID);
    });
}

#[test]
fn closed_stateids_are_bad() {
    simulate(3, async |world: World| {
        let a = world.client("a").await;
        let (fh, open) = a.open("f", BOTH, 0).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        assert_eq!(a.tested(&[open]).await, [nfsstat4::NFS4ERR_BAD_STATEID]);
        assert_eq!(a.status(vec![free_stateid(open)]).await, nfsstat4::NFS4ERR_BAD_STATEID);
    });
}
