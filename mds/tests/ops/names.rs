//! Names that are not UTF-8: as any other, or refused wherever a name is. RFC 8881 §14.4, §14.5.

use bytes::Bytes;
use sluice_mds::{Config, Names};
use sluice_xdr::nfs4::*;

use crate::harness::*;

/// As an old system writes a name with an accent.
const LATIN: Bytes = Bytes::from_static(b"caf\xe9");

/// Every operation with a name: the file is made as one thing or another, found, linked, moved and removed.
fn every_operation() -> Vec<(&'static str, Vec<nfs_argop4>)> {
    let create = |objtype| {
        nfs_argop4::OP_CREATE(CREATE4args { objtype, objname: LATIN, createattrs: fattr(&mode(0o755)) })
    };
    let open = |how| open_with(b"owner", BOTH, 0, how, open_claim4::CLAIM_NULL(LATIN));
    let made = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&mode(0o644))));
    let rename = |oldname, newname| nfs_argop4::OP_RENAME(RENAME4args { oldname, newname });
    let link = nfs_argop4::OP_LINK(LINK4args { newname: LATIN });
    let remove = || nfs_argop4::OP_REMOVE(REMOVE4args { target: LATIN });
    vec![
        ("CREATE", vec![putrootfh(), create(createtype4::NF4DIR)]),
        ("LOOKUP", vec![putrootfh(), nfs_argop4::OP_LOOKUP(LOOKUP4args { objname: LATIN })]),
        ("SECINFO", vec![putrootfh(), nfs_argop4::OP_SECINFO(SECINFO4args { name: LATIN })]),
        ("RENAME from", vec![putrootfh(), savefh(), rename(LATIN, Bytes::from_static(b"plain"))]),
        ("RENAME to", vec![putrootfh(), savefh(), rename(Bytes::from_static(b"plain"), LATIN)]),
        ("REMOVE", vec![putrootfh(), remove()]),
        ("LINK", vec![putrootfh(), lookup("file"), savefh(), putrootfh(), link]),
        ("REMOVE", vec![putrootfh(), remove()]),
        ("OPEN with create", vec![putrootfh(), open(made)]),
        ("OPEN", vec![putrootfh(), open(NOCREATE)]),
    ]
}

async fn charset(client: &Client) -> Option<u32> {
    client.attributes("/", &[FATTR4_FS_CHARSET_CAP]).await.fs_charset_cap
}

#[test]
fn names_are_bytes() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        client.open("file", BOTH, 0).await;
        for (operation, ops) in every_operation() {
            assert_eq!(client.status(ops).await, nfsstat4::NFS4_OK, "{operation}");
        }
        assert_eq!(charset(&client).await, Some(FSCHARSET_CAP4_CONTAINS_NON_UTF8));
    });
}

#[test]
fn where_names_are_text_others_are_refused() {
    let config = Config { names: Names::Utf8, ..at_data_servers() };
    simulate_with(2, config, async |world: World| {
        let client = world.client("a").await;
        client.open("file", BOTH, 0).await;
        client.mkdir("/", "café").await;
        client.mkdir("/", "plain").await;
        for (operation, ops) in every_operation() {
            assert_eq!(client.status(ops).await, nfsstat4::NFS4ERR_INVAL, "{operation}");
        }
        assert_eq!(charset(&client).await, Some(FSCHARSET_CAP4_ALLOWS_ONLY_UTF8));
    });
}
