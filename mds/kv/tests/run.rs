//! The retry loop, as its callers use it.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sluice_env::{BoxFuture, Env};
use sluice_kv::{AtomicOp, Committed, Database, Faults, KvError, RunLimits, Transaction};

struct Names {
    db: Database,
}

async fn create(tx: &mut Transaction, name: &[u8], value: &str) -> Result<bool, KvError> {
    if tx.get(name).await?.is_some() {
        return Ok(false);
    }
    tx.set(Bytes::copy_from_slice(name), value.to_owned());
    Ok(true)
}

impl Names {
    async fn create(&self, name: &[u8], value: &str) -> Result<bool, KvError> {
        let limits = RunLimits::default().resolve_by(Bytes::copy_from_slice(name));
        let (fresh, _) =
            self.db.run(limits, |mut tx| Box::pin(async move { create(&mut tx, name, value).await })).await?;
        Ok(fresh)
    }

    fn sendable<'a>(&'a self, name: &'a [u8]) -> BoxFuture<'a, Result<bool, KvError>> {
        Box::pin(self.create(name, "v"))
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_is_retried_until_it_commits() {
    let faults = Faults {
        conflict: 0.3,
        unknown_applied: 0.3,
        unknown_lost: 0.3,
        too_old: 0.1,
        unavailable: 0.1,
        ..Faults::NONE
    };
    let names = Names { db: Database::memory(Env::simulated(7), faults) };
    for i in 0..200u32 {
        assert!(names.sendable(format!("name{i}").as_bytes()).await.unwrap(), "{i}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unresolved_unknown_result_is_reported_and_an_idempotent_one_retried() {
    let db = Database::memory(Env::simulated(1), Faults { unknown_applied: 1.0, ..Faults::NONE });
    let add = |limits| {
        db.run(limits, |mut tx| {
            Box::pin(async move {
                tx.atomic(AtomicOp::Add, &b"n"[..], &b"\x01"[..]);
                Ok::<_, KvError>(())
            })
        })
    };
    assert_eq!(add(RunLimits::default()).await, Err(KvError::CommitUnknown));
    let limits = RunLimits { max_attempts: 3, ..RunLimits::default() }.idempotent();
    let error = add(limits).await.unwrap_err();
    assert!(error.maybe_committed(), "{error}");
    db.set_faults(Faults::NONE);
    assert_eq!(db.begin().get(b"n").await.unwrap().unwrap(), &b"\x04"[..]);
}

/// One attempt whose commit is answered "unknown"; the faults end once it ran.
async fn after_unknown(applied: bool, stamped: bool) -> (Database, u32, Result<Committed, KvError>) {
    let (unknown_applied, unknown_lost) = if applied { (1.0, 0.0) } else { (0.0, 1.0) };
    let faults = Faults { unknown_applied, unknown_lost, ..Faults::NONE };
    let db = Database::memory(Env::simulated(1), faults);
    let runs = AtomicU32::new(0);
    let result = db
        .run(RunLimits::default().resolve_by("reply"), |mut tx| {
            let (db, runs) = (&db, &runs);
            Box::pin(async move {
                if runs.fetch_add(1, Ordering::Relaxed) > 0 {
                    db.set_faults(Faults::NONE);
                }
                if stamped {
                    tx.set_versionstamped_value("reply", &b"7 ..........!"[..], 2);
                } else {
                    tx.set("reply", "7");
                }
                tx.atomic(AtomicOp::Add, "n", &b"\x01"[..]);
                Ok::<_, KvError>(())
            })
        })
        .await;
    (db, runs.into_inner(), result.map(|((), committed)| committed))
}

#[tokio::test(start_paused = true)]
async fn an_unknown_result_is_resolved_by_its_key() {
    for stamped in [false, true] {
        for applied in [false, true] {
            let (db, runs, result) = after_unknown(applied, stamped).await;
            let committed = result.unwrap();
            assert_eq!(runs, if applied { 1 } else { 2 });
            assert_eq!(db.begin().get(b"n").await.unwrap().unwrap(), &b"\x01"[..], "applied once");
            // A resolved plain key leaves the stamp unknown; a stamped one tells it.
            assert_eq!(committed.exact, stamped || !applied);
            assert_eq!(committed.versionstamp.is_some(), committed.exact);
            if stamped {
                let reply = db.begin().get(b"reply").await.unwrap().unwrap();
                assert_eq!(reply[2..12], committed.versionstamp.unwrap().0);
                assert_eq!(committed.version, committed.versionstamp.unwrap().version());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_another_request_overwrote_is_not_taken_for_ours() {
    let db = Database::memory(Env::simulated(1), Faults::NONE);
    let mut other = db.begin();
    other.set("reply", "6");
    other.commit().await.unwrap();
    db.set_faults(Faults { unknown_lost: 1.0, ..Faults::NONE });
    let limits = RunLimits { max_attempts: 3, ..RunLimits::default() }.resolve_by("reply");
    let result = db
        .run(limits, |mut tx| {
            Box::pin(async move {
                tx.set("reply", "7");
                Ok::<_, KvError>(())
            })
        })
        .await;
    // Each attempt is known not to have been applied, so giving up is harmless.
    let error = result.unwrap_err();
    assert!(matches!(error, KvError::GaveUp { attempts: 3, .. }), "{error}");
    assert!(!error.maybe_committed());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_result_that_cannot_be_looked_up_stays_unknown() {
    let env = Env::simulated(1);
    let faults = Faults { unknown_applied: 1.0, latency: Duration::from_millis(10), ..Faults::NONE };
    let db = Database::memory(env.clone(), faults);
    let limits = RunLimits { max_attempts: 5, ..RunLimits::default() }.resolve_by("reply");
    let run = db.run(limits, |mut tx| {
        Box::pin(async move {
            tx.set("reply", "7");
            Ok::<_, KvError>(())
        })
    });
    // The commit has drawn its faults when this takes effect; the look-ups have not.
    let blind = async {
        tokio::task::yield_now().await;
        db.set_faults(Faults { too_old: 1.0, unavailable: 1.0, ..Faults::NONE });
    };
    let (result, ()) = tokio::join!(run, blind);
    assert_eq!(result, Err(KvError::CommitUnknown));
}

/// The store is away for longer than the deadline allows attempts: the answer is waited for.
#[tokio::test(start_paused = true)]
async fn an_unknown_result_is_looked_up_until_it_is_known() {
    for applied in [false, true] {
        let env = Env::simulated(1);
        let (unknown_applied, unknown_lost) = if applied { (1.0, 0.0) } else { (0.0, 1.0) };
        let faults =
            Faults { unknown_applied, unknown_lost, latency: Duration::from_millis(10), ..Faults::NONE };
        let db = Database::memory(env.clone(), faults);
        let deadline = env.clock.now() + Duration::from_secs(1);
        let run = db.run(RunLimits::until(deadline).resolve_by("reply").until_known(), |mut tx| {
            Box::pin(async move {
                tx.set("reply", "7");
                Ok::<_, KvError>(())
            })
        });
        let away = async {
            tokio::task::yield_now().await;
            db.set_faults(Faults { unavailable: 1.0, ..Faults::NONE });
            env.clock.sleep(Duration::from_secs(60)).await;
            db.set_faults(Faults::NONE);
        };
        let (result, ()) = tokio::join!(run, away);
        // What was not applied is not tried again after the deadline, and known not to be.
        assert!(if applied { result.is_ok() } else { !result.unwrap_err().maybe_committed() });
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_the_attempts() {
    let env = Env::simulated(3);
    let db = Database::memory(env.clone(), Faults { conflict: 1.0, ..Faults::NONE });
    let start = env.clock.now();
    let limits = RunLimits { max_attempts: u32::MAX, ..RunLimits::until(start + Duration::from_millis(300)) };
    let error = db
        .run(limits, |mut tx| {
            Box::pin(async move {
                tx.set("k", "v");
                Ok::<_, KvError>(())
            })
        })
        .await
        .unwrap_err();
    assert!(
        matches!(&error, KvError::GaveUp { last, attempts } if **last == KvError::Conflict && *attempts > 3)
    );
    let took = env.clock.now().since(start);
    assert!(took >= Duration::from_millis(300) && took < Duration::from_millis(600), "{took:?}");
}

#[derive(Debug, PartialEq)]
enum Refusal {
    Exists,
    Store,
}

impl From<KvError> for Refusal {
    fn from(_: KvError) -> Self {
        Self::Store
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_the_run_and_a_failed_read_does_not() {
    let db = Database::memory(Env::simulated(5), Faults { too_old: 0.5, unavailable: 0.3, ..Faults::NONE });
    let runs = AtomicU32::new(0);
    let result = db
        .run(RunLimits::default(), |mut tx| {
            let runs = &runs;
            Box::pin(async move {
                runs.fetch_add(1, Ordering::Relaxed);
                for key in [b"a", b"b", b"c"] {
                    tx.get(key).await?;
                }
                tx.set("never", "v");
                Err::<(), _>(Refusal::Exists)
            })
        })
        .await;
    assert_eq!(result, Err(Refusal::Exists));
    assert!(runs.load(Ordering::Relaxed) > 1);
    db.set_faults(Faults::NONE);
    assert_eq!(db.begin().get(b"never").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn run_read_reads_one_version_and_writes_nothing() {
    let db = Database::memory(Env::simulated(6), Faults { too_old: 0.4, unavailable: 0.2, ..Faults::NONE });
    for _ in 0..20 {
        let seen: (Option<Bytes>, Option<Bytes>) = db
            .run_read(RunLimits::default(), |mut tx| {
                Box::pin(async move {
                    tx.set("k", "v");
                    Ok::<_, KvError>((tx.get(b"other").await?, tx.get(b"k").await?))
                })
            })
            .await
            .unwrap();
        assert_eq!(seen, (None, Some("v".into())));
    }
    db.set_faults(Faults::NONE);
    assert_eq!(db.begin().get(b"k").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_crash_keeps_what_was_committed_and_ends_what_was_not() {
    let faults = Faults { latency: Duration::from_millis(5), ..Faults::NONE };
    let db = Database::memory(Env::simulated(8), faults);
    let mut tx = db.begin();
    tx.set("a", "1");
    let version = tx.commit().await.unwrap().version;
    let mut late = db.begin();
    late.set("b", "2");
    let next = db.crash().unwrap();
    assert_eq!(late.commit().await, Err(KvError::Closed));
    assert_eq!(next.begin().get(b"a").await.unwrap().unwrap(), "1");
    assert_eq!(next.begin().get(b"b").await.unwrap(), None);
    assert!(next.begin().read_version().await.unwrap() >= version);
}
