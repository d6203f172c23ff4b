//! Files whose bytes are rows of the store.

use std::collections::BTreeMap;

use crate::common::*;
use crate::refused;
use proptest::prelude::*;
use sluice_env::Env;
use sluice_kv::{Database, EmbeddedOptions, Faults, RunLimits};
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;
const LIMIT: u64 = 40_000;
const INLINE: Inline = Inline { limit: 40_000, shape: Shape::Small, mirrors: 0, class: None };

async fn make(w: &World, called: &str) -> InodeKey {
    w.node(ROOT, called, NewNode::InlineFile { inline: INLINE, size: 0 }).await.unwrap().inode.key
}

async fn write(w: &World, key: InodeKey, offset: u64, data: &[u8]) -> bool {
    let done =
        w.txn(async |t| w.ns.write_inline(t, &key, (offset, data), &w.request(&Credential::ROOT)).await);
    done.await.unwrap().0.is_some()
}

async fn read(w: &World, key: InodeKey, offset: u64, length: u64) -> InlineData {
    w.read(async |t| w.ns.read_inline(t, &key, offset, length).await).await.unwrap()
}

async fn truncate(w: &World, key: InodeKey, size: u64) -> Result<Truncated, FsError> {
    let set = SetSize { size, fresh: None, old: None, writable_open: true };
    w.act(async |t| w.ns.truncate(t, &key, &set, &w.request(&Credential::ROOT)).await).await
}

#[tokio::test(start_paused = true)]
async fn a_file_is_promoted_once_as_it_was_when_it_was_read() {
    let w = World::new().await;
    let key = make(&w, "f").await;
    assert!(write(&w, key, 100, b"some bytes").await);
    let seen = read(&w, key, 0, LIMIT).await.inode;
    assert!(write(&w, key, 0, b"others").await);
    let fresh = layout(7, 1);
    let promote = async |seen: &Inode| w.txn(async |t| w.ns.promote(t, &key, seen, &fresh).await).await;
    refused!(promote(&seen).await, FsError::Busy);
    let seen = read(&w, key, 0, LIMIT).await.inode;
    let promised = w.txn(async |t| {
        w.ns.promise_garbage(t, &key, &fresh);
        Ok(())
    });
    promised.await.unwrap();
    promote(&seen).await.unwrap();
    refused!(promote(&seen).await, FsError::Busy);
    let now = read(&w, key, 0, LIMIT).await;
    assert_eq!((now.inode.change, now.inode.size(), now.data), (seen.change, seen.size(), None));
    assert_eq!(now.inode.layout(), Some(&fresh));
    assert!(!write(&w, key, 0, b"not here any more").await);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_refused_and_nothing_is_lost() {
    let w = World::new().await;
    let key = make(&w, "f").await;
    assert!(write(&w, key, LIMIT - 5, b"12345").await);
    assert!(!write(&w, key, LIMIT - 4, b"12345").await);
    refused!(truncate(&w, key, LIMIT + 1).await, FsError::Busy);
    // Data files are not given to a file that has bytes elsewhere.
    let need = LayoutNeed { propose: Some(layout(7, 1)), inline: Some(INLINE), ..LayoutNeed::default() };
    refused!(w.txn(async |t| w.ns.prepare_layout(t, &key, &need).await).await, FsError::Busy);
    assert_eq!(read(&w, key, LIMIT - 5, 99).await.data.unwrap()[..], *b"12345");
    w.clean().await;
    truncate(&w, key, 0).await.unwrap();
    w.txn(async |t| w.ns.prepare_layout(t, &key, &need).await).await.unwrap();
    assert_eq!(read(&w, key, 0, 9).await.data, None);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_with_inline_files_closes_the_store_to_the_release_before() {
    let w = World::new().await;
    let superblock = async || Namespace::load(&w.db.begin()).await.unwrap().unwrap().superblock().clone();
    let set = async |text: &str| {
        let set = SetAttr { policy: LayoutPolicy::parse(text), ..SetAttr::default() };
        w.act(async |t| w.ns.setattr(t, &ROOT, &set, &w.request(&Credential::ROOT)).await).await.unwrap();
    };
    set("small").await;
    assert!(!superblock().await.inline);
    set("small,inline=4KiB").await;
    assert!(superblock().await.inline && superblock().await.whole);
    // Until it is loaded again, by whom it says so, it is written as before.
    let key = make(&w, "f").await;
    assert!(write(&w, key, 0, &[7; 20_000]).await);
    assert_eq!(rows(&w).await.into_values().collect::<Vec<_>>(), [16_385, 3_617]);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_file_is_one_row_from_the_first_write_on_after_an_upgrade() {
    let w = World::new().await;
    let (whole, part) = (make(&w, "whole").await, make(&w, "part").await);
    for key in [whole, part] {
        assert!(write(&w, key, 0, &[7; 36_000]).await);
    }
    let w = upgraded(w).await;
    let lengths = async || rows(&w).await.into_values().collect::<Vec<_>>();
    assert_eq!(lengths().await, [16_385, 16_385, 3_233, 16_385, 16_385, 3_233]);
    // What was written before is read, and cut, as it is.
    assert!(read(&w, whole, 16_000, 20_000).await.data.unwrap().iter().eq(&[7; 20_000]));
    truncate(&w, part, 20_000).await.unwrap();
    assert!(write(&w, whole, 17_000, b"x").await);
    assert_eq!(lengths().await, [36_001, 16_385, 3_617]);
    let bytes = read(&w, whole, 0, LIMIT).await.data.unwrap();
    assert_eq!((bytes.len(), &bytes[16_999..17_002]), (36_000, &b"\x07x\x07"[..]));
    // All of it is written: nobody reads what was there.
    assert!(write(&w, part, 0, &[8; 20_000]).await);
    truncate(&w, whole, 17_001).await.unwrap();
    assert_eq!(lengths().await, [17_002, 20_001]);
    w.clean().await;

    // A part beside it belongs to nobody.
    let stray = w.txn(async |t| {
        t.set([&[0x15][..], &part.fileid.0.to_be_bytes(), &[0, 0, 0, 1]].concat(), &b"\x01stray"[..]);
        Ok(())
    });
    stray.await.unwrap();
    let found = check(&w.db.snapshot().await.unwrap()).await.unwrap().problems;
    assert_eq!(found, [Problem::StaleRow { table: 0x15, number: part.fileid.0 }]);
}

/// The file system after its policy was set and its server started again.
async fn upgraded(mut w: World) -> World {
    let set = &SetAttr { policy: LayoutPolicy::parse("small,inline=40000"), ..SetAttr::default() };
    let (world, who) = (&w, Credential::ROOT);
    let request = &w.request(&who);
    let limits = RunLimits { max_attempts: 10_000, ..RunLimits::default() };
    let done = w.db.run(limits, |mut txn| {
        Box::pin(async move { world.ns.setattr(&mut txn, &ROOT, set, request).await })
    });
    done.await.unwrap();
    w.ns = Namespace::load(&w.db.begin()).await.unwrap().unwrap();
    w
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize),
    Truncate(u64),
    Promote,
    Remove,
    Upgrade,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || prop_oneof![0..LIMIT, Just(16_384), Just(32_768), Just(0)];
    let length = prop_oneof![3 => 1usize..100, 2 => 1usize..20_000, 1 => Just(16_384)];
    prop::collection::vec(
        prop_oneof![
            10 => (at(), length).prop_map(|(at, n)| Step::Write(at, n)),
            5 => at().prop_map(Step::Truncate),
            1 => Just(Step::Promote),
            1 => Just(Step::Remove),
            1 => Just(Step::Upgrade),
        ],
        1..40,
    )
}

/// Each step as a server takes it, on a store where it may have to be taken again.
async fn live(mut world: World, steps: &[Step]) {
    let who = Credential::ROOT;
    let limits = || RunLimits { max_attempts: 10_000, ..RunLimits::default() };
    let mut model: Vec<u8> = Vec::new();
    let mut file = 0;
    let mut key = make_until_done(&world, file).await;
    for (number, step) in steps.iter().enumerate() {
        if matches!(step, Step::Upgrade) {
            world = upgraded(world).await;
        }
        let w = &world;
        let request = &w.request(&who);
        match step {
            Step::Write(at, n) => {
                let data = &vec![u8::try_from(number % 250).unwrap() + 1; *n];
                let end = usize::try_from(*at).unwrap() + n;
                let is_inline = read(w, key, 0, 0).await.data.is_some();
                let done = w.db.run(limits(), |mut txn| {
                    Box::pin(async move { w.ns.write_inline(&mut txn, &key, (*at, data), request).await })
                });
                // Not known to be done: run again, it does the same.
                let written = done.await.unwrap().0.is_some();
                assert_eq!(written, is_inline && end as u64 <= LIMIT);
                if written {
                    model.resize(model.len().max(end), 0);
                    model[end - n..end].copy_from_slice(data);
                }
            }
            Step::Truncate(size) => {
                if read(w, key, 0, 0).await.data.is_none() {
                    continue;
                }
                let set = &SetSize { size: *size, fresh: None, old: None, writable_open: true };
                let done = w.db.run(limits(), |mut txn| {
                    Box::pin(async move { w.ns.truncate(&mut txn, &key, set, request).await })
                });
                done.await.unwrap();
                model.resize(usize::try_from(*size).unwrap(), 0);
            }
            Step::Promote => {
                let seen = &read(w, key, 0, LIMIT).await;
                let fresh = &layout(1000 + number as u64, 1);
                let done = w.db.run(limits(), |mut txn| {
                    Box::pin(async move { w.ns.promote(&mut txn, &key, &seen.inode, fresh).await })
                });
                // Done before, or just now without being told so.
                assert!(matches!(done.await, Ok(_) | Err(FsError::Busy)));
            }
            Step::Remove => {
                w.remove_as(ROOT, &file.to_string(), false, &Credential::ROOT).await.ok();
                file += 1;
                model.clear();
                key = make_until_done(w, file).await;
            }
            Step::Upgrade => {}
        }
        let found = read(w, key, 0, LIMIT).await;
        if let Some(data) = &found.data {
            assert!(data[..] == model, "after {number}: {step:?}");
            let (from, to) = (model.len() / 3, model.len() * 2 / 3);
            let part = read(w, key, from as u64, (to - from) as u64).await;
            assert!(part.data.unwrap()[..] == model[from..to]);
        }
        assert_eq!(found.inode.size(), model.len() as u64);
    }
    let w = &world;
    w.db.set_faults(Faults::NONE);
    let most = if w.ns.superblock().whole { 40_001 } else { 16_385 };
    assert!(rows(w).await.values().all(|length| *length <= most));
    w.clean().await;
}

async fn make_until_done(w: &World, number: u64) -> InodeKey {
    let (called, node) = (number.to_string(), NewNode::InlineFile { inline: INLINE, size: 0 });
    let create = &Create {
        directory: ROOT,
        name: name(&called),
        node,
        mode: CreateMode::Unchecked,
        attributes: NewAttributes::mode(0o644),
        fileid: FileId(w.id()),
    };
    let who = Credential::ROOT;
    let request = &w.request(&who);
    let limits = RunLimits { max_attempts: 10_000, ..RunLimits::default() };
    let done =
        w.db.run(limits, |mut txn| Box::pin(async move { w.ns.create(&mut txn, create, request).await }));
    let (made, committed) = done.await.unwrap();
    made.resolve(committed.version).inode.key
}

/// Every row of a table.
async fn rows(w: &World) -> BTreeMap<Vec<u8>, usize> {
    let snapshot = w.db.snapshot().await.unwrap();
    let range = sluice_kv::KeyRange { begin: vec![0x15].into(), end: vec![0x16].into() };
    let rows = snapshot.page(&range, 1 << 20).await.unwrap();
    rows.into_iter().map(|(key, value)| (key.to_vec(), value.len())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn bytes_are_what_was_written(steps in steps()) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let w = World::new().await;
            w.db.set_faults(Faults { conflict: 0.2, ..Faults::NONE });
            live(w, &steps).await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, ..ProptestConfig::default() })]

    #[test]
    fn and_on_the_embedded_store(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let env = Env::system();
            let options = EmbeddedOptions { unsafe_no_sync: true, ..EmbeddedOptions::default() };
            let db = Database::open_embedded(env.clone(), dir.path(), options).unwrap();
            let mut txn = db.begin();
            let format = FormatOptions { mode: 0o777, ..FormatOptions::new(&env) };
            Namespace::load_or_format(&mut txn, &format).await.unwrap();
            txn.commit().await.unwrap();
            live(World::over(db, env, 16).await, &steps).await;
        });
    }
}
