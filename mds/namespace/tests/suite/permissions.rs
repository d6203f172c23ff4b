//! Who may do what.

use crate::common::*;
use crate::refused;
use sluice_env::Wall;
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;
const OWNER: u32 = 10;
const GROUP: u32 = 20;

/// Owner, member, other, root.
fn everybody() -> [(Credential, u16); 3] {
    let member = Credential { uid: 11, gid: 1, gids: vec![GROUP] };
    [(user(OWNER, 1), 6), (member, 3), (user(12, 1), 0)]
}

async fn directory(w: &World, mode: u16) -> InodeKey {
    let dir = w.mkdir(ROOT, "d").await;
    own(w, dir, mode).await;
    dir
}

async fn own(w: &World, key: InodeKey, mode: u16) {
    let set = SetAttr { uid: Some(OWNER), gid: Some(GROUP), mode: Some(mode), ..SetAttr::default() };
    w.setattr(key, set, &Credential::ROOT).await.unwrap();
}

fn allowed<T: std::fmt::Debug>(result: Result<T, FsError>, allowed: bool, what: &str) {
    match result {
        Ok(_) if allowed => {}
        Err(FsError::Access) if !allowed => {}
        other => panic!("{what}: {other:?}, allowed {allowed}"),
    }
}

#[tokio::test(start_paused = true)]
async fn directories_are_searched_read_and_changed_by_their_mode_bits() {
    let w = World::new().await;
    let dir = directory(&w, 0o777).await;
    let outside = w.file(ROOT, "outside").await.inode.key;
    for bits in 0..8_u16 {
        for (who, shift) in everybody() {
            own(&w, dir, bits << shift).await;
            w.file(dir, "f").await;
            let what = format!("bits {bits:o} of uid {}", who.uid);
            let (search, read, change) = (bits & 1 != 0, bits & 4 != 0, bits & 3 == 3);
            allowed(w.lookup_as(dir, "f", &who).await, search, &format!("lookup, {what}"));
            let read_dir = ReadDir { directory: dir, after: Cookie(0), limit: 5, attributes: false };
            allowed(
                w.read(async |t| w.ns.readdir(t, &read_dir, &who).await).await,
                read,
                &format!("readdir, {what}"),
            );
            let mode = NewAttributes::mode(0o600);
            allowed(
                w.make(dir, "new", NewNode::Fifo, CreateMode::Guarded, mode.clone(), &who).await,
                change,
                &format!("create, {what}"),
            );
            allowed(w.link_as(outside, dir, "link", &who).await, change, &format!("link, {what}"));
            allowed(w.rename_as((dir, "f"), (dir, "g"), &who).await, change, &format!("rename, {what}"));
            let left = if change { "g" } else { "f" };
            allowed(w.remove_as(dir, left, false, &who).await, change, &format!("remove, {what}"));
            for leftover in ["f", "g", "new", "link"] {
                drop(w.remove(dir, leftover).await);
            }
        }
    }
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn names_show_only_to_those_who_may_search() {
    let w = World::new().await;
    let dir = directory(&w, 0o666).await;
    let who = user(99, 99);
    // Neither presence nor absence shows.
    refused!(w.lookup_as(dir, "absent", &who).await, FsError::Access);
    refused!(w.remove_as(dir, "absent", false, &who).await, FsError::Access);
    refused!(w.rename_as((dir, "absent"), (dir, "x"), &who).await, FsError::Access);
    own(&w, dir, 0o711).await;
    refused!(w.remove_as(dir, "absent", false, &who).await, FsError::NotFound);
    w.file(dir, "f").await;
    let mode = NewAttributes::mode(0o600);
    refused!(w.make(dir, "f", NewNode::Fifo, CreateMode::Guarded, mode.clone(), &who).await, FsError::Exists);
    refused!(w.make(dir, "g", NewNode::Fifo, CreateMode::Guarded, mode.clone(), &who).await, FsError::Access);
}

#[tokio::test(start_paused = true)]
async fn sticky_directories_keep_entries_for_their_owners() {
    let w = World::new().await;
    let dir = directory(&w, 0o1777).await;
    for called in ["a", "b", "mine"] {
        w.file(dir, called).await;
    }
    let (me, other) = (user(30, 30), user(31, 31));
    let mine = w.lookup(dir, "mine").await.unwrap().inode.key;
    w.setattr(mine, SetAttr { uid: Some(30), ..SetAttr::default() }, &Credential::ROOT).await.unwrap();
    refused!(w.remove_as(dir, "a", false, &me).await, FsError::NotOwner);
    refused!(w.rename_as((dir, "a"), (dir, "x"), &me).await, FsError::NotOwner);
    refused!(w.rename_as((dir, "mine"), (dir, "a"), &me).await, FsError::NotOwner);
    refused!(w.remove_as(dir, "mine", false, &other).await, FsError::NotOwner);
    w.remove_as(dir, "mine", false, &me).await.unwrap();
    w.remove_as(dir, "a", false, &user(OWNER, 1)).await.unwrap();
}

/// RFC 8881 §6.2.1.3.2: DELETE on the entry is enough, whatever the directory's mode says of its entries.
#[tokio::test(start_paused = true)]
async fn an_entry_may_be_removed_by_whom_its_own_list_lets() {
    let w = World::new().await;
    let dir = directory(&w, 0o755).await;
    let mine = w.mkdir(ROOT, "mine").await;
    let (me, other) = (user(30, 30), user(31, 31));
    let listed = async |called: &str, allow| {
        let file = w.file(dir, called).await.inode.key;
        let ace =
            Ace { allow, inheritance: Inheritance::NONE, rights: Rights::DELETE, who: Who::User(me.uid) };
        let acl = Some(Acl::new(vec![ace]).unwrap());
        w.setattr(file, SetAttr { acl, ..SetAttr::default() }, &Credential::ROOT).await.unwrap();
    };
    for sticky in [0, 0o1000] {
        own(&w, dir, sticky | 0o755).await;
        for called in ["a", "b", "c", "d"] {
            listed(called, true).await;
        }
        w.file(dir, "plain").await;
        refused!(w.remove_as(dir, "plain", false, &me).await, FsError::Access);
        refused!(w.rename_as((dir, "plain"), (mine, "x"), &me).await, FsError::Access);
        refused!(w.remove_as(dir, "a", false, &other).await, FsError::Access);
        refused!(w.rename_as((dir, "a"), (mine, "x"), &other).await, FsError::Access);
        w.remove_as(dir, "a", false, &me).await.unwrap();
        w.rename_as((dir, "b"), (mine, "b"), &me).await.unwrap();
        // What is moved is added, too, wherever that is and whatever goes for it.
        refused!(w.rename_as((dir, "c"), (dir, "x"), &me).await, FsError::Access);
        refused!(w.rename_as((mine, "b"), (dir, "c"), &me).await, FsError::Access);
        refused!(w.rename_as((dir, "c"), (dir, "d"), &me).await, FsError::Access);
        // As before: what is not there is not told from what may not be changed, but to those who remove.
        refused!(w.remove_as(dir, "absent", false, &me).await, FsError::NotFound);
        refused!(w.rename_as((dir, "absent"), (mine, "x"), &me).await, FsError::Access);
        own(&w, dir, sticky | 0o744).await;
        refused!(w.remove_as(dir, "c", false, &me).await, FsError::Access);
        refused!(w.remove_as(dir, "absent", false, &me).await, FsError::Access);
        refused!(w.rename_as((dir, "c"), (mine, "x"), &me).await, FsError::Access);
        own(&w, dir, sticky | 0o777).await;
        if sticky == 0 {
            w.remove_as(dir, "c", false, &other).await.unwrap();
            listed("denied", false).await;
            w.remove_as(dir, "denied", false, &me).await.unwrap();
        } else {
            refused!(w.remove_as(dir, "c", false, &other).await, FsError::NotOwner);
            refused!(w.rename_as((dir, "plain"), (mine, "x"), &me).await, FsError::NotOwner);
            w.rename_as((dir, "c"), (dir, "d"), &me).await.unwrap();
        }
        for left in ["d", "plain"] {
            w.remove(dir, left).await.unwrap();
        }
        w.remove(mine, "b").await.unwrap();
    }
    w.clean().await;
}

/// Two names of one file: that nothing happens is no way to ask what could.
#[tokio::test(start_paused = true)]
async fn nothing_is_renamed_only_where_something_could_be() {
    let w = World::new().await;
    let dir = directory(&w, 0o755).await;
    let mine = w.mkdir(ROOT, "mine").await;
    let file = w.file(dir, "f").await.inode.key;
    w.link(file, mine, "g").await.unwrap();
    let me = user(30, 30);
    refused!(w.rename_as((dir, "f"), (mine, "g"), &me).await, FsError::Access);
    refused!(w.rename_as((mine, "g"), (dir, "f"), &me).await, FsError::Access);
    own(&w, dir, 0o757).await;
    assert_eq!(w.rename_as((dir, "f"), (mine, "g"), &me).await.unwrap().moved, file);
    assert!(w.lookup(dir, "f").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_directory_moves_only_with_write_permission_on_itself() {
    let w = World::new().await;
    let from = w.mkdir(ROOT, "from").await;
    let to = w.mkdir(ROOT, "to").await;
    let dir = w.mkdir(from, "d").await;
    own(&w, dir, 0o555).await;
    let who = user(99, 99);
    refused!(w.rename_as((from, "d"), (to, "d"), &who).await, FsError::Access);
    w.rename_as((from, "d"), (from, "e"), &who).await.unwrap();
    own(&w, dir, 0o557).await;
    w.rename_as((from, "e"), (to, "d"), &who).await.unwrap();
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn owners_change_modes_and_groups_and_root_changes_owners() {
    let w = World::new().await;
    let f = w.file(ROOT, "f").await.inode.key;
    own(&w, f, 0o6755).await;
    let [(owner, _), (member, _), (other, _)] = everybody();
    let mode = |m| SetAttr { mode: Some(m), ..SetAttr::default() };
    refused!(w.setattr(f, mode(0o600), &member).await, FsError::NotOwner);
    refused!(w.setattr(f, mode(0o600), &other).await, FsError::NotOwner);
    refused!(w.setattr(f, mode(0o10000), &owner).await, FsError::Invalid);
    // The owner is not in the file's group: the set-group-id bit does not stay.
    assert_eq!(w.setattr(f, mode(0o6711), &owner).await.unwrap().record.mode, 0o4711);
    let chown = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
    refused!(w.setattr(f, chown(Some(11), None), &owner).await, FsError::NotOwner);
    refused!(w.setattr(f, chown(None, Some(77)), &owner).await, FsError::NotOwner);
    refused!(w.setattr(f, chown(None, Some(GROUP)), &other).await, FsError::NotOwner);
    let given = w.setattr(f, chown(Some(OWNER), Some(1)), &owner).await.unwrap();
    assert_eq!((given.record.gid, given.record.mode), (1, 0o711), "set-id bits go with the group");
    let given = w.setattr(f, chown(Some(5), Some(6)), &Credential::ROOT).await.unwrap();
    assert_eq!((given.record.uid, given.record.gid), (5, 6));
}

#[tokio::test(start_paused = true)]
async fn times_of_choice_take_ownership_and_the_present_time_write_permission() {
    let w = World::new().await;
    let f = w.file(ROOT, "f").await.inode.key;
    own(&w, f, 0o620).await;
    let [(owner, _), (member, _), (other, _)] = everybody();
    let at = Wall { seconds: -5, nanos: 3 };
    let to = SetAttr { atime: Some(SetTime::To(at)), mtime: Some(SetTime::Now), ..SetAttr::default() };
    let now = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    refused!(w.setattr(f, to.clone(), &member).await, FsError::NotOwner);
    refused!(w.setattr(f, now.clone(), &other).await, FsError::Access);
    w.setattr(f, now.clone(), &member).await.unwrap();
    w.setattr(f, SetAttr { writable_open: true, ..now.clone() }, &other).await.unwrap();
    let set = w.setattr(f, to.clone(), &owner).await.unwrap();
    assert_eq!((set.record.atime, set.mtime()), (at, NOW));
    let nothing = w.setattr(f, SetAttr::default(), &other).await.unwrap();
    assert_eq!(nothing.change, set.change, "nothing to set changes nothing");
}

#[tokio::test(start_paused = true)]
async fn a_set_group_id_directory_gives_its_group() {
    let w = World::new().await;
    let dir = directory(&w, 0o2777).await;
    let who = user(30, 30);
    let mode = NewAttributes::mode(0o755);
    let sub = w.make(dir, "s", NewNode::Directory, CreateMode::Guarded, mode.clone(), &who).await.unwrap();
    assert_eq!((sub.inode.record.gid, sub.inode.record.mode), (GROUP, 0o2755));
    let file = w.make(dir, "f", NewNode::Fifo, CreateMode::Guarded, mode.clone(), &who).await.unwrap();
    assert_eq!((file.inode.record.uid, file.inode.record.gid, file.inode.record.mode), (30, GROUP, 0o755));
}

/// Releases before there was automatic inheritance do not read what comes of it, and so not the store (ADR 0016).
#[tokio::test(start_paused = true)]
async fn the_first_list_that_takes_part_in_inheritance_closes_the_store_to_the_release_before() {
    let list = |inheritance, flags| {
        let ace = Ace { allow: true, inheritance, rights: Rights::ALL, who: Who::Owner };
        Acl::new(vec![ace]).unwrap().flagged(flags)
    };
    let plain = list(Inheritance::NONE, AclFlags::NONE);
    for marked in
        [list(Inheritance::NONE, AclFlags::AUTO_INHERIT), list(Inheritance::INHERITED, AclFlags::NONE)]
    {
        for set_later in [true, false] {
            let w = World::new().await;
            let closed = async || Namespace::load(&w.db.begin()).await.unwrap().unwrap().superblock().marked;
            let give = async |called: &str, acl: &Acl| {
                let acl = Some(acl.clone());
                if set_later {
                    let file = w.file(ROOT, called).await.inode.key;
                    w.setattr(file, SetAttr { acl, ..SetAttr::default() }, &Credential::ROOT).await.unwrap();
                } else {
                    let attributes = NewAttributes { acl, ..NewAttributes::mode(0o600) };
                    let guarded = CreateMode::Guarded;
                    w.make(ROOT, called, NewNode::Fifo, guarded, attributes, &Credential::ROOT)
                        .await
                        .unwrap();
                }
            };
            give("plain", &plain).await;
            assert!(!closed().await, "an ordinary list");
            give("marked", &marked).await;
            assert!(closed().await, "{marked:?}, set later: {set_later}");
            give("more", &plain).await;
            assert!(closed().await, "for good");
        }
    }
}
