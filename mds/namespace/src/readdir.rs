//! Listing directories.
//!
//! Entries come in the order of their cookies, which never change: an entry present throughout a
//! listing appears exactly once, whatever comes and goes, and a listing goes on after a restart or
//! on another server. With attributes, the inodes at home in the directory are a second range that
//! runs along; only what was renamed or linked into it costs a read of its own.

use sluice_kv::{KeyValue, Transaction};

use crate::credential::{Credential, Want};
use crate::dirent::{Dirent, Stored};
use crate::error::FsError;
use crate::inode::{Inode, InodeRecord};
use crate::keys::{self, Cookie, FileId, InodeKey};
use crate::{Namespace, fetch, join};

/// One page of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ReadDir {
    pub directory: InodeKey,
    /// Entries after this cookie; 0 from the beginning.
    pub after: Cookie,
    /// Most entries.
    pub limit: usize,
    /// Read the inodes too.
    pub attributes: bool,
}

/// An entry, with its inode if that was asked for and is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub entry: Dirent,
    pub inode: Option<Inode>,
}

/// Entries in the order of their cookies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryPage {
    pub entries: Vec<Entry>,
    /// No entry follows.
    pub eof: bool,
    /// Whoever lists it may not search it: names, types and numbers are all that he sees, and no inodes are read.
    pub unsearchable: bool,
}

impl Namespace {
    /// Lists entries of a directory from a cookie on. Any cookie is good, also of an entry removed since.
    ///
    /// Errors: Stale, NotDirectory, Access (no read permission).
    pub async fn readdir(
        &self,
        txn: &Transaction,
        read: &ReadDir,
        who: &Credential,
    ) -> Result<DirectoryPage, FsError> {
        let record = fetch::directory(txn, &read.directory).await?;
        record.owned().require(who, Want::READ)?;
        let directory = read.directory.fileid;
        let (found, eof) = entries(txn, directory, read.after, read.limit.max(1)).await?;
        let unsearchable = record.owned().require(who, Want::EXECUTE).is_err();
        let entries = if read.attributes && !unsearchable {
            self.with_inodes(txn, directory, found).await?
        } else {
            found.into_iter().map(|entry| Entry { entry, inode: None }).collect()
        };
        Ok(DirectoryPage { entries, eof, unsearchable })
    }

    async fn with_inodes(
        &self,
        txn: &Transaction,
        directory: FileId,
        found: Vec<Dirent>,
    ) -> Result<Vec<Entry>, FsError> {
        let mut home = at_home(txn, directory, &found).await?;
        let mut entries = Vec::with_capacity(found.len());
        let mut away = Vec::new();
        for entry in found {
            let inode = match home.record(&entry)? {
                Some(record) => Some(fetch::simple(&entry.inode, record, self.base())),
                None => {
                    away.push(entries.len());
                    None
                }
            };
            entries.push(Entry { entry, inode });
        }
        if !away.is_empty() {
            Box::pin(self.add_away(txn, &away, &mut entries)).await?;
        }
        self.complete_directories(txn, &mut entries).await?;
        Ok(entries)
    }

    /// Reads the inodes of the entries at these places, side by side.
    async fn add_away(
        &self,
        txn: &Transaction,
        away: &[usize],
        entries: &mut [Entry],
    ) -> Result<(), FsError> {
        let at = |place: &usize| entries.get(*place).map(|found| found.entry.inode);
        let keys: Vec<InodeKey> = away.iter().filter_map(at).collect();
        for (place, record) in away.iter().zip(fetch::records(txn, &keys).await?) {
            if let (Some(found), Some(record)) = (entries.get_mut(*place), record) {
                found.inode = Some(fetch::simple(&found.entry.inode, record, self.base()));
            }
        }
        Ok(())
    }

    /// Reads the states of the directories on a page, side by side.
    async fn complete_directories(&self, txn: &Transaction, entries: &mut [Entry]) -> Result<(), FsError> {
        let directories = entries.iter_mut().filter_map(|e| e.inode.as_mut()).filter(|i| i.is_directory());
        join::all(directories.map(|inode| fetch::complete(txn, inode, self.base()))).await?;
        Ok(())
    }
}

/// Up to `limit` entries after `after`, and whether they are the last.
async fn entries(
    txn: &Transaction,
    directory: FileId,
    after: Cookie,
    limit: usize,
) -> Result<(Vec<Dirent>, bool), FsError> {
    let mut found = Vec::new();
    let mut at = after;
    loop {
        let Some(next) = at.0.checked_add(1) else { return Ok((found, true)) };
        let range = keys::dirents(directory, &(Cookie(next)..=Cookie(u64::MAX)));
        let want = limit - found.len() + 1;
        let rows = txn.range(&range, want, false).await?;
        let eof = rows.len() < want;
        for (key, value) in rows {
            let (_, cookie) = keys::dirent_of(&key)?;
            if let Some(entry) = Stored::decode(directory, cookie, value)?.entry {
                if found.len() == limit {
                    return Ok((found, false));
                }
                found.push(entry);
            }
            at = cookie;
        }
        if eof {
            return Ok((found, true));
        }
    }
}

/// Rows of inodes, in the order of their keys: of those that live where the entries are.
struct AtHome {
    home: FileId,
    rows: Vec<KeyValue>,
    /// Rows before this one are of entries before the one that is looked at.
    next: usize,
}

/// By one scan along the entries. What was renamed away still lives there; if that is much, the scan stops early and the rest
/// is read one by one.
async fn at_home(txn: &Transaction, directory: FileId, found: &[Dirent]) -> Result<AtHome, FsError> {
    let rows = match (found.first(), found.last()) {
        (Some(first), Some(last)) => {
            let range = keys::inodes(directory, &(first.cookie..=last.cookie));
            txn.range(&range, found.len() * 2 + 16, false).await?
        }
        _ => Vec::new(),
    };
    Ok(AtHome { home: directory, rows, next: 0 })
}

impl AtHome {
    /// The record of the inode of an entry, if it is here and no other name has taken it. Entries are asked for in their order.
    fn record(&mut self, entry: &Dirent) -> Result<Option<InodeRecord>, FsError> {
        if entry.inode.home != self.home {
            return Ok(None);
        }
        let key = keys::inode(&entry.inode);
        // Who was made here and has not been renamed is where the entry is: the rows before are of nobody who comes.
        let row = if entry.inode.cookie == entry.cookie {
            while self.rows.get(self.next).is_some_and(|(row, _)| **row < *key) {
                self.next += 1;
            }
            self.rows.get_mut(self.next).filter(|(row, _)| **row == *key)
        } else {
            let place = self.rows.binary_search_by(|(row, _)| (**row).cmp(&*key)).ok();
            place.and_then(|place| self.rows.get_mut(place))
        };
        match row.map(|(_, value)| std::mem::take(value)) {
            // No record is empty.
            Some(value) if !value.is_empty() => InodeRecord::decode(value).map(Some),
            _ => Ok(None),
        }
    }
}
