//! The metadata server's store.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use sluice_env::Env;
use sluice_kv::{Database, EmbeddedOptions, FoundationOptions, KvError, Tls};

use crate::cli::{Store, StoreKind};
use crate::durability;

/// Between two attempts to reach a cluster, each of which takes some seconds by itself.
const PAUSE: Duration = Duration::from_secs(1);

/// Opens the store that the options name, waiting for a cluster that is away.
pub(crate) async fn open(env: &Env, data_dir: &Path, options: &Store) -> Result<Database> {
    match options.store {
        StoreKind::Embedded => embedded(env, data_dir),
        StoreKind::Foundationdb => foundation(env, data_dir, options).await,
    }
}

fn embedded(env: &Env, data_dir: &Path) -> Result<Database> {
    let dir = data_dir.join("metadata");
    std::fs::create_dir_all(&dir)
        .with_context(|| format!("cannot make {}: choose a writable --data-dir", dir.display()))?;
    let options =
        EmbeddedOptions { unsafe_no_sync: durability::unsafe_no_sync("mds"), ..EmbeddedOptions::default() };
    Ok(Database::open_embedded(env.clone(), &dir, options)?)
}

async fn foundation(env: &Env, data_dir: &Path, given: &Store) -> Result<Database> {
    std::fs::create_dir_all(data_dir)
        .with_context(|| format!("cannot make {}: choose a writable --data-dir", data_dir.display()))?;
    let options = FoundationOptions {
        identity: Some(data_dir.join("identity")),
        cluster_file: given.fdb_cluster_file.clone(),
        library: given.fdb_library.clone(),
        name: given.fdb_name.clone(),
        tls: Tls {
            certificate: given.fdb_tls_certificate.clone(),
            key: given.fdb_tls_key.clone(),
            ca: given.fdb_tls_ca.clone(),
            verify_peers: given.fdb_tls_verify_peers.clone(),
        },
        still: false,
    };
    loop {
        match Database::open_foundation(env.clone(), &options).await {
            Err(error @ KvError::Unavailable { .. }) => {
                tracing::warn!(%error, "the FoundationDB cluster does not answer; trying again");
                env.clock.sleep(PAUSE).await;
            }
            outcome => return outcome.context("cannot use FoundationDB (--store foundationdb)"),
        }
    }
}
