//! Who uses how much, who may use how much, and the trees of which both are told apart.
//!
//! What an inode is charged for stands in its record alone: one file, and if it is a regular file its size in
//! bytes; its owner, its group and its tree. Whoever changes a record hands the charges before and after to
//! [`charge`], in the same transaction (docs/adr/0018-quotas.md).

mod charge;
mod counting;
mod limits;
mod tree;

use crate::error::FsError;
use crate::inode::{InodeRecord, Node};
use crate::keys::FileId;

pub use counting::Counted;
pub(crate) use counting::{AllCounted, Progress};
pub(crate) use limits::clear_tree;
pub use limits::{Limit, Limits, OverSince, Quota, TreeState};
pub use tree::Walked;
pub(crate) use tree::moved_to;

/// Whom something is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    User(u32),
    Group(u32),
    /// By the number of its topmost directory.
    Tree(FileId),
    /// Every user without limits of its own. Nothing is charged to it.
    AnyUser,
    /// Every group without limits of its own. Nothing is charged to it.
    AnyGroup,
}

impl Subject {
    /// As in keys.
    pub const fn code(self) -> (u8, u64) {
        match self {
            Self::User(uid) => (1, uid as u64),
            Self::Group(gid) => (2, gid as u64),
            Self::Tree(root) => (3, root.0),
            Self::AnyUser => (4, 0),
            Self::AnyGroup => (5, 0),
        }
    }

    /// The inverse of [`Self::code`].
    pub fn from_code(kind: u8, id: u64) -> Option<Self> {
        let short = u32::try_from(id);
        match (kind, short) {
            (1, Ok(uid)) => Some(Self::User(uid)),
            (2, Ok(gid)) => Some(Self::Group(gid)),
            (3, _) => Some(Self::Tree(FileId(id))),
            (4, Ok(0)) => Some(Self::AnyUser),
            (5, Ok(0)) => Some(Self::AnyGroup),
            _ => None,
        }
    }
}

/// What somebody uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub files: u64,
    pub bytes: u128,
}

/// Bits of a counter below the number of files. Both are in one number, so that a file and its bytes are one
/// addition: 2^43 files, and bytes for two million files of the greatest size, which sparse files may well have.
const BYTES: u32 = 84;

impl Usage {
    /// From the sum of the shards, each of which may be negative.
    pub(crate) fn from_sum(sum: u128) -> Self {
        Self { files: u64::try_from(sum >> BYTES).unwrap_or(u64::MAX), bytes: sum & ((1 << BYTES) - 1) }
    }

    fn sum(self) -> u128 {
        (u128::from(self.files) << BYTES).wrapping_add(self.bytes)
    }
}

/// What one inode is charged for, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    pub uid: u32,
    pub gid: u32,
    pub tree: Option<FileId>,
    /// Bytes of a regular file, holes counted.
    pub bytes: u64,
}

impl Charged {
    pub fn of(record: &InodeRecord) -> Self {
        let bytes = match &record.node {
            Node::File(file) => file.size,
            _ => 0,
        };
        Self { uid: record.uid, gid: record.gid, tree: record.tree, bytes }
    }

    /// Everybody who is charged.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> + use<> {
        [Subject::User(self.uid), Subject::Group(self.gid)].into_iter().chain(self.tree.map(Subject::Tree))
    }

    pub(crate) fn usage(&self) -> u128 {
        Usage { files: 1, bytes: self.bytes.into() }.sum()
    }
}

/// A counter of a shard.
pub(crate) fn shard(value: &[u8]) -> Result<u128, FsError> {
    Ok(u128::from_le_bytes(value.try_into().map_err(|_| FsError::corrupt("usage counter"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_may_be_negative_and_their_sum_is_right() {
        let charged = |bytes| Charged { uid: 1, gid: 1, tree: None, bytes }.usage();
        let (a, b) = (charged(u64::MAX), charged(7));
        let one = 0_u128.wrapping_sub(b);
        let other = a.wrapping_add(b).wrapping_add(charged(0));
        let sum = Usage::from_sum(one.wrapping_add(other));
        assert_eq!(sum, Usage { files: 2, bytes: u64::MAX.into() });
    }

    #[test]
    fn codes_are_unique() {
        let all = [
            Subject::User(7),
            Subject::Group(7),
            Subject::Tree(FileId(7)),
            Subject::AnyUser,
            Subject::AnyGroup,
        ];
        for subject in all {
            let (kind, id) = subject.code();
            assert_eq!(Subject::from_code(kind, id), Some(subject));
        }
        assert_eq!(Subject::from_code(1, 1 << 32), None);
        assert_eq!(Subject::from_code(9, 0), None);
    }
}
