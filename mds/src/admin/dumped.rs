//! The newest dump: commands that make one say when it is whole, and it is remembered for metrics and `sluice doctor`.

use std::net::SocketAddr;

use parking_lot::Mutex;
use sluice_kv::{Database, RunLimits};
use sluice_namespace::FsError;
use sluice_namespace::stable_storage::{Dumped, dumped, put_dumped};
use sluice_xdr::control::*;

use super::Admin;

/// A clock is set right by so much now and then, in seconds. A dump of a moment further ahead is from when it was wrong.
const LITTLE: i64 = 60;

/// What is durable of it, for who asks.
#[derive(Debug, Default)]
pub(crate) struct Newest(Mutex<Option<Dumped>>);

impl Newest {
    /// # Errors
    /// What the store says.
    pub(crate) async fn load(db: &Database) -> Result<Self, FsError> {
        let limits = RunLimits::default();
        let found = db.run_read(limits, |txn| Box::pin(async move { dumped(&txn).await })).await?;
        Ok(Self(Mutex::new(found)))
    }

    pub(crate) fn get(&self) -> Option<Dumped> {
        *self.0.lock()
    }
}

impl Admin {
    pub(super) async fn dumped(&self, args: ADMIN_DUMPED_args, from: SocketAddr) -> ADMIN_DUMPED_res {
        let mds = &self.mds;
        let age = i64::try_from(args.age_seconds).unwrap_or(i64::MAX);
        let now = mds.env.clock.wall().seconds;
        let seconds = now.saturating_sub(age);
        let told = Dumped { seconds, rows: args.rows, bytes: args.bytes, verified: args.verified };
        // Of two that are made at once, the one of the later moment; as it is in the store, whoever comes first. One of a
        // moment to come would hide every other until then.
        let written = mds
            .write(|mut txn| {
                Box::pin(async move {
                    let newest =
                        dumped(&txn).await?.filter(|other| (told.seconds + 1..=now).contains(&other.seconds));
                    if newest.is_none() {
                        put_dumped(&mut txn, &told);
                    }
                    Ok(newest.unwrap_or(told))
                })
            })
            .await;
        match written {
            Ok((newest, _)) => {
                let mut held = mds.dumped.0.lock();
                if held.is_none_or(|held| held.seconds <= newest.seconds || held.seconds > now) {
                    *held = Some(newest);
                }
                tracing::info!(%from, rows = args.rows, bytes = args.bytes, verified = args.verified, "a dump is complete");
                ADMIN_DUMPED_res::CTL_OK
            }
            Err(error) => {
                let why = format!("the metadata store does not answer: {error}");
                ADMIN_DUMPED_res::Default(ctl_status::CTL_ERR_AGAIN, why.into())
            }
        }
    }

    pub(super) fn last_dump(&self) -> ADMIN_LAST_DUMP_resok {
        let mds = &self.mds;
        let now = mds.env.clock.wall().seconds;
        let since = |then: i64| now.saturating_sub(then).max(0).unsigned_abs();
        let newest = mds.dumped.get().map(|newest| ctl_dump {
            seconds: newest.seconds,
            age_seconds: if newest.seconds > now.saturating_add(LITTLE) {
                // Nobody knows.
                u64::MAX
            } else {
                since(newest.seconds)
            },
            rows: newest.rows,
            bytes: newest.bytes,
            verified: newest.verified,
        });
        ADMIN_LAST_DUMP_resok {
            newest: newest.into_iter().collect(),
            file_system_seconds: since(mds.namespace.superblock().created.seconds),
        }
    }
}
