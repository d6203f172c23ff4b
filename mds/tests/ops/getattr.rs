//! GETATTR, SETATTR, VERIFY, NVERIFY, ACCESS.

use std::time::Duration;

use bytes::Bytes;
use sluice_mds::Config;
use sluice_xdr::nfs4::*;

use crate::harness::*;

fn set(path: &str, attributes: &Attributes) -> Vec<nfs_argop4> {
    let mut ops = walk(path);
    ops.push(setattr(ANONYMOUS, attributes));
    ops
}

/// What Linux asks of a file system (linux-client §1.5).
#[test]
fn a_mount_finds_what_it_asks_for() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        let asked = [
            FATTR4_SUPPORTED_ATTRS,
            FATTR4_FH_EXPIRE_TYPE,
            FATTR4_FSID,
            FATTR4_LEASE_TIME,
            FATTR4_MAXREAD,
            FATTR4_MAXWRITE,
            FATTR4_FS_LAYOUT_TYPES,
            FATTR4_CHANGE_ATTR_TYPE,
            FATTR4_XATTR_SUPPORT,
        ];
        let got = client.attributes("/", &asked).await;
        assert_eq!(got.fh_expire_type, Some(FH4_PERSISTENT));
        assert_eq!(got.lease_time, Some(60));
        assert_eq!((got.maxread, got.maxwrite), (Some(1 << 20), Some(1 << 20)));
        assert_eq!(got.fs_layout_types, Some(vec![layouttype4::LAYOUT4_FLEX_FILES]));
        assert_eq!(got.xattr_support, Some(true));
        let supported = got.supported_attrs.unwrap();
        assert!(supported.contains(FATTR4_ACL) && !supported.contains(FATTR4_SACL));
        let set_only =
            [FATTR4_TIME_ACCESS_SET, FATTR4_TIME_MODIFY_SET, FATTR4_MODE_SET_MASKED, FATTR4_MODE_UMASK];
        let every: Vec<u32> = supported.iter().filter(|n| !set_only.contains(n)).collect();
        let all = client.attributes("/", &every).await;
        let missing = supported.without(all.present()).iter().filter(|n| !set_only.contains(n));
        let missing: Vec<u32> = missing.collect();
        assert!(missing.is_empty(), "claimed and not given: {missing:?}");
    });
}

fn settime() -> Attributes {
    let now = settime4::Default(time_how4::SET_TO_SERVER_TIME4);
    Attributes { time_modify_set: Some(now), ..Attributes::default() }
}

/// §5.5.
#[test]
fn attributes_that_are_only_set_cannot_be_asked_for() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        let masked = Some(mode_masked4 { mm_value_to_set: 0, mm_mask_bits: 0 });
        let umask = Some(mode_umask4 { mu_mode: 0, mu_umask: 0 });
        for (number, value) in [
            (FATTR4_TIME_MODIFY_SET, settime()),
            (FATTR4_MODE_SET_MASKED, Attributes { mode_set_masked: masked, ..Attributes::default() }),
            (FATTR4_MODE_UMASK, Attributes { mode_umask: umask, ..Attributes::default() }),
        ] {
            let list = readdir(0, verifier4::default(), 4096, &[number]);
            for op in [getattr(&[number]), list, verify(&value), nverify(&value)] {
                assert_eq!(client.status(vec![putrootfh(), op]).await, nfsstat4::NFS4ERR_INVAL, "{number}");
            }
        }
    });
}

#[test]
fn what_is_set_is_seen_and_the_change_attribute_moves() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        let seen = [FATTR4_CHANGE, FATTR4_MODE, FATTR4_OWNER, FATTR4_OWNER_GROUP, FATTR4_TIME_MODIFY];
        let before = client.attributes("f", &seen).await;
        let at = nfstime4 { seconds: 77, nseconds: 5 };
        let wanted = Attributes {
            mode: Some(0o640),
            owner: Some(Bytes::from_static(b"500")),
            owner_group: Some(Bytes::from_static(b"600")),
            time_modify_set: Some(settime4::SET_TO_CLIENT_TIME4(at)),
            ..Attributes::default()
        };
        let result = client.last(set("f", &wanted)).await;
        let nfs_resop4::OP_SETATTR(done) = result else { panic!() };
        assert_eq!(done.attrsset, wanted.present());
        let after = client.attributes("f", &seen).await;
        assert!(after.change > before.change);
        assert_eq!((after.mode, after.time_modify), (Some(0o640), Some(at)));
        assert_eq!((after.owner, after.owner_group), (wanted.owner, wanted.owner_group));
    });
}

/// §5.7 has it as one to be set. cp -p of FreeBSD does, and so do clients on Windows.
#[test]
fn the_time_of_creation_is_set_too() {
    simulate(10, async |world: World| {
        let client = world.client("a").await;
        let (_, open) = client.open("f", BOTH, 0).await;
        let seen = [FATTR4_CHANGE, FATTR4_TIME_CREATE, FATTR4_TIME_MODIFY];
        let before = client.attributes("f", &seen).await;
        let born = |seconds, nseconds| {
            let time_create = Some(nfstime4 { seconds, nseconds });
            Attributes { time_create, ..Attributes::default() }
        };
        let nfs_resop4::OP_SETATTR(done) = client.last(set("f", &born(77, 5))).await else { panic!() };
        assert_eq!(done.attrsset, bitmap4::of(&[FATTR4_TIME_CREATE]));
        let after = client.attributes("f", &seen).await;
        assert_eq!((after.time_create, after.time_modify), (born(77, 5).time_create, before.time_modify));
        assert!(after.change > before.change);
        assert_eq!(client.status(set("f", &born(0, 1_000_000_000))).await, nfsstat4::NFS4ERR_INVAL);
        // It is its owner's to set, whoever has it open.
        let user = client.over(client.raw.clone().with_user(500, 500, &[]));
        let foreign = vec![putrootfh(), lookup("f"), setattr(open, &born(1, 0))];
        assert_eq!(user.status(foreign).await, nfsstat4::NFS4ERR_PERM);
        // What is made may have one from the beginning.
        let made = |how| {
            let (how, claim) = (openflag4::OPEN4_CREATE(how), open_claim4::CLAIM_NULL("made".into()));
            vec![putrootfh(), open_with(b"o", BOTH, 0, how, claim)]
        };
        let result = client.last(made(createhow4::UNCHECKED4(fattr(&born(78, 6))))).await;
        let nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(opened)) = result else { panic!("{result:?}") };
        assert_eq!(opened.attrset, bitmap4::of(&[FATTR4_TIME_CREATE]));
        client.ok(vec![putrootfh(), create(createtype4::NF4DIR, "d", &born(78, 6))]).await;
        for name in ["made", "d"] {
            let now = client.attributes(name, &seen).await;
            assert_eq!(now.time_create, born(78, 6).time_create, "{name}");
            assert!(now.time_modify > now.time_create, "{name}");
        }
        // One that is there keeps its own.
        let result = client.last(made(createhow4::UNCHECKED4(fattr(&born(79, 7))))).await;
        let nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(opened)) = result else { panic!("{result:?}") };
        assert_eq!(opened.attrset, bitmap4::EMPTY);
        assert_eq!(client.attributes("made", &seen).await.time_create, born(78, 6).time_create);
    });
}

#[test]
fn each_bad_attribute_has_its_status() {
    simulate(4, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        client.mkdir("/", "d").await;
        let status = async |path: &str, attributes: Attributes| client.status(set(path, &attributes)).await;
        let read_only = Attributes { fileid: Some(7), ..Attributes::default() };
        assert_eq!(status("f", read_only).await, nfsstat4::NFS4ERR_INVAL);
        let unsupported = Attributes { hidden: Some(true), ..Attributes::default() };
        assert_eq!(status("f", unsupported).await, nfsstat4::NFS4ERR_ATTRNOTSUPP);
        assert_eq!(status("f", mode(0o70000)).await, nfsstat4::NFS4ERR_INVAL);
        let name = Attributes { owner: Some(Bytes::from_static(b"fred@example")), ..Attributes::default() };
        assert_eq!(status("f", name).await, nfsstat4::NFS4ERR_BADOWNER);
        let late = settime4::SET_TO_CLIENT_TIME4(nfstime4 { seconds: 0, nseconds: 1_000_000_000 });
        let late = Attributes { time_access_set: Some(late), ..Attributes::default() };
        assert_eq!(status("f", late).await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status("d", size(0)).await, nfsstat4::NFS4ERR_ISDIR);
        assert_eq!(status("f", size(u64::MAX)).await, nfsstat4::NFS4ERR_FBIG);
    });
}

#[test]
fn a_size_is_set_and_bounds_the_file() {
    simulate(5, async |world: World| {
        let client = world.client("a").await;
        let (fh, stateid) = client.open("f", BOTH, 0).await;
        client.ok(vec![putfh(&fh), setattr(stateid, &size(5000))]).await;
        assert_eq!(client.attributes("f", &[FATTR4_SIZE]).await.size, Some(5000));
        client.ok(vec![putfh(&fh), setattr(ANONYMOUS, &size(0))]).await;
        assert_eq!(client.attributes("f", &[FATTR4_SIZE]).await.size, Some(0));
        let (_, read_only) = opened(&client.ok(vec![putfh(&fh), open_fh(b"r", READ, 0), getfh()]).await);
        let status = client.status(vec![putfh(&fh), setattr(read_only, &size(1))]).await;
        assert_eq!(status, nfsstat4::NFS4ERR_OPENMODE);
    });
}

#[test]
fn only_the_owner_changes_modes_and_only_root_owners() {
    simulate(6, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        let user = client.over(client.raw.clone().with_user(500, 500, &[]));
        assert_eq!(user.status(set("f", &mode(0o777))).await, nfsstat4::NFS4ERR_PERM);
        assert_eq!(user.status(set("f", &size(0))).await, nfsstat4::NFS4ERR_ACCESS);
    });
}

#[test]
fn verify_and_nverify_are_opposites() {
    simulate(7, async |world: World| {
        let client = world.client("a").await;
        let same = Attributes { type_: Some(nfs_ftype4::NF4DIR), ..Attributes::default() };
        let other = Attributes { type_: Some(nfs_ftype4::NF4REG), ..Attributes::default() };
        client.ok(vec![putrootfh(), verify(&same), nverify(&other)]).await;
        let status = async |op| client.status(vec![putrootfh(), op]).await;
        assert_eq!(status(verify(&other)).await, nfsstat4::NFS4ERR_NOT_SAME);
        assert_eq!(status(nverify(&same)).await, nfsstat4::NFS4ERR_SAME);
        let error = Attributes { rdattr_error: Some(nfsstat4::NFS4_OK), ..Attributes::default() };
        assert_eq!(status(verify(&error)).await, nfsstat4::NFS4ERR_INVAL);
        let unsupported = Attributes { hidden: Some(false), ..Attributes::default() };
        assert_eq!(status(nverify(&unsupported)).await, nfsstat4::NFS4ERR_ATTRNOTSUPP);
    });
}

#[test]
fn access_says_what_the_mode_says() {
    simulate(8, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        let user = client.over(client.raw.clone().with_user(500, 500, &[]));
        let all = ACCESS4_READ
            | ACCESS4_LOOKUP
            | ACCESS4_MODIFY
            | ACCESS4_EXTEND
            | ACCESS4_DELETE
            | ACCESS4_EXECUTE;
        let result = user.last(vec![putrootfh(), lookup("f"), access(all)]).await;
        let nfs_resop4::OP_ACCESS(ACCESS4res::NFS4_OK(ok)) = result else { panic!() };
        assert_eq!(ok.supported, ACCESS4_READ | ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_EXECUTE);
        assert_eq!(ok.access, ACCESS4_READ, "mode 0644, not the owner");
    });
}

/// What is usual takes another way than what is not.
const USUAL: [u32; 17] = [
    FATTR4_TYPE,
    FATTR4_CHANGE,
    FATTR4_SIZE,
    FATTR4_FSID,
    FATTR4_RDATTR_ERROR,
    FATTR4_FILEHANDLE,
    FATTR4_FILEID,
    FATTR4_MODE,
    FATTR4_NUMLINKS,
    FATTR4_OWNER,
    FATTR4_OWNER_GROUP,
    FATTR4_RAWDEV,
    FATTR4_SPACE_USED,
    FATTR4_TIME_ACCESS,
    FATTR4_TIME_METADATA,
    FATTR4_TIME_MODIFY,
    FATTR4_MOUNTED_ON_FILEID,
];

#[test]
fn an_attribute_is_the_same_whatever_it_is_asked_with() {
    simulate(20, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        client.mkdir("/", "d").await;
        client.mkdir("/d", "below").await;
        client.ok(vec![putrootfh(), symlink("l", "where it leads")]).await;
        let device = createtype4::NF4CHR(specdata4 { specdata1: 5, specdata2: 300 });
        client.ok(vec![putrootfh(), create(device, "c", &mode(0o600))]).await;
        let owned = Attributes {
            owner: Some(Bytes::from_static(b"4294967294")),
            owner_group: Some(Bytes::from_static(b"10")),
            mode: Some(0o4751),
            time_modify_set: Some(settime4::SET_TO_CLIENT_TIME4(nfstime4 { seconds: -7, nseconds: 9 })),
            ..Attributes::default()
        };
        client.ok(set("/f", &owned)).await;
        for path in ["/", "/f", "/d", "/l", "/c"] {
            let mut everything: Vec<u32> = USUAL.to_vec();
            everything.push(FATTR4_LEASE_TIME);
            let whole = client.attributes(path, &everything).await;
            let whole = Attributes { lease_time: None, ..whole };
            assert_eq!(whole.present(), bitmap4::of(&USUAL), "{path}");
            assert_eq!(client.attributes(path, &USUAL).await, whole, "{path}");
            for number in USUAL {
                let alone = client.attributes(path, &[number]).await;
                let beside = client.attributes(path, &[number, FATTR4_LEASE_TIME]).await;
                assert_eq!(alone.present(), bitmap4::of(&[number]), "{path} {number}");
                assert_eq!(alone, Attributes { lease_time: None, ..beside }, "{path} {number}");
            }
        }
    });
}

/// What GETATTR has seen, and what was changed since in the same COMPOUND.
#[test]
fn a_look_after_a_change_sees_the_change() {
    simulate(21, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        let mut ops = walk("/f");
        let look = || getattr(&[FATTR4_MODE]);
        ops.extend([look(), look(), setattr(ANONYMOUS, &mode(0o600)), look(), look()]);
        let modes: Vec<u32> = client
            .ok(ops)
            .await
            .iter()
            .filter_map(|result| match result {
                nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok)) => {
                    Attributes::decode(&ok.obj_attributes).unwrap().mode
                }
                _ => None,
            })
            .collect();
        let [before, again, after, at_last] = modes[..] else { panic!("{modes:?}") };
        assert_eq!((again, after, at_last), (before, 0o600, 0o600));
        assert_ne!(before, 0o600);
    });
}

/// Linux asks for the attributes behind SETATTR and WRITE. They are known from the transaction: the store is not asked for them
/// again, but for what others may have written to a file that is open.
#[test]
fn what_was_just_changed_is_not_read_again() {
    simulate_with(9, Config::default(), async |world: World| {
        let client = world.client("a").await;
        let (closed, open) = client.open("closed", BOTH, 0).await;
        client.ok(vec![putfh(&closed), close(open)]).await;
        let (fh, open) = client.open("open", BOTH, 0).await;
        let write = |stateid| {
            let (stable, data) = (stable_how4::FILE_SYNC4, b"data"[..].into());
            nfs_argop4::OP_WRITE(WRITE4args { stateid, offset: 0, stable, data })
        };
        let all = [FATTR4_CHANGE, FATTR4_SIZE, FATTR4_MODE, FATTR4_TIME_METADATA, FATTR4_TIME_MODIFY];
        let chmod = setattr(ANONYMOUS, &mode(0o640));
        for (name, fh, op, most) in [
            ("closed", &closed, chmod, 1),
            ("closed", &closed, write(ANONYMOUS), 2),
            ("open", &fh, write(open), 3),
        ] {
            world.sleep(Duration::from_millis(10)).await;
            let before = world.db.work().views;
            let seen = looked(&client.last(vec![putfh(fh), op, getattr(&all)]).await);
            let spent = world.db.work().views - before;
            assert_eq!(spent, most, "versions to read at, {name}");
            assert_eq!(client.attributes(name, &all).await, seen);
        }
    });
}
