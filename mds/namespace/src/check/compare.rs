//! What can be told when every row was seen.

use std::collections::{BTreeMap, BTreeSet};

use super::{Check, Problem, Report, Seen, Tally};
use crate::inode::Kind;
use crate::keys::{FileId, InodeKey, Statistic};
use crate::size::signed;

impl Check {
    /// Compares the tables.
    pub fn finish(mut self) -> Report {
        self.chain.end(&mut self.report);
        let mut problems = Vec::new();
        let reachable = reachable(&self.inodes);
        for (file, inode) in &self.inodes {
            self.compare(*file, inode, &mut problems);
            if inode.kind == Kind::Directory {
                directory(inode, self.directories.get(file), &mut problems);
                if !reachable.contains(file) {
                    problems.push(Problem::Unreachable { inode: inode.key });
                }
            }
        }
        self.stray_states(&mut problems);
        self.compare_xattrs(&mut problems);
        self.compare_owners(&mut problems);
        self.compare_replacements(&mut problems);
        self.compare_statistics(&mut problems);
        self.quotas.compare(&self.inodes, &mut problems);
        self.servers.compare(&mut problems);
        self.report.problems.extend(problems);
        self.report
    }

    fn compare(&self, file: FileId, inode: &Seen, problems: &mut Vec<Problem>) {
        let key = inode.key;
        let links = if key == InodeKey::ROOT { 1 } else { inode.links };
        if links != inode.nlink {
            problems.push(Problem::LinkCount { inode: key, stored: inode.nlink, found: links });
        }
        if links == 0 && !self.orphans.contains(&file) {
            problems.push(Problem::Nameless { inode: key });
        }
        if !inode.empty && inode.space_used == 0 {
            problems.push(Problem::NoSpaceUsed { inode: key });
        }
        if inode.degraded && !self.heals.contains(&file) {
            problems.push(Problem::Unhealed { inode: key });
        }
    }

    fn stray_states(&self, problems: &mut Vec<Problem>) {
        for (directory, tally) in &self.directories {
            let stray = self.inodes.get(directory).is_none_or(|inode| inode.kind != Kind::Directory);
            // Entries without their directory were told one by one.
            if stray && tally.state.is_some() {
                problems.push(Problem::State { directory: *directory });
            }
        }
    }

    fn compare_xattrs(&self, problems: &mut Vec<Problem>) {
        let says: BTreeSet<_> =
            self.inodes.iter().filter(|(_, inode)| inode.xattrs).map(|(file, _)| *file).collect();
        let unlike = self.with_xattrs.symmetric_difference(&says).copied();
        problems.extend(
            self.long.iter().map(|(file, _)| *file).chain(unlike).map(|file| Problem::Xattrs { file }),
        );
    }

    fn compare_owners(&mut self, problems: &mut Vec<Problem>) {
        let mut owners = std::mem::take(&mut self.owners);
        for inode in self.inodes.values() {
            if let Some(id) = inode.data_file
                && owners.remove(&id) != Some(inode.key)
            {
                problems.push(Problem::DataFileOwner { id });
            }
        }
        problems.extend(owners.into_keys().map(|id| Problem::DataFileOwner { id }));
    }

    fn compare_replacements(&self, problems: &mut Vec<Problem>) {
        problems.extend(self.filled.keys().map(|(id, slot)| Problem::NoSpare { id: *id, slot: *slot }));
    }

    fn compare_statistics(&self, problems: &mut Vec<Problem>) {
        // As whoever counts has it.
        let space = |inode: &Seen| signed(inode.space_used).cast_unsigned();
        let bytes = self.inodes.values().fold(0, |sum: u64, inode| sum.wrapping_add(space(inode)));
        for (what, found) in [
            (Statistic::Files, self.report.inodes),
            (Statistic::Bytes, bytes),
            (Statistic::Degraded, self.report.degraded),
        ] {
            let stored = self.statistics.get(&what.id()).copied().unwrap_or_default();
            if stored != found {
                problems.push(Problem::Statistic { what, stored, found });
            }
        }
    }
}

/// A directory, its place in its parent, and its own counts.
fn directory(inode: &Seen, tally: Option<&Tally>, problems: &mut Vec<Problem>) {
    let directory = inode.key.fileid;
    if inode.key != InodeKey::ROOT && !inode.in_parent {
        problems.push(Problem::Parent { inode: inode.key });
    }
    let Some((tally, state)) = tally.and_then(|tally| Some((tally, tally.state.as_ref()?))) else {
        problems.push(Problem::State { directory });
        return;
    };
    // Blind changes are signed; wrapping addition of two's complement is right for both signs.
    let deltas = if state.split { tally.deltas } else { (0, 0) };
    let stored = state.entries.wrapping_add(deltas.0);
    if stored != tally.entries {
        problems.push(Problem::EntryCount { directory, stored, found: tally.entries });
    }
    let stored = state.subdirectories.wrapping_add(deltas.1);
    if stored != tally.subdirectories {
        problems.push(Problem::SubdirectoryCount { directory, stored, found: tally.subdirectories });
    }
}

/// Directories from which the parents lead to the root.
fn reachable(inodes: &BTreeMap<FileId, Seen>) -> BTreeSet<FileId> {
    let mut good = BTreeSet::from([FileId::ROOT]);
    for start in inodes.iter().filter(|(_, inode)| inode.kind == Kind::Directory).map(|(file, _)| file) {
        let mut path = BTreeSet::new();
        let mut at = *start;
        while !good.contains(&at)
            && path.insert(at)
            && let Some(parent) = inodes.get(&at).and_then(|inode| inode.parent)
        {
            at = parent;
        }
        if good.contains(&at) {
            good.extend(path);
        }
    }
    good
}
