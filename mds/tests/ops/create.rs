//! CREATE, REMOVE, RENAME, LINK, READLINK. Names in parentheses are pynfs codes.

use sluice_xdr::nfs4::*;

use crate::harness::*;

fn at(path: &str, op: nfs_argop4) -> Vec<nfs_argop4> {
    let mut ops = walk(path);
    ops.push(op);
    ops
}

fn moved(from: &str, to: &str, op: nfs_argop4) -> Vec<nfs_argop4> {
    let mut ops = walk(from);
    ops.push(savefh());
    ops.extend(walk(to));
    ops.push(op);
    ops
}

fn change(result: &nfs_resop4) -> change_info4 {
    match result {
        nfs_resop4::OP_CREATE(CREATE4res::NFS4_OK(ok)) => ok.cinfo,
        nfs_resop4::OP_REMOVE(REMOVE4res::NFS4_OK(ok)) => ok.cinfo,
        nfs_resop4::OP_LINK(LINK4res::NFS4_OK(ok)) => ok.cinfo,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_of_object_can_be_made() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        let device = specdata4 { specdata1: 8, specdata2: 1 };
        for (name, kind, type_) in [
            ("dir", createtype4::NF4DIR, nfs_ftype4::NF4DIR),
            ("fifo", createtype4::NF4FIFO, nfs_ftype4::NF4FIFO),
            ("sock", createtype4::NF4SOCK, nfs_ftype4::NF4SOCK),
            ("blk", createtype4::NF4BLK(device), nfs_ftype4::NF4BLK),
            ("chr", createtype4::NF4CHR(device), nfs_ftype4::NF4CHR),
        ] {
            client.ok(at("/", create(kind, name, &mode(0o604)))).await;
            let got = client.attributes(name, &[FATTR4_TYPE, FATTR4_MODE, FATTR4_RAWDEV]).await;
            assert_eq!((got.type_, got.mode), (Some(type_), Some(0o604)), "{name}");
            if name == "blk" {
                assert_eq!(got.rawdev, Some(device));
            }
        }
        let file = createtype4::Default(nfs_ftype4::NF4REG);
        assert_eq!(
            client.status(at("/", create(file, "reg", &mode(0o600)))).await,
            nfsstat4::NFS4ERR_BADTYPE
        );
    });
}

#[test]
fn the_new_object_is_the_current_one_and_the_directory_has_changed() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        let before = client.attributes("/", &[FATTR4_CHANGE]).await.change.unwrap();
        let results = client
            .ok(vec![putrootfh(), create(createtype4::NF4DIR, "d", &mode(0o700)), getattr(&[FATTR4_MODE])])
            .await;
        let info = change(&results[1]);
        assert_eq!((info.atomic, info.before), (true, before));
        assert_eq!(client.attributes("/", &[FATTR4_CHANGE]).await.change, Some(info.after));
        assert_eq!(client.attributes("/", &[FATTR4_NUMLINKS]).await.numlinks, Some(3));
        let again = client.status(at("/", create(createtype4::NF4DIR, "d", &mode(0o700)))).await;
        assert_eq!(again, nfsstat4::NFS4ERR_EXIST);
        for (name, status) in [("", nfsstat4::NFS4ERR_INVAL), ("..", nfsstat4::NFS4ERR_BADNAME)] {
            let got = client.status(at("/", create(createtype4::NF4DIR, name, &mode(0o700)))).await;
            assert_eq!(got, status);
        }
    });
}

#[test]
fn symbolic_links_are_read() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        client.ok(at("/", symlink("l", "../some/where"))).await;
        let result = client.last(at("/l", readlink())).await;
        let nfs_resop4::OP_READLINK(READLINK4res::NFS4_OK(ok)) = result else { panic!() };
        assert_eq!(&ok.link[..], b"../some/where");
        assert_eq!(client.status(at("/", readlink())).await, nfsstat4::NFS4ERR_WRONG_TYPE);
    });
}

#[test]
fn removal() {
    simulate(4, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        client.mkdir("/d", "e").await;
        assert_eq!(client.status(at("/", remove("d"))).await, nfsstat4::NFS4ERR_NOTEMPTY);
        client.ok(at("/d", remove("e"))).await;
        let info = change(&client.last(at("/", remove("d"))).await);
        assert!(info.after > info.before);
        assert_eq!(client.status(at("/", remove("d"))).await, nfsstat4::NFS4ERR_NOENT);
        client.open("f", READ, 0).await;
        assert_eq!(client.status(at("/f", remove("x"))).await, nfsstat4::NFS4ERR_NOTDIR);
    });
}

/// docs/DESIGN §4: an open file keeps its data and its handle.
#[test]
fn an_open_file_outlives_its_name() {
    simulate(5, async |world: World| {
        let client = world.client("a").await;
        let (fh, stateid) = client.open("f", BOTH, 0).await;
        client.ok(at("/", remove("f"))).await;
        assert_eq!(client.status(at("/", lookup("f"))).await, nfsstat4::NFS4ERR_NOENT);
        let nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok)) =
            client.last(vec![putfh(&fh), getattr(&[FATTR4_NUMLINKS])]).await
        else {
            panic!()
        };
        assert_eq!(Attributes::decode(&ok.obj_attributes).unwrap().numlinks, Some(0));
        client.ok(vec![putfh(&fh), close(stateid)]).await;
        world.sleep(std::time::Duration::from_secs(5)).await;
        let gone = client.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await;
        assert_eq!(gone, nfsstat4::NFS4ERR_STALE);
    });
}

/// (RNM family)
#[test]
fn renaming() {
    simulate(6, async |world: World| {
        let client = world.client("a").await;
        for name in ["d", "empty", "full"] {
            client.mkdir("/", name).await;
        }
        client.mkdir("/full", "x").await;
        for name in ["f", "g"] {
            client.open(name, READ, 0).await;
        }
        let handle = client.handle("f").await;
        client.ok(moved("/", "/d", rename("f", "f2"))).await;
        assert_eq!(client.handle("/d/f2").await, handle);
        assert_eq!(client.status(at("/", lookup("f"))).await, nfsstat4::NFS4ERR_NOENT);
        client.ok(moved("/d", "/", rename("f2", "g"))).await;
        assert_eq!(client.handle("g").await, handle, "what was there is replaced");
        let status = async |from: &str, to: &str| client.status(moved("/", "/", rename(from, to))).await;
        assert_eq!(status("nothing", "x").await, nfsstat4::NFS4ERR_NOENT);
        // §18.26.3 says EXIST; NOTEMPTY, which is listed too, is what applications expect of rename().
        assert_eq!(status("d", "full").await, nfsstat4::NFS4ERR_NOTEMPTY);
        assert_eq!(status("d", "empty").await, nfsstat4::NFS4_OK);
        assert_eq!(status("g", "full").await, nfsstat4::NFS4ERR_EXIST);
        assert_eq!(status("empty", "g").await, nfsstat4::NFS4ERR_EXIST);
        assert_eq!(status("g", "g").await, nfsstat4::NFS4_OK);
        assert_eq!(status("g", "").await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status("g", ".").await, nfsstat4::NFS4ERR_BADNAME);
        let below = client.status(moved("/", "/full/x", rename("full", "y"))).await;
        assert_eq!(below, nfsstat4::NFS4ERR_INVAL);
    });
}

#[test]
fn links_are_counted() {
    simulate(7, async |world: World| {
        let client = world.client("a").await;
        client.open("f", READ, 0).await;
        client.mkdir("/", "d").await;
        client.ok(moved("/f", "/d", link("again"))).await;
        assert_eq!(client.handle("/d/again").await, client.handle("f").await);
        assert_eq!(client.attributes("f", &[FATTR4_NUMLINKS]).await.numlinks, Some(2));
        assert_eq!(client.status(moved("/f", "/", link("d"))).await, nfsstat4::NFS4ERR_EXIST);
        assert_eq!(client.status(moved("/d", "/", link("e"))).await, nfsstat4::NFS4ERR_ISDIR);
        assert_eq!(client.status(at("/", link("x"))).await, nfsstat4::NFS4ERR_NOFILEHANDLE);
        client.ok(at("/", remove("f"))).await;
        assert_eq!(client.attributes("/d/again", &[FATTR4_NUMLINKS]).await.numlinks, Some(1));
    });
}

/// Both names in one look at the store, and the directory that they are in once in each transaction.
#[test]
fn a_rename_looks_both_names_up_together() {
    simulate(35, async |world: World| {
        let client = world.client("a").await;
        let (fh, made) = client.open("f", OPEN4_SHARE_ACCESS_BOTH, 0).await;
        client.ok(vec![putfh(&fh), close(made)]).await;
        let before = world.db.work();
        client.ok(vec![putrootfh(), savefh(), rename("f", "g")]).await;
        let spent = world.db.work();
        assert_eq!((spent.views - before.views, spent.reads - before.reads), (2, 10));
    });
}
