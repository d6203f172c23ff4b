//! Many transactions at once, on real threads too.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use sluice_env::Env;
use sluice_kv::{Database, EmbeddedOptions, KeyRange, KvError, RunLimits};

use crate::Fixture;
use crate::model::{Model, Record, check, op, perform};

/// Tasks add to one counter by read and write; every addition must be there, once.
pub(crate) async fn counters_add_up(f: Fixture) {
    let tasks: Vec<_> = (0..8u8).map(|_| spawn(count(f.db.clone(), 25))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let n = f.db.begin().get(b"n").await.unwrap().unwrap();
    assert_eq!(n, 200u64.to_be_bytes()[..]);
}

#[allow(clippy::disallowed_methods, reason = "a test drives its own tasks")]
fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
    tokio::spawn(work)
}

async fn count(db: Database, times: usize) {
    let limits = RunLimits { max_attempts: 10_000, ..RunLimits::default() };
    for _ in 0..times {
        db.run(limits.clone(), |mut tx| {
            Box::pin(async move {
                let n = tx.get(b"n").await?.map_or(0, |v| u64::from_be_bytes(v[..].try_into().unwrap()));
                // Let others in between read and write.
                tokio::task::yield_now().await;
                tx.set("n", Bytes::copy_from_slice(&(n + 1).to_be_bytes()));
                Ok::<_, KvError>(())
            })
        })
        .await
        .unwrap();
    }
}

/// One task's random transactions, run to commit or conflict.
async fn wander(db: Database, records: Arc<Mutex<Vec<Record>>>, scripts: Vec<Vec<crate::model::Op>>) {
    for script in scripts {
        let mut tx = db.begin();
        let read_at = tx.read_version().await.unwrap();
        let mut steps = Vec::new();
        for op in script {
            let seen = perform(&mut tx, &op).await.unwrap();
            steps.push((op, seen));
            if steps.len() % 3 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let committed = match tx.commit().await {
            Ok(committed) => Some(committed),
            Err(KvError::Conflict) => None,
            Err(error) => panic!("{error}"),
        };
        records.lock().unwrap().push(Record { read_at, steps, committed });
    }
}

/// Returns the largest number of transactions that shared a version.
async fn random_load_is_serialisable(f: Fixture) -> usize {
    let records = Arc::new(Mutex::new(Vec::new()));
    let mut runner = TestRunner::deterministic();
    let scripts = proptest::collection::vec(proptest::collection::vec(op(), 1..6), 80..81);
    let tasks: Vec<_> = (0..16)
        .map(|_| scripts.new_tree(&mut runner).unwrap().current())
        .map(|scripts| spawn(wander(f.db.clone(), records.clone(), scripts)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let records = std::mem::take(&mut *records.lock().unwrap());
    let model = check(&Model::new(), &records).unwrap();
    let stored = f.db.begin().range(&KeyRange::all(), 100, false).await.unwrap();
    assert_eq!(stored, model.into_iter().collect::<Vec<_>>());
    let mut versions: Vec<_> =
        records.iter().filter_map(|r| Some(r.committed?.versionstamp?.version())).collect();
    assert!(versions.len() > 300, "only {} commits", versions.len());
    versions.sort_unstable();
    versions.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_load_on_memory_is_serialisable() {
    random_load_is_serialisable(Fixture::memory(Env::system())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_load_on_embedded_is_serialisable_and_groups() {
    let f = Fixture::embedded(Env::system(), EmbeddedOptions::default());
    let largest = random_load_is_serialisable(f).await;
    assert!(largest > 1, "no two transactions were committed together");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_bounded() {
    let f = Fixture::embedded(Env::system(), EmbeddedOptions { max_group: 3, ..EmbeddedOptions::default() });
    let largest = random_load_is_serialisable(f).await;
    assert!(largest <= 3, "{largest} transactions in a group");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counters_add_up_on_threads() {
    counters_add_up(Fixture::embedded(Env::system(), EmbeddedOptions::default())).await;
    counters_add_up(Fixture::memory(Env::system())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
async fn random_load_on_foundation_is_serialisable() {
    let f = Fixture::foundation(Env::system(), |options| options.still = false).await;
    random_load_is_serialisable(f).await;
    counters_add_up(Fixture::foundation(Env::system(), |options| options.still = false).await).await;
}
