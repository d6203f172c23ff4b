//! What the next incarnation of a store holds.

use crate::{Fixture, commit, pairs};

pub(crate) async fn commits_survive(f: Fixture) {
    f.put("a", "1").await;
    f.put("b", "1").await;
    let mut tx = f.db.begin();
    tx.clear("a");
    tx.set("c", "2");
    commit(tx).await.unwrap();
    let f = f.reopen().await;
    assert_eq!(f.dump().await, pairs(&[("b", "1"), ("c", "2")]));
    f.put("d", "3").await;
    let f = f.reopen().await;
    assert_eq!(f.dump().await, pairs(&[("b", "1"), ("c", "2"), ("d", "3")]));
}

pub(crate) async fn versions_grow_across_restarts(mut f: Fixture) {
    let mut last = 0;
    for _ in 0..4 {
        let version = f.put("a", "1").await;
        assert!(version > last);
        last = version;
        f = f.reopen().await;
        assert!(f.db.begin().read_version().await.unwrap() >= last);
    }
}

pub(crate) async fn uncommitted_writes_do_not_survive(f: Fixture) {
    f.put("a", "1").await;
    {
        let mut tx = f.db.begin();
        tx.set("a", "2");
        tx.get(b"b").await.unwrap();
    }
    let f = f.reopen().await;
    assert_eq!(f.dump().await, pairs(&[("a", "1")]));
}
