//! pNFS: RFC 8881 §18.40 to §18.44, RFC 7862 §15.6 and §15.7.

use bytes::Bytes;
use sluice_xdr::nfs4::*;

use crate::{bytes_of, golden, stateid, text};

const DEVICE: deviceid4 = deviceid4(*b"DEVICEDEVICE0001");

#[test]
fn getdeviceinfo() {
    golden(
        &nfs_argop4::OP_GETDEVICEINFO(GETDEVICEINFO4args {
            gdia_device_id: DEVICE,
            gdia_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
            gdia_maxcount: 4096,
            gdia_notify_types: bitmap4::of(&[
                notify_deviceid_type4::NOTIFY_DEVICEID4_CHANGE.0,
                notify_deviceid_type4::NOTIFY_DEVICEID4_DELETE.0,
            ]),
        }),
        "0000002f           // argop = OP_GETDEVICEINFO (47)
         'DEVICEDEVICE0001' // gdia_device_id
         00000004           // gdia_layout_type = LAYOUT4_FLEX_FILES
         00001000           // gdia_maxcount
         00000001 00000006  // gdia_notify_types: 1, 2",
    );
    golden(
        &nfs_resop4::OP_GETDEVICEINFO(GETDEVICEINFO4res::NFS4_OK(GETDEVICEINFO4resok {
            gdir_device_addr: device_addr4 {
                da_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
                da_addr_body: bytes_of("00000001 00000002"),
            },
            gdir_notification: bitmap4::of(&[2]),
        })),
        "0000002f                   // resop
         00000000                   // gdir_status
         00000004                   // da_layout_type
         00000008 00000001 00000002 // da_addr_body
         00000001 00000004          // gdir_notification",
    );
    golden(
        &nfs_resop4::OP_GETDEVICEINFO(GETDEVICEINFO4res::NFS4ERR_TOOSMALL(0x200)),
        "0000002f 00002715 00000200 // resop, NFS4ERR_TOOSMALL (10005), gdir_mincount",
    );
}

#[test]
fn getdevicelist() {
    golden(
        &nfs_resop4::OP_GETDEVICELIST(GETDEVICELIST4res::NFS4_OK(GETDEVICELIST4resok {
            gdlr_cookie: 1,
            gdlr_cookieverf: verifier4(*b"verifier"),
            gdlr_deviceid_list: vec![DEVICE],
            gdlr_eof: true,
        })),
        "00000030 00000000           // resop = OP_GETDEVICELIST (48), gdlr_status
         00000000 00000001           // gdlr_cookie
         'verifier'                  // gdlr_cookieverf
         00000001 'DEVICEDEVICE0001' // gdlr_deviceid_list: one
         00000001                    // gdlr_eof",
    );
}

#[test]
fn layoutget() {
    golden(
        &nfs_argop4::OP_LAYOUTGET(LAYOUTGET4args {
            loga_signal_layout_avail: false,
            loga_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
            loga_iomode: layoutiomode4::LAYOUTIOMODE4_RW,
            loga_offset: 0x1000,
            loga_length: u64::MAX,
            loga_minlength: 0x2000,
            loga_stateid: stateid(1, 0xaa),
            loga_maxcount: 4096,
        }),
        "00000032                            // argop = OP_LAYOUTGET (50)
         00000000                            // loga_signal_layout_avail
         00000004                            // loga_layout_type = LAYOUT4_FLEX_FILES
         00000002                            // loga_iomode = LAYOUTIOMODE4_RW
         00000000 00001000                   // loga_offset
         ffffffff ffffffff                   // loga_length
         00000000 00002000                   // loga_minlength
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // loga_stateid
         00001000                            // loga_maxcount",
    );
    golden(
        &nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(LAYOUTGET4resok {
            logr_return_on_close: true,
            logr_stateid: stateid(1, 0xcc),
            logr_layout: vec![layout4 {
                lo_offset: 0,
                lo_length: u64::MAX,
                lo_iomode: layoutiomode4::LAYOUTIOMODE4_READ,
                lo_content: layout_content4 {
                    loc_type: layouttype4::LAYOUT4_FLEX_FILES,
                    loc_body: text("body"),
                },
            }],
        })),
        "00000032                            // resop
         00000000                            // logr_status
         00000001                            // logr_return_on_close
         00000001 cccccccc cccccccc cccccccc // logr_stateid
         00000001                            // logr_layout: one
         00000000 00000000                   // lo_offset
         ffffffff ffffffff                   // lo_length
         00000001                            // lo_iomode = LAYOUTIOMODE4_READ
         00000004                            // loc_type
         00000004 'body'                     // loc_body",
    );
    golden(
        &nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4ERR_LAYOUTTRYLATER(true)),
        "00000032 0000274a 00000001 // resop, NFS4ERR_LAYOUTTRYLATER (10058), will signal",
    );
    golden(
        &nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::Default(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE)),
        "00000032 0000274b // resop, NFS4ERR_LAYOUTUNAVAILABLE (10059)",
    );
}

#[test]
fn layoutcommit() {
    golden(
        &nfs_argop4::OP_LAYOUTCOMMIT(LAYOUTCOMMIT4args {
            loca_offset: 0,
            loca_length: 0x5000,
            loca_reclaim: false,
            loca_stateid: stateid(3, 0xcc),
            loca_last_write_offset: newoffset4::TRUE(0x4fff),
            loca_time_modify: newtime4::TRUE(nfstime4 { seconds: 1, nseconds: 2 }),
            loca_layoutupdate: layoutupdate4 {
                lou_type: layouttype4::LAYOUT4_FLEX_FILES,
                lou_body: Bytes::new(),
            },
        }),
        "00000031                            // argop = OP_LAYOUTCOMMIT (49)
         00000000 00000000                   // loca_offset
         00000000 00005000                   // loca_length
         00000000                            // loca_reclaim
         00000003 cccccccc cccccccc cccccccc // loca_stateid
         00000001                            // no_newoffset = TRUE
         00000000 00004fff                   // no_offset
         00000001                            // nt_timechanged = TRUE
         00000000 00000001 00000002          // nt_time
         00000004                            // lou_type
         00000000                            // lou_body",
    );
    let reply = |newsize| LAYOUTCOMMIT4res::NFS4_OK(LAYOUTCOMMIT4resok { locr_newsize: newsize });
    golden(
        &nfs_resop4::OP_LAYOUTCOMMIT(reply(newsize4::TRUE(0x5000))),
        "00000031 00000000 00000001 00000000 00005000 // resop, locr_status, ns_sizechanged, ns_size",
    );
    golden(&nfs_resop4::OP_LAYOUTCOMMIT(reply(newsize4::FALSE)), "00000031 00000000 00000000");
}

#[test]
fn layoutreturn() {
    golden(
        &nfs_argop4::OP_LAYOUTRETURN(LAYOUTRETURN4args {
            lora_reclaim: false,
            lora_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
            lora_iomode: layoutiomode4::LAYOUTIOMODE4_ANY,
            lora_layoutreturn: layoutreturn4::LAYOUTRETURN4_FILE(layoutreturn_file4 {
                lrf_offset: 0,
                lrf_length: u64::MAX,
                lrf_stateid: stateid(4, 0xcc),
                lrf_body: bytes_of("00000000 00000000"),
            }),
        }),
        "00000033                            // argop = OP_LAYOUTRETURN (51)
         00000000                            // lora_reclaim
         00000004                            // lora_layout_type
         00000003                            // lora_iomode = LAYOUTIOMODE4_ANY
         00000001                            // lr_returntype = LAYOUTRETURN4_FILE
         00000000 00000000                   // lrf_offset
         ffffffff ffffffff                   // lrf_length
         00000004 cccccccc cccccccc cccccccc // lrf_stateid
         00000008 00000000 00000000          // lrf_body: ff_layoutreturn4 with no reports",
    );
    golden(
        &LAYOUTRETURN4args {
            lora_reclaim: true,
            lora_layout_type: layouttype4::LAYOUT4_NFSV4_1_FILES,
            lora_iomode: layoutiomode4::LAYOUTIOMODE4_RW,
            lora_layoutreturn: layoutreturn4::Default(layoutreturn_type4::LAYOUTRETURN4_ALL),
        },
        "00000001 00000001 00000002 00000003 // reclaim, type, iomode, lr_returntype = LAYOUTRETURN4_ALL",
    );
    let reply = |stateid| nfs_resop4::OP_LAYOUTRETURN(LAYOUTRETURN4res::NFS4_OK(stateid));
    golden(
        &reply(layoutreturn_stateid::TRUE(stateid(5, 0xcc))),
        "00000033 00000000                   // resop, lorr_status
         00000001                            // lrs_present = TRUE
         00000005 cccccccc cccccccc cccccccc // lrs_stateid",
    );
    golden(&reply(layoutreturn_stateid::FALSE), "00000033 00000000 00000000");
}

#[test]
fn layouterror() {
    golden(
        &nfs_argop4::OP_LAYOUTERROR(LAYOUTERROR4args {
            lea_offset: 1,
            lea_length: 2,
            lea_stateid: stateid(1, 0xcc),
            lea_errors: vec![device_error4 {
                de_deviceid: DEVICE,
                de_status: nfsstat4::NFS4ERR_NXIO,
                de_opnum: nfs_opnum4::OP_WRITE,
            }],
        }),
        "00000040                            // argop = OP_LAYOUTERROR (64)
         00000000 00000001                   // lea_offset
         00000000 00000002                   // lea_length
         00000001 cccccccc cccccccc cccccccc // lea_stateid
         00000001                            // lea_errors: one
         'DEVICEDEVICE0001'                  // de_deviceid
         00000006                            // de_status = NFS4ERR_NXIO
         00000026                            // de_opnum = OP_WRITE",
    );
}

#[test]
fn layoutstats() {
    golden(
        &nfs_argop4::OP_LAYOUTSTATS(LAYOUTSTATS4args {
            lsa_offset: 1,
            lsa_length: 2,
            lsa_stateid: stateid(1, 0xcc),
            lsa_read: io_info4 { ii_count: 3, ii_bytes: 4 },
            lsa_write: io_info4 { ii_count: 5, ii_bytes: 6 },
            lsa_deviceid: DEVICE,
            lsa_layoutupdate: layoutupdate4 {
                lou_type: layouttype4::LAYOUT4_FLEX_FILES,
                lou_body: text("stat"),
            },
        }),
        "00000041                            // argop = OP_LAYOUTSTATS (65)
         00000000 00000001                   // lsa_offset
         00000000 00000002                   // lsa_length
         00000001 cccccccc cccccccc cccccccc // lsa_stateid
         00000000 00000003 00000000 00000004 // lsa_read: count, bytes
         00000000 00000005 00000000 00000006 // lsa_write
         'DEVICEDEVICE0001'                  // lsa_deviceid
         00000004                            // lou_type
         00000004 'stat'                     // lou_body",
    );
}

/// The body of a file layout, for servers and clients that know only that type (RFC 8881 §13.3).
#[test]
fn file_layout() {
    golden(
        &nfsv4_1_file_layout4 {
            nfl_deviceid: DEVICE,
            nfl_util: 0x0010_0000 | NFL4_UFLG_DENSE,
            nfl_first_stripe_index: 2,
            nfl_pattern_offset: 3,
            nfl_fh_list: vec![nfs_fh4(text("fh"))],
        },
        "'DEVICEDEVICE0001' // nfl_deviceid
         00100001           // nfl_util: 1 MiB, dense
         00000002           // nfl_first_stripe_index
         00000000 00000003  // nfl_pattern_offset
         00000001           // nfl_fh_list: one
         00000002 'fh' 0000",
    );
    golden(
        &nfsv4_1_file_layout_ds_addr4 {
            nflda_stripe_indices: vec![0],
            nflda_multipath_ds_list: vec![vec![netaddr4 {
                na_r_netid: text("tcp"),
                na_r_addr: text("10.0.0.1.8.1"),
            }]],
        },
        "00000001 00000000       // nflda_stripe_indices
         00000001                // nflda_multipath_ds_list: one data server
         00000001                // with one address
         00000003 'tcp' 00       // na_r_netid
         0000000c '10.0.0.1.8.1' // na_r_addr",
    );
}
