//! Listings: order, pages, attributes, and what comes and goes meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use proptest::prelude::*;
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

#[tokio::test(start_paused = true)]
async fn pages_of_any_size_make_the_same_listing() {
    for bits in [56, 3] {
        let w = World::with_bits(bits).await;
        let dir = w.mkdir(ROOT, "d").await;
        let mut expected = BTreeSet::new();
        for i in 0..100 {
            let called = format!("entry {i}");
            w.node(dir, &called, if i % 7 == 0 { NewNode::Directory } else { NewNode::Fifo }).await.unwrap();
            expected.insert(called);
        }
        for limit in [1, 2, 7, 99, 100, 101, 5000] {
            let all = w.list(dir, limit).await;
            assert!(all.is_sorted_by_key(|e| e.entry.cookie));
            assert_eq!(all.len(), expected.len());
            let names: BTreeSet<_> =
                all.iter().map(|e| String::from_utf8(e.entry.name.to_vec()).unwrap()).collect();
            assert_eq!(names, expected);
            assert!(all.iter().all(|e| e.entry.cookie.0 > 2 && i64::try_from(e.entry.cookie.0).is_ok()));
        }
        let last = w.list(dir, 50).await.last().unwrap().entry.cookie;
        for after in [last, Cookie(u64::MAX)] {
            let page = w.page(dir, after, 10, true).await.unwrap();
            assert!(page.eof && page.entries.is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn attributes_come_along_wherever_the_inode_lives() {
    let w = World::new().await;
    let dir = w.mkdir(ROOT, "d").await;
    let other = w.mkdir(ROOT, "o").await;
    for i in 0..60 {
        w.file(dir, &format!("stays {i}")).await;
        w.file(dir, &format!("leaves {i}")).await;
        w.rename((dir, &format!("leaves {i}")), (other, &format!("came {i}"))).await.unwrap();
    }
    let linked = w.file(other, "linked").await.inode.key;
    w.link(linked, dir, "link 1").await.unwrap();
    w.link(linked, dir, "link 2").await.unwrap();
    w.mkdir(dir, "sub").await;
    for i in 0..20 {
        // They live on where they were.
        w.rename((dir, &format!("stays {i}")), (dir, &format!("another name {i}"))).await.unwrap();
    }
    let twice = w.file(dir, "twice").await.inode.key;
    w.link(twice, dir, "once more").await.unwrap();
    for (directory, count) in [(dir, 65), (other, 61)] {
        let all = w.list(directory, 25).await;
        assert_eq!(all.len(), count);
        for e in all {
            assert_eq!(e.inode.unwrap(), w.stat(e.entry.inode).await.unwrap());
        }
    }
    let page = w.page(dir, Cookie(0), 5, false).await.unwrap();
    assert!(page.entries.iter().all(|e| e.inode.is_none()) && !page.eof);
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn what_moved_away_does_not_slow_a_listing_down() {
    // 1000 inodes live where only 3 entries are left: the scan along them must give up early.
    let w = World::new().await;
    let dir = w.mkdir(ROOT, "d").await;
    let other = w.mkdir(ROOT, "o").await;
    for i in 0..1000 {
        let called = format!("n{i}");
        w.node(dir, &called, NewNode::Fifo).await.unwrap();
        if i >= 3 {
            w.rename((dir, &called), (other, &called)).await.unwrap();
        }
    }
    let all = w.list(dir, 100).await;
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|e| e.inode.is_some()));
}

/// What happens between two pages.
#[derive(Clone, Debug)]
enum Step {
    Insert(u8),
    Remove(u8),
    Rename(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u8..40).prop_map(Step::Insert),
        (0u8..40).prop_map(Step::Remove),
        (0u8..40, 0u8..40).prop_map(|(a, b)| Step::Rename(a, b)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Entries that are there throughout appear exactly once, those that are not at most once,
    /// whatever else happens in the same chains.
    #[test]
    fn a_listing_under_mutation(
        bits in prop_oneof![Just(1u8), Just(2), Just(4), Just(56)],
        limit in 1usize..9,
        steps in prop::collection::vec(prop::collection::vec(step(), 0..6), 1..40),
    ) {
        block_on(async {
            let w = World::with_bits(bits).await;
            let dir = w.mkdir(ROOT, "d").await;
            let mut throughout = BTreeSet::new();
            for i in 0..25 {
                let called = format!("stays {i}");
                w.node(dir, &called, NewNode::Fifo).await.unwrap();
                throughout.insert(called);
                w.node(dir, &format!("n{i}"), NewNode::Fifo).await.unwrap();
            }
            let mut seen: BTreeMap<String, usize> = BTreeMap::new();
            let mut after = Cookie(0);
            let mut steps = steps.into_iter();
            loop {
                let page = w.page(dir, after, limit, true).await.unwrap();
                for e in &page.entries {
                    assert!(e.entry.cookie > after);
                    after = e.entry.cookie;
                    assert!(e.inode.is_some());
                    *seen.entry(String::from_utf8(e.entry.name.to_vec()).unwrap()).or_default() += 1;
                }
                if page.eof {
                    break;
                }
                for step in steps.next().unwrap_or_default() {
                    match step {
                        Step::Insert(n) => drop(w.node(dir, &format!("n{n}"), NewNode::Fifo).await),
                        Step::Remove(n) => drop(w.remove(dir, &format!("n{n}")).await),
                        Step::Rename(a, b) => {
                            drop(w.rename((dir, &format!("n{a}")), (dir, &format!("n{b}"))).await);
                        }
                    }
                }
            }
            for called in &throughout {
                assert_eq!(seen.get(called), Some(&1), "{called}");
            }
            w.clean().await;
        });
    }
}
