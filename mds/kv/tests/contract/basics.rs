//! Reads, writes, ranges.

use bytes::Bytes;
use sluice_kv::{KeyRange, KvError};

use crate::{Fixture, commit, pairs, range, text};

pub(crate) async fn keys_are_ordered_as_bytes(f: Fixture) {
    let keys: [&[u8]; 6] = [b"\0", b"a", b"a\0", b"a\xff", b"b", b"\xfe"];
    let mut tx = f.db.begin();
    for key in keys.iter().rev() {
        tx.set(*key, "v");
    }
    commit(tx).await.unwrap();
    let all = f.db.begin().range(&KeyRange::all(), 100, false).await.unwrap();
    assert_eq!(all.iter().map(|(k, _)| &k[..]).collect::<Vec<_>>(), keys);
}

pub(crate) async fn a_range_is_half_open_limited_and_reversible(f: Fixture) {
    for k in ["a", "b", "c", "d"] {
        f.put(k, k).await;
    }
    let tx = f.db.begin();
    let get = async |limit, reverse| text(tx.range(&range("b", "d"), limit, reverse).await.unwrap());
    assert_eq!(get(10, false).await, pairs(&[("b", "b"), ("c", "c")]));
    assert_eq!(get(10, true).await, pairs(&[("c", "c"), ("b", "b")]));
    assert_eq!(get(1, false).await, pairs(&[("b", "b")]));
    assert_eq!(get(1, true).await, pairs(&[("c", "c")]));
    assert_eq!(get(0, true).await, pairs(&[]));
}

pub(crate) async fn a_transaction_reads_one_version(f: Fixture) {
    f.put("a", "1").await;
    f.put("b", "1").await;
    let tx = f.db.begin();
    assert_eq!(tx.get(b"a").await.unwrap().unwrap(), "1");
    f.put("b", "2").await;
    f.put("c", "2").await;
    let mut other = f.db.begin();
    other.clear("a");
    commit(other).await.unwrap();
    assert_eq!(tx.get(b"b").await.unwrap().unwrap(), "1");
    assert_eq!(tx.get(b"a").await.unwrap().unwrap(), "1");
    let all = text(tx.range(&KeyRange::all(), 10, false).await.unwrap());
    assert_eq!(all, pairs(&[("a", "1"), ("b", "1")]));
    assert_eq!(f.dump().await, pairs(&[("b", "2"), ("c", "2")]));
}

pub(crate) async fn a_snapshot_is_one_version_page_by_page(f: Fixture) {
    let mut tx = f.db.begin();
    for n in 0..300_u16 {
        tx.set([&b"k"[..], &n.to_be_bytes()].concat(), vec![1; 1 + usize::from(n % 7) * 300]);
    }
    commit(tx).await.unwrap();
    let before = f.db.begin().range(&KeyRange::all(), 1_000, false).await.unwrap();
    let snapshot = f.db.snapshot().await.unwrap();
    f.put("k", "later").await;
    for bytes in [0, 1, 5_000, 100_000, usize::MAX] {
        let (mut seen, mut range) = (Vec::new(), KeyRange::all());
        loop {
            let page = snapshot.page(&range, bytes).await.unwrap();
            let Some(((last, value), rest)) = page.split_last() else { break };
            // It ends with the row that reaches the size.
            let sizes = |rows: &[(Bytes, Bytes)]| rows.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
            assert!(rest.is_empty() || sizes(rest) < bytes);
            assert!(sizes(&page) >= bytes || seen.len() + page.len() == before.len(), "{last:?} {value:?}");
            range.begin = [last, &b"\0"[..]].concat().into();
            seen.extend(page);
        }
        assert_eq!(seen, before, "in pages of {bytes}");
    }
    assert!(snapshot.page(&range("a", "b"), 100).await.unwrap().is_empty());
}

pub(crate) async fn own_writes_are_read(f: Fixture) {
    f.put("a", "1").await;
    f.put("b", "1").await;
    let mut tx = f.db.begin();
    tx.set("a", "2");
    tx.clear("b");
    tx.set("c", "3");
    assert_eq!(tx.get(b"a").await.unwrap().unwrap(), "2");
    assert_eq!(tx.get(b"b").await.unwrap(), None);
    assert_eq!(tx.snapshot_get(b"c").await.unwrap().unwrap(), "3");
    tx.clear_range(&range("a", "z"));
    assert_eq!(tx.get(b"c").await.unwrap(), None);
    tx.set("b", "4");
    assert_eq!(tx.get(b"b").await.unwrap().unwrap(), "4");
    commit(tx).await.unwrap();
    assert_eq!(f.dump().await, pairs(&[("b", "4")]));
}

pub(crate) async fn own_writes_are_merged_into_ranges(f: Fixture) {
    for k in ["a", "c", "e", "g"] {
        f.put(k, "old").await;
    }
    let mut tx = f.db.begin();
    tx.set("b", "new");
    tx.set("c", "new");
    tx.clear("e");
    tx.set("h", "new");
    let merged = [("a", "old"), ("b", "new"), ("c", "new"), ("g", "old"), ("h", "new")];
    for limit in 1..=6 {
        let n = limit.min(merged.len());
        let forward = text(tx.range(&KeyRange::all(), limit, false).await.unwrap());
        assert_eq!(forward, pairs(&merged[..n]), "limit {limit}");
        let mut backward = text(tx.range(&KeyRange::all(), limit, true).await.unwrap());
        backward.reverse();
        assert_eq!(backward, pairs(&merged[merged.len() - n..]), "limit {limit}");
    }
}

pub(crate) async fn a_dropped_transaction_leaves_nothing(f: Fixture) {
    let mut tx = f.db.begin();
    tx.set("a", "1");
    drop(tx);
    assert_eq!(f.value("a").await, None);
}

pub(crate) async fn commits_are_visible_to_the_next_transaction(f: Fixture) {
    let mut last = 0;
    for i in 0..20 {
        let mut tx = f.db.begin();
        tx.set("k", i.to_string());
        let version = commit(tx).await.unwrap();
        assert!(version > last);
        last = version;
        let next = f.db.begin();
        assert!(next.read_version().await.unwrap() >= version);
        assert_eq!(next.get(b"k").await.unwrap().unwrap(), i.to_string());
    }
}

pub(crate) async fn clear_range_clears_what_is_there_at_commit(f: Fixture) {
    f.put("d/1", "x").await;
    f.put("e", "x").await;
    let mut tx = f.db.begin();
    tx.clear_range(&KeyRange::prefix("d/"));
    f.put("d/2", "later").await;
    tx.set("d/3", "kept");
    commit(tx).await.unwrap();
    assert_eq!(f.dump().await, pairs(&[("d/3", "kept"), ("e", "x")]));
}

pub(crate) async fn empty_ranges_are_empty(f: Fixture) {
    f.put("a", "1").await;
    let mut tx = f.db.begin();
    assert!(tx.range(&range("a", "a"), 10, false).await.unwrap().is_empty());
    tx.clear_range(&range("a", "a"));
    tx.add_read_conflict_range(&range("a", "a"));
    tx.add_write_conflict_range(&range("a", "a"));
    commit(tx).await.unwrap();
    assert_eq!(f.dump().await, pairs(&[("a", "1")]));
}

pub(crate) async fn a_large_clear_hides_pages(f: Fixture) {
    let mut tx = f.db.begin();
    for i in 0..500 {
        tx.set(format!("k{i:03}"), "v");
    }
    commit(tx).await.unwrap();
    let mut tx = f.db.begin();
    tx.clear_range(&range("k001", "k450"));
    tx.set("k200", "w");
    let forward = text(tx.range(&KeyRange::all(), 3, false).await.unwrap());
    assert_eq!(forward, pairs(&[("k000", "v"), ("k200", "w"), ("k450", "v")]));
    let backward = text(tx.range(&range("", "k450"), 3, true).await.unwrap());
    assert_eq!(backward, pairs(&[("k200", "w"), ("k000", "v")]));
    commit(tx).await.unwrap();
    assert_eq!(f.dump().await.len(), 52);
}

pub(crate) async fn a_closed_store_says_so(f: Fixture) {
    f.put("a", "1").await;
    let tx = f.db.begin();
    let mut blind = f.db.begin();
    blind.set("a", "2");
    f.db.clone().close().await.unwrap();
    assert_eq!(tx.get(b"a").await, Err(KvError::Closed));
    assert_eq!(commit(blind).await, Err(KvError::Closed));
}
