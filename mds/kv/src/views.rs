//! The versions of a store that transactions still read.

use std::collections::VecDeque;
use std::sync::Arc;

use sluice_env::Monotonic;

use crate::MAX_AGE;
use crate::store::Shared;

/// One published version of the store.
pub(crate) struct View<S> {
    pub(crate) version: u64,
    pub(crate) snapshot: S,
}

// A snapshot has nothing to show.
impl<S> std::fmt::Debug for View<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Every published view some transaction may hold, oldest first; the last is the newest.
///
/// A view counts as held while someone besides this list has it. New holders arise only for the
/// newest view, so an older one found unheld stays so.
pub(crate) struct Views<S> {
    newest: Shared<S>,
    /// With the time each was superseded.
    older: VecDeque<(Shared<S>, Monotonic)>,
}

impl<S> std::fmt::Debug for Views<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Views").field("newest", &self.newest).field("older", &self.older.len()).finish()
    }
}

impl<S> Views<S> {
    pub(crate) fn new(version: u64, snapshot: S) -> Self {
        Self { newest: Arc::new(View { version, snapshot }), older: VecDeque::new() }
    }

    pub(crate) fn newest(&self) -> &Shared<S> {
        &self.newest
    }

    pub(crate) fn publish(&mut self, version: u64, snapshot: S, now: Monotonic) {
        let next = Arc::new(View { version, snapshot });
        let last = std::mem::replace(&mut self.newest, next);
        self.older.push_back((last, now));
    }

    /// Drops the views no transaction can commit on, and returns the oldest version left.
    pub(crate) fn oldest(&mut self, now: Monotonic) -> u64 {
        // A transaction on a view superseded longer ago than the age limit is too old anyway, so
        // an abandoned transaction cannot hold the history back.
        while let Some((view, superseded)) = self.older.front()
            && (Arc::strong_count(view) == 1 || now.since(*superseded) > MAX_AGE)
        {
            self.older.pop_front();
        }
        self.older.front().map_or(self.newest.version, |(v, _)| v.version)
    }
}
