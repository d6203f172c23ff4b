//! Every operation is in the unions under its number, and every result is a bare status when it fails.

use bytes::{BufMut, Bytes, BytesMut};
use sluice_xdr::nfs4::*;
use sluice_xdr::{Decode, from_bytes, to_bytes};

/// RFC 8881 §16.2, RFC 7862 §15, RFC 8276 §8: operations in the order of their numbers, from 3 on.
const OPERATIONS: &[&str] = &[
    "ACCESS",
    "CLOSE",
    "COMMIT",
    "CREATE",
    "DELEGPURGE",
    "DELEGRETURN",
    "GETATTR",
    "GETFH",
    "LINK",
    "LOCK",
    "LOCKT",
    "LOCKU",
    "LOOKUP",
    "LOOKUPP",
    "NVERIFY",
    "OPEN",
    "OPENATTR",
    "OPEN_CONFIRM",
    "OPEN_DOWNGRADE",
    "PUTFH",
    "PUTPUBFH",
    "PUTROOTFH",
    "READ",
    "READDIR",
    "READLINK",
    "REMOVE",
    "RENAME",
    "RENEW",
    "RESTOREFH",
    "SAVEFH",
    "SECINFO",
    "SETATTR",
    "SETCLIENTID",
    "SETCLIENTID_CONFIRM",
    "VERIFY",
    "WRITE",
    "RELEASE_LOCKOWNER",
    "BACKCHANNEL_CTL",
    "BIND_CONN_TO_SESSION",
    "EXCHANGE_ID",
    "CREATE_SESSION",
    "DESTROY_SESSION",
    "FREE_STATEID",
    "GET_DIR_DELEGATION",
    "GETDEVICEINFO",
    "GETDEVICELIST",
    "LAYOUTCOMMIT",
    "LAYOUTGET",
    "LAYOUTRETURN",
    "SECINFO_NO_NAME",
    "SEQUENCE",
    "SET_SSV",
    "TEST_STATEID",
    "WANT_DELEGATION",
    "DESTROY_CLIENTID",
    "RECLAIM_COMPLETE",
    "ALLOCATE",
    "COPY",
    "COPY_NOTIFY",
    "DEALLOCATE",
    "IO_ADVISE",
    "LAYOUTERROR",
    "LAYOUTSTATS",
    "OFFLOAD_CANCEL",
    "OFFLOAD_STATUS",
    "READ_PLUS",
    "SEEK",
    "WRITE_SAME",
    "CLONE",
    "GETXATTR",
    "SETXATTR",
    "LISTXATTRS",
    "REMOVEXATTR",
];

/// RFC 8881 §20, RFC 7862 §16: callbacks in the order of their numbers, from 3 on.
const CALLBACKS: &[&str] = &[
    "GETATTR",
    "RECALL",
    "LAYOUTRECALL",
    "NOTIFY",
    "PUSH_DELEG",
    "RECALL_ANY",
    "RECALLABLE_OBJ_AVAIL",
    "RECALL_SLOT",
    "SEQUENCE",
    "WANTS_CANCELLED",
    "NOTIFY_LOCK",
    "NOTIFY_DEVICEID",
    "OFFLOAD",
];

fn message(words: &[u32]) -> Bytes {
    let mut bytes = BytesMut::new();
    words.iter().for_each(|w| bytes.put_u32(*w));
    bytes.freeze()
}

fn name_of(variant: &impl std::fmt::Debug) -> String {
    let text = format!("{variant:?}");
    text.split('(').next().unwrap_or_default().to_owned()
}

#[test]
fn results_of_failed_operations() {
    let numbered = OPERATIONS.iter().zip(3u32..).map(|(name, n)| (*name, n));
    for (name, number) in numbered.chain([("ILLEGAL", 10044)]) {
        // SETATTR alone reports what it set even when it fails (§18.30.2).
        let message = match name {
            "SETATTR" => message(&[number, nfsstat4::NFS4ERR_NOTSUPP.0, 0]),
            _ => message(&[number, nfsstat4::NFS4ERR_NOTSUPP.0]),
        };
        let result = from_bytes::<nfs_resop4>(message.clone()).unwrap();
        assert_eq!(name_of(&result), format!("OP_{name}"));
        assert_eq!(result.discriminant(), nfs_opnum4(number));
        assert_eq!(result.discriminant().name(), Some(format!("OP_{name}").as_str()));
        assert_eq!(to_bytes(&result).unwrap(), message);
    }
    assert_eq!(OPERATIONS.len() as u32 + 2, nfs_opnum4::OP_REMOVEXATTR.0);
}

#[test]
fn results_of_failed_callbacks() {
    let numbered = CALLBACKS.iter().zip(3u32..).map(|(name, n)| (*name, n));
    for (name, number) in numbered.chain([("ILLEGAL", 10044)]) {
        let message = message(&[number, nfsstat4::NFS4ERR_NOTSUPP.0]);
        let result = from_bytes::<nfs_cb_resop4>(message.clone()).unwrap();
        assert_eq!(name_of(&result), format!("OP_CB_{name}"));
        assert_eq!(result.discriminant(), nfs_cb_opnum4(number));
        assert_eq!(to_bytes(&result).unwrap(), message);
    }
}

/// Zeros decode as the arguments of nearly every operation, which must then go by its own name.
#[test]
fn arguments_by_number() {
    fn variant<T: Decode + std::fmt::Debug>(number: u32, zeros: usize) -> Option<String> {
        let mut words = vec![0; zeros + 1];
        words[0] = number;
        from_bytes::<T>(message(&words)).ok().map(|op| name_of(&op))
    }
    for (name, number) in OPERATIONS.iter().zip(3u32..) {
        let found = (0..40).find_map(|zeros| variant::<nfs_argop4>(number, zeros));
        match *name {
            // Zero is no claim that a want can make, and no kind of network location.
            "WANT_DELEGATION" | "COPY_NOTIFY" => assert_eq!(found, None, "{name}"),
            _ => assert_eq!(found, Some(format!("OP_{name}"))),
        }
    }
    for (name, number) in CALLBACKS.iter().zip(3u32..) {
        let found = (0..40).find_map(|zeros| variant::<nfs_cb_argop4>(number, zeros));
        match *name {
            "LAYOUTRECALL" => assert_eq!(found, None),
            _ => assert_eq!(found, Some(format!("OP_CB_{name}"))),
        }
    }
}

#[test]
fn unknown_operations_are_refused() {
    for number in [0, 1, 2, 76, 10043, 10045, u32::MAX] {
        assert!(from_bytes::<nfs_argop4>(message(&[number])).is_err());
        assert!(from_bytes::<nfs_resop4>(message(&[number, 0])).is_err());
    }
    for number in [0, 2, 16, u32::MAX] {
        assert!(from_bytes::<nfs_cb_argop4>(message(&[number])).is_err());
    }
}

/// Landmarks, and the gaps between runs of consecutive numbers: RFC 8881 §15.1, RFC 7862 §11, RFC 8276 §8.
#[test]
fn statuses() {
    for (status, number) in [
        (nfsstat4::NFS4ERR_STALE, 70),
        (nfsstat4::NFS4ERR_BADHANDLE, 10001),
        (nfsstat4::NFS4ERR_DELAY, 10008),
        (nfsstat4::NFS4ERR_GRACE, 10013),
        (nfsstat4::NFS4ERR_MINOR_VERS_MISMATCH, 10021),
        (nfsstat4::NFS4ERR_BAD_STATEID, 10025),
        (nfsstat4::NFS4ERR_BADXDR, 10036),
        (nfsstat4::NFS4ERR_OP_ILLEGAL, 10044),
        (nfsstat4::NFS4ERR_BADIOMODE, 10049),
        (nfsstat4::NFS4ERR_BADSESSION, 10052),
        (nfsstat4::NFS4ERR_RECALLCONFLICT, 10061),
        (nfsstat4::NFS4ERR_SEQ_MISORDERED, 10063),
        (nfsstat4::NFS4ERR_HASH_ALG_UNSUPP, 10072),
        (nfsstat4::NFS4ERR_CLIENTID_BUSY, 10074),
        (nfsstat4::NFS4ERR_DELEG_REVOKED, 10087),
        (nfsstat4::NFS4ERR_UNION_NOTSUPP, 10090),
        (nfsstat4::NFS4ERR_OFFLOAD_NO_REQS, 10094),
        (nfsstat4::NFS4ERR_XATTR2BIG, 10096),
    ] {
        assert_eq!(status.0, number, "{status}");
    }
    // 10002, 10073 and whatever comes after the last are nobody's.
    for number in [10002, 10073, 10097] {
        assert_eq!(nfsstat4(number).name(), None);
    }
    assert!((10003..10073).all(|n| nfsstat4(n).name().is_some()));
    assert!((10074..10097).all(|n| nfsstat4(n).name().is_some()));
}

#[test]
fn attribute_numbers() {
    for (attribute, number) in [
        (FATTR4_ACL, 12),
        (FATTR4_FILEHANDLE, 19),
        (FATTR4_FILES_AVAIL, 21),
        (FATTR4_MAXREAD, 30),
        (FATTR4_MODE, 33),
        (FATTR4_OWNER, 36),
        (FATTR4_SPACE_USED, 45),
        (FATTR4_TIME_MODIFY_SET, 54),
        (FATTR4_MOUNTED_ON_FILEID, 55),
        (FATTR4_FS_LAYOUT_TYPES, 62),
        (FATTR4_LAYOUT_BLKSIZE, 65),
        (FATTR4_MDSTHRESHOLD, 68),
        (FATTR4_SUPPATTR_EXCLCREAT, 75),
        (FATTR4_CLONE_BLKSIZE, 77),
        (FATTR4_SEC_LABEL, 80),
        (FATTR4_MODE_UMASK, 81),
        (FATTR4_XATTR_SUPPORT, 82),
        (FATTR4_OPEN_ARGUMENTS, 86),
    ] {
        assert_eq!(attribute, number);
    }
}
