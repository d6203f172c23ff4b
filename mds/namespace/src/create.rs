//! Making files, directories, links, devices, pipes and sockets: one transaction, no data server.

use std::pin::pin;

use bytes::Bytes;
use sluice_env::Wall;
use sluice_kv::{Transaction, Versionstamp};

use crate::acl::{self, Acl, NewMode};
use crate::credential::{self, Credential, Owned, Want};
use crate::data_file::Layout;
use crate::directory::{Delta, Parent};
use crate::dirent;
use crate::error::FsError;
use crate::inline::Inline;
use crate::inode::{DirectoryNode, DirectoryState, FileNode, Inode, InodeRecord, Kind, MAX_SYMLINK, Node};
use crate::keys::{FileId, InodeKey, Statistic};
use crate::lookup::missing_is_corrupt;
use crate::name::Name;
use crate::pending::{DirectoryChange, Pending, settle_fields};
use crate::quota::Charged;
use crate::{Namespace, Request, fetch, join, layout, size, superblock};

/// What to do when the name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// A regular file that exists is taken as it is.
    Unchecked,
    /// It is an error.
    Guarded,
    /// An error unless the same verifier made it (RFC 8881 §18.16.3).
    Exclusive([u8; 8]),
}

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewNode {
    File {
        /// Where its data will be; `None` to decide at the first layout.
        layout: Option<Layout>,
        /// A read-write layout goes out with the reply: its row is written at once.
        read_write_layout: bool,
        /// Bytes.
        size: u64,
    },
    /// Its data will be in the metadata.
    InlineFile {
        inline: Inline,
        /// Bytes, within the limit.
        size: u64,
    },
    /// It inherits the layout policy.
    Directory,
    Symlink {
        target: Bytes,
    },
    BlockDevice {
        major: u32,
        minor: u32,
    },
    CharDevice {
        major: u32,
        minor: u32,
    },
    Fifo,
    Socket,
}

impl NewNode {
    fn kind(&self) -> Kind {
        match self {
            Self::File { .. } | Self::InlineFile { .. } => Kind::File,
            Self::Directory => Kind::Directory,
            Self::Symlink { .. } => Kind::Symlink,
            Self::BlockDevice { .. } => Kind::BlockDevice,
            Self::CharDevice { .. } => Kind::CharDevice,
            Self::Fifo => Kind::Fifo,
            Self::Socket => Kind::Socket,
        }
    }
}

/// Attributes given at creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAttributes {
    /// Low 12 bits; the directory's list has a say in it.
    pub mode: NewMode,
    /// A list in place of what would be inherited.
    pub acl: Option<Acl>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<Wall>,
    pub mtime: Option<Wall>,
    pub btime: Option<Wall>,
}

impl NewAttributes {
    /// Only a mode.
    pub const fn mode(mode: u16) -> Self {
        let mode = NewMode::Given(mode);
        Self { mode, acl: None, uid: None, gid: None, atime: None, mtime: None, btime: None }
    }
}

/// A creation.
#[derive(Clone, Debug)]
pub struct Create<'a> {
    pub directory: InodeKey,
    pub name: Name<'a>,
    pub node: NewNode,
    pub mode: CreateMode,
    pub attributes: NewAttributes,
    /// A number leased for this creation; unused if the name exists.
    pub fileid: FileId,
}

/// What a creation led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    pub inode: Inode,
    /// False: it was there, and nothing was changed.
    pub created: bool,
    pub directory: DirectoryChange,
}
settle_fields!(Created: inode, directory);

impl Create<'_> {
    /// What will be charged for it in this directory, if it is made.
    pub fn charged(&self, parent: &InodeRecord, who: &Credential) -> Charged {
        let (gid, _) = credential::inherit(&parent.owned(), who, self.node.kind(), 0);
        let bytes = match self.node {
            NewNode::File { size, .. } | NewNode::InlineFile { size, .. } => size,
            _ => 0,
        };
        Charged {
            uid: self.attributes.uid.unwrap_or(who.uid),
            gid: self.attributes.gid.unwrap_or(gid),
            tree: parent.tree,
            bytes,
        }
    }
}

impl Namespace {
    /// Makes an inode with a name, or finds the one that is there.
    ///
    /// Errors: Stale, NotDirectory, Access; Exists; of what is there and not a regular file:
    /// IsDirectory, IsSymlink, WrongType; NotOwner (a device, or an owner that is not one's own);
    /// Invalid, NameTooLong (a link's target); NoSpace (too many colliding names).
    pub async fn create(
        &self,
        txn: &mut Transaction,
        create: &Create<'_>,
        request: &Request<'_>,
    ) -> Result<Pending<Created>, FsError> {
        let directory = &create.directory;
        let (parent, place) = pin!(join::both(
            Parent::read(txn, directory),
            dirent::find(txn, &self.hash, directory.fileid, &create.name),
        ))
        .await?;
        parent.record.owned().require(request.who, Want::EXECUTE)?;
        if let Some(entry) = &place.entry {
            let inode = fetch::inode(txn, &entry.inode, self.base()).await.map_err(missing_is_corrupt)?;
            accept_existing(create, &inode)?;
            let directory = self.directory_unchanged(txn, &parent, request).await?;
            return Ok(Pending::new(Created { inode, created: false, directory }, self.base()));
        }
        parent.record.owned().require_add(request.who, create.node.kind())?;
        let key = InodeKey { home: directory.fileid, cookie: place.vacancy()?, fileid: create.fileid };
        let record = new_record(create, &parent.record, request)?;
        if create.attributes.acl.as_ref().is_some_and(Acl::is_marked) {
            superblock::raise(txn, |superblock| superblock.marked = true).await?;
        }
        let kind = record.kind();
        put_new(txn, &key, &record, create, request);
        pin!(self.charge(txn, &key, None, Some(Charged::of(&record)))).await?;
        place.insert(txn, &create.name, kind, key)?;
        let change = pin!(self.update_directory(txn, &parent, Delta::plus(kind), request)).await?;
        let state = (kind == Kind::Directory).then(|| DirectoryState::empty(request.now));
        let inode = Inode { key, record, directory: state, change: 0 };
        Ok(Pending::new(Created { inode, created: true, directory: change }, self.base()))
    }
}

/// Writes the inode and the rows that go with it.
fn put_new(
    txn: &mut Transaction,
    key: &InodeKey,
    record: &InodeRecord,
    create: &Create<'_>,
    request: &Request<'_>,
) {
    fetch::put(txn, key, record);
    fetch::count(txn, Statistic::Files, key.fileid, 1);
    match &record.node {
        Node::Directory(_) => superblock::put_empty_directory(txn, key, request.now),
        Node::File(file) => {
            fetch::count(txn, Statistic::Bytes, key.fileid, size::signed(file.space_used));
            if let Some(layout) = &file.layout {
                layout::put_owner(txn, layout.id, key);
                if matches!(create.node, NewNode::File { read_write_layout: true, .. }) {
                    layout::put_read_write(txn, key);
                }
            }
        }
        _ => {}
    }
}

fn accept_existing(create: &Create<'_>, existing: &Inode) -> Result<(), FsError> {
    let wanted = create.node.kind() == Kind::File;
    match (create.mode, existing.file()) {
        (CreateMode::Unchecked, Some(_)) if wanted => Ok(()),
        // RFC 8881 §18.16.3: the same verifier means a retry of the request that made the file.
        (CreateMode::Exclusive(verifier), Some(f)) if wanted && f.verifier == Some(verifier) => Ok(()),
        (CreateMode::Unchecked, None) if wanted => Err(match existing.kind() {
            Kind::Directory => FsError::IsDirectory,
            Kind::Symlink => FsError::IsSymlink,
            _ => FsError::WrongType,
        }),
        _ => Err(FsError::Exists),
    }
}

fn new_record(
    create: &Create<'_>,
    parent: &InodeRecord,
    request: &Request<'_>,
) -> Result<InodeRecord, FsError> {
    let Request { who, now, .. } = *request;
    let attributes = &create.attributes;
    let kind = create.node.kind();
    let (acl, mode) = acl::initial(parent.acl.as_ref(), kind, attributes.mode, attributes.acl.as_ref())?;
    let (gid, mode) = credential::inherit(&parent.owned(), who, kind, mode & 0o7777);
    let owned = Owned { kind, mode, uid: who.uid, gid, acl: None };
    let (uid, gid) = chosen_owner(&owned, who, attributes)?;
    Ok(InodeRecord {
        stamp: Versionstamp([0; 10]),
        // A link has no permissions of its own.
        mode: if kind == Kind::Symlink { 0o777 } else { mode },
        uid,
        gid,
        nlink: 1,
        atime: attributes.atime.unwrap_or(now),
        mtime: attributes.mtime.unwrap_or(now),
        ctime: now,
        btime: attributes.btime.unwrap_or(now),
        xattrs: false,
        acl,
        tree: parent.tree,
        node: new_node(create, parent, request)?,
    })
}

/// An owner given at creation is one that a chown could give.
fn chosen_owner(owned: &Owned, who: &Credential, given: &NewAttributes) -> Result<(u32, u32), FsError> {
    let uid = given.uid.unwrap_or(owned.uid);
    let gid = given.gid.unwrap_or(owned.gid);
    let own = uid == owned.uid && (gid == owned.gid || who.in_group(gid));
    if own || who.is_root() { Ok((uid, gid)) } else { Err(FsError::NotOwner) }
}

fn new_file(mode: CreateMode, size: u64) -> FileNode {
    let verifier = match mode {
        CreateMode::Exclusive(verifier) => Some(verifier),
        _ => None,
    };
    FileNode { size, space_used: size::space_for(size, 0), verifier, ..FileNode::default() }
}

fn new_node(create: &Create<'_>, parent: &InodeRecord, request: &Request<'_>) -> Result<Node, FsError> {
    Ok(match &create.node {
        NewNode::File { layout, size, .. } => {
            if layout.as_ref().is_some_and(|l| !l.is_valid()) {
                return Err(FsError::Invalid);
            }
            Node::File(FileNode { layout: layout.clone(), ..new_file(create.mode, *size) })
        }
        NewNode::InlineFile { inline, size } => {
            if !inline.holds(*size) {
                return Err(FsError::Invalid);
            }
            Node::File(FileNode { inline: Some(*inline), ..new_file(create.mode, *size) })
        }
        NewNode::Directory => {
            let Node::Directory(above) = &parent.node else { return Err(FsError::NotDirectory) };
            let mtime_set = request.now;
            Node::Directory(DirectoryNode { parent: create.directory, policy: above.policy, mtime_set })
        }
        NewNode::Symlink { target } => {
            if target.len() > MAX_SYMLINK {
                return Err(FsError::NameTooLong);
            }
            if target.is_empty() || target.contains(&0) {
                return Err(FsError::Invalid);
            }
            Node::Symlink { target: target.clone() }
        }
        // Making a device node takes CAP_MKNOD on Linux.
        NewNode::BlockDevice { .. } | NewNode::CharDevice { .. } if !request.who.is_root() => {
            return Err(FsError::NotOwner);
        }
        NewNode::BlockDevice { major, minor } => Node::BlockDevice { major: *major, minor: *minor },
        NewNode::CharDevice { major, minor } => Node::CharDevice { major: *major, minor: *minor },
        NewNode::Fifo => Node::Fifo,
        NewNode::Socket => Node::Socket,
    })
}
