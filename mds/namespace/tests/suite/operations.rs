//! Every operation and every error, one at a time.

use crate::common::*;
use crate::refused;
use sluice_env::Wall;
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;

#[tokio::test(start_paused = true)]
async fn a_new_file_system_is_clean_and_found_again() {
    let w = World::new().await;
    let report = w.clean().await;
    assert_eq!((report.inodes, report.entries), (1, 0));
    let again = w.read(async |txn| Namespace::load(txn).await).await.unwrap().unwrap();
    assert_eq!(again.superblock(), w.ns.superblock());
    let root = w.stat(ROOT).await.unwrap();
    assert_eq!((root.nlink(), root.kind()), (2, Kind::Directory));
    refused!(
        w.read(async |t| w.ns.lookup_parent(t, &ROOT, &Credential::ROOT).await).await,
        FsError::NotFound
    );
}

#[tokio::test(start_paused = true)]
async fn create_of_every_kind() {
    let w = World::new().await;
    let nodes = [
        (Kind::File, NewNode::File { layout: Some(layout(1, 3)), read_write_layout: true, size: 0 }),
        (Kind::Directory, NewNode::Directory),
        (Kind::Symlink, NewNode::Symlink { target: "a/b".into() }),
        (Kind::BlockDevice, NewNode::BlockDevice { major: 8, minor: 1 }),
        (Kind::CharDevice, NewNode::CharDevice { major: 1, minor: 3 }),
        (Kind::Fifo, NewNode::Fifo),
        (Kind::Socket, NewNode::Socket),
    ];
    for (kind, node) in nodes {
        let called = format!("{kind:?}");
        let made = w.node(ROOT, &called, node).await.unwrap();
        assert!(made.created);
        let found = w.lookup(ROOT, &called).await.unwrap();
        assert_eq!(plain(found.inode.clone()), plain(made.inode), "what create says is what lookup finds");
        assert_eq!((found.inode.kind(), found.entry.kind), (kind, kind));
        assert_eq!(found.inode.key, InodeKey { home: FileId::ROOT, ..found.inode.key });
        assert_eq!(found.inode.key.cookie, found.entry.cookie);
        assert!(found.inode.change > 0);
    }
    assert_eq!(w.lookup(ROOT, "BlockDevice").await.unwrap().inode.device(), (8, 1));
    assert_eq!(w.lookup(ROOT, "Symlink").await.unwrap().inode.symlink().unwrap(), "a/b");
    assert_eq!(w.stat(ROOT).await.unwrap().nlink(), 3);
    let report = w.clean().await;
    assert_eq!((report.inodes, report.entries, report.read_write_layouts), (8, 7, 1));
}

#[tokio::test(start_paused = true)]
async fn create_refusals() {
    let w = World::new().await;
    let file = w.file(ROOT, "f").await.inode.key;
    let dir = w.mkdir(ROOT, "d").await;
    refused!(w.node(ROOT, "f", NewNode::Fifo).await, FsError::Exists);
    refused!(w.node(file, "x", NewNode::Fifo).await, FsError::NotDirectory);
    refused!(w.node(InodeKey { home: FileId(9), ..ROOT }, "x", NewNode::Fifo).await, FsError::Stale);
    refused!(w.node(dir, "l", NewNode::Symlink { target: "".into() }).await, FsError::Invalid);
    refused!(
        w.node(dir, "l", NewNode::Symlink { target: vec![b'x'; 4096].into() }).await,
        FsError::NameTooLong
    );
    let mut bad = layout(5, 2);
    bad.components[0].start = 1;
    let node = NewNode::File { layout: Some(bad), read_write_layout: false, size: 0 };
    refused!(w.node(dir, "g", node).await, FsError::Invalid);
    let u = user(10, 10);
    let device = NewNode::CharDevice { major: 1, minor: 1 };
    let mode = NewAttributes::mode(0o644);
    refused!(w.make(dir, "c", device, CreateMode::Guarded, mode.clone(), &u).await, FsError::NotOwner);
    let given = NewAttributes { uid: Some(11), ..mode.clone() };
    refused!(w.make(dir, "c", NewNode::Fifo, CreateMode::Guarded, given, &u).await, FsError::NotOwner);
    let given = NewAttributes { gid: Some(11), ..mode.clone() };
    refused!(w.make(dir, "c", NewNode::Fifo, CreateMode::Guarded, given, &u).await, FsError::NotOwner);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn create_modes_of_a_name_that_exists() {
    let w = World::new().await;
    let file = || NewNode::File { layout: None, read_write_layout: false, size: 0 };
    let mode = NewAttributes::mode(0o600);
    let root = Credential::ROOT;
    let first = w.make(ROOT, "f", file(), CreateMode::Exclusive([7; 8]), mode.clone(), &root).await.unwrap();
    let before = w.stat(ROOT).await.unwrap();
    let again = w.make(ROOT, "f", file(), CreateMode::Exclusive([7; 8]), mode.clone(), &root).await.unwrap();
    assert!(first.created && !again.created);
    assert_eq!(plain(again.inode), plain(first.inode));
    assert_eq!((again.directory.before, again.directory.after), (before.change, before.change));
    refused!(
        w.make(ROOT, "f", file(), CreateMode::Exclusive([8; 8]), mode.clone(), &root).await,
        FsError::Exists
    );
    refused!(w.make(ROOT, "f", file(), CreateMode::Guarded, mode.clone(), &root).await, FsError::Exists);
    assert!(!w.make(ROOT, "f", file(), CreateMode::Unchecked, mode.clone(), &root).await.unwrap().created);
    w.mkdir(ROOT, "d").await;
    w.node(ROOT, "l", NewNode::Symlink { target: "f".into() }).await.unwrap();
    w.node(ROOT, "p", NewNode::Fifo).await.unwrap();
    let unchecked = CreateMode::Unchecked;
    refused!(w.make(ROOT, "d", file(), unchecked, mode.clone(), &root).await, FsError::IsDirectory);
    refused!(w.make(ROOT, "l", file(), unchecked, mode.clone(), &root).await, FsError::IsSymlink);
    refused!(w.make(ROOT, "p", file(), unchecked, mode.clone(), &root).await, FsError::WrongType);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn lookup_refusals_and_parents() {
    let w = World::new().await;
    let file = w.file(ROOT, "f").await.inode.key;
    let dir = w.mkdir(ROOT, "d").await;
    let below = w.mkdir(dir, "e").await;
    refused!(w.lookup(ROOT, "absent").await, FsError::NotFound);
    refused!(w.lookup(file, "x").await, FsError::NotDirectory);
    let root = Credential::ROOT;
    let parent = w.read(async |t| w.ns.lookup_parent(t, &below, &root).await).await.unwrap();
    assert_eq!(parent.key, dir);
    refused!(w.read(async |t| w.ns.lookup_parent(t, &file, &root).await).await, FsError::NotDirectory);
}

#[tokio::test(start_paused = true)]
async fn remove_takes_files_links_and_empty_directories() {
    let w = World::new().await;
    let file = w.file(ROOT, "f").await.inode;
    let dir = w.mkdir(ROOT, "d").await;
    w.link(file.key, dir, "g").await.unwrap();
    refused!(w.remove(ROOT, "d").await, FsError::NotEmpty);
    let removed = w.remove(ROOT, "f").await.unwrap();
    let Unlinked::Linked(inode) = removed.unlinked else { panic!("{removed:?}") };
    assert_eq!(inode.nlink(), 1);
    assert_eq!(plain(inode), plain(w.stat(file.key).await.unwrap()));
    let removed = w.remove(dir, "g").await.unwrap();
    let Unlinked::Removed { garbage: Some(garbage), .. } = removed.unlinked else { panic!("{removed:?}") };
    assert_eq!(Some(&garbage.layout), file.layout());
    refused!(w.stat(file.key).await, FsError::Stale);
    w.remove(ROOT, "d").await.unwrap();
    refused!(w.remove(ROOT, "d").await, FsError::NotFound);
    refused!(w.node(dir, "x", NewNode::Fifo).await, FsError::Stale);
    let report = w.clean().await;
    assert_eq!((report.inodes, report.entries, report.garbage), (1, 0, 1));
    assert_eq!(w.stat(ROOT).await.unwrap().nlink(), 2);
}

#[tokio::test(start_paused = true)]
async fn remove_of_what_is_open_leaves_an_orphan() {
    let w = World::new().await;
    let file = w.file(ROOT, "f").await.inode;
    let removed = w.remove_as(ROOT, "f", true, &Credential::ROOT).await.unwrap();
    assert!(matches!(&removed.unlinked, Unlinked::Orphaned(i) if i.nlink() == 0 && i.change > file.change));
    assert_eq!(w.stat(file.key).await.unwrap().nlink(), 0);
    refused!(w.link(file.key, ROOT, "back").await, FsError::NotFound);
    let orphans = w.read(async |t| w.ns.orphans(t, None, 10).await).await.unwrap();
    assert_eq!(orphans, [file.key]);
    assert_eq!(w.clean().await.orphans, 1);
    let reclaim = async || w.txn(async |t| w.ns.reclaim_orphan(t, &file.key).await).await.unwrap().0;
    assert!(matches!(reclaim().await, Reclaimed::Erased { kind: Kind::File, garbage: Some(_) }));
    assert_eq!(reclaim().await, Reclaimed::Gone);
    let report = w.clean().await;
    assert_eq!((report.orphans, report.garbage, report.inodes), (0, 1, 1));
    // What has a name is not an orphan, whoever says so.
    let named = w.file(ROOT, "named").await.inode.key;
    let (kept, _) = w.txn(async |t| w.ns.reclaim_orphan(t, &named).await).await.unwrap();
    assert_eq!(kept, Reclaimed::Named);
    assert_eq!(w.lookup(ROOT, "named").await.unwrap().inode.key, named);
}

#[tokio::test(start_paused = true)]
async fn names_that_moved_are_not_acted_on() {
    let w = World::new().await;
    let one = w.file(ROOT, "one").await.inode.key;
    let two = w.file(ROOT, "two").await.inode.key;
    let remove = Remove { directory: ROOT, name: name("one"), expect: Some(two), open: false };
    let r = w.act(async |t| w.ns.remove(t, &remove, &w.request(&Credential::ROOT)).await).await;
    refused!(r, FsError::NameMoved);
    let mut rename = Rename {
        from: ROOT,
        from_name: name("one"),
        to: ROOT,
        to_name: name("two"),
        expect_source: Some(two),
        expect_target: None,
        target_open: false,
    };
    for (source, target) in [(two, Some(two)), (one, Some(one)), (one, None)] {
        (rename.expect_source, rename.expect_target) = (Some(source), Some(target));
        let r = w.act(async |t| w.ns.rename(t, &rename, &w.request(&Credential::ROOT)).await).await;
        refused!(r, FsError::NameMoved);
    }
    (rename.expect_source, rename.expect_target) = (Some(one), Some(Some(two)));
    w.act(async |t| w.ns.rename(t, &rename, &w.request(&Credential::ROOT)).await).await.unwrap();
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn rename_moves_replaces_and_refuses() {
    let w = World::new().await;
    let a = w.mkdir(ROOT, "a").await;
    let b = w.mkdir(ROOT, "b").await;
    let f = w.file(a, "f").await.inode;
    let g = w.file(b, "g").await.inode;
    let moved = w.rename((a, "f"), (b, "g")).await.unwrap();
    assert_eq!(moved.moved, f.key);
    assert!(matches!(moved.replaced, Some(Unlinked::Removed { key, .. }) if key == g.key));
    assert_eq!(w.lookup(b, "g").await.unwrap().inode.key, f.key);
    refused!(w.lookup(a, "f").await, FsError::NotFound);
    refused!(w.rename((a, "f"), (b, "h")).await, FsError::NotFound);
    // Directories: across, over an empty one, not over another.
    let c = w.mkdir(a, "c").await;
    let d = w.mkdir(c, "d").await;
    refused!(w.rename((b, "g"), (a, "c")).await, FsError::Exists);
    refused!(w.rename((a, "c"), (b, "g")).await, FsError::Exists);
    refused!(w.rename((ROOT, "b"), (a, "c")).await, FsError::NotEmpty);
    refused!(w.rename((a, "c"), (d, "x")).await, FsError::Invalid);
    refused!(w.rename((a, "c"), (c, "x")).await, FsError::Invalid);
    refused!(w.rename((ROOT, "a"), (d, "x")).await, FsError::Invalid);
    let empty = w.mkdir(b, "empty").await;
    w.rename((a, "c"), (b, "empty")).await.unwrap();
    refused!(w.stat(empty).await, FsError::Stale);
    let parent = w.read(async |t| w.ns.lookup_parent(t, &c, &Credential::ROOT).await).await.unwrap();
    assert_eq!(parent.key, b);
    assert_eq!((w.stat(a).await.unwrap().nlink(), w.stat(b).await.unwrap().nlink()), (2, 3));
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn rename_between_two_names_of_one_inode_does_nothing() {
    let w = World::new().await;
    let f = w.file(ROOT, "f").await.inode.key;
    w.link(f, ROOT, "g").await.unwrap();
    let before = w.stat(ROOT).await.unwrap();
    for to in ["f", "g"] {
        let r = w.rename((ROOT, "f"), (ROOT, to)).await.unwrap();
        assert_eq!(
            r.source_directory,
            DirectoryChange { before: before.change, after: before.change, atomic: true }
        );
    }
    assert_eq!(w.stat(ROOT).await.unwrap(), before);
    assert_eq!(w.stat(f).await.unwrap().nlink(), 2);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn two_names_are_looked_up_together() {
    let w = World::new().await;
    let a = w.mkdir(ROOT, "a").await;
    let shut = w.mkdir(ROOT, "shut").await;
    w.setattr(shut, SetAttr { mode: Some(0o600), ..SetAttr::default() }, &Credential::ROOT).await.unwrap();
    let (f, g) = (w.file(a, "f").await.inode.key, w.file(ROOT, "g").await.inode.key);
    let two = async |from: (InodeKey, &str), to: (InodeKey, &str)| {
        let (old, new, who) = (name(from.1), name(to.1), user(5, 5));
        let found = w.read(async |t| w.ns.lookup_two(t, (&from.0, &old), (&to.0, &new), &who).await).await;
        found.map(|(first, second)| (first.map(|inode| inode.key), second.map(|inode| inode.key)))
    };
    assert_eq!(two((a, "f"), (ROOT, "g")).await.unwrap(), (Some(f), Some(g)));
    assert_eq!(two((a, "f"), (a, "f")).await.unwrap(), (Some(f), Some(f)));
    assert_eq!(two((a, "f"), (a, "h")).await.unwrap(), (Some(f), None));
    // Without the first the second is nobody's business.
    for to in [(ROOT, "g"), (a, "f"), (f, "x"), (shut, "x")] {
        assert_eq!(two((a, "h"), to).await.unwrap(), (None, None));
    }
    refused!(two((f, "x"), (shut, "x")).await, FsError::NotDirectory);
    refused!(two((shut, "x"), (f, "x")).await, FsError::Access);
    refused!(two((a, "f"), (f, "x")).await, FsError::NotDirectory);
    refused!(two((a, "f"), (shut, "x")).await, FsError::Access);
}

#[tokio::test(start_paused = true)]
async fn rename_among_colliding_names() {
    let w = World::with_bits(1).await;
    for i in 0..6 {
        w.file(ROOT, &format!("n{i}")).await;
    }
    w.rename((ROOT, "n0"), (ROOT, "n3")).await.unwrap();
    w.clean().await;
    w.rename((ROOT, "n3"), (ROOT, "fresh")).await.unwrap();
    w.clean().await;
    w.rename((ROOT, "n5"), (ROOT, "n1")).await.unwrap();
    w.clean().await;
    let names: Vec<_> = w.list(ROOT, 2).await.into_iter().map(|e| e.entry.name).collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn link_refusals() {
    let w = World::new().await;
    let f = w.file(ROOT, "f").await.inode.key;
    let d = w.mkdir(ROOT, "d").await;
    refused!(w.link(d, ROOT, "x").await, FsError::IsDirectory);
    refused!(w.link(f, ROOT, "d").await, FsError::Exists);
    refused!(w.link(f, f, "x").await, FsError::NotDirectory);
    let linked = w.link(f, d, "x").await.unwrap();
    assert_eq!(linked.inode.nlink(), 2);
    assert_eq!(plain(linked.inode), plain(w.stat(f).await.unwrap()));
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn the_change_attribute_is_the_commit() {
    let mut w = World::new().await;
    let dir = w.mkdir(ROOT, "d").await;
    let at = w.stat(dir).await.unwrap().change;
    let made = w.file(dir, "f").await;
    assert_eq!(made.directory, DirectoryChange { before: at, after: made.inode.change, atomic: true });
    assert_eq!(w.stat(dir).await.unwrap().change, made.directory.after);
    // The first blind update prepares the directory, the following do not read it.
    w.update = DirectoryUpdate::Blind;
    let first = w.file(dir, "g").await.directory;
    assert_eq!(first.before, made.directory.after);
    let second = w.file(dir, "h").await.directory;
    assert!(!second.atomic);
    assert_eq!(w.stat(dir).await.unwrap().change, second.after);
    let third = w.remove(dir, "f").await.unwrap().directory;
    assert!(!third.atomic && third.after > second.after);
    w.clean().await;
    w.update = DirectoryUpdate::Exact;
    let fourth = w.remove(dir, "g").await.unwrap().directory;
    assert_eq!((fourth.before, fourth.atomic), (third.after, true));
    assert_eq!(w.stat(dir).await.unwrap().directory.unwrap().entries, 1);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_directory_goes_blind_and_comes_back() {
    let mut w = World::new().await;
    let dir = w.mkdir(ROOT, "d").await;
    let at = |nanos| Wall { seconds: NOW.seconds + 10, nanos };
    (w.now, w.update) = (at(0), DirectoryUpdate::Adaptive);
    assert!(w.file(dir, "a").await.directory.atomic);
    // An attempt that met another says Blind; from then on all are.
    w.update = DirectoryUpdate::Blind;
    w.file(dir, "b").await;
    (w.now, w.update) = (at(500_000_000), DirectoryUpdate::Adaptive);
    assert!(!w.file(dir, "c").await.directory.atomic);
    // Each blind update puts the rest off.
    w.now = Wall { seconds: NOW.seconds + 11, nanos: 400_000_000 };
    assert!(!w.file(dir, "d").await.directory.atomic);
    assert!(w.stat(dir).await.unwrap().directory.unwrap().split);
    w.now = Wall { seconds: NOW.seconds + 12, nanos: 500_000_000 };
    let before = w.stat(dir).await.unwrap().change;
    let back = w.file(dir, "e").await.directory;
    assert_eq!((back.atomic, back.before), (true, before));
    let state = w.stat(dir).await.unwrap().directory.unwrap();
    assert_eq!((state.split, state.entries), (false, 5));
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn times_of_a_directory_follow_its_entries() {
    let mut w = World::new().await;
    let dir = w.mkdir(ROOT, "d").await;
    for (start, update) in
        [(0, DirectoryUpdate::Exact), (100, DirectoryUpdate::Blind), (200, DirectoryUpdate::Blind)]
    {
        let later = |s| Wall { seconds: NOW.seconds + start + s, nanos: 0 };
        w.update = update;
        w.now = later(10);
        w.file(dir, "f").await;
        assert_eq!(w.stat(dir).await.unwrap().mtime(), later(10));
        // A time of the past, set explicitly, shows until the next entry.
        w.now = later(20);
        let set = SetAttr { mtime: Some(SetTime::To(later(-500))), ..SetAttr::default() };
        let shown = w.setattr(dir, set.clone(), &Credential::ROOT).await.unwrap();
        assert_eq!((shown.mtime(), shown.ctime()), (later(-500), later(20)));
        assert_eq!(plain(w.stat(dir).await.unwrap()), plain(shown));
        w.now = later(30);
        w.remove(dir, "f").await.unwrap();
        let stat = w.stat(dir).await.unwrap();
        assert_eq!((stat.mtime(), stat.ctime()), (later(30), later(30)));
        // An entry in the very same instant shows too.
        w.setattr(dir, set.clone(), &Credential::ROOT).await.unwrap();
        w.file(dir, "f").await;
        assert!(w.stat(dir).await.unwrap().mtime() > later(30));
        w.remove(dir, "f").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_directory_policy_is_inherited() {
    let w = World::new().await;
    let dir = w.mkdir(ROOT, "d").await;
    let wide = LayoutPolicy::parse("wide,mirrors=2").unwrap();
    w.setattr(dir, SetAttr { policy: Some(wide), ..SetAttr::default() }, &Credential::ROOT).await.unwrap();
    let below = w.mkdir(dir, "e").await;
    assert_eq!(w.stat(below).await.unwrap().directory_node().unwrap().policy, wide);
    let f = w.file(dir, "f").await.inode.key;
    let set = SetAttr { policy: Some(wide), ..SetAttr::default() };
    refused!(w.setattr(f, set.clone(), &Credential::ROOT).await, FsError::WrongType);
    refused!(w.setattr(dir, set.clone(), &user(5, 5)).await, FsError::NotOwner);
}

#[tokio::test(start_paused = true)]
async fn a_full_chain_is_refused() {
    let w = World::with_bits(1).await;
    for i in 0..128 {
        w.node(ROOT, &format!("n{i}"), NewNode::Fifo).await.unwrap();
    }
    refused!(w.node(ROOT, "one too many", NewNode::Fifo).await, FsError::NoSpace);
    w.remove(ROOT, "n77").await.unwrap();
    let made = w.node(ROOT, "now", NewNode::Fifo).await.unwrap();
    assert_eq!(made.inode.key.cookie.index(), 77);
    w.clean().await;
}
