//! Client and session operations: RFC 8881 §18.33 to §18.37, §18.46, §18.51.

use bytes::Bytes;
use sluice_xdr::nfs4::*;

use crate::{golden, text};

fn client_owner() -> client_owner4 {
    client_owner4 {
        co_verifier: verifier4([0x18, 0x5f, 0x03, 0x9c, 0x2a, 0x11, 0x40, 0x07]),
        co_ownerid: text("Linux NFSv4.2 client1"),
    }
}

#[test]
fn exchange_id_as_linux_sends_it() {
    let value = nfs_argop4::OP_EXCHANGE_ID(EXCHANGE_ID4args {
        eia_clientowner: client_owner(),
        eia_flags: EXCHGID4_FLAG_SUPP_MOVED_REFER | EXCHGID4_FLAG_BIND_PRINC_STATEID,
        eia_state_protect: state_protect4_a::SP4_NONE,
        eia_client_impl_id: vec![nfs_impl_id4 {
            nii_domain: text("kernel.org"),
            nii_name: text("Linux 6.12.0 #1 SMP x86_64"),
            nii_date: nfstime4::default(),
        }],
    });
    golden(
        &value,
        "0000002a                                   // argop = OP_EXCHANGE_ID (42)
         185f039c 2a114007                          // co_verifier
         00000015 'Linux NFSv4.2 client1' 000000    // co_ownerid, 21 bytes and 3 of padding
         00000101                                   // eia_flags = SUPP_MOVED_REFER | BIND_PRINC_STATEID
         00000000                                   // spa_how = SP4_NONE
         00000001                                   // eia_client_impl_id: one
         0000000a 'kernel.org' 0000                 // nii_domain
         0000001a 'Linux 6.12.0 #1 SMP x86_64' 0000 // nii_name
         00000000 00000000                          // nii_date.seconds
         00000000                                   // nii_date.nseconds",
    );
}

#[test]
fn exchange_id_with_machine_credentials() {
    let ops = state_protect_ops4 {
        spo_must_enforce: bitmap4::of(&[41, 43]),
        spo_must_allow: bitmap4::of(&[4, 51]),
    };
    golden(
        &EXCHANGE_ID4args {
            eia_clientowner: client_owner(),
            eia_flags: 0,
            eia_state_protect: state_protect4_a::SP4_MACH_CRED(ops),
            eia_client_impl_id: vec![],
        },
        "185f039c 2a114007                       // co_verifier
         00000015 'Linux NFSv4.2 client1' 000000 // co_ownerid
         00000000                                // eia_flags
         00000001                                // spa_how = SP4_MACH_CRED
         00000002 00000000 00000a00              // spo_must_enforce: 41, 43
         00000002 00000010 00080000              // spo_must_allow: 4, 51
         00000000                                // eia_client_impl_id: none",
    );
}

#[test]
fn exchange_id_reply() {
    let value = nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(EXCHANGE_ID4resok {
        eir_clientid: 0x0102_0304_0506_0708,
        eir_sequenceid: 1,
        eir_flags: EXCHGID4_FLAG_USE_PNFS_MDS | EXCHGID4_FLAG_CONFIRMED_R,
        eir_state_protect: state_protect4_r::SP4_NONE,
        eir_server_owner: server_owner4 { so_minor_id: 7, so_major_id: text("mds") },
        eir_server_scope: text("scope"),
        eir_server_impl_id: vec![nfs_impl_id4 {
            nii_domain: text("d"),
            nii_name: text("name"),
            nii_date: nfstime4 { seconds: -1, nseconds: 5 },
        }],
    }));
    golden(
        &value,
        "0000002a                // resop = OP_EXCHANGE_ID
         00000000                // eir_status
         01020304 05060708       // eir_clientid
         00000001                // eir_sequenceid
         80020000                // eir_flags = CONFIRMED_R | USE_PNFS_MDS
         00000000                // spr_how = SP4_NONE
         00000000 00000007       // so_minor_id, before the major one
         00000003 'mds' 00       // so_major_id
         00000005 'scope' 000000 // eir_server_scope
         00000001                // eir_server_impl_id: one
         00000001 'd' 000000     // nii_domain
         00000004 'name'         // nii_name
         ffffffff ffffffff       // nii_date.seconds, signed
         00000005                // nii_date.nseconds",
    );
}

#[test]
fn create_session_as_linux_sends_it() {
    let value = nfs_argop4::OP_CREATE_SESSION(CREATE_SESSION4args {
        csa_clientid: 0x0102_0304_0506_0708,
        csa_sequence: 1,
        csa_flags: CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
        csa_fore_chan_attrs: channel_attrs4 {
            ca_headerpadsize: 0,
            ca_maxrequestsize: 0x0010_0450,
            ca_maxresponsesize: 0x0010_0360,
            ca_maxresponsesize_cached: 0x0000_0800,
            ca_maxoperations: 8,
            ca_maxrequests: 64,
            ca_rdma_ird: vec![],
        },
        csa_back_chan_attrs: channel_attrs4 {
            ca_headerpadsize: 0,
            ca_maxrequestsize: 4096,
            ca_maxresponsesize: 4096,
            ca_maxresponsesize_cached: 0,
            ca_maxoperations: 2,
            ca_maxrequests: 16,
            ca_rdma_ird: vec![3],
        },
        csa_cb_program: 0x4000_0000,
        csa_sec_parms: vec![callback_sec_parms4::AUTH_SYS(authsys_parms {
            stamp: 0,
            machinename: text("client1"),
            uid: 0,
            gid: 0,
            gids: vec![],
        })],
    });
    golden(
        &value,
        "0000002b              // argop = OP_CREATE_SESSION (43)
         01020304 05060708     // csa_clientid
         00000001              // csa_sequence
         00000003              // csa_flags = PERSIST | CONN_BACK_CHAN
         00000000              // fore: ca_headerpadsize
         00100450              // ca_maxrequestsize
         00100360              // ca_maxresponsesize
         00000800              // ca_maxresponsesize_cached
         00000008              // ca_maxoperations
         00000040              // ca_maxrequests
         00000000              // ca_rdma_ird: none
         00000000              // back: ca_headerpadsize
         00001000              // ca_maxrequestsize
         00001000              // ca_maxresponsesize
         00000000              // ca_maxresponsesize_cached
         00000002              // ca_maxoperations
         00000010              // ca_maxrequests
         00000001 00000003     // ca_rdma_ird: one
         40000000              // csa_cb_program
         00000001              // csa_sec_parms: one
         00000001              // cb_secflavor = AUTH_SYS
         00000000              // stamp
         00000007 'client1' 00 // machinename
         00000000              // uid
         00000000              // gid
         00000000              // gids: none",
    );
}

#[test]
fn create_session_reply() {
    let channel = channel_attrs4 { ca_maxoperations: 8, ca_maxrequests: 64, ..Default::default() };
    golden(
        &nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(CREATE_SESSION4resok {
            csr_sessionid: sessionid4(*b"0123456789abcdef"),
            csr_sequence: 1,
            csr_flags: CREATE_SESSION4_FLAG_PERSIST,
            csr_fore_chan_attrs: channel.clone(),
            csr_back_chan_attrs: channel,
        })),
        "0000002b                                              // resop
         00000000                                              // csr_status
         '0123456789abcdef'                                    // csr_sessionid, fixed: no length
         00000001                                              // csr_sequence
         00000001                                              // csr_flags
         00000000 00000000 00000000 00000000 00000008 00000040 // fore: pad, request, response, cached, ops, requests
         00000000                                              // ca_rdma_ird
         00000000 00000000 00000000 00000000 00000008 00000040 // back
         00000000                                              // ca_rdma_ird",
    );
}

#[test]
fn sequence() {
    golden(
        &nfs_argop4::OP_SEQUENCE(SEQUENCE4args {
            sa_sessionid: sessionid4(*b"0123456789abcdef"),
            sa_sequenceid: 0x21,
            sa_slotid: 5,
            sa_highest_slotid: 9,
            sa_cachethis: true,
        }),
        "00000035           // argop = OP_SEQUENCE (53)
         '0123456789abcdef' // sa_sessionid
         00000021           // sa_sequenceid
         00000005           // sa_slotid
         00000009           // sa_highest_slotid
         00000001           // sa_cachethis",
    );
    golden(
        &nfs_resop4::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(SEQUENCE4resok {
            sr_sessionid: sessionid4(*b"0123456789abcdef"),
            sr_sequenceid: 0x21,
            sr_slotid: 5,
            sr_highest_slotid: 9,
            sr_target_highest_slotid: 63,
            sr_status_flags: SEQ4_STATUS_RESTART_RECLAIM_NEEDED | SEQ4_STATUS_CB_PATH_DOWN,
        })),
        "00000035           // resop
         00000000           // sr_status
         '0123456789abcdef' // sr_sessionid
         00000021           // sr_sequenceid
         00000005           // sr_slotid
         00000009           // sr_highest_slotid
         0000003f           // sr_target_highest_slotid
         00000101           // sr_status_flags",
    );
}

#[test]
fn bind_conn_to_session() {
    golden(
        &nfs_argop4::OP_BIND_CONN_TO_SESSION(BIND_CONN_TO_SESSION4args {
            bctsa_sessid: sessionid4(*b"0123456789abcdef"),
            bctsa_dir: channel_dir_from_client4::CDFC4_BACK_OR_BOTH,
            bctsa_use_conn_in_rdma_mode: false,
        }),
        "00000029           // argop = OP_BIND_CONN_TO_SESSION (41)
         '0123456789abcdef' // bctsa_sessid
         00000007           // bctsa_dir = CDFC4_BACK_OR_BOTH
         00000000           // bctsa_use_conn_in_rdma_mode",
    );
}

#[test]
fn backchannel_ctl_with_gss() {
    golden(
        &nfs_argop4::OP_BACKCHANNEL_CTL(BACKCHANNEL_CTL4args {
            bca_cb_program: 0x4000_0001,
            bca_sec_parms: vec![
                callback_sec_parms4::AUTH_NONE,
                callback_sec_parms4::RPCSEC_GSS(gss_cb_handles4 {
                    gcbp_service: rpc_gss_svc_t::RPC_GSS_SVC_INTEGRITY,
                    gcbp_handle_from_server: text("srv"),
                    gcbp_handle_from_client: text("clnt"),
                }),
            ],
        }),
        "00000028          // argop = OP_BACKCHANNEL_CTL (40)
         40000001          // bca_cb_program
         00000002          // bca_sec_parms: two
         00000000          // AUTH_NONE
         00000006          // RPCSEC_GSS
         00000002          // gcbp_service = integrity
         00000003 'srv' 00 // gcbp_handle_from_server
         00000004 'clnt'   // gcbp_handle_from_client",
    );
}

/// The first compound on a new session (RFC 8881 §16.2, §18.51).
#[test]
fn compound() {
    let args = COMPOUND4args {
        tag: text("m"),
        minorversion: 2,
        argarray: vec![
            nfs_argop4::OP_SEQUENCE(SEQUENCE4args::default()),
            nfs_argop4::OP_PUTROOTFH,
            nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: true }),
        ],
    };
    golden(
        &args,
        "00000001 'm' 000000                 // tag
         00000002                            // minorversion
         00000003                            // argarray: three
         00000035                            // OP_SEQUENCE
         00000000 00000000 00000000 00000000 // sa_sessionid
         00000000 00000000 00000000 00000000 // sequence, slot, highest slot, cachethis
         00000018                            // OP_PUTROOTFH (24): no arguments
         0000003a                            // OP_RECLAIM_COMPLETE (58)
         00000001                            // rca_one_fs",
    );
    let res = COMPOUND4res {
        status: nfsstat4::NFS4ERR_COMPLETE_ALREADY,
        tag: Bytes::new(),
        resarray: vec![
            nfs_resop4::OP_PUTROOTFH(PUTROOTFH4res { status: nfsstat4::NFS4_OK }),
            nfs_resop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4res {
                rcr_status: nfsstat4::NFS4ERR_COMPLETE_ALREADY,
            }),
        ],
    };
    golden(
        &res,
        "00002746          // status = NFS4ERR_COMPLETE_ALREADY (10054)
         00000000          // tag
         00000002          // resarray: two
         00000018 00000000 // OP_PUTROOTFH, NFS4_OK
         0000003a 00002746 // OP_RECLAIM_COMPLETE, its status",
    );
}
