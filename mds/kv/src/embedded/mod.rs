//! The embedded backend.

use std::path::Path;

use bytes::Bytes;
use sluice_env::Env;

use crate::store::{Request, Shared, Store};
use crate::{Committed, KeyValue, KvError};

/// How the embedded store is tuned.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Cache of blocks read, in bytes.
    pub cache_bytes: u64,
    /// Writes kept for validation, in bytes; a transaction that outlives them is too old.
    pub history_bytes: usize,
    /// Transactions synced together at most, 1 to 65,535.
    pub max_group: usize,
    /// For one test only: acknowledge without syncing, so that a power loss loses acknowledged commits.
    pub unsafe_no_sync: bool,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { cache_bytes: 256 << 20, history_bytes: 64 << 20, max_group: 1024, unsafe_no_sync: false }
    }
}

#[derive(Debug)]
pub(crate) struct Embedded {}

impl Embedded {
    pub(crate) fn open(_env: Env, _dir: &Path, _options: EmbeddedOptions) -> Result<Self, KvError> {
        Err(KvError::Unavailable { what: "no embedded engine in this build".into() })
    }
}

impl Store for Embedded {
    type View = Shared<()>;

    async fn view(&self) -> Result<Self::View, KvError> {
        Err(KvError::Closed)
    }
    async fn get(&self, _: &Self::View, _: &[u8]) -> Result<Option<Bytes>, KvError> {
        Err(KvError::Closed)
    }
    async fn range(
        &self,
        _: &Self::View,
        _: &[u8],
        _: &[u8],
        _: usize,
        _: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        Err(KvError::Closed)
    }
    async fn commit(&self, _: Request<Self::View>) -> Result<Committed, KvError> {
        Err(KvError::Closed)
    }
    async fn flush(&self) -> Result<(), KvError> {
        Err(KvError::Closed)
    }
    async fn close(&self) -> Result<(), KvError> {
        Err(KvError::Closed)
    }
}
