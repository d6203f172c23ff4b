//! Entries whose names have the same hash.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{Problem, Report};
use crate::dirent::Stored;
use crate::keys::{Cookie, FileId};

/// The entries of one hash: what index 0 says of the others must be true.
#[derive(Default)]
pub(super) struct Chain {
    head: Option<(FileId, Cookie, bool)>,
    followers: usize,
    names: BTreeSet<Bytes>,
}

impl Chain {
    pub(super) fn next(&mut self, report: &mut Report, directory: FileId, cookie: Cookie, stored: &Stored) {
        let same = self.head.is_some_and(|(d, head, _)| d == directory && head == cookie.head());
        if same {
            self.followers += 1;
        } else {
            self.end(report);
            *self = Self { head: Some((directory, cookie.head(), stored.is_chained())), ..Self::default() };
            if cookie.index() != 0 {
                report.problems.push(Problem::Misplaced { directory, cookie });
            }
        }
        if let Some(entry) = &stored.entry
            && !self.names.insert(entry.name.clone())
        {
            report.problems.push(Problem::Misplaced { directory, cookie });
        }
    }

    pub(super) fn end(&mut self, report: &mut Report) {
        if let Some((directory, cookie, chained)) = self.head.take()
            && chained != (self.followers > 0)
        {
            report.problems.push(Problem::Misplaced { directory, cookie });
        }
    }
}
