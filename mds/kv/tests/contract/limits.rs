//! The envelope every backend enforces.

use std::time::Duration;

use sluice_kv::{AtomicOp, KeyRange, KvError, MAX_KEY, MAX_TRANSACTION, MAX_VALUE, Transaction};

use crate::{Fixture, commit, range};

async fn outcome(f: &Fixture, write: impl FnOnce(&mut Transaction)) -> Result<u64, KvError> {
    let mut tx = f.db.begin();
    write(&mut tx);
    tx.set("also", "applied");
    commit(tx).await
}

pub(crate) async fn keys_and_values_are_bounded(f: Fixture) {
    let key = |n| vec![b'k'; n];
    outcome(&f, |tx| tx.set(key(MAX_KEY), vec![0; MAX_VALUE])).await.unwrap();
    assert_eq!(f.db.begin().get(&key(MAX_KEY)).await.unwrap().unwrap().len(), MAX_VALUE);
    let mut tx = f.db.begin();
    tx.clear("also");
    commit(tx).await.unwrap();
    let long = outcome(&f, |tx| tx.set(key(MAX_KEY + 1), "v")).await;
    assert_eq!(long, Err(KvError::KeyTooLong { bytes: MAX_KEY + 1 }));
    let large = outcome(&f, |tx| tx.set("k", vec![0; MAX_VALUE + 1])).await;
    assert_eq!(large, Err(KvError::ValueTooLong { bytes: MAX_VALUE + 1 }));
    assert_eq!(f.value("also").await, None);
    assert_eq!(f.db.begin().get(&key(MAX_KEY + 1)).await, Err(KvError::KeyTooLong { bytes: MAX_KEY + 1 }));
}

pub(crate) async fn transactions_are_bounded(f: Fixture) {
    let mut tx = f.db.begin();
    for i in 0..99 {
        tx.set(format!("k{i}"), vec![0; MAX_VALUE]);
    }
    assert!(tx.approximate_size() > 99 * MAX_VALUE);
    commit(tx).await.unwrap();
    let mut tx = f.db.begin();
    for i in 0..101 {
        tx.set(format!("l{i}"), vec![0; MAX_VALUE]);
    }
    assert!(tx.approximate_size() > MAX_TRANSACTION);
    assert!(matches!(commit(tx).await, Err(KvError::TooLarge { .. })));
    assert!(f.db.begin().range(&KeyRange::prefix("l"), 10, false).await.unwrap().is_empty());
    // Conflict ranges count too.
    let mut tx = f.db.begin();
    tx.set("k", "v");
    for _ in 0..MAX_TRANSACTION / MAX_KEY {
        tx.add_read_conflict_key(&vec![b'k'; MAX_KEY]);
    }
    assert!(matches!(commit(tx).await, Err(KvError::TooLarge { .. })));
}

pub(crate) async fn reserved_keys_are_refused(f: Fixture) {
    for key in [&b""[..], b"\xff", b"\xff/version"] {
        assert_eq!(outcome(&f, |tx| tx.set(key, "v")).await, Err(KvError::KeyOutside));
        assert_eq!(outcome(&f, |tx| tx.clear(key)).await, Err(KvError::KeyOutside));
        assert_eq!(outcome(&f, |tx| tx.add_write_conflict_key(key)).await, Err(KvError::KeyOutside));
    }
    let beyond = KeyRange::new("a", &b"\xff\0"[..]);
    assert_eq!(outcome(&f, |tx| tx.clear_range(&beyond)).await, Err(KvError::KeyOutside));
    assert_eq!(f.db.begin().range(&beyond, 10, false).await, Err(KvError::KeyOutside));
    assert_eq!(f.dump().await, []);
}

pub(crate) async fn old_transactions_end(f: Fixture) {
    let mut tx = f.db.begin();
    tx.get(b"a").await.unwrap();
    tx.set("b", "1");
    f.pass(Duration::from_millis(5001)).await;
    assert_eq!(commit(tx).await, Err(KvError::TooOld));
    assert_eq!(f.value("b").await, None);
    // Age begins with the first read.
    let mut blind = f.db.begin();
    blind.set("b", "2");
    f.pass(Duration::from_secs(60)).await;
    commit(blind).await.unwrap();
    let mut young = f.db.begin();
    young.get(b"a").await.unwrap();
    young.set("b", "3");
    f.pass(Duration::from_millis(4999)).await;
    commit(young).await.unwrap();
}

pub(crate) async fn old_reads_end(f: Fixture) {
    f.put("a", "1").await;
    let tx = f.db.begin();
    tx.get(b"a").await.unwrap();
    f.pass(Duration::from_millis(5001)).await;
    assert_eq!(tx.get(b"a").await, Err(KvError::TooOld));
    assert_eq!(tx.range(&range("a", "b"), 1, false).await, Err(KvError::TooOld));
}

pub(crate) async fn inverted_ranges_are_refused(f: Fixture) {
    let inverted = range("b", "a");
    assert_eq!(f.db.begin().range(&inverted, 1, false).await, Err(KvError::InvertedRange));
    assert_eq!(outcome(&f, |tx| tx.clear_range(&inverted)).await, Err(KvError::InvertedRange));
}

pub(crate) async fn operands_are_checked(f: Fixture) {
    let bad = outcome(&f, |tx| tx.atomic(AtomicOp::Add, "n", vec![0; 17])).await;
    assert_eq!(bad, Err(KvError::BadOperand));
    assert_eq!(outcome(&f, |tx| tx.atomic(AtomicOp::Max, "n", "")).await, Err(KvError::BadOperand));
    let short = outcome(&f, |tx| tx.set_versionstamped_value("n", vec![0; 12], 3)).await;
    assert_eq!(short, Err(KvError::BadOperand));
    let far = outcome(&f, |tx| tx.set_versionstamped_value("n", vec![0; 12], usize::MAX)).await;
    assert_eq!(far, Err(KvError::BadOperand));
}
