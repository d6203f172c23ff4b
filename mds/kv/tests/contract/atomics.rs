//! Atomic operations and versionstamps.

use bytes::Bytes;
use sluice_kv::{AtomicOp, KeyRange, KvError, Versionstamp};

use crate::{Fixture, commit, range};

fn le(n: u64) -> Bytes {
    Bytes::copy_from_slice(&n.to_le_bytes())
}

pub(crate) async fn atomics_do_not_conflict_and_add_up(f: Fixture) {
    let mut open = Vec::new();
    for _ in 0..10 {
        let mut tx = f.db.begin();
        tx.read_version().await.unwrap();
        tx.atomic(AtomicOp::Add, "n", le(3));
        open.push(tx);
    }
    for tx in open {
        commit(tx).await.unwrap();
    }
    assert_eq!(f.db.begin().get(b"n").await.unwrap().unwrap(), le(30));
}

pub(crate) async fn atomic_semantics(f: Fixture) {
    type Case<'a> = (AtomicOp, Option<&'a [u8]>, &'a [u8], &'a [u8]);
    let cases: [Case<'_>; 16] = [
        (AtomicOp::Add, None, &[5], &[5]),
        (AtomicOp::Add, Some(&[250]), &[10], &[4]),
        (AtomicOp::Add, Some(&[255, 0]), &[1, 0], &[0, 1]),
        (AtomicOp::Add, Some(&[255]), &[1, 0], &[0, 1]),
        (AtomicOp::Add, Some(&[1, 2, 3]), &[1], &[2]),
        (AtomicOp::Add, Some(&[0xff; 8]), &[1, 0, 0, 0, 0, 0, 0, 0], &[0; 8]),
        // A carry goes through all sixteen bytes, and what was shorter is widened.
        (AtomicOp::Add, Some(&[0xff; 15]), &[1; 16], &[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]),
        (AtomicOp::Add, Some(&[1; 16]), &[0xff; 16], &[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        (AtomicOp::Max, None, &[5], &[5]),
        (AtomicOp::Max, Some(&[0, 2]), &[9, 1], &[0, 2]),
        (AtomicOp::Max, Some(&[0, 1]), &[9, 1], &[9, 1]),
        (AtomicOp::Min, None, &[5], &[5]),
        (AtomicOp::Min, Some(&[4]), &[5], &[4]),
        (AtomicOp::ByteMax, None, b"abc", b"abc"),
        (AtomicOp::ByteMax, Some(b"abd"), b"abc", b"abd"),
        (AtomicOp::ByteMax, Some(b"ab"), b"abc", b"abc"),
    ];
    for (op, present, operand, expected) in cases {
        let mut tx = f.db.begin();
        match present {
            Some(v) => tx.set("k", v),
            None => tx.clear("k"),
        }
        commit(tx).await.unwrap();
        let mut tx = f.db.begin();
        tx.atomic(op, "k", operand);
        commit(tx).await.unwrap();
        let got = f.db.begin().get(b"k").await.unwrap().unwrap();
        assert_eq!(&got[..], expected, "{op:?} {present:?} {operand:?}");
    }
}

pub(crate) async fn atomics_are_read_before_commit(f: Fixture) {
    let mut tx = f.db.begin();
    tx.set("n", le(1));
    commit(tx).await.unwrap();
    let mut tx = f.db.begin();
    tx.atomic(AtomicOp::Add, "n", le(2));
    tx.atomic(AtomicOp::Add, "m", le(7));
    tx.atomic(AtomicOp::Add, "n", le(3));
    assert_eq!(tx.get(b"n").await.unwrap().unwrap(), le(6));
    let all = tx.range(&KeyRange::all(), 10, false).await.unwrap();
    assert_eq!(all, [("m".into(), le(7)), ("n".into(), le(6))]);
    commit(tx).await.unwrap();
    assert_eq!(f.db.begin().range(&KeyRange::all(), 10, false).await.unwrap(), all);
}

pub(crate) async fn reading_an_atomic_conflicts(f: Fixture) {
    let mut tx = f.db.begin();
    tx.atomic(AtomicOp::Add, "n", le(2));
    tx.get(b"n").await.unwrap();
    f.put("n", "12345678").await;
    assert_eq!(commit(tx).await, Err(KvError::Conflict));
}

pub(crate) async fn atomics_after_a_clear_start_from_nothing(f: Fixture) {
    let mut tx = f.db.begin();
    tx.set("n", le(1));
    commit(tx).await.unwrap();
    let mut tx = f.db.begin();
    tx.clear_range(&range("a", "z"));
    tx.atomic(AtomicOp::Add, "n", le(2));
    tx.set("m", le(5));
    tx.atomic(AtomicOp::Add, "m", le(5));
    tx.clear("o");
    tx.atomic(AtomicOp::Add, "o", le(1));
    commit(tx).await.unwrap();
    let all = f.db.begin().range(&KeyRange::all(), 10, false).await.unwrap();
    assert_eq!(all, [("m".into(), le(10)), ("n".into(), le(2)), ("o".into(), le(1))]);
}

pub(crate) async fn versionstamps_grow(f: Fixture) {
    let mut last: Option<Versionstamp> = None;
    for i in 0..20 {
        let mut tx = f.db.begin();
        tx.set_versionstamped_value("s", &b"<0123456789>"[..], 1);
        if i % 2 == 0 {
            tx.clear_range(&range("a", "b"));
        }
        let committed = tx.commit().await.unwrap();
        let stamp = committed.versionstamp.unwrap();
        assert_eq!(stamp.version(), committed.version);
        assert!(last.is_none_or(|l| l < stamp));
        last = Some(stamp);
        let value = f.db.begin().get(b"s").await.unwrap().unwrap();
        assert_eq!(value, [&b"<"[..], &stamp.0, &b">"[..]].concat());
    }
}

pub(crate) async fn a_versionstamped_value_is_unreadable_before_commit(f: Fixture) {
    f.put("s", "old").await;
    let mut tx = f.db.begin();
    tx.set_versionstamped_value("s", vec![0; 10], 0);
    assert_eq!(tx.get(b"s").await, Err(KvError::Unreadable));
    assert_eq!(tx.range(&KeyRange::all(), 10, false).await, Err(KvError::Unreadable));
    assert!(tx.range(&range("t", "z"), 10, false).await.unwrap().is_empty());
    // Overwritten, it is an ordinary value again.
    tx.set("s", "new");
    assert_eq!(tx.get(b"s").await.unwrap().unwrap(), "new");
    commit(tx).await.unwrap();
    assert_eq!(f.value("s").await.unwrap(), "new");
}
