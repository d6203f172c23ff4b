//! Byte-range locks, stateids and delegations of directories: RFC 8881 §18.10, §18.11, §18.39, §18.48.

use sluice_xdr::nfs4::*;

use crate::{golden, stateid, text};

#[test]
fn lock_with_a_new_owner() {
    golden(
        &nfs_argop4::OP_LOCK(LOCK4args {
            locktype: nfs_lock_type4::WRITEW_LT,
            reclaim: false,
            offset: 8,
            length: u64::MAX,
            locker: locker4::TRUE(open_to_lock_owner4 {
                open_seqid: 0,
                open_stateid: stateid(1, 0xaa),
                lock_seqid: 0,
                lock_owner: state_owner4 { clientid: 2, owner: text("lock id:") },
            }),
        }),
        "0000000c                            // argop = OP_LOCK (12)
         00000004                            // locktype = WRITEW_LT
         00000000                            // reclaim
         00000000 00000008                   // offset
         ffffffff ffffffff                   // length
         00000001                            // new_lock_owner = TRUE
         00000000                            // open_seqid
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // open_stateid
         00000000                            // lock_seqid
         00000000 00000002                   // lock_owner.clientid
         00000008 'lock id:'                 // lock_owner.owner",
    );
}

#[test]
fn lock_with_a_known_owner() {
    golden(
        &nfs_argop4::OP_LOCK(LOCK4args {
            locktype: nfs_lock_type4::READ_LT,
            reclaim: true,
            offset: 0,
            length: 1,
            locker: locker4::FALSE(exist_lock_owner4 { lock_stateid: stateid(2, 0xbb), lock_seqid: 9 }),
        }),
        "0000000c                            // argop
         00000001                            // locktype = READ_LT
         00000001                            // reclaim
         00000000 00000000                   // offset
         00000000 00000001                   // length
         00000000                            // new_lock_owner = FALSE
         00000002 bbbbbbbb bbbbbbbb bbbbbbbb // lock_stateid
         00000009                            // lock_seqid",
    );
}

#[test]
fn lock_replies() {
    golden(
        &nfs_resop4::OP_LOCK(LOCK4res::NFS4_OK(LOCK4resok { lock_stateid: stateid(2, 0xbb) })),
        "0000000c 00000000 00000002 bbbbbbbb bbbbbbbb bbbbbbbb",
    );
    let denied = LOCK4denied {
        offset: 4,
        length: 6,
        locktype: nfs_lock_type4::WRITE_LT,
        owner: state_owner4 { clientid: 3, owner: text("x") },
    };
    let body = "0000271a             // status = NFS4ERR_DENIED (10010)
                00000000 00000004    // offset
                00000000 00000006    // length
                00000002             // locktype = WRITE_LT
                00000000 00000003    // owner.clientid
                00000001 'x' 000000  // owner.owner";
    golden(&nfs_resop4::OP_LOCK(LOCK4res::NFS4ERR_DENIED(denied.clone())), &format!("0000000c {body}"));
    golden(&nfs_resop4::OP_LOCKT(LOCKT4res::NFS4ERR_DENIED(denied)), &format!("0000000d {body}"));
    golden(&nfs_resop4::OP_LOCKT(LOCKT4res::NFS4_OK), "0000000d 00000000");
}

#[test]
fn locku_and_close() {
    golden(
        &nfs_argop4::OP_LOCKU(LOCKU4args {
            locktype: nfs_lock_type4::WRITE_LT,
            seqid: 1,
            lock_stateid: stateid(2, 0xbb),
            offset: 3,
            length: 4,
        }),
        "0000000e                            // argop = OP_LOCKU (14)
         00000002                            // locktype
         00000001                            // seqid
         00000002 bbbbbbbb bbbbbbbb bbbbbbbb // lock_stateid
         00000000 00000003                   // offset
         00000000 00000004                   // length",
    );
    golden(
        &nfs_argop4::OP_CLOSE(CLOSE4args { seqid: 1, open_stateid: stateid(2, 0xaa) }),
        "00000004 00000001 00000002 aaaaaaaa aaaaaaaa aaaaaaaa // argop = OP_CLOSE (4), seqid, open_stateid",
    );
}

#[test]
fn test_stateid() {
    golden(
        &nfs_argop4::OP_TEST_STATEID(TEST_STATEID4args { ts_stateids: vec![stateid(1, 0xaa)] }),
        "00000037                            // argop = OP_TEST_STATEID (55)
         00000001                            // one
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa",
    );
    golden(
        &nfs_resop4::OP_TEST_STATEID(TEST_STATEID4res::NFS4_OK(TEST_STATEID4resok {
            tsr_status_codes: vec![nfsstat4::NFS4_OK, nfsstat4::NFS4ERR_EXPIRED],
        })),
        "00000037 00000000 00000002 00000000 0000271b // resop, status, two codes",
    );
}

#[test]
fn get_dir_delegation() {
    golden(
        &nfs_argop4::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4args {
            gdda_signal_deleg_avail: true,
            gdda_notification_types: bitmap4::of(&[notify_type4::NOTIFY4_ADD_ENTRY.0]),
            gdda_child_attr_delay: nfstime4 { seconds: 1, nseconds: 2 },
            gdda_dir_attr_delay: nfstime4 { seconds: 3, nseconds: 4 },
            gdda_child_attributes: bitmap4::of(&[1]),
            gdda_dir_attributes: bitmap4::of(&[3]),
        }),
        "0000002e                   // argop = OP_GET_DIR_DELEGATION (46)
         00000001                   // gdda_signal_deleg_avail
         00000001 00000008          // gdda_notification_types: 3
         00000000 00000001 00000002 // gdda_child_attr_delay
         00000000 00000003 00000004 // gdda_dir_attr_delay
         00000001 00000002          // gdda_child_attributes
         00000001 00000008          // gdda_dir_attributes",
    );
    let unavailable = GET_DIR_DELEGATION4res_non_fatal::GDD4_UNAVAIL(false);
    golden(
        &nfs_resop4::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4res::NFS4_OK(unavailable)),
        "0000002e 00000000 00000001 00000000 // resop, status, GDD4_UNAVAIL, will signal",
    );
}
