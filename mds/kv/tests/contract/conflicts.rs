//! What conflicts and what does not.

use sluice_kv::{KeyRange, KvError, Transaction};

use crate::{Fixture, commit, range};

/// Whether `read`, followed by another transaction's `write`, makes a commit conflict.
async fn conflicts(
    f: &Fixture,
    read: impl AsyncFn(&mut Transaction),
    write: impl Fn(&mut Transaction),
) -> bool {
    let mut tx = f.db.begin();
    read(&mut tx).await;
    tx.set("~result", "x");
    let mut other = f.db.begin();
    write(&mut other);
    commit(other).await.unwrap();
    match commit(tx).await {
        Ok(_) => false,
        Err(KvError::Conflict) => true,
        Err(other) => panic!("{other}"),
    }
}

pub(crate) async fn a_read_key_written_since_conflicts(f: Fixture) {
    f.put("a", "1").await;
    let read = async |tx: &mut Transaction| drop(tx.get(b"a").await.unwrap());
    assert!(conflicts(&f, read, |o| o.set("a", "2")).await);
    assert!(conflicts(&f, read, |o| o.clear("a")).await);
    assert!(!conflicts(&f, read, |o| o.set("b", "2")).await);
    // Not written at all, though it was cleared again in the same transaction: still written.
    assert!(
        conflicts(&f, read, |o| {
            o.set("a", "3");
            o.clear("a");
        })
        .await
    );
    assert_eq!(f.value("a").await, None);
}

pub(crate) async fn a_missing_key_created_since_conflicts(f: Fixture) {
    let read = async |tx: &mut Transaction| assert_eq!(tx.get(b"new").await.unwrap(), None);
    assert!(conflicts(&f, read, |o| o.set("new", "2")).await);
}

pub(crate) async fn write_write_does_not_conflict(f: Fixture) {
    let mut a = f.db.begin();
    let mut b = f.db.begin();
    // Both have read versions; neither read the key.
    a.get(b"x").await.unwrap();
    b.get(b"x").await.unwrap();
    a.set("k", "a");
    b.set("k", "b");
    commit(b).await.unwrap();
    commit(a).await.unwrap();
    assert_eq!(f.value("k").await.unwrap(), "a");
}

pub(crate) async fn snapshot_reads_do_not_conflict(f: Fixture) {
    f.put("a", "1").await;
    let key = async |tx: &mut Transaction| drop(tx.snapshot_get(b"a").await.unwrap());
    assert!(!conflicts(&f, key, |o| o.set("a", "2")).await);
    let all =
        async |tx: &mut Transaction| drop(tx.snapshot_range(&KeyRange::all(), 10, false).await.unwrap());
    assert!(!conflicts(&f, all, |o| o.set("a", "3")).await);
}

pub(crate) async fn phantoms_conflict(f: Fixture) {
    f.put("d/1", "x").await;
    let list = async |tx: &mut Transaction| {
        drop(tx.range(&KeyRange::prefix("d/"), 100, false).await.unwrap());
    };
    assert!(conflicts(&f, list, |o| o.set("d/2", "new")).await);
    assert!(conflicts(&f, list, |o| o.clear("d/1")).await);
    assert!(conflicts(&f, list, |o| o.clear_range(&KeyRange::prefix("d/"))).await);
    assert!(conflicts(&f, list, |o| o.clear_range(&range("a", "d/0"))).await);
    assert!(!conflicts(&f, list, |o| o.set("d0", "outside")).await);
    assert!(!conflicts(&f, list, |o| o.set("d.", "outside")).await);
    assert!(!conflicts(&f, list, |o| o.clear_range(&range("a", "d/"))).await);
    assert!(!conflicts(&f, list, |o| o.clear_range(&range("d0", "z"))).await);
}

pub(crate) async fn a_limited_range_conflicts_only_as_far_as_it_looked(f: Fixture) {
    for k in ["a", "c", "e"] {
        f.put(k, k).await;
    }
    let two =
        async |tx: &mut Transaction| assert_eq!(tx.range(&range("a", "z"), 2, false).await.unwrap().len(), 2);
    assert!(!conflicts(&f, two, |o| o.set("d", "beyond")).await);
    assert!(!conflicts(&f, two, |o| o.set("c\0", "just beyond")).await);
    assert!(conflicts(&f, two, |o| o.set("b", "between")).await);
    assert!(conflicts(&f, two, |o| o.set("b", "the last one returned")).await);
}

pub(crate) async fn a_reversed_limited_range_conflicts_only_as_far_as_it_looked(f: Fixture) {
    for k in ["a", "c", "e"] {
        f.put(k, k).await;
    }
    let two =
        async |tx: &mut Transaction| assert_eq!(tx.range(&range("a", "z"), 2, true).await.unwrap().len(), 2);
    assert!(!conflicts(&f, two, |o| o.set("b", "beyond")).await);
    assert!(conflicts(&f, two, |o| o.set("c", "the last one returned")).await);
    assert!(conflicts(&f, two, |o| o.set("y", "at the end")).await);
}

pub(crate) async fn a_cleared_range_conflicts_with_readers_inside(f: Fixture) {
    let read = async |tx: &mut Transaction| drop(tx.get(b"m").await.unwrap());
    // Though nothing is there to clear.
    assert!(conflicts(&f, read, |o| o.clear_range(&range("a", "z"))).await);
    assert!(conflicts(&f, read, |o| o.clear_range(&range("m", "m\0"))).await);
}

pub(crate) async fn a_cleared_range_stops_at_its_end(f: Fixture) {
    let read = async |tx: &mut Transaction| drop(tx.get(b"m").await.unwrap());
    assert!(!conflicts(&f, read, |o| o.clear_range(&range("a", "m"))).await);
    assert!(!conflicts(&f, read, |o| o.clear_range(&range("m\0", "z"))).await);
    // Overlapping clears of one reader's lifetime.
    let mut tx = f.db.begin();
    tx.get(b"h").await.unwrap();
    for (begin, end) in [("a", "d"), ("c", "f"), ("p", "t"), ("b", "c"), ("i", "q")] {
        let mut other = f.db.begin();
        other.clear_range(&range(begin, end));
        commit(other).await.unwrap();
    }
    tx.set("r", "x");
    commit(tx).await.unwrap();
}

pub(crate) async fn manual_conflicts_count(f: Fixture) {
    f.put("a", "1").await;
    let key = async |tx: &mut Transaction| {
        tx.snapshot_get(b"a").await.unwrap();
        tx.add_read_conflict_key(b"lock");
    };
    assert!(conflicts(&f, key, |o| o.set("lock", "2")).await);
    assert!(conflicts(&f, key, |o| o.add_write_conflict_key(b"lock")).await);
    assert!(conflicts(&f, key, |o| o.add_write_conflict_range(&range("l", "m"))).await);
    assert!(!conflicts(&f, key, |o| o.add_write_conflict_range(&range("m", "n"))).await);
    let span = async |tx: &mut Transaction| {
        tx.snapshot_get(b"a").await.unwrap();
        tx.add_read_conflict_range(&range("l", "m"));
    };
    assert!(conflicts(&f, span, |o| o.set("lock", "3")).await);
    assert!(conflicts(&f, span, |o| o.add_write_conflict_key(b"lock")).await);
    assert!(!conflicts(&f, span, |o| o.add_write_conflict_key(b"m")).await);
    // Nothing was applied but the results and locks.
    assert_eq!(f.value("m").await, None);
}

pub(crate) async fn own_writes_do_not_conflict(f: Fixture) {
    let own = async |tx: &mut Transaction| {
        tx.snapshot_get(b"other").await.unwrap();
        tx.set("a", "mine");
        tx.get(b"a").await.unwrap();
    };
    assert!(!conflicts(&f, own, |o| o.set("a", "theirs")).await);
    assert_eq!(f.value("a").await.unwrap(), "mine");
}

pub(crate) async fn a_read_only_transaction_always_commits(f: Fixture) {
    f.put("a", "1").await;
    let tx = f.db.begin();
    tx.get(b"a").await.unwrap();
    let read_at = tx.read_version().await.unwrap();
    f.put("a", "2").await;
    let committed = tx.commit().await.unwrap();
    assert_eq!((committed.version, committed.versionstamp), (read_at, None));
}

pub(crate) async fn history_survives_many_commits(f: Fixture) {
    let mut tx = f.db.begin();
    assert_eq!(tx.get(b"k0").await.unwrap(), None);
    f.put("k0", "1").await;
    for i in 0..300 {
        // Short transactions come and go; the history must still reach back to the long one.
        let mut other = f.db.begin();
        other.get(b"elsewhere").await.unwrap();
        other.set(format!("x{}", i % 7), "v");
        if i % 10 == 0 {
            other.clear_range(&KeyRange::prefix(format!("y{i}")));
        }
        commit(other).await.unwrap();
    }
    tx.set("~result", "x");
    assert_eq!(commit(tx).await, Err(KvError::Conflict));
}

pub(crate) async fn an_unreadable_range_conflicts(f: Fixture) {
    // Whether the stamped key is reached depends on what lies before it.
    let read = async |tx: &mut Transaction| {
        tx.set_versionstamped_value("m", vec![0; 10], 0);
        assert_eq!(tx.range(&range("a", "z"), 1, false).await, Err(KvError::Unreadable));
    };
    assert!(conflicts(&f, read, |o| o.set("b", "before")).await);
}
