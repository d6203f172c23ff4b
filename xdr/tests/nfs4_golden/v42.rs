//! NFSv4.2 and extended attributes: RFC 7862 §15, RFC 8276 §8.4, RFC 9754.

use sluice_xdr::nfs4::*;

use crate::{golden, stateid, text};

fn written() -> write_response4 {
    write_response4 {
        wr_callback_id: vec![stateid(1, 0xbb)],
        wr_count: 0x4000,
        wr_committed: stable_how4::FILE_SYNC4,
        wr_writeverf: verifier4(*b"verifier"),
    }
}

#[test]
fn copy() {
    golden(
        &nfs_argop4::OP_COPY(COPY4args {
            ca_src_stateid: stateid(1, 0xaa),
            ca_dst_stateid: stateid(2, 0xbb),
            ca_src_offset: 1,
            ca_dst_offset: 2,
            ca_count: 3,
            ca_consecutive: true,
            ca_synchronous: false,
            ca_source_server: vec![
                netloc4::NL4_NETADDR(netaddr4 { na_r_netid: text("tcp"), na_r_addr: text("10.0.0.1.8.1") }),
                netloc4::NL4_NAME(text("host")),
            ],
        }),
        "0000003c                            // argop = OP_COPY (60)
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // ca_src_stateid
         00000002 bbbbbbbb bbbbbbbb bbbbbbbb // ca_dst_stateid
         00000000 00000001                   // ca_src_offset
         00000000 00000002                   // ca_dst_offset
         00000000 00000003                   // ca_count
         00000001                            // ca_consecutive
         00000000                            // ca_synchronous
         00000002                            // ca_source_server: two
         00000003                            // nl_type = NL4_NETADDR
         00000003 'tcp' 00                   // na_r_netid
         0000000c '10.0.0.1.8.1'             // na_r_addr
         00000001                            // nl_type = NL4_NAME
         00000004 'host'                     // nl_name",
    );
    golden(
        &nfs_resop4::OP_COPY(COPY4res::NFS4_OK(COPY4resok {
            cr_response: written(),
            cr_requirements: copy_requirements4 { cr_consecutive: true, cr_synchronous: false },
        })),
        "0000003c 00000000                            // resop, cr_status
         00000001 00000001 bbbbbbbb bbbbbbbb bbbbbbbb // wr_callback_id: one
         00000000 00004000                            // wr_count
         00000002                                     // wr_committed = FILE_SYNC4
         'verifier'                                   // wr_writeverf
         00000001                                     // cr_consecutive
         00000000                                     // cr_synchronous",
    );
    let wanted = copy_requirements4 { cr_consecutive: false, cr_synchronous: true };
    golden(
        &nfs_resop4::OP_COPY(COPY4res::NFS4ERR_OFFLOAD_NO_REQS(wanted)),
        "0000003c 0000276e 00000000 00000001 // resop, NFS4ERR_OFFLOAD_NO_REQS (10094), requirements",
    );
}

#[test]
fn offload_status_and_copy_notify() {
    let reply = |osr_complete| {
        nfs_resop4::OP_OFFLOAD_STATUS(OFFLOAD_STATUS4res::NFS4_OK(OFFLOAD_STATUS4resok {
            osr_count: 0x77,
            osr_complete,
        }))
    };
    golden(
        &reply(vec![nfsstat4::NFS4_OK]),
        "00000043 00000000 // resop = OP_OFFLOAD_STATUS (67), osr_status
         00000000 00000077 // osr_count
         00000001 00000000 // osr_complete: with NFS4_OK",
    );
    golden(&reply(vec![]), "00000043 00000000 00000000 00000077 00000000");
    golden(
        &nfs_resop4::OP_COPY_NOTIFY(COPY_NOTIFY4res::NFS4_OK(COPY_NOTIFY4resok {
            cnr_lease_time: nfstime4 { seconds: 90, nseconds: 1 },
            cnr_stateid: stateid(1, 0xaa),
            cnr_source_server: vec![netloc4::NL4_URL(text("nfs:"))],
        })),
        "0000003d 00000000                   // resop = OP_COPY_NOTIFY (61), cnr_status
         00000000 0000005a 00000001          // cnr_lease_time
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // cnr_stateid
         00000001                            // cnr_source_server: one
         00000002 00000004 'nfs:'            // NL4_URL",
    );
}

#[test]
fn clone_allocate_and_deallocate() {
    golden(
        &nfs_argop4::OP_CLONE(CLONE4args {
            cl_src_stateid: stateid(1, 0xaa),
            cl_dst_stateid: stateid(2, 0xbb),
            cl_src_offset: 1,
            cl_dst_offset: 2,
            cl_count: 3,
        }),
        "00000047                            // argop = OP_CLONE (71)
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // cl_src_stateid
         00000002 bbbbbbbb bbbbbbbb bbbbbbbb // cl_dst_stateid
         00000000 00000001                   // cl_src_offset
         00000000 00000002                   // cl_dst_offset
         00000000 00000003                   // cl_count",
    );
    let body = "00000001 aaaaaaaa aaaaaaaa aaaaaaaa // stateid
                00000000 00000001                   // offset
                00000000 00000002                   // length";
    let (stateid, offset, length) = (stateid(1, 0xaa), 1, 2);
    golden(
        &nfs_argop4::OP_ALLOCATE(ALLOCATE4args { aa_stateid: stateid, aa_offset: offset, aa_length: length }),
        &format!("0000003b {body}"),
    );
    golden(
        &nfs_argop4::OP_DEALLOCATE(DEALLOCATE4args {
            da_stateid: stateid,
            da_offset: offset,
            da_length: length,
        }),
        &format!("0000003e {body}"),
    );
}

#[test]
fn seek() {
    golden(
        &nfs_argop4::OP_SEEK(SEEK4args {
            sa_stateid: stateid(1, 0xaa),
            sa_offset: 9,
            sa_what: data_content4::NFS4_CONTENT_HOLE,
        }),
        "00000045                            // argop = OP_SEEK (69)
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // sa_stateid
         00000000 00000009                   // sa_offset
         00000001                            // sa_what = NFS4_CONTENT_HOLE",
    );
    golden(
        &nfs_resop4::OP_SEEK(SEEK4res::NFS4_OK(seek_res4 { sr_eof: false, sr_offset: 0x1000 })),
        "00000045 00000000 00000000 00000000 00001000 // resop, sa_status, sr_eof, sr_offset",
    );
}

#[test]
fn read_plus() {
    golden(
        &nfs_argop4::OP_READ_PLUS(READ_PLUS4args {
            rpa_stateid: stateid(1, 0xaa),
            rpa_offset: 1,
            rpa_count: 2,
        }),
        "00000044                            // argop = OP_READ_PLUS (68)
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // rpa_stateid
         00000000 00000001                   // rpa_offset
         00000002                            // rpa_count, 32 bits",
    );
    golden(
        &nfs_resop4::OP_READ_PLUS(READ_PLUS4res::NFS4_OK(read_plus_res4 {
            rpr_eof: true,
            rpr_contents: vec![
                read_plus_content::NFS4_CONTENT_HOLE(data_info4 { di_offset: 0, di_length: 0x1000 }),
                read_plus_content::NFS4_CONTENT_DATA(data4 { d_offset: 0x1000, d_data: text("tail") }),
            ],
        })),
        "00000044 00000000                            // resop, rp_status
         00000001                                     // rpr_eof
         00000002                                     // rpr_contents: two
         00000001 00000000 00000000 00000000 00001000 // a hole: offset, length
         00000000 00000000 00001000 00000004 'tail'   // data: offset, bytes",
    );
}

#[test]
fn write_same() {
    golden(
        &nfs_argop4::OP_WRITE_SAME(WRITE_SAME4args {
            wsa_stateid: stateid(1, 0xaa),
            wsa_stable: stable_how4::DATA_SYNC4,
            wsa_adb: app_data_block4 {
                adb_offset: 1,
                adb_block_size: 2,
                adb_block_count: 3,
                adb_reloff_blocknum: 4,
                adb_block_num: 5,
                adb_reloff_pattern: 6,
                adb_pattern: text("pat"),
            },
        }),
        "00000046                            // argop = OP_WRITE_SAME (70)
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // wsa_stateid
         00000001                            // wsa_stable = DATA_SYNC4
         00000000 00000001                   // adb_offset
         00000000 00000002                   // adb_block_size
         00000000 00000003                   // adb_block_count
         00000000 00000004                   // adb_reloff_blocknum
         00000005                            // adb_block_num, 32 bits
         00000000 00000006                   // adb_reloff_pattern
         00000003 'pat' 00                   // adb_pattern",
    );
}

#[test]
fn io_advise() {
    golden(
        &nfs_argop4::OP_IO_ADVISE(IO_ADVISE4args {
            iaa_stateid: stateid(1, 0xaa),
            iaa_offset: 1,
            iaa_count: 2,
            iaa_hints: bitmap4::of(&[IO_ADVISE_type4::IO_ADVISE4_RANDOM.0]),
        }),
        "0000003f                            // argop = OP_IO_ADVISE (63)
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // iaa_stateid
         00000000 00000001                   // iaa_offset
         00000000 00000002                   // iaa_count, 64 bits
         00000001 00000008                   // iaa_hints: 3",
    );
}

#[test]
fn extended_attributes() {
    golden(
        &nfs_argop4::OP_SETXATTR(SETXATTR4args {
            sxa_option: setxattr_option4::SETXATTR4_REPLACE,
            sxa_key: text("sluice.layout"),
            sxa_value: text("wide"),
        }),
        "00000049                        // argop = OP_SETXATTR (73)
         00000002                        // sxa_option = SETXATTR4_REPLACE
         0000000d 'sluice.layout' 000000 // sxa_key
         00000004 'wide'                 // sxa_value",
    );
    golden(
        &nfs_resop4::OP_SETXATTR(SETXATTR4res::NFS4_OK(change_info4 { atomic: true, before: 1, after: 2 })),
        "00000049 00000000 00000001 00000000 00000001 00000000 00000002 // resop, sxr_status, sxr_info",
    );
    golden(
        &nfs_argop4::OP_GETXATTR(GETXATTR4args { gxa_name: text("a") }),
        "00000048 00000001 'a' 000000 // argop = OP_GETXATTR (72), gxa_name",
    );
    golden(
        &nfs_resop4::OP_GETXATTR(GETXATTR4res::NFS4_OK(text("wide"))),
        "00000048 00000000 00000004 'wide' // resop, gxr_status, gxr_value",
    );
    golden(
        &nfs_argop4::OP_LISTXATTRS(LISTXATTRS4args { lxa_cookie: 1, lxa_maxcount: 2 }),
        "0000004a 00000000 00000001 00000002 // argop = OP_LISTXATTRS (74), lxa_cookie, lxa_maxcount",
    );
    golden(
        &nfs_resop4::OP_LISTXATTRS(LISTXATTRS4res::NFS4_OK(LISTXATTRS4resok {
            lxr_cookie: 3,
            lxr_names: vec![text("a"), text("bc")],
            lxr_eof: true,
        })),
        "0000004a 00000000   // resop, lxr_status
         00000000 00000003   // lxr_cookie
         00000002            // lxr_names: two
         00000001 'a' 000000
         00000002 'bc' 0000
         00000001            // lxr_eof",
    );
    golden(
        &nfs_argop4::OP_REMOVEXATTR(REMOVEXATTR4args { rxa_name: text("a") }),
        "0000004b 00000001 'a' 000000 // argop = OP_REMOVEXATTR (75), rxa_name",
    );
}

#[test]
fn attribute_types() {
    golden(
        &open_arguments4 {
            oa_share_access: bitmap4::of(&[OPEN4_SHARE_ACCESS_BOTH]),
            oa_share_deny: bitmap4::of(&[OPEN4_SHARE_DENY_NONE]),
            oa_share_access_want: bitmap4::of(&[
                open_args_share_access_want4::OPEN_ARGS_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION.0,
            ]),
            oa_open_claim: bitmap4::of(&[open_claim_type4::CLAIM_DELEG_CUR_FH.0]),
            oa_create_mode: bitmap4::of(&[createmode4::EXCLUSIVE4_1.0]),
        },
        "00000001 00000008 // oa_share_access: 3
         00000001 00000001 // oa_share_deny: 0
         00000001 00200000 // oa_share_access_want: 21
         00000001 00000020 // oa_open_claim: 5
         00000001 00000008 // oa_create_mode: 3",
    );
    golden(
        &sec_label4 { slai_lfs: labelformat_spec4 { lfs_lfs: 1, lfs_pi: 2 }, slai_data: text("u:r") },
        "00000001 00000002 00000003 'u:r' 00 // lfs_lfs, lfs_pi, slai_data",
    );
    golden(
        &mdsthreshold4 {
            mth_hints: vec![threshold_item4 {
                thi_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
                thi_hintset: bitmap4::of(&[TH4_READ_IOSIZE]),
                thi_hintlist: text("\0\0\0\0\0\0\x10\0"),
            }],
        },
        "00000001                   // mth_hints: one
         00000004                   // thi_layout_type
         00000001 00000004          // thi_hintset: 2
         00000008 00000000 00001000 // thi_hintlist: threshold4_read_iosize",
    );
}
