//! Listing directories.
//!
//! Entries come in the order of their cookies, which never change: an entry present throughout a
//! listing appears exactly once, whatever comes and goes, and a listing goes on after a restart or
//! on another server. With attributes, the inodes at home in the directory are a second range that
//! runs along; only what was renamed or linked into it costs a read of its own.

use std::collections::BTreeMap;

use sluice_kv::Transaction;

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
        let entries = if read.attributes {
            self.with_inodes(txn, directory, found).await?
        } else {
            found.into_iter().map(|entry| Entry { entry, inode: None }).collect()
        };
        Ok(DirectoryPage { entries, eof })
    }

    async fn with_inodes(
        &self,
        txn: &Transaction,
        directory: FileId,
        found: Vec<Dirent>,
    ) -> Result<Vec<Entry>, FsError> {
        let mut records = at_home(txn, directory, &found).await?;
        let away: Vec<InodeKey> =
            found.iter().map(|e| e.inode).filter(|k| !records.contains_key(&k.fileid)).collect();
        for (key, record) in away.iter().zip(fetch::records(txn, &away).await?) {
            if let Some(record) = record {
                records.insert(key.fileid, record);
            }
        }
        let mut entries = Vec::with_capacity(found.len());
        for entry in found {
            // Two names of one inode may stand on one page; what has one name is taken, not copied.
            let record = match records.get(&entry.inode.fileid) {
                Some(record) if record.nlink > 1 => Some(record.clone()),
                _ => records.remove(&entry.inode.fileid),
            };
            let inode = record.map(|record| fetch::simple(&entry.inode, record, self.base()));
            entries.push(Entry { entry, inode });
        }
        self.complete_directories(txn, &mut entries).await?;
        Ok(entries)
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

/// The records of the inodes that live where the entries are, by one scan along them. What was
/// renamed away still lives there; if that is much, the scan stops early and the rest is read one by one.
async fn at_home(
    txn: &Transaction,
    directory: FileId,
    found: &[Dirent],
) -> Result<BTreeMap<FileId, InodeRecord>, FsError> {
    let (Some(first), Some(last)) = (found.first(), found.last()) else { return Ok(BTreeMap::new()) };
    let range = keys::inodes(directory, &(first.cookie..=last.cookie));
    let mut records = BTreeMap::new();
    for (key, value) in txn.range(&range, found.len() * 2 + 16, false).await? {
        records.insert(keys::inode_of(&key)?.fileid, InodeRecord::decode(value)?);
    }
    Ok(records)
}
