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

/// Rows that are read at once: of the largest, some megabytes.
const STEP: usize = 64;

struct Page {
    rows: Vec<KeyValue>,
    left: usize,
}

impl Page {
    /// True when it is full.
    fn fill(&mut self, rows: Vec<KeyValue>) -> bool {
        for (key, value) in rows {
            self.left = self.left.saturating_sub(key.len() + value.len());
            self.rows.push((key, value));
            if self.left == 0 {
                return true;
            }
        }
        false
    }

    /// The first key behind the last one.
    fn after(&self) -> Option<Bytes> {
        self.rows.last().map(|(key, _)| [key, [0].as_slice()].concat().into())
    }
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

    /// The first pairs of `range`, in key order, up to and with the one that reaches `bytes`; none if the range is
    /// empty. It never holds more than [`STEP`] pairs besides.
    ///
    /// # Errors
    /// What the store says.
    pub async fn page(&self, range: &KeyRange, bytes: usize) -> Result<Vec<KeyValue>, KvError> {
        check_range(range)?;
        let mut page = Page { rows: Vec::new(), left: bytes };
        let mut begin = range.begin.clone();
        while begin < range.end {
            self.check()?;
            let rows = self.db.backend.range_at_leisure(&self.view, &begin, &range.end, STEP).await?;
            let last = rows.len() < STEP;
            if page.fill(rows) || last {
                break;
            }
            begin = page.after().unwrap_or_else(|| range.end.clone());
        }
        Ok(page.rows)
    }

    fn check(&self) -> Result<(), KvError> {
        let forgets = !matches!(self.db.backend, Backend::Embedded(_));
        if forgets && self.db.env.clock.now().since(self.made) > MAX_AGE {
            return Err(KvError::TooOld);
        }
        Ok(())
    }
}
