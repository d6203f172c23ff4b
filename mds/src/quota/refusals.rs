//! How often somebody was refused for a limit: for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_namespace::{FsError, Subject};

/// By the kind of the limit that was in the way.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    users: AtomicU64,
    groups: AtomicU64,
    trees: AtomicU64,
}

impl Refusals {
    /// What somebody is answered who is refused for this limit.
    pub(crate) fn refuse(&self, subject: Subject) -> FsError {
        let counter = match subject {
            Subject::User(_) | Subject::AnyUser => &self.users,
            Subject::Group(_) | Subject::AnyGroup => &self.groups,
            Subject::Tree(_) => &self.trees,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        FsError::Quota
    }

    pub(crate) fn by_kind(&self) -> [(&'static str, u64); 3] {
        [("user", &self.users), ("group", &self.groups), ("tree", &self.trees)]
            .map(|(kind, counter)| (kind, counter.load(Ordering::Relaxed)))
    }
}
