//! ONC RPC, NFSv3 and flexible-file messages laid out by hand, one line per field. (NFSv4: nfs4_golden.)
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use sluice_xdr::flexfiles::*;
use sluice_xdr::nfs3::*;
use sluice_xdr::nfs4::{
    device_error4, deviceid4, io_info4, netaddr4, nfs_fh4, nfs_opnum4, nfsstat4, nfstime4, stateid4,
};
use sluice_xdr::rpc::*;
use sluice_xdr::{Decode, Encode, from_bytes, to_bytes};

#[track_caller]
fn both_ways<T: Encode + Decode + PartialEq + std::fmt::Debug>(value: &T, wire: &[&[u8]]) {
    let wire: Bytes = wire.concat().into();
    assert_eq!(to_bytes(value).unwrap(), wire);
    assert_eq!(&from_bytes::<T>(wire).unwrap(), value);
}

const fn word(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

const fn hyper(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

fn text(s: &'static str) -> Bytes {
    Bytes::from_static(s.as_bytes())
}

/// RFC 5531 §9; the credential's body is RFC 5531 appendix A.
#[test]
fn a_call_with_auth_sys() {
    let credential =
        authsys_parms { stamp: 9, machinename: text("host1"), uid: 1000, gid: 100, gids: vec![100, 27] };
    let body: &[&[u8]] = &[
        &word(9),                 // stamp
        b"\0\0\0\x05host1\0\0\0", // machinename
        &word(1000),              // uid
        &word(100),               // gid
        &word(2),                 // number of gids
        &word(100),
        &word(27),
    ];
    both_ways(&credential, body);
    let call = rpc_msg {
        xid: 0x1234_5678,
        body: rpc_msg_body::CALL(call_body {
            rpcvers: RPC_VERSION,
            prog: NFS3_PROGRAM,
            vers: NFS_V3,
            proc: NFSPROC3_READ,
            cred: opaque_auth { flavor: auth_flavor::AUTH_SYS, body: body.concat().into() },
            verf: opaque_auth::default(),
        }),
    };
    let wire: &[&[u8]] = &[
        &word(0x1234_5678), // xid
        &word(0),           // CALL
        &word(2),           // rpcvers
        &word(100_003),     // prog
        &word(3),           // vers
        &word(6),           // proc
        &word(1),           // AUTH_SYS
        &word(36),          // length of the credential
        &body.concat(),
        &word(0), // verifier: AUTH_NONE
        &word(0), // of no length
    ];
    both_ways(&call, wire);
}

#[test]
fn replies() {
    let reply = |body| rpc_msg { xid: 7, body: rpc_msg_body::REPLY(body) };
    let accepted =
        |reply_data| reply_body::MSG_ACCEPTED(accepted_reply { verf: opaque_auth::default(), reply_data });
    let head: &[&[u8]] = &[&word(7), &word(1)];
    both_ways(
        &reply(accepted(accepted_reply_data::Default(accept_stat::SUCCESS))),
        &[&head.concat(), &word(0), &word(0), &word(0), &word(0)],
    );
    both_ways(
        &reply(accepted(accepted_reply_data::PROG_MISMATCH(mismatch_info { low: 3, high: 4 }))),
        &[&head.concat(), &word(0), &word(0), &word(0), &word(2), &word(3), &word(4)],
    );
    both_ways(
        &reply(reply_body::MSG_DENIED(rejected_reply::RPC_MISMATCH(mismatch_info { low: 2, high: 2 }))),
        &[&head.concat(), &word(1), &word(0), &word(2), &word(2)],
    );
    both_ways(
        &reply(reply_body::MSG_DENIED(rejected_reply::AUTH_ERROR(auth_stat::AUTH_TOOWEAK))),
        &[&head.concat(), &word(1), &word(1), &word(5)],
    );
}

const FH: Bytes = Bytes::from_static(b"handle!!");

/// Words of an attribute set with every field different.
fn attributes() -> (fattr3, Vec<u8>) {
    let time = |seconds, nseconds| nfstime3 { seconds, nseconds };
    let value = fattr3 {
        type_: ftype3::NF3REG,
        mode: 0o640,
        nlink: 2,
        uid: 3,
        gid: 4,
        size: 5,
        used: 6,
        rdev: specdata3 { specdata1: 7, specdata2: 8 },
        fsid: 9,
        fileid: 10,
        atime: time(11, 12),
        mtime: time(13, 14),
        ctime: time(15, 16),
    };
    let wire: &[&[u8]] = &[
        &word(1),     // type
        &word(0o640), // mode
        &word(2),     // nlink
        &word(3),     // uid
        &word(4),     // gid
        &hyper(5),    // size
        &hyper(6),    // used
        &word(7),     // rdev
        &word(8),
        &hyper(9),  // fsid
        &hyper(10), // fileid
        &word(11),  // atime
        &word(12),
        &word(13), // mtime
        &word(14),
        &word(15), // ctime
        &word(16),
    ];
    (value, wire.concat())
}

/// RFC 1813 §3.3.6
#[test]
fn read3() {
    let args = READ3args { file: nfs_fh3 { data: FH }, offset: 1 << 40, count: 65536 };
    both_ways(&args, &[&word(8), &FH, &hyper(1 << 40), &word(65536)]);
    let (attributes, words) = attributes();
    let ok = READ3res::NFS3_OK(READ3resok {
        file_attributes: Some(attributes).into(),
        count: 5,
        eof: true,
        data: text("12345"),
    });
    both_ways(&ok, &[&word(0), &word(1), &words, &word(5), &word(1), &word(5), b"12345\0\0\0"]);
    let stale =
        READ3res::Default(nfsstat3::NFS3ERR_STALE, READ3resfail { file_attributes: post_op_attr::FALSE });
    both_ways(&stale, &[&word(70), &word(0)]);
}

/// RFC 1813 §3.3.7
#[test]
fn write3() {
    let args = WRITE3args {
        file: nfs_fh3 { data: FH },
        offset: 3,
        count: 2,
        stable: stable_how::DATA_SYNC,
        data: text("ab"),
    };
    both_ways(&args, &[&word(8), &FH, &hyper(3), &word(2), &word(1), &word(2), b"ab\0\0"]);
    let before =
        wcc_attr { size: 1, mtime: nfstime3 { seconds: 2, nseconds: 3 }, ctime: nfstime3::default() };
    let ok = WRITE3res::NFS3_OK(WRITE3resok {
        file_wcc: wcc_data { before: pre_op_attr::TRUE(before), after: post_op_attr::FALSE },
        count: 2,
        committed: stable_how::FILE_SYNC,
        verf: writeverf3(*b"verifier"),
    });
    let wire: &[&[u8]] = &[
        &word(0),  // NFS3_OK
        &word(1),  // before follows
        &hyper(1), // size
        &word(2),  // mtime
        &word(3),
        &word(0), // ctime
        &word(0),
        &word(0), // after does not
        &word(2), // count
        &word(2), // FILE_SYNC
        b"verifier",
    ];
    both_ways(&ok, wire);
}

/// RFC 1813 §3.3.21
#[test]
fn commit3() {
    let args = COMMIT3args { file: nfs_fh3 { data: FH }, offset: 0, count: 0 };
    both_ways(&args, &[&word(8), &FH, &hyper(0), &word(0)]);
    let none = wcc_data { before: pre_op_attr::FALSE, after: post_op_attr::FALSE };
    let ok = COMMIT3res::NFS3_OK(COMMIT3resok { file_wcc: none, verf: writeverf3(*b"verifier") });
    both_ways(&ok, &[&word(0), &word(0), &word(0), b"verifier"]);
    let io = COMMIT3res::Default(nfsstat3::NFS3ERR_IO, COMMIT3resfail { file_wcc: none });
    both_ways(&io, &[&word(5), &word(0), &word(0)]);
}

/// RFC 1813 §3.3.2, §3.3.18, §3.3.19
#[test]
fn setattr3_fsstat3_fsinfo3() {
    let args = SETATTR3args {
        object: nfs_fh3 { data: FH },
        new_attributes: sattr3 {
            mode: Some(0o600).into(),
            uid: set_uid3::FALSE,
            gid: set_gid3::FALSE,
            size: set_size3::TRUE(4096),
            atime: set_atime::Default(time_how::SET_TO_SERVER_TIME),
            mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 1, nseconds: 2 }),
        },
        guard: sattrguard3::FALSE,
    };
    let wire: &[&[u8]] = &[
        &word(8),
        &FH,
        &word(1), // mode
        &word(0o600),
        &word(0), // uid
        &word(0), // gid
        &word(1), // size
        &hyper(4096),
        &word(1), // atime: the server's
        &word(2), // mtime: the client's
        &word(1),
        &word(2),
        &word(0), // guard
    ];
    both_ways(&args, wire);
    let stat = FSSTAT3res::NFS3_OK(FSSTAT3resok {
        obj_attributes: post_op_attr::FALSE,
        tbytes: 1,
        fbytes: 2,
        abytes: 3,
        tfiles: 4,
        ffiles: 5,
        afiles: 6,
        invarsec: 7,
    });
    let wire: &[&[u8]] =
        &[&word(0), &word(0), &hyper(1), &hyper(2), &hyper(3), &hyper(4), &hyper(5), &hyper(6), &word(7)];
    both_ways(&stat, wire);
    let info = FSINFO3res::NFS3_OK(FSINFO3resok {
        obj_attributes: post_op_attr::FALSE,
        rtmax: 1,
        rtpref: 2,
        rtmult: 3,
        wtmax: 4,
        wtpref: 5,
        wtmult: 6,
        dtpref: 7,
        maxfilesize: 8,
        time_delta: nfstime3 { seconds: 9, nseconds: 10 },
        properties: FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
    });
    let wire: &[&[u8]] = &[
        &word(0),
        &word(0),
        &word(1),
        &word(2),
        &word(3),
        &word(4),
        &word(5),
        &word(6),
        &word(7),
        &hyper(8),
        &word(9),
        &word(10),
        &word(0x18),
    ];
    both_ways(&info, wire);
}

/// RFC 1813 §3.3.17
#[test]
fn readdirplus3() {
    let entry = |fileid, name, handle: Option<nfs_fh3>| entryplus3 {
        fileid,
        name: text(name),
        cookie: fileid + 100,
        name_attributes: post_op_attr::FALSE,
        name_handle: handle.into(),
    };
    let ok = READDIRPLUS3res::NFS3_OK(READDIRPLUS3resok {
        dir_attributes: post_op_attr::FALSE,
        cookieverf: cookieverf3([1; 8]),
        reply: dirlistplus3 {
            entries: vec![entry(1, ".", Some(nfs_fh3 { data: FH })), entry(2, "abcd", None)],
            eof: true,
        },
    });
    let wire: &[&[u8]] = &[
        &word(0),
        &word(0),
        &[1; 8],
        &word(1), // an entry follows
        &hyper(1),
        b"\0\0\0\x01.\0\0\0",
        &hyper(101),
        &word(0),
        &word(1),
        &word(8),
        &FH,
        &word(1), // another
        &hyper(2),
        b"\0\0\0\x04abcd",
        &hyper(102),
        &word(0),
        &word(0),
        &word(0), // no more
        &word(1), // eof
    ];
    both_ways(&ok, wire);
}

/// RFC 8435 §5.1: two mirrors of one stripe each.
#[test]
fn ff_layout() {
    let server = |n: u8| ff_data_server4 {
        ffds_deviceid: deviceid4([n; 16]),
        ffds_efficiency: 5,
        ffds_stateid: stateid4::default(),
        ffds_fh_vers: vec![nfs_fh4(FH)],
        ffds_user: text("1001"),
        ffds_group: text("2"),
    };
    let layout = ff_layout4 {
        ffl_stripe_unit: 65536,
        ffl_mirrors: vec![
            ff_mirror4 { ffm_data_servers: vec![server(1)] },
            ff_mirror4 { ffm_data_servers: vec![server(2)] },
        ],
        ffl_flags: FF_FLAGS_NO_IO_THRU_MDS | FF_FLAGS_NO_READ_IO,
        ffl_stats_collect_hint: 30,
    };
    let server = |n: u8| {
        let wire: &[&[u8]] = &[
            &[n; 16], // deviceid
            &word(5), // efficiency
            &[0; 16], // stateid: seqid and other
            &word(1), // one filehandle
            &word(8),
            &FH,
            b"\0\0\0\x041001",
            b"\0\0\0\x012\0\0\0",
        ];
        wire.concat()
    };
    let wire: &[&[u8]] = &[
        &hyper(65536),
        &word(2), // mirrors
        &word(1), // data servers of the first
        &server(1),
        &word(1),
        &server(2),
        &word(6), // flags
        &word(30),
    ];
    both_ways(&layout, wire);
}

/// RFC 8435 §4.1
#[test]
fn ff_device_addr() {
    let address = ff_device_addr4 {
        ffda_netaddrs: vec![netaddr4 { na_r_netid: text("tcp"), na_r_addr: text("10.0.0.1.8.1") }],
        ffda_versions: vec![ff_device_versions4 {
            ffdv_version: 3,
            ffdv_minorversion: 0,
            ffdv_rsize: 1 << 20,
            ffdv_wsize: 1 << 19,
            ffdv_tightly_coupled: false,
        }],
    };
    let wire: &[&[u8]] = &[
        &word(1),
        b"\0\0\0\x03tcp\0",
        b"\0\0\0\x0c10.0.0.1.8.1",
        &word(1),
        &word(3),
        &word(0),
        &word(1 << 20),
        &word(1 << 19),
        &word(0),
    ];
    both_ways(&address, wire);
}

/// RFC 8435 §9.3 with one error (§9.1.1) and one set of statistics (§9.2.3).
#[test]
fn ff_layoutreturn() {
    let stateid = stateid4 { seqid: 1, other: *b"twelve bytes" };
    let time = |seconds| nfstime4 { seconds, nseconds: 1 };
    let latency = |n| ff_io_latency4 {
        ffil_ops_requested: n,
        ffil_bytes_requested: n + 1,
        ffil_ops_completed: n + 2,
        ffil_bytes_completed: n + 3,
        ffil_bytes_not_delivered: n + 4,
        ffil_total_busy_time: time(5),
        ffil_aggregate_completion_time: time(6),
    };
    let value = ff_layoutreturn4 {
        fflr_ioerr_report: vec![ff_ioerr4 {
            ffie_offset: 1,
            ffie_length: 2,
            ffie_stateid: stateid,
            ffie_errors: vec![device_error4 {
                de_deviceid: deviceid4([9; 16]),
                de_status: nfsstat4::NFS4ERR_NXIO,
                de_opnum: nfs_opnum4::OP_WRITE,
            }],
        }],
        fflr_iostats_report: vec![ff_iostats4 {
            ffis_offset: 3,
            ffis_length: 4,
            ffis_stateid: stateid,
            ffis_read: io_info4 { ii_count: 5, ii_bytes: 6 },
            ffis_write: io_info4 { ii_count: 7, ii_bytes: 8 },
            ffis_deviceid: deviceid4([8; 16]),
            ffis_layoutupdate: ff_layoutupdate4 {
                ffl_addr: netaddr4 { na_r_netid: text("tcp6"), na_r_addr: text("::1.8.1.") },
                ffl_fhandle: nfs_fh4(FH),
                ffl_read: latency(10),
                ffl_write: latency(20),
                ffl_duration: time(7),
                ffl_local: true,
            },
        }],
    };
    let state: &[&[u8]] = &[&word(1), b"twelve bytes"];
    let time = |seconds| [hyper(seconds).to_vec(), word(1).to_vec()].concat();
    let latency = |n: u64| {
        let wire: &[&[u8]] =
            &[&hyper(n), &hyper(n + 1), &hyper(n + 2), &hyper(n + 3), &hyper(n + 4), &time(5), &time(6)];
        wire.concat()
    };
    let wire: &[&[u8]] = &[
        &word(1), // errors
        &hyper(1),
        &hyper(2),
        &state.concat(),
        &word(1),
        &[9; 16],
        &word(6),  // NXIO
        &word(38), // OP_WRITE
        &word(1),  // statistics
        &hyper(3),
        &hyper(4),
        &state.concat(),
        &hyper(5),
        &hyper(6),
        &hyper(7),
        &hyper(8),
        &[8; 16],
        b"\0\0\0\x04tcp6",
        b"\0\0\0\x08::1.8.1.",
        &word(8),
        &FH,
        &latency(10),
        &latency(20),
        &time(7),
        &word(1),
    ];
    both_ways(&value, wire);
}
