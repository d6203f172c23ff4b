//! The namespace: inodes, directory entries, links, extended attributes, where file data is, and
//! the tables that must survive a restart, as functions of a [`sluice_kv::Transaction`].
//!
//! An operation here may run twice and has no side effect: nothing happens until the transaction
//! commits (docs/DESIGN §4). What it changes carries the change attribute of the commit, which is
//! known only afterwards: results come as [`Pending`] and are resolved with the commit version.
//! No NFS type appears; the metadata server translates.
//!
//! One operation to a transaction: an inode that a transaction has changed cannot be read in it again,
//! because its versionstamp is not known yet (the store answers `Unreadable`).
//!
//! Reading order: `keys` (every key), `inode`, `dirent`, `directory`, then one file per operation.

mod acl;
mod check;
mod class;
mod clone;
mod codec;
mod create;
mod credential;
mod data_file;
mod directory;
mod dirent;
mod error;
mod fetch;
mod filehandle;
mod heal;
mod inline;
mod inode;
mod join;
mod keys;
mod layout;
mod link;
mod lookup;
mod mirrors;
mod name;
mod pending;
mod quota;
mod readdir;
mod reclaim;
mod remove;
mod rename;
mod sequence;
mod setattr;
mod size;
pub mod stable_storage;
mod superblock;
pub mod transfer;
mod truncate;
mod unlink;
mod xattr;

use sluice_env::Wall;

pub use acl::{Ace, Acl, AclFlags, Inheritance, NewMode, Rights, Who};
pub use check::{Check, Problem, Report, check};
pub use class::Class;
pub use clone::{Cloned, SetClone};
pub use create::{Create, CreateMode, Created, NewAttributes, NewNode};
pub use credential::{AccessMask, Credential, Owned, SET_ID, Want};
pub use data_file::{Component, DataFile, Layout, LayoutPolicy, Shape};
pub use directory::DirectoryUpdate;
pub use dirent::Dirent;
pub use error::FsError;
pub use filehandle::{FileHandle, HandleSeal};
pub use heal::{Heal, Healed, HealedSlot, Replacement, Spare};
pub use inline::{Inline, InlineData, MAX_INLINE, inline_limit};
pub use inode::{
    DirectoryNode, DirectoryState, FileNode, Inode, InodeRecord, Kind, MAX_LINKS, MAX_SYMLINK, Node,
};
pub use keys::{
    Cookie, DataFileId, FileId, InodeKey, PREFIXES, Sequence, SessionId, Statistic, StoreId, large_rows,
};
pub use layout::{AssignedLayout, LayoutNeed};
pub use link::Linked;
pub use lookup::Found;
pub use mirrors::is_one_segment_from_now_on;
pub use name::{MAX_NAME, Name};
pub use pending::{DirectoryChange, Pending, Settle};
pub use quota::{Charged, Counted, Limit, Limits, OverSince, Quota, Subject, TreeState, Usage, Walked};
pub use readdir::{DirectoryPage, Entry, ReadDir};
pub use reclaim::{Garbage, GarbageBatch, Reclaimed};
pub use remove::{Remove, Removed};
pub use rename::{Rename, Renamed};
pub use sequence::{IdAllocator, lease_block, next_number};
pub use setattr::{KeptTimes, SetAttr, SetTime};
pub use size::{CommitSize, MAX_FILE_SIZE, SizeCommitted};
pub use superblock::{FormatOptions, Superblock};
pub use truncate::{SetSize, TruncateIntent, TruncateOutcome, Truncated};
pub use unlink::Unlinked;
pub use xattr::{MAX_XATTR, MAX_XATTRS, SetXattr};

/// One file system: what its superblock says, and the operations.
#[derive(Clone, Debug)]
pub struct Namespace {
    superblock: Superblock,
    hash: name::NameHash,
    handles: HandleSeal,
    all_counted: quota::AllCounted,
}

/// Who asks for an operation and when, and how it may update directories.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub who: &'a Credential,
    /// The server's time.
    pub now: Wall,
    pub directory: DirectoryUpdate,
}

impl Namespace {
    /// What the superblock says.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// What filehandles are sealed with.
    pub fn handles(&self) -> &HandleSeal {
        &self.handles
    }

    /// What a commit version is added to: the change attribute never goes back, even when the
    /// store was loaded from a dump.
    pub fn base(&self) -> u64 {
        self.superblock.change_base
    }
}
