//! The consistency checker: every rule that the operations keep, checked over the whole store.
//!
//! One pass over each table in pages, one entry in memory per inode; then the tables are compared.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sluice_kv::{KeyRange, Transaction};

use crate::codec::Reader;
use crate::data_file::Layout;
use crate::dirent::{Dirent, Stored};
use crate::error::FsError;
use crate::inode::{InodeRecord, Kind, Node};
use crate::keys::{self, Cookie, DataFileId, FileId, InodeKey, Statistic};
use crate::name::Name;
use crate::{Namespace, fetch, stable_storage};

/// Something that contradicts something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A value that cannot be read.
    Unreadable {
        key: Bytes,
        error: String,
    },
    /// An entry whose inode is not there.
    Dangling {
        directory: FileId,
        name: Bytes,
    },
    /// An entry of a directory that is not there.
    NoDirectory {
        directory: FileId,
        name: Bytes,
    },
    /// An entry that says another kind than its inode.
    WrongKind {
        directory: FileId,
        name: Bytes,
    },
    /// An entry where its name's hash does not put it, a gap-free chain broken, or a name twice.
    Misplaced {
        directory: FileId,
        cookie: Cookie,
    },
    /// An inode without a name that is not in the orphan table.
    Nameless {
        inode: InodeKey,
    },
    /// An inode number under two keys.
    TwoInodes {
        file: FileId,
    },
    LinkCount {
        inode: InodeKey,
        stored: u64,
        found: u64,
    },
    /// A directory that says another parent than the one it is in.
    Parent {
        inode: InodeKey,
    },
    /// A directory that cannot be reached from the root.
    Unreachable {
        inode: InodeKey,
    },
    EntryCount {
        directory: FileId,
        stored: u64,
        found: u64,
    },
    SubdirectoryCount {
        directory: FileId,
        stored: u64,
        found: u64,
    },
    /// Directory state without a directory, or a directory without state.
    State {
        directory: FileId,
    },
    /// Extended attributes without an inode that says it has some, or the reverse.
    Xattrs {
        file: FileId,
    },
    /// A file whose data files name no owner or another, or an owner row without its file.
    DataFileOwner {
        id: DataFileId,
    },
    /// A row of this table about an inode that is not there or does not need it.
    StaleRow {
        table: u8,
        number: u64,
    },
    /// A file with mirrors to heal that is not in the queue.
    Unhealed {
        inode: InodeKey,
    },
    /// Data files both in use and in the garbage queue.
    GarbageInUse {
        id: DataFileId,
    },
    /// space_used 0 of a file that is not empty.
    NoSpaceUsed {
        inode: InodeKey,
    },
    Statistic {
        what: Statistic,
        stored: u64,
        found: u64,
    },
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub inodes: u64,
    pub entries: u64,
    pub orphans: u64,
    pub garbage: u64,
    pub read_write_layouts: u64,
    pub degraded: u64,
    pub problems: Vec<Problem>,
}

struct Seen {
    key: InodeKey,
    record: InodeRecord,
    links: u64,
    /// The directories it was found in.
    parents: BTreeSet<FileId>,
}

#[derive(Default)]
struct Checker {
    report: Report,
    inodes: BTreeMap<FileId, Seen>,
    /// Entries and subdirectories counted.
    counted: BTreeMap<FileId, (u64, u64)>,
    orphans: BTreeSet<FileId>,
    heals: BTreeSet<FileId>,
    owners: BTreeMap<DataFileId, InodeKey>,
}

/// Rows read at a time.
const PAGE: usize = 1000;

impl Namespace {
    /// Checks the whole file system as of one version. An error is one of the store; contradictions
    /// are in the report.
    pub async fn check(&self, txn: &Transaction) -> Result<Report, FsError> {
        let mut c = Checker::default();
        c.read_inodes(txn).await?;
        c.read_entries(txn, self).await?;
        c.read_rows(txn).await?;
        c.read_xattrs(txn).await?;
        c.compare_inodes(txn).await?;
        c.compare_owners();
        c.compare_statistics(txn).await?;
        Ok(c.report)
    }
}

async fn page(txn: &Transaction, range: &mut KeyRange) -> Result<Vec<(Bytes, Bytes)>, FsError> {
    let rows = txn.snapshot_range(range, PAGE, false).await?;
    if let Some((last, _)) = rows.last() {
        *range = keys::after(last, range);
    }
    Ok(rows)
}

impl Checker {
    fn problem(&mut self, problem: Problem) {
        self.report.problems.push(problem);
    }

    /// The value, or a problem.
    fn readable<T>(&mut self, key: &Bytes, result: Result<T, FsError>) -> Option<T> {
        result.map_err(|e| self.problem(Problem::Unreadable { key: key.clone(), error: e.to_string() })).ok()
    }

    async fn read_inodes(&mut self, txn: &Transaction) -> Result<(), FsError> {
        let mut range = keys::table(keys::INODE);
        loop {
            let rows = page(txn, &mut range).await?;
            if rows.is_empty() {
                return Ok(());
            }
            for (at, value) in rows {
                let read = keys::inode_of(&at).and_then(|key| Ok((key, InodeRecord::decode(value)?)));
                let Some((key, record)) = self.readable(&at, read) else { continue };
                self.report.inodes += 1;
                let seen = Seen { key, record, links: 0, parents: BTreeSet::new() };
                if self.inodes.insert(key.fileid, seen).is_some() {
                    self.problem(Problem::TwoInodes { file: key.fileid });
                }
            }
        }
    }

    async fn read_entries(&mut self, txn: &Transaction, ns: &Namespace) -> Result<(), FsError> {
        let mut range = keys::table(keys::DIRENT);
        let mut chain = Chain::default();
        loop {
            let rows = page(txn, &mut range).await?;
            if rows.is_empty() {
                chain.end(self);
                return Ok(());
            }
            for (at, value) in rows {
                let read = keys::dirent_of(&at).and_then(|(directory, cookie)| {
                    Ok((directory, cookie, Stored::decode(directory, cookie, value)?))
                });
                let Some((directory, cookie, stored)) = self.readable(&at, read) else { continue };
                chain.next(self, directory, cookie, &stored);
                if let Some(entry) = stored.entry {
                    self.entry(ns, directory, &entry);
                }
            }
        }
    }

    fn entry(&mut self, ns: &Namespace, directory: FileId, entry: &Dirent) {
        self.report.entries += 1;
        let name = entry.name.clone();
        let placed = Name::new(&name).is_ok_and(|n| ns.hash.head(&n) == entry.cookie.head());
        if !placed {
            self.problem(Problem::Misplaced { directory, cookie: entry.cookie });
        }
        let counted = self.counted.entry(directory).or_default();
        counted.0 += 1;
        counted.1 += u64::from(entry.kind == Kind::Directory);
        let home = self.inodes.get(&directory);
        if home.is_none_or(|d| d.record.kind() != Kind::Directory) {
            self.problem(Problem::NoDirectory { directory, name: name.clone() });
        }
        match self.inodes.get_mut(&entry.inode.fileid).filter(|i| i.key == entry.inode) {
            None => self.problem(Problem::Dangling { directory, name }),
            Some(inode) => {
                inode.links += 1;
                inode.parents.insert(directory);
                if inode.record.kind() != entry.kind {
                    self.problem(Problem::WrongKind { directory, name });
                }
            }
        }
    }

    async fn read_rows(&mut self, txn: &Transaction) -> Result<(), FsError> {
        for table in
            [keys::ORPHAN, keys::RW_LAYOUT, keys::TRUNCATE, keys::HEAL, keys::DATA_FILE, keys::GARBAGE]
        {
            let mut range = keys::table(table);
            loop {
                let rows = page(txn, &mut range).await?;
                if rows.is_empty() {
                    break;
                }
                for (at, value) in rows {
                    let mut r = Reader::new("row key", at.slice(1.min(at.len())..));
                    let number = r.u64();
                    if let Some(number) = self.readable(&at, number) {
                        self.row(table, number, &at, value);
                    }
                }
            }
        }
        Ok(())
    }

    fn row(&mut self, table: u8, number: u64, at: &Bytes, value: Bytes) {
        if table == keys::GARBAGE {
            self.report.garbage += 1;
            if self.owners.contains_key(&DataFileId(number)) {
                self.problem(Problem::GarbageInUse { id: DataFileId(number) });
            }
            return;
        }
        // All of these begin with an inode key; only some go on.
        let mut r = Reader::new("row", value);
        let key = r.schema(1).and_then(|_| InodeKey::decode(&mut r));
        let Some(key) = self.readable(at, key) else { return };
        if table == keys::DATA_FILE {
            self.owners.insert(DataFileId(number), key);
            return;
        }
        let seen = self.inodes.get(&key.fileid).filter(|i| i.key == key && key.fileid.0 == number);
        let fits = match table {
            keys::ORPHAN => seen.is_some_and(|i| i.record.nlink == 0 && i.links == 0),
            keys::HEAL => seen.is_some_and(|i| i.record.layout().is_some_and(Layout::is_degraded)),
            _ => seen.is_some_and(|i| i.record.kind() == Kind::File),
        };
        if !fits {
            self.problem(Problem::StaleRow { table, number });
        }
        match table {
            keys::ORPHAN => {
                self.report.orphans += 1;
                self.orphans.insert(key.fileid);
            }
            keys::RW_LAYOUT => self.report.read_write_layouts += 1,
            keys::HEAL => {
                self.report.degraded += 1;
                self.heals.insert(key.fileid);
            }
            _ => {}
        }
    }

    async fn read_xattrs(&mut self, txn: &Transaction) -> Result<(), FsError> {
        let mut with = BTreeSet::new();
        // Files and names whose value is long, by their rows and by their values.
        let mut long = BTreeSet::new();
        for table in [keys::XATTR, keys::XATTR_VALUE] {
            let mut range = keys::table(table);
            loop {
                let rows = page(txn, &mut range).await?;
                if rows.is_empty() {
                    break;
                }
                for (at, value) in rows {
                    let mut r = Reader::new("extended attribute key", at.slice(1.min(at.len())..));
                    let Some(file) = self.readable(&at, r.u64()).map(FileId) else { continue };
                    let name = r.rest();
                    if table == keys::XATTR {
                        with.insert(file);
                    }
                    let counts = table == keys::XATTR_VALUE || value.get(1) == Some(&1);
                    if counts && !long.remove(&(file, name.clone())) {
                        long.insert((file, name));
                    }
                }
            }
        }
        for (file, _) in long {
            self.problem(Problem::Xattrs { file });
        }
        let says: BTreeSet<FileId> =
            self.inodes.iter().filter(|(_, i)| i.record.xattrs).map(|(file, _)| *file).collect();
        for file in with.symmetric_difference(&says) {
            self.problem(Problem::Xattrs { file: *file });
        }
        Ok(())
    }

    async fn compare_inodes(&mut self, txn: &Transaction) -> Result<(), FsError> {
        let reachable = self.reachable();
        let mut problems = Vec::new();
        for (file, inode) in &self.inodes {
            let key = inode.key;
            let directory = match &inode.record.node {
                Node::Directory(node) => Some(node),
                _ => None,
            };
            let links = if key == InodeKey::ROOT { 1 } else { inode.links };
            let stored = u64::from(inode.record.nlink);
            if links != stored {
                problems.push(Problem::LinkCount { inode: key, stored, found: links });
            }
            if links == 0 && !self.orphans.contains(file) {
                problems.push(Problem::Nameless { inode: key });
            }
            if let Node::File(f) = &inode.record.node
                && f.size > 0
                && f.space_used == 0
            {
                problems.push(Problem::NoSpaceUsed { inode: key });
            }
            if inode.record.layout().is_some_and(Layout::is_degraded) && !self.heals.contains(file) {
                problems.push(Problem::Unhealed { inode: key });
            }
            let Some(node) = directory else { continue };
            if key != InodeKey::ROOT && !inode.parents.contains(&node.parent.fileid) {
                problems.push(Problem::Parent { inode: key });
            }
            if !reachable.contains(file) {
                problems.push(Problem::Unreachable { inode: key });
            }
            let (entries, subdirectories) = self.counted.get(file).copied().unwrap_or_default();
            match fetch::state(txn, *file).await {
                Ok(state) => {
                    let directory = *file;
                    if state.entries != entries {
                        let stored = state.entries;
                        problems.push(Problem::EntryCount { directory, stored, found: entries });
                    }
                    if state.subdirectories != subdirectories {
                        let (stored, found) = (state.subdirectories, subdirectories);
                        problems.push(Problem::SubdirectoryCount { directory, stored, found });
                    }
                }
                Err(FsError::Kv(error)) => return Err(error.into()),
                Err(_) => problems.push(Problem::State { directory: *file }),
            }
        }
        self.report.problems.extend(problems);
        self.stray_states(txn).await
    }

    async fn stray_states(&mut self, txn: &Transaction) -> Result<(), FsError> {
        let mut range = keys::table(keys::DIRECTORY);
        loop {
            let rows = page(txn, &mut range).await?;
            if rows.is_empty() {
                return Ok(());
            }
            for (at, _) in rows {
                let mut r = Reader::new("directory state key", at.slice(1.min(at.len())..));
                let Some(directory) = self.readable(&at, r.u64()).map(FileId) else { continue };
                if self.inodes.get(&directory).is_none_or(|i| i.record.kind() != Kind::Directory) {
                    self.problem(Problem::State { directory });
                }
            }
        }
    }

    /// Directories from which the parents lead to the root.
    fn reachable(&self) -> BTreeSet<FileId> {
        let mut good = BTreeSet::from([FileId::ROOT]);
        for start in self.inodes.keys() {
            let mut path = Vec::new();
            let mut at = *start;
            while !good.contains(&at) && !path.contains(&at) {
                path.push(at);
                match self.inodes.get(&at).map(|i| &i.record.node) {
                    Some(Node::Directory(node)) => at = node.parent.fileid,
                    _ => break,
                }
            }
            if good.contains(&at) {
                good.extend(path);
            }
        }
        good
    }

    fn compare_owners(&mut self) {
        let mut owners = std::mem::take(&mut self.owners);
        let mut problems = Vec::new();
        for inode in self.inodes.values() {
            let Node::File(f) = &inode.record.node else { continue };
            if let Some(layout) = &f.layout
                && owners.remove(&layout.id) != Some(inode.key)
            {
                problems.push(Problem::DataFileOwner { id: layout.id });
            }
        }
        problems.extend(owners.into_keys().map(|id| Problem::DataFileOwner { id }));
        self.report.problems.extend(problems);
    }

    async fn compare_statistics(&mut self, txn: &Transaction) -> Result<(), FsError> {
        let space = self.inodes.values().map(|i| match &i.record.node {
            Node::File(f) => f.space_used,
            _ => 0,
        });
        let bytes = space.fold(0, u64::wrapping_add);
        let files = self.report.inodes;
        for (what, found) in [
            (Statistic::Files, files),
            (Statistic::Bytes, bytes),
            (Statistic::Degraded, self.report.degraded),
        ] {
            let stored = stable_storage::statistic(txn, what).await?;
            if stored != found {
                self.problem(Problem::Statistic { what, stored, found });
            }
        }
        Ok(())
    }
}

/// The entries of one hash: what index 0 says of the others must be true.
#[derive(Default)]
struct Chain {
    head: Option<(FileId, Cookie, bool)>,
    followers: usize,
    names: BTreeSet<Bytes>,
}

impl Chain {
    fn next(&mut self, checker: &mut Checker, directory: FileId, cookie: Cookie, stored: &Stored) {
        let same = self.head.is_some_and(|(d, head, _)| d == directory && head == cookie.head());
        if !same {
            self.end(checker);
            *self = Self { head: Some((directory, cookie.head(), stored.is_chained())), ..Self::default() };
            if cookie.index() != 0 {
                checker.problem(Problem::Misplaced { directory, cookie });
            }
        } else {
            self.followers += 1;
        }
        if let Some(entry) = &stored.entry
            && !self.names.insert(entry.name.clone())
        {
            checker.problem(Problem::Misplaced { directory, cookie });
        }
    }

    fn end(&mut self, checker: &mut Checker) {
        if let Some((directory, cookie, chained)) = self.head.take()
            && chained != (self.followers > 0)
        {
            checker.problem(Problem::Misplaced { directory, cookie });
        }
    }
}
