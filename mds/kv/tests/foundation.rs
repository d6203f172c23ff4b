//! What only the FoundationDB backend does. With a cluster: `cargo check-all --only foundationdb`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends at the first surprise")]

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use sluice_env::Env;
use sluice_kv::{AtomicOp, Database, FoundationOptions, KeyRange, KvError, MAX_TRANSACTION};

fn with_library(path: PathBuf) -> FoundationOptions {
    FoundationOptions { library: Some(path), ..FoundationOptions::default() }
}

async fn refusal(options: &FoundationOptions) -> String {
    let Err(KvError::NoClient { what }) = Database::open_foundation(Env::system(), options).await else {
        panic!("a client was found");
    };
    assert!(!what.contains('\n'), "one line: {what}");
    what
}

#[tokio::test]
async fn a_missing_library_is_named_with_what_was_tried() {
    let what = refusal(&with_library("/nowhere/libfdb_c.so".into())).await;
    assert!(
        what.starts_with("FoundationDB client library not found; tried /nowhere/libfdb_c.so ("),
        "{what}"
    );
}

#[tokio::test]
async fn a_file_that_is_no_library_is_refused() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"not a library").unwrap();
    let what = refusal(&with_library(file.path().to_owned())).await;
    assert!(what.contains(file.path().to_str().unwrap()), "{what}");
}

#[tokio::test]
async fn another_library_is_refused_by_the_function_it_lacks() {
    let what = refusal(&with_library("libc.so.6".into())).await;
    assert!(
        what.starts_with("libc.so.6 is not a FoundationDB client library") && what.contains("fdb_"),
        "{what}"
    );
}

#[tokio::test]
async fn a_name_with_a_slash_is_refused() {
    let options = FoundationOptions { name: "a/b".to_owned(), ..FoundationOptions::default() };
    let what = refusal(&options).await;
    assert!(what.contains("\"a/b\""), "{what}");
}

fn tests_cluster() -> FoundationOptions {
    let options = FoundationOptions::of_tests()
        .expect("NOT RUN: FoundationDB: SLUICE_FDB_CLUSTER_FILE and SLUICE_FDB_LIBRARY are not set");
    FoundationOptions { still: false, ..options }
}

async fn all(db: &Database) -> Vec<sluice_kv::KeyValue> {
    db.begin().range(&KeyRange::all(), usize::MAX, false).await.unwrap()
}

async fn set(db: &Database, key: &'static str, value: &'static str) {
    let mut tx = db.begin();
    tx.set(key, value);
    tx.commit().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
async fn foundation_file_systems_of_one_cluster_do_not_meet() {
    let (a, b) = (tests_cluster(), tests_cluster());
    let longer = FoundationOptions { name: format!("{}0", a.name), ..a.clone() };
    let one = Database::fresh_in(Env::system(), &a).await.unwrap();
    let others = [
        Database::fresh_in(Env::system(), &b).await.unwrap(),
        Database::fresh_in(Env::system(), &longer).await.unwrap(),
    ];
    set(&one, "k", "one").await;
    for other in &others {
        set(other, "k", "other").await;
    }
    // What was read of one is not touched by a commit to another.
    let mut tx = one.begin();
    assert_eq!(tx.get(b"k").await.unwrap().unwrap(), "one");
    set(&others[0], "k", "again").await;
    tx.clear_range(&KeyRange::all());
    tx.commit().await.unwrap();
    assert_eq!(all(&one).await, []);
    for other in &others {
        assert_eq!(all(other).await.len(), 1);
    }
}

/// What the limits here admit, the cluster admits: many small writes cost more than their bytes.
#[tokio::test]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
async fn foundation_takes_whatever_the_limits_admit() {
    let plain = tests_cluster();
    // Every key begins with the name: the longest.
    let options = FoundationOptions { name: format!("{:-<32}", plain.name), ..plain };
    let db = Database::fresh_in(Env::system(), &options).await.unwrap();
    for kind in 0..4 {
        let mut tx = db.begin();
        tx.get(b"first").await.unwrap();
        for i in 0u32.. {
            let key = format!("{i:08}");
            match kind {
                0 => tx.set(key, ""),
                1 => tx.clear(key),
                2 => tx.atomic(AtomicOp::Add, key, &b"\x01"[..]),
                _ => {
                    tx.set("k", "v");
                    tx.add_read_conflict_key(key.as_bytes());
                }
            }
            if tx.approximate_size() + 400 > MAX_TRANSACTION {
                break;
            }
        }
        match tx.commit().await {
            // So many operations may take longer than the transaction may last; that is not its size.
            Ok(_) | Err(KvError::TooOld) => {}
            Err(error) => panic!("kind {kind}: {error}"),
        }
    }
}

#[tokio::test]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
async fn foundation_ranges_are_whole_however_large() {
    let db = Database::fresh_in(Env::system(), &tests_cluster()).await.unwrap();
    for i in 0..50u32 {
        let mut tx = db.begin();
        for j in 0..20u32 {
            tx.set(format!("{:06}", i * 20 + j), vec![7; 5_000]);
        }
        tx.commit().await.unwrap();
    }
    let expected: Vec<_> = (0..1000).map(|n| format!("{n:06}").into_bytes()).collect();
    for (limit, reverse) in [(usize::MAX, false), (usize::MAX, true), (777, false), (777, true), (1, true)] {
        let pairs = db.begin().range(&KeyRange::all(), limit, reverse).await.unwrap();
        let mut wanted = expected.clone();
        if reverse {
            wanted.reverse();
        }
        wanted.truncate(limit);
        assert_eq!(pairs.iter().map(|(k, _)| k.to_vec()).collect::<Vec<_>>(), wanted);
        assert!(pairs.iter().all(|(_, v)| v.len() == 5_000));
    }
}

#[tokio::test]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
async fn foundation_says_how_much_room_it_has() {
    let env = Env::system();
    let db = Database::open_foundation(env.clone(), &tests_cluster()).await.unwrap();
    let mut room = db.room();
    for _ in 0..100 {
        if room.is_some() {
            break;
        }
        env.clock.sleep(Duration::from_millis(100)).await;
        room = db.room();
    }
    let room = room.unwrap();
    assert!(0 < room.free && room.free < room.total, "{room:?}");
}

/// A port where nobody listens: an error within seconds, and no other database of the process is disturbed.
#[tokio::test]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
async fn foundation_away_is_unavailable() {
    let there = tests_cluster();
    let db = Database::fresh_in(Env::system(), &there).await.unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"away:away@127.0.0.1:9\n").unwrap();
    let away = FoundationOptions { cluster_file: Some(file.path().to_owned()), ..there };
    let answer = Database::open_foundation(Env::system(), &away).await.map(drop);
    assert!(matches!(answer, Err(KvError::Unavailable { .. })), "{answer:?}");
    set(&db, "k", "v").await;
}

fn beside(identities: &tempfile::TempDir, name: &str, options: &FoundationOptions) -> FoundationOptions {
    FoundationOptions { identity: Some(identities.path().join(name)), ..options.clone() }
}

#[tokio::test]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
async fn foundation_is_had_by_one_server_at_a_time() {
    let identities = tempfile::tempdir().unwrap();
    let plain = tests_cluster();
    let (one, two) = (beside(&identities, "one", &plain), beside(&identities, "two", &plain));
    let env = Env::system();
    let first = Database::open_foundation(env.clone(), &one).await.unwrap();
    // The same identity is locked; another finds the first alive.
    for options in [&one, &two] {
        let refused = Database::open_foundation(env.clone(), options).await.map(drop);
        assert!(matches!(refused, Err(KvError::InUse { .. })), "{refused:?}");
    }
    set(&first, "k", "v").await;
    // Released by a clean end.
    first.close().await.unwrap();
    let start = env.clock.now();
    let second = Database::open_foundation(env.clone(), &two).await.unwrap();
    assert!(env.clock.now().since(start) < Duration::from_secs(5));
    // Not released by a crash: the same server goes on at once, another after a while.
    drop(second);
    let start = env.clock.now();
    drop(Database::open_foundation(env.clone(), &two).await.unwrap());
    assert!(env.clock.now().since(start) < Duration::from_secs(5));
    let third = Database::open_foundation(env.clone(), &one).await.unwrap();
    assert!(env.clock.now().since(start) > Duration::from_secs(8));
    assert_eq!(third.begin().get(b"k").await.unwrap().unwrap(), "v");
}

/// A data directory that was copied to another host while its server lives.
#[tokio::test]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
async fn foundation_with_a_copied_identity_is_had_by_another_server() {
    let identities = tempfile::tempdir().unwrap();
    let plain = tests_cluster();
    let (one, copy) = (beside(&identities, "one", &plain), beside(&identities, "copy", &plain));
    let first = Database::open_foundation(Env::system(), &one).await.unwrap();
    std::fs::copy(identities.path().join("one"), identities.path().join("copy")).unwrap();
    let refused = Database::open_foundation(Env::system(), &copy).await.map(drop);
    assert!(matches!(refused, Err(KvError::InUse { .. })), "{refused:?}");
    set(&first, "k", "v").await;
}

/// The network is at work when a process ends, and does not fall over what the end destroys.
#[test]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
fn foundation_lets_its_process_end() {
    for round in 0..30 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--ignored", "--exact", "foundation_file_systems_of_one_cluster_do_not_meet"]);
        let ended = child.output().unwrap();
        assert!(ended.status.success(), "round {round}: {}", ended.status);
    }
}
