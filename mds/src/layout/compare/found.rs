//! What a comparison found.

use std::sync::Arc;

use sluice_namespace::{DataFileId, InodeKey, StoreId};

use super::judge::Differences;

/// Files that differ, remembered; others are counted.
const MOST_FINDINGS: usize = 1024;

/// A file whose copies differ.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) key: InodeKey,
    pub(crate) id: DataFileId,
    pub(crate) size: u64,
    pub(crate) differences: Differences,
    /// Data servers that do not have a data file any more which they had.
    pub(crate) lost: Vec<StoreId>,
}

/// Files with copies, and those of them whose copies differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// It is about one file, which the path names.
    pub(crate) one: bool,
    pub(crate) compared: u64,
    /// Of those: each once, holes not.
    pub(crate) bytes: u64,
    pub(crate) differ: u64,
    pub(crate) findings: Vec<Arc<Finding>>,
}

impl Found {
    /// Of a file, if it is remembered.
    pub(crate) fn of(&self, file: u64) -> Option<Arc<Finding>> {
        self.findings.iter().rev().find(|finding| finding.key.fileid.0 == file).map(Arc::clone)
    }

    /// Its copies are equal, as far as it is there.
    pub(super) fn equal(&mut self, bytes: u64) {
        self.compared += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(super) fn differs(&mut self, finding: Finding, bytes: u64) {
        self.equal(bytes);
        self.differ += 1;
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(Arc::new(finding));
        }
    }
}
