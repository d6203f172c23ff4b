//! Callbacks: RFC 8881 §20, RFC 7862 §16.

use bytes::Bytes;
use sluice_xdr::nfs4::*;

use crate::{attributes, bytes_of, golden, stateid, text};

fn handle() -> nfs_fh4 {
    nfs_fh4(text("handle"))
}

#[test]
fn layoutrecall_in_its_compound() {
    let sequence = CB_SEQUENCE4args {
        csa_sessionid: sessionid4(*b"0123456789abcdef"),
        csa_sequenceid: 4,
        csa_slotid: 1,
        csa_highest_slotid: 2,
        csa_cachethis: false,
        csa_referring_call_lists: vec![referring_call_list4 {
            rcl_sessionid: sessionid4(*b"fedcba9876543210"),
            rcl_referring_calls: vec![referring_call4 { rc_sequenceid: 0x33, rc_slotid: 7 }],
        }],
    };
    let recall = CB_LAYOUTRECALL4args {
        clora_type: layouttype4::LAYOUT4_FLEX_FILES,
        clora_iomode: layoutiomode4::LAYOUTIOMODE4_ANY,
        clora_changed: true,
        clora_recall: layoutrecall4::LAYOUTRECALL4_FILE(layoutrecall_file4 {
            lor_fh: handle(),
            lor_offset: 0,
            lor_length: u64::MAX,
            lor_stateid: stateid(5, 0xcc),
        }),
    };
    golden(
        &CB_COMPOUND4args {
            tag: Bytes::new(),
            minorversion: 2,
            callback_ident: 0,
            argarray: vec![
                nfs_cb_argop4::OP_CB_SEQUENCE(sequence),
                nfs_cb_argop4::OP_CB_LAYOUTRECALL(recall),
            ],
        },
        "00000000                            // tag
         00000002                            // minorversion
         00000000                            // callback_ident, which 4.0 alone uses
         00000002                            // argarray: two
         0000000b                            // OP_CB_SEQUENCE (11)
         '0123456789abcdef'                  // csa_sessionid
         00000004                            // csa_sequenceid
         00000001                            // csa_slotid
         00000002                            // csa_highest_slotid
         00000000                            // csa_cachethis
         00000001                            // csa_referring_call_lists: one
         'fedcba9876543210'                  // rcl_sessionid
         00000001                            // rcl_referring_calls: one
         00000033                            // rc_sequenceid
         00000007                            // rc_slotid
         00000005                            // OP_CB_LAYOUTRECALL (5)
         00000004                            // clora_type = LAYOUT4_FLEX_FILES
         00000003                            // clora_iomode = LAYOUTIOMODE4_ANY
         00000001                            // clora_changed
         00000001                            // lor_recalltype = LAYOUTRECALL4_FILE
         00000006 'handle' 0000              // lor_fh
         00000000 00000000                   // lor_offset
         ffffffff ffffffff                   // lor_length
         00000005 cccccccc cccccccc cccccccc // lor_stateid",
    );
}

#[test]
fn compound_reply() {
    golden(
        &CB_COMPOUND4res {
            status: nfsstat4::NFS4ERR_NOMATCHING_LAYOUT,
            tag: text("t"),
            resarray: vec![
                nfs_cb_resop4::OP_CB_SEQUENCE(CB_SEQUENCE4res::NFS4_OK(CB_SEQUENCE4resok {
                    csr_sessionid: sessionid4(*b"0123456789abcdef"),
                    csr_sequenceid: 4,
                    csr_slotid: 1,
                    csr_highest_slotid: 2,
                    csr_target_highest_slotid: 3,
                })),
                nfs_cb_resop4::OP_CB_LAYOUTRECALL(CB_LAYOUTRECALL4res {
                    clorr_status: nfsstat4::NFS4ERR_NOMATCHING_LAYOUT,
                }),
            ],
        },
        "0000274c            // status = NFS4ERR_NOMATCHING_LAYOUT (10060)
         00000001 't' 000000 // tag
         00000002            // resarray: two
         0000000b 00000000   // OP_CB_SEQUENCE, csr_status
         '0123456789abcdef'  // csr_sessionid
         00000004            // csr_sequenceid
         00000001            // csr_slotid
         00000002            // csr_highest_slotid
         00000003            // csr_target_highest_slotid
         00000005 0000274c   // OP_CB_LAYOUTRECALL, clorr_status",
    );
}

#[test]
fn bulk_layoutrecall() {
    let recall = |recall| {
        nfs_cb_argop4::OP_CB_LAYOUTRECALL(CB_LAYOUTRECALL4args {
            clora_type: layouttype4::LAYOUT4_FLEX_FILES,
            clora_iomode: layoutiomode4::LAYOUTIOMODE4_RW,
            clora_changed: false,
            clora_recall: recall,
        })
    };
    golden(
        &recall(layoutrecall4::LAYOUTRECALL4_FSID(fsid4 { major: 1, minor: 2 })),
        "00000005 00000004 00000002 00000000
         00000002                            // lor_recalltype = LAYOUTRECALL4_FSID
         00000000 00000001 00000000 00000002 // lor_fsid: major, minor",
    );
    golden(&recall(layoutrecall4::LAYOUTRECALL4_ALL), "00000005 00000004 00000002 00000000 00000003");
}

#[test]
fn delegation_callbacks() {
    golden(
        &nfs_cb_argop4::OP_CB_RECALL(CB_RECALL4args {
            stateid: stateid(1, 0xdd),
            truncate: true,
            fh: handle(),
        }),
        "00000004                            // argop = OP_CB_RECALL (4)
         00000001 dddddddd dddddddd dddddddd // stateid
         00000001                            // truncate
         00000006 'handle' 0000              // fh",
    );
    golden(
        &nfs_cb_argop4::OP_CB_GETATTR(CB_GETATTR4args {
            fh: handle(),
            attr_request: bitmap4::of(&[FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_DELEG_MODIFY]),
        }),
        "00000003                            // argop = OP_CB_GETATTR (3)
         00000006 'handle' 0000              // fh
         00000003 00000018 00000000 00200000 // attr_request: 3, 4, 85",
    );
    let attrs = attributes(&[FATTR4_SIZE], "00000000 00000009");
    golden(
        &nfs_cb_resop4::OP_CB_GETATTR(CB_GETATTR4res::NFS4_OK(CB_GETATTR4resok { obj_attributes: attrs })),
        "00000003 00000000          // resop, status
         00000001 00000010          // attrmask
         00000008 00000000 00000009 // attr_vals",
    );
}

#[test]
fn recall_any_and_slot() {
    golden(
        &nfs_cb_argop4::OP_CB_RECALL_ANY(CB_RECALL_ANY4args {
            craa_objects_to_keep: 100,
            craa_type_mask: bitmap4::of(&[RCA4_TYPE_MASK_WDATA_DLG, RCA4_TYPE_MASK_FF_LAYOUT_MAX]),
        }),
        "00000008          // argop = OP_CB_RECALL_ANY (8)
         00000064          // craa_objects_to_keep
         00000001 00020002 // craa_type_mask: 1, 17",
    );
    golden(
        &nfs_cb_argop4::OP_CB_RECALL_SLOT(CB_RECALL_SLOT4args { rsa_target_highest_slotid: 3 }),
        "0000000a 00000003 // argop = OP_CB_RECALL_SLOT (10), rsa_target_highest_slotid",
    );
}

#[test]
fn notify_deviceid() {
    let deletion = "00000004 'DEVICEDEVICE0001'";
    golden(
        &notify_deviceid_delete4 {
            ndd_layouttype: layouttype4::LAYOUT4_FLEX_FILES,
            ndd_deviceid: deviceid4(*b"DEVICEDEVICE0001"),
        },
        deletion,
    );
    golden(
        &nfs_cb_argop4::OP_CB_NOTIFY_DEVICEID(CB_NOTIFY_DEVICEID4args {
            cnda_changes: vec![notify4 {
                notify_mask: bitmap4::of(&[notify_deviceid_type4::NOTIFY_DEVICEID4_DELETE.0]),
                notify_vals: bytes_of(deletion),
            }],
        }),
        "0000000e           // argop = OP_CB_NOTIFY_DEVICEID (14)
         00000001           // cnda_changes: one
         00000001 00000004  // notify_mask: 2
         00000014           // notify_vals, 20 bytes
         00000004           // ndd_layouttype
         'DEVICEDEVICE0001' // ndd_deviceid",
    );
}

#[test]
fn notify_lock() {
    golden(
        &nfs_cb_argop4::OP_CB_NOTIFY_LOCK(CB_NOTIFY_LOCK4args {
            cnla_fh: handle(),
            cnla_lock_owner: state_owner4 { clientid: 1, owner: text("o") },
        }),
        "0000000d               // argop = OP_CB_NOTIFY_LOCK (13)
         00000006 'handle' 0000 // cnla_fh
         00000000 00000001      // clientid
         00000001 'o' 000000    // owner",
    );
}

#[test]
fn offload() {
    let offload = |info| {
        nfs_cb_argop4::OP_CB_OFFLOAD(CB_OFFLOAD4args {
            coa_fh: handle(),
            coa_stateid: stateid(1, 0xbb),
            coa_offload_info: info,
        })
    };
    let head = "0000000f                            // argop = OP_CB_OFFLOAD (15)
                00000006 'handle' 0000              // coa_fh
                00000001 bbbbbbbb bbbbbbbb bbbbbbbb // coa_stateid";
    golden(
        &offload(offload_info4::NFS4_OK(write_response4 {
            wr_callback_id: vec![],
            wr_count: 0x4000,
            wr_committed: stable_how4::UNSTABLE4,
            wr_writeverf: verifier4(*b"verifier"),
        })),
        &format!(
            "{head}
             00000000          // coa_status
             00000000          // wr_callback_id: none
             00000000 00004000 // wr_count
             00000000          // wr_committed = UNSTABLE4
             'verifier'        // wr_writeverf"
        ),
    );
    golden(
        &offload(offload_info4::Default(nfsstat4::NFS4ERR_NOSPC, 0x1000)),
        &format!(
            "{head}
             0000001c          // coa_status = NFS4ERR_NOSPC (28)
             00000000 00001000 // coa_bytes_copied"
        ),
    );
}
