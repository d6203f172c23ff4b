//! What is charged, against what there is.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Problem, Seen};
use crate::codec::Reader;
use crate::error::FsError;
use crate::inode::Kind;
use crate::keys::{self, FileId};
use crate::quota::{Progress, Subject, Usage, shard};

/// What the tables of quotas say.
#[derive(Default)]
pub(super) struct Quotas {
    /// The superblock says that there is an account at all.
    pub(super) accounted: bool,
    /// Entries with an inode in another tree than the directory: both trees.
    pub(super) apart: Vec<(FileId, Option<FileId>, Option<FileId>)>,
    counting: Option<Progress>,
    /// By kind and number, summed over the shards.
    usage: BTreeMap<(u8, u64), u128>,
    trees: BTreeSet<FileId>,
    /// Trees with directories that are yet to be walked.
    walked: BTreeSet<FileId>,
}

impl Quotas {
    pub(super) fn row(&mut self, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        match at.first().copied().unwrap_or_default() {
            keys::COUNTING => self.counting = Some(Progress::decode(value)?),
            keys::USAGE => {
                let sum = self.usage.entry(keys::quota_of(at)?).or_default();
                *sum = sum.wrapping_add(shard(&value)?);
            }
            keys::QUOTA => {
                let (kind, id) = keys::quota_of(at)?;
                match Subject::from_code(kind, id) {
                    Some(Subject::Tree(tree)) => drop(self.trees.insert(tree)),
                    Some(_) => {}
                    None => return Err(FsError::corrupt("quota key")),
                }
            }
            keys::TREE_WALK => {
                let tree = Reader::new("walk of a tree", at.slice(1..)).u64()?;
                self.walked.insert(FileId(tree));
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn compare(&self, inodes: &BTreeMap<FileId, Seen>, problems: &mut Vec<Problem>) {
        if !self.accounted {
            return;
        }
        let mut found: BTreeMap<(u8, u64), u128> = BTreeMap::new();
        for seen in inodes.values() {
            if self.counting.is_none_or(|progress| progress.includes(&seen.key)) {
                for subject in seen.charged.subjects() {
                    let sum = found.entry(subject.code()).or_default();
                    *sum = sum.wrapping_add(seen.charged.usage());
                }
            }
        }
        let both: BTreeSet<_> = self.usage.keys().chain(found.keys()).copied().collect();
        for code in both {
            let stored = self.usage.get(&code).copied().unwrap_or_default();
            let found = found.get(&code).copied().unwrap_or_default();
            if let Some(subject) = Subject::from_code(code.0, code.1).filter(|_| stored != found) {
                let (stored, found) = (Usage::from_sum(stored), Usage::from_sum(found));
                problems.push(Problem::Usage { subject, stored, found });
            }
        }
        self.compare_trees(inodes, problems);
    }

    fn compare_trees(&self, inodes: &BTreeMap<FileId, Seen>, problems: &mut Vec<Problem>) {
        for (file, above, own) in &self.apart {
            let walked = [above, own].into_iter().flatten().any(|tree| self.walked.contains(tree));
            // A file may have been put into a tree by another of its names.
            let directory = inodes.get(file).is_some_and(|seen| seen.kind == Kind::Directory);
            if directory && !walked {
                problems.push(Problem::Tree { file: *file });
            }
        }
        let stray = |seen: &Seen| seen.charged.tree.is_some_and(|tree| !self.trees.contains(&tree));
        for (file, seen) in inodes {
            if seen.kind == Kind::Directory && stray(seen) {
                problems.push(Problem::Tree { file: *file });
            }
        }
    }
}
