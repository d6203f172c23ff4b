//! One version of the whole store, to be read at leisure: backups and checks.

use std::sync::Arc;

use bytes::Bytes;
use sluice_env::Monotonic;

use crate::database::Inner;
use crate::store::{Backend, View};
use crate::transaction::check_range;
use crate::{Database, KeyRange, KeyValue, KvError, MAX_AGE};

/// What the store held when this was made, whatever is committed since. Nothing that it holds can be dropped from the
/// disk while it exists.
#[derive(Debug)]
pub struct Snapshot {
    db: Arc<Inner>,
    view: View,
    made: Monotonic,
}

impl Database {
    /// The store as of now.
    ///
    /// # Errors
    /// What the store says; every read says [`KvError::TooOld`] after [`MAX_AGE`] where versions are kept no longer,
    /// which is anywhere but in the embedded store.
    pub async fn snapshot(&self) -> Result<Snapshot, KvError> {
        let view = self.inner.backend.view().await?;
        Ok(Snapshot { db: Arc::clone(&self.inner), view, made: self.inner.env.clock.now() })
    }
}

impl Snapshot {
    /// The version it is of: every commit that came before it has this one or a lower one.
    pub fn version(&self) -> u64 {
        self.view.version()
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// What the store says.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.check()?;
        self.db.backend.get(&self.view, key).await
    }

    /// The first `limit` pairs of `range`, in key order.
    ///
    /// # Errors
    /// What the store says.
    pub async fn range(&self, range: &KeyRange, limit: usize) -> Result<Vec<KeyValue>, KvError> {
        check_range(range)?;
        self.check()?;
        if limit == 0 || range.begin == range.end {
            return Ok(Vec::new());
        }
        self.db.backend.range(&self.view, &range.begin, &range.end, limit, false).await
    }

    fn check(&self) -> Result<(), KvError> {
        let forgets = !matches!(self.db.backend, Backend::Embedded(_));
        if forgets && self.db.env.clock.now().since(self.made) > MAX_AGE {
            return Err(KvError::TooOld);
        }
        Ok(())
    }
}
