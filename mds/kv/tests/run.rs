//! The retry loop, as its callers use it.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use bytes::Bytes;
use sluice_env::{BoxFuture, Env};
use sluice_kv::{AtomicOp, Database, Faults, KvError, RunLimits, Transaction};

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
