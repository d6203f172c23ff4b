//! What can be wrong, and how it is told.

use std::fmt;

use bytes::Bytes;

use crate::keys::{Cookie, DataFileId, FileId, InodeKey, PREFIXES, Statistic, StoreId};
use crate::quota::{Subject, Usage};

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
    /// A data server that is said to be empty, and that some layout names.
    NotDrained {
        store: StoreId,
    },
    /// A data server that is draining without a row of its drain, or the reverse, or whose uuid does not lead to it alone.
    Store {
        store: StoreId,
    },
    /// A data file that is being filled to take the place of another, and that no row remembers should it not come to that.
    NoSpare {
        id: DataFileId,
        slot: u16,
    },
    /// Extended attributes without an inode that says it has some, or the reverse.
    Xattrs {
        file: FileId,
    },
    /// A mode that is not what the list amounts to.
    Acl {
        inode: InodeKey,
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
    /// What somebody is said to use.
    Usage {
        subject: Subject,
        stored: Usage,
        found: Usage,
    },
    /// An inode in another quota tree than its directory.
    Tree {
        file: FileId,
    },
    Statistic {
        what: Statistic,
        stored: u64,
        found: u64,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { key, error } => {
                write!(
                    f,
                    "the row {} of {}: {error}",
                    hex(key),
                    table(key.first().copied().unwrap_or_default())
                )
            }
            Self::Dangling { directory, name } => {
                write!(
                    f,
                    "directory {}: {} leads to an inode that is not there",
                    directory.0,
                    printable(name)
                )
            }
            Self::NoDirectory { directory, name } => {
                write!(f, "{} is an entry of directory {}, which is not there", printable(name), directory.0)
            }
            Self::WrongKind { directory, name } => {
                write!(f, "directory {}: {} is of another kind than its inode", directory.0, printable(name))
            }
            Self::Misplaced { directory, cookie } => {
                write!(
                    f,
                    "directory {}: the entry at {:#x} is not where its name belongs",
                    directory.0, cookie.0
                )
            }
            Self::Nameless { inode } => {
                write!(f, "inode {} has no name and is not among the orphans", inode.fileid.0)
            }
            Self::TwoInodes { file } => write!(f, "inode {} is there twice", file.0),
            Self::LinkCount { inode, stored, found } => {
                write!(f, "inode {}: its link count is {stored}, it has {found} names", inode.fileid.0)
            }
            Self::Parent { inode } => {
                write!(f, "directory {} says another parent than the one it is in", inode.fileid.0)
            }
            Self::Unreachable { inode } => {
                write!(f, "directory {} cannot be reached from the root", inode.fileid.0)
            }
            Self::EntryCount { directory, stored, found } => {
                write!(f, "directory {} counts {stored} entries and has {found}", directory.0)
            }
            Self::SubdirectoryCount { directory, stored, found } => {
                write!(f, "directory {} counts {stored} subdirectories and has {found}", directory.0)
            }
            Self::State { directory } => {
                write!(
                    f,
                    "directory {}: a directory without its state row, or a state row without it",
                    directory.0
                )
            }
            Self::Xattrs { file } => {
                write!(f, "inode {} and its extended attributes contradict each other", file.0)
            }
            Self::NotDrained { store } => {
                write!(f, "data server {} is said to be drained, and files have data there", store.0)
            }
            Self::Store { store } => {
                write!(f, "data server {}: the rows about its uuid and its drain contradict its own", store.0)
            }
            Self::NoSpare { id, slot } => {
                write!(f, "data file {}, slot {slot}, is being filled and is not among the spares", id.0)
            }
            Self::Acl { inode } => {
                write!(f, "inode {}: its mode is not what its access control list amounts to", inode.fileid.0)
            }
            Self::DataFileOwner { id } => {
                write!(f, "data file {} has no owner, or another than the file that names it", id.0)
            }
            Self::StaleRow { table: prefix, number } => {
                write!(f, "{}: a row about {number}, which is not there or does not need it", table(*prefix))
            }
            Self::Unhealed { inode } => {
                write!(f, "file {} has mirrors to heal and is not in the queue", inode.fileid.0)
            }
            Self::GarbageInUse { id } => {
                write!(f, "data file {} is in use and is queued to be removed", id.0)
            }
            Self::NoSpaceUsed { inode } => {
                write!(f, "file {} is not empty and is said to use no space", inode.fileid.0)
            }
            Self::Usage { subject, stored, found } => write!(
                f,
                "{subject:?} is said to use {} bytes in {} files and uses {} in {}",
                stored.bytes, stored.files, found.bytes, found.files
            ),
            Self::Tree { file } => {
                write!(f, "inode {} is in another quota tree than its directory", file.0)
            }
            Self::Statistic { what, stored, found } => {
                let what = match what {
                    Statistic::Files => "inodes",
                    Statistic::Bytes => "bytes used",
                    Statistic::Degraded => "files to heal",
                };
                write!(f, "the counter of {what} says {stored}, there are {found}")
            }
        }
    }
}

fn table(prefix: u8) -> &'static str {
    PREFIXES.iter().find(|(_, known)| *known == prefix).map_or("no table", |(name, _)| *name)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn printable(name: &[u8]) -> String {
    format!("\"{}\"", name.escape_ascii())
}
