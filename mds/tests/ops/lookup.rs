//! LOOKUP, LOOKUPP, PUTFH, GETFH, SAVEFH, RESTOREFH, PUTPUBFH, SECINFO. Names in parentheses are pynfs codes.

use bytes::Bytes;
use sluice_xdr::control::ctl_rule;
use sluice_xdr::nfs4::*;

use crate::exports;
use crate::harness::*;

fn fh_of(result: &nfs_resop4) -> nfs_fh4 {
    match result {
        nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(ok)) => ok.object.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_lead_down_and_up_again() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        client.mkdir("/d", "e").await;
        let (root, d) = (client.handle("/").await, client.handle("/d").await);
        assert_ne!(root, d);
        let results = client.ok(vec![putfh(&d), lookup("e"), lookupp(), getfh(), lookupp(), getfh()]).await;
        assert_eq!((fh_of(&results[3]), fh_of(&results[5])), (d, root));
    });
}

/// (LKPP2)
#[test]
fn the_root_has_no_parent() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        assert_eq!(client.status(vec![putrootfh(), lookupp()]).await, nfsstat4::NFS4ERR_NOENT);
    });
}

#[test]
fn each_bad_name_has_its_status() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        client.open("file", READ, 0).await;
        client.ok(vec![putrootfh(), symlink("link", "file")]).await;
        let status = async |path: &str, name: &str| {
            let mut ops = walk(path);
            ops.push(lookup(name));
            client.status(ops).await
        };
        assert_eq!(status("/", "nothing").await, nfsstat4::NFS4ERR_NOENT);
        assert_eq!(status("/", "").await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status("/", &"x".repeat(256)).await, nfsstat4::NFS4ERR_NAMETOOLONG);
        assert_eq!(status("/", &"x".repeat(255)).await, nfsstat4::NFS4ERR_NOENT);
        for dots in [".", ".."] {
            assert_eq!(status("/", dots).await, nfsstat4::NFS4ERR_BADNAME);
        }
        assert_eq!(status("/file", "x").await, nfsstat4::NFS4ERR_NOTDIR);
        assert_eq!(status("/link", "x").await, nfsstat4::NFS4ERR_SYMLINK);
    });
}

/// (LKPP1a, LKPP1r)
#[test]
fn only_directories_have_parents() {
    simulate(4, async |world: World| {
        let client = world.client("a").await;
        client.open("file", READ, 0).await;
        client.ok(vec![putrootfh(), symlink("link", "file")]).await;
        for (path, status) in [("/file", nfsstat4::NFS4ERR_NOTDIR), ("/link", nfsstat4::NFS4ERR_SYMLINK)] {
            let mut ops = walk(path);
            ops.push(lookupp());
            assert_eq!(client.status(ops).await, status);
        }
    });
}

#[test]
fn a_directory_that_may_not_be_searched_hides_its_names() {
    simulate(5, async |world: World| {
        let client = world.client("a").await;
        client.ok(vec![putrootfh(), create(createtype4::NF4DIR, "d", &mode(0o700))]).await;
        client.mkdir("/d", "e").await;
        let user = client.over(client.raw.clone().with_user(500, 500, &[]));
        let status = user.status(vec![putrootfh(), lookup("d"), lookup("e")]).await;
        assert_eq!(status, nfsstat4::NFS4ERR_ACCESS);
    });
}

/// (PUTFH2) and handles of what is gone.
#[test]
fn handles_are_judged() {
    simulate(6, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let handle = client.handle("/d").await;
        let mut bytes = handle.0.to_vec();
        bytes.pop();
        let short = nfs_fh4(Bytes::from(bytes));
        assert_eq!(client.status(vec![putfh(&short)]).await, nfsstat4::NFS4ERR_BADHANDLE);
        client.ok(vec![putrootfh(), remove("d")]).await;
        let status = client.status(vec![putfh(&handle), getattr(&[FATTR4_TYPE])]).await;
        assert_eq!(status, nfsstat4::NFS4ERR_STALE);
    });
}

#[test]
fn filehandles_are_saved_and_restored() {
    simulate(7, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let root = client.handle("/").await;
        let results = client.ok(vec![putrootfh(), savefh(), lookup("d"), restorefh(), getfh()]).await;
        assert_eq!(fh_of(&results[4]), root);
        assert_eq!(client.status(vec![getfh()]).await, nfsstat4::NFS4ERR_NOFILEHANDLE);
        assert_eq!(client.status(vec![savefh()]).await, nfsstat4::NFS4ERR_NOFILEHANDLE);
        assert_eq!(client.status(vec![putrootfh(), restorefh()]).await, nfsstat4::NFS4ERR_NOFILEHANDLE);
        let public = client.ok(vec![nfs_argop4::OP_PUTPUBFH, getfh()]).await;
        assert_eq!(fh_of(&public[1]), root);
    });
}

/// (SEC1, SEC2, SEC3) RFC 8881 §2.6.3.1.1.8: the filehandle is used up.
#[test]
fn secinfo_names_the_flavours_and_takes_the_handle() {
    simulate(8, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let results = client.ok(vec![putrootfh(), secinfo("d")]).await;
        let nfs_resop4::OP_SECINFO(SECINFO4res::NFS4_OK(flavours)) = &results[1] else { panic!() };
        assert_eq!(flavours[0], secinfo4::Default(1), "AUTH_SYS first");
        let after = client.status(vec![putrootfh(), secinfo("d"), getfh()]).await;
        assert_eq!(after, nfsstat4::NFS4ERR_NOFILEHANDLE);
        let nothing = client.status(vec![putrootfh(), secinfo("nothing")]).await;
        assert_eq!(nothing, nfsstat4::NFS4ERR_NOENT);
        let no_name = |style| nfs_argop4::OP_SECINFO_NO_NAME(style);
        let current = no_name(secinfo_style4::SECINFO_STYLE4_CURRENT_FH);
        let after = client.status(vec![putrootfh(), current, getfh()]).await;
        assert_eq!(after, nfsstat4::NFS4ERR_NOFILEHANDLE);
        let parent = no_name(secinfo_style4::SECINFO_STYLE4_PARENT);
        assert_eq!(client.status(vec![putrootfh(), parent]).await, nfsstat4::NFS4ERR_NOENT);
    });
}

/// §2.6.3.1.1.4: LOOKUPP out of an export says WRONGSEC where the one around it takes other flavours, and this is what is asked then.
#[test]
fn the_flavours_of_the_parent_are_told_to_who_comes_with_another() {
    simulate(10, async |world: World| {
        let mut raw = world.connect("a").await;
        let sys = raw.session(b"sys", [1; 8], 1).await;
        sys.ok(vec![reclaim_complete(false)]).await;
        sys.mkdir("/", "d").await;
        exports::add(&world, "/d", &[exports::rule("any")]).await;
        let sys_only = ctl_rule { none: false, ..exports::rule("any") };
        exports::set(&world, "/", &[sys_only]).await;
        let fh = sys.handle("/d").await;
        raw.credential = sluice_rpc::Credential::None;
        let none = raw.session(b"none", [1; 8], 1).await;
        none.ok(vec![reclaim_complete(false)]).await;
        let up = vec![putfh(&fh), lookupp(), getfh()];
        assert_eq!(none.status(up).await, nfsstat4::NFS4ERR_WRONGSEC);
        let parent = nfs_argop4::OP_SECINFO_NO_NAME(secinfo_style4::SECINFO_STYLE4_PARENT);
        let nfs_resop4::OP_SECINFO_NO_NAME(SECINFO4res::NFS4_OK(good)) =
            none.last(vec![putfh(&fh), parent]).await
        else {
            panic!()
        };
        assert_eq!(good[..], [secinfo4::Default(AUTH_SYS)]);
    });
}

/// An operation number that does not exist ends the COMPOUND there.
#[test]
fn unknown_operations_are_illegal() {
    simulate(9, async |world: World| {
        let client = world.client("a").await;
        let reply = client.compound(vec![putrootfh(), nfs_argop4::OP_ILLEGAL, getfh()]).await;
        assert_eq!((reply.status, reply.resarray.len()), (nfsstat4::NFS4ERR_OP_ILLEGAL, 3));
    });
}
