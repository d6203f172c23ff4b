//! The consistency checker: every rule that the operations keep, checked over the whole store.
//!
//! Rows come in key order, from a store or from a dump of one. What is kept of each is small, and only of inodes,
//! data files and what is odd; when all rows were seen, the tables are compared.

mod chain;
mod compare;
mod problem;
mod quotas;
mod servers;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sluice_kv::Snapshot;

use crate::codec::{self, Reader};
use crate::data_file::Layout;
use crate::dirent::{Dirent, Stored};
use crate::error::FsError;
use crate::heal::{Heal, Replacement, Spare};
use crate::inline::rows::Row;
use crate::inode::{DirectoryState, InodeRecord, Kind, Node};
use crate::keys::{self, DataFileId, DirectoryField, FileId, InodeKey, StoreId};
use crate::name::{Name, NameHash};
use crate::quota::Charged;
use crate::reclaim::Garbage;
use crate::stable_storage;
use crate::superblock::Superblock;
use crate::transfer;
use chain::Chain;
pub use problem::Problem;
use quotas::Quotas;
use servers::Servers;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub inodes: u64,
    pub entries: u64,
    pub orphans: u64,
    pub garbage: u64,
    pub read_write_layouts: u64,
    pub degraded: u64,
    /// They are an older copy of what data servers have served.
    pub older: bool,
    pub problems: Vec<Problem>,
}

/// What is kept of an inode.
struct Seen {
    key: InodeKey,
    kind: Kind,
    nlink: u64,
    links: u64,
    xattrs: bool,
    degraded: bool,
    /// Its data is in this store.
    inline: bool,
    empty: bool,
    space_used: u64,
    data_file: Option<DataFileId>,
    charged: Charged,
    /// Of a directory: what it says its parent is.
    parent: Option<FileId>,
    /// Of a directory: it was found there.
    in_parent: bool,
}

/// What a directory's rows say, and what was counted.
#[derive(Default)]
struct Tally {
    state: Option<DirectoryState>,
    deltas: (u64, u64),
    entries: u64,
    subdirectories: u64,
}

/// A check under way: every row once, in key order, then [`Check::finish`].
#[derive(Default)]
pub struct Check {
    report: Report,
    hash: Option<NameHash>,
    inodes: BTreeMap<FileId, Seen>,
    directories: BTreeMap<FileId, Tally>,
    chain: Chain,
    orphans: BTreeSet<FileId>,
    heals: BTreeSet<FileId>,
    owners: BTreeMap<DataFileId, InodeKey>,
    /// Files with extended attributes.
    with_xattrs: BTreeSet<FileId>,
    /// Files and names whose value is said to be long, until it is found.
    long: BTreeSet<(FileId, Bytes)>,
    /// The last file that is one row.
    whole: Option<FileId>,
    /// Stores with a data file in some layout, or with one that is being filled for it.
    named: BTreeSet<StoreId>,
    /// By their numbers, summed over the shards.
    statistics: BTreeMap<u8, u64>,
    quotas: Quotas,
    /// Data files that are being filled to take the place of others, until it is found that they are spares.
    filled: BTreeMap<(DataFileId, u16), (StoreId, u16)>,
    servers: Servers,
}

// The hash key stays out of logs.
impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check").field("report", &self.report).finish_non_exhaustive()
    }
}

/// Bytes of rows read at a time.
const PAGE: usize = 512 << 10;

/// Checks everything that a store holds. An error is one of the store; contradictions are in the report.
///
/// # Errors
/// What the store says.
pub async fn check(snapshot: &Snapshot) -> Result<Report, FsError> {
    let mut check = Check::default();
    let mut range = transfer::everything();
    loop {
        let rows = snapshot.page(&range, PAGE).await?;
        let Some((last, _)) = rows.last() else { return Ok(check.finish()) };
        range = keys::after(last, &range);
        for (key, value) in rows {
            check.row(&key, value);
        }
    }
}

impl Check {
    /// What was seen and found until now; the comparisons come at the end.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The next row of the store.
    pub fn row(&mut self, key: &Bytes, value: Bytes) {
        let read = match key.first().copied().unwrap_or_default() {
            keys::SUPERBLOCK => Superblock::decode(value).map(|found| {
                self.hash = Some(found.name_hash());
                self.quotas.accounted = found.accounted;
            }),
            keys::INODE => self.inode(key, value),
            keys::DIRENT => self.entry_row(key, value),
            keys::DIRECTORY => self.directory_row(key, value),
            keys::XATTR | keys::XATTR_VALUE => self.xattr_row(key, &value),
            keys::INLINE_DATA => self.inline_row(key, value),
            keys::DATA_FILE => self.data_file_row(key, value),
            keys::GARBAGE => self.garbage_row(key, value),
            keys::SPARE => self.spare_row(key, value),
            keys::HEAL => self.heal_row(key, value),
            table @ (keys::ORPHAN | keys::RW_LAYOUT | keys::TRUNCATE) => self.about_a_file(table, key, value),
            keys::STORE => self.servers.store_row(value),
            keys::STORE_UUID => self.number_row(key, value),
            keys::DRAIN => self.drain_row(value),
            keys::STATISTIC => self.statistic_row(key, &value),
            keys::QUOTA | keys::USAGE | keys::COUNTING | keys::TREE_WALK | keys::OVER_QUOTA => {
                self.quotas.row(key, value)
            }
            table => {
                self.report.older |= table == keys::OLDER;
                stable_storage::readable(table, value)
            }
        };
        if let Err(error) = read {
            self.problem(Problem::Unreadable { key: key.clone(), error: error.to_string() });
        }
    }

    fn problem(&mut self, problem: Problem) {
        self.report.problems.push(problem);
    }

    fn inode(&mut self, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        let (key, record) = (keys::inode_of(at)?, InodeRecord::decode(value)?);
        self.report.inodes += 1;
        self.named.extend(record.layout().into_iter().flat_map(Layout::data_files).map(|file| file.store));
        if record.acl.as_ref().is_some_and(|acl| acl.mode() != record.mode & 0o777) {
            self.problem(Problem::Acl { inode: key });
        }
        if self.inodes.insert(key.fileid, Seen::new(key, &record)).is_some() {
            self.problem(Problem::TwoInodes { file: key.fileid });
        }
        Ok(())
    }

    fn entry_row(&mut self, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        let (directory, cookie) = keys::dirent_of(at)?;
        let stored = Stored::decode(directory, cookie, value)?;
        self.chain.next(&mut self.report, directory, cookie, &stored);
        if let Some(entry) = stored.entry {
            self.entry(directory, &entry);
        }
        Ok(())
    }

    fn entry(&mut self, directory: FileId, entry: &Dirent) {
        self.report.entries += 1;
        let name = entry.name.clone();
        let placed = match &self.hash {
            Some(hash) => Name::new(&name).is_ok_and(|name| hash.head(&name) == entry.cookie.head()),
            None => true,
        };
        if !placed {
            self.problem(Problem::Misplaced { directory, cookie: entry.cookie });
        }
        let tally = self.directories.entry(directory).or_default();
        tally.entries += 1;
        tally.subdirectories += u64::from(entry.kind == Kind::Directory);
        if self.inodes.get(&directory).is_none_or(|found| found.kind != Kind::Directory) {
            self.problem(Problem::NoDirectory { directory, name: name.clone() });
        }
        let tree = self.inodes.get(&directory).and_then(|found| found.charged.tree);
        match self.inodes.get_mut(&entry.inode.fileid).filter(|inode| inode.key == entry.inode) {
            None => self.problem(Problem::Dangling { directory, name }),
            Some(inode) => {
                inode.links += 1;
                inode.in_parent |= inode.parent == Some(directory);
                let apart = inode.charged.tree != tree && inode.charged.tree != Some(entry.inode.fileid);
                if apart {
                    self.quotas.apart.push((entry.inode.fileid, tree, inode.charged.tree));
                }
                if inode.kind != entry.kind {
                    self.problem(Problem::WrongKind { directory, name });
                }
            }
        }
    }

    fn directory_row(&mut self, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        const WHAT: &str = "directory state key";
        let mut r = Reader::new(WHAT, at.slice(1..));
        let (directory, field) = (FileId(r.u64()?), r.u8()?);
        r.finish()?;
        let tally = self.directories.entry(directory).or_default();
        let known = |which: DirectoryField| field == which as u8;
        if known(DirectoryField::State) {
            tally.state = Some(DirectoryState::decode(value)?);
        } else if known(DirectoryField::Entries) {
            tally.deltas.0 = codec::counter(WHAT, &value)?;
        } else if known(DirectoryField::Subdirectories) {
            tally.deltas.1 = codec::counter(WHAT, &value)?;
        }
        Ok(())
    }

    fn xattr_row(&mut self, at: &Bytes, value: &Bytes) -> Result<(), FsError> {
        let mut r = Reader::new("extended attribute key", at.slice(1..));
        let file = FileId(r.u64()?);
        let name = r.rest();
        let is_value = at.first() == Some(&keys::XATTR_VALUE);
        if !is_value {
            self.with_xattrs.insert(file);
        }
        // A long value: said by the one row, held by the other.
        let counts = is_value || value.get(1) == Some(&1);
        if counts && !self.long.remove(&(file, name.clone())) {
            self.long.insert((file, name));
        }
        Ok(())
    }

    fn inline_row(&mut self, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        let (file, number) = keys::inline_data_of(at)?;
        let row = Row::decode(value)?;
        let seen = self.inodes.get(&file).filter(|seen| seen.inline);
        let within = row.end(number).zip(seen).is_some_and(|(end, seen)| end <= seen.charged.bytes);
        // Nothing reads a part of a file that is one row.
        if !within || self.whole == Some(file) {
            self.problem(Problem::StaleRow { table: keys::INLINE_DATA, number: file.0 });
        }
        if matches!(row, Row::Whole(_)) {
            self.whole = Some(file);
        }
        Ok(())
    }

    fn data_file_row(&mut self, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        let id = keys::data_file_of(at)?;
        let mut r = Reader::new("data file", value);
        r.schema(1)?;
        self.owners.insert(id, InodeKey::decode(&mut r)?);
        Ok(())
    }

    fn garbage_row(&mut self, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        let id = DataFileId(number_of(at)?);
        self.report.garbage += 1;
        if self.owners.contains_key(&id) {
            self.problem(Problem::GarbageInUse { id });
        }
        // By what it says its row is removed.
        let says = Garbage::decode(value)?.layout.id;
        if says == id { Ok(()) } else { Err(FsError::corrupt("garbage row")) }
    }

    fn heal_row(&mut self, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        let problems = self.report.problems.len();
        self.about_a_file(keys::HEAL, at, value.clone())?;
        // A row that should not be there plans nothing.
        if self.report.problems.len() == problems {
            let heal = Heal::decode(value)?;
            self.named.extend(heal.replacements.iter().map(|replacement| replacement.new.store));
            if let Some(id) = self.inodes.get(&heal.inode.fileid).and_then(|seen| seen.data_file) {
                let filled =
                    |Replacement { new, .. }: &Replacement| ((id, new.slot), (new.store, new.generation));
                self.filled.extend(heal.replacements.iter().map(filled));
            }
        }
        Ok(())
    }

    fn spare_row(&mut self, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        let Spare { id, slot, store, generation } = Spare::decode(at, value)?;
        if self.filled.get(&(id, slot)) == Some(&(store, generation)) {
            self.filled.remove(&(id, slot));
        }
        Ok(())
    }

    /// All of these begin with an inode key; only some go on.
    fn about_a_file(&mut self, table: u8, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        let number = number_of(at)?;
        let mut r = Reader::new("row", value);
        r.schema(1)?;
        let key = InodeKey::decode(&mut r)?;
        let seen = self.inodes.get(&key.fileid).filter(|seen| seen.key == key && key.fileid.0 == number);
        let fits = seen.is_some_and(|seen| match table {
            keys::ORPHAN => seen.nlink == 0 && seen.links == 0,
            keys::HEAL => seen.degraded,
            _ => seen.data_file.is_some(),
        });
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
        Ok(())
    }

    fn drain_row(&mut self, value: Bytes) -> Result<(), FsError> {
        let (store, done) = self.servers.drain_row(value)?;
        if done && self.named.contains(&store) {
            self.problem(Problem::NotDrained { store });
        }
        Ok(())
    }

    fn number_row(&mut self, at: &Bytes, value: Bytes) -> Result<(), FsError> {
        self.servers.number_row(Reader::new("store uuid", at.slice(1..)).array()?, value)
    }

    fn statistic_row(&mut self, at: &Bytes, value: &Bytes) -> Result<(), FsError> {
        let mut r = Reader::new("statistic key", at.slice(1..));
        let sum = self.statistics.entry(r.u8()?).or_default();
        // Shards are signed: one may have removed what another made.
        *sum = sum.wrapping_add(codec::counter("statistic", value)?);
        Ok(())
    }
}

fn number_of(at: &Bytes) -> Result<u64, FsError> {
    Reader::new("row key", at.slice(1..)).u64()
}

impl Seen {
    fn new(key: InodeKey, record: &InodeRecord) -> Self {
        let file = match &record.node {
            Node::File(file) => Some(file),
            _ => None,
        };
        let parent = match &record.node {
            Node::Directory(directory) => Some(directory.parent.fileid),
            _ => None,
        };
        Self {
            key,
            kind: record.kind(),
            nlink: record.nlink.into(),
            links: 0,
            xattrs: record.xattrs,
            degraded: record.layout().is_some_and(Layout::is_degraded),
            inline: file.is_some_and(|file| file.inline.is_some()),
            empty: file.is_none_or(|file| file.size == 0),
            space_used: file.map_or(0, |file| file.space_used),
            charged: Charged::of(record),
            data_file: file.and_then(|file| file.layout.as_ref()).map(|layout| layout.id),
            parent,
            in_parent: false,
        }
    }
}
