//! The contract every backend keeps. Each case is a function of a [`Fixture`] and runs against each
//! backend in a world with virtual time; `concurrent` runs against real threads besides.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends at the first surprise")]

mod atomics;
mod basics;
mod concurrent;
mod conflicts;
mod durability;
mod limits;
mod model;
mod serial;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_env::{BoxFuture, Clock, Env, Monotonic, Wall};
use sluice_kv::{Database, EmbeddedOptions, Faults, FoundationOptions, KeyRange, KvError};
use tempfile::TempDir;

/// A clock that goes on whenever somebody looks: whatever is measured with it took longer than memory does.
#[derive(Debug)]
pub(crate) struct SlowDisk {
    clock: Arc<dyn Clock>,
    looks: AtomicU64,
}

impl SlowDisk {
    const LOOK: Duration = Duration::from_micros(200);

    pub(crate) fn env() -> Env {
        let env = Env::simulated(1);
        let clock = Arc::new(Self { clock: env.clock, looks: AtomicU64::new(0) });
        Env { clock, ..env }
    }

    fn ahead(&self) -> Duration {
        Self::LOOK * u32::try_from(self.looks.load(Ordering::Relaxed)).unwrap()
    }
}

impl Clock for SlowDisk {
    fn now(&self) -> Monotonic {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.clock.now() + self.ahead()
    }

    fn wall(&self) -> Wall {
        self.clock.wall()
    }

    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(self.clock.now() + (at - (self.clock.now() + self.ahead())))
    }
}

/// A fresh store of one backend.
pub(crate) struct Fixture {
    pub(crate) env: Env,
    pub(crate) db: Database,
    kind: Kind,
}

/// What the next incarnation needs.
enum Kind {
    Memory,
    Embedded(TempDir, EmbeddedOptions),
    Foundation(FoundationOptions),
}

impl Fixture {
    pub(crate) fn memory(env: Env) -> Self {
        let db = Database::memory(env.clone(), Faults::NONE);
        Self { env, db, kind: Kind::Memory }
    }

    pub(crate) fn embedded(env: Env, options: EmbeddedOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open_embedded(env.clone(), dir.path(), options.clone()).unwrap();
        Self { env, db, kind: Kind::Embedded(dir, options) }
    }

    /// In virtual time, unless `change` says otherwise.
    pub(crate) async fn foundation(env: Env, change: impl FnOnce(&mut FoundationOptions)) -> Self {
        let mut options = FoundationOptions::of_tests().expect(
            "NOT RUN: FoundationDB: SLUICE_FDB_CLUSTER_FILE and SLUICE_FDB_LIBRARY are not set (docs/TESTING.md)",
        );
        change(&mut options);
        let db = Database::fresh_in(env.clone(), &options).await.unwrap();
        Self { env, db, kind: Kind::Foundation(options) }
    }

    /// Ends this incarnation of the store and opens the next.
    pub(crate) async fn reopen(self) -> Self {
        let Self { env, db, kind } = self;
        let db = match &kind {
            Kind::Memory => db.crash().unwrap(),
            Kind::Embedded(dir, options) => {
                db.close().await.unwrap();
                Database::open_embedded(env.clone(), dir.path(), options.clone()).unwrap()
            }
            Kind::Foundation(options) => {
                db.close().await.unwrap();
                Database::open_foundation(env.clone(), options).await.unwrap()
            }
        };
        Self { env, db, kind }
    }

    pub(crate) async fn pass(&self, time: Duration) {
        self.env.clock.sleep(time).await;
    }

    /// Commits one value.
    pub(crate) async fn put(&self, key: &'static str, value: &'static str) -> u64 {
        let mut tx = self.db.begin();
        tx.set(key, value);
        tx.commit().await.unwrap().version
    }

    pub(crate) async fn value(&self, key: &str) -> Option<String> {
        let value = self.db.begin().get(key.as_bytes()).await.unwrap();
        value.map(|v| String::from_utf8_lossy(&v).into_owned())
    }

    /// All keys and values, as text.
    pub(crate) async fn dump(&self) -> Vec<(String, String)> {
        text(self.db.begin().range(&KeyRange::all(), 10_000, false).await.unwrap())
    }
}

pub(crate) fn text(pairs: Vec<sluice_kv::KeyValue>) -> Vec<(String, String)> {
    let string = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    pairs.iter().map(|(k, v)| (string(k), string(v))).collect()
}

pub(crate) fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

pub(crate) fn range(begin: &'static str, end: &'static str) -> KeyRange {
    KeyRange::new(begin, end)
}

pub(crate) async fn commit(tx: sluice_kv::Transaction) -> Result<u64, KvError> {
    tx.commit().await.map(|c| c.version)
}

macro_rules! contract {
    ($($module:ident :: { $($case:ident),+ $(,)? })+) => {
        mod memory {$(mod $module {$(
            #[tokio::test(start_paused = true)]
            async fn $case() {
                let fixture = crate::Fixture::memory(sluice_env::Env::simulated(1));
                crate::$module::$case(fixture).await;
            }
        )+})+}
        mod embedded {$(mod $module {$(
            #[tokio::test(start_paused = true)]
            async fn $case() {
                let options = sluice_kv::EmbeddedOptions::default();
                let fixture = crate::Fixture::embedded(sluice_env::Env::simulated(1), options);
                crate::$module::$case(fixture).await;
            }
        )+})+}
        // Keys of the cases are on both sides of its bounds, and within.
        mod embedded_in_two_trees {$(mod $module {$(
            #[tokio::test(start_paused = true)]
            async fn $case() {
                let large = Some(sluice_kv::KeyRange::new("b", "k5"));
                let options = sluice_kv::EmbeddedOptions { large, ..Default::default() };
                let fixture = crate::Fixture::embedded(sluice_env::Env::simulated(1), options);
                crate::$module::$case(fixture).await;
            }
        )+})+}
        // Every read is on a thread that may wait for the disk.
        mod embedded_on_a_slow_disk {$(mod $module {$(
            #[tokio::test(start_paused = true)]
            async fn $case() {
                let options = sluice_kv::EmbeddedOptions { row_bytes: 0, ..Default::default() };
                let fixture = crate::Fixture::embedded(crate::SlowDisk::env(), options);
                crate::$module::$case(fixture).await;
            }
        )+})+}
        mod foundation {$(mod $module {$(
            #[tokio::test(start_paused = true)]
            #[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
            async fn $case() {
                let fixture = crate::Fixture::foundation(sluice_env::Env::simulated(1), |_| ()).await;
                crate::$module::$case(fixture).await;
            }
        )+})+}
        // One server has it: transactions begin at its last commit.
        mod foundation_held {$(mod $module {$(
            #[tokio::test(start_paused = true)]
            #[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
            async fn $case() {
                let dir = tempfile::tempdir().unwrap();
                let held = |options: &mut sluice_kv::FoundationOptions| {
                    options.identity = Some(dir.path().join("identity"));
                };
                let fixture = crate::Fixture::foundation(sluice_env::Env::simulated(1), held).await;
                crate::$module::$case(fixture).await;
            }
        )+})+}
    };
}

contract! {
    basics::{
        keys_are_ordered_as_bytes, a_range_is_half_open_limited_and_reversible, a_transaction_reads_one_version,
        a_snapshot_is_one_version_page_by_page,
        own_writes_are_read, own_writes_are_merged_into_ranges, a_dropped_transaction_leaves_nothing,
        commits_are_visible_to_the_next_transaction, clear_range_clears_what_is_there_at_commit,
        empty_ranges_are_empty, a_large_clear_hides_pages, a_closed_store_says_so,
    }
    conflicts::{
        a_read_key_written_since_conflicts, a_missing_key_created_since_conflicts, write_write_does_not_conflict,
        snapshot_reads_do_not_conflict, phantoms_conflict, a_limited_range_conflicts_only_as_far_as_it_looked,
        a_reversed_limited_range_conflicts_only_as_far_as_it_looked, a_cleared_range_conflicts_with_readers_inside,
        manual_conflicts_count, own_writes_do_not_conflict, a_read_only_transaction_always_commits,
        a_cleared_range_stops_at_its_end, history_survives_many_commits,
        an_unreadable_range_conflicts,
    }
    atomics::{
        atomics_do_not_conflict_and_add_up, atomic_semantics, atomics_are_read_before_commit,
        reading_an_atomic_conflicts, versionstamps_grow, a_versionstamped_value_is_unreadable_before_commit,
        atomics_after_a_clear_start_from_nothing,
    }
    limits::{
        keys_and_values_are_bounded, transactions_are_bounded, reserved_keys_are_refused, old_transactions_end,
        old_reads_end, inverted_ranges_are_refused, operands_are_checked,
    }
    durability::{ commits_survive, versions_grow_across_restarts, uncommitted_writes_do_not_survive }
    serial::{ random_interleavings_are_serialisable }
    concurrent::{ counters_add_up }
}
