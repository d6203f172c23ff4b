//! READDIR.

use std::collections::BTreeSet;

use sluice_xdr::nfs4::*;

use crate::harness::*;

async fn page(client: &Client, path: &str, cookie: u64, maxcount: u32, attributes: &[u32]) -> dirlist4 {
    let mut ops = walk(path);
    ops.push(readdir(cookie, verifier4::default(), maxcount, attributes));
    match client.last(ops).await {
        nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(ok)) => ok.reply,
        other => panic!("{other:?}"),
    }
}

async fn all(client: &Client, path: &str, maxcount: u32) -> Vec<entry4> {
    let (mut entries, mut cookie) = (Vec::new(), 0);
    loop {
        let found = page(client, path, cookie, maxcount, &[FATTR4_FILEID, FATTR4_TYPE]).await;
        assert!(found.eof || !found.entries.is_empty());
        cookie = found.entries.last().map_or(cookie, |entry| entry.cookie);
        entries.extend(found.entries);
        if found.eof {
            return entries;
        }
    }
}

#[test]
fn every_entry_appears_exactly_once_whatever_the_page() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let names: BTreeSet<String> = (0..100).map(|n| format!("name{n}")).collect();
        for name in &names {
            client.mkdir("/d", name).await;
        }
        for maxcount in [300, 1000, 4096, 65536] {
            let entries = all(&client, "/d", maxcount).await;
            let found: Vec<String> =
                entries.iter().map(|e| String::from_utf8(e.name.to_vec()).unwrap()).collect();
            assert_eq!(found.len(), names.len(), "{maxcount}");
            assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), names);
            let cookies: BTreeSet<u64> = entries.iter().map(|entry| entry.cookie).collect();
            assert!(cookies.len() == 100 && !cookies.contains(&0) && cookies.iter().all(|c| *c > 2));
            assert!(cookies.iter().all(|c| i64::try_from(*c).is_ok()));
        }
    });
}

#[test]
fn entries_come_with_the_attributes_of_their_files() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        client.ok(vec![putrootfh(), lookup("d"), symlink("l", "x")]).await;
        let id = client.attributes("/d/l", &[FATTR4_FILEID]).await.fileid;
        let found = all(&client, "/d", 4096).await;
        let attributes = Attributes::decode(&found[0].attrs).unwrap();
        assert_eq!((attributes.fileid, attributes.type_), (id, Some(nfs_ftype4::NF4LNK)));
    });
}

#[test]
fn an_empty_directory_is_at_its_end() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let found = page(&client, "/d", 0, 4096, &[]).await;
        assert!(found.eof && found.entries.is_empty());
    });
}

#[test]
fn each_bad_argument_has_its_status() {
    simulate(4, async |world: World| {
        let client = world.client("a").await;
        client.open("f", READ, 0).await;
        client.mkdir("/", "d").await;
        let none = verifier4::default();
        let status = async |path: &str, op| {
            let mut ops = walk(path);
            ops.push(op);
            client.status(ops).await
        };
        assert_eq!(status("/", readdir(1, none, 4096, &[])).await, nfsstat4::NFS4ERR_BAD_COOKIE);
        assert_eq!(status("/", readdir(0, none, 8, &[])).await, nfsstat4::NFS4ERR_TOOSMALL);
        assert_eq!(status("/", readdir(0, none, 40, &[FATTR4_FILEID])).await, nfsstat4::NFS4ERR_TOOSMALL);
        assert_eq!(status("/f", readdir(0, none, 4096, &[])).await, nfsstat4::NFS4ERR_NOTDIR);
        let only_set = readdir(0, none, 4096, &[FATTR4_TIME_ACCESS_SET]);
        assert_eq!(status("/", only_set).await, nfsstat4::NFS4ERR_INVAL);
        let first = page(&client, "/", 0, 4096, &[]).await.entries[0].cookie;
        let other = readdir(first, verifier4([3; 8]), 4096, &[]);
        assert_eq!(status("/", other).await, nfsstat4::NFS4ERR_NOT_SAME);
    });
}

/// The place of an entry is its own: neighbours that go do not move it.
#[test]
fn a_listing_goes_on_after_its_last_entry_was_removed() {
    simulate(5, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        for n in 0..20 {
            client.mkdir("/d", &format!("n{n}")).await;
        }
        let whole = all(&client, "/d", 65536).await;
        let first = page(&client, "/d", 0, 400, &[FATTR4_FILEID, FATTR4_TYPE]).await;
        let last = first.entries.last().unwrap();
        let name = String::from_utf8(last.name.to_vec()).unwrap();
        client.ok(vec![putrootfh(), lookup("d"), remove(&name)]).await;
        let rest = page(&client, "/d", last.cookie, 65536, &[]).await;
        assert!(rest.eof);
        assert_eq!(first.entries.len() + rest.entries.len(), whole.len());
    });
}

/// POSIX: reading a directory shows names, and what leads to what they name is for who may search it.
#[test]
fn who_may_read_a_directory_and_not_search_it_sees_names() {
    simulate(7, async |world: World| {
        let root = world.client("a").await;
        root.ok(vec![putrootfh(), create(createtype4::NF4DIR, "d", &mode(0o744))]).await;
        root.mkdir("/d", "e").await;
        let user = root.over(root.raw.clone().with_user(500, 500, &[]));
        let names = [FATTR4_RDATTR_ERROR, FATTR4_MOUNTED_ON_FILEID, FATTR4_FILEID, FATTR4_TYPE];
        let all = [&names[..], &[FATTR4_SIZE, FATTR4_FILEHANDLE, FATTR4_MODE]].concat();
        let shown = async |client: &Client, asked: &[u32]| {
            let found = page(client, "/d", 0, 4096, asked).await;
            assert_eq!((found.eof, &found.entries[0].name[..]), (true, &b"e"[..]));
            Attributes::decode(&found.entries[0].attrs).unwrap()
        };
        let free = shown(&root, &names).await;
        assert_eq!(shown(&user, &names).await, free);
        // As knfsd has it: Linux lists the name, and says so when it looks at the file.
        let denied = Attributes { rdattr_error: Some(nfsstat4::NFS4ERR_ACCESS), ..free };
        assert_eq!(shown(&user, &all).await, denied);
        let bare =
            vec![putrootfh(), lookup("d"), readdir(0, verifier4::default(), 4096, &[FATTR4_FILEHANDLE])];
        assert_eq!(user.status(bare).await, nfsstat4::NFS4ERR_ACCESS);
        let searched = shown(&root, &all).await;
        assert!(searched.filehandle.is_some() && searched.rdattr_error == Some(nfsstat4::NFS4_OK));
    });
}

/// What Linux asks for that only wants names, and what it asks for that wants attributes.
#[test]
fn an_entry_says_the_same_whatever_is_asked_for() {
    simulate(6, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        for n in 0..30 {
            client.mkdir("/d", &format!("directory{n}")).await;
            client.ok(vec![putrootfh(), lookup("d"), symlink(&format!("l{n}"), "x")]).await;
        }
        // One that lives elsewhere.
        client.open("f", BOTH, 0).await;
        let moved = vec![putrootfh(), savefh(), lookup("d"), rename("f", "came")];
        client.ok(moved).await;
        let names = [FATTR4_RDATTR_ERROR, FATTR4_MOUNTED_ON_FILEID, FATTR4_FILEID, FATTR4_TYPE];
        let usual = [&names[..], &[FATTR4_SIZE, FATTR4_FILEHANDLE, FATTR4_NUMLINKS, FATTR4_OWNER]].concat();
        let unusual = [&usual[..], &[FATTR4_LEASE_TIME]].concat();
        let mut lists = Vec::new();
        for asked in [&names[..], &usual, &unusual] {
            for maxcount in [600, 65536] {
                let (mut entries, mut cookie) = (Vec::new(), 0);
                loop {
                    let found = page(&client, "/d", cookie, maxcount, asked).await;
                    entries.extend(found.entries);
                    cookie = entries.last().map_or(0, |entry| entry.cookie);
                    if found.eof {
                        break;
                    }
                }
                let whole = bitmap4::of(asked);
                assert!(entries.iter().all(|entry| entry.attrs.attrmask == whole), "{maxcount}");
                lists.push(entries);
            }
        }
        let of = |entry: &entry4| Attributes::decode(&entry.attrs).unwrap();
        // One attribute that the entry does not know is enough to read the inode.
        for number in [FATTR4_SIZE, FATTR4_CHANGE, FATTR4_MODE, FATTR4_FSID, FATTR4_TIME_MODIFY] {
            let asked = [FATTR4_TYPE, FATTR4_FILEID, number];
            for entry in page(&client, "/d", 0, 65536, &asked).await.entries {
                assert_eq!(of(&entry).present(), bitmap4::of(&asked));
            }
        }
        let (small, unusual) = (&lists[0], &lists[5]);
        assert_eq!((small.len(), small, &lists[2]), (61, &lists[1], &lists[3]));
        for ((entry, usual), unusual) in small.iter().zip(&lists[3]).zip(unusual) {
            assert_eq!((&entry.name, entry.cookie), (&usual.name, usual.cookie));
            let (few, most, all) = (of(entry), of(usual), of(unusual));
            assert_eq!(most, Attributes { lease_time: None, ..all });
            assert_eq!(
                (few.type_, few.fileid, few.mounted_on_fileid),
                (most.type_, most.fileid, most.fileid)
            );
            assert_eq!(few.rdattr_error, Some(nfsstat4::NFS4_OK));
        }
    });
}
