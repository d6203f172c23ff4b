//! Inode records, and what the world sees of an inode.
//!
//! The record begins with its schema version and the ten bytes of the versionstamp of the
//! transaction that last changed it, filled in by the store at commit: the change attribute costs
//! no read. A directory's times, counts and stamp move with every entry made in it, so they live
//! apart ([`DirectoryState`]), and the record of a directory is its liveness key: whoever adds an
//! entry reads it, rmdir clears it.

use bytes::Bytes;
use sluice_env::Wall;
use sluice_kv::Versionstamp;

use crate::acl::Acl;
use crate::codec::{self, Reader, Writer};
use crate::credential::{Credential, Owned, SET_ID};
use crate::data_file::{Layout, LayoutPolicy};
use crate::error::FsError;
use crate::inline::Inline;
use crate::keys::{FileId, InodeKey};

/// Greatest length of a symbolic link's target, in bytes.
pub const MAX_SYMLINK: usize = 4095;
/// Greatest number of names of one inode.
pub const MAX_LINKS: u32 = 1_000_000;

/// What an inode is, without what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    BlockDevice,
    CharDevice,
    Fifo,
    Socket,
}

impl Kind {
    const ALL: [(Self, u8); 7] = [
        (Self::File, 1),
        (Self::Directory, 2),
        (Self::Symlink, 3),
        (Self::BlockDevice, 4),
        (Self::CharDevice, 5),
        (Self::Fifo, 6),
        (Self::Socket, 7),
    ];

    /// A device, socket or FIFO: what is read and written there is nothing of the file system's.
    #[must_use]
    pub const fn is_special(self) -> bool {
        matches!(self, Self::BlockDevice | Self::CharDevice | Self::Fifo | Self::Socket)
    }

    pub(crate) fn code(self) -> u8 {
        Self::ALL.iter().find(|k| k.0 == self).map_or(0, |k| k.1)
    }
    pub(crate) fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let code = r.u8()?;
        Self::ALL.iter().find(|k| k.1 == code).map(|k| k.0).ok_or_else(|| r.corrupt())
    }
}

/// What an inode holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    File(FileNode),
    Directory(DirectoryNode),
    Symlink { target: Bytes },
    BlockDevice { major: u32, minor: u32 },
    CharDevice { major: u32, minor: u32 },
    Fifo,
    Socket,
}

/// A regular file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileNode {
    pub size: u64,
    /// Bytes of storage, as last learnt; never 0 when `size` is not.
    pub space_used: u64,
    /// `None` until data servers are chosen.
    pub layout: Option<Layout>,
    /// The verifier of the exclusive create that made it (RFC 8881 §18.16.3).
    pub verifier: Option<[u8; 8]>,
    /// Its bytes are in the metadata; then it has no layout.
    pub inline: Option<Inline>,
}

/// A directory's constants: what making an entry does not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryNode {
    /// The directory it is in; the root is its own parent.
    pub parent: InodeKey,
    pub policy: LayoutPolicy,
    /// When the record's mtime was set explicitly; entries made later show their own time instead.
    pub mtime_set: Wall,
}

/// The stored record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    /// Of the transaction that last changed it (zero in one not yet committed).
    pub stamp: Versionstamp,
    /// The low 12 bits of the mode.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// Names; of a directory, 1 (subdirectories are counted in its state).
    pub nlink: u32,
    pub atime: Wall,
    pub mtime: Wall,
    pub ctime: Wall,
    pub btime: Wall,
    /// It has extended attributes.
    pub xattrs: bool,
    /// Only if it says more than the mode does.
    pub acl: Option<Acl>,
    /// The quota tree it is charged to, by the number of its topmost directory.
    pub tree: Option<FileId>,
    pub node: Node,
}

/// Bytes of a time.
const WALL: usize = 8 + 4;
/// Where the store puts the versionstamp in a record.
pub(crate) const STAMP_OFFSET: usize = 1;

impl InodeRecord {
    /// Without a list; and with one, behind all the rest.
    const SCHEMA: u8 = 1;
    const SCHEMA_ACL: u8 = 2;
    /// In a tree: its number, and whether there is a list, come behind the rest.
    const SCHEMA_TREE: u8 = 3;
    const WHAT: &'static str = "inode record";

    pub(crate) fn layout(&self) -> Option<&Layout> {
        match &self.node {
            Node::File(file) => file.layout.as_ref(),
            _ => None,
        }
    }

    pub fn kind(&self) -> Kind {
        match &self.node {
            Node::File(_) => Kind::File,
            Node::Directory(_) => Kind::Directory,
            Node::Symlink { .. } => Kind::Symlink,
            Node::BlockDevice { .. } => Kind::BlockDevice,
            Node::CharDevice { .. } => Kind::CharDevice,
            Node::Fifo => Kind::Fifo,
            Node::Socket => Kind::Socket,
        }
    }

    pub fn owned(&self) -> Owned {
        let acl = self.acl.clone();
        Owned { kind: self.kind(), mode: self.mode, uid: self.uid, gid: self.gid, acl }
    }

    /// See [`Owned::written_by`]. The list has no say in it and is not copied.
    pub(crate) fn written_by(&self, who: &Credential) -> u16 {
        Owned { kind: self.kind(), mode: self.mode, uid: self.uid, gid: self.gid, acl: None }.written_by(who)
    }

    /// Bytes that it takes, without a list: one that has memory left over is two pieces of memory, here and once more when
    /// the store has stamped it.
    fn room(&self) -> usize {
        // Schema, stamp, kind, whether there are extended attributes; mode; owner, group, links; four times.
        const HEAD: usize = 1 + Versionstamp::LEN + 1 + 1 + 2 + 3 * 4 + 4 * WALL;
        let node = match &self.node {
            Node::File(file) => file.room(),
            Node::Directory(directory) => InodeKey::SIZE + directory.policy.room() + WALL,
            Node::Symlink { target } => 4 + target.len(),
            Node::BlockDevice { .. } | Node::CharDevice { .. } => 2 * 4,
            Node::Fifo | Node::Socket => 0,
        };
        HEAD + node + if self.tree.is_some() { 8 + 1 } else { 0 }
    }

    pub fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(self.room());
        w.u8(match (self.tree, &self.acl) {
            (Some(_), _) => Self::SCHEMA_TREE,
            (None, Some(_)) => Self::SCHEMA_ACL,
            (None, None) => Self::SCHEMA,
        });
        w.raw(&self.stamp.0).u8(self.kind().code()).bool(self.xattrs);
        w.u16(self.mode).u32(self.uid).u32(self.gid).u32(self.nlink);
        w.wall(self.atime).wall(self.mtime).wall(self.ctime).wall(self.btime);
        match &self.node {
            Node::File(f) => f.encode(&mut w),
            Node::Directory(d) => {
                d.parent.encode(&mut w);
                d.policy.encode(&mut w);
                w.wall(d.mtime_set);
            }
            Node::Symlink { target } => {
                w.bytes(target);
            }
            Node::BlockDevice { major, minor } | Node::CharDevice { major, minor } => {
                w.u32(*major).u32(*minor);
            }
            Node::Fifo | Node::Socket => {}
        }
        if let Some(tree) = self.tree {
            w.u64(tree.0).bool(self.acl.is_some());
        }
        if let Some(acl) = &self.acl {
            acl.encode(&mut w);
        }
        w.finish()
    }

    /// The policy in a directory's record, the default in another: every OPEN that makes a file asks for this alone.
    pub(crate) fn policy_of(value: Bytes) -> Result<LayoutPolicy, FsError> {
        let mut r = Reader::new(Self::WHAT, value);
        r.schema(Self::SCHEMA_TREE)?;
        r.skip(Versionstamp::LEN)?;
        if Kind::decode(&mut r)? != Kind::Directory {
            return Ok(LayoutPolicy::default());
        }
        // Whether there are extended attributes; mode; owner, group, links; four times; the directory above.
        r.skip(1 + 2 + 3 * 4 + 4 * 12 + InodeKey::SIZE)?;
        LayoutPolicy::decode(&mut r)
    }

    pub fn decode(value: Bytes) -> Result<Self, FsError> {
        let mut r = Reader::new(Self::WHAT, value);
        let schema = r.schema(Self::SCHEMA_TREE)?;
        let stamp = Versionstamp(r.array()?);
        let kind = Kind::decode(&mut r)?;
        let xattrs = r.bool()?;
        let (mode, uid, gid, nlink) = (r.u16()?, r.u32()?, r.u32()?, r.u32()?);
        let (atime, mtime, ctime, btime) = (r.wall()?, r.wall()?, r.wall()?, r.wall()?);
        let node = match kind {
            Kind::File => Node::File(FileNode::decode(&mut r)?),
            Kind::Directory => Node::Directory(DirectoryNode {
                parent: InodeKey::decode(&mut r)?,
                policy: LayoutPolicy::decode(&mut r)?,
                mtime_set: r.wall()?,
            }),
            Kind::Symlink => Node::Symlink { target: r.bytes()? },
            Kind::BlockDevice => Node::BlockDevice { major: r.u32()?, minor: r.u32()? },
            Kind::CharDevice => Node::CharDevice { major: r.u32()?, minor: r.u32()? },
            Kind::Fifo => Node::Fifo,
            Kind::Socket => Node::Socket,
        };
        if mode > 0o7777 {
            return Err(r.corrupt());
        }
        let tree = if schema == Self::SCHEMA_TREE { Some(FileId(r.u64()?)) } else { None };
        let listed = if tree.is_some() { r.bool()? } else { schema == Self::SCHEMA_ACL };
        let acl = if listed { Some(Acl::decode(&mut r)?) } else { None };
        r.finish()?;
        Ok(Self { stamp, mode, uid, gid, nlink, atime, mtime, ctime, btime, xattrs, acl, tree, node })
    }
}

impl FileNode {
    fn room(&self) -> usize {
        let inline = self.inline.as_ref().map_or(4, Inline::room);
        8 + 8 + 1 + 8 + 1 + self.layout.as_ref().map_or(0, Layout::room) + inline
    }

    fn encode(&self, w: &mut Writer) {
        w.u64(self.size).u64(self.space_used);
        w.bool(self.verifier.is_some()).raw(&self.verifier.unwrap_or_default());
        w.bool(self.layout.is_some());
        if let Some(layout) = &self.layout {
            layout.encode(w);
        }
        match &self.inline {
            // Releases that knew of no inline files wrote this, too.
            None => drop(w.u32(0)),
            Some(inline) => inline.encode(w),
        }
    }

    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let (size, space_used) = (r.u64()?, r.u64()?);
        let has_verifier = r.bool()?;
        let verifier = r.array()?;
        let layout = if r.bool()? { Some(Layout::decode(r)?) } else { None };
        let inline = Inline::decode(r)?;
        if inline.is_some_and(|inline| layout.is_some() || size > inline.limit.into()) {
            return Err(r.corrupt());
        }
        Ok(Self { size, space_used, layout, verifier: has_verifier.then_some(verifier), inline })
    }
}

/// What making and removing entries changes in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryState {
    /// Of the last exact update, or blind one if later.
    pub stamp: Versionstamp,
    /// Time of the last update.
    pub touched: Wall,
    /// Names in it.
    pub entries: u64,
    /// Names of directories in it.
    pub subdirectories: u64,
    /// Blind updates are kept beside it.
    pub split: bool,
}

impl DirectoryState {
    const SCHEMA: u8 = 1;

    /// An empty directory made at `now`.
    pub(crate) const fn empty(now: Wall) -> Self {
        Self { stamp: Versionstamp([0; 10]), touched: now, entries: 0, subdirectories: 0, split: false }
    }

    pub fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(1 + Versionstamp::LEN + 8 + 8 + 8 + 1);
        w.u8(Self::SCHEMA).raw(&self.stamp.0).u64(codec::nanos(self.touched));
        w.u64(self.entries).u64(self.subdirectories).bool(self.split);
        w.finish()
    }

    pub fn decode(value: Bytes) -> Result<Self, FsError> {
        let mut r = Reader::new("directory state", value);
        r.schema(Self::SCHEMA)?;
        let stamp = Versionstamp(r.array()?);
        let touched = codec::from_nanos(r.u64()?);
        let (entries, subdirectories, split) = (r.u64()?, r.u64()?, r.bool()?);
        r.finish()?;
        Ok(Self { stamp, touched, entries, subdirectories, split })
    }
}

/// An inode as the world sees it: the record, and for a directory its state merged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub key: InodeKey,
    pub record: InodeRecord,
    /// Of a directory.
    pub directory: Option<DirectoryState>,
    /// The change attribute. Zero while the transaction that changes it has not committed:
    /// results that hold such an inode are wrapped in [`crate::Pending`].
    pub change: u64,
}

impl Inode {
    pub fn kind(&self) -> Kind {
        self.record.kind()
    }
    pub fn is_directory(&self) -> bool {
        self.kind() == Kind::Directory
    }
    pub fn file(&self) -> Option<&FileNode> {
        match &self.record.node {
            Node::File(f) => Some(f),
            _ => None,
        }
    }
    pub fn directory_node(&self) -> Option<&DirectoryNode> {
        match &self.record.node {
            Node::Directory(d) => Some(d),
            _ => None,
        }
    }
    /// The list that it has, or that its mode means (RFC 8881 §6.4.2).
    pub fn acl(&self) -> Acl {
        let record = &self.record;
        record.acl.clone().unwrap_or_else(|| Acl::of_mode(record.kind(), record.mode))
    }
    pub fn layout(&self) -> Option<&Layout> {
        self.file().and_then(|f| f.layout.as_ref())
    }
    /// The file's bytes are in the metadata.
    pub fn inline(&self) -> Option<Inline> {
        self.file().and_then(|f| f.inline)
    }
    pub fn symlink(&self) -> Option<&Bytes> {
        match &self.record.node {
            Node::Symlink { target } => Some(target),
            _ => None,
        }
    }
    /// Major and minor number; zero of what is not a device.
    pub fn device(&self) -> (u32, u32) {
        match &self.record.node {
            Node::BlockDevice { major, minor } | Node::CharDevice { major, minor } => (*major, *minor),
            _ => (0, 0),
        }
    }
    /// Whether a write takes set-id bits away.
    pub fn loses_set_id(&self, who: &Credential) -> bool {
        let mode = self.record.mode;
        mode & SET_ID != 0 && self.record.written_by(who) != mode
    }
    /// Whether set-id bits stay when `who` writes: those that a write by somebody else takes away.
    pub fn keeps_set_id(&self, who: &Credential) -> bool {
        self.record.mode & SET_ID != 0 && self.record.written_by(who) & SET_ID != 0
    }
    /// Names; of a directory, two and one for each subdirectory.
    pub fn nlink(&self) -> u32 {
        match self.directory {
            Some(d) => u32::try_from(d.subdirectories.saturating_add(2)).unwrap_or(u32::MAX),
            None => self.record.nlink,
        }
    }
    /// Bytes.
    pub fn size(&self) -> u64 {
        match &self.record.node {
            Node::File(f) => f.size,
            Node::Directory(_) => 4096,
            Node::Symlink { target } => u64::try_from(target.len()).unwrap_or(u64::MAX),
            _ => 0,
        }
    }
    /// Bytes of storage; never 0 when there is a size.
    pub fn space_used(&self) -> u64 {
        match &self.record.node {
            Node::File(f) => f.space_used,
            Node::Directory(_) => 4096,
            _ => 0,
        }
    }
    pub fn mtime(&self) -> Wall {
        match (&self.record.node, self.directory) {
            (Node::Directory(node), Some(state)) if state.touched > node.mtime_set => state.touched,
            _ => self.record.mtime,
        }
    }
    pub fn ctime(&self) -> Wall {
        self.directory.map_or(self.record.ctime, |d| self.record.ctime.max(d.touched))
    }
    /// The version of the last change: the change attribute without the file system's base.
    pub(crate) fn version(&self) -> u64 {
        let state = self.directory.map_or(0, |d| d.stamp.version());
        self.record.stamp.version().max(state)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data_file::tests::layout;

    fn wall() -> impl Strategy<Value = Wall> {
        (any::<i64>(), 0u32..1_000_000_000).prop_map(|(seconds, nanos)| Wall { seconds, nanos })
    }

    fn class() -> impl Strategy<Value = Option<crate::Class>> {
        prop::option::of("[a-z0-9][a-z0-9-]{0,31}")
            .prop_map(|name| name.and_then(|name| crate::Class::parse(&name)))
    }

    fn node() -> impl Strategy<Value = Node> {
        prop_oneof![
            (any::<u64>(), any::<u64>(), prop::option::of(any::<[u8; 8]>()), prop::option::of(1u16..5))
                .prop_map(|(size, space_used, verifier, width)| {
                    let layout = width.map(|w| layout(size, w));
                    Node::File(FileNode { size, space_used, verifier, layout, inline: None })
                }),
            (1u32..=65_536, 0u8..3, class()).prop_map(|(limit, mirrors, class)| {
                let inline = Some(Inline { limit, shape: crate::Shape::Small, mirrors, class });
                Node::File(FileNode { size: (limit / 2).into(), inline, ..FileNode::default() })
            }),
            (wall(), 0u32..3, class()).prop_map(|(mtime_set, inline, class)| {
                let policy = LayoutPolicy { inline, class, ..LayoutPolicy::parse("wide,mirrors=3").unwrap() };
                Node::Directory(DirectoryNode { parent: InodeKey::ROOT, policy, mtime_set })
            }),
            prop::collection::vec(any::<u8>(), 0..99).prop_map(|t| Node::Symlink { target: t.into() }),
            any::<(u32, u32)>().prop_map(|(major, minor)| Node::CharDevice { major, minor }),
            Just(Node::Fifo),
            Just(Node::Socket),
        ]
    }

    proptest! {
        #[test]
        fn decode_is_the_inverse_of_encode(
            node in node(), stamp: [u8; 10], mode in 0u16..0o10000, ids: (u32, u32, u32),
            times in (wall(), wall(), wall(), wall()), xattrs: bool, cut in 0usize..100,
            acl in prop::option::of(crate::acl::tests::acl()), tree in prop::option::of(any::<u64>()),
        ) {
            let tree = tree.map(FileId);
            let record = InodeRecord {
                stamp: Versionstamp(stamp), mode, uid: ids.0, gid: ids.1, nlink: ids.2,
                atime: times.0, mtime: times.1, ctime: times.2, btime: times.3, xattrs, acl, tree, node,
            };
            let bytes = record.encode();
            prop_assert_eq!(&bytes[STAMP_OFFSET..STAMP_OFFSET + 10], &stamp);
            let policy = match &record.node {
                Node::Directory(node) => node.policy,
                _ => LayoutPolicy::default(),
            };
            prop_assert_eq!(InodeRecord::policy_of(bytes.clone()).unwrap(), policy);
            prop_assert_eq!(InodeRecord::decode(bytes.clone()).unwrap(), record.clone());
            prop_assert!(InodeRecord::decode(bytes.slice(..cut.min(bytes.len() - 1))).is_err());
            if record.acl.is_none() {
                prop_assert_eq!(left_over(record.encode()), 0);
            }
        }

        #[test]
        fn no_bytes_make_decode_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() { *first = 1 + *first % 3; }
            drop(InodeRecord::decode(bytes.clone().into()));
            drop(InodeRecord::policy_of(bytes.clone().into()));
            drop(DirectoryState::decode(bytes.into()));
        }
    }

    /// Bytes of memory beyond what is in it.
    pub(crate) fn left_over(bytes: Bytes) -> usize {
        let length = bytes.len();
        bytes.try_into_mut().unwrap().capacity() - length
    }

    #[test]
    fn the_state_of_a_directory_leaves_no_memory_over() {
        assert_eq!(left_over(DirectoryState::empty(Wall::default()).encode()), 0);
    }

    #[test]
    fn a_newer_schema_is_named() {
        let mut bytes = DirectoryState::empty(Wall::default()).encode().to_vec();
        bytes[0] = 9;
        assert!(matches!(
            DirectoryState::decode(bytes.into()),
            Err(FsError::NewerSchema { what: "directory state", found: 9, known: 1 })
        ));
    }
}
