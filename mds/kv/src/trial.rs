//! Stores for tests.

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_env::Env;

use crate::{Database, Faults, FoundationOptions, KeyRange, KvError};

/// The environment variables that name the cluster file and the client library for tests.
const CLUSTER_FILE: &str = "SLUICE_FDB_CLUSTER_FILE";
const LIBRARY: &str = "SLUICE_FDB_LIBRARY";

static STORES: AtomicU64 = AtomicU64::new(0);

impl FoundationOptions {
    /// A part of the tests' cluster that no other test uses, for virtual time. `None` unless the environment names a
    /// cluster: `SLUICE_FDB_CLUSTER_FILE` and `SLUICE_FDB_LIBRARY`. It should be there for tests alone: what they
    /// leave stays.
    pub fn of_tests() -> Option<Self> {
        let (cluster_file, library) = (std::env::var_os(CLUSTER_FILE)?, std::env::var_os(LIBRARY)?);
        let name = format!("test-{}-{}", std::process::id(), STORES.fetch_add(1, Ordering::Relaxed));
        let (cluster_file, library) = (Some(cluster_file.into()), Some(library.into()));
        Some(Self { cluster_file, library, name, still: true, ..Self::default() })
    }
}

impl Database {
    /// An empty store for a test, which can crash and have faults: in memory, or in the tests' FoundationDB cluster
    /// if the environment names one.
    pub async fn fresh(env: Env) -> Result<Self, KvError> {
        match FoundationOptions::of_tests() {
            None => Ok(Self::memory(env, Faults::NONE)),
            Some(options) => Self::fresh_in(env, &options).await,
        }
    }

    /// The store of `options`, emptied.
    pub async fn fresh_in(env: Env, options: &FoundationOptions) -> Result<Self, KvError> {
        let db = Self::open_foundation(env, options).await?;
        let mut tx = db.begin();
        // An earlier process may have had the same number.
        tx.clear_range(&KeyRange::all());
        tx.commit().await?;
        Ok(db)
    }
}
