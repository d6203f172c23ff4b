//! The checker sees each contradiction it knows of: one is planted at a time.

use crate::common::*;
use bytes::Bytes;
use sluice_kv::{KeyRange, Transaction};
use sluice_namespace::stable_storage::*;
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;

fn prefix(name: &str) -> u8 {
    PREFIXES.iter().find(|p| p.0 == name).unwrap().1
}

fn key(table: &str, fields: &[u64]) -> Vec<u8> {
    let mut key = vec![prefix(table)];
    fields.iter().for_each(|f| key.extend(f.to_be_bytes()));
    key
}

fn inode_key(k: &InodeKey) -> Vec<u8> {
    key("INODE", &[k.home.0, k.cookie.0, k.fileid.0])
}

/// A directory with a file of two names, a symlink, a subdirectory and an attribute.
struct Planted {
    w: World,
    dir: InodeKey,
    file: Inode,
    sub: InodeKey,
}

async fn planted() -> Planted {
    let w = World::new().await;
    let dir = w.mkdir(ROOT, "d").await;
    let file = w.file(dir, "f").await.inode;
    w.link(file.key, ROOT, "g").await.unwrap();
    let sub = w.mkdir(dir, "s").await;
    let who = Credential::ROOT;
    w.act(async |t| w.ns.set_xattr(t, &dir, b"a", b"1", SetXattr::Either, &w.request(&who)).await)
        .await
        .unwrap();
    w.clean().await;
    Planted { w, dir, file, sub }
}

impl Planted {
    async fn damage(&self, damage: impl AsyncFnOnce(&mut Transaction)) {
        let done = self.w.txn(async |t| {
            damage(t).await;
            Ok(())
        });
        done.await.unwrap();
    }
    async fn found(&self, expected: impl Fn(&Problem) -> bool) {
        let report = check(&self.w.db.snapshot().await.unwrap()).await.unwrap();
        assert!(report.problems.iter().any(expected), "{report:?}");
    }
    async fn change(&self, inode: &InodeKey, change: impl FnOnce(&mut InodeRecord)) {
        self.damage(async |t| {
            let at = inode_key(inode);
            let mut record = InodeRecord::decode(t.get(&at).await.unwrap().unwrap()).unwrap();
            change(&mut record);
            t.set(at, record.encode());
        })
        .await;
    }
    async fn change_state(&self, directory: FileId, change: impl FnOnce(&mut DirectoryState)) {
        self.damage(async |t| {
            let mut at = key("DIRECTORY", &[directory.0]);
            at.push(0);
            let mut state = DirectoryState::decode(t.get(&at).await.unwrap().unwrap()).unwrap();
            change(&mut state);
            t.set(at, state.encode());
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_counts() {
    let p = planted().await;
    p.change(&p.file.key, |r| r.nlink = 3).await;
    p.found(|x| matches!(x, Problem::LinkCount { stored: 3, found: 2, .. })).await;
    let p = planted().await;
    p.change_state(p.dir.fileid, |s| s.entries += 1).await;
    p.found(|x| matches!(x, Problem::EntryCount { stored: 3, found: 2, .. })).await;
    let p = planted().await;
    p.change_state(p.dir.fileid, |s| s.subdirectories = 0).await;
    p.found(|x| matches!(x, Problem::SubdirectoryCount { stored: 0, found: 1, .. })).await;
    let p = planted().await;
    p.damage(async |t| {
        let mut at = key("STATISTIC", &[]);
        at.extend([1, 3]);
        t.set(at, Bytes::copy_from_slice(&5_u64.to_le_bytes()));
    })
    .await;
    p.found(|x| matches!(x, Problem::Statistic { what: Statistic::Files, .. })).await;
}

#[tokio::test(start_paused = true)]
async fn a_mode_that_is_not_what_the_list_says() {
    let list = |who| {
        let ace = Ace { allow: true, inheritance: Inheritance::NONE, rights: Rights::READ_DATA, who };
        Acl::new(vec![ace]).unwrap()
    };
    let p = planted().await;
    let set = SetAttr { acl: Some(list(Who::Owner)), ..SetAttr::default() };
    p.w.setattr(p.file.key, set, &Credential::ROOT).await.unwrap();
    p.w.clean().await;
    p.change(&p.file.key, |r| r.acl = Some(list(Who::Everyone))).await;
    p.found(|x| matches!(x, Problem::Acl { .. })).await;
    let p = planted().await;
    p.damage(async |t| {
        let at = inode_key(&p.file.key);
        let mut value = t.get(&at).await.unwrap().unwrap().to_vec();
        // It says that it has a list, and has none.
        value[0] = 2;
        t.set(at, value);
    })
    .await;
    p.found(|x| matches!(x, Problem::Unreadable { .. })).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_missing() {
    let p = planted().await;
    p.damage(async |t| t.clear(inode_key(&p.file.key))).await;
    p.found(|x| matches!(x, Problem::Dangling { .. })).await;
    p.found(|x| matches!(x, Problem::DataFileOwner { .. })).await;
    let p = planted().await;
    p.damage(async |t| t.clear(inode_key(&p.dir))).await;
    p.found(|x| matches!(x, Problem::NoDirectory { .. })).await;
    p.found(|x| matches!(x, Problem::State { .. })).await;
    p.found(|x| matches!(x, Problem::Unreachable { .. })).await;
    p.found(|x| matches!(x, Problem::Xattrs { .. })).await;
    let p = planted().await;
    p.damage(async |t| t.clear(key("DIRENT", &[p.dir.fileid.0, p.sub.cookie.0]))).await;
    p.found(|x| matches!(x, Problem::Nameless { .. })).await;
    p.found(|x| matches!(x, Problem::Parent { .. })).await;
    let p = planted().await;
    p.damage(async |t| t.clear_range(&KeyRange::prefix(key("DIRECTORY", &[p.sub.fileid.0])))).await;
    p.found(|x| matches!(x, Problem::State { .. })).await;
    let p = planted().await;
    p.damage(async |t| t.clear_range(&KeyRange::prefix(key("DATA_FILE", &[])))).await;
    p.found(|x| matches!(x, Problem::DataFileOwner { .. })).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_too_much_or_wrong() {
    let p = planted().await;
    p.damage(async |t| t.set(inode_key(&p.file.key), Bytes::from_static(b"\x01nonsense"))).await;
    p.found(|x| matches!(x, Problem::Unreadable { .. })).await;
    let p = planted().await;
    p.damage(async |t| {
        let at = key("DIRENT", &[p.dir.fileid.0, p.file.key.cookie.0]);
        let value = t.get(&at).await.unwrap().unwrap();
        t.set(key("DIRENT", &[p.dir.fileid.0, p.file.key.cookie.0 + 128]), value);
    })
    .await;
    p.found(|x| matches!(x, Problem::Misplaced { .. })).await;
    let p = planted().await;
    p.change(&p.dir, |r| {
        if let Node::Directory(d) = &mut r.node {
            d.parent = p.sub;
        }
    })
    .await;
    p.found(|x| matches!(x, Problem::Unreachable { .. })).await;
    let p = planted().await;
    p.change(&p.file.key, |r| r.node = Node::Fifo).await;
    p.found(|x| matches!(x, Problem::WrongKind { .. })).await;
    let p = planted().await;
    p.change(&p.file.key, |r| {
        if let Node::File(f) = &mut r.node {
            f.size = 5;
        }
    })
    .await;
    p.found(|x| matches!(x, Problem::NoSpaceUsed { .. })).await;
    let p = planted().await;
    p.change(&p.file.key, |r| {
        if let Node::File(f) = &mut r.node {
            f.layout.as_mut().unwrap().mirrors_dirty = true;
        }
    })
    .await;
    p.found(|x| matches!(x, Problem::Unhealed { .. })).await;
    for table in ["ORPHAN", "RW_LAYOUT", "HEAL"] {
        let p = planted().await;
        p.damage(async |t| {
            let mut value = vec![1];
            value.extend(&inode_key(&p.dir)[1..]);
            t.set(key(table, &[p.dir.fileid.0]), value);
        })
        .await;
        p.found(|x| matches!(x, Problem::StaleRow { .. })).await;
    }
    // Nor does a file have them that has no data files.
    for table in ["RW_LAYOUT", "TRUNCATE"] {
        let p = planted().await;
        let node = NewNode::File { layout: None, read_write_layout: false, size: 0 };
        let bare = p.w.node(p.dir, "bare", node).await.unwrap().inode.key;
        p.damage(async |t| {
            let mut value = vec![1];
            value.extend(&inode_key(&bare)[1..]);
            t.set(key(table, &[bare.fileid.0]), value);
        })
        .await;
        p.found(|x| matches!(x, Problem::StaleRow { number, .. } if *number == bare.fileid.0)).await;
    }
    let p = planted().await;
    p.damage(async |t| {
        let mut twin = p.file.key;
        twin.home = FileId(77);
        let value = t.get(&inode_key(&p.file.key)).await.unwrap().unwrap();
        t.set(inode_key(&twin), value);
    })
    .await;
    p.found(|x| matches!(x, Problem::TwoInodes { .. })).await;
    let p = planted().await;
    p.damage(async |t| {
        let id = p.file.layout().unwrap().id;
        t.set(key("GARBAGE", &[id.0]), Bytes::from_static(b"\x01"));
    })
    .await;
    p.found(|x| matches!(x, Problem::GarbageInUse { .. })).await;
}

/// Up to the last byte that a file may have: the counter cannot say what its space is rounded up to.
#[tokio::test(start_paused = true)]
async fn the_largest_file_is_counted_as_it_was() {
    let p = planted().await;
    let who = Credential::ROOT;
    for end in [1, (1 << 63) - 1] {
        let end = CommitSize { end: Some(end), ..CommitSize::default() };
        p.w.act(async |t| p.w.ns.commit_size(t, &p.file.key, &end, &p.w.request(&who)).await).await.unwrap();
    }
    p.w.clean().await;
    p.change(&p.file.key, |r| {
        if let Node::File(f) = &mut r.node {
            f.space_used = 4096;
        }
    })
    .await;
    p.found(|x| matches!(x, Problem::Statistic { what: Statistic::Bytes, found: 4096, .. })).await;
}

/// A data server that is in use and one that is drained, with their rows.
async fn with_servers() -> Planted {
    let p = planted().await;
    p.w.txn(async |t| {
        store_by_uuid(t, &[1; 16]).await?;
        let goes = store_by_uuid(t, &[2; 16]).await?;
        let row = Drain { store: goes.id, since: 1, rate: 0, data_files: 0, bytes: 0, done: false };
        put_drain(t, &goes, &row);
        Ok(())
    })
    .await
    .unwrap();
    p.w.clean().await;
    p
}

#[tokio::test(start_paused = true)]
async fn what_data_servers_rows_say_of_each_other() {
    let number = |table, id: u16| [vec![prefix(table)], id.to_be_bytes().to_vec()].concat();
    let uuid = |n: u8| [vec![prefix("STORE_UUID")], vec![n; 16]].concat();
    let wrong = |id| move |x: &Problem| matches!(x, Problem::Store { store } if *store == StoreId(id));
    let p = with_servers().await;
    p.damage(async |t| t.clear(number("DRAIN", 2))).await;
    p.found(wrong(2)).await;
    let p = with_servers().await;
    p.damage(async |t| {
        let row = Drain { store: StoreId(1), since: 1, rate: 0, data_files: 0, bytes: 0, done: false };
        let (drained, other) = (number("DRAIN", 1), number("STORE", 1));
        let before = t.get(&other).await.unwrap().unwrap();
        put_drain(t, &store(t, StoreId(1)).await.unwrap().unwrap(), &row);
        assert!(t.get(&drained).await.unwrap().is_some());
        t.set(other, before);
    })
    .await;
    p.found(wrong(1)).await;
    let p = with_servers().await;
    p.damage(async |t| t.clear(uuid(1))).await;
    p.found(wrong(1)).await;
    let p = with_servers().await;
    p.damage(async |t| {
        let other = t.get(&uuid(2)).await.unwrap().unwrap();
        t.set(uuid(1), other);
    })
    .await;
    p.found(wrong(1)).await;
    // What an administrator does leaves nothing wrong.
    let p = with_servers().await;
    let row = async |id| p.w.read(async |t| store(t, StoreId(id)).await).await.unwrap().unwrap();
    let goes = row(2).await;
    p.damage(async |t| cancel_drain(t, &goes)).await;
    p.w.clean().await;
    let drain = Drain { store: StoreId(2), since: 1, rate: 0, data_files: 0, bytes: 0, done: true };
    p.damage(async |t| put_drain(t, &goes, &drain)).await;
    let goes = row(2).await;
    p.damage(async |t| remove_store(t, &goes)).await;
    p.w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_filled_and_is_no_spare() {
    for damage in [None, Some(7)] {
        let p = planted().await;
        let (key_, id) = (p.file.key, p.file.layout().unwrap().id);
        let old = p.file.layout().unwrap().data_files().next().unwrap().slot;
        let plan = async |t: &mut Transaction| p.w.ns.plan_replacement(t, &key_, old, StoreId(99)).await;
        let (new, _) = p.w.txn(plan).await.unwrap();
        p.w.clean().await;
        let at = [key("SPARE", &[id.0]), new.slot.to_be_bytes().to_vec()].concat();
        p.damage(async |t| match damage {
            None => t.clear(at),
            Some(generation) => {
                let mut value = t.get(&at).await.unwrap().unwrap().to_vec();
                *value.last_mut().unwrap() = generation;
                t.set(at, value);
            }
        })
        .await;
        p.found(|x| matches!(x, Problem::NoSpare { slot, .. } if *slot == new.slot)).await;
    }
}

/// A server that reads one of these goes no further: it does not start, or does not remove what is queued behind it.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read() {
    for (table, fields) in [
        ("MDS_EPOCH", 0),
        ("GARBAGE", 8),
        ("FENCE", 10),
        ("SPARE", 10),
        ("CLIENT", 8),
        ("SESSION", 16),
        ("REPLY", 20),
        ("SERVER", 0),
        ("STORE", 2),
        ("STORE_UUID", 16),
        ("CAPABILITY", 0),
        ("EXPORT", 4),
        ("POLICY", 3),
        ("BALANCE", 0),
    ] {
        let p = planted().await;
        let mut at = key(table, &[]);
        at.resize(1 + fields, b'x');
        p.damage(async |t| t.set(at.clone(), Bytes::from_static(b"\x01nonsense"))).await;
        p.found(|x| matches!(x, Problem::Unreadable { key, .. } if key[..] == at[..])).await;
    }
    // One that is about another data file than its key: it would be worked on for ever.
    let p = planted().await;
    let id = p.w.file(ROOT, "x").await.inode.layout().unwrap().id;
    p.w.remove(ROOT, "x").await.unwrap();
    p.w.clean().await;
    p.damage(async |t| {
        let at = key("GARBAGE", &[id.0]);
        let value = t.get(&at).await.unwrap().unwrap();
        t.clear(at);
        t.set(key("GARBAGE", &[id.0 + 1]), value);
    })
    .await;
    p.found(|x| matches!(x, Problem::Unreadable { .. })).await;
}
