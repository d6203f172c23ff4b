//! Sizes, truncation, layouts, garbage, extended attributes.

use crate::common::*;
use crate::refused;
use bytes::Bytes;
use sluice_env::Wall;
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;

async fn commit(w: &World, key: InodeKey, c: CommitSize) -> Result<SizeCommitted, FsError> {
    w.act(async |t| w.ns.commit_size(t, &key, &c, &w.request(&Credential::ROOT)).await).await
}

async fn truncate_as(w: &World, key: InodeKey, set: SetSize, who: &Credential) -> Result<Truncated, FsError> {
    w.act(async |t| w.ns.truncate(t, &key, &set, &w.request(who)).await).await
}

async fn truncate(w: &World, key: InodeKey, size: u64, fresh: Option<Layout>) -> Result<Truncated, FsError> {
    truncate_as(w, key, SetSize { size, fresh, old: None, writable_open: false }, &Credential::ROOT).await
}

fn end(end: u64) -> CommitSize {
    CommitSize { end: Some(end), ..CommitSize::default() }
}

#[tokio::test(start_paused = true)]
async fn a_committed_size_grows_and_never_shrinks() {
    let mut w = World::new().await;
    let f = w.file(ROOT, "f").await.inode;
    w.now = Wall { seconds: 2_000, nanos: 0 };
    let first = commit(&w, f.key, end(5_000)).await.unwrap();
    assert!(first.grew && first.inode.change > f.change);
    assert_eq!((first.inode.size(), first.inode.mtime()), (5_000, w.now));
    assert!(first.inode.space_used() > 0);
    let second = commit(&w, f.key, end(100)).await.unwrap();
    assert!(!second.grew && second.inode.change > first.inode.change);
    assert_eq!(second.inode.size(), 5_000);
    let at = Wall { seconds: 1_500, nanos: 1 };
    let c = CommitSize { mtime: Some(at), space_used: Some(8_192), ..end(6_000) };
    let third = commit(&w, f.key, c).await.unwrap();
    assert_eq!((third.inode.mtime(), third.inode.space_used()), (at, 8_192));
    let future = CommitSize { mtime: Some(Wall { seconds: 9_999, nanos: 0 }), ..end(0) };
    assert_eq!(commit(&w, f.key, future).await.unwrap().inode.mtime(), w.now);
    let zero = CommitSize { space_used: Some(0), ..end(0) };
    assert!(commit(&w, f.key, zero).await.unwrap().inode.space_used() > 0);
    refused!(commit(&w, f.key, end(u64::MAX)).await, FsError::TooBig);
    refused!(commit(&w, ROOT, end(1)).await, FsError::WrongType);
    assert_eq!(plain(w.stat(f.key).await.unwrap()).size(), 6_000);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn settling_clears_the_row_and_shows_only_what_changed() {
    let w = World::new().await;
    let node = NewNode::File { layout: Some(layout(1, 2)), read_write_layout: true, size: 0 };
    let f = w.node(ROOT, "f", node).await.unwrap().inode;
    let rows = async || w.read(async |t| w.ns.read_write_files(t, None, 10).await).await.unwrap();
    assert_eq!(rows().await, [f.key]);
    let settled = CommitSize { settled: true, ..CommitSize::default() };
    let out = commit(&w, f.key, settled).await.unwrap();
    assert_eq!((out.inode.change, out.grew), (f.change, false), "nobody wrote");
    assert_eq!(rows().await, []);
    w.txn(async |t| {
        w.ns.mark_read_write(t, &f.key);
        Ok(())
    })
    .await
    .unwrap();
    let out =
        commit(&w, f.key, CommitSize { mirrors_dirty: true, ..CommitSize { settled: true, ..end(9) } }).await;
    let out = out.unwrap();
    assert!(out.grew && out.inode.change > f.change && out.inode.layout().unwrap().mirrors_dirty);
    assert_eq!(rows().await, []);
    let clean = w.txn(async |t| w.ns.set_mirrors_dirty(t, &f.key, false).await).await.unwrap().0;
    assert!(!clean.layout().unwrap().mirrors_dirty);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn truncation_swaps_data_files_or_leaves_an_intent() {
    let w = World::new().await;
    let f = w.file(ROOT, "f").await.inode;
    let old = f.layout().unwrap().clone();
    commit(&w, f.key, end(10_000)).await.unwrap();
    // Shrinking: the data files must follow.
    let out = truncate(&w, f.key, 4_000, None).await.unwrap();
    assert_eq!(out.outcome, TruncateOutcome::Intent(TruncateIntent { inode: f.key, size: 4_000 }));
    assert_eq!((out.inode.size(), out.inode.space_used()), (4_000, 4_096));
    refused!(truncate(&w, f.key, 1, None).await, FsError::Busy);
    let need = LayoutNeed::default();
    refused!(w.txn(async |t| w.ns.prepare_layout(t, &f.key, &need).await).await, FsError::Busy);
    let intents = w.read(async |t| w.ns.truncate_intents(t, None, 9).await).await.unwrap();
    assert_eq!(intents, [TruncateIntent { inode: f.key, size: 4_000 }]);
    w.txn(async |t| {
        w.ns.truncate_done(t, f.key.fileid);
        Ok(())
    })
    .await
    .unwrap();
    // Growing: nothing to do.
    assert_eq!(truncate(&w, f.key, 7_000, None).await.unwrap().outcome, TruncateOutcome::Done);
    // To zero, with fresh data files: the old ones are garbage at once.
    let fresh = layout(500, 3);
    let out = truncate(&w, f.key, 0, Some(fresh.clone())).await.unwrap();
    let TruncateOutcome::Swapped(garbage) = &out.outcome else { panic!("{out:?}") };
    assert_eq!((garbage.inode, &garbage.layout), (f.key, &old));
    assert_eq!(out.inode.layout(), Some(&fresh));
    assert_eq!((out.inode.size(), out.inode.space_used()), (0, 0));
    let owner = async |id| w.read(async |t| w.ns.data_file_owner(t, DataFileId(id)).await).await.unwrap();
    assert_eq!((owner(500).await, owner(old.id.0).await), (Some(f.key), None));
    refused!(truncate(&w, ROOT, 0, None).await, FsError::IsDirectory);
    refused!(truncate(&w, f.key, u64::MAX, None).await, FsError::TooBig);
    let p = w.node(ROOT, "p", NewNode::Fifo).await.unwrap().inode.key;
    refused!(truncate(&w, p, 0, None).await, FsError::WrongType);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn truncation_takes_write_permission_or_an_open_and_drops_set_id_bits() {
    let w = World::new().await;
    let f = w.file(ROOT, "f").await.inode.key;
    let set = SetAttr { uid: Some(10), gid: Some(20), mode: Some(0o6755), ..SetAttr::default() };
    w.setattr(f, set, &Credential::ROOT).await.unwrap();
    let size = |writable_open| SetSize { size: 10, fresh: None, old: None, writable_open };
    refused!(truncate_as(&w, f, size(false), &user(11, 20)).await, FsError::Access);
    let out = truncate_as(&w, f, size(true), &user(11, 20)).await.unwrap();
    assert_eq!(out.inode.record.mode, 0o755);
}

#[tokio::test(start_paused = true)]
async fn removing_a_file_ends_everything_about_it() {
    let w = World::new().await;
    let node = NewNode::File { layout: Some(layout(1, 2)), read_write_layout: true, size: 100 };
    let f = w.node(ROOT, "f", node).await.unwrap().inode.key;
    let who = Credential::ROOT;
    w.act(async |t| w.ns.set_xattr(t, &f, b"a", b"1", SetXattr::Either, &w.request(&who)).await)
        .await
        .unwrap();
    truncate(&w, f, 50, None).await.unwrap();
    w.remove(ROOT, "f").await.unwrap();
    let report = w.clean().await;
    assert_eq!((report.inodes, report.garbage, report.read_write_layouts), (1, 1, 0));
    // The queue, in pages, until it is done.
    for i in 2..12 {
        w.node(ROOT, "g", NewNode::File { layout: Some(layout(i, 1)), read_write_layout: false, size: 0 })
            .await
            .unwrap();
        w.remove(ROOT, "g").await.unwrap();
    }
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let batch = w.read(async |t| w.ns.next_garbage(t, after, 3).await).await.unwrap();
        seen.extend(batch.rows.iter().map(|g| g.layout.id));
        after = batch.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, (1..12).map(DataFileId).collect::<Vec<_>>());
    assert!(w.read(async |t| w.ns.is_garbage(t, DataFileId(5)).await).await.unwrap());
    w.txn(async |t| {
        w.ns.garbage_done(t, &seen);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(w.clean().await.garbage, 0);
}

#[tokio::test(start_paused = true)]
async fn layouts_are_assigned_handed_out_and_replaced() {
    let w = World::new().await;
    let node = NewNode::File { layout: None, read_write_layout: false, size: 0 };
    let f = w.node(ROOT, "f", node).await.unwrap().inode;
    let prepare = async |need: LayoutNeed| w.txn(async |t| w.ns.prepare_layout(t, &f.key, &need).await).await;
    refused!(prepare(LayoutNeed::default()).await, FsError::Invalid);
    let mut two = layout(7, 2);
    let mut rest = two.components[0].clone();
    two.components[0].end = 1 << 26;
    rest.start = 1 << 26;
    rest.slots.iter_mut().for_each(|s| s.slot += 10);
    two.components.push(rest);
    let need =
        LayoutNeed { propose: Some(two.clone()), inline: None, hand_out: Some(0..4096), read_write: true };
    let (got, _) = prepare(need).await.unwrap();
    assert!(got.assigned && got.inode.change == f.change);
    assert!(w.read(async |t| w.ns.is_read_write(t, f.key.fileid).await).await.unwrap());
    let other = LayoutNeed { propose: Some(layout(8, 1)), ..LayoutNeed::default() };
    let (got, _) = prepare(other).await.unwrap();
    assert!(!got.assigned);
    let have = got.inode.layout().unwrap();
    assert_eq!(
        (have.id, have.components[0].handed_out, have.components[1].handed_out),
        (DataFileId(7), true, false)
    );
    // The second component may move, the first may not.
    let mut moved = two.components[1].clone();
    moved.slots[0].store = StoreId(99);
    let replace = async |at, c: &Component| {
        w.txn(async |t| w.ns.replace_component(t, &f.key, at, c.clone()).await).await
    };
    replace(1, &moved).await.unwrap();
    refused!(replace(0, &two.components[0]).await, FsError::Invalid);
    refused!(replace(1, &two.components[0]).await, FsError::Invalid);
    refused!(replace(2, &moved).await, FsError::Invalid);
    w.txn(async |t| w.ns.raise_generation(t, &f.key, &[0]).await).await.unwrap();
    // An old generation's report is kept, as the present one's is; that of where it was before is ignored.
    let report = async |store, id, slots: &[(u16, u16)]| {
        w.txn(async |t| w.ns.materialised(t, (StoreId(store), DataFileId(id)), slots).await).await.unwrap();
    };
    report(1, 7, &[(0, 1), (10, 1)]).await;
    report(2, 7, &[(11, 1)]).await;
    report(1, 12345, &[(0, 1)]).await;
    let stat = w.stat(f.key).await.unwrap();
    let bits: Vec<_> = stat.layout().unwrap().data_files().map(|d| d.materialised).collect();
    assert_eq!(bits, [true, false, false, true]);
    assert_eq!(stat.change, f.change, "clients see data, not where it is");
    w.clean().await;
}

/// A data server that opened a file again need not know by which generation it came.
#[tokio::test(start_paused = true)]
async fn a_data_file_exists_whoever_brought_it() {
    let w = World::new().await;
    let mut three = layout(7, 3);
    (three.components[0].width, three.components[0].mirrors) = (1, 3);
    let node = NewNode::File { layout: Some(three), read_write_layout: false, size: 0 };
    let f = w.node(ROOT, "f", node).await.unwrap().inode.key;
    let bits = async || {
        let stat = w.stat(f).await.unwrap();
        stat.layout().unwrap().data_files().map(|d| d.materialised).collect::<Vec<_>>()
    };
    let report = async |store, slot| {
        w.txn(async |t| w.ns.materialised(t, (StoreId(store), DataFileId(7)), &[slot]).await).await.unwrap();
    };
    report(2, (1, 0)).await;
    assert_eq!(bits().await, [false, true, false]);
    // What is left behind is healed, which finds out for itself; a generation that is to come nobody was given.
    w.txn(async |t| w.ns.leave_behind(t, &f, &[0]).await).await.unwrap();
    report(1, (0, 1)).await;
    report(3, (2, 2)).await;
    assert_eq!(bits().await, [false, true, false]);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn extended_attributes() {
    let w = World::new().await;
    let f = w.file(ROOT, "f").await.inode;
    let me = Credential::ROOT;
    let set = async |key: InodeKey, name: &[u8], value: &[u8], how, who: &Credential| {
        w.act(async |t| w.ns.set_xattr(t, &key, name, value, how, &w.request(who)).await).await
    };
    let get = async |name: &[u8], who: &Credential| {
        w.read(async |t| w.ns.get_xattr(t, &f.key, name, who).await).await
    };
    let list = async || w.read(async |t| w.ns.list_xattrs(t, &f.key, &me).await).await.unwrap();
    let remove =
        async |name: &[u8]| w.act(async |t| w.ns.remove_xattr(t, &f.key, name, &w.request(&me)).await).await;
    assert!(list().await.is_empty());
    refused!(get(b"a", &me).await, FsError::NoXattr);
    refused!(set(f.key, b"a", b"1", SetXattr::Replace, &me).await, FsError::NoXattr);
    let changed = set(f.key, b"a", b"1", SetXattr::Create, &me).await.unwrap();
    assert!(changed.before == f.change && changed.after > f.change && changed.atomic);
    let has_any = async || w.stat(f.key).await.unwrap().record.xattrs;
    assert!(has_any().await);
    refused!(set(f.key, b"a", b"2", SetXattr::Create, &me).await, FsError::Exists);
    set(f.key, b"a", b"2", SetXattr::Replace, &me).await.unwrap();
    set(f.key, b"b", &[9; MAX_XATTR], SetXattr::Either, &me).await.unwrap();
    assert_eq!(get(b"a", &me).await.unwrap(), "2");
    assert_eq!(get(b"b", &me).await.unwrap(), Bytes::from(vec![9; MAX_XATTR]));
    assert_eq!(list().await, ["a", "b"]);
    refused!(set(f.key, b"c", &[0; MAX_XATTR + 1], SetXattr::Either, &me).await, FsError::XattrTooBig);
    refused!(set(f.key, b"", b"", SetXattr::Either, &me).await, FsError::BadName);
    refused!(set(f.key, &[b'n'; 251], b"", SetXattr::Either, &me).await, FsError::NameTooLong);
    w.setattr(f.key, SetAttr { mode: Some(0o640), ..SetAttr::default() }, &me).await.unwrap();
    refused!(get(b"a", &user(5, 5)).await, FsError::Access);
    assert!(get(b"a", &user(5, 0)).await.is_ok());
    refused!(set(f.key, b"a", b"x", SetXattr::Either, &user(5, 0)).await, FsError::Access);
    refused!(remove(b"c").await, FsError::NoXattr);
    // Long, short and long again: nothing of the other form stays.
    for value in [&[1; 1025][..], &[2; 1024], &[3; 5000]] {
        set(f.key, b"b", value, SetXattr::Replace, &me).await.unwrap();
        assert_eq!(get(b"b", &me).await.unwrap(), value);
        w.clean().await;
    }
    let before = w.stat(f.key).await.unwrap().change;
    let changed = remove(b"a").await.unwrap();
    assert!(changed.before == before && changed.after == w.stat(f.key).await.unwrap().change);
    assert!(changed.atomic && has_any().await);
    w.clean().await;
    remove(b"b").await.unwrap();
    assert!(!has_any().await);
    w.clean().await;
    let p = w.node(ROOT, "p", NewNode::Fifo).await.unwrap().inode.key;
    refused!(set(p, b"a", b"1", SetXattr::Either, &me).await, FsError::NotOwner);
    refused!(w.read(async |t| w.ns.get_xattr(t, &p, b"a", &me).await).await, FsError::NoXattr);
    assert!(w.read(async |t| w.ns.list_xattrs(t, &p, &me).await).await.unwrap().is_empty());
    let d = w.mkdir(ROOT, "d").await;
    w.setattr(d, SetAttr { mode: Some(0o1777), ..SetAttr::default() }, &me).await.unwrap();
    refused!(set(d, b"a", b"1", SetXattr::Either, &user(5, 5)).await, FsError::NotOwner);
    set(d, b"a", b"1", SetXattr::Either, &me).await.unwrap();
    // A directory's attributes go with it.
    w.remove(ROOT, "d").await.unwrap();
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn more_attributes_than_a_page() {
    let w = World::new().await;
    let f = w.file(ROOT, "f").await.inode.key;
    let me = Credential::ROOT;
    for i in 0..150 {
        let name = format!("n{i:03}");
        w.act(async |t| w.ns.set_xattr(t, &f, name.as_bytes(), b"", SetXattr::Create, &w.request(&me)).await)
            .await
            .unwrap();
    }
    let names = w.read(async |t| w.ns.list_xattrs(t, &f, &me).await).await.unwrap();
    assert_eq!(names.len(), 150);
    assert!(names.is_sorted());
}

/// There are no rows of layouts then, and none are cleared: who looks whether there are is not in its way.
#[tokio::test(start_paused = true)]
async fn what_has_no_data_files_goes_without_clearing_rows_of_layouts() {
    let w = World::new().await;
    let node = NewNode::File { layout: None, read_write_layout: false, size: 0 };
    let bare = w.node(ROOT, "bare", node).await.unwrap().inode.key;
    let placed = w.file(ROOT, "placed").await.inode.key;
    let other = w.file(ROOT, "other").await.inode.key;
    for (called, key, clears) in [("bare", bare, false), ("placed", placed, true)] {
        let mut slow = w.db.begin();
        assert!(!w.ns.is_read_write(&slow, key.fileid).await.unwrap());
        assert!(w.ns.truncate_intent(&slow, key.fileid).await.unwrap().is_none());
        w.remove(ROOT, called).await.unwrap();
        w.ns.mark_read_write(&mut slow, &other);
        assert_eq!(slow.commit().await.is_err(), clears, "{called}");
    }
}
