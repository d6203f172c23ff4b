//! Names, attributes and data: RFC 8881 §18.1 to §18.32.

use bytes::Bytes;
use sluice_xdr::nfs4::*;

use crate::{attributes, golden, stateid, text};

fn open_owner() -> open_owner4 {
    state_owner4 {
        clientid: 0x0102_0304_0506_0708,
        owner: Bytes::from_static(b"open id:\0\0\0\x2a\0\0\0\0\0\0\x12\x34\0\0\0\x01"),
    }
}

/// An unchecked create with mode and umask (RFC 8275), as Linux sends it on a 4.2 mount.
#[test]
fn open_create() {
    golden(
        &nfs_argop4::OP_OPEN(OPEN4args {
            seqid: 0,
            share_access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION,
            share_deny: OPEN4_SHARE_DENY_NONE,
            owner: open_owner(),
            openhow: openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(attributes(
                &[FATTR4_MODE_UMASK],
                "000001b6 00000012",
            ))),
            claim: open_claim4::CLAIM_NULL(text("a.txt")),
        }),
        "00000012                            // argop = OP_OPEN (18)
         00000000                            // seqid
         00200003                            // share_access = BOTH | WANT_OPEN_XOR_DELEGATION
         00000000                            // share_deny
         01020304 05060708                   // owner.clientid
         00000018 'open id:'                 // owner.owner, 24 bytes
         0000002a 00000000 00001234 00000001
         00000001                            // opentype = OPEN4_CREATE
         00000000                            // mode = UNCHECKED4
         00000003 00000000 00000000 00020000 // createattrs.attrmask: 81
         00000008                            // attr_vals
         000001b6                            // mu_mode
         00000012                            // mu_umask
         00000000                            // claim = CLAIM_NULL
         00000005 'a.txt' 000000             // file",
    );
}

#[test]
fn open_exclusive_create_and_other_claims() {
    let open = |openhow, claim| OPEN4args {
        seqid: 0,
        share_access: OPEN4_SHARE_ACCESS_READ,
        share_deny: OPEN4_SHARE_DENY_WRITE,
        owner: state_owner4 { clientid: 1, owner: text("o") },
        openhow,
        claim,
    };
    let head = "00000000 00000001 00000002             // seqid, share_access, share_deny
                00000000 00000001 00000001 'o' 000000  // owner";
    let create = createhow4::EXCLUSIVE4_1(creatverfattr {
        cva_verf: verifier4(*b"verifier"),
        cva_attrs: attributes(&[FATTR4_MODE], "000001a4"),
    });
    golden(
        &open(openflag4::OPEN4_CREATE(create), open_claim4::CLAIM_FH),
        &format!(
            "{head}
             00000001                   // opentype = OPEN4_CREATE
             00000003                   // mode = EXCLUSIVE4_1
             'verifier'                 // cva_verf
             00000002 00000000 00000002 // cva_attrs.attrmask: 33
             00000004 000001a4          // attr_vals: mode
             00000004                   // claim = CLAIM_FH"
        ),
    );
    let no_create = || openflag4::Default(opentype4::OPEN4_NOCREATE);
    golden(
        &open(
            no_create(),
            open_claim4::CLAIM_DELEGATE_CUR(open_claim_delegate_cur4 {
                delegate_stateid: stateid(2, 0xdd),
                file: text("name"),
            }),
        ),
        &format!(
            "{head}
             00000000                            // opentype = OPEN4_NOCREATE
             00000002                            // claim = CLAIM_DELEGATE_CUR
             00000002 dddddddd dddddddd dddddddd // delegate_stateid
             00000004 'name'                     // file"
        ),
    );
    golden(
        &open(no_create(), open_claim4::CLAIM_DELEG_CUR_FH(stateid(3, 0xee))),
        &format!("{head}\n 00000000 00000005 00000003 eeeeeeee eeeeeeee eeeeeeee"),
    );
    golden(
        &open(no_create(), open_claim4::CLAIM_PREVIOUS(open_delegation_type4::OPEN_DELEGATE_WRITE)),
        &format!("{head}\n 00000000 00000001 00000002"),
    );
}

#[test]
fn open_reply_with_write_delegation() {
    golden(
        &nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(OPEN4resok {
            stateid: stateid(1, 0xaa),
            cinfo: change_info4 { atomic: true, before: 0x10, after: 0x11 },
            rflags: OPEN4_RESULT_LOCKTYPE_POSIX | OPEN4_RESULT_PRESERVE_UNLINKED,
            attrset: bitmap4::of(&[FATTR4_MODE]),
            delegation: open_delegation4::OPEN_DELEGATE_WRITE(open_write_delegation4 {
                stateid: stateid(1, 0xdd),
                recall: false,
                space_limit: nfs_space_limit4::NFS_LIMIT_BLOCKS(nfs_modified_limit4 {
                    num_blocks: 16,
                    bytes_per_block: 4096,
                }),
                permissions: nfsace4 {
                    type_: ACE4_ACCESS_ALLOWED_ACE_TYPE,
                    flag: ACE4_IDENTIFIER_GROUP,
                    access_mask: ACE4_GENERIC_READ,
                    who: text("GROUP@"),
                },
            }),
        })),
        "00000012                            // resop = OP_OPEN
         00000000                            // status
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // stateid: seqid, other
         00000001                            // cinfo.atomic
         00000000 00000010                   // cinfo.before
         00000000 00000011                   // cinfo.after
         0000000c                            // rflags
         00000002 00000000 00000002          // attrset: 33
         00000002                            // delegation_type = OPEN_DELEGATE_WRITE
         00000001 dddddddd dddddddd dddddddd // stateid
         00000000                            // recall
         00000002                            // limitby = NFS_LIMIT_BLOCKS
         00000010                            // num_blocks
         00001000                            // bytes_per_block
         00000000                            // permissions.type
         00000040                            // permissions.flag
         00120081                            // permissions.access_mask
         00000006 'GROUP@' 0000              // permissions.who",
    );
}

#[test]
fn open_reply_without_delegation() {
    let reply = |delegation| {
        OPEN4res::NFS4_OK(OPEN4resok {
            stateid: stateid(1, 0xaa),
            cinfo: change_info4::default(),
            rflags: 0,
            attrset: bitmap4::EMPTY,
            delegation,
        })
    };
    let head = "00000000                             // status
                00000001 aaaaaaaa aaaaaaaa aaaaaaaa  // stateid
                00000000 00000000 00000000 00000000 00000000 // cinfo
                00000000 00000000                    // rflags, attrset";
    let why = open_none_delegation4::WND4_CONTENTION(true);
    golden(
        &reply(open_delegation4::OPEN_DELEGATE_NONE_EXT(why)),
        &format!(
            "{head}
             00000003 // delegation_type = OPEN_DELEGATE_NONE_EXT
             00000001 // ond_why = WND4_CONTENTION
             00000001 // ond_server_will_push_deleg"
        ),
    );
    let why = open_none_delegation4::Default(why_no_delegation4::WND4_IS_DIR);
    golden(&reply(open_delegation4::OPEN_DELEGATE_NONE_EXT(why)), &format!("{head}\n 00000003 00000008"));
    golden(&reply(open_delegation4::OPEN_DELEGATE_NONE), &format!("{head}\n 00000000"));
}

#[test]
fn readdir() {
    golden(
        &nfs_argop4::OP_READDIR(READDIR4args {
            cookie: 0x0123_4567_89ab_cdef,
            cookieverf: verifier4(*b"verifier"),
            dircount: 0x2000,
            maxcount: 0x8000,
            attr_request: bitmap4::of(&[FATTR4_TYPE, FATTR4_RDATTR_ERROR, FATTR4_MOUNTED_ON_FILEID]),
        }),
        "0000001a                   // argop = OP_READDIR (26)
         01234567 89abcdef          // cookie
         'verifier'                 // cookieverf
         00002000                   // dircount
         00008000                   // maxcount
         00000002 00000802 00800000 // attr_request: 1, 11, 55",
    );
    golden(
        &nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(READDIR4resok {
            cookieverf: verifier4(*b"verifier"),
            reply: dirlist4 {
                entries: vec![
                    entry4 {
                        cookie: 3,
                        name: text("bin"),
                        attrs: attributes(&[FATTR4_TYPE, FATTR4_SIZE], "00000002 00000000 00001000"),
                    },
                    entry4 { cookie: 4, name: text("lost"), attrs: fattr4::default() },
                ],
                eof: true,
            },
        })),
        "0000001a                            // resop
         00000000                            // status
         'verifier'                          // cookieverf
         00000001                            // an entry follows
         00000000 00000003                   // cookie
         00000003 'bin' 00                   // name
         00000001 00000012                   // attrs.attrmask: 1, 4
         0000000c 00000002 00000000 00001000 // attr_vals: type, size
         00000001                            // an entry follows
         00000000 00000004                   // cookie
         00000004 'lost'                     // name
         00000000 00000000                   // attrs: none
         00000000                            // no entry follows
         00000001                            // eof",
    );
}

#[test]
fn setattr() {
    golden(
        &nfs_argop4::OP_SETATTR(SETATTR4args {
            stateid: stateid(1, 0xaa),
            obj_attributes: attributes(
                &[FATTR4_SIZE, FATTR4_TIME_MODIFY_SET],
                "00000000 00001000            // size
                 00000001                     // set_it = SET_TO_CLIENT_TIME4
                 00000000 65000000 00000007   // time",
            ),
        }),
        "00000022                            // argop = OP_SETATTR (34)
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // stateid
         00000002 00000010 00400000          // attrmask: 4, 54
         00000018                            // attr_vals, 24 bytes
         00000000 00001000                   // size
         00000001                            // set_it
         00000000 65000000 00000007          // time",
    );
    // The mask follows whatever the status is: a struct, not a union (§18.30.2).
    golden(
        &nfs_resop4::OP_SETATTR(SETATTR4res { status: nfsstat4::NFS4ERR_DELAY, attrsset: bitmap4::of(&[4]) }),
        "00000022 00002718 00000001 00000010 // resop, status, attrsset",
    );
}

#[test]
fn read_and_write() {
    golden(
        &nfs_argop4::OP_READ(READ4args { stateid: stateid(1, 0xaa), offset: 1 << 33, count: 0x100 }),
        "00000019                            // argop = OP_READ (25)
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // stateid
         00000002 00000000                   // offset
         00000100                            // count",
    );
    golden(
        &nfs_resop4::OP_READ(READ4res::NFS4_OK(READ4resok { eof: true, data: text("hello") })),
        "00000019 00000000       // resop, status
         00000001                // eof
         00000005 'hello' 000000 // data",
    );
    golden(
        &nfs_argop4::OP_WRITE(WRITE4args {
            stateid: stateid(1, 0xaa),
            offset: 16,
            stable: stable_how4::FILE_SYNC4,
            data: text("hello"),
        }),
        "00000026                            // argop = OP_WRITE (38)
         00000001 aaaaaaaa aaaaaaaa aaaaaaaa // stateid
         00000000 00000010                   // offset
         00000002                            // stable = FILE_SYNC4
         00000005 'hello' 000000             // data",
    );
    golden(
        &nfs_resop4::OP_WRITE(WRITE4res::NFS4_OK(WRITE4resok {
            count: 5,
            committed: stable_how4::DATA_SYNC4,
            writeverf: verifier4(*b"verifier"),
        })),
        "00000026 00000000 // resop, status
         00000005          // count
         00000001          // committed = DATA_SYNC4
         'verifier'        // writeverf",
    );
}

#[test]
fn create_and_rename() {
    golden(
        &nfs_argop4::OP_CREATE(CREATE4args {
            objtype: createtype4::NF4CHR(specdata4 { specdata1: 1, specdata2: 3 }),
            objname: text("null"),
            createattrs: fattr4::default(),
        }),
        "00000006          // argop = OP_CREATE (6)
         00000004          // type = NF4CHR
         00000001 00000003 // devdata: major, minor
         00000004 'null'   // objname
         00000000 00000000 // createattrs",
    );
    golden(
        &nfs_argop4::OP_CREATE(CREATE4args {
            objtype: createtype4::NF4LNK(text("target")),
            objname: text("link"),
            createattrs: fattr4::default(),
        }),
        "00000006 00000005 00000006 'target' 0000 00000004 'link' 00000000 00000000",
    );
    golden(
        &nfs_resop4::OP_RENAME(RENAME4res::NFS4_OK(RENAME4resok {
            source_cinfo: change_info4 { atomic: true, before: 1, after: 2 },
            target_cinfo: change_info4 { atomic: false, before: 3, after: 4 },
        })),
        "0000001d 00000000                            // resop = OP_RENAME (29), status
         00000001 00000000 00000001 00000000 00000002 // source_cinfo
         00000000 00000000 00000003 00000000 00000004 // target_cinfo",
    );
}

#[test]
fn secinfo_no_name() {
    golden(
        &nfs_argop4::OP_SECINFO_NO_NAME(secinfo_style4::SECINFO_STYLE4_PARENT),
        "00000034 00000001 // argop = OP_SECINFO_NO_NAME (52), style",
    );
    golden(
        &nfs_resop4::OP_SECINFO_NO_NAME(SECINFO4res::NFS4_OK(vec![
            secinfo4::RPCSEC_GSS(rpcsec_gss_info {
                oid: text("oid"),
                qop: 0,
                service: rpc_gss_svc_t::RPC_GSS_SVC_PRIVACY,
            }),
            secinfo4::Default(AUTH_SYS),
        ])),
        "00000034 00000000 // resop, status
         00000002          // two flavors
         00000006          // RPCSEC_GSS
         00000003 'oid' 00 // oid
         00000000          // qop
         00000003          // service = privacy
         00000001          // AUTH_SYS",
    );
}
