//! Who is charged for what: after each operation, and after random ones with counting and walks in between.

use crate::common::*;
use crate::refused;
use proptest::prelude::*;
use sluice_kv::KeyRange;
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;
const TREES: Subject = Subject::Tree(FileId(0));

impl World {
    async fn usage(&self, subject: Subject) -> (u64, u128) {
        let used = self.read(async |t| self.ns.usage(t, subject).await).await.unwrap();
        (used.files, used.bytes)
    }
    async fn file_of(&self, directory: InodeKey, called: &str, size: u64, who: &Credential) -> InodeKey {
        let node = NewNode::File { layout: Some(layout(self.id(), 1)), read_write_layout: false, size };
        let attributes = NewAttributes::mode(0o666);
        let made = self.make(directory, called, node, CreateMode::Guarded, attributes, who).await;
        made.unwrap().inode.key
    }
    async fn set_tree(&self, root: InodeKey) -> Result<TreeState, FsError> {
        let limits = Limits::default();
        Ok(self.txn(async |t| self.ns.set_tree(t, &root, limits).await).await?.0)
    }
    async fn remove_tree(&self, root: InodeKey) -> Result<(), FsError> {
        self.txn(async |t| self.ns.remove_tree(t, root.fileid).await).await.map(drop)
    }
    async fn walk(&self, root: InodeKey, limit: usize) -> Walked {
        self.txn(async |t| self.ns.walk_some(t, root.fileid, limit).await).await.unwrap().0
    }
    async fn walk_all(&self, root: InodeKey) {
        while self.walk(root, 2).await == Walked::Some {}
    }
    async fn count(&self, limit: usize) -> Counted {
        let counted = self.txn(async |t| self.ns.count_some(t, limit).await).await.unwrap().0;
        if counted == Counted::All {
            self.ns.counting_ended();
        }
        counted
    }
    async fn commit(&self, key: InodeKey, end: u64) {
        let commit = CommitSize { end: Some(end), ..CommitSize::default() };
        let who = Credential::ROOT;
        self.act(async |t| self.ns.commit_size(t, &key, &commit, &self.request(&who)).await).await.unwrap();
    }
    async fn truncate(&self, key: InodeKey, size: u64) -> Result<Truncated, FsError> {
        let set = SetSize { size, fresh: Some(layout(self.id(), 1)), old: None, writable_open: true };
        let who = Credential::ROOT;
        let done = self.act(async |t| self.ns.truncate(t, &key, &set, &self.request(&who)).await).await;
        self.txn(async |t| {
            self.ns.truncate_done(t, key.fileid);
            Ok(())
        })
        .await?;
        done
    }
}

#[tokio::test(start_paused = true)]
async fn charges_follow_what_happens() {
    let w = World::new().await;
    let anna = user(7, 70);
    let file = w.file_of(ROOT, "f", 100, &anna).await;
    assert_eq!(w.usage(Subject::User(7)).await, (1, 100));
    assert_eq!(w.usage(Subject::Group(70)).await, (1, 100));
    assert_eq!(w.usage(Subject::User(0)).await, (1, 0), "the root directory");
    w.commit(file, 5_000).await;
    w.commit(file, 4_000).await;
    assert_eq!(w.usage(Subject::User(7)).await, (1, 5_000));
    w.truncate(file, 1 << 62).await.unwrap();
    assert_eq!(w.usage(Subject::User(7)).await, (1, 1 << 62));
    w.truncate(file, 10).await.unwrap();
    w.setattr(file, SetAttr { data_end: Some(30), ..SetAttr::default() }, &anna).await.unwrap();
    assert_eq!(w.usage(Subject::Group(70)).await, (1, 30));
    // Another name costs nothing; a link, a directory, a pipe are a file each.
    w.link_as(file, ROOT, "g", &anna).await.unwrap();
    assert_eq!(w.usage(Subject::User(7)).await, (1, 30));
    let attributes = || NewAttributes::mode(0o755);
    for (called, node) in [
        ("s", NewNode::Symlink { target: "somewhere".into() }),
        ("d", NewNode::Directory),
        ("p", NewNode::Fifo),
    ] {
        w.make(ROOT, called, node, CreateMode::Guarded, attributes(), &anna).await.unwrap();
    }
    assert_eq!(w.usage(Subject::User(7)).await, (4, 30));
    // A change of owner takes all of it along, a change of group only the group's.
    let chown = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
    w.setattr(file, chown(Some(8), None), &Credential::ROOT).await.unwrap();
    assert_eq!(w.usage(Subject::User(7)).await, (3, 0));
    assert_eq!(w.usage(Subject::User(8)).await, (1, 30));
    assert_eq!(w.usage(Subject::Group(70)).await, (4, 30));
    w.setattr(file, chown(None, Some(80)), &Credential::ROOT).await.unwrap();
    assert_eq!(w.usage(Subject::Group(70)).await, (3, 0));
    assert_eq!(w.usage(Subject::Group(80)).await, (1, 30));
    // It is charged until it is gone, and it is not gone while it has a name or is open.
    w.remove(ROOT, "f").await.unwrap();
    w.remove_as(ROOT, "g", true, &Credential::ROOT).await.unwrap();
    assert_eq!(w.usage(Subject::User(8)).await, (1, 30));
    w.txn(async |t| w.ns.reclaim_orphan(t, &file).await).await.unwrap();
    assert_eq!(w.usage(Subject::User(8)).await, (0, 0));
    // What a rename replaces is gone.
    w.rename((ROOT, "s"), (ROOT, "p")).await.unwrap();
    assert_eq!(w.usage(Subject::User(7)).await, (2, 0));
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn everybody_who_uses_something_is_listed() {
    let w = World::new().await;
    for uid in 1..30 {
        w.file_of(ROOT, &format!("f{uid}"), uid.into(), &user(uid, 5)).await;
    }
    w.remove(ROOT, "f9").await.unwrap();
    for limit in [1, 2, 3, 100] {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = w.read(async |t| w.ns.usages(t, Subject::User(0), after, limit).await).await.unwrap();
            all.extend(page.0);
            after = page.1;
            if after.is_none() {
                break;
            }
        }
        let expected: Vec<_> = (0..30_u32)
            .filter(|uid| *uid != 9)
            .map(|uid| (Subject::User(uid), Usage { files: 1, bytes: uid.into() }))
            .collect();
        assert_eq!(all, expected, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_made_where_another_is_being_taken_apart_gets_all_that_is_below() {
    for first in [true, false] {
        let w = World::new().await;
        let top = w.mkdir(ROOT, "top").await;
        let inner = w.mkdir(top, "inner").await;
        let deep = w.mkdir(inner, "deep").await;
        w.file_of(deep, "f", 10, &Credential::ROOT).await;
        w.set_tree(top).await.unwrap();
        w.walk_all(top).await;
        w.remove_tree(top).await.unwrap();
        while w.stat(inner).await.unwrap().record.tree.is_some() {
            w.walk(top, 1).await;
        }
        // The walk that takes `top` apart has yet to come to what is in here.
        assert_eq!(w.set_tree(inner).await.unwrap(), TreeState::Filling);
        let order = if first { [inner, top] } else { [top, inner] };
        for tree in order {
            w.walk_all(tree).await;
        }
        w.walk_all(inner).await;
        w.clean().await;
        assert_eq!(w.usage(Subject::Tree(inner.fileid)).await, (3, 10), "{first}");
        assert_eq!(w.usage(Subject::Tree(top.fileid)).await, (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_walked_while_it_is_in_use() {
    let w = World::new().await;
    let top = w.mkdir(ROOT, "top").await;
    let (a, b) = (w.mkdir(top, "a").await, w.mkdir(top, "b").await);
    let deep = w.mkdir(a, "deep").await;
    for n in 0..5 {
        w.file_of(a, &format!("f{n}"), 10, &Credential::ROOT).await;
        w.file_of(deep, &format!("f{n}"), 10, &Credential::ROOT).await;
    }
    let tree = Subject::Tree(top.fileid);
    assert_eq!(w.set_tree(top).await.unwrap(), TreeState::Filling);
    assert_eq!(w.usage(tree).await, (1, 0));
    w.clean().await;
    // What is made before the walk arrives is in it as soon as its directory is.
    w.file_of(top, "new", 1, &Credential::ROOT).await;
    assert_eq!(w.usage(tree).await, (2, 1));
    // Nothing slips behind the walk: a directory does not move from where it has not been to where it has.
    while w.stat(a).await.unwrap().record.tree.is_none() {
        w.walk(top, 1).await;
    }
    refused!(w.rename((a, "deep"), (top, "deep")).await, FsError::CrossDevice);
    w.rename((a, "f0"), (b, "f0")).await.unwrap();
    w.clean().await;
    w.walk_all(top).await;
    assert_eq!(w.usage(tree).await, (4 + 10 + 1, 101));
    w.clean().await;
    // Within it everything moves; across its border files do that have one name.
    w.rename((a, "deep"), (b, "deep")).await.unwrap();
    w.rename((b, "deep"), (a, "deep")).await.unwrap();
    refused!(w.rename((a, "deep"), (ROOT, "deep")).await, FsError::CrossDevice);
    let outside = w.mkdir(ROOT, "outside").await;
    refused!(w.rename((ROOT, "outside"), (top, "outside")).await, FsError::CrossDevice);
    let file = w.lookup(a, "f1").await.unwrap().inode.key;
    refused!(w.link(file, outside, "f1").await, FsError::CrossDevice);
    w.link(file, b, "f1").await.unwrap();
    refused!(w.rename((a, "f1"), (outside, "f1")).await, FsError::CrossDevice);
    w.rename((a, "f2"), (outside, "f2")).await.unwrap();
    assert_eq!(w.usage(tree).await, (14, 91));
    w.rename((outside, "f2"), (a, "f2")).await.unwrap();
    // The topmost directory is one of those around it.
    w.rename((ROOT, "top"), (outside, "top")).await.unwrap();
    w.clean().await;
    // Taken apart, nothing is left of it.
    w.remove_tree(top).await.unwrap();
    refused!(w.set_tree(top).await, FsError::Busy);
    w.walk(top, 1).await;
    w.clean().await;
    w.walk_all(top).await;
    assert_eq!(w.usage(tree).await, (0, 0));
    assert_eq!(w.read(async |t| w.ns.quota(t, tree).await).await.unwrap(), None);
    w.clean().await;
}

/// It had a name there, which was gone when the tree was taken apart.
#[tokio::test(start_paused = true)]
async fn a_file_that_a_tree_left_behind_can_be_linked() {
    let w = World::new().await;
    let top = w.mkdir(ROOT, "top").await;
    let file = w.file_of(top, "inside", 10, &Credential::ROOT).await;
    w.link(file, ROOT, "outside").await.unwrap();
    w.set_tree(top).await.unwrap();
    w.walk_all(top).await;
    w.remove(top, "inside").await.unwrap();
    refused!(w.link(file, ROOT, "again").await, FsError::CrossDevice);
    w.remove_tree(top).await.unwrap();
    w.walk_all(top).await;
    w.link(file, ROOT, "again").await.unwrap();
    w.link(file, top, "inside").await.unwrap();
    assert_eq!(w.usage(Subject::Tree(top.fileid)).await, (0, 0));
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn trees_do_not_nest_and_go_with_their_directory() {
    let w = World::new().await;
    let top = w.mkdir(ROOT, "top").await;
    let below = w.mkdir(top, "below").await;
    w.set_tree(top).await.unwrap();
    // Before the walk has been there, too.
    refused!(w.set_tree(below).await, FsError::Invalid);
    w.walk_all(top).await;
    refused!(w.set_tree(below).await, FsError::Invalid);
    let within = w.read(async |t| w.ns.is_within(t, &below, &top).await).await.unwrap();
    let reverse = w.read(async |t| w.ns.is_within(t, &top, &below).await).await.unwrap();
    assert_eq!((within, reverse), (true, false));
    w.remove(top, "below").await.unwrap();
    w.remove(ROOT, "top").await.unwrap();
    let quotas = w.read(async |t| w.ns.quotas(t, TREES, None, 9).await).await.unwrap();
    assert_eq!(quotas, []);
    w.clean().await;
}

/// What the walk has yet to put into a tree is as good as in it.
#[tokio::test(start_paused = true)]
async fn a_tree_does_not_get_into_one_that_is_being_filled() {
    let w = World::new().await;
    let top = w.mkdir(ROOT, "top").await;
    let (a, b) = (w.mkdir(top, "a").await, w.mkdir(top, "b").await);
    w.mkdir(a, "deep").await;
    let other = w.mkdir(ROOT, "other").await;
    let around = w.mkdir(ROOT, "around").await;
    let inner = w.mkdir(around, "inner").await;
    for tree in [other, inner] {
        w.set_tree(tree).await.unwrap();
        w.walk_all(tree).await;
    }
    assert_eq!(w.set_tree(top).await.unwrap(), TreeState::Filling);
    refused!(w.rename((ROOT, "other"), (a, "other")).await, FsError::CrossDevice);
    refused!(w.rename((ROOT, "around"), (a, "around")).await, FsError::CrossDevice);
    // Within it, out of it, and outside of it directories move.
    w.rename((a, "deep"), (b, "deep")).await.unwrap();
    w.rename((b, "deep"), (ROOT, "deep")).await.unwrap();
    w.rename((ROOT, "other"), (around, "other")).await.unwrap();
    w.walk_all(top).await;
    w.clean().await;
    assert_eq!(w.usage(Subject::Tree(top.fileid)).await, (3, 0));
}

/// Makes it what software without accounts leaves.
async fn forget_accounts(w: &World) -> World {
    let prefix = |name: &str| PREFIXES.iter().find(|p| p.0 == name).unwrap().1;
    w.txn(async |t| {
        let at = [prefix("SUPERBLOCK")];
        let mut superblock = t.get(&at).await?.unwrap().to_vec();
        superblock[0] = 1;
        t.set(at.to_vec(), superblock);
        let usage = prefix("USAGE");
        t.clear_range(&KeyRange { begin: vec![usage].into(), end: vec![usage + 1].into() });
        Ok(())
    })
    .await
    .unwrap();
    w.clean().await;
    let mut txn = w.db.begin();
    let ns = Namespace::load_or_format(&mut txn, &FormatOptions::new(&w.env)).await.unwrap();
    txn.commit().await.unwrap();
    let mut after = World::over(w.db.clone(), w.env.clone(), 5_000).await;
    after.ns = ns;
    after
}

#[tokio::test(start_paused = true)]
async fn what_was_there_before_is_counted_while_it_is_in_use() {
    let w = World::new().await;
    let dir = w.mkdir(ROOT, "d").await;
    let mut files = Vec::new();
    for n in 0..20 {
        files.push(w.file_of(dir, &format!("f{n}"), 10, &user(7, 7)).await);
    }
    files.sort();
    let w = forget_accounts(&w).await;
    assert!(!w.read(async |t| w.ns.all_counted(t).await).await.unwrap());
    assert_eq!(w.usage(Subject::User(7)).await, (0, 0));
    for n in 0..10 {
        // One that was counted, and one that was not.
        w.commit(files[n], 100).await;
        w.commit(files[19 - n], 100).await;
        w.file_of(dir, &format!("new{n}"), 1, &user(7, 7)).await;
        w.clean().await;
        w.count(3).await;
        w.clean().await;
    }
    while w.count(3).await != Counted::All {}
    assert!(w.read(async |t| w.ns.all_counted(t).await).await.unwrap());
    assert_eq!(w.usage(Subject::User(7)).await, (30, 2010));
    w.commit(files[0], 101).await;
    assert_eq!(w.usage(Subject::User(7)).await, (30, 2011));
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_under_way_meets_a_count_that_begins() {
    let w = World::new().await;
    let file = w.file_of(ROOT, "f", 10, &user(7, 7)).await;
    let mut slow = w.db.begin();
    let commit = CommitSize { end: Some(20), ..CommitSize::default() };
    let who = Credential::ROOT;
    drop(w.ns.commit_size(&mut slow, &file, &commit, &w.request(&who)).await.unwrap());
    w.txn(async |t| {
        w.ns.count_anew(t);
        Ok(())
    })
    .await
    .unwrap();
    assert!(slow.commit().await.is_err(), "it would charge what has not been counted");
    w.clean().await;
    while w.count(1).await != Counted::All {}
    assert_eq!(w.usage(Subject::User(7)).await, (1, 10));
}

#[derive(Clone, Debug)]
enum Action {
    File(u8, u8, u8, u16),
    Directory(u8, u8),
    Commit(u8, u8, u16),
    Truncate(u8, u8, u16),
    Chown(u8, u8, u8, u8),
    Remove(u8, u8, bool),
    Link(u8, u8, u8, u8),
    Rename(u8, u8, u8, u8),
    SetTree(u8),
    RemoveTree(u8),
    Walk(u8, u8),
    CountAnew,
    Count(u8),
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    let n = || 0u8..5;
    let d = any::<u8>;
    prop_oneof![
        3 => (d(), n(), n(), any::<u16>()).prop_map(|(a, b, c, s)| Action::File(a, b, c, s)),
        3 => (d(), n()).prop_map(|(a, b)| Action::Directory(a, b)),
        2 => (d(), n(), any::<u16>()).prop_map(|(a, b, s)| Action::Commit(a, b, s)),
        2 => (d(), n(), any::<u16>()).prop_map(|(a, b, s)| Action::Truncate(a, b, s)),
        2 => (d(), n(), n(), n()).prop_map(|(a, b, u, g)| Action::Chown(a, b, u, g)),
        2 => (d(), n(), any::<bool>()).prop_map(|(a, b, open)| Action::Remove(a, b, open)),
        2 => (d(), n(), d(), n()).prop_map(|(a, b, c, e)| Action::Link(a, b, c, e)),
        5 => (d(), n(), d(), n()).prop_map(|(a, b, c, e)| Action::Rename(a, b, c, e)),
        2 => d().prop_map(Action::SetTree),
        1 => d().prop_map(Action::RemoveTree),
        4 => (d(), 1u8..4).prop_map(|(a, n)| Action::Walk(a, n)),
        1 => Just(Action::CountAnew),
        4 => (1u8..6).prop_map(Action::Count),
        1 => Just(Action::Restart),
    ]
}

struct Run {
    w: World,
    directories: Vec<InodeKey>,
    orphans: Vec<InodeKey>,
}

impl Run {
    fn directory(&self, n: u8) -> InodeKey {
        self.directories[usize::from(n) % self.directories.len()]
    }

    async fn found(&self, directory: u8, n: u8) -> Option<InodeKey> {
        let found = self.w.lookup(self.directory(directory), &format!("n{n}")).await;
        found.ok().map(|found| found.inode.key)
    }

    /// Many are refused, which is as good.
    async fn act(&mut self, action: &Action) {
        let called = |n: &u8| format!("n{n}");
        match action {
            Action::File(d, n, uid, size) => {
                let node = NewNode::File { layout: None, read_write_layout: false, size: (*size).into() };
                let attributes = NewAttributes::mode(0o666);
                let who = user((*uid).into(), (*uid).into());
                let at = self.directory(*d);
                drop(self.w.make(at, &called(n), node, CreateMode::Guarded, attributes, &who).await);
            }
            Action::Directory(d, n) => {
                let node = NewNode::Directory;
                if let Ok(made) = self.w.node(self.directory(*d), &called(n), node).await {
                    self.directories.push(made.inode.key);
                }
            }
            Action::Commit(d, n, size) => {
                let Some(key) = self.found(*d, *n).await else { return };
                if self.w.stat(key).await.unwrap().file().is_some() {
                    self.w.commit(key, (*size).into()).await;
                }
            }
            Action::Truncate(d, n, size) => {
                let Some(key) = self.found(*d, *n).await else { return };
                drop(self.w.truncate(key, (*size).into()).await);
            }
            Action::Chown(d, n, uid, gid) => {
                let Some(key) = self.found(*d, *n).await else { return };
                let (uid, gid) = (Some((*uid).into()), Some((*gid).into()));
                let set = SetAttr { uid, gid, ..SetAttr::default() };
                self.w.setattr(key, set, &Credential::ROOT).await.unwrap();
            }
            Action::Remove(d, n, open) => {
                let (at, n) = (self.directory(*d), called(n));
                let removed = self.w.remove_as(at, &n, *open, &Credential::ROOT).await;
                match removed.map(|removed| removed.unlinked) {
                    Ok(Unlinked::Orphaned(inode)) => self.orphans.push(inode.key),
                    Ok(Unlinked::Removed { key, .. }) => self.directories.retain(|d| *d != key),
                    _ => {}
                }
            }
            Action::Link(d, n, e, m) => {
                let Some(key) = self.found(*d, *n).await else { return };
                drop(self.w.link(key, self.directory(*e), &called(m)).await);
            }
            Action::Rename(d, n, e, m) => {
                let (from, to) = (self.directory(*d), self.directory(*e));
                let renamed = self.w.rename((from, &called(n)), (to, &called(m))).await;
                if let Ok(Some(Unlinked::Removed { key, .. })) = renamed.map(|renamed| renamed.replaced) {
                    self.directories.retain(|d| *d != key);
                }
            }
            Action::SetTree(d) => {
                let root = self.directory(*d);
                // As the server sees to before it lets one be made: none is below, not even one that is being
                // taken apart.
                let trees = self.w.read(async |t| self.w.ns.quotas(t, TREES, None, 99).await).await.unwrap();
                for (other, _) in trees.into_iter().filter_map(|quota| quota.tree) {
                    let below = self.w.read(async |t| self.w.ns.is_within(t, &other, &root).await).await;
                    // Of one whose directory is gone nothing is below anything.
                    if matches!(below, Ok(true)) && other != root {
                        return;
                    }
                }
                drop(self.w.set_tree(root).await);
            }
            Action::RemoveTree(d) => drop(self.w.remove_tree(self.directory(*d)).await),
            Action::Walk(d, n) => drop(self.w.walk(self.directory(*d), (*n).into()).await),
            Action::CountAnew => drop(
                self.w
                    .txn(async |t| {
                        self.w.ns.count_anew(t);
                        Ok(())
                    })
                    .await,
            ),
            Action::Count(n) => drop(self.w.count((*n).into()).await),
            Action::Restart => {
                self.w.ns = Namespace::load(&self.w.db.begin()).await.unwrap().unwrap();
                for key in std::mem::take(&mut self.orphans) {
                    self.w.txn(async |t| self.w.ns.reclaim_orphan(t, &key).await).await.unwrap();
                }
            }
        }
    }

    /// All that was begun is ended: what is charged is what there is.
    async fn end(&mut self) {
        self.act(&Action::Restart).await;
        for directory in self.directories.clone() {
            self.w.walk_all(directory).await;
        }
        while self.w.count(7).await != Counted::All {}
        let report = self.w.clean().await;
        let mut files = 0;
        for uid in 0..5 {
            files += self.w.usage(Subject::User(uid)).await.0;
        }
        assert_eq!(files, report.inodes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_charged_is_what_there_is(actions in prop::collection::vec(action(), 1..60)) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut run = Run { w: World::new().await, directories: vec![ROOT], orphans: Vec::new() };
            for action in &actions {
                run.act(action).await;
                run.w.clean().await;
            }
            run.end().await;
        });
    }
}
