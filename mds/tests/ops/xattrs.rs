//! GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR. RFC 8276.

use std::time::Duration;

use bytes::Bytes;
use sluice_xdr::nfs4::*;

use crate::harness::*;

fn set(name: &str, value: &[u8], option: setxattr_option4) -> nfs_argop4 {
    nfs_argop4::OP_SETXATTR(SETXATTR4args {
        sxa_option: option,
        sxa_key: Bytes::copy_from_slice(name.as_bytes()),
        sxa_value: Bytes::copy_from_slice(value),
    })
}

fn get(name: &str) -> nfs_argop4 {
    nfs_argop4::OP_GETXATTR(GETXATTR4args { gxa_name: Bytes::copy_from_slice(name.as_bytes()) })
}

fn remove_xattr(name: &str) -> nfs_argop4 {
    nfs_argop4::OP_REMOVEXATTR(REMOVEXATTR4args { rxa_name: Bytes::copy_from_slice(name.as_bytes()) })
}

fn list(cookie: u64, maxcount: u32) -> nfs_argop4 {
    nfs_argop4::OP_LISTXATTRS(LISTXATTRS4args { lxa_cookie: cookie, lxa_maxcount: maxcount })
}

const EITHER: setxattr_option4 = setxattr_option4::SETXATTR4_EITHER;

/// Whoever has a quota has none of attributes.
#[test]
fn a_store_with_little_room_takes_short_values_only() {
    simulate(21, async |world: World| {
        let client = world.client("a").await;
        let (fh, _) = client.open("f", BOTH, 0).await;
        world.db.set_faults(sluice_kv::Faults { scarce: true, ..sluice_kv::Faults::NONE });
        world.sleep(Duration::from_secs(5)).await;
        let on = |op: nfs_argop4| vec![putfh(&fh), op];
        assert_eq!(client.status(on(set("long", &[1; 1025], EITHER))).await, nfsstat4::NFS4ERR_NOSPC);
        client.ok(on(set("short", &[1; 1024], EITHER))).await;
        world.db.set_faults(sluice_kv::Faults::NONE);
        world.sleep(Duration::from_secs(5)).await;
        client.ok(on(set("long", &[1; 1025], EITHER))).await;
    });
}

/// What has to go on goes on: an engine without any room answers nothing.
#[test]
fn a_store_without_room_takes_nothing_new_and_lets_everything_go() {
    simulate(22, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        client.mkdir("/", "d").await;
        let on = |op: nfs_argop4| vec![putfh(&fh), op];
        client.ok(on(set("kept", b"red", EITHER))).await;
        world.db.set_faults(sluice_kv::Faults { full: true, ..sluice_kv::Faults::NONE });
        world.sleep(Duration::from_secs(5)).await;
        let full = nfsstat4::NFS4ERR_NOSPC;
        let directory = |name| vec![putrootfh(), create(createtype4::NF4DIR, name, &mode(0o755))];
        let file =
            |name, how| vec![putrootfh(), open_with(b"o", BOTH, 0, how, open_claim4::CLAIM_NULL(name))];
        let unchecked = || openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&Attributes::default())));
        let linked = |name| vec![putfh(&fh), savefh(), putrootfh(), link(name)];
        assert_eq!(client.status(on(set("kept", b"blue", EITHER))).await, full);
        assert_eq!(client.status(directory("e")).await, full);
        assert_eq!(client.status(file("g".into(), unchecked())).await, full);
        assert_eq!(client.status(linked("l")).await, full);
        // What is there is there.
        assert_eq!(client.status(directory("d")).await, nfsstat4::NFS4ERR_EXIST);
        assert_eq!(client.status(linked("f")).await, nfsstat4::NFS4ERR_EXIST);
        client.ok(file("f".into(), unchecked())).await;
        client.ok(vec![putrootfh(), savefh(), rename("d", "moved")]).await;
        client.ok(vec![putfh(&fh), setattr(open, &size(0))]).await;
        client.ok(on(remove_xattr("kept"))).await;
        client.ok(vec![putrootfh(), remove("moved")]).await;
        client.ok(vec![putfh(&fh), close(open)]).await;
        // Its own rows too: a client that comes anew, and one that goes.
        let other = world.client("b").await;
        other.ok(vec![putrootfh(), remove("f")]).await;
        world.db.set_faults(sluice_kv::Faults::NONE);
        world.sleep(Duration::from_secs(5)).await;
        client.ok(directory("e")).await;
        client.ok(file("g".into(), unchecked())).await;
    });
}

#[test]
fn they_are_set_read_listed_and_removed() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        let (fh, _) = client.open("f", BOTH, 0).await;
        let on = |op: nfs_argop4| vec![putfh(&fh), op];
        let nfs_resop4::OP_SETXATTR(SETXATTR4res::NFS4_OK(info)) =
            client.last(on(set("colour", b"red", EITHER))).await
        else {
            panic!()
        };
        assert!(info.after > info.before);
        client.ok(on(set("shape", b"", EITHER))).await;
        let nfs_resop4::OP_GETXATTR(GETXATTR4res::NFS4_OK(value)) = client.last(on(get("colour"))).await
        else {
            panic!()
        };
        assert_eq!(&value[..], b"red");
        let nfs_resop4::OP_LISTXATTRS(LISTXATTRS4res::NFS4_OK(names)) = client.last(on(list(0, 4096))).await
        else {
            panic!()
        };
        assert!(names.lxr_eof);
        assert_eq!(names.lxr_names.len(), 2);
        client.ok(on(remove_xattr("colour"))).await;
        assert_eq!(client.status(on(get("colour"))).await, nfsstat4::NFS4ERR_NOXATTR);
        assert_eq!(client.status(on(remove_xattr("colour"))).await, nfsstat4::NFS4ERR_NOXATTR);
    });
}

/// Linux takes what comes with SETXATTR for newer than what it has flushed to data servers before it looked into the reply, and
/// would append over that (ADR 0032). Who does not write is told, and so is who keeps nothing in memory.
#[test]
fn a_writer_is_not_told_the_size_with_them() {
    simulate(2, async |world: World| {
        let (writer, other) = (world.client("a").await, world.client("b").await);
        let (fh, open) = writer.open("f", BOTH, 0).await;
        let caches = [FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_METADATA, FATTR4_TIME_MODIFY];
        let asks = async |client: &Client, op: nfs_argop4, what: &[u32]| {
            looked(&client.last(vec![putfh(&fh), op, getattr(what)]).await)
        };
        for op in [set("colour", b"red", EITHER), remove_xattr("colour")] {
            let seen = asks(&writer, op, &caches).await;
            assert!(seen.size.is_none() && seen.change.is_some() && seen.time_modify.is_some(), "{seen:?}");
        }
        // It asks for more where it has forgotten more.
        let more = [&caches[..], &[FATTR4_MODE, FATTR4_NUMLINKS, FATTR4_SPACE_USED]].concat();
        let seen = asks(&writer, set("colour", b"red", EITHER), &more).await;
        assert!(seen.size.is_none() && seen.mode.is_some(), "{seen:?}");
        let without = [FATTR4_SIZE, FATTR4_MODE];
        assert_eq!(asks(&writer, set("colour", b"red", EITHER), &without).await.size, Some(0));
        assert_eq!(asks(&other, set("colour", b"blue", EITHER), &caches).await.size, Some(0));
        writer.ok(vec![putfh(&fh), close(open)]).await;
        assert_eq!(asks(&writer, remove_xattr("colour"), &caches).await.size, Some(0));
    });
}

#[test]
fn create_and_replace_mean_what_they_say() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        let (fh, _) = client.open("f", BOTH, 0).await;
        let status = async |op| client.status(vec![putfh(&fh), op]).await;
        let (create, replace) = (setxattr_option4::SETXATTR4_CREATE, setxattr_option4::SETXATTR4_REPLACE);
        assert_eq!(status(set("x", b"1", replace)).await, nfsstat4::NFS4ERR_NOXATTR);
        assert_eq!(status(set("x", b"1", create)).await, nfsstat4::NFS4_OK);
        assert_eq!(status(set("x", b"2", create)).await, nfsstat4::NFS4ERR_EXIST);
        assert_eq!(status(set("x", b"2", replace)).await, nfsstat4::NFS4_OK);
        assert_eq!(status(set("x", b"2", setxattr_option4(9))).await, nfsstat4::NFS4ERR_INVAL);
    });
}

#[test]
fn a_long_list_comes_in_parts() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        let (fh, _) = client.open("f", BOTH, 0).await;
        for n in 0..10 {
            client.ok(vec![putfh(&fh), set(&format!("attribute-{n}"), b"v", EITHER)]).await;
        }
        let (mut cookie, mut seen) = (0, Vec::new());
        loop {
            let nfs_resop4::OP_LISTXATTRS(LISTXATTRS4res::NFS4_OK(part)) =
                client.last(vec![putfh(&fh), list(cookie, 64)]).await
            else {
                panic!()
            };
            cookie = part.lxr_cookie;
            seen.extend(part.lxr_names);
            if part.lxr_eof {
                break;
            }
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 10);
        let small = client.status(vec![putfh(&fh), list(0, 8)]).await;
        assert_eq!(small, nfsstat4::NFS4ERR_TOOSMALL);
        // It has become shorter since the client was here.
        for n in 0..5 {
            client.ok(vec![putfh(&fh), remove_xattr(&format!("attribute-{n}"))]).await;
        }
        let nfs_resop4::OP_LISTXATTRS(LISTXATTRS4res::NFS4_OK(rest)) =
            client.last(vec![putfh(&fh), list(cookie, 64)]).await
        else {
            panic!()
        };
        assert_eq!((rest.lxr_names.len(), rest.lxr_eof), (0, true));
        // No list was ever so long.
        let absurd = client.status(vec![putfh(&fh), list(u64::MAX, 64)]).await;
        assert_eq!(absurd, nfsstat4::NFS4ERR_BAD_COOKIE);
    });
}

#[test]
fn minor_version_one_has_none() {
    simulate(4, async |world: World| {
        let raw = world.connect("a").await.with_minor(1);
        let client = raw.session(b"old", [1; 8], 0).await;
        let status = client.status(vec![putrootfh(), get("x")]).await;
        assert_eq!(status, nfsstat4::NFS4ERR_OP_ILLEGAL);
    });
}
